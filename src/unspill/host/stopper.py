# SPDX-License-Identifier: Apache-2.0
"""Stand every process of a live sandbox still, and let it go on as if nothing had been.

By the freezer of the run's control group where version 2 is delegated; else by ptrace, which no program notices and
which ends with this process. A child that is born meanwhile is stopped from its first instruction. What a program
inside traces already gets SIGSTOP, and so does whatever ptrace can't stop in time: then `used` says so. Only what these
stopped gets a SIGCONT; what was stopped before stays so.

Still means: every thread is stopped or dead in two listings in a row that have the same processes in them: one that
forked and ended while they were listed looks dead, and its child is in the next one only. Who waits for the child of
its vfork counts if a child of it is stopped; a timer of that child may kill it, and then its parent moves, so at the
end all are looked at again. The door is left alone: it writes no files.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    # Who was stopped, who was dead, who waited for a vfork; None if somebody was none of these
    Listing = tuple[list[int], list[int], list[int]] | None


# A long write ends; who is not still after this is not going to be
MOST_S = 5.0
# Ptrace has both: so much time, and so many rounds, for a busy machine may give us few
_PTRACE_S, _PTRACE_ROUNDS = 0.2, 60
# Who was asked to stop and has not, can only be let go when it has
_LATE_S = 1.0
_PAUSES_S = (0.0, 0.0, 0.0002, 0.0005, 0.001, 0.002)
_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
# Fork, vfork, clone
_BIRTHS = 0x2 | 0x4 | 0x8
_SIGCONT, _SIGSTOP, _STOPPED_BY_SIGNAL = 18, 19, 0x7F
_WALL = 0x40000000
_STILL, _DEAD = b"Tt", b"ZX"
# vfork, clone and clone3 on the machines that there are doors for
_VFORKS = {"x86_64": (b"56", b"58", b"435"), "aarch64": (b"220", b"435")}.get(os.uname().machine, ())
_NS_GET_PARENT = 0xB702
MOST_MAPPED = 4096
# What all processes together have mapped is read so far: a command chooses how much that is
MOST_MAPS_BYTES = 4 << 20

_libc = ctypes.CDLL(None, use_errno=True)
_ptrace = _libc.ptrace
_ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_ptrace.restype = ctypes.c_long


class Stopper:
    """What stands one sandbox still; `init` is its pid 1, and those to `spare` are its doors."""

    def __init__(self, init: int, spare: Collection[int], member_files: Collection[bytes] = ()) -> None:
        self._spare = set(spare)
        self._freezer = _find_freezer(member_files)
        # By the inode of a pid namespace whether it is the sandbox's or lies in it
        self._namespaces = {os.stat(f"/proc/{init}/ns/pid").st_ino: True, os.stat("/proc/self/ns/pid").st_ino: False}
        self._seized: set[int] = set()
        self._refused: set[int] = set()
        self._signalled: set[int] = set()
        self._others: set[int] = set()
        # Who was there when all stood still
        self._stood: Listing = None
        # "freeze", "ptrace" or "signal"
        self.used = "ptrace"

    def stop(self) -> bool:
        """Tell whether everything stands still now; if not, it goes on."""
        if self._freezer and _freeze(self._freezer):
            self.used = "freeze"
            return True
        begun = time.monotonic()
        rounds = 0
        before: Listing = None
        while True:
            lasted = time.monotonic() - begun
            if lasted > MOST_S:
                self.release()
                return False
            if before is None and rounds:
                time.sleep(_PAUSES_S[min(rounds, len(_PAUSES_S)) - 1])
            may_signal = lasted > _PTRACE_S and rounds > _PTRACE_ROUNDS
            found = self._look(may_signal=may_signal)
            if found is not None and found == before:
                self._stood = found
                return True
            before = found
            rounds += 1

    def is_still(self) -> bool:
        """Tell whether nothing has begun to move: by a signal from inside, or because its child was killed."""
        if self.used == "freeze":
            return True
        first, second = (self._look(may_signal=False) for _ in range(2))
        if first is None or first != second or self._stood is None:
            return False
        # Who was killed meanwhile did not move; who was not stopped before, or waits no longer, did
        return set(first[0]) <= set(self._stood[0]) and first[2] == self._stood[2]

    def release(self) -> None:
        """Let everything go on."""
        if self.used == "freeze":
            _write(self._freezer + b"/cgroup.freeze", b"0")
            return
        # Before its tracer goes on: a stop that is only on its way then means nothing any more
        for pid in self._signalled:
            _kill(pid, _SIGCONT)
        waiting, deadline = self._seized, time.monotonic() + _LATE_S
        while (waiting := {tid for tid in waiting if not _let_go(tid)}) and time.monotonic() < deadline:
            time.sleep(_PAUSES_S[-1])
        self._seized.clear()
        self._signalled.clear()

    def mapped(self) -> list[bytes] | None:
        """Return the paths, as the sandbox has them, of what is mapped and shared; None for too many of them."""
        found: set[bytes] = set()
        room = MOST_MAPS_BYTES
        for pid in self._list(is_stopped=False)[0]:
            maps = _maps_of(pid, room)
            room -= len(maps)
            if room <= 0:
                return None
            for line in maps.splitlines():
                words = line.split(maxsplit=5)
                if len(words) == 6 and words[1][3:4] == b"s" and words[5].startswith(b"/"):
                    found.add(words[5])
            if len(found) > MOST_MAPPED:
                return None
        return [path.replace(b"\\012", b"\n") for path in found]

    def _list(self, *, is_stopped: bool = True) -> tuple[list[int], list[int]]:
        """Return the living processes of the sandbox, and all that are dead or gone; those to be stopped are seized."""
        found: list[int] = []
        dead: list[int] = []
        for name in os.listdir("/proc"):
            if not name.isdecimal() or (pid := int(name)) in self._spare:
                continue
            try:
                number = os.stat(f"/proc/{name}/ns/pid").st_ino
                if number not in self._namespaces:
                    self._namespaces[number] = self._is_inside(pid)
            except OSError:
                if pid not in self._others:
                    dead.append(pid)
                continue
            if self._namespaces[number]:
                found.append(pid)
                if is_stopped and pid not in self._seized and pid not in self._refused:
                    # At once: one that forks and ends is gone a moment later
                    self._seize(pid)
            else:
                self._others.add(pid)
        return found, dead

    def _is_inside(self, pid: int) -> bool:
        """Tell whether the pid namespace of a process lies in the sandbox's."""
        fd = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        try:
            while True:
                known = self._namespaces.get(os.fstat(fd).st_ino)
                if known is not None:
                    return known
                above = fcntl.ioctl(fd, _NS_GET_PARENT)
                os.close(fd)
                fd = above
        except OSError:
            return False
        finally:
            os.close(fd)

    def _look(self, *, may_signal: bool) -> Listing:
        """List all threads once, and stop those that are not; return who there is if all were, else None."""
        pids, dead = self._list()
        still: list[int] = []
        waiting: list[tuple[int, int]] = []
        parents: set[int] = set()
        for pid in pids:
            for tid in _threads_of(pid):
                if tid not in self._seized and tid not in self._refused:
                    self._seize(tid)
                state, parent = _state_of(pid, tid)
                if state in _DEAD:
                    dead.append(tid)
                elif state in _STILL:
                    still.append(tid)
                    parents.add(parent)
                    self._adopt(pid, tid, state)
                else:
                    waiting.append((pid, tid))
        in_vfork = [(pid, tid) for pid, tid in waiting if pid in parents and _is_in_vfork(pid, tid)]
        moving = [thread for thread in waiting if thread not in in_vfork]
        for pid, tid in moving:
            if tid in self._refused or may_signal:
                self._signal(pid, tid)
        return None if moving else (still, dead, [tid for _pid, tid in in_vfork])

    def _adopt(self, pid: int, tid: int, state: bytes) -> None:
        """Take note of a thread that is ours because it was born of one that is."""
        if state == b"t" and tid not in self._seized and _tracer_of(pid, tid) == os.getpid():
            self._seized.add(tid)
            self._refused.discard(tid)

    def _seize(self, tid: int) -> None:
        if _is_in_vfork(tid, tid):
            # It can't go on before its child does, and could not be let go before that either
            return
        if _ptrace(_SEIZE, tid, None, _BIRTHS) == 0:
            self._seized.add(tid)
            _ptrace(_INTERRUPT, tid, None, None)
        elif _state_of(tid, tid)[0] not in _DEAD:
            if _tracer_of(tid, tid) == os.getpid():
                self._seized.add(tid)
            else:
                self._refused.add(tid)

    def _signal(self, pid: int, tid: int) -> None:
        # A tracer that still ran may have let it go on at once
        if pid in self._signalled and tid not in self._refused:
            return
        if tid not in self._refused or not _tracer_of(pid, tid):
            # Not because somebody inside traces it: whoever hears of the result should know
            self.used = "signal"
        self._signalled.add(pid)
        _kill(pid, _SIGSTOP)


def _let_go(tid: int) -> bool:
    """Detach from a thread if it is stopped by now; tell whether it is free, or dead.

    A signal that it was about to get, it gets.
    """
    try:
        found, status = os.waitpid(tid, _WALL | os.WNOHANG)
    except ChildProcessError:
        return True
    if not found:
        return False
    if status & 0xFF == _STOPPED_BY_SIGNAL:
        number = 0 if status >> 16 else status >> 8 & 0xFF
        _ptrace(_DETACH, tid, None, number)
    return True


def _find_freezer(member_files: Collection[bytes]) -> bytes:
    for path in member_files:
        directory = os.path.dirname(path)
        if os.path.exists(directory + b"/cgroup.freeze"):
            return directory
    return b""


def _freeze(directory: bytes) -> bool:
    """Freeze a control group, and tell whether all of it is frozen; if not, it goes on."""
    if not _write(directory + b"/cgroup.freeze", b"1"):
        return False
    deadline = time.monotonic() + MOST_S
    while b"frozen 1" not in _read_all(directory + b"/cgroup.events"):
        if time.monotonic() > deadline:
            _write(directory + b"/cgroup.freeze", b"0")
            return False
        time.sleep(_PAUSES_S[2])
    return True


def _threads_of(pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return []


def _state_of(pid: int, tid: int) -> tuple[bytes, int]:
    """Return the state of a thread and the parent of its process; a thread that is gone is dead."""
    # The name of the program is in parentheses and may itself contain some
    words = _read_all(b"/proc/%d/task/%d/stat" % (pid, tid)).rpartition(b")")[2].split(maxsplit=2)
    return (words[0], int(words[1])) if len(words) > 1 else (b"X", 0)


def _tracer_of(pid: int, tid: int) -> int:
    text = _read_all(b"/proc/%d/task/%d/status" % (pid, tid)).partition(b"\nTracerPid:\t")[2]
    return int(text.partition(b"\n")[0] or 0)


def _is_in_vfork(pid: int, tid: int) -> bool:
    is_waiting = _state_of(pid, tid)[0] == b"D"
    return is_waiting and _read_all(b"/proc/%d/task/%d/syscall" % (pid, tid)).split(b" ")[0] in _VFORKS


def _maps_of(pid: int, most: int) -> bytes:
    """Return what a process has mapped, as any of its threads tells: a first one that has ended tells nothing.

    Where that is more than `most` bytes, these are not all.
    """
    if found := _read_all(b"/proc/%d/maps" % pid, most):
        return found
    try:
        threads = os.listdir(b"/proc/%d/task" % pid)
    except OSError:
        return b""
    return next(filter(None, (_read_all(b"/proc/%d/task/%b/maps" % (pid, tid), most) for tid in threads)), b"")


def _read_all(path: bytes, most: int = 1 << 20) -> bytes:
    """Return what a file has, or somewhat more than `most` bytes of it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        found = bytearray()
        while len(found) < most and (part := os.read(fd, 1 << 16)):
            found += part
        return bytes(found)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _write(path: bytes, content: bytes) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.write(fd, content) == len(content)
    except OSError:
        return False
    finally:
        os.close(fd)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:
        return
