# SPDX-License-Identifier: Apache-2.0
"""The second layer of the profile `strict`: what holds when a mount, a namespace or a closed descriptor does not.

Each attack is given what the first layer keeps from it, and fails all the same. The control arm is the same leak in
the default profile, which has no second layer.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.attack.arena import Arena
from unspill.model.plan import Bind
from unspill.plan import fence, first
from unspill.plan.fence import handled_rights
from unspill.runner.launcher import Launched, Launcher

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from unspill.host.job import Job
    from unspill.model.plan import Fence

pytestmark = [pytest.mark.attack, pytest.mark.kernel]


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


def test_a23_a_leaked_directory_is_of_no_use_to_a_fenced_command(arena: Arena) -> None:
    """Hand the run a descriptor of a host directory, and read, write, rename, link and run through it. Names that an
    open directory has can still be listed. Control: in the default profile the same descriptor gives all of that."""
    outside = victim(arena)
    fd = os.open(outside, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with leaked(arena, fd):
            before = sorted(os.listdir(outside))
            assert arena.attack(THROUGH, profile="strict").won == ("list names",)
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
def test_a23_each_right_of_the_fence_is_needed(arena: Arena, right: str) -> None:
    """Take one right out of those that the fence refuses, and try all of them through a leaked directory.
    Control: exactly what belongs to that right succeeds again."""
    bit, regained = RIGHTS[right]

    def weaker(planned: Fence) -> tuple[int, int, int]:
        files, tcp, scoped = handled_rights(planned)
        return files & ~bit, tcp, scoped

    outside = victim(arena)
    fd = os.open(outside, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with leaked(arena, fd), arena.patch.context() as patch:
            patch.setattr(fence, "handled_rights", weaker)
            patch.setattr(first, "handled_rights", weaker)
            won = set(arena.attack(THROUGH, profile="strict").won)
    finally:
        os.close(fd)
    assert regained in won
    assert won <= {regained, "list names"} | ALSO.get(right, set())


def test_a23_a_leaked_file_can_be_reopened_no_more_than_it_is_open(arena: Arena) -> None:
    """Hand the run a read-only descriptor of a host file, and open the file for writing by /proc/self/fd.
    Control: in the default profile the file is written."""
    target = arena.ground.top / "record"
    target.write_text("old")
    script = """
    for number in range(3, 64):
        try: regular = stat.S_ISREG(os.fstat(number).st_mode)
        except OSError: continue
        if regular: attempt("write", lambda: os.write(os.open(f"/proc/self/fd/{number}", os.O_WRONLY), b"new"))
    """
    fd = os.open(target, os.O_RDONLY)
    try:
        with leaked(arena, fd):
            assert not arena.attack(script, profile="strict").won
            assert target.read_text() == "old"
            assert arena.attack(script).won == ("write",)
    finally:
        os.close(fd)
    assert target.read_text() == "new"


def test_a1_a_writable_mount_that_the_fence_does_not_know_stays_closed(arena: Arena) -> None:
    """Take a bug of ours for granted: a directory of the host is mounted writable although no rule has it.
    Control: in the default profile the command writes there."""
    outside = victim(arena)

    def mistaken(mounts: Any) -> Any:
        mistake = Bind(source=os.fsencode(outside), dest=b"/mistake", why="a mistake", writable=True)
        return (*mounts[:-1], mistake, mounts[-1])

    script = "attempt('write', open, '/mistake/made', 'w')"
    with arena.plan_changed(mistaken):
        assert not arena.attack(script, profile="strict").won
        assert not (outside / "made").exists()
        assert arena.attack(script).won
    assert (outside / "made").exists()


def test_a12_a_fenced_command_signals_nobody_but_its_own(arena: Arena) -> None:
    """Signal pid 1 of the sandbox, which is not the command's own process, and a child of the command.
    Control: in the default profile pid 1 may be signalled; the child may be in both."""
    script = """
    child = os.fork()
    if not child: signal.pause()
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    attempt("pid 1", os.kill, 1, 0)
    """
    assert not arena.attack(script, profile="strict").won
    assert arena.attack(script).won == ("pid 1",)


def test_a15_an_abstract_socket_outside_the_fence_is_not_reached(arena: Arena) -> None:
    """Hand the run a socket, and connect it to an abstract one of the host, in the host's own network namespace.
    Control: in the default profile, with the same network, it connects."""
    name = f"\0unspill-{os.getpid()}"
    script = f"""
    for number in range(3, 64):
        try: kind = os.fstat(number).st_mode
        except OSError: continue
        if stat.S_ISSOCK(kind):
            attempt("connect", socket.socket(fileno=number).connect, {name!r})
    """
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as one, socket.socket(1) as two:
        server.bind(name)
        server.listen()
        with arena.without(b"--unshare-net"):
            with leaked(arena, one.fileno()):
                assert not arena.attack(script, profile="strict").won
            with leaked(arena, two.fileno()):
                assert arena.attack(script).won == ("connect",)


def test_a16_tcp_is_fenced_even_in_the_network_of_the_host(arena: Arena) -> None:
    """Connect to a server of the host's loopback, and be one, in the host's own network namespace.
    Control: in the default profile, with the same network, both work."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = f"""
        attempt("connect", socket.create_connection, ("127.0.0.1", {server.getsockname()[1]}), 2)
        attempt("serve", socket.create_server, ("127.0.0.1", 0))
        """
        with arena.without(b"--unshare-net"):
            assert not arena.attack(script, profile="strict").won
            assert arena.attack(script).won == ("connect", "serve")


def test_a24_the_first_programs_channel_is_gone_before_the_command_starts(arena: Arena) -> None:
    """Write words of the first program to every descriptor from 3 to 255, and look for sockets of pid 1 to take over.
    Control: the first program itself has the channel, or a command that is not found could not be told."""
    script = """
    for number in range(3, 256):
        try: os.write(number, b"failed command 2")
        except OSError: continue
        won(number)
    for name in os.listdir("/proc/1/fd"):
        try: target = os.readlink(f"/proc/1/fd/{name}")
        except PermissionError: continue
        if int(name) > 2 and "socket" in target: won("of pid 1:", name)
    """
    for settings in ({"profile": "strict"}, {"explain": True}):
        assert not arena.attack(script, **settings).won
        assert arena.ground.sandbox(**settings).run(["no-such-program"]).exit_code == 127
