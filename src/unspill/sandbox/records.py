# SPDX-License-Identifier: Apache-2.0
"""Records of files and names of backups, read off the journals of operations when somebody asks.

A file has a record from the first operation that touches it. The first version of a file that is displaced on a day is
found under the name `{id}-{YY-MM-DD}-{basename}`; every other displaced version is found by its operation. A name is a
row, not a copy: the backup itself lies where its operation put it.
"""

from __future__ import annotations

import os
import time

from unspill.apply.journal import journal_file, read_journal
from unspill.apply.steps import matches
from unspill.host.dirfd import Beneath
from unspill.record import Record
from unspill.store.operations import BackupRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from unspill.apply.journal import Journal
    from unspill.model.operation import Entry, Operation, Step
    from unspill.store.db import Store
    from unspill.store.operations import FileRow

    Whereabouts = Literal["kept", "live", "gone"]

LONGEST_NAME = 255

_FILES = ("file", "symlink")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Backup(Record):
    """A displaced version of a file by its name.

    kept: it lies at `path`. live: an undo gave it back to the live tree, so it is what the project has. gone: neither;
    its operation was pruned, or something else was put there.
    """

    row: BackupRow
    where: Whereabouts
    path: bytes


def catch_up(store: Store, project: bytes) -> int:
    """Bring the records of a project up to date with its operations; return how many of them were new."""
    folded = 0
    for operation in store.operations.unrecorded(project):
        journal = find_journal(store.state, operation)
        with store.transaction:
            if not store.operations.claim(operation.id):
                continue
            folded += 1
            if journal is not None and operation.ending == "done":
                _fold(store, operation, journal)
    return folded


def files_of(store: Store, project: bytes, *, with_deleted: bool = False) -> tuple[FileRow, ...]:
    """Return the records of a project by root and path, those of deleted files only where they are asked for."""
    catch_up(store, project)
    return store.files.of_project(project, with_deleted=with_deleted)


def backups_of(store: Store, file: FileRow) -> tuple[Backup, ...]:
    """Return the named backups of a file, the newest first."""
    with _beneath(store.state + b"/operations") as places:
        return tuple(_look_up(store, places, file, row) for row in store.files.backups_of(file.id))


def find_journal(state: bytes, operation: Operation) -> Journal | None:
    """Return the journal of an operation, None where it is gone, was never ended or can't be read."""
    try:
        journal = read_journal(journal_file(state, operation.id))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if journal is None or journal.end is None else journal


def backup_name(file: int, at_ns: int, path: bytes) -> bytes:
    """Return the name of the first version that is displaced on a day: the person's own day, not that of UTC."""
    day = time.strftime("%y-%m-%d", time.localtime(at_ns // 1_000_000_000)).encode()
    return (b"%d-%b-%b" % (file, day, os.path.basename(path)))[:LONGEST_NAME]


def _fold(store: Store, operation: Operation, journal: Journal) -> None:
    assert journal.end is not None
    for index in journal.end.done:
        step = journal.steps[index]
        before, after = _as_file(step.before), _as_file(step.after) if step.action == "put" else None
        if step.action != "set_metadata" and (before or after):
            _fold_step(store, operation, step, before, after)


def _as_file(entry: Entry | None) -> Entry | None:
    return entry if entry is not None and entry.kind in _FILES else None


def _fold_step(store: Store, operation: Operation, step: Step, before: Entry | None, after: Entry | None) -> None:
    known = after or before
    assert known is not None
    project, root = operation.project, operation.roots[step.root]
    file = store.files.put(project, root, step.path, known.mtime_ns, is_deleted=after is None)
    if before is None:
        return
    name = backup_name(file.id, operation.at_ns, step.path)
    store.files.add_backup(
        BackupRow(
            name=name,
            file=file.id,
            operation=operation.id,
            place=step.backup,
            recorded_ns=operation.at_ns,
            # The inode of a copy is not the one that was displaced
            entry=before.replace(inode=0) if step.staged else before,
            digest=step.digest,
        )
    )
    if file.last_approved_copy_path != name:
        store.files.change(file.replace(last_approved_copy_path=name))


def _beneath(path: bytes) -> Beneath:
    return Beneath(os.open(path, _DIRECTORY))


def _look_up(store: Store, places: Beneath, file: FileRow, row: BackupRow) -> Backup:
    path = b"%b/operations/%b" % (store.state, row.place)
    if is_kept(places, row):
        return Backup(row=row, where="kept", path=path)
    try:
        with _beneath(file.root) as live:
            found = live.find(file.path)
    except OSError:
        found = None
    if found is not None and matches(found, row.entry):
        return Backup(row=row, where="live", path=os.path.join(file.root, file.path))
    return Backup(row=row, where="gone", path=path)


def is_kept(places: Beneath, row: BackupRow) -> bool:
    """Tell whether a backup lies where it was put; `places` is the directory of operations."""
    try:
        found = places.find(row.place)
    except OSError:
        return False
    if found is None:
        return False
    entry = row.entry if row.entry.inode else row.entry.replace(inode=found.st_ino, mode=found.st_mode & 0o7777)
    return matches(found, entry)
