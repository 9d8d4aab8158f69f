# SPDX-License-Identifier: Apache-2.0
"""Do steps and take them back: the code that writes into a live tree. `git_move` moves a repository by it.

Each step is one rename by directory descriptors that either happens or does not. What came out is compared with what
was expected, and put back if it is something else. A step that can't be done is left out; the others go on. Before the
operation ends, what left the live tree is looked at once more: a program may have been on the way into it.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from unspill.apply.journal import kept_entry
from unspill.apply.staging import change_metadata, has_metadata, was_between
from unspill.apply.steps import entry_of, matches
from unspill.host.dirfd import has_writers
from unspill.host.libc import RENAME_EXCHANGE, RENAME_NOREPLACE, renameat2, syncfs
from unspill.layers.trees import duplicate, remove_tree
from unspill.model.operation import Skipped
from unspill.policy.paths import quote
from unspill.progress import COUNT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from unspill.apply.steps import OpenDirs
    from unspill.model.operation import Entry, Metadata, OperationId, Step, Why


CHANGED = "it has changed since"
BEING_WRITTEN = "a program has it open for writing"
NOT_EMPTY = "the directory is not empty"
OCCUPIED = "something else is there now"
UNSURE = ""
# What is wrong with one entry. Anything else (a full or failing disk) ends the operation, which is then rolled back.
_OF_THE_ENTRY: dict[int, tuple[Why, str]] = {
    errno.ENOENT: ("conflict", "it no longer exists"),
    errno.EEXIST: ("conflict", OCCUPIED),
    errno.ENOTDIR: ("conflict", "a directory above it is no longer a directory"),
    errno.ELOOP: ("conflict", "a directory above it is now a symlink"),
    errno.ENOTEMPTY: ("conflict", NOT_EMPTY),
    errno.EXDEV: ("refused", "it is on a different mount than the project"),
    errno.EACCES: ("refused", "you don't have permission to change its directory"),
    errno.EPERM: ("refused", "the filesystem does not allow it"),
    errno.EROFS: ("refused", "it is on a read-only filesystem"),
    errno.EBUSY: ("refused", "it is in use as a mount point"),
    errno.ETXTBSY: ("refused", "a program is running from it"),
    errno.ENAMETOOLONG: ("refused", "its name is too long for the filesystem"),
    errno.EINVAL: ("refused", "the filesystem can't store it"),
}
# So often somebody may be faster than us, until what is live then stays
_SWAPS = 16
# The kernel tells who has a file open, not who has found it and is about to: on a busy machine that took 0.3 ms
_UNDER_WAY_S = 0.02
# `syncfs` waits for everybody's dirty data, which takes longer than one fsync; a thousand fsyncs take longer still
_FEW = 48
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_KEPT_WORDS = {
    CHANGED: "you edited it while unspill was changing it; that version is kept in",
    BEING_WRITTEN: "a program had it open while unspill was changing it; what it wrote is kept in",
}
_NOT_KEPT = "you edited it while unspill was changing it; that version could not be kept"


class Unfit(Exception):
    """A step met something else than it expects; nothing of it remains done.

    Except where what it displaced `stays` displaced, because by now something newer is in its place.
    """

    def __init__(self, reason: str, *, stays: bool = False) -> None:
        super().__init__(reason)
        self.stays = stays


def explain_error(error: OSError) -> tuple[Why, str]:
    """Return what an error of the filesystem says about one entry.

    Raises:
        OSError: it says nothing about one entry: the disk is full, or fails.
    """
    if error.errno not in _OF_THE_ENTRY:
        raise error
    return _OF_THE_ENTRY[error.errno]


def perform(
    dirs: OpenDirs, steps: Sequence[Step], unsure: list[int] | None = None, left_out: Collection[int] = ()
) -> tuple[list[int], list[Skipped]]:
    """Do the steps in order; return the indices of those done, and what was skipped for which reason.

    The indices of steps whose displaced entry somebody may still change are added to `unsure`. Groups that are
    `left_out` are not done, without a word.

    Raises:
        OSError: the filesystem fails. The steps done so far stay done: roll back.
    """
    done: list[int] = []
    skipped: list[Skipped] = []
    failed: set[int] = set(left_out)
    unsure = [] if unsure is None else unsure
    for index, step in enumerate(steps):
        COUNT.done += 1
        if step.group in failed:
            continue
        stays = False
        try:
            if not do_step(dirs, step):
                unsure.append(index)
        except Unfit as error:
            why: Why = "conflict"
            reason, stays = str(error), error.stays
        except OSError as error:
            why, reason = explain_error(error)
        else:
            done.append(index)
            continue
        failed.add(step.group)
        done = _take_back_group(dirs, steps, done, step.group)
        if stays:
            done.append(index)
        skipped.append(Skipped(root=step.root, path=step.path, why=why, reason=reason))
    return done, skipped


def do_step(dirs: OpenDirs, step: Step) -> bool:
    """Do a step; tell whether what it displaced can't be changed any more by those who were on the way into it."""
    if step.action == "put" and step.before is not None:
        return _exchange(dirs, step)
    if step.action == "take":
        return _take(dirs, step)
    if step.action == "set_metadata":
        _set_metadata(dirs, step)
    else:
        renameat2(*dirs.place(step), *dirs.live(step), RENAME_NOREPLACE)
    return True


def take_back(dirs: OpenDirs, step: Step) -> str | None:
    """Undo a step if it was done and nobody changed its entry since; tell why not, where that can't be.

    Decides by what is there alone, so it may be repeated, and called for steps that were never done.

    Raises:
        OSError: the filesystem fails.
    """
    try:
        if step.action == "set_metadata":
            return _reset_metadata(dirs, step)
        if step.action == "take":
            return _give_back(dirs, step)
        return _put_back(dirs, step)
    except OSError as error:
        return explain_error(error)[1]


def problem_of_taking_back(dirs: OpenDirs, step: Step) -> str | None:
    """Tell why a put or a take that was done can't be taken back as things are; None where it can, or was not done.

    A directory that has to stay because something is in it is no reason.

    Raises:
        OSError: the filesystem fails.
    """
    try:
        if not _is_begun(step, _find(*dirs.place(step))):
            return None
        live_fd, name = dirs.live(step)
        if step.action == "take":
            return None if _find(live_fd, name) is None else _OF_THE_ENTRY[errno.EEXIST][1]
        assert step.after is not None
        return None if step.after.kind == "dir" else misfit(live_fd, name, step.after) or None
    except OSError as error:
        if step.action == "take" and error.errno == errno.ENOENT:
            # The directory that it goes back to was taken too, and goes back before it
            return None
        return explain_error(error)[1]


def misfit(dir_fd: int, name: bytes, expected: Entry) -> str | None:
    """Tell what is wrong with an entry that was displaced: nothing, or an empty text where that may change."""
    is_file = expected.kind == "file"
    is_open = has_writers(dir_fd, name) if is_file else None
    # In this order: a program that writes and closes the file in between would be missed by both
    if not is_unchanged(dir_fd, name, expected):
        return CHANGED
    if is_open:
        return BEING_WRITTEN
    return UNSURE if is_open is None and (is_file or expected.kind == "dir") else None


def is_unchanged(dir_fd: int, name: bytes, displaced: Entry) -> bool:
    """Tell whether a displaced entry is as it was when it was displaced."""
    status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    return matches(status, displaced) and (displaced.kind != "dir" or _is_empty(dir_fd, name))


def look_again(
    dirs: OpenDirs, steps: Sequence[Step], done: list[int], unsure: Sequence[int]
) -> tuple[list[int], list[Skipped]]:
    """Take back what displaced an entry that was changed since; return the steps that stay done, and what was skipped.

    Raises:
        OSError: the filesystem fails: roll back.
    """
    skipped: dict[int, Skipped] = {}
    still_done = set(done) if unsure else set()
    for index in reversed(unsure):
        step = steps[index]
        assert step.before is not None
        if index in still_done and not is_unchanged(*dirs.place(step), step.before):
            skipped[step.group] = Skipped(root=step.root, path=step.path, why="conflict", reason=CHANGED)
    for group in skipped:
        done = _take_back_group(dirs, steps, done, group)
    return done, list(skipped.values())


def wait_for_opens() -> None:
    """Give programs that were opening what has just left the live tree the time to have it open."""
    time.sleep(_UNDER_WAY_S)


def keep_edits(
    dirs: OpenDirs, operation: OperationId, steps: Sequence[Step], done: Collection[int], looked_at: Iterable[int]
) -> tuple[str, ...]:
    """Keep what lies at the places of steps and is not what the journal says; return a note for each that names it.

    What remains: a process that stops between finding a file and having it open, and goes on after this look, writes to
    the held version or the backup, and nobody is told.

    Raises:
        OSError: the filesystem fails: roll back.
    """
    notes = []
    for index in looked_at:
        step = steps[index]
        reason = _edit_at(dirs, step, step.before if index in done else step.after)
        if reason:
            notes.append(_note_of_edit(dirs, operation, index, step, reason))
    if notes:
        syncfs(dirs.operations.root_fd)
    return tuple(notes)


def make_kept(state: bytes, operation: OperationId, index: int) -> bytes:
    """Return a path where an entry can be kept, and make the directory that it is in."""
    path = kept_entry(state, operation, index)
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    # A process that died may have kept it before
    remove_tree(path)
    return path


def note_of(step: Step, words: str, path: bytes | None = None) -> str:
    """Return a sentence about an entry, for a person, that may end with the path of a version of it."""
    return f"{quote(step.path)}: {words}" + (f" {quote(path)}" if path is not None else "")


def sync_staged(dirs: OpenDirs, steps: Sequence[Step], *, everything: bool = False) -> None:
    """Make the content of everything that will be put durable, before anything is said to be going to happen.

    With `everything` what else was staged, too.
    """
    if everything:
        _sync_filesystems(dirs)
        return
    puts = [step for step in steps if step.action == "put"]
    kept = [step for step in steps if step.kept]
    if len(puts) + len(kept) > _FEW or not all(sync_file(*dirs.place(step)) for step in puts):
        _sync_filesystems(dirs)
    elif not all(sync_file(*dirs.operations.parent(step.kept)) for step in kept):
        syncfs(dirs.operations.root_fd)


def sync_done(dirs: OpenDirs, steps: Sequence[Step], *, everything: bool = False) -> None:
    """Make renames and changes of directories durable, on both sides; with `everything` what else there is, too."""
    changed = None if everything else _changed_directories(steps)
    if changed is None:
        _sync_filesystems(dirs)
        return
    try:
        for root, path in changed:
            os.fsync((dirs.operations if root is None else dirs.roots[root]).directory(path))
    except OSError as error:
        # Directories for look-ups only can't be synchronised, and one that was taken away is not there any more
        if error.errno not in (errno.EBADF, errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EINVAL):
            raise
        _sync_filesystems(dirs)


def _take_back_group(dirs: OpenDirs, steps: Sequence[Step], done: list[int], group: int) -> list[int]:
    """Take the steps of one group back; return those that stay done."""
    kept = []
    for index in reversed(done):
        if steps[index].group != group or take_back(dirs, steps[index]) is not None:
            kept.append(index)
    return kept[::-1]


def _exchange(dirs: OpenDirs, step: Step) -> bool:
    before = step.before
    assert before is not None
    place_fd, place = dirs.place(step)
    live_fd, name = dirs.live(step)
    renameat2(place_fd, place, live_fd, name, RENAME_EXCHANGE)
    reason = misfit(place_fd, place, before)
    if reason:
        # Somebody was faster than the rename, or is about to write: theirs goes back
        assert step.after is not None
        _swap_back(place_fd, place, live_fd, name, step.after)
        raise Unfit(reason)
    return reason is None


def _swap_back(place_fd: int, place: bytes, live_fd: int, name: bytes, ours: Entry) -> None:
    """Give a displaced entry back; whatever somebody makes of the live one meanwhile is newer and stays.

    Raises:
        Unfit: something newer is in its place.
    """
    put = ours
    for _ in range(_SWAPS):
        theirs = entry_of(os.stat(place, dir_fd=place_fd, follow_symlinks=False))
        try:
            renameat2(place_fd, place, live_fd, name, RENAME_EXCHANGE)
        except OSError as error:
            raise Unfit(explain_error(error)[1], stays=True) from error
        if not misfit(place_fd, place, put):
            break
        # What came out now is newer than what went back
        put = theirs
    if put is not ours:
        is_back = os.stat(place, dir_fd=place_fd, follow_symlinks=False).st_ino == ours.inode
        raise Unfit(CHANGED, stays=not is_back)


def _take(dirs: OpenDirs, step: Step) -> bool:
    before = step.before
    assert before is not None
    place_fd, place = dirs.place(step)
    live_fd, name = dirs.live(step)
    if before.kind == "dir":
        dirs.roots[step.root].forget(step.path)
        if not _is_empty(live_fd, name):
            raise Unfit(NOT_EMPTY)
    renameat2(live_fd, name, place_fd, place, RENAME_NOREPLACE)
    reason = misfit(place_fd, place, before)
    if not reason:
        return reason is None
    try:
        renameat2(place_fd, place, live_fd, name, RENAME_NOREPLACE)
    except OSError as error:
        raise Unfit(explain_error(error)[1], stays=True) from error
    raise Unfit(reason)


def _set_metadata(dirs: OpenDirs, step: Step) -> None:
    before, was, becomes = _metadata_of(step)
    fd = dirs.roots[step.root].directory(b"" if step.path == b"." else step.path)
    if os.fstat(fd).st_ino != before.inode or not has_metadata(fd, was):
        raise Unfit(CHANGED)
    change_metadata(fd, was, becomes)


def _metadata_of(step: Step) -> tuple[Entry, Metadata, Metadata]:
    before, was, becomes = step.before, step.was, step.becomes
    assert before is not None
    assert was is not None
    assert becomes is not None
    return before, was, becomes


def _is_begun(step: Step, there: os.stat_result | None) -> bool:
    """Tell by what lies at its place whether a put or a take was done."""
    if step.action == "take":
        return there is not None
    if step.before is None:
        return there is None
    return there is not None and step.after is not None and there.st_ino != step.after.inode


def _reset_metadata(dirs: OpenDirs, step: Step) -> str | None:
    before, was, becomes = _metadata_of(step)
    try:
        fd = dirs.roots[step.root].directory(b"" if step.path == b"." else step.path)
    except OSError as error:
        # The directory that it is about is not there yet, or what it replaces is back already
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    if os.fstat(fd).st_ino != before.inode:
        return None
    if not was_between(fd, was, becomes):
        return CHANGED
    change_metadata(fd, becomes, was)
    return None


def _give_back(dirs: OpenDirs, step: Step) -> str | None:
    # Whatever is there came out of the live tree, even if it is not what was expected to
    if _find(*dirs.place(step)) is not None:
        renameat2(*dirs.place(step), *dirs.live(step), RENAME_NOREPLACE)
    return None


def _put_back(dirs: OpenDirs, step: Step) -> str | None:
    assert step.after is not None
    place_fd, place = dirs.place(step)
    if not _is_begun(step, _find(place_fd, place)):
        return None
    live_fd, name = dirs.live(step)
    ours = _find(live_fd, name)
    if ours is None or not matches(ours, step.after):
        return CHANGED
    if stat.S_ISDIR(ours.st_mode):
        dirs.roots[step.root].forget(step.path)
        if not _is_empty(live_fd, name):
            return NOT_EMPTY
    flags = RENAME_NOREPLACE if step.before is None else RENAME_EXCHANGE
    renameat2(live_fd, name, place_fd, place, flags)
    reason = misfit(place_fd, place, step.after)
    if not reason:
        return None
    if step.before is None:
        renameat2(place_fd, place, live_fd, name, flags)
        return reason
    try:
        _swap_back(place_fd, place, live_fd, name, step.before)
    except Unfit as error:
        return str(error)
    return reason


def _find(dir_fd: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_empty(dir_fd: int, name: bytes) -> bool:
    """Tell whether a directory is empty; one that can't be read is taken for one that is not."""
    try:
        fd = os.open(name, _DIRECTORY, dir_fd=dir_fd)
    except PermissionError:
        return False
    try:
        with os.scandir(fd) as entries:
            return next(entries, None) is None
    finally:
        os.close(fd)


def _edit_at(dirs: OpenDirs, step: Step, expected: Entry | None) -> str | None:
    """Tell what is wrong with what lies at a step's place, if anything does."""
    if step.action == "set_metadata":
        return None
    try:
        dir_fd, name = dirs.place(step)
        if expected is not None:
            return misfit(dir_fd, name, expected)
        os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except OSError as error:
        explain_error(error)
        return None
    return CHANGED


def _note_of_edit(dirs: OpenDirs, operation: OperationId, index: int, step: Step, reason: str) -> str:
    try:
        return note_of(step, _KEPT_WORDS[reason], _keep(dirs, operation, index, step))
    except OSError as error:
        return note_of(step, f"{_NOT_KEPT}: {explain_error(error)[1]}")


def _keep(dirs: OpenDirs, operation: OperationId, index: int, step: Step) -> bytes:
    """Keep what lies at a step's place for as long as the operation is remembered; return its path.

    It stays the same file, so what is written to it later is there as well. Only from another mount, where the place is
    about to be removed, it is a copy.
    """
    dir_fd, name = dirs.place(step)
    status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    is_ours = step.after is not None and status.st_ino == step.after.inode
    if not step.staged and (not is_ours or stat.S_ISDIR(status.st_mode)):
        return b"%b/operations/%b" % (dirs.state, step.place)
    path = make_kept(dirs.state, operation, index)
    if step.staged:
        _copy_tree(dir_fd, name, path)
    else:
        # The layer that it is from goes on holding it, elsewhere
        os.link(name, path, src_dir_fd=dir_fd, follow_symlinks=False)
    return path


def _copy_tree(dir_fd: int, name: bytes, path: bytes) -> None:
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
            _copy_tree(fd, os.fsencode(inner), path + b"/" + os.fsencode(inner))
    finally:
        os.close(fd)


def _changed_directories(steps: Sequence[Step]) -> set[tuple[int | None, bytes]] | None:
    """Return the directories that steps change, those of our own under None; nothing where there are too many."""
    changed: set[tuple[int | None, bytes]] = set()
    for step in steps:
        changed.add((step.root, step.path.rpartition(b"/")[0]))
        if step.action == "set_metadata":
            changed.add((step.root, step.path.strip(b".")))
        if step.place and not step.staged:
            changed.add((None, step.place.rpartition(b"/")[0]))
        if len(changed) > _FEW:
            return None
    return changed


def _sync_filesystems(dirs: OpenDirs) -> None:
    syncfs(dirs.operations.root_fd)
    for root, is_elsewhere in zip(dirs.roots, dirs.staged, strict=True):
        if is_elsewhere:
            syncfs(root.root_fd)


def sync_file(dir_fd: int, name: bytes) -> bool:
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
