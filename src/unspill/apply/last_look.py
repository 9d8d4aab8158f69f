# SPDX-License-Identifier: Apache-2.0
"""Look once more at what left the live tree, before that is written down: a program may have been on the way into it.

A displaced directory, or a file whose writers the kernel does not tell, goes back if it was changed since. What else
differs from what the journal says has an edit in it: it is kept with the operation, whose record names the path. What
remains: a process that stops between finding a file and having it open, and goes on after this look, writes to the held
version or the backup, and nobody is told.
"""

from __future__ import annotations

import os
import stat
import time

from unspill.apply.perform import BEING_WRITTEN, CHANGED, explain_error, is_unchanged, misfit, take_back_group
from unspill.apply.places import kept_entry
from unspill.host.libc import syncfs
from unspill.layers.trees import duplicate, remove_tree
from unspill.model.operation import Left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from unspill.apply.sites import Sites
    from unspill.model.operation import Entry, OperationId, Step

# The kernel tells who has a file open, not who has found it and is about to: on a busy machine that took 0.3 ms
_UNDER_WAY_S = 0.02
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WORDS = {
    CHANGED: "you edited it while unspill was changing it; that version is kept in",
    BEING_WRITTEN: "a program had it open while unspill was changing it; what it wrote is kept in",
}
_NOT_KEPT = "you edited it while unspill was changing it; that version could not be kept"


def look_again(
    sites: Sites, steps: Sequence[Step], done: list[int], unsure: Sequence[int]
) -> tuple[list[int], list[Left]]:
    """Take back what displaced an entry that was changed since; return the steps that stay done, and what was left.

    Raises:
        OSError: the filesystem fails: roll back.
    """
    left: dict[int, Left] = {}
    still_done = set(done) if unsure else set()
    for index in reversed(unsure):
        step = steps[index]
        assert step.before is not None
        if index in still_done and not is_unchanged(*sites.place(step), step.before):
            left[step.group] = Left(root=step.root, path=step.path, why="conflict", reason=CHANGED)
    for group in left:
        done = take_back_group(sites, steps, done, group)
    return done, list(left.values())


def wait_for_opens() -> None:
    """Give programs that were opening what has just left the live tree the time to have it open."""
    time.sleep(_UNDER_WAY_S)


def keep_edits(
    sites: Sites, operation: OperationId, steps: Sequence[Step], done: Collection[int], looked_at: Iterable[int]
) -> tuple[str, ...]:
    """Keep what lies at the places of steps and is not what the journal says; return a note for each that names it.

    Raises:
        OSError: the filesystem fails: roll back.
    """
    notes = []
    for index in looked_at:
        step = steps[index]
        reason = _edit_at(sites, step, step.before if index in done else step.after)
        if reason:
            notes.append(_note_of_edit(sites, operation, index, step, reason))
    if notes:
        syncfs(sites.operations.root_fd)
    return tuple(notes)


def note_of(step: Step, words: str, path: bytes | None = None) -> str:
    """Return a sentence about an entry, for a person, that may end with the path of a version of it."""
    from unspill.changes.quote import quote

    return f"{quote(step.path)}: {words}" + (f" {quote(path)}" if path is not None else "")


def _edit_at(sites: Sites, step: Step, expected: Entry | None) -> str | None:
    """Tell what is wrong with what lies at a step's place, if anything does."""
    if step.action == "dress":
        return None
    try:
        dir_fd, name = sites.place(step)
        if expected is not None:
            return misfit(dir_fd, name, expected)
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except OSError as error:
        explain_error(error)
        return None
    return CHANGED


def _note_of_edit(sites: Sites, operation: OperationId, index: int, step: Step, reason: str) -> str:
    try:
        return note_of(step, _WORDS[reason], _keep(sites, operation, index, step))
    except OSError as error:
        return note_of(step, f"{_NOT_KEPT}: {explain_error(error)[1]}")


def _keep(sites: Sites, operation: OperationId, index: int, step: Step) -> bytes:
    """Keep what lies at a step's place for as long as the operation is remembered; return its path.

    It stays the same file, so what is written to it later is there as well. Only from another mount, where the place is
    about to be removed, it is a copy.
    """
    dir_fd, name = sites.place(step)
    status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    is_ours = step.after is not None and status.st_ino == step.after.inode
    if not step.staged and (not is_ours or stat.S_ISDIR(status.st_mode)):
        return b"%b/operations/%b" % (sites.state, step.place)
    path = make_kept(sites.state, operation, index)
    if step.staged:
        _copy(dir_fd, name, path)
    else:
        # The layer that it is from goes on holding it, elsewhere
        os.link(name, path, src_dir_fd=dir_fd, follow_symlinks=False)
    return path


def make_kept(state: bytes, operation: OperationId, index: int) -> bytes:
    """Return a path where an entry can be kept, and make the directory that it is in."""
    path = kept_entry(state, operation, index)
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    # A process that died may have kept it before
    remove_tree(path)
    return path


def _copy(dir_fd: int, name: bytes, path: bytes) -> None:
    if not stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
        fd = os.open(os.path.dirname(path), _DIRECTORY)
        try:
            duplicate(name, dir_fd, os.path.basename(path), fd)
        finally:
            os.close(fd)
        return
    os.mkdir(path, 0o700)
    fd = os.open(name, _DIRECTORY, dir_fd=dir_fd)
    try:
        for inner in os.listdir(fd):
            _copy(fd, os.fsencode(inner), path + b"/" + os.fsencode(inner))
    finally:
        os.close(fd)
