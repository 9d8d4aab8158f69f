# SPDX-License-Identifier: Apache-2.0
"""Restore one file from a backup: an operation like any other, so it can be undone. The backup stays where it is."""

from __future__ import annotations

import errno
import os

from unspill.apply.operate import Task, operate
from unspill.apply.staging import digest_entry
from unspill.apply.steps import entry_of, matches
from unspill.errors import UsageError
from unspill.host.dirfd import Beneath
from unspill.model.operation import Metadata, Step
from unspill.policy.paths import show
from unspill.record import Record
from unspill.sandbox.operations import get_operation, steps_of
from unspill.sandbox.records import backups_of, catch_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.apply.draft import Draft
    from unspill.apply.steps import OpenDirs
    from unspill.model.operation import Entry, Operation
    from unspill.sandbox.opening import Opened

LIST = "See `unspill files` and `unspill log` for what there is."
_DIR = 0o040000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ALL = 1_000_000


class _Source(Record):
    """A backup: where it lies below the directory of operations, and what it must be."""

    place: bytes
    entry: Entry
    digest: bytes = b""


def restore_path(opened: Opened, path: bytes, backup: str | None, asked_by: str) -> Operation:
    """Put a displaced version of a file back: a named one, that of an operation (`op7`), or the newest that is kept.

    Raises:
        UsageError: there is no such backup, or a directory is in the way.
    """
    root, inner = _in_root(opened, path)
    source = _find_source(opened, root, inner, backup)
    task = Task(
        kind="restore",
        sandbox=opened.row.id,
        project=opened.project,
        roots=(root,),
        asked_by=asked_by,
        draft=lambda draft, dirs: _draft(draft, dirs, inner, source),
    )
    return operate(opened.store, task)


def _in_root(opened: Opened, path: bytes) -> tuple[bytes, bytes]:
    full = os.path.normpath(os.path.join(opened.project, path))
    for root in opened.roots:
        if full.startswith(root + b"/"):
            return root, full[len(root) + 1 :]
    raise UsageError(f"{os.fsdecode(path)!r} is not inside the project", remedy=LIST)


def _find_source(opened: Opened, root: bytes, path: bytes, backup: str | None) -> _Source:
    if backup is not None and backup.startswith("op") and backup[2:].isdecimal():
        steps = steps_of(opened, get_operation(opened, backup[2:]))
        for step in steps:
            if (
                step.path == path
                and step.before is not None
                and step.before.kind != "dir"
                and step.action != "set_metadata"
            ):
                return _Source(place=step.backup, entry=step.before, digest=step.digest)
        raise UsageError(f"{backup} displaced no {os.fsdecode(path)!r}", remedy=LIST)
    if backup is None:
        return _find_newest(opened, root, path)
    catch_up(opened.store, opened.project)
    file = opened.store.files.find(opened.project, root, path)
    known = [] if file is None else [found for found in backups_of(opened.store, file) if found.where == "kept"]
    rows = [found.row for found in known if found.row.name == os.fsencode(backup)]
    if not rows:
        raise UsageError(f"there is no such backup of {os.fsdecode(path)!r}", remedy=LIST)
    return _Source(place=rows[0].place, entry=rows[0].entry, digest=rows[0].digest)


def _find_newest(opened: Opened, root: bytes, path: bytes) -> _Source:
    """Return the version that was displaced last and still lies where it was put."""
    with Beneath(os.open(opened.store.state + b"/operations", _DIRECTORY)) as places:
        for operation in opened.store.operations.latest(opened.project, _ALL):
            for step in steps_of(opened, operation):
                entry = step.before
                if entry is None or entry.kind == "dir" or step.action == "set_metadata" or step.path != path:
                    continue
                found = places.find(step.backup) if operation.roots[step.root] == root else None
                if found is not None and (step.staged or matches(found, entry)):
                    return _Source(place=step.backup, entry=entry, digest=step.digest)
    raise UsageError(f"there is no backup of {os.fsdecode(path)!r}", remedy=LIST)


def _draft(draft: Draft, dirs: OpenDirs, path: bytes, source: _Source) -> None:
    try:
        fd, name = dirs.operations.parent(source.place)
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        raise UsageError(
            f"{show(path)} has no backup there any more: an undo or a redo has put it back", remedy=LIST
        ) from None
    _verify(fd, name, status, source, draft)
    live = dirs.roots[0]
    group = draft.next_group()
    missing = _make_parents(draft, live, path, group)
    found = None if missing else live.find(path)
    if found is not None and found.st_mode & 0o170000 == _DIR:
        raise UsageError(f"{os.fsdecode(path)!r} is a directory now", remedy="Move it away first.")
    if not missing:
        draft.open_directory(0, path.rpartition(b"/")[0], live)
    place, after = draft.stage(0, fd, name, status, None)
    before = None if found is None else entry_of(found)
    step = Step(root=0, path=path, action="put", group=group, place=place, before=before, after=entry_of(after))
    draft.add(step.replace(staged=draft.is_staged(0)))


def _verify(fd: int, name: bytes, status: os.stat_result, source: _Source, draft: Draft) -> None:
    entry = source.entry
    is_same = matches(status, entry) if entry.inode and not source.digest else status.st_size == entry.size
    if not is_same or (source.digest and digest_entry(fd, name, status, draft.modes) != source.digest):
        raise UsageError("the backup is not what was put there", remedy=LIST)


def _make_parents(draft: Draft, live: Beneath, path: bytes, group: int) -> bool:
    """Add the directories that are missing above a path; tell whether there are any.

    Raises:
        UsageError: something that is no directory, a link perhaps, is where one was.
    """
    missing = []
    above = path.rpartition(b"/")[0]
    try:
        while above and live.find(above) is None:
            missing.append(above)
            above = above.rpartition(b"/")[0]
        live.directory(above)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise UsageError(
            f"{show(path)} can't be restored: a link or a file is where a directory above it was",
            remedy="Move that away first, or undo the operation that put it there.",
        ) from error
    for directory in reversed(missing):
        place, made = draft.stage_directory(0)
        step = Step(root=0, path=directory, action="put", group=group, place=place, after=entry_of(made))
        draft.add(step.replace(staged=draft.is_staged(0)))
        draft.set_metadata_of_new(0, directory, made, Metadata(mode=0o755), group)
    return bool(missing)
