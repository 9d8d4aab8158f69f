# SPDX-License-Identifier: Apache-2.0
"""The state directory: made for its owner alone, refused when anyone else could reach into it.

store.db, -wal, -shm      every record
layers/ID/                one upper directory each, with its root's own mode; `layers` keeps others out
work/ID/                  the work directory of an open layer
runs/ID/                  output that was too long for a row
locks/                    one file per sandbox
manifests/ID              what a sealed layer is, in a file: enough to find it again without the database
operations/ID/            the journal of an operation and what it displaced
pending/ID                an operation that is under way, or was when its process died
masks/                    layers of deletions that hide a project's secrets, and repositories as they stand
bases/ID                  the repository as it stood when the run of a sealed layer began
empty/                    never written: the second lower of a read-only overlay
skeletons/                empty directories and files, laid over what a view shows, for mounts
"""

from __future__ import annotations

import os
import stat
import time

from unspill.errors import StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

PARTS = (
    *(b"layers", b"work", b"runs", b"locks", b"manifests", b"operations", b"pending", b"masks", b"bases", b"audit"),
    *(b"empty", b"skeletons"),
)


def check_state_dir(state: bytes) -> bool:
    """Tell whether the directory exists, and is ours alone.

    Raises:
        StoreError: someone else owns it, may enter it, or it is no directory.
    """
    try:
        found = os.lstat(state)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _refused(state, f"can't be read: {error.strerror}", "Point UNSPILL_STATE_DIR elsewhere.") from error
    name = os.fsdecode(state)
    if not stat.S_ISDIR(found.st_mode):
        raise _refused(state, "is not a directory", "Move it away, or point UNSPILL_STATE_DIR elsewhere.")
    if found.st_uid != os.geteuid():
        raise _refused(state, f"belongs to user {found.st_uid}", "Point UNSPILL_STATE_DIR at a directory of yours.")
    if found.st_mode & 0o077:
        raise _refused(state, "can be entered by other users", f"Run: chmod 700 {name}")
    return True


def make_state_dir(state: bytes) -> None:
    """Make the directory and its parts, for the owner alone whatever the umask is.

    Raises:
        StoreError: it can't be made.
    """
    try:
        make_parents(state)
        _make_private(state)
        make_parts(state)
    except OSError as error:
        raise _refused(state, f"can't be made: {error.strerror}", "Point UNSPILL_STATE_DIR elsewhere.") from error


def make_parts(state: bytes) -> None:
    """Make those parts that are missing: an older unspill knew fewer."""
    for part in PARTS:
        _make_private(os.path.join(state, part))
    # The kernel shows an overlay's root with the mode of its upmost directory.
    os.chmod(os.path.join(state, b"empty"), 0o755)


def make_parents(path: bytes) -> None:
    """Make the missing directories above a path, for the owner alone: `os.makedirs` leaves them to the umask."""
    missing: list[bytes] = []
    parent = os.path.dirname(path)
    while not os.path.isdir(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)
    for directory in reversed(missing):
        _make_private(directory)


def _make_private(path: bytes) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    # An inherited default ACL or an odd umask may have taken bits away or added some.
    os.chmod(path, 0o700)


def set_aside(state: bytes, layers: Iterable[str]) -> None:
    """Keep layers that nothing in the store stands for: `lost-*` is never swept."""
    aside = b""
    for layer in layers:
        if not aside:
            aside = b"%b/lost-%d" % (state, time.time_ns())
            _make_private(aside)
        name = os.fsencode(layer)
        try:
            os.rename(os.path.join(state, b"layers", name), os.path.join(aside, name))
        except FileNotFoundError:
            # Another process was faster.
            continue


def _refused(state: bytes, why: str, remedy: str) -> StoreError:
    return StoreError(f"The state directory {os.fsdecode(state)} {why}.", remedy=remedy)
