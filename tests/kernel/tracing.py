# SPDX-License-Identifier: Apache-2.0
"""Traces a program and all its descendants with ptrace, and kills one of them at an exact system call.

Run as a program of its own (`python -m tests.kernel.tracing ORDER`), because it waits for every child of its
process. The order is JSON: the program, the role to kill and the number of the system call at which it dies.
It answers with JSON: system calls by role, whether the kill happened, and who was alive when the grace was over.

A role is the depth in the tree of processes, so a tracer that knows nothing of unspill finds the same process
in each run. Tracing needs no privilege: no program here is set-uid, and a tracer that is the owner of a user
namespace has every capability in it.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final, TypedDict

PTRACE_CONT: Final = 7
PTRACE_SYSCALL: Final = 24
PTRACE_GETEVENTMSG: Final = 0x4201
PTRACE_SEIZE: Final = 0x4206
PTRACE_LISTEN: Final = 0x4208
PTRACE_GET_SYSCALL_INFO: Final = 0x420E

EVENT_FORK, EVENT_VFORK, EVENT_CLONE, EVENT_EXEC, EVENT_STOP = 1, 2, 3, 4, 128
# SYSGOOD tells system calls from signals; a tracer that dies takes its tracees with it
OPTIONS: Final = 0x1 | 0x2 | 0x4 | 0x8 | 0x10 | 0x100000
WALL: Final = 0x40000000
SYSCALL_STOP: Final = signal.SIGTRAP | 0x80
STOPPING: Final = (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
ENTRY: Final = 1
ROOT: Final = Path(__file__).parents[2]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


class Order(TypedDict):
    """What to trace; `depth` None only records, `victim` is who dies at that moment, if it is not that process itself.

    The program says that it is ready on descriptor 3 and starts on a line from descriptor 4.
    """

    argv: list[str]
    cwd: str
    environ: dict[str, str]
    depth: int | None
    at: int
    victim: int | None
    grace_s: float
    limit_s: float


class Traced(TypedDict):
    """What happened: `counts` by depth, `names` of the programs by depth, `status` of the root (wait status)."""

    counts: dict[str, int]
    programs: dict[str, str]
    killed: bool
    survivors: list[str]
    status: int | None
    elapsed_s: float
    output: str


def trace(order: Order) -> Traced:
    """Carry out an order in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernel.tracing", json.dumps(order)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=order["limit_s"] + order["grace_s"] + 20,
    )
    assert done.returncode == 0, done.stderr
    result: Traced = json.loads(done.stdout)
    return result


class Tracer:
    """The loop around one traced run."""

    def __init__(self, depth: int | None, at: int, victim: int | None) -> None:
        self._depth_to_kill = depth
        self._at = at
        self._victim = victim
        self._depth: dict[int, int] = {}
        self._unborn: dict[int, int] = {}
        self.counts: Counter[int] = Counter()
        self.programs: dict[int, str] = {}
        self.killed = False
        self.root = 0
        self.root_status: int | None = None

    def seize(self, pid: int) -> None:
        """Begin with the root of the tree, which runs already."""
        self.root = pid
        self._depth[pid] = 0
        _ptrace(PTRACE_SEIZE, pid, 0, OPTIONS)

    def run(self, limit_s: float, grace_s: float) -> list[str]:
        """Follow everything until all are dead; return who was not in time."""
        deadline = time.monotonic() + limit_s
        while self._depth:
            was_killed = self.killed
            pid, status = os.waitpid(-1, WALL | os.WNOHANG)
            if pid:
                self._handle(pid, status)
            else:
                time.sleep(0.0002)
            if self.killed and not was_killed:
                deadline = time.monotonic() + grace_s
            if time.monotonic() > deadline:
                return [self._describe(pid) for pid in self._depth]
        return []

    def _handle(self, pid: int, status: int) -> None:
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            self._depth.pop(pid, None)
            if pid == self.root:
                self.root_status = status
            return
        # A child may stop before its parent's event tells whose child it is
        if pid not in self._depth:
            self._unborn[pid] = status
            return
        number, event = os.WSTOPSIG(status), status >> 16
        if number == SYSCALL_STOP:
            self._syscall(pid)
        elif event == EVENT_STOP and number in STOPPING:
            _try_ptrace(PTRACE_LISTEN, pid)
        elif event:
            self._event(pid, event)
        else:
            self._go_on(pid, number)

    def _syscall(self, pid: int) -> None:
        depth = self._depth[pid]
        if _is_entry(pid):
            self.counts[depth] += 1
            if depth == self._depth_to_kill and self.counts[depth] == self._at and not self.killed:
                self.killed = True
                os.kill(self._process_to_kill(pid), signal.SIGKILL)
        self._go_on(pid)

    def _process_to_kill(self, pid: int) -> int:
        if self._victim is None:
            return _process_of(pid)
        return next(other for other, depth in self._depth.items() if depth == self._victim)

    def _event(self, pid: int, event: int) -> None:
        if event in (EVENT_FORK, EVENT_VFORK, EVENT_CLONE):
            child = ctypes.c_ulong()
            if _try_ptrace(PTRACE_GETEVENTMSG, pid, 0, ctypes.addressof(child)) >= 0:
                is_thread = event == EVENT_CLONE
                self._depth[child.value] = self._depth[pid] + (0 if is_thread else 1)
                if child.value in self._unborn:
                    self._handle(child.value, self._unborn.pop(child.value))
        elif event == EVENT_EXEC:
            self.programs[self._depth[pid]] = _name(pid)
        self._go_on(pid)

    def _go_on(self, pid: int, number: int = 0) -> None:
        # Only what is counted is slowed down: others run at their own speed, as they would without a tracer
        counted = self._depth_to_kill is None or (self._depth[pid] == self._depth_to_kill and not self.killed)
        _try_ptrace(PTRACE_SYSCALL if counted else PTRACE_CONT, pid, 0, number)

    def _describe(self, pid: int) -> str:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            state = "?"
        return f"depth {self._depth[pid]} {_name(pid)} ({state})"


def _ptrace(request: int, pid: int, address: int = 0, argument: int = 0) -> int:
    result = int(_libc.ptrace(request, pid, address, argument))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _try_ptrace(request: int, pid: int, address: int = 0, argument: int = 0) -> int:
    """Ask for something of a process that SIGKILL may have taken out of its stop meanwhile."""
    try:
        return _ptrace(request, pid, address, argument)
    except ProcessLookupError:
        return -1


def _is_entry(pid: int) -> bool:
    place = ctypes.create_string_buffer(88)
    size = len(place)
    return _try_ptrace(PTRACE_GET_SYSCALL_INFO, pid, size, ctypes.addressof(place)) >= 0 and place.raw[0] == ENTRY


def _process_of(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return pid
    return int(text.partition("Tgid:")[2].split()[0])


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"


def perform(order: Order) -> Traced:
    """Start the program, trace it and return what happened."""
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    output = os.memfd_create("output")
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
        (os.POSIX_SPAWN_DUP2, ready_write, 3),
        (os.POSIX_SPAWN_DUP2, go_read, 4),
    ]
    os.chdir(order["cwd"])
    tracer = Tracer(order["depth"], order["at"], order["victim"])
    root = os.posix_spawn(order["argv"][0], order["argv"], order["environ"], file_actions=actions, setsid=True)
    os.close(ready_write)
    os.read(ready_read, 1)
    tracer.seize(root)
    begun = time.monotonic()
    os.write(go_write, b"\n")
    os.close(go_write)
    survivors = tracer.run(order["limit_s"], order["grace_s"])
    return Traced(
        counts={str(depth): count for depth, count in sorted(tracer.counts.items())},
        programs={str(depth): name for depth, name in tracer.programs.items()},
        killed=tracer.killed,
        survivors=survivors,
        status=tracer.root_status,
        elapsed_s=time.monotonic() - begun,
        output=os.pread(output, 1 << 16, 0).decode("utf-8", "backslashreplace"),
    )


if __name__ == "__main__":
    print(json.dumps(perform(json.loads(sys.argv[1]))))
