# SPDX-License-Identifier: Apache-2.0
"""Take an operation back that did not reach its end: the live trees and the layers are as they were before it.

Decides from what is there, step by step in reverse, so it may itself be interrupted and begun again. When all steps
are taken back that is recorded, and only then do the layers go back: the steps are not looked at a second time. What
somebody changed since is left alone, and the record names the path where the entry that it displaced is kept.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.apply.durable import sync_done
from unspill.apply.last_look import keep_edits, make_kept, note_of, wait_for_opens
from unspill.apply.loans import end_loan
from unspill.apply.marking import settle_mark
from unspill.apply.moving import close_inside, move_upper
from unspill.apply.perform import CHANGED, explain_error, take_back
from unspill.apply.places import journal_file, kept_entry, operation_dir
from unspill.host.writing import sync_directory
from unspill.layers.locks import upper_dir
from unspill.layers.trees import remove_tree
from unspill.model.layer import LayerId
from unspill.model.operation import Left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from unspill.apply.journal import Journal
    from unspill.apply.sites import Sites
    from unspill.model.operation import GitStep, Operation, OperationId, Step
    from unspill.store.db import Store

GONE = "the project's directory is not there any more"
_BEFORE = "what was there before is kept in"


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
        sites.look_anew()
        _remove_residues(sites.state, operation)
        left, notes = _take_steps_back(sites, journal, gone)
        marks = tuple(settle_mark(sites, index, journal.steps[::-1]) for index in range(len(sites.roots)))
        ended = journal.operation.replace(ending="rolled back", left=tuple(left), marks=marks, notes=tuple(notes))
        with store.durable:
            recorded = store.operations.add(ended)
    end_loan(sites.state, operation)
    give_layers_back(sites.state, operation)
    sync_directory(sites.state + b"/layers")
    return recorded


def _remove_residues(state: bytes, operation: OperationId) -> None:
    """Remove what would have been held. Its files are links to those that go back, whose ctime this changes.

    So it is done before the marks are taken that explain a new ctime, and not at the end.
    """
    path = operation_dir(state, operation) + b"/residue"
    if not remove_tree(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)


def _take_steps_back(sites: Sites, journal: Journal, gone: Collection[int]) -> tuple[list[Left], list[str]]:
    """Take the steps back; return what was left, and where what they displaced or somebody edited is kept."""
    left: list[Left] = []
    notes: list[str] = []
    if journal.git:
        from unspill.apply.git_move import take_git_back

        for git, files in reversed([*_numbered_files(journal)]):
            is_kept = any(_is_kept(sites, journal, index, step) for index, step in files)
            problem = GONE if git.root in gone else CHANGED if is_kept else take_git_back(sites, git)
            if problem is not None:
                for index, step in files:
                    notes += _keep_displaced(sites, journal, index, step)
                left.append(Left(root=git.root, path=git.top, why="conflict", reason=problem))
    steps = journal.steps
    stays: set[int] = set()
    for index in reversed(range(len(steps))):
        step = steps[index]
        is_kept = _is_kept(sites, journal, index, step)
        reason = GONE if step.root in gone else CHANGED if is_kept else take_back(sites, step)
        if reason is not None:
            stays.add(index)
            notes += _keep_displaced(sites, journal, index, step)
            left.append(Left(root=step.root, path=step.path, why="conflict", reason=reason))
    sync_done(sites, [step for step in steps if step.root not in gone], everything=bool(journal.git))
    wait_for_opens()
    # What stays displaced has its note, but on another mount its place is about to be removed
    looked_at = [
        index for index, step in enumerate(steps) if step.root not in gone and (index not in stays or step.staged)
    ]
    return left, [*notes, *keep_edits(sites, journal.operation.id, steps, stays, looked_at)]


def _numbered_files(journal: Journal) -> Iterator[tuple[GitStep, list[tuple[int, Step]]]]:
    """Yield what is done to each repository, and its steps for files with numbers that no other step has."""
    count = len(journal.steps)
    for git in journal.git:
        files = () if git.move is None else git.move.files
        yield git, [*enumerate(files, count)]
        count += len(files)


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
    if operation.left or operation.notes:
        return True
    top = operation_dir(state, operation.id)
    names = [name for name in os.listdir(top) if name != b"journal"]
    return sum(remove_tree(top + b"/" + name) for name in names) == len(names)


def _is_kept(sites: Sites, journal: Journal, index: int, step: Step) -> bool:
    """Tell whether a rollback that was interrupted has moved away what a step displaced."""
    return (
        step.before is not None
        and not step.staged
        and os.path.lexists(kept_entry(sites.state, journal.operation.id, index))
        and _find_displaced(sites, step) is None
    )


def _keep_displaced(sites: Sites, journal: Journal, index: int, step: Step) -> list[str]:
    """Say where an entry is that can't go back. It leaves the layer, which would otherwise show it as the command's."""
    operation = journal.operation.id
    if step.action == "dress" or step.before is None:
        return []
    path = b"%b/operations/%b" % (sites.state, step.backup)
    found = _find_displaced(sites, step)
    if found is None:
        path = kept_entry(sites.state, operation, index)
        if step.staged or not os.path.lexists(path):
            return []
    elif step.after is not None and found.st_ino == step.after.inode:
        return []
    elif not step.staged and b"/tree/" in step.place:
        fd, name = sites.place(step)
        path = make_kept(sites.state, operation, index)
        os.rename(name, path, src_dir_fd=fd)
    return [note_of(step, _BEFORE, path)]


def _find_displaced(sites: Sites, step: Step) -> os.stat_result | None:
    try:
        fd, name = sites.place(step)
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except OSError as error:
        explain_error(error)
        return None
