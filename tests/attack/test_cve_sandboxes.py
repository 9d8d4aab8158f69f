# SPDX-License-Identifier: Apache-2.0
"""Weaknesses of bubblewrap, Flatpak, runc and their like, by number: the same attack here, and where it works."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.attack.arena import Arena, naive_bwrap, python
from tests.attack.terminals import typed_at
from tests.attack.victims import host_directory
from tests.support import run_cli
from unspill import NeverStarted, Selection, UnspillError
from unspill.errors import BwrapUnsafe
from unspill.host.bwrap import find_bwrap

if TYPE_CHECKING:
    from unspill.model.plan import Facts

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]


def test_cve_2026_87766_setting_up_follows_no_link_of_an_earlier_run(
    arena: Arena, known_facts: tuple[str, Facts]
) -> None:
    """Run 1 leaves links to `/oldroot` where run 2 is asked to show, hide and start; bwrap before 0.12 follows them
    while it sets up. Control: a bwrap call with a mount point beneath such a link writes to the host."""
    ground = arena.ground
    host = host_directory(ground)
    for name in ("sub", "shown"):
        (ground.project / name).mkdir()
    link = f"ln -s /oldroot{host}"
    assert ground.sandbox().run(f"rm -r sub shown; {link} sub; {link} shown; {link} $HOME/playground/t").ok
    inside = os.fsencode(ground.project)
    asked: list[dict[str, Any]] = [{}, {"readable": (inside + b"/shown/made",)}, {"hidden": (inside + b"/sub/made",)}]
    for settings in asked:
        for cwd in (None, "sub", "sub/made"):
            try:
                ground.sandbox(**settings).run("echo x > made", cwd=cwd)
            except UnspillError:
                continue
    assert os.listdir(host) == ["key"]
    naive = ground.top / "naive"
    naive.mkdir()
    (naive / "sub").symlink_to(f"/oldroot{host}")
    naive_bwrap(ground.bwrap, "--bind", os.fspath(naive), os.fspath(naive), "--tmpfs", f"{naive}/sub/made", "true")
    bwrap = known_facts[1].bwrap
    assert bwrap is not None
    assert (host / "made").exists() is bwrap.symlink_flaw


def test_cve_2016_8659_cve_2020_5291_cve_2026_41163_a_setuid_bwrap_is_never_started(arena: Arena) -> None:
    """Configure a bwrap with the set-user-id bit, the mode in which all three were found, and a program of root's that
    has it. Control: a program of root's without the bit is taken."""
    copy = arena.ground.top / "bwrap"
    shutil.copyfile(os.fsdecode(arena.ground.bwrap), copy)
    copy.chmod(0o4755)
    with pytest.raises(BwrapUnsafe):
        arena.ground.sandbox(bwrap=os.fsencode(copy))
    assert os.stat("/usr/bin/su").st_mode & stat.S_ISUID
    with pytest.raises(BwrapUnsafe):
        find_bwrap(b"/usr/bin/su", "", [])
    assert find_bwrap(arena.ground.bwrap, "", []) == arena.ground.bwrap
    assert find_bwrap(b"/usr/bin/env", "", []) == b"/usr/bin/env"


def test_cve_2024_32462_no_word_of_a_command_is_an_option(arena: Arena) -> None:
    """Run a command whose first word is `--bind`, as Flatpak's `--command=` passed on.
    Control: a bwrap call without `--` before the command writes to the host."""
    host = host_directory(arena.ground)
    attack = ["--bind", os.fspath(host), "/mnt", "sh", "-c", "echo x > /mnt/written"]
    for command in (attack, ["--", *attack], [f"--bind={host}", *attack[1:]]):
        assert isinstance(arena.ground.sandbox().run(command).outcome, NeverStarted)
    assert os.listdir(host) == ["key"]
    naive_bwrap(arena.ground.bwrap, *attack)
    assert (host / "written").exists()


def test_cve_2024_42472_a_directory_that_is_kept_can_not_become_a_link(arena: Arena) -> None:
    """Replace the playground, which is kept between runs, by a link to a secret; the next run mounts it again.
    Control: a directory below one that the command may write is replaced, and a bwrap call shows what it leads to."""
    ground = arena.ground
    host = host_directory(ground)
    script = f"""
    import shutil
    place = os.path.expanduser("~/playground")
    attempt("remove", os.rmdir, place)
    attempt("rename", os.rename, place, place + "-old")
    attempt("link", os.symlink, {os.fspath(host)!r}, place)
    os.symlink({os.fspath(host)!r}, place + "/inner")
    """
    assert not arena.attack(script).won
    look = "for name in ('', '/inner'): attempt('read', open, os.path.expanduser('~/playground') + name + '/key')"
    assert not arena.attack(look).won
    kept = ground.top / "kept"
    (kept / "persist").mkdir(parents=True)
    swap = f"rmdir {kept}/persist; ln -s {host} {kept}/persist"
    naive_bwrap(ground.bwrap, "--bind", os.fspath(kept), os.fspath(kept), "sh", "-c", swap)
    shown = naive_bwrap(ground.bwrap, "--bind", f"{kept}/persist", "/mnt", "cat", "/mnt/key")
    assert shown.stdout == b"CANARY"


def test_cve_2026_34078_a_path_that_is_shown_can_not_be_made_to_lead_elsewhere(arena: Arena) -> None:
    """The person shows a directory of the project; a command replaces it by a link to a secret, in its layer and, with
    consent, in the project. Flatpak exposed what such a link led to. Control: a bwrap call shows the secret."""
    ground = arena.ground
    host = host_directory(ground)
    (ground.project / "shared").mkdir()
    settings: dict[str, Any] = {"readable": (os.fsencode(ground.project / "shared"),)}
    read = "attempt('read', open, 'shared/key')"
    assert ground.sandbox(**settings).run(f"rm -r shared; ln -s {host} shared").ok
    assert not arena.attack(read, **settings).won
    ground.sandbox(**settings).discard()
    (ground.project / "shared").rmdir()
    (ground.project / "shared").symlink_to(host)
    with suppress(UnspillError):
        assert not arena.attack(read, **settings).won
    shown = naive_bwrap(ground.bwrap, "--ro-bind", os.fspath(ground.project / "shared"), "/mnt", "cat", "/mnt/key")
    assert shown.stdout == b"CANARY"


def test_cve_2026_34079_discarding_deletes_nothing_outside(arena: Arena) -> None:
    """Leave links to host directories in a layer, also in the place of directories, then discard, undo and apply it.
    Flatpak deleted what a path of the application's led to. Control: a deletion that follows links empties it."""
    ground = arena.ground
    host = host_directory(ground)
    ground.write("dir/file", "x")
    sandbox = ground.sandbox()
    plant = f"rm -r dir; ln -s {host} dir; ln -s {host} other; mkdir deep; ln -s {host} deep/{'x' * 200}"
    assert sandbox.run(plant).ok
    sandbox.discard()
    assert os.listdir(host) == ["key"]
    assert sandbox.run(plant).ok
    sandbox.apply(Selection(included=(b"dir", b"other", b"deep")))
    assert sandbox.run("rm -rf dir other deep").ok
    sandbox.apply()
    sandbox.undo()
    assert run_cli("prune", cwd=ground.project).returncode == 0
    assert os.listdir(host) == ["key"]
    (ground.top / "naive").mkdir()
    (ground.top / "naive/link").symlink_to(host)
    subprocess.run(["find", "-L", ground.top / "naive", "-mindepth", "2", "-delete"], check=True)
    assert os.listdir(host) == []


TYPE: Final = """
import termios
for place in (0, 1, 2):
    attempt(f"type on {place}", fcntl.ioctl, place, termios.TIOCSTI, b"!")
"""


def test_cve_2017_5226_nothing_is_typed_into_the_terminal_of_the_person(arena: Arena) -> None:
    """A person at a terminal starts a command, which types into it with TIOCSTI, as every application of Flatpak could.
    Control: a bwrap call that leaves the terminal to the command has the person's shell read it."""
    ground = arena.ground
    ground.configure(f"bwrap = {os.fsdecode(ground.bwrap)!r}\n")
    words = [sys.executable, "-m", "unspill", "run", "--project", os.fspath(ground.project), "--", *python(TYPE)]
    assert typed_at(ground.top, *words) == "typed nothing"
    naive = [os.fsdecode(ground.bwrap), "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", *python(TYPE)]
    assert typed_at(ground.top, *naive).startswith("typed !")


def test_cve_2023_28101_no_name_hides_what_a_person_reads(arena: Arena) -> None:
    """Make files whose names move the cursor, clear lines and turn text round, and list the changes; Flatpak showed an
    application's permissions as they came. Control: what lists the names as they are prints all of it."""
    ground = arena.ground
    ground.configure(f"bwrap = {os.fsdecode(ground.bwrap)!r}\nafter = 'hold'\n")
    names = ["\x1b[2K\x1b[1Aharmless", "\x1b]0;title\x07", "a\rharmless", "\u202egnp.exe", "\x9b2J", "a\nM  forged"]
    script = "\n".join(f"open({name!r}, 'w').write({name!r})" for name in names)
    raw = [b"\x1b", b"\x07", b"\r", "\u202e".encode(), b"\xc2\x9b", b"\nM  forged"]
    assert run_cli("run", "--", *python(script), cwd=ground.project).returncode == 0
    for words in (("changes",), ("diff",), ("status",)):
        told = run_cli(*words, cwd=ground.project)
        assert told.returncode in (0, 1), told
        assert [part for part in raw if part in told.stdout + told.stderr] == [], words
    listed = ground.sandbox().run("ls -A --quoting-style=literal").stdout.kept()
    assert [part for part in raw if part not in listed] == []
