# SPDX-License-Identifier: Apache-2.0
"""Take an operation back that did not reach its end: the live trees and the layers are as they were before it.

Decides from what is there, step by step in reverse, so it may itself be interrupted and begun again. When all steps
are taken back that is recorded, and only then do the layers go back: the steps are not looked at a second time. What
somebody changed since is left alone, named, and the entry that it displaced stays in the operation's directory.
"""

from __future__ import annotations

import os
import stat

from unspill.apply.durable import sync_done
from unspill.apply.loans import end_loan
from unspill.apply.marking import settle_mark
from unspill.apply.moving import close_inside, move_upper
from unspill.apply.perform import take_back
from unspill.apply.places import journal_file, operation_dir
from unspill.host.libc import RENAME_NOREPLACE, renameat2
from unspill.host.writing import sync_directory
from unspill.layers.places import upper_dir
from unspill.layers.remove import remove_tree
from unspill.model.layer import LayerId
from unspill.model.operation import Left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from unspill.apply.journal import Journal
    from unspill.apply.sites import Sites
    from unspill.model.operation import Operation, OperationId, Step
    from unspill.store.db import Store

GONE = "the project's directory is not there any more"


def roll_back(store: Store, sites: Sites, journal: Journal, gone: Collection[int] = ()) -> Operation:
    """Take every step back that was done; return the record of it. Roots that are `gone` are left alone.

    The journal stays: it explains why the entries that were put back have a new ctime.

    Raises:
        OSError: the filesystem fails; the journal stays, and the next start begins again.
        StoreError: it can't be recorded; likewise.
    """
    operation = journal.operation.id
    recorded = store.operations.find(operation)
    if recorded is None:
        left = _take_steps_back(sites, journal, gone)
        marks = tuple(settle_mark(sites, index, journal.steps[::-1]) for index in range(len(sites.roots)))
        ended = journal.operation.replace(ending="rolled back", left=tuple(left), marks=marks)
        with store.durable:
            recorded = store.operations.add(ended)
    end_loan(sites.state, operation)
    give_layers_back(sites.state, operation)
    sync_directory(sites.state + b"/layers")
    return recorded


def _take_steps_back(sites: Sites, journal: Journal, gone: Collection[int]) -> list[Left]:
    left: list[Left] = []
    if journal.git:
        from unspill.apply.git_move import take_git_back

        for git in reversed(journal.git):
            problem = GONE if git.root in gone else take_git_back(sites, git)
            if problem is not None:
                left.append(Left(root=git.root, path=git.top, why="conflict", reason=problem))
    for step in reversed(journal.steps):
        reason = GONE if step.root in gone else take_back(sites, step)
        if reason is not None:
            _keep_displaced(sites, journal, step)
            left.append(Left(root=step.root, path=step.path, why="conflict", reason=reason))
    sync_done(sites, [step for step in journal.steps if step.root not in gone], everything=bool(journal.git))
    return left


def forget(state: bytes, operation: OperationId) -> bool:
    """Remove all of an operation that has changed nothing; the layers that it took go back. Tell whether it is gone.

    Raises:
        OSError: the filesystem fails; the next start begins again.
    """
    journal = journal_file(state, operation)
    if os.path.lexists(journal):
        # Without one nobody looks for steps, of which the layers that go back are a part
        os.unlink(journal)
    end_loan(state, operation)
    give_layers_back(state, operation)
    return remove_tree(operation_dir(state, operation))


def remove_staging(sites: Sites, staging: bytes, gone: Collection[int] = ()) -> bool:
    """Remove the hidden directories that an operation has in roots on other mounts; tell whether all are gone."""
    is_clean = True
    for index, root in enumerate(sites.roots if staging else ()):
        if index not in gone:
            root.forget(staging)
            is_clean &= _remove_from(root.root_fd, staging)
    return is_clean


def _remove_from(root_fd: int, staging: bytes) -> bool:
    path = b"/proc/self/fd/%d" % root_fd
    mode = stat.S_IMODE(os.fstat(root_fd).st_mode)
    if mode & 0o300 == 0o300 or not os.path.lexists(path + b"/" + staging):
        return remove_tree(path + b"/" + staging)
    # The operation itself may have closed the root to its owner
    os.chmod(path, mode | 0o300)
    try:
        return remove_tree(path + b"/" + staging)
    finally:
        os.chmod(path, mode)


def give_layers_back(state: bytes, operation: OperationId) -> None:
    """Make the layers that an operation took layers again; their ids are their names there."""
    trees = operation_dir(state, operation) + b"/tree"
    try:
        names = os.listdir(trees)
    except FileNotFoundError:
        return
    for name in names:
        upper = upper_dir(state, LayerId(name.decode()))
        move_upper(trees + b"/" + name, upper)
        close_inside(upper, state + b"/empty")


def tidy_up(state: bytes, operation: Operation) -> bool:
    """Remove what is of no use any more of an operation that was taken back whole; tell whether all of it is gone."""
    if operation.left:
        return True
    top = operation_dir(state, operation.id)
    names = [name for name in os.listdir(top) if name != b"journal"]
    return sum(remove_tree(top + b"/" + name) for name in names) == len(names)


def _keep_displaced(sites: Sites, journal: Journal, step: Step) -> None:
    """Move an entry that can't go back out of the layer, which would otherwise show it as the command's own."""
    if step.staged or step.before is None or not step.place or b"/tree/" not in step.place:
        return
    try:
        fd, name = sites.operations.parent(step.place)
        if step.after is not None and os.stat(name, dir_fd=fd, follow_symlinks=False).st_ino == step.after.inode:
            return
        kept = operation_dir(sites.state, journal.operation.id) + b"/kept"
        os.makedirs(kept, 0o700, exist_ok=True)
        kept_fd = sites.operations.directory(journal.operation.id.encode() + b"/kept")
        renameat2(fd, name, kept_fd, b"%d" % step.group, RENAME_NOREPLACE)
    except FileNotFoundError:
        return
