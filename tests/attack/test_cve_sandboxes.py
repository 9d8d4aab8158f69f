# SPDX-License-Identifier: Apache-2.0
"""Weaknesses of other sandboxes, runtimes, agents and kernels, by number: the same attack here, and where it works."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import struct
import subprocess
import sys
import threading
from contextlib import nullcontext, suppress
from errno import ENOTTY
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from scripts.seccomp.rules import AUDIT_ARCHES, AllowCall, assemble, numbers_of, verdicts
from tests.attack.ablation_rules import ABOVE_32_BITS, answers
from tests.attack.arena import Arena, naive_bwrap, outside, python, replaced, shown_as_it_is
from tests.attack.cve_entries import ENTRIES, Entry
from tests.attack.entries_inside import PASSED, RET_ALLOW, RET_ERRNO
from tests.attack.requests import REQUESTS
from tests.attack.terminals import typed_at
from tests.attack.victims import host_directory
from tests.kernel.seccomp_box import MACHINE
from tests.support import is_rootfs_chosen, run_cli
from unspill import NeverStarted, Selection, UnspillError
from unspill.errors import BwrapUnsafe
from unspill.host.bwrap import build_filter, find_bwrap
from unspill.host.dirfd import open_beneath, open_stepwise
from unspill.model.policy import Network
from unspill.policy.hosts import Destination, Refused, parse_rules
from unspill.runner.launcher import stop_launchers

if TYPE_CHECKING:
    from scripts.seccomp.rules import Verdict
    from tests.attack.ablation_rules import Call
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
                ground.sandbox(**settings).run("echo x > made", working_dir=cwd)
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


@pytest.mark.any_bwrap
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


@pytest.mark.any_bwrap
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


LEAKED: Final = 50


def test_cve_2024_21626_a_leaked_directory_is_no_way_to_the_host(arena: Arena) -> None:
    """The caller has the host's directory open and inheritable; use it by number, and as the working directory, as runc
    let a command do. Control: a bwrap call that inherits it reads the host by it."""
    ground = arena.ground
    host = host_directory(ground)
    fd = os.open(host, os.O_RDONLY)
    os.dup2(fd, LEAKED, inheritable=True)
    os.close(fd)
    script = """
    for number in range(3, 256):
        try: won(open(os.open("key", os.O_RDONLY, dir_fd=number)).read())
        except OSError: pass
        try: os.chdir(f"/proc/self/fd/{number}"); won("went to", number)
        except OSError: pass
    """
    stop_launchers()
    try:
        assert not arena.attack(script).won
        for cwd in (f"/proc/self/fd/{LEAKED}", f"/proc/{os.getpid()}/fd/{LEAKED}", "/proc/self/cwd"):
            try:
                assert b"CANARY" not in ground.sandbox().run("cat key; cat ../key", working_dir=cwd).stdout.kept()
            except UnspillError:
                continue
        assert b"WON CANARY" in naive_bwrap(ground.bwrap, "--proc", "/proc", *python(script), close_fds=False).stdout
    finally:
        os.close(LEAKED)
        stop_launchers()


def test_cve_2019_5736_the_program_that_started_a_command_can_not_be_written(arena: Arena) -> None:
    """Open what pid 1 and the command run for writing, at once and by a kept descriptor, as runc's own binary was.
    Control: a program that the caller owns, which is why such a bwrap is refused, is written in the same way."""
    script = """
    for name in ("/proc/1/exe", "/proc/self/exe"):
        attempt(f"write {name}", os.open, name, os.O_WRONLY)
        kept = os.open(name, os.O_RDONLY)
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
            attempt(f"reopen {name}", os.open, f"/proc/self/fd/{kept}", flags)
    """
    assert not arena.attack(script).won
    own = arena.ground.top / "bwrap"
    shutil.copyfile("/bin/true", own)
    own.chmod(0o755)
    with pytest.raises(BwrapUnsafe):
        arena.ground.sandbox(bwrap=os.fsencode(own))
    reopen = (
        f"kept = os.open({os.fspath(own)!r}, os.O_RDONLY)\nos.open(f'/proc/self/fd/{{kept}}', os.O_WRONLY)\nwon('own')"
    )
    assert "WON own" in outside(reopen).stdout


def test_cve_2025_31133_what_masks_are_made_of_can_not_be_replaced(arena: Arena) -> None:
    """Replace `/dev/null` by a link to a kernel setting; runc masked paths by binding what lay there. Read a masked
    file in the next run. Control: without the read-only `/dev` the link is made."""
    ground = arena.ground
    (ground.home / ".netrc").write_text("CANARY")
    script = """
    attempt("unlink", os.unlink, "/dev/null")
    attempt("link", os.symlink, "/proc/sys/kernel/core_pattern", "/dev/null-new")
    attempt("rename", os.rename, "/dev/zero", "/dev/null")
    """
    assert not arena.attack(script, view="host").won
    read = "text = open(os.path.expanduser('~/.netrc')).read()\nif 'CANARY' in text: won('read')"
    assert not arena.attack(read, view="host").won
    with arena.without(b"--remount-ro /dev"):
        assert "link" in arena.attack(script, view="host").won


@pytest.mark.any_bwrap
def test_cve_2026_39822_a_slash_at_the_end_follows_no_link(arena: Arena) -> None:
    """A name of the project is a link to a directory outside; open and apply it with a slash behind it, which Go's
    os.Root followed. Control: O_NOFOLLOW alone opens the directory outside."""
    ground = arena.ground
    host = host_directory(ground)
    (ground.project / "link").symlink_to(host)
    top = os.open(ground.project, os.O_RDONLY)
    try:
        for opens in (open_beneath, open_stepwise):
            for path in (b"link/", b"link/.", b"link//", b"./link/"):
                with pytest.raises((OSError, UnspillError, ValueError)):
                    os.close(opens(top, path, os.O_RDONLY | os.O_DIRECTORY))
        followed = os.open("link/", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
        assert os.listdir(followed) == ["key"]
        os.close(followed)
    finally:
        os.close(top)
    sandbox = ground.sandbox()
    assert sandbox.run("rm link; mkdir link; echo x > link/written").ok
    for selected in ("link/", "link/."):
        try:
            sandbox.apply([selected])
        except UnspillError:
            continue
    assert os.listdir(host) == ["key"]


def test_cve_2020_15257_no_abstract_socket_of_the_host_is_reached(arena: Arena) -> None:
    """A service of the person listens on an abstract name, as containerd's shim did for containers with the host's
    network. Control: without the network namespace the command connects."""
    name = f"\0unspill-shim-{os.urandom(4).hex()}"
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(name)
        service.listen()
        script = f"attempt('connect', socket.socket(socket.AF_UNIX).connect, {name!r})"
        assert not arena.attack(script).won
        with arena.without(b"--unshare-net"):
            assert arena.attack(script).won


def test_cve_2022_0811_no_setting_of_the_kernel_is_written(arena: Arena) -> None:
    """Open `kernel.core_pattern` and all other settings for writing, which CRI-O let a pod set.
    Control: without the read-only `/proc/sys` settings of the sandbox's namespaces can be opened; for a root caller
    those of the host, which `test_root_callers.py` shows."""
    script = """
    for top, _, names in os.walk("/proc/sys"):
        for name in names:
            try: os.close(os.open(os.path.join(top, name), os.O_WRONLY))
            except OSError: continue
            won(name)
    """
    assert not arena.attack(script).won
    with arena.plan_changed(lambda mounts: replaced(mounts, b"/proc/sys")):
        assert arena.attack(script).won


def test_cve_2021_4034_a_setuid_program_runs_as_who_started_it(arena: Arena) -> None:
    """Start a setuid program of the system without any argument, as pkexec was, and look at its effective user.
    Control: the same program on the host runs as root."""
    script = """
    process = subprocess.Popen(["/usr/bin/su", "-c", "true"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    time.sleep(0.2)
    [uid] = [line.split()[2] for line in open(f"/proc/{process.pid}/status") if line.startswith("Uid:")]
    if process.poll() is None and uid != str(os.getuid()): won("is", uid)
    process.kill()
    child = os.fork()
    if not child:
        libc.execve(b"/usr/bin/su", (ctypes.c_char_p * 1)(None), (ctypes.c_char_p * 1)(None))
        os._exit(3)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0: won("without arguments")
    """
    assert not arena.attack(script).won
    assert "WON is 0" in outside(script).stdout


def test_cve_2026_25724_a_link_is_no_way_round_a_path_that_is_hidden(arena: Arena) -> None:
    """Read a hidden file by links of the command's own: relative, absolute, through /proc, of two steps.
    Control: where the directory is shown, the same links read it."""
    ground = arena.ground
    (ground.home / "private").mkdir()
    (ground.home / "private/key").write_text("CANARY")
    script = f"""
    by_dots = {os.path.relpath(ground.home / "private/key", ground.inside())!r}
    targets = [{os.fspath(ground.home)!r} + "/private/key", by_dots, "/proc/self/cwd/" + by_dots]
    for number, target in enumerate(targets): os.symlink(target, f"link-{{number}}")
    os.symlink("link-0", "two")
    for name in ("link-0", "link-1", "link-2", "two"):
        try: text = open(name).read()
        except OSError: continue
        if text == "CANARY": won(name)
    """
    assert not arena.attack(script).won
    shown = shown_as_it_is(ground.home / "private")
    with arena.plan_changed(lambda mounts: [*mounts[:-1], shown, mounts[-1]]):
        assert len(arena.attack(script, name="other").won) == 4


@pytest.mark.any_bwrap
def test_cve_2026_46406_a_file_in_tmp_that_others_have_planted_is_not_written(arena: Arena) -> None:
    """Somebody has planted a link at a name in the host's /tmp to which the command writes its answer; Claude Code had
    a fixed name there that everybody could read. Control: with the host's /tmp the file behind the link is written."""
    ground = arena.ground
    victim, trap = ground.home / "victim", Path("/tmp") / f"unspill-response-{os.urandom(4).hex()}"
    victim.write_text("original")
    trap.symlink_to(victim)
    try:
        script, home = f"open({os.fspath(trap)!r}, 'w').write('answer')", os.fsencode(ground.home)
        arena.attack(script)
        assert victim.read_text() == "original"
        assert stat.S_IMODE(ground.state.stat().st_mode) == 0o700
        with (
            arena.plan_changed(lambda mounts: replaced(mounts, b"/tmp", shown_as_it_is(b"/tmp", writable=True))),
            # The home directory, which lies there too, is hidden no longer
            nullcontext() if is_rootfs_chosen() else arena.plan_changed(lambda mounts: replaced(mounts, home)),
        ):
            arena.attack(script, name="other")
        assert victim.read_text() == "answer"
    finally:
        trap.unlink()


def test_cve_2025_66479_an_empty_list_of_hosts_allows_nothing(arena: Arena) -> None:
    """Ask the rules of an empty list about hosts, and run a command under it: Claude Code took an empty list for no
    list. Control: a list that names a host allows that one, and without a network namespace the command connects."""
    for host in ("example.org", "localhost", "127.0.0.1", "a.b.c", ""):
        with pytest.raises(Refused):
            parse_rules(()).judge(Destination(host=host, port=443))
    parse_rules(("example.org",)).judge(Destination(host="example.org", port=443))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connect = f"attempt('connect', socket.create_connection, ('127.0.0.1', {listener.getsockname()[1]}), 3)"
        look = "if any('proxy' in name.lower() for name in os.environ): won('a proxy')"
        assert not arena.attack(f"{connect}\n{look}", network=Network(hosts=())).won
        with arena.without(b"--unshare-net"):
            assert arena.attack(connect, name="other").won


@pytest.mark.any_bwrap
def test_cve_2025_59532_a_working_directory_is_never_a_root(arena: Arena) -> None:
    """Ask to run in a directory beside the project and write there; Codex made what the model named writable.
    Control: a bwrap call that binds the working directory writes to it."""
    ground = arena.ground
    beside = ground.home / "beside"
    beside.mkdir()
    for cwd in (os.fspath(beside), "../beside", f"{ground.project}/../beside"):
        try:
            result = ground.sandbox().run("echo x > written", working_dir=cwd)
        except UnspillError:
            continue
        assert not result.ok
    assert os.listdir(beside) == []
    where = os.fspath(beside)
    naive_bwrap(ground.bwrap, "--bind", where, where, "--chdir", where, "sh", "-c", "echo x > written")
    assert os.listdir(beside) == ["written"]


@pytest.mark.any_bwrap
def test_cve_2025_61260_no_file_of_the_project_moves_our_own_directories(arena: Arena) -> None:
    """The project's `.env` and `.envrc` name other places for state and configuration, as they could for Codex.
    Control: the same in the person's own environment moves the state."""
    ground = arena.ground
    theirs = ground.project / "theirs"
    lines = f"UNSPILL_STATE_DIR={theirs}/state\nXDG_STATE_HOME={theirs}\nXDG_CONFIG_HOME={theirs}\nHOME={theirs}\n"
    for name in (".env", ".envrc", ".env.local", "env"):
        ground.write(name, lines)
    ground.write("theirs/unspill/config.toml", "allow_root = true\nview = 'host'\n")
    ground.configure(f"bwrap = {os.fsdecode(ground.bwrap)!r}\n")
    told = run_cli("run", "--", "sh", "-c", "ls -A $HOME", cwd=ground.project)
    assert told.returncode == 0, told
    assert told.stdout == (b"env\ntheirs\n" if is_rootfs_chosen() else b"playground\nproject\n")
    assert sorted(os.listdir(theirs)) == ["unspill"]
    moved = {"UNSPILL_STATE_DIR": os.fspath(ground.home / "moved")}
    assert run_cli("run", "--", "true", cwd=ground.project, variables=moved).returncode == 0
    assert (ground.home / "moved").is_dir()


POISON: Final = """
export GIT_PAGER=evil LD_PRELOAD=/tmp/evil.so BASH_ENV=/tmp/evil PATH=/tmp/evil:$PATH PYTHONSTARTUP=/tmp/evil
alias ls=evil; ls() { echo evil; }; declare -x PROMPT_COMMAND=evil
echo 'export EVIL=1' >> ~/.bashrc; echo 'export EVIL=1' >> ~/.profile
mkdir -p /tmp/evil; cp /bin/true /tmp/evil/ls
"""


def test_cve_2026_22708_no_variable_of_one_command_is_there_in_the_next(arena: Arena) -> None:
    """Set variables, functions and start-up files in one command that may run, as the shell of Cursor kept them.
    Control: in one shell, with both commands in it, the second has them."""
    sandbox = arena.ground.sandbox()
    look = "env | sort; type ls; echo $PATH"
    before = sandbox.run(["bash", "-c", look]).stdout.kept()
    assert sandbox.run(["bash", "-c", POISON]).ok
    assert sandbox.run(["bash", "-c", look]).stdout.kept() == before
    assert b"evil" in sandbox.run(["bash", "-c", POISON + look]).stdout.kept()


@pytest.mark.any_bwrap
def test_cve_2026_21523_what_changed_after_the_review_is_not_applied(arena: Arena) -> None:
    """A change set is looked at; then a later run changes it, and a file of it is exchanged in its layer. Copilot did
    what it had not shown. Control: an apply that is not told what was reviewed takes what there is now."""
    ground = arena.ground
    sandbox = ground.sandbox()
    assert sandbox.run("echo reviewed > one; echo reviewed > two; echo reviewed > three").ok
    reviewed = sandbox.changes()
    [layer] = {change.layer for change in reviewed if change.layer is not None}
    inner = Path(os.fsdecode(layer)) / "one"
    inner.unlink()
    inner.write_text("swapped\n")
    assert sandbox.run("echo swapped > two; echo swapped > four").ok
    left = {os.fsdecode(one.path) for one in sandbox.apply(reviewed=reviewed).left}
    assert {"one", "two"} <= left
    assert os.listdir(ground.project) == ["three"]
    sandbox.apply()
    assert (ground.project / "one").read_text() == (ground.project / "two").read_text() == "swapped\n"


@pytest.mark.any_bwrap
@pytest.mark.parametrize("path", ["../victim", "sub/../../victim", "./../victim", "/../victim"])
def test_cve_2026_45482_a_path_with_dots_selects_nothing_outside(arena: Arena, path: str) -> None:
    """Apply, restore and discard by a path that leads out of the project, as a traversal in Copilot did.
    Control: joined to the project as it is, the path is the file outside."""
    ground = arena.ground
    victim = ground.home / "victim"
    victim.write_text("original")
    (ground.project / "sub").mkdir()
    sandbox = ground.sandbox()
    assert sandbox.run("echo x > victim; mkdir -p sub; echo x > sub/victim").ok
    for act in (sandbox.apply, sandbox.discard):
        try:
            act([path])
        except UnspillError:
            continue
    with pytest.raises(UnspillError):
        sandbox.restore(path)
    assert victim.read_text() == "original"
    assert os.path.samefile(ground.project / path.lstrip("/"), victim)


@pytest.mark.any_bwrap
def test_cve_2025_54794_a_directory_whose_name_begins_alike_is_not_inside(arena: Arena) -> None:
    """Read and write a neighbour of the project whose name begins with the project's, which Claude Code took for a part
    of it. Control: a comparison of the texts says that it is inside, and with a bind it is written."""
    ground = arena.ground
    neighbour = ground.project.with_name(ground.project.name + "-private")
    neighbour.mkdir()
    (neighbour / "key").write_text("CANARY")
    script = f"""
    attempt("read", open, {os.fspath(neighbour)!r} + "/key")
    attempt("write", open, {os.fspath(neighbour)!r} + "/written", "w")
    """
    assert not arena.attack(script).won
    with pytest.raises(UnspillError):
        ground.sandbox().apply([f"../{neighbour.name}/key"])
    assert os.fspath(neighbour).startswith(os.fspath(ground.project))
    shown = shown_as_it_is(neighbour, writable=True)
    with arena.plan_changed(lambda mounts: [*mounts[:-1], shown, mounts[-1]]):
        assert arena.attack(script, name="other").won == ("read", "write")


def test_cve_2025_55284_no_question_to_a_name_server_leaves(arena: Arena) -> None:
    """Send what was read as a question to a name server, as was possible by `ping` and `dig` in Claude Code.
    Control: without the network namespace the question arrives."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(1)
        script = f"""
        question = b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\6CANARY\\7example\\3org\\0\\0\\1\\0\\1"
        connection = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for address in ("127.0.0.1", "0.0.0.0"):
            try: connection.sendto(question, (address, {server.getsockname()[1]}))
            except OSError: pass
        try: socket.getaddrinfo("canary.example.org", 80)
        except OSError: pass
        else: won("resolved")
        """
        assert not arena.attack(script).won
        with pytest.raises(TimeoutError):
            server.recv(512)
        with arena.without(b"--unshare-net"):
            answered = threading.Thread(target=lambda: arena.attack(script, name="other"))
            answered.start()
            assert b"CANARY" in server.recv(512)
            answered.join()


NUMBERS: Final = numbers_of(MACHINE)
TIOCSTI: Final = REQUESTS["TIOCSTI"]


@pytest.mark.parametrize("entry", ENTRIES, ids=str)
def test_cve_the_call_with_which_it_begins_is_refused(entry: Entry, tmp_path: Path) -> None:
    """Make the calls of the attack under the filter.
    Control: under the same filter without the rules for these calls every one is let through."""
    calls: list[Call] = [("native", NUMBERS[name], arguments) for name, arguments in entry.calls]
    known: list[Verdict] = list(verdicts(MACHINE, "default"))
    for name, _ in entry.calls:
        known[NUMBERS[name]] = AllowCall()
    without = assemble(AUDIT_ARCHES[MACHINE], known)
    full = build_filter(MACHINE, "default")
    found = answers([(program, call) for program in (full, without) for call in calls], tmp_path)
    assert PASSED not in found[: len(calls)]
    assert set(found[len(calls) :]) <= {PASSED}


def filter_of_64_bits(request: int) -> bytes:
    """Return a filter that compares all 64 bits of an ioctl's request, of which the kernel reads 32."""
    steps = [
        (0x20, 0, 0, 0),
        (0x15, 0, 5, NUMBERS["ioctl"]),
        (0x20, 0, 0, 16 + 8),
        (0x15, 0, 3, request),
        (0x20, 0, 0, 16 + 12),
        (0x15, 0, 1, 0),
        (0x06, 0, 0, RET_ERRNO | 1),
        (0x06, 0, 0, RET_ALLOW),
    ]
    return b"".join(struct.pack("<HBBI", *step) for step in steps)


def test_cve_2019_10063_bits_that_the_kernel_does_not_read_change_nothing(tmp_path: Path) -> None:
    """TIOCSTI with bits set above the lower 32, which Flatpak's filter did not take for TIOCSTI.
    Control: a filter that compares all 64 lets it through, and refuses it without those bits."""
    full, naive = build_filter(MACHINE, "default"), filter_of_64_bits(TIOCSTI)
    plain_call: Call = ("native", NUMBERS["ioctl"], (0, TIOCSTI))
    calls: list[Call] = [
        ("native", NUMBERS["ioctl"], (0, TIOCSTI | above << 32)) for above in (1, 0x80000000, 0xFFFFFFFF)
    ]
    assert answers([(full, call) for call in (plain_call, *calls)], tmp_path) == [ENOTTY] * 4
    assert answers([(naive, call) for call in (plain_call, *calls)], tmp_path) == [1, PASSED, PASSED, PASSED]
    assert calls[0][2][1] == TIOCSTI | ABOVE_32_BITS


KEYS: Final = """
call("a keyring", libc.syscall({keyctl}, 1, None))
call("io_uring", libc.syscall({io_uring_setup}, 4, ctypes.create_string_buffer(128)))
call("a user namespace", libc.unshare(0x10000000))
for family in (40, 38):
    try: socket.socket(family, socket.SOCK_STREAM if family == 40 else socket.SOCK_SEQPACKET)
    except OSError: continue
    won("a socket of family", family)
"""


def test_cve_2016_0728_cve_2022_29582_cve_2021_26708_the_entries_are_closed_in_a_sandbox_too(arena: Arena) -> None:
    """Join a keyring, set up io_uring, open a vsock, make a user namespace, all in a real sandbox.
    Control: without the filter and what else forbids namespaces, all of them succeed."""
    script = KEYS.format(**NUMBERS)
    assert not arena.attack(script).won
    with arena.without_filter(), arena.without(b"--disable-userns", b"--assert-userns-disabled"):
        won = arena.attack(script).won
    assert {"a keyring", "io_uring", "a user namespace", "a socket of family 40"} <= set(won)
