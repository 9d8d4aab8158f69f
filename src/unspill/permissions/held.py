# SPDX-License-Identifier: Apache-2.0
"""What a question about a held path names: the digest of everything that applying the change would do there, and for
the eye what becomes of it.
"""

from __future__ import annotations

from unspill.changes.digest import digest_of
from unspill.changes.reader import read_up_to

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.changes.reader import Reader
    from unspill.model.change import Change


# All of a target is shown, and so much of a content
HEAD_BYTES = 4096
_SHOWN = 200
LINK = "a symbolic link"


def describe_held(change: Change) -> str:
    """Return what a path becomes, in words."""
    entry = change.entry
    if entry is None:
        return "nothing: it is deleted"
    if entry.kind != "file":
        return LINK if entry.kind == "symlink" else f"a {entry.kind}"
    said = [f"a file of {entry.size} byte{'' if entry.size == 1 else 's'}"]
    said += ["executable"] if entry.mode & 0o111 else []
    said += ["writable for everybody"] if entry.mode & 0o002 else []
    said += ["with the content that it has"] if change.kind == "metadata" else []
    return ", ".join(said)


def head_of_held(change: Change, reader: Reader) -> tuple[bytes, str]:
    """Return the beginning of what a change leaves at a path, and the number of bytes that follow, if any do.

    Raises:
        SandboxUnavailable: The layer no longer holds what was scanned.
        OSError: The file can't be read.
    """
    entry = change.entry
    if entry is None or entry.kind != "file":
        return (change.target or b"")[:HEAD_BYTES], ""
    head = read_up_to(reader.open_after(change), _SHOWN)
    return head, str(entry.size - len(head)) if entry.size > len(head) else ""


def digest_of_held(change: Change, reader: Reader) -> str:
    """Return the digest of a change: what becomes of the path, its kind and mode, its content or target.

    A deletion has one too, so that a grant to delete is no grant to write; and a file that goes is no directory.

    Raises:
        SandboxUnavailable: The layer no longer holds what was scanned.
        OSError: The file can't be read.
    """
    from hashlib import blake2b

    entry = change.entry
    gone = change.base_kind or "" if change.kind in ("deleted", "replaced") else ""
    parts: tuple[str, ...] = ("deleted", gone)
    if entry is not None:
        parts = ("left", gone, entry.kind, f"{entry.mode & 0o7777:o}", digest_of(change, reader) or "")
    return blake2b("\0".join(parts).encode("ascii"), digest_size=32).hexdigest()
