# SPDX-License-Identifier: Apache-2.0
"""What the times of a filesystem prove: when its clock has moved on, and whether every write is timed.

Looks at one directory of a copy, and leaves nothing in it.
"""

from __future__ import annotations

import os
import stat
import time

PATIENCE_S = 3.0
_PAUSE_S = 0.001
_PAGE = 4096


def settle(directory: int, youngest_ns: int) -> int:
    """Wait until a change made now gets a later ctime than `youngest_ns`; return that later one.

    Kernels before 6.13 time changes by a clock that ticks every few milliseconds, some filesystems every second.
    If the clock was set back, waiting does not help: then what is returned is not later, and the caller must look.
    """
    mode = stat.S_IMODE(os.fstat(directory).st_mode)
    until = time.monotonic() + PATIENCE_S
    while True:
        os.fchmod(directory, mode)
        now_ns = os.fstat(directory).st_ctime_ns
        if now_ns > youngest_ns or time.monotonic() > until:
            return now_ns
        time.sleep(_PAUSE_S)


def times_mapped_writes(directory: int) -> bool:
    """Find out whether writing through memory changes the ctime of a file here.

    On tmpfs it does not when the page was read before. Such a change would be overlooked.
    """
    from mmap import mmap

    try:
        fd = os.open(b".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=directory)
    except OSError:
        return False
    try:
        os.write(fd, bytes(_PAGE))
        before = os.fstat(fd).st_ctime_ns
        settle(directory, before)
        with mmap(fd, _PAGE) as page:
            page[0] = page[0] ^ 1
        return os.fstat(fd).st_ctime_ns != before
    finally:
        os.close(fd)
