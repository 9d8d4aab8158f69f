# SPDX-License-Identifier: Apache-2.0
"""A Landlock fence inside a real sandbox: what holds when a mount, a namespace or a closed descriptor does not.

No run sets one; live sandboxes will. Here the command sets it itself, with the text of `host.landlock` and the fence
that `plan.argv` makes of the sandbox's own plan. The control arm is the same command without it.
"""

from __future__ import annotations

import inspect
import os
import socket
import textwrap
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.attack.arena import Arena
from tests.kernel.test_strict import TOOLS
from tests.support import printed
from unspill.host import landlock
from unspill.model.plan import Bind
from unspill.plan.argv import build_fence, handled_rights, rule_rights
from unspill.runner.launcher import Launched, Launcher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support import Ground
    from unspill.host.job import Job
    from unspill.model.plan import Fence

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]


@pytest.fixture
def arena(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Arena:
    return Arena(ground, monkeypatch)


def fence_of(ground: Ground) -> Fence:
    """Return the fence around what every sandbox of this person shows."""
    sandbox = ground.sandbox()
    plan = sandbox.plan("true")
    return build_fence(plan.mounts, sandbox._project.means.facts, plan.network)


def fenced(fence: Fence, script: str, *, without: int = 0) -> str:
    """Return a script that sets a fence before it begins; `without` are rights of files that it does not refuse."""
    files, tcp, scoped = handled_rights(fence)
    files &= ~without
    rules = tuple((path, rights & files) for path, rights in rule_rights(fence) if rights & files)
    lines = (
        f"exec(compile({inspect.getsource(landlock)!r}, 'landlock', 'exec'))",
        f"fence_in({(files, tcp, scoped)!r}, {rules!r}, {fence.ports or ()!r})",
        textwrap.dedent(script),
    )
    return "\n".join(lines)


@contextmanager
def leaked(arena: Arena, *descriptors: int) -> Iterator[None]:
    """Let every run inherit these descriptors of the host, as if nobody closed them."""
    launch = Launcher.launch

    def leaking(self: Launcher, job: Job, given: tuple[int, ...]) -> Launched:
        return launch(self, job, (*given, *descriptors))

    with arena.patch.context() as patch:
        patch.setattr(Launcher, "launch", leaking)
        yield


THROUGH = """
for number in range(3, 64):
    try: kind = os.fstat(number).st_mode
    except OSError: continue
    if not stat.S_ISDIR(kind): continue
    def made(name, flags=os.O_WRONLY | os.O_CREAT): os.close(os.open(name, flags, 0o600, dir_fd=number))
    attempt("make a file", made, "made")
    attempt("change a file", made, "old", os.O_WRONLY)
    attempt("empty a file", made, "old", os.O_WRONLY | os.O_TRUNC)
    attempt("read a file", made, "old", os.O_RDONLY)
    both = {"src_dir_fd": number, "dst_dir_fd": number}
    attempt("make a directory", lambda: os.mkdir("dir", 0o700, dir_fd=number))
    attempt("make a link", lambda: os.symlink("/etc", "link", dir_fd=number))
    attempt("make a hard link", lambda: os.link("old", "other", **both))
    attempt("rename", lambda: os.rename("old", "older", **both))
    attempt("remove", lambda: os.unlink("victim", dir_fd=number))
    attempt("make a FIFO", lambda: os.mkfifo("fifo", dir_fd=number))
    attempt("make an empty file", lambda: os.mknod("empty", dir_fd=number))
    attempt("make a socket", lambda: os.mknod("socket", stat.S_IFSOCK | 0o600, dir_fd=number))
    attempt("make a device", lambda: os.mknod("device", stat.S_IFCHR, dir_fd=number))
    attempt("remove a directory", lambda: os.rmdir("nothing", dir_fd=number))
    attempt("cut a file", os.truncate, f"/proc/self/fd/{number}/long", 1)
    attempt("open the directory", lambda: os.close(os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=number)))
    attempt("list names", os.listdir, number)
    os.chdir("/"); os.fchdir(number)
    attempt("run a program", subprocess.run, ["./program"])
    attempt("make a file in the working directory", made, "here")
"""


def victim(arena: Arena) -> Path:
    directory = arena.ground.top / "outside"
    directory.mkdir(exist_ok=True)
    for name in ("old", "victim", "long"):
        (directory / name).write_text("old")
    (directory / "nothing").mkdir(exist_ok=True)
    program = directory / "program"
    program.write_bytes(b"#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    return directory


def test_a_leaked_directory_is_of_no_use_inside_a_fence(arena: Arena) -> None:
    """Names that an open directory has can still be listed."""
    outside, fence = victim(arena), fence_of(arena.ground)
    fd = os.open(outside, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with leaked(arena, fd):
            before = sorted(os.listdir(outside))
            assert arena.attack(fenced(fence, THROUGH)).won == ("list names",)
            assert sorted(os.listdir(outside)) == before
            assert (outside / "old").read_text() == "old"
            naive = set(arena.attack(THROUGH).won)
    finally:
        os.close(fd)
    assert {"make a file", "change a file", "read a file", "rename", "remove", "list names", "run a program"} <= naive


# Each right that Landlock is told to refuse, and what can be done again if it is not. Without effect here: block
# devices, for which the kernel wants a capability; moving between directories, which is refused where it is not handled
# too; and control of devices, none of which can be opened outside.
RIGHTS = {
    # The kernel wants a program to be readable as well, so both are taken
    "execute": (1 << 0 | 1 << 2, "run a program"),
    "write": (1 << 1, "change a file"),
    "read": (1 << 2, "read a file"),
    "list": (1 << 3, "open the directory"),
    "remove directories": (1 << 4, "remove a directory"),
    "remove files": (1 << 5, "remove"),
    "make devices": (1 << 6, "make a device"),
    "make directories": (1 << 7, "make a directory"),
    "make files": (1 << 8, "make an empty file"),
    "make sockets": (1 << 9, "make a socket"),
    "make FIFOs": (1 << 10, "make a FIFO"),
    "make links": (1 << 12, "make a link"),
    "truncate": (1 << 14, "cut a file"),
}


ALSO = {"execute": {"read a file"}, "make files": {"make a hard link"}}


@pytest.mark.parametrize("right", RIGHTS)
def test_each_right_of_the_fence_is_needed(arena: Arena, right: str) -> None:
    """A fence that refuses one right less gives back exactly what belongs to that right."""
    bit, regained = RIGHTS[right]
    outside, fence = victim(arena), fence_of(arena.ground)
    fd = os.open(outside, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with leaked(arena, fd):
            won = set(arena.attack(fenced(fence, THROUGH, without=bit)).won)
    finally:
        os.close(fd)
    assert regained in won
    assert won <= {regained, "list names"} | ALSO.get(right, set())


def test_a_leaked_file_can_be_reopened_no_more_than_it_is_open(arena: Arena) -> None:
    target = arena.ground.top / "record"
    target.write_text("old")
    script = """
    for number in range(3, 64):
        try: regular = stat.S_ISREG(os.fstat(number).st_mode)
        except OSError: continue
        if regular: attempt("write", lambda: os.write(os.open(f"/proc/self/fd/{number}", os.O_WRONLY), b"new"))
    """
    fence = fence_of(arena.ground)
    fd = os.open(target, os.O_RDONLY)
    try:
        with leaked(arena, fd):
            assert not arena.attack(fenced(fence, script)).won
            assert target.read_text() == "old"
            assert arena.attack(script).won == ("write",)
    finally:
        os.close(fd)
    assert target.read_text() == "new"


def test_a_writable_mount_that_the_fence_does_not_know_stays_closed(arena: Arena) -> None:
    outside, fence = victim(arena), fence_of(arena.ground)

    def mistaken(mounts: Any) -> Any:
        mistake = Bind(source=os.fsencode(outside), dest=b"/mistake", why="a mistake", writable=True)
        return (*mounts[:-1], mistake, mounts[-1])

    script = "attempt('write', open, '/mistake/made', 'w')"
    with arena.plan_changed(mistaken):
        assert not arena.attack(fenced(fence, script)).won
        assert not (outside / "made").exists()
        assert arena.attack(script).won
    assert (outside / "made").exists()


def test_a_fenced_process_signals_nobody_but_its_own(arena: Arena) -> None:
    script = """
    child = os.fork()
    if not child: signal.pause()
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    attempt("pid 1", os.kill, 1, 0)
    """
    assert not arena.attack(fenced(fence_of(arena.ground), script)).won
    assert arena.attack(script).won == ("pid 1",)


def test_an_abstract_socket_outside_the_fence_is_not_reached(arena: Arena) -> None:
    name = f"\0unspill-{os.getpid()}"
    script = f"attempt('connect', socket.socket(socket.AF_UNIX).connect, {name!r})"
    fence = fence_of(arena.ground)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        with arena.without(b"--unshare-net"):
            assert not arena.attack(fenced(fence, script)).won
            assert arena.attack(script).won == ("connect",)


def test_tcp_is_fenced_even_in_the_network_of_the_host(arena: Arena) -> None:
    fence = fence_of(arena.ground)
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = f"""
        attempt("connect", socket.create_connection, ("127.0.0.1", {server.getsockname()[1]}), 2)
        attempt("serve", socket.create_server, ("127.0.0.1", 0))
        """
        with arena.without(b"--unshare-net"):
            assert not arena.attack(fenced(fence, script)).won
            assert arena.attack(script).won == ("connect", "serve")


BECOME = """
import os, signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
"""


# A fence without a network refuses every server
@pytest.mark.parametrize("name", [name for name in TOOLS if name != "a server on loopback"])
def test_a_tool_works_inside_a_fence(ground: Ground, name: str) -> None:
    script = fenced(fence_of(ground), BECOME)
    result = ground.run(["/usr/bin/python3", "-I", "-c", script, *TOOLS[name]])
    assert printed(result).splitlines()[-1:] == ["ok"]


def test_a_rule_for_what_does_not_exist_is_an_error_that_names_it(arena: Arena) -> None:
    script = f"""
    exec(compile({inspect.getsource(landlock)!r}, 'landlock', 'exec'))
    try: fence_in((4, 0, 0), ((b"/none", 4),), ())
    except FileNotFoundError as error: print(error.filename)
    attempt("read", open, "/etc/passwd")
    """
    found = arena.attack(script)
    assert "b'/none'" in found.lines
    assert found.won == ("read",), "it was fenced in all the same"
