# SPDX-License-Identifier: Apache-2.0
"""What every writer of files needs besides write(2): all of a content, and names that last."""

from __future__ import annotations

import os


def write_whole(fd: int, content: bytes | memoryview) -> None:
    """Write all of the content to a descriptor that blocks."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def sync_directory(path: bytes) -> None:
    """Make the names in a directory of ours durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
