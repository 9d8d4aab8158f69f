# SPDX-License-Identifier: Apache-2.0
"""The state directory: made for its owner alone, refused when anyone else could reach into it.

store.db, -wal, -shm      every record
copies/                   copies of store.db: of the day, and from before the last migration
layers/ID/                one upper directory each, with its root's own mode; `layers` keeps others out
work/ID/                  the work directory of an open layer
runs/ID/                  output that was too long for a row
locks/                    one file per sandbox
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
    *(b"layers", b"work", b"runs", b"locks", b"copies", b"operations", b"pending", b"masks", b"bases", b"audit"),
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


def is_used(state: bytes) -> bool:
    """Tell whether a state directory holds what only a database can explain, or a copy of one."""
    return any(_names(os.path.join(state, part)) for part in (b"layers", b"operations", b"pending", b"copies"))


def set_aside(state: bytes, part: bytes, names: Iterable[str]) -> None:
    """Keep directories of a part that have no row: nothing ever removes `lost-*`."""
    found = [os.fsencode(name) for name in names]
    if not found:
        return
    lost = b"%b/lost-%d" % (state, time.time_ns())
    aside = os.path.join(lost, part)
    _make_private(lost)
    _make_private(aside)
    for name in found:
        try:
            _move(os.path.join(state, part, name), os.path.join(aside, name))
        except FileNotFoundError:
            # Another process was faster.
            continue
    if not os.listdir(aside):
        os.rmdir(aside)
        os.rmdir(lost)


def list_aside(state: bytes) -> dict[str, bytes]:
    """Return where everything lies that was set aside, by id: layers, operations and output of runs without a row."""
    found: dict[str, bytes] = {}
    for lost in (name for name in os.listdir(state) if name.startswith(b"lost-")):
        top = os.path.join(state, lost)
        for name in _names(top):
            # unspill 0.1 kept layers only, and no directory for each part
            places = [os.path.join(name, inner) for inner in _names(os.path.join(top, name))]
            for place in places if name in PARTS else [name]:
                found[os.fsdecode(os.path.basename(place))] = os.path.join(top, place)
    return found


def remove_manifests(state: bytes) -> None:
    """Remove the file per layer that an older unspill kept; the copies of the database replace them."""
    top = os.path.join(state, b"manifests")
    for name in _names(top):
        os.unlink(os.path.join(top, name))
    if os.path.isdir(top):
        os.rmdir(top)


def _make_private(path: bytes) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    # An inherited default ACL or an odd umask may have taken bits away or added some.
    os.chmod(path, 0o700)


def _move(source: bytes, dest: bytes) -> None:
    try:
        os.rename(source, dest)
    except PermissionError:
        # To move a directory is to write its "..", and a command may have closed it to its owner
        mode = stat.S_IMODE(os.lstat(source).st_mode)
        os.chmod(source, mode | 0o200)
        os.rename(source, dest)
        os.chmod(dest, mode)


def _names(path: bytes) -> list[bytes]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _refused(state: bytes, why: str, remedy: str) -> StoreError:
    return StoreError(f"The state directory {os.fsdecode(state)} {why}.", remedy=remedy)
