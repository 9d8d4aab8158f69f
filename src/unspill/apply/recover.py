# SPDX-License-Identifier: Apache-2.0
"""At each start: finish or take back what a process that died has left half done.

A marker that nobody has locked belongs to a dead process. With an end in its journal the operation is finished, without
one it is taken back; without a journal nothing live was touched. Costs one look at an empty directory.
"""

from __future__ import annotations

import fcntl
import os

from unspill.apply.finish import finish
from unspill.apply.journal import read_journal
from unspill.apply.places import journal_file, marker_file, staging_name
from unspill.apply.rollback import forget, remove_staging, roll_back, tidy_up
from unspill.apply.sites import Sites, open_root
from unspill.errors import ProjectBusy, RootRefused, SandboxUnavailable
from unspill.layers.trees import remove_tree
from unspill.model.operation import OperationId

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.apply.journal import Journal
    from unspill.model.operation import Operation
    from unspill.store.db import Store

_LONGEST = 1 << 20


def recover_operations(store: Store) -> tuple[Operation, ...]:
    """Finish or take back every interrupted operation; return their records.

    Raises:
        SandboxUnavailable: the filesystem fails; the next start tries again.
        StoreError: the store can't be written; likewise.
    """
    try:
        names = os.listdir(store.state + b"/pending")
        found = [_recover(store, OperationId(name.decode())) for name in sorted(names)] if names else []
    except OSError as error:
        raise SandboxUnavailable(
            f"an operation that was interrupted can't be ended yet: {error.strerror}",
            remedy="Mend the disk or free some space; each command of unspill tries it again.",
        ) from error
    return tuple(operation for operation in found if operation is not None)


def _recover(store: Store, operation: OperationId) -> Operation | None:
    marker = marker_file(store.state, operation)
    try:
        fd = os.open(marker, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever had the lock before may have ended it
        if not os.path.lexists(marker):
            return None
        recorded, is_clean = _recover_locked(store, operation, os.read(fd, _LONGEST))
        if is_clean:
            os.unlink(marker)
        return recorded
    except BlockingIOError:
        return None
    except ProjectBusy:
        return None
    finally:
        os.close(fd)


def _recover_locked(store: Store, operation: OperationId, noted: bytes) -> tuple[Operation | None, bool]:
    """End an operation; return its record, and whether nothing of it is left to be removed."""
    journal = read_journal(journal_file(store.state, operation))
    if journal is None:
        roots = [root for root in noted.split(b"\0") if root]
        is_clean = sum(_remove_noted(root, staging_name(operation)) for root in roots) == len(roots)
        return None, forget(store.state, operation) and is_clean
    with Sites(store.state, journal.staging) as sites:
        gone = _open_roots(sites, journal)
        if journal.end is not None:
            return finish(store, journal), remove_staging(sites, journal.staging, gone)
        recorded = roll_back(store, sites, journal, gone)
        return recorded, remove_staging(sites, journal.staging, gone) and tidy_up(store.state, recorded)


def _remove_noted(root: bytes, staging: bytes) -> bool:
    """Remove what was staged in a root before there was a journal; tell whether it is gone."""
    try:
        fd = open_root(root)
    except RootRefused:
        return True
    try:
        return remove_tree(b"/proc/self/fd/%d/%s" % (fd, staging))
    finally:
        os.close(fd)


def _open_roots(sites: Sites, journal: Journal) -> set[int]:
    """Open the roots that are still the same directories; return the indices of the others."""
    roots: list[bytes] = []
    gone: set[int] = set()
    for index, (root, (_device, inode)) in enumerate(zip(journal.operation.roots, journal.identities, strict=True)):
        try:
            found = os.lstat(root)
        except OSError:
            found = None
        # By the inode alone: on some filesystems the device has another number after a reboot
        is_same = found is not None and found.st_ino == inode
        if not is_same:
            gone.add(index)
        # A stand-in, so that the others keep their numbers; no step of it is looked at
        roots.append(root if is_same else sites.state + b"/empty")
    try:
        sites.open_roots(roots, patience_s=5.0)
    except RootRefused:
        return set(range(len(roots)))
    return gone
