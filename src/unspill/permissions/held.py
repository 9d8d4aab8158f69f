# SPDX-License-Identifier: Apache-2.0
"""The digest that a grant for a held path names: of everything that applying the change would do at that path."""

from __future__ import annotations

from unspill.changes.digest import digest_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.changes.reader import Reader
    from unspill.model.change import Change


def digest_of_held(change: Change, reader: Reader) -> str:
    """Return the digest of a change: what becomes of the path, its kind and mode, its content or target.

    A deletion has one too, so that a grant to delete is no grant to write.

    Raises:
        SandboxUnavailable: The layer no longer holds what was scanned.
        OSError: The file can't be read.
    """
    from hashlib import blake2b

    entry = change.entry
    parts: tuple[str, ...] = ("deleted",)
    if entry is not None:
        parts = ("left", entry.kind, f"{entry.mode & 0o7777:o}", digest_of(change, reader) or "")
    return blake2b("\0".join(parts).encode("ascii"), digest_size=32).hexdigest()
