# SPDX-License-Identifier: Apache-2.0
"""The tables of operations, of sessions, of the files that operations have touched, and of the names of their backups.

An operation's steps are in its journal, never here; of the paths that it left alone the row keeps the first 1,000.
Files and backups are a projection of the journals: losing them loses names, never content.
"""

from __future__ import annotations

import time

from unspill.errors import StoreDamaged
from unspill.model.operation import Entry, Operation, OperationId, Skipped
from unspill.model.run import RunId
from unspill.record import Record
from unspill.store.connection import (
    Table,
    as_blob,
    as_id,
    as_int,
    as_one_of,
    as_text,
    as_unsigned,
    to_signed,
    to_text,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unspill.model.change import EntryKind
    from unspill.model.operation import Ending, OperationKind, Why
    from unspill.store.connection import Cell, Row, Word


KEPT_LEFTS = 1000
KEPT_PROMPT = 4000
KINDS: tuple[OperationKind, ...] = ("apply", "discard", "undo", "redo", "restore", "edit")
ENDINGS: tuple[Ending, ...] = ("done", "rolled back")
WHYS: tuple[Why, ...] = ("conflict", "held", "refused", "stale", "earlier")
ENTRY_KINDS: tuple[EntryKind, ...] = ("file", "dir", "symlink", "special")
_OPERATION = (
    "id, number, kind, sandbox, project, at_ns, asked_by, ending, reverses, origin, changed,"
    " roots, runs, marks, notes, lefts, session"
)
_FILE = "id, project, root, path, last_modified, is_deleted, last_approved_copy_path"
_BACKUP = "name, file, operation, place, recorded_ns, kind, mode, inode, size, mtime_ns, digest"


# So many are read at first, and if they are not enough, more
_PORTIONS = (40, 1000, 1_000_000)


class OperationTable(Table):
    """Operations by project and number."""

    __slots__ = ()

    def next_number(self, project: bytes) -> int:
        """Return a number that no operation of the project has had or will have."""
        with self._db:
            rows = self._db.rows("SELECT number FROM counters WHERE project = ?", (project,))
            number = as_int(rows[0][0]) + 1 if rows else 1
            self._db.change("INSERT OR REPLACE INTO counters (project, number) VALUES (?, ?)", (project, number))
        return number

    def add(self, operation: Operation) -> Operation:
        """Record an operation unless it is recorded already; return it as it is recorded.

        A number that another one has (its database was lost meanwhile) gives way to the next.
        """
        with self._db:
            found = self.find(operation.id)
            if found is not None:
                return found
            if self.find_number(operation.project, operation.number) is not None:
                operation = operation.replace(number=self.next_number(operation.project))
            sql = f"INSERT INTO operations ({_OPERATION}) VALUES ({', '.join('?' * 17)})"
            self._db.change(sql, _to_cells(operation))
            self._db.change("UPDATE operations SET kept_bytes = NULL WHERE id = ?", (operation.origin,))
            self._db.change(
                "INSERT INTO counters (project, number) VALUES (?, ?)"
                " ON CONFLICT (project) DO UPDATE SET number = max(number, excluded.number)",
                (operation.project, operation.number),
            )
        return operation

    def find(self, operation: OperationId) -> Operation | None:
        """Return an operation by id."""
        rows = self._db.rows(f"SELECT {_OPERATION} FROM operations WHERE id = ?", (operation,))
        return _to_operation(rows[0]) if rows else None

    def find_number(self, project: bytes, number: int) -> Operation | None:
        """Return a project's operation by number."""
        sql = f"SELECT {_OPERATION} FROM operations WHERE project = ? AND number = ?"
        rows = self._db.rows(sql, (project, number))
        return _to_operation(rows[0]) if rows else None

    def latest(self, project: bytes, limit: int) -> tuple[Operation, ...]:
        """Return a project's last operations, the newest first."""
        sql = f"SELECT {_OPERATION} FROM operations WHERE project = ? ORDER BY number DESC LIMIT ?"
        return tuple(map(_to_operation, self._db.rows(sql, (project, limit))))

    def since(self, project: bytes, at_ns: int) -> tuple[Operation, ...]:
        """Return a project's operations from a moment on, the newest first.

        They are counted in the order of their moments, so the search ends at the first that is older.
        """
        found: list[Operation] = []
        for count in _PORTIONS:
            found = list(self.latest(project, count))
            if len(found) < count or found[-1].at_ns < at_ns:
                break
        return tuple(one for one in found if one.at_ns >= at_ns)

    def later(self, project: bytes, number: int) -> tuple[Operation, ...]:
        """Return a project's operations after that number that were done, the oldest first."""
        where = "project = ? AND number > ? AND ending = 'done'"
        sql = f"SELECT {_OPERATION} FROM operations WHERE {where} ORDER BY number"
        return tuple(map(_to_operation, self._db.rows(sql, (project, number))))

    def of_origin(self, origin: OperationId) -> tuple[Operation, ...]:
        """Return an operation and what undid and redid it, as far as that was done."""
        sql = f"SELECT {_OPERATION} FROM operations WHERE origin = ? AND ending = 'done'"
        return tuple(map(_to_operation, self._db.rows(sql, (origin,))))

    def has_later_edits(self, project: bytes, number: int) -> bool:
        """Tell whether another program has changed files of a project since that number, and was recorded."""
        sql = "SELECT 1 FROM operations WHERE project = ? AND number > ? AND kind = 'edit' LIMIT 1"
        return bool(self._db.rows(sql, (project, number)))

    def rolled_back(self, project: bytes) -> tuple[Operation, ...]:
        """Return a project's operations that were taken back because they did not reach their end, the oldest first."""
        sql = f"SELECT {_OPERATION} FROM operations WHERE project = ? AND ending = 'rolled back' ORDER BY number"
        return tuple(map(_to_operation, self._db.rows(sql, (project,))))

    def all(self) -> tuple[Operation, ...]:
        """Return the operations of all projects in the order in which they were recorded."""
        return tuple(map(_to_operation, self._db.rows(f"SELECT {_OPERATION} FROM operations ORDER BY seq")))

    def unrecorded(self, project: bytes) -> tuple[Operation, ...]:
        """Return a project's operations that the records of its files do not know yet, the oldest first."""
        sql = f"SELECT {_OPERATION} FROM operations WHERE project = ? AND NOT is_recorded ORDER BY number"
        return tuple(map(_to_operation, self._db.rows(sql, (project,))))

    def claim(self, operation: OperationId) -> bool:
        """Remember that the records of files know an operation; tell whether they did not before."""
        sql = "UPDATE operations SET is_recorded = 1 WHERE id = ? AND NOT is_recorded"
        return self._db.change(sql, (operation,)) == 1

    def kept_bytes(self) -> dict[str, int]:
        """Return what the directories of operations take on the disk, as far as it was measured."""
        rows = self._db.rows("SELECT id, kept_bytes FROM operations WHERE kept_bytes IS NOT NULL")
        return {as_id(identity): as_int(size) for identity, size in rows}

    def set_kept_bytes(self, sizes: Mapping[OperationId, int]) -> None:
        """Remember what directories of operations take on the disk; an undo or redo makes that unknown again."""
        self._db.change_each(
            "UPDATE operations SET kept_bytes = ? WHERE id = ?", [(size, name) for name, size in sizes.items()]
        )

    def ids(self) -> set[str]:
        """Return every operation's id."""
        return {as_id(row[0]) for row in self._db.rows("SELECT id FROM operations")}

    def remove(self, operations: Iterable[OperationId]) -> None:
        """Forget operations, and the texts that they put; their numbers are not given again."""
        rows = [(operation,) for operation in operations]
        with self._db:
            self._db.change_each("DELETE FROM operations WHERE id = ?", rows)
            self._db.change_each("DELETE FROM texts WHERE owner = ?", rows)


class PromptRow(Record):
    """What a person asked an agent for in a session."""

    session: str
    at_ns: int
    text: str


class SessionTable(Table):
    """Sessions of agents by project and name: they are what runs, operations and prompts have in common."""

    __slots__ = ()

    def add_prompt(self, project: bytes, text: str) -> None:
        """Keep what the person asked for in the session of this connection."""
        cells: tuple[Cell, ...] = (project, self._db.session, time.time_ns(), to_text(text[:KEPT_PROMPT]))
        self._db.change("INSERT INTO prompts (project, session, at_ns, text) VALUES (?, ?, ?, ?)", cells)

    def prompts(self, project: bytes, session: str) -> tuple[PromptRow, ...]:
        """Return what was asked for in a session, the oldest first."""
        sql = "SELECT session, at_ns, text FROM prompts WHERE project = ? AND session = ? ORDER BY seq"
        rows = self._db.rows(sql, (project, session))
        return tuple(PromptRow(session=as_text(name), at_ns=as_int(at), text=as_text(text)) for name, at, text in rows)

    def times(self, project: bytes) -> dict[str, tuple[int, int]]:
        """Return when each session of a project began and when it did something last."""
        rows = self._db.rows(
            "SELECT session, min(at), max(at) FROM ("
            "SELECT session, at_ns AS at FROM operations WHERE project = ?1 AND session != ''"
            " UNION ALL SELECT session, at_ns FROM prompts WHERE project = ?1"
            " UNION ALL SELECT session, started_ns FROM runs WHERE session != '' AND sandbox IN"
            " (SELECT id FROM sandboxes WHERE project = ?1)) GROUP BY session ORDER BY 2",
            (project,),
        )
        return {as_text(name): (as_int(begun), as_int(last)) for name, begun, last in rows}

    def remove_before(self, moment_ns: int) -> None:
        """Forget what was asked for before a moment."""
        self._db.change("DELETE FROM prompts WHERE at_ns < ?", (moment_ns,))


class FileRow(Record):
    """The record of one file. `last_modified` is in nanoseconds; a file that was new has no copy: `b""`."""

    id: int
    project: bytes
    root: bytes
    path: bytes
    last_modified: int
    is_deleted: bool = False
    last_approved_copy_path: bytes = b""


class BackupRow(Record):
    """The name of one displaced version. `place` is relative to the directory of operations.

    A copy, which was made where the inode itself could not be kept, has a digest of its content.
    """

    name: bytes
    file: int
    operation: OperationId
    place: bytes
    recorded_ns: int
    entry: Entry
    digest: bytes = b""


class FileTable(Table):
    """Files by project, root and path; backups by name."""

    __slots__ = ()

    def find(self, project: bytes, root: bytes, path: bytes) -> FileRow | None:
        """Return the record of a file."""
        sql = f"SELECT {_FILE} FROM files WHERE project = ? AND root = ? AND path = ?"
        rows = self._db.rows(sql, (project, root, path))
        return _to_file(rows[0]) if rows else None

    def find_id(self, file: int) -> FileRow | None:
        """Return a record by its id."""
        rows = self._db.rows(f"SELECT {_FILE} FROM files WHERE id = ?", (file,))
        return _to_file(rows[0]) if rows else None

    def of_project(self, project: bytes, *, with_deleted: bool = False) -> tuple[FileRow, ...]:
        """Return a project's records by root and path, those of deleted files only where they are asked for."""
        which = "" if with_deleted else " AND NOT is_deleted"
        sql = f"SELECT {_FILE} FROM files WHERE project = ?{which} ORDER BY root, path"
        return tuple(map(_to_file, self._db.rows(sql, (project,))))

    def projects(self) -> tuple[bytes, ...]:
        """Return the projects that have records."""
        return tuple(as_blob(row[0]) for row in self._db.rows("SELECT DISTINCT project FROM files ORDER BY project"))

    def put(self, project: bytes, root: bytes, path: bytes, last_modified: int, *, is_deleted: bool) -> FileRow:
        """Make or renew the record of a file; its id and its copy stay."""
        with self._db:
            self._db.change(
                "INSERT INTO files (project, root, path, last_modified, is_deleted) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (project, root, path) DO UPDATE SET last_modified = excluded.last_modified,"
                " is_deleted = excluded.is_deleted",
                (project, root, path, last_modified, int(is_deleted)),
            )
            found = self.find(project, root, path)
        assert found is not None
        return found

    def change(self, file: FileRow) -> None:
        """Keep what is new in a record."""
        self._db.change(
            "UPDATE files SET last_modified = ?, is_deleted = ?, last_approved_copy_path = ? WHERE id = ?",
            (file.last_modified, int(file.is_deleted), file.last_approved_copy_path, file.id),
        )

    def remove(self, files: Iterable[int]) -> None:
        """Forget files."""
        self._db.change_each("DELETE FROM files WHERE id = ?", [(file,) for file in files])

    def add_backup(self, backup: BackupRow) -> bool:
        """Give a displaced version a name unless the name is taken; tell whether it was free."""
        entry = backup.entry
        sql = f"INSERT OR IGNORE INTO backups ({_BACKUP}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
        cells: tuple[Cell, ...] = (
            *(backup.name, backup.file, backup.operation, backup.place, backup.recorded_ns),
            *(entry.kind, entry.mode, to_signed(entry.inode), entry.size, entry.mtime_ns, backup.digest),
        )
        return self._db.change(sql, cells) == 1

    def find_backup(self, name: bytes) -> BackupRow | None:
        """Return a backup by its name."""
        rows = self._db.rows(f"SELECT {_BACKUP} FROM backups WHERE name = ?", (name,))
        return _to_backup(rows[0]) if rows else None

    def backups_of(self, file: int) -> tuple[BackupRow, ...]:
        """Return a file's backups, the newest first."""
        sql = f"SELECT {_BACKUP} FROM backups WHERE file = ? ORDER BY recorded_ns DESC"
        return tuple(map(_to_backup, self._db.rows(sql, (file,))))

    def backups_of_operation(self, operation: OperationId) -> tuple[BackupRow, ...]:
        """Return the names of what an operation displaced."""
        sql = f"SELECT {_BACKUP} FROM backups WHERE operation = ? ORDER BY name"
        return tuple(map(_to_backup, self._db.rows(sql, (operation,))))

    def remove_backups(self, operations: Iterable[OperationId]) -> None:
        """Forget the names of what operations displaced."""
        self._db.change_each("DELETE FROM backups WHERE operation = ?", [(operation,) for operation in operations])


def _to_cells(operation: Operation) -> tuple[Cell, ...]:
    notes = operation.notes
    more = len(operation.left) - KEPT_LEFTS
    if more > 0:
        notes = (*notes, f"{more} more paths were skipped")
    return (
        *(operation.id, operation.number, operation.kind, operation.sandbox, operation.project, operation.at_ns),
        *(to_text(operation.asked_by), operation.ending, operation.of, operation.origin, operation.changed),
        b"\0".join(operation.roots),
        " ".join(operation.runs),
        " ".join(map(str, operation.marks)),
        "\0".join(map(_to_line, notes)),
        b"\0".join(map(_to_blob, operation.left[:KEPT_LEFTS])),
        operation.session,
    )


def _to_line(text: str) -> str:
    return to_text(text).replace("\0", " ")


def _to_blob(left: Skipped) -> bytes:
    # No path contains a NUL, and a reason loses them.
    return b"%d\0%b\0%b\0%b" % (left.root, left.path, left.why.encode(), _to_line(left.reason).encode())


def _to_operation(row: Row) -> Operation:
    identity, number, kind, sandbox, project, at_ns, asked_by, ending, reverses, origin, changed, *rest = row
    roots, runs, marks, notes, lefts, session = rest
    return Operation(
        id=OperationId(as_id(identity)),
        number=as_int(number),
        kind=_one_of(KINDS, kind),
        sandbox=as_id(sandbox),
        project=as_blob(project),
        roots=tuple(as_blob(roots).split(b"\0")) if roots else (),
        at_ns=as_int(at_ns),
        asked_by=as_text(asked_by),
        ending=_one_of(ENDINGS, ending),
        of=None if reverses is None else OperationId(as_id(reverses)),
        origin=None if origin is None else OperationId(as_id(origin)),
        runs=tuple(RunId(as_id(run)) for run in as_text(runs).split()),
        marks=tuple(map(_to_int, as_text(marks).split())),
        changed=as_int(changed),
        left=_to_lefts(as_blob(lefts)),
        notes=tuple(as_text(notes).split("\0")) if notes else (),
        session=as_text(session),
    )


def _to_lefts(blob: bytes) -> tuple[Skipped, ...]:
    cells = blob.split(b"\0") if blob else []
    if len(cells) % 4:
        raise StoreDamaged("The store has an incomplete list of paths.")
    return tuple(
        Skipped(
            root=_to_int(root.decode("ascii", "replace")),
            path=path,
            why=_one_of(WHYS, why.decode("ascii", "replace")),
            reason=reason.decode("utf-8", "replace"),
        )
        for root, path, why, reason in zip(*[iter(cells)] * 4, strict=True)
    )


def _to_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise StoreDamaged(f"The store has {text!r} where a number should be.") from None


def _one_of(words: tuple[Word, ...], cell: Cell) -> Word:
    return as_one_of(words, cell, f"The store has {cell!r}, which is none of: {', '.join(words)}.")


def _to_file(row: Row) -> FileRow:
    identity, project, root, path, last_modified, is_deleted, copy = row
    return FileRow(
        id=as_int(identity),
        project=as_blob(project),
        root=as_blob(root),
        path=as_blob(path),
        last_modified=as_int(last_modified),
        is_deleted=bool(as_int(is_deleted)),
        last_approved_copy_path=as_blob(copy),
    )


def _to_backup(row: Row) -> BackupRow:
    name, file, operation, place, recorded_ns, kind, mode, inode, size, mtime_ns, digest = row
    entry = Entry(
        kind=as_one_of(ENTRY_KINDS, kind, f"The store has an unknown kind of entry: {kind!r}."),
        mode=as_int(mode),
        inode=as_unsigned(inode),
        size=as_int(size),
        mtime_ns=as_int(mtime_ns),
    )
    return BackupRow(
        name=as_blob(name),
        file=as_int(file),
        operation=OperationId(as_id(operation)),
        place=as_blob(place),
        recorded_ns=as_int(recorded_ns),
        entry=entry,
        digest=as_blob(digest),
    )
