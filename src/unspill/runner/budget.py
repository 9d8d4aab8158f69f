# SPDX-License-Identifier: Apache-2.0
"""Watches what a run takes of the disk and of the directories in memory, and names the bound that it exceeds.

Asks file systems how full they are at every look, and walks the layers now and then. A command can hide what it
wrote from a walk, in directories closed to its owner or in deleted files; it can't hide it from the file system.
"""

from __future__ import annotations

import os
import sys
import time

from unspill.model.run import LimitReached
from unspill.runner.limits import FREE_SPACE_KEPT, find_excess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.policy import Limits
    from unspill.model.run import LimitName
    from unspill.runner.memory import MemoryWatch

FREE_INODES_KEPT = 10_000

_LOOK_S = 0.5
_LONGEST_PAUSE_S = 2.0
_SHARE = 20
# A run that only tidies a playground that is too large must be let alone
_GROWN_BYTES, _GROWN_ENTRIES = 1 << 20, 100
# The clock that files are stamped by may be behind by one tick, which is 10 ms at most
_TICK_NS = 10_000_000


class Budget:
    """What one run may take.

    `uppers` are its layers, `kept` the playground and other directories that outlive it, `fresh` the places of
    directories in memory, of which the kernel bounds the bytes but not the entries; `memory` is for a run that no
    control group bounds.
    """

    def __init__(
        self,
        limits: Limits,
        uppers: tuple[bytes, ...],
        kept: tuple[bytes, ...] = (),
        fresh: tuple[bytes, ...] = (),
        memory: MemoryWatch | None = None,
    ) -> None:
        self._limits = limits
        self._uppers = uppers
        self._kept = kept
        self._fresh = fresh
        self._memory = memory
        self._disk = next(iter((*uppers, *kept)), None)
        self._room = _room(self._disk) if self._disk is not None else (0, 0)
        self._last_walk = (0.0, 0, 0)
        self._begun = time.monotonic()
        self._begun_ns = time.time_ns() - _TICK_NS
        self.next_check = self._next_walk = self._begun + _LOOK_S

    def check(self, init_fd: int | None = None) -> LimitReached | None:
        """Return the bound that is exceeded, if any, and choose the next moment to look.

        `init_fd` is the pidfd of the sandbox's pid 1, through which its own directories are seen.
        """
        grown = (0, 0)
        if self._disk is not None:
            room = _room(self._disk)
            if room[0] < FREE_SPACE_KEPT:
                return LimitReached(limit="free_space", bound=FREE_SPACE_KEPT)
            if room[1] < FREE_INODES_KEPT:
                return LimitReached(limit="free_inodes", bound=FREE_INODES_KEPT)
            grown = (self._room[0] - room[0], self._room[1] - room[1])
        reached = None if self._memory is None else self._memory.check()
        reached = reached or self._fresh_excess(init_fd)
        if reached is None and self._is_time_to_walk(grown):
            reached = self._walk(grown)
        # Hundreds of runs that only wait must not spend their time on being looked at
        age = time.monotonic() - self._begun
        self.next_check = time.monotonic() + min(max(_LOOK_S, age / 10), _LONGEST_PAUSE_S)
        return reached

    def _is_time_to_walk(self, grown: tuple[int, int]) -> bool:
        now = time.monotonic()
        if now >= self._next_walk:
            return True
        # Many small files make a walk, and so the pause after it, long: nobody may fill the disk meanwhile
        took, grown_bytes, grown_entries = self._last_walk
        is_suspect = _exceeds(grown[0] - grown_bytes, self._limits.layer_bytes) or _exceeds(
            grown[1] - grown_entries, self._limits.layer_entries
        )
        return is_suspect and now >= self._next_walk - took * (_SHARE - 1)

    def _walk(self, grown: tuple[int, int]) -> LimitReached | None:
        begun = time.monotonic()
        closed: list[bytes] = []
        reached = find_excess(self._limits, self._uppers, closed=closed)
        if reached is None and closed:
            reached = self._named("layer_bytes", grown[0], self._limits.layer_bytes)
            reached = reached or self._named("layer_entries", grown[1], self._limits.layer_entries)
        # Whoever else removes something from this file system hides what a run adds to it, but not that it changes
        if reached is None and (abs(grown[0]) > _GROWN_BYTES or abs(grown[1]) > _GROWN_ENTRIES):
            has_grown = grown[0] > _GROWN_BYTES or grown[1] > _GROWN_ENTRIES
            found = (self._playground_excess(place, has_grown=has_grown) for place in self._kept)
            reached = next(filter(None, found), None)
        took = time.monotonic() - begun
        self._last_walk = (took, *grown)
        self._next_walk = time.monotonic() + max(_LOOK_S, took * _SHARE)
        return reached

    def _playground_excess(self, playground: bytes, *, has_grown: bool) -> LimitReached | None:
        excess = find_excess(self._limits, (playground,))
        if excess is None or not (has_grown or self._wrote_into(playground)):
            return None
        name: LimitName = "playground_bytes" if excess.limit == "layer_bytes" else "playground_entries"
        return LimitReached(limit=name, bound=excess.bound)

    def _wrote_into(self, playground: bytes) -> bool:
        from unspill.changes.measure import has_fresh

        return has_fresh(playground, self._begun_ns, over_bytes=_GROWN_BYTES, over_entries=_GROWN_ENTRIES)

    def _fresh_excess(self, init_fd: int | None) -> LimitReached | None:
        bound = self._limits.layer_entries
        pid = None if init_fd is None or bound is None else _pid_of(init_fd)
        if pid is None:
            return None
        for place in self._fresh:
            inside = b"/proc/%d/root%b" % (pid, place)
            try:
                # While bwrap is still at work its root is the host's, and so is what is there; it never goes back
                if os.stat(inside).st_dev == _device_of(place):
                    continue
                found = os.statvfs(inside)
            except OSError:
                continue  # it is just ending, or not ours to look into
            if reached := self._named("tmp_entries", found.f_files - found.f_ffree, bound):
                return reached
        return None

    @staticmethod
    def _named(name: LimitName, used: int, bound: int | None) -> LimitReached | None:
        return LimitReached(limit=name, bound=bound) if bound is not None and used > bound else None


def _device_of(place: bytes) -> int | None:
    """Return where the host has a place, None if it has no such place at all."""
    try:
        return os.stat(place).st_dev
    except OSError:
        return None


def _exceeds(used: int, bound: int | None) -> bool:
    return bound is not None and used > bound


def _room(path: bytes) -> tuple[int, int]:
    """Return the bytes and the entries that an ordinary user may still make on the file system of a path."""
    found = os.statvfs(path)
    # btrfs has no fixed number of them and says 0
    entries = found.f_favail if found.f_files else sys.maxsize
    return found.f_bavail * found.f_frsize, entries


def _pid_of(pidfd: int) -> int | None:
    with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
        for line in file:
            if line.startswith(b"Pid:"):
                pid = int(line.split()[1])
                return pid if pid > 0 else None
    return None
