# SPDX-License-Identifier: Apache-2.0
"""Take a time mark: a moment of a root's own filesystem, such that whatever changes later has no older ctime.

Leaves nothing in the root, not even another mtime. A clock that is set back breaks the promise; that is accepted.
"""

from __future__ import annotations

import os
import stat
import time

from unspill.model.layer import TimeMark

# From linux/time.h: the clock that filesystems stamp with, which Python has no name for.
_CLOCK_REALTIME_COARSE = 5
_SECOND = 1_000_000_000


def clock_mark() -> int:
    """Return the moment of the clock that most filesystems stamp with.

    Those that are behind it, such as a server's, give an older mark, which then counts.
    """
    return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)


def take_mark(root: bytes, live: os.stat_result, upper: os.stat_result) -> TimeMark:
    """Return a moment of the filesystem that `root` is on, after `upper` was made.

    The upper directory is new, so its ctime is one where both are on one filesystem. Elsewhere a file without
    a name has one. A root that can't be written has neither; then the clock must do.
    """
    if upper.st_dev == live.st_dev:
        return TimeMark(ctime_ns=upper.st_ctime_ns)
    try:
        fd = os.open(root, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:
        return TimeMark(ctime_ns=_clock_mark(live))
    try:
        os.fstat(fd)
        os.fchmod(fd, 0o600)
        return TimeMark(ctime_ns=os.fstat(fd).st_ctime_ns)
    finally:
        os.close(fd)


def renew(upper: bytes, made: os.stat_result) -> os.stat_result:
    """Give a directory that was just looked at a ctime that nothing older has; return what it is like then.

    A filesystem's clock may stand still for 4 ms, and what a person wrote within them would not be older than the mark.
    Since Linux 6.13 a time that somebody has looked at is followed by a finer one; older kernels keep that conflict.
    """
    os.chmod(upper, stat.S_IMODE(made.st_mode))
    return os.lstat(upper)


def _clock_mark(live: os.stat_result) -> int:
    now = clock_mark()
    # A filesystem that keeps no fractions cuts them off, by at most two seconds (FAT).
    keeps_fractions = live.st_ctime_ns % _SECOND or live.st_mtime_ns % _SECOND
    return now if keeps_fractions else now - now % _SECOND - _SECOND
