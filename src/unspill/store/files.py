# SPDX-License-Identifier: Apache-2.0
"""The tables of files that operations have touched and of the names of their backups.

A projection of the journals: losing it loses names, never content. What the columns mean when is decided above.
"""

from __future__ import annotations

from unspill.errors import StoreDamaged
from unspill.model.operation import Entry, OperationId
from unspill.model.record import Record
from unspill.store.cells import as_blob, as_id, as_int, as_unsigned, to_signed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.change import EntryKind
    from unspill.store.cells import Cell, Row
    from unspill.store.connection import Database

ENTRY_KINDS: tuple[EntryKind, ...] = ("file", "dir", "symlink", "special")

_FILE = "id, project, root, path, last_modified, is_deleted, last_approved_copy_path"
_BACKUP = "name, file, operation, place, recorded_ns, kind, mode, inode, size, mtime_ns, digest"


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


class FileTable:
    """Files by project, root and path; backups by name."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    def find(self, project: bytes, root: bytes, path: bytes) -> FileRow | None:
        """Return the record of a file."""
        sql = f"SELECT {_FILE} FROM files WHERE project = ? AND root = ? AND path = ?"
        rows = self._db.rows(sql, (project, root, path))
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

    def find_id(self, file: int) -> FileRow | None:
        """Return a record by its id."""
        rows = self._db.rows(f"SELECT {_FILE} FROM files WHERE id = ?", (file,))
        return _to_file(rows[0]) if rows else None

    def remove_backups(self, operations: Iterable[OperationId]) -> None:
        """Forget the names of what operations displaced."""
        self._db.change_each("DELETE FROM backups WHERE operation = ?", [(operation,) for operation in operations])


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
        kind=_to_kind(kind),
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


def _to_kind(cell: Cell) -> EntryKind:
    for kind in ENTRY_KINDS:
        if cell == kind:
            return kind
    raise StoreDamaged(f"The store holds a kind of entry that does not exist: {cell!r}.")
