# SPDX-License-Identifier: Apache-2.0
"""The attacker's side: scripts that run inside a real sandbox and say what they achieved, and sandboxes in which
exactly one defence is missing.

A script prints `WON <what>` for each thing that should not have worked. It must also come to its end: an attack
that fails because its own script is broken proves nothing.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from scripts.seccomp.rules import AUDIT_ARCHES, AllowCall, assemble, numbers_of, verdicts
from tests.kernel.seccomp_box import MACHINE
from tests.support import Ground, is_rootfs_chosen
from unspill import RunResult, Sandbox
from unspill.model.plan import Bind, Plan, ReadOnly
from unspill.plan.argv import bwrap_options
from unspill.sandbox import running

if TYPE_CHECKING:
    from scripts.seccomp.rules import Verdict
    from unspill.model.plan import MountOp
    from unspill.model.policy import Profile

PRELUDE: Final = """
import ctypes, errno, fcntl, os, signal, socket, stat, struct, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def won(*what): print("WON", *what, flush=True)
def lost(*what): print("LOST", *what, flush=True)
def call(what, result):
    if result >= 0: won(what)
    else: lost(what, errno.errorcode.get(ctypes.get_errno()))
    return result
def attempt(what, function, *arguments):
    try: function(*arguments)
    except OSError as error: lost(what, error.strerror)
    else: won(what)
"""
END: Final = "the script came to its end"


@dataclass(frozen=True)
class Attempt:
    """What a script achieved; true if it achieved anything."""

    won: tuple[str, ...]
    lines: tuple[str, ...]
    result: RunResult

    def __bool__(self) -> bool:
        return bool(self.won)


@dataclass(frozen=True)
class Arena:
    """A person's machine, and the means to attack it from inside a sandbox."""

    ground: Ground
    patch: pytest.MonkeyPatch

    def attack(self, script: str, *, sandbox: Sandbox | None = None, options: Any = None, **settings: Any) -> Attempt:
        """Run an attacker's Python script in a sandbox, by default a new one with these settings of the policy."""
        target = sandbox or self.ground.sandbox(**settings)
        result = target.run(python(script), **(options or {}))
        return judge(result)

    @contextmanager
    def options_changed(self, change: Callable[[list[bytes]], Sequence[bytes]]) -> Iterator[None]:
        """Let bwrap have other options than the plan says, for the time of the context."""

        def changed(*arguments: Any, **named: Any) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
            options, contents = bwrap_options(*arguments, **named)
            weaker = tuple(change(list(options)))
            assert weaker != options, "nothing was taken away"
            return weaker, contents

        with self.patch.context() as patch:
            patch.setattr("unspill.runner.launcher.bwrap_options", changed)
            yield

    @contextmanager
    def without(self, *flags: bytes) -> Iterator[None]:
        """Leave out options that stand alone, or an option and its values given as b"--cap-drop ALL"."""
        with self.options_changed(lambda options: drop(options, *flags)):
            yield

    @contextmanager
    def plan_changed(self, change: Callable[[tuple[MountOp, ...]], Sequence[MountOp]]) -> Iterator[None]:
        """Let the sandbox have other mounts than were planned, for the time of the context."""
        with self._planned(lambda plan: plan.replace(mounts=tuple(change(plan.mounts)))):
            yield

    @contextmanager
    def without_filter(self) -> Iterator[None]:
        """Let every system call through, for the time of the context."""
        with self._planned(lambda plan: plan.replace(filter=b"")):
            yield

    @contextmanager
    def without_rule_of(self, call: str, profile: Profile = "default") -> Iterator[None]:
        """Let one system call through whatever its arguments, for the time of the context."""
        known: list[Verdict] = list(verdicts(MACHINE, profile))
        known[numbers_of(MACHINE)[call]] = AllowCall()
        program = assemble(AUDIT_ARCHES[MACHINE], known)
        with self._planned(lambda plan: plan.replace(filter=program)):
            yield

    @contextmanager
    def _planned(self, change: Callable[[Plan], Plan]) -> Iterator[None]:
        make_plan = vars(running)["make_plan"]

        def changed(*arguments: Any, **named: Any) -> Plan:
            plan: Plan = make_plan(*arguments, **named)
            weaker = change(plan)
            assert weaker != plan, "nothing was changed"
            return weaker

        with self.patch.context() as patch:
            patch.setattr("unspill.sandbox.running.make_plan", changed)
            yield


def python(script: str) -> list[str]:
    """Return the command that runs an attacker's script inside."""
    return ["/usr/bin/python3", "-I", "-c", f"{PRELUDE}\n{textwrap.dedent(script)}\nprint({END!r})"]


def judge(result: RunResult) -> Attempt:
    """Return what a script achieved; fail if it broke."""
    text = (result.stdout.head + result.stdout.tail).decode("utf-8", "backslashreplace")
    lines = tuple(text.splitlines())
    assert END in lines, (result.outcome, text[-2000:], result.stderr.kept()[-2000:])
    return Attempt(tuple(line[4:] for line in lines if line.startswith("WON ")), lines, result)


def drop(options: Sequence[bytes], *flags: bytes) -> list[bytes]:
    """Return the options without each of the flags, every time it is there."""
    left = list(options)
    for flag in flags:
        words = flag.split(b" ")
        at = [i for i in range(len(left)) if left[i : i + len(words)] == words]
        assert at, f"{flag!r} is not there"
        for start in reversed(at):
            del left[start : start + len(words)]
    return left


def replaced(mounts: Sequence[MountOp], dest: bytes, *instead: MountOp) -> list[MountOp]:
    """Return the mounts with those at one place exchanged for others.

    In a rootfs nothing of the host's need be mounted there; the naive way is then to add it.
    """
    found = [index for index, operation in enumerate(mounts) if operation.dest == dest]
    if not found and is_rootfs_chosen():
        return with_mounts(mounts, *instead)
    assert found, f"nothing is mounted on {dest!r}"
    left = [operation for operation in mounts if operation.dest != dest]
    return [*left[: found[0]], *instead, *left[found[0] :]]


def with_mounts(mounts: Sequence[MountOp], *more: MountOp) -> list[MountOp]:
    """Return the mounts with some more, which are made after all others and before anything is closed."""
    count = sum(not isinstance(operation, ReadOnly) for operation in mounts)
    return [*mounts[:count], *more, *mounts[count:]]


def shown_as_it_is(path: Path | bytes, *, at: str | None = None, writable: bool = False) -> Bind:
    """Return the naive way to show a directory of the host."""
    return Bind(source=os.fsencode(path), dest=os.fsencode(at or path), why="naive", writable=writable)


def naive_bwrap(bwrap: bytes, *words: str | bytes, **named: Any) -> subprocess.CompletedProcess[bytes]:
    """Run bwrap as somebody would who has not read this suite: all system directories, nothing else."""
    system = [word for name in ("/usr", "/etc") for word in ("--ro-bind", name, name)]
    links = [word for name in ("bin", "lib", "lib64", "sbin") for word in ("--symlink", f"usr/{name}", f"/{name}")]
    return subprocess.run(
        [bwrap, *system, *links, *words], stdin=subprocess.DEVNULL, capture_output=True, check=False, **named
    )


def processes_with(mark: str) -> list[int]:
    """Return the pids of living processes on the host whose command line has `mark` in it."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        try:
            words = Path("/proc", entry, "cmdline").read_bytes()
            state = Path("/proc", entry, "stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if os.fsencode(mark) in words and state not in (b"Z", b"X"):
            found.append(int(entry))
    return found


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0) -> bool:
    """Tell whether a condition became true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def outside(script: str, **named: Any) -> subprocess.CompletedProcess[str]:
    """Run an attacker's script on the host itself."""
    return subprocess.run(
        [sys.executable, "-I", "-c", python(script)[-1]], capture_output=True, text=True, check=False, **named
    )


@contextmanager
def key_of_the_user() -> Iterator[str]:
    """A key in the keyring of the user, by its name."""
    libc, name, keyring = ctypes.CDLL(None, use_errno=True), f"vpn-{os.urandom(6).hex()}", -4
    numbers = numbers_of(MACHINE)
    key = libc.syscall(numbers["add_key"], b"user", name.encode(), b"secret", 6, keyring)
    assert key > 0
    try:
        yield name
    finally:
        # KEYCTL_UNLINK
        libc.syscall(numbers["keyctl"], 9, key, keyring)
