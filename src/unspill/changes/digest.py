# SPDX-License-Identifier: Apache-2.0
"""The SHA-256 of what a change leaves, computed only when it leaves the host or someone asks."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.changes.reader import Reader
    from unspill.model.change import Change

CHUNK = 1024 * 1024


def digest_of(change: Change, reader: Reader) -> str | None:
    """Return the digest of a file's content or of a symlink's target; None where there is neither.

    Raises:
        SandboxUnavailable: The layer no longer holds what was scanned.
        OSError: The file can't be read.
    """
    import hashlib

    if change.entry is None:
        return None
    if change.entry.kind == "symlink":
        return hashlib.sha256(change.target or b"").hexdigest()
    if change.entry.kind != "file":
        return None
    return digest_of_file(reader.open_after(change))


def digest_of_file(fd: int) -> str:
    """Return the digest of an open file, read from its beginning, and close it."""
    import hashlib

    digest = hashlib.sha256()
    try:
        while chunk := os.read(fd, CHUNK):
            digest.update(chunk)
    finally:
        os.close(fd)
    return digest.hexdigest()
