# SPDX-License-Identifier: Apache-2.0
"""The store: opens the state directory's database, checks its version, and has one attribute per table.

Several threads and processes may use one store at once. Opening an existing one costs a connection and one
read; nothing is synchronised to disk per transaction.

MERGED
[marks] The table of time marks of single paths: what holds for them in place of their layer's own mark.

They go with the layer's row, which `LayerTable.remove` sees to.

[facts] The table of facts: a cache of text by key, for what was found out about the host.

Losing it costs time, never correctness. What the keys and values mean is the caller's business.
"""

from __future__ import annotations

import fcntl
import os

from unspill.errors import StoreDamaged, StoreError, StoreTooNew
from unspill.store.connection import (
    Database,
    Durable,
    as_blob,
    as_int,
    as_text,
)
from unspill.store.layers import CacheTable, LayerTable, SandboxTable
from unspill.store.migrations import (
    MIGRATIONS,
    migrate,
    read_version,
    refuse_foreign,
)
from unspill.store.operations import FileTable, OperationTable
from unspill.store.runs import RunTable
from unspill.store.state import (
    check_state_dir,
    is_used,
    make_parts,
    make_state_dir,
    remove_manifests,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from unspill.model.layer import LayerId
    from unspill.store.permissions import GrantTable, RequestTable, ShownTable
    from unspill.store.runs import TrafficTable


class MarkTable:
    """Marks by layer and path."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    def put(self, layer: LayerId, marks: Mapping[bytes, int]) -> None:
        """Keep the marks of paths, in place of older ones of the same paths."""
        self._db.change_each(
            "INSERT OR REPLACE INTO marks (layer, path, mark_ns) VALUES (?, ?, ?)",
            [(layer, path, mark_ns) for path, mark_ns in marks.items()],
        )

    def of(self, layer: LayerId) -> dict[bytes, int]:
        """Return the marks of a layer's paths that have one of their own."""
        rows = self._db.rows("SELECT path, mark_ns FROM marks WHERE layer = ?", (layer,))
        return {as_blob(path): as_int(mark_ns) for path, mark_ns in rows}


class FactTable:
    """Texts by key."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    def find(self, key: str) -> str | None:
        """Return the value that was put last, or None."""
        rows = self._db.rows("SELECT value FROM facts WHERE key = ?", (key,))
        return as_text(rows[0][0]) if rows else None

    def put(self, key: str, value: str) -> None:
        """Keep a value, in place of an older one."""
        self._db.change("INSERT OR REPLACE INTO facts (key, value) VALUES (?, ?)", (key, value))

    def forget(self) -> None:
        """Remove every value."""
        self._db.change("DELETE FROM facts")


class Store:
    """All that unspill remembers, by table.

    `with store.transaction:` makes several steps one; `with store.durable:` does so and has them on the disk
    afterwards, whatever happens to the power.
    """

    __slots__ = (
        *("caches", "durable", "facts", "files", "layers", "marks", "operations", "runs", "sandboxes"),
        *("state", "transaction", "_grants", "_requests"),
    )

    def __init__(self, state: bytes, db: Database) -> None:
        self.state = state
        self.transaction = db
        self.durable = Durable(db)
        self.sandboxes = SandboxTable(db)
        self.runs = RunTable(db)
        self.layers = LayerTable(db)
        self.caches = CacheTable(db)
        self.facts = FactTable(db)
        self.operations = OperationTable(db)
        self.marks = MarkTable(db)
        self.files = FileTable(db)
        self._grants: GrantTable | None = None
        self._requests: RequestTable | None = None

    # These only when they are asked for: a run that needs no permission must not pay for their modules

    @property
    def grants(self) -> GrantTable:
        """The table of grants."""
        if self._grants is None:
            from unspill.store.permissions import GrantTable

            self._grants = GrantTable(self.transaction)
        return self._grants

    @property
    def requests(self) -> RequestTable:
        """The table of requests."""
        if self._requests is None:
            from unspill.store.permissions import RequestTable

            self._requests = RequestTable(self.transaction)
        return self._requests

    @property
    def shown(self) -> ShownTable:
        """The table of what was shown on a terminal."""
        from unspill.store.permissions import ShownTable

        return ShownTable(self.transaction)

    @property
    def traffic(self) -> TrafficTable:
        """The table of what went out of runs."""
        from unspill.store.runs import TrafficTable

        return TrafficTable(self.transaction)

    @classmethod
    def open(cls, state: bytes) -> Self:
        """Open the store of a state directory; make both if there are none.

        Raises:
            StoreTooNew: a newer unspill wrote it.
            StoreDamaged: the file is not a database, or is missing beside what it should know.
            StoreError: the directory is not ours alone, or can't be used.
        """
        path = state + b"/store.db"
        if not check_state_dir(state) or not os.path.exists(path):
            make_state_dir(state)
            check_state_dir(state)
            _make_private_file(path)
        db = Database(path)
        version = read_version(db)
        if version < len(MIGRATIONS):
            _upgrade(db, state)
        elif version > len(MIGRATIONS):
            raise StoreTooNew(f"{os.fsdecode(path)} has version {version}, this unspill knows {len(MIGRATIONS)}.")
        else:
            refuse_foreign(db, version)
        return cls(state, db)

    def check(self) -> None:
        """Read the whole database once; slow, for those who doubt it.

        Raises:
            StoreDamaged: something in it contradicts something else.
        """
        self.transaction.check()
        for sandbox in self.sandboxes.all():
            self.layers.sealed(sandbox.id)
            self.layers.open(sandbox.id)
        self.runs.unfinished()
        self.caches.ids()
        self.operations.all()
        self.grants.all()

    def close(self) -> None:
        """Give the connection back. A process that just ends need not do it."""
        self.transaction.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_rest: object) -> None:
        self.close()


def _make_private_file(path: bytes) -> None:
    # SQLite gives the log beside the database the database's mode; by itself it would make all of them 0644.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
    finally:
        os.close(fd)


def _upgrade(db: Database, state: bytes) -> None:
    """Choose the journal and run the missing migrations; of several processes, one does it."""
    lock = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # SQLite's own waiting does not cover a change of the journal's mode.
        fcntl.flock(lock, fcntl.LOCK_EX)
        version = read_version(db)
        refuse_foreign(db, version)
        make_parts(state)
        if version == 0:
            if is_used(state):
                raise StoreDamaged(f"{os.fsdecode(db.path)} is missing or empty.")
            _choose_journal(db)
        elif version < len(MIGRATIONS):
            from unspill.store.copies import BEFORE_MIGRATION, make_copy  # lazy: upkeep

            make_copy(db, state, BEFORE_MIGRATION)
        if version < len(MIGRATIONS):
            migrate(db, version)
            remove_manifests(state)
    finally:
        os.close(lock)


def _choose_journal(db: Database) -> None:
    """Use a write-ahead log; where the filesystem can't share memory, SQLite's slower journal."""
    try:
        db.rows("PRAGMA journal_mode = WAL")
        with db:
            return
    except StoreDamaged:
        raise
    except StoreError:
        # The file says that it has such a log, so nobody could open it any more; there is nothing else in it yet.
        db.close()
        os.truncate(db.path, 0)
        db.reopen()
        db.rows("PRAGMA journal_mode = TRUNCATE")
