# SPDX-License-Identifier: Apache-2.0
"""Make what an operation staged and what it did durable: entry by entry for few, the whole filesystem for many.

`syncfs` waits for everybody's dirty data, which for one file takes longer than for that file alone; a thousand fsyncs
take longer than one `syncfs`.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.host.libc import syncfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.apply.sites import Sites
    from unspill.model.operation import Step

FEW = 48


def sync_staged(sites: Sites, steps: Sequence[Step], *, everything: bool = False) -> None:
    """Make the content of everything that will be put durable, before anything is said to be going to happen.

    With `everything` what else was staged, too.
    """
    if everything:
        _sync_filesystems(sites)
        return
    puts = [step for step in steps if step.action == "put"]
    kept = [step for step in steps if step.kept]
    if len(puts) + len(kept) > FEW or not all(_sync_file(*sites.place(step)) for step in puts):
        _sync_filesystems(sites)
    elif not all(_sync_file(*sites.operations.parent(step.kept)) for step in kept):
        syncfs(sites.operations.root_fd)


def sync_done(sites: Sites, steps: Sequence[Step], *, everything: bool = False) -> None:
    """Make renames and changes of directories durable, on both sides; with `everything` what else there is, too."""
    changed = None if everything else _changed_directories(steps)
    if changed is None:
        _sync_filesystems(sites)
        return
    try:
        for root, path in changed:
            os.fsync((sites.operations if root is None else sites.roots[root]).directory(path))
    except OSError as error:
        # Directories for look-ups only can't be synchronised, and one that was taken away is not there any more
        if error.errno not in (errno.EBADF, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EINVAL):
            raise
        _sync_filesystems(sites)


def _changed_directories(steps: Sequence[Step]) -> set[tuple[int | None, bytes]] | None:
    """Return the directories that steps change, those of our own under None; nothing where there are too many."""
    changed: set[tuple[int | None, bytes]] = set()
    for step in steps:
        changed.add((step.root, step.path.rpartition(b"/")[0]))
        if step.action == "dress":
            changed.add((step.root, step.path.strip(b".")))
        if step.place and not step.staged:
            changed.add((None, step.place.rpartition(b"/")[0]))
        if len(changed) > FEW:
            return None
    return changed


def _sync_filesystems(sites: Sites) -> None:
    syncfs(sites.operations.root_fd)
    for root, is_elsewhere in zip(sites.roots, sites.staged, strict=True):
        if is_elsewhere:
            syncfs(root.root_fd)


def _sync_file(dir_fd: int, name: bytes) -> bool:
    """Make one file durable; tell whether that could be done."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError as error:
        # A symlink has nothing but its name; a file that its owner may not read needs the other way
        return error.errno == errno.ELOOP
    try:
        if stat.S_ISREG(os.fstat(fd).st_mode):
            os.fsync(fd)
    finally:
        os.close(fd)
    return True
