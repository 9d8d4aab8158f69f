# SPDX-License-Identifier: Apache-2.0
"""System calls that neither a namespace nor a dropped capability takes away: what the filter alone refuses."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.attack.arena import Arena, python
from tests.kernel.seccomp_box import FOREIGN, INSIDE, MACHINE
from tests.support import chosen_views, run_cli
from unspill.host.bwrap import build_filter
from unspill.host.seccomp_rules import Refuse, numbers_of, verdicts
from unspill.runner.launcher import stop_launchers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from unspill.model.policy import Profile

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

NUMBERS: Final = numbers_of(MACHINE)
FAMILIES: Final = {f"socket {number}" for number in range(46)}
ORDINARY: Final = {"socket 1", "socket 2", "socket 10", "socket 16"}
TERMINAL: Final = {"TIOCSTI", "TIOCSTI with a bit above", "TIOCSETD"}
DANGEROUS: Final = set(
    "io_uring_setup userfaultfd memfd_secret perf_event_open name_to_handle_at fanotify_init kcmp set_mempolicy mbind "
    "keyctl open_tree".split()
)


def achieved(arena: Arena, **settings: Any) -> set[str]:
    """Make every attempt of the filter's own tests inside a sandbox and return those that worked."""
    words = [f"{name}={number}" for name, number in NUMBERS.items()]
    command = ["/usr/bin/python3", "-I", "-c", INSIDE.read_text(), "attempts", *words]
    result = arena.ground.sandbox(**settings).run(command)
    assert result.ok, result
    told: dict[str, str] = json.loads(result.stdout.head + result.stdout.tail)
    return {name for name, outcome in told.items() if outcome == "done"}


@contextmanager
def key_of_the_person(name: bytes) -> Iterator[None]:
    """Have a session keyring with one key in it, which every process started from here on inherits."""
    libc = ctypes.CDLL(None, use_errno=True)
    join, session = 1, -3
    stop_launchers()
    assert libc.syscall(NUMBERS["keyctl"], join, None) > 0
    assert libc.syscall(NUMBERS["add_key"], b"user", name, b"canary", 6, session) > 0
    yield
    stop_launchers()
    assert libc.syscall(NUMBERS["keyctl"], join, None) > 0


KEYS: Final = """
n, name = %r, %r
SEARCH, READ, SESSION = 10, 11, -3
key = call("search", libc.syscall(n["keyctl"], SEARCH, SESSION, b"user", name, 0))
if key > 0:
    space = ctypes.create_string_buffer(64)
    length = libc.syscall(n["keyctl"], READ, key, space, 64)
    if length > 0: won("read", space.raw[:length].decode())
call("request", libc.syscall(n["request_key"], b"user", name, None, 0))
call("find what was left", libc.syscall(n["keyctl"], SEARCH, SESSION, b"user", name + b"-left", 0))
call("leave", libc.syscall(n["add_key"], b"user", name + b"-left", b"by the command", 14, SESSION))
"""


def test_a13_no_key_of_the_person_is_read_and_none_is_left(arena: Arena) -> None:
    """A key lies in the session keyring of the person: search it, read it, request it, leave one for the next run.
    Control: without the filter the command reads the key, and the next one finds what it left."""
    name = b"unspill-canary"
    script = KEYS % (NUMBERS, name)
    with key_of_the_person(name):
        assert not arena.attack(script).won
        with arena.without_filter():
            assert set(arena.attack(script).won) == {"search", "read canary", "request", "leave"}
            assert "find what was left" in arena.attack(script).won
        assert not arena.attack(script).won


def test_a16_no_family_of_sockets_opens_but_four(arena: Arena, engine: str) -> None:
    """Open sockets of all families, 0 to 45, of every type: vsock knows no network namespace.
    Control: without the filter a vsock opens."""
    assert achieved(arena) & FAMILIES == ORDINARY
    with arena.without_filter():
        assert achieved(arena) & FAMILIES > ORDINARY


def test_a17_nothing_can_be_typed_on_a_terminal_of_the_commands_own(arena: Arena) -> None:
    """Make a terminal inside, take it as the controlling one, and type: with TIOCSTI, with a bit set above the 32 that
    the kernel reads (CVE-2019-10063), load a line discipline. Control: without the filter all of them work."""
    assert not achieved(arena) & TERMINAL
    with arena.without_filter():
        assert achieved(arena) >= TERMINAL


# A person at a terminal starts a program; afterwards, what did their shell get to read?
PERSON: Final = """
import fcntl, os, subprocess, sys, termios, tty
master, terminal = os.openpty()
os.setsid()
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
tty.setraw(terminal)
out = open(sys.argv[1], "wb")
subprocess.run(sys.argv[2:], stdin=terminal, stdout=out, stderr=terminal, timeout=30)
os.set_blocking(terminal, False)
try: print("typed", os.read(terminal, 100).decode())
except BlockingIOError: print("typed nothing")
"""

TYPE: Final = """
import termios
places = [0, 1, 2]
try: places.append(os.open("/dev/tty", os.O_RDWR))
except OSError: pass
for place in places:
    for request in (termios.TIOCSTI, termios.TIOCSTI | 1 << 32):
        call(f"type on {place}", libc.syscall(%d, place, ctypes.c_ulong(request), ctypes.c_char_p(b"!")))
"""


def typed_at(top: Path, *words: str | Path | bytes) -> str:
    """Return what a program that a person started left in the input of their terminal; it must have come to its end."""
    log = top / "printed"
    command = [sys.executable, "-I", "-c", PERSON, log, *words]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)
    assert "the script came to its end" in log.read_text()
    return told.stdout.strip()


def test_a17_nothing_is_typed_on_the_terminal_of_the_person(arena: Arena) -> None:
    """A person at a terminal runs `unspill run`; the command types on all that it has and on /dev/tty.
    Control: a bwrap call that leaves the terminal to the command gets "!" into the person's shell; with nothing but
    the filter besides it does not."""
    attack = python(TYPE % NUMBERS["ioctl"])
    top, bwrap = arena.ground.top, arena.ground.bwrap
    arena.ground.configure(f"bwrap = {os.fsdecode(bwrap)!r}")
    unspill: list[str | Path] = [
        sys.executable,
        "-m",
        "unspill",
        "run",
        "--project",
        arena.ground.project,
        "--",
        *attack,
    ]
    assert typed_at(top, *unspill) == "typed nothing"
    naive: list[str | bytes] = [bwrap, "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev"]
    assert typed_at(top, *naive, *attack).startswith("typed !!")
    (top / "filter").write_bytes(build_filter(MACHINE, "default"))
    filtered = ["/bin/sh", "-c", f'exec "$@" 9<{top}/filter', "sh", *naive, "--seccomp", "9"]
    assert typed_at(top, *filtered, *attack) == "typed nothing"


def test_a18_calls_that_are_often_broken_do_not_exist(arena: Arena, engine: str) -> None:
    """Use io_uring, userfaultfd, memfd_secret, perf events, file handles, fanotify, kcmp, placement of memory.
    Control: without the filter every one of them works in the same sandbox."""
    assert not achieved(arena) & DANGEROUS
    with arena.without_filter():
        assert achieved(arena) >= DANGEROUS


@pytest.mark.parametrize("profile", ["default", "strict"])
def test_a18_every_refused_number_gives_the_error_of_the_rules(arena: Arena, profile: Profile) -> None:
    """Make every system call that the profile refuses, and every number that has none, with impossible arguments.
    Control: without the filter dozens of them come as far as their arguments."""
    expected = {
        number: verdict.error
        for number, verdict in enumerate(verdicts(MACHINE, profile))
        if isinstance(verdict, Refuse)
    }
    command = ["/usr/bin/python3", "-I", "-c", INSIDE.read_text(), "numbers", *map(str, expected)]

    def errors() -> dict[int, int]:
        result = arena.ground.sandbox(profile=profile).run(command)
        return {int(number): error for number, error in json.loads(result.stdout.head + result.stdout.tail).items()}

    assert errors() == expected
    with arena.without_filter():
        bare = errors()
    assert sum(bare[number] != expected[number] for number in expected) >= 30


def test_a18_the_strict_profile_also_refuses_to_reach_into_other_processes(arena: Arena) -> None:
    """In the profile `strict`: trace, read and write the memory of others, take descriptors, open Unix sockets.
    Control: in the profile `default`, where debuggers work, all of it works."""
    reach = {"ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "socket 1", "socket 16"}
    assert not achieved(arena, profile="strict") & reach
    assert achieved(arena, profile="default") >= reach


def test_a18_a_project_can_make_the_filter_stricter_but_not_weaker(arena: Arena) -> None:
    """The project's own file asks for the profile `default` where the person's says `strict`.
    Control: with a file that asks for `strict` where the person's says `default` runs are strict."""
    ground = arena.ground
    ground.write(".unspill.toml", 'profile = "default"\n')
    words = ["run", "--", "/usr/bin/python3", "-c", "import socket; socket.socket(socket.AF_UNIX)"]
    own = f"bwrap = {os.fsdecode(ground.bwrap)!r}\n"
    ground.configure(own + 'profile = "strict"\n')
    refused = run_cli(*words, cwd=ground.project)
    assert refused.returncode != 0
    assert b"profile" in refused.stderr
    ground.configure(own)
    assert run_cli(*words, cwd=ground.project).returncode == 0
    ground.write(".unspill.toml", 'profile = "strict"\n')
    assert b"Address family not supported" in run_cli(*words, cwd=ground.project).stderr


@pytest.mark.skipif(MACHINE != "x86_64", reason="only x86_64 has these ways into the kernel")
def test_a19_no_call_gets_in_by_the_entry_for_32_bit_programs(arena: Arena, engine: str) -> None:
    """A program that makes every call by `int 0x80`, and one with the bit of x32.
    Control: without the filter `int 0x80` answers with the process's own number."""
    program = arena.ground.project / "foreign"
    subprocess.run(["gcc", "-O1", "-o", program, "-x", "c", "-"], input=FOREIGN, text=True, check=True)

    def results() -> list[int]:
        result = arena.ground.sandbox().run([os.fspath(program), "all"])
        told: list[int] = json.loads(result.stdout.head + result.stdout.tail)
        return told

    _pid, *refused = results()
    assert set(refused) == {-38}
    with arena.without_filter():
        pid, same_pid, *_rest = json.loads(arena.ground.sandbox().run([os.fspath(program)]).stdout.head)
    assert pid == same_pid


@pytest.mark.parametrize("view", chosen_views())
def test_a18_every_process_of_a_run_is_filtered(arena: Arena, engine: str, view: str) -> None:
    """In each view, look at pid 1, the command, and what it starts by a shell in a session of its own.
    Control: without the filter in the plan none of them has one."""
    # Pid 1 is bwrap's own and sets its filter when it has started the command, a moment later where others run
    command = "for i in 1 2 3 4 5 6 7 8; do grep -q 'Seccomp:.2' /proc/1/status && break; sleep 0.1; done;"
    command += "grep -h Seccomp: /proc/1/status /proc/self/status; setsid sh -c 'grep Seccomp: /proc/self/status'"
    assert arena.ground.sandbox(view=view).run(command).stdout.head == b"Seccomp:\t2\n" * 3
    with arena.without_filter():
        assert arena.ground.sandbox(view=view).run(command).stdout.head == b"Seccomp:\t0\n" * 3
