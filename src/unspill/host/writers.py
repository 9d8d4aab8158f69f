# SPDX-License-Identifier: Apache-2.0
"""Whether somebody has a file open for writing: what they write next would go where nobody looks any more.

The kernel grants a read lease on a file only while nobody has it open for writing. It is given back at once.
"""

from __future__ import annotations

import errno
import fcntl
import os

# The number differs between architectures, and importing `signal` takes as long as a step of an apply takes a thousand
from _signal import SIGURG  # type: ignore[import-not-found]

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def has_writers(dir_fd: int, name: bytes) -> bool | None:
    """Tell whether a regular file is open for writing; None where that can't be told: another user's, or no leases."""
    try:
        fd = os.open(name, _FLAGS, dir_fd=dir_fd)
    except OSError as error:
        # Somebody else has a lease, so it is open there
        return True if error.errno == errno.EWOULDBLOCK else None
    try:
        # Whoever opens it just now breaks the lease, which would kill this process by the signal that is the default
        fcntl.fcntl(fd, fcntl.F_SETSIG, SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    finally:
        os.close(fd)
    return False
