# SPDX-License-Identifier: Apache-2.0
"""The store: all that unspill remembers in its state directory, one attribute per table of the database.

Several threads and processes may use one store at once. Opening an existing one costs a connection and one
read; nothing is synchronised to disk per transaction.
"""

from __future__ import annotations

import fcntl
import os

from unspill.errors import StoreDamaged, StoreError
from unspill.store.connection import Database, Durable, Table, as_text
from unspill.store.layers import CacheTable, LayerTable, MarkTable, SandboxTable
from unspill.store.migrations import migrate, newest_version, read_version, refuse_foreign, refuse_newer
from unspill.store.operations import FileTable, OperationTable
from unspill.store.runs import RunTable, TrafficTable
from unspill.store.state import check_state_dir, is_used, make_parts, make_state_dir, remove_manifests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from unspill.store.permissions import GrantTable, RequestTable, ShownTable


class Store:
    """All that unspill remembers, by table.

    `with store.transaction:` makes several steps one; `with store.durable:` does so and has them on the disk
    afterwards, whatever happens to the power.
    """

    __slots__ = (
        *("caches", "durable", "facts", "files", "layers", "marks", "operations", "runs", "sandboxes"),
        *("state", "traffic", "transaction"),
    )

    def __init__(self, state: bytes, db: Database) -> None:
        self.state = state
        self.transaction = db
        self.durable = Durable(db)
        self.sandboxes = SandboxTable(db)
        self.layers = LayerTable(db)
        self.marks = MarkTable(db)
        self.caches = CacheTable(db)
        self.runs = RunTable(db)
        self.traffic = TrafficTable(db)
        self.operations = OperationTable(db)
        self.files = FileTable(db)
        self.facts = FactTable(db)

    # A run that needs no permission must not pay for the module of these three

    @property
    def grants(self) -> GrantTable:
        """The table of grants."""
        from unspill.store.permissions import GrantTable  # lazy: approvals

        return GrantTable(self.transaction)

    @property
    def requests(self) -> RequestTable:
        """The table of requests."""
        from unspill.store.permissions import RequestTable  # lazy: approvals

        return RequestTable(self.transaction)

    @property
    def shown(self) -> ShownTable:
        """The table of what was shown on a terminal."""
        from unspill.store.permissions import ShownTable  # lazy: approvals

        return ShownTable(self.transaction)

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
        try:
            version = read_version(db)
            refuse_newer(db, version)
            if version < newest_version():
                _upgrade(db, state)
            else:
                refuse_foreign(db, version)
        except BaseException:
            db.close()
            raise
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


class FactTable(Table):
    """A cache of texts by key, for what was found out about the host: losing it costs time, never correctness.

    What the keys and values mean is the caller's business.
    """

    __slots__ = ()

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
        elif version < newest_version():
            from unspill.store.copies import BEFORE_MIGRATION, make_copy  # lazy: upkeep

            make_copy(db, state, BEFORE_MIGRATION)
        if version < newest_version():
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
