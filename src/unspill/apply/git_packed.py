# SPDX-License-Identifier: Apache-2.0
"""The file `packed-refs` of a repository: its lock, and its content without one reference."""

from __future__ import annotations

import os

PACKED_LOCK = b"packed-refs.lock"


def lock_packed(fd: int) -> bool:
    """Take the lock of `packed-refs` for a moment; one that a dead process of ours left is taken over."""
    mark = b"unspill cleaning, pid "
    try:
        with open(os.open(PACKED_LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd), "rb") as file:
            content = file.read(100)
        owner = content.removeprefix(mark).strip()
        if owner == content or not owner.isdigit() or os.path.exists(b"/proc/" + owner):
            return False
        os.unlink(PACKED_LOCK, dir_fd=fd)
    except FileNotFoundError:
        pass
    try:
        lock = os.open(PACKED_LOCK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=fd)
    except FileExistsError:
        return False
    try:
        os.write(lock, b"%b%d\n" % (mark, os.getpid()))
    finally:
        os.close(lock)
    return True


def without_ref(packed: bytes, name: bytes) -> bytes:
    """Return the content of `packed-refs` without one reference, and without what it is peeled to."""
    kept: list[bytes] = []
    is_gone = False
    for line in packed.splitlines(keepends=True):
        is_gone = is_gone if line.startswith(b"^") else line.rstrip(b"\n").partition(b" ")[2] == name
        if not is_gone or line.startswith(b"#"):
            kept.append(line)
    return b"".join(kept)
