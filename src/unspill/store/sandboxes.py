# SPDX-License-Identifier: Apache-2.0
"""The table of sandboxes: a project's path and a name, each pair once.

`device` and `inode` are the project directory's when the sandbox was made; whether another directory at
the same path is still the same project is for the caller to decide.
"""

from __future__ import annotations

import os
import time

from unspill.model.layer import SandboxId
from unspill.model.record import Record
from unspill.store.cells import as_blob, as_id, as_int, as_text, as_unsigned, to_signed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.store.cells import Row
    from unspill.store.connection import Database

_COLUMNS = "id, project, name, device, inode, created_ns"
_ALL = f"{_COLUMNS}, marked"


class SandboxRow(Record):
    """One sandbox as the store keeps it."""

    id: SandboxId
    project: bytes
    name: str
    device: int
    inode: int
    created_ns: int
    marked: bool = False


class SandboxTable:
    """Sandboxes by project and name."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    def get_or_create(self, project: bytes, name: str, device: int, inode: int) -> SandboxRow:
        """Return the sandbox of that project and name, whoever made it first."""
        found = self.find(project, name)
        if found is not None:
            return found
        with self._db:
            self._db.change(
                f"INSERT OR IGNORE INTO sandboxes ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
                (os.urandom(8).hex(), project, name, to_signed(device), to_signed(inode), time.time_ns()),
            )
            made = self.find(project, name)
        assert made is not None
        return made

    def find(self, project: bytes, name: str) -> SandboxRow | None:
        """Return the sandbox of that project and name, if there is one."""
        rows = self._db.rows(f"SELECT {_ALL} FROM sandboxes WHERE project = ? AND name = ?", (project, name))
        return _to_record(rows[0]) if rows else None

    def find_id(self, sandbox: SandboxId) -> SandboxRow | None:
        """Return a sandbox by id."""
        rows = self._db.rows(f"SELECT {_ALL} FROM sandboxes WHERE id = ?", (sandbox,))
        return _to_record(rows[0]) if rows else None

    def all(self) -> tuple[SandboxRow, ...]:
        """Return the sandboxes of all projects."""
        return tuple(map(_to_record, self._db.rows(f"SELECT {_ALL} FROM sandboxes ORDER BY project, name")))

    def of_project(self, project: bytes) -> tuple[SandboxRow, ...]:
        """Return a project's sandboxes by name."""
        rows = self._db.rows(f"SELECT {_ALL} FROM sandboxes WHERE project = ? ORDER BY name", (project,))
        return tuple(map(_to_record, rows))

    def mark(self, sandbox: SandboxId) -> None:
        """Remember that something in the project's top directory marked it as a project."""
        self._db.change("UPDATE sandboxes SET marked = 1 WHERE id = ? AND marked = 0", (sandbox,))

    def is_marked(self, project: bytes, inode: int) -> bool:
        """Tell whether this very directory once had such a mark."""
        found = self._db.rows(
            "SELECT 1 FROM sandboxes WHERE project = ? AND inode = ? AND marked = 1", (project, to_signed(inode))
        )
        return bool(found)

    def move(self, sandbox: SandboxId, device: int, inode: int) -> None:
        """Record that the project's directory is another one from now on."""
        self._db.change(
            "UPDATE sandboxes SET device = ?, inode = ?, marked = 0 WHERE id = ?",
            (to_signed(device), to_signed(inode), sandbox),
        )

    def remove(self, sandbox: SandboxId) -> None:
        """Forget a sandbox of which nothing is left: one that has a run or a layer stays."""
        self._db.change(
            "DELETE FROM sandboxes WHERE id = ? AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.sandbox = sandboxes.id)"
            " AND NOT EXISTS (SELECT 1 FROM layers WHERE layers.sandbox = sandboxes.id)",
            (sandbox,),
        )


def _to_record(row: Row) -> SandboxRow:
    identity, project, name, device, inode, created_ns, marked = row
    return SandboxRow(
        id=SandboxId(as_id(identity)),
        project=as_blob(project),
        name=as_text(name),
        device=as_unsigned(device),
        inode=as_unsigned(inode),
        created_ns=as_int(created_ns),
        marked=bool(as_int(marked)),
    )
