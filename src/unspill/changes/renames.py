# SPDX-License-Identifier: Apache-2.0
"""Renames of files, recognised for display: a deleted and an added file with the same content.

Never part of a ChangeSet. The work is bounded; a rename that is not recognised is shown as what it is, two changes.
"""

from __future__ import annotations

import os
import posixpath

from unspill.changes.content import have_same_content

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.changes.reader import Reader
    from unspill.model.change import Change

MAX_COMPARISONS = 500
MAX_BYTES = 64 * 1024 * 1024


def find_renames(changes: Sequence[Change], reader: Reader) -> dict[bytes, bytes]:
    """Return the old path of each added file that was there under another name, by its new path."""
    gone: dict[int, list[Change]] = {}
    for change in changes:
        if change.kind == "deleted" and change.base_kind == "file" and change.base_size:
            gone.setdefault(change.base_size, []).append(change)
    renames: dict[bytes, bytes] = {}
    comparisons, bytes_left = MAX_COMPARISONS, MAX_BYTES
    for change in changes:
        if not gone or comparisons <= 0 or bytes_left <= 0:
            break
        if change.kind != "added" or change.entry is None or change.entry.kind != "file":
            continue
        for old in _likeliest_first(gone.get(change.entry.size, ()), change):
            comparisons -= 1
            bytes_left -= change.entry.size
            if _is_same_file(old, change, reader):
                renames[change.path] = old.path
                gone[change.entry.size].remove(old)
                break
            if comparisons <= 0 or bytes_left <= 0:
                break
    return renames


def _likeliest_first(candidates: Sequence[Change], added: Change) -> list[Change]:
    name = posixpath.basename(added.path)
    return sorted(candidates, key=lambda old: posixpath.basename(old.path) != name)


def _is_same_file(old: Change, new: Change, reader: Reader) -> bool:
    if new.entry is None or new.entry.size > MAX_BYTES:
        return False
    try:
        before = reader.open_before(old)
    except OSError:
        return False
    try:
        after = reader.open_after(new)
        try:
            return have_same_content(before, after, new.entry.size)
        finally:
            os.close(after)
    except OSError:
        return False
    finally:
        os.close(before)
