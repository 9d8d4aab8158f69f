# SPDX-License-Identifier: Apache-2.0
"""The store: opens the state directory's database, checks its version, and has one attribute per table.

Several threads and processes may use one store at once. Opening an existing one costs a connection and one
read; nothing is synchronised to disk per transaction.
"""

from __future__ import annotations

import fcntl
import os
import time

from unspill.errors import StoreDamaged, StoreError, StoreTooNew
from unspill.store.caches import CacheTable
from unspill.store.cells import as_int, as_text
from unspill.store.connection import Connection, Durable
from unspill.store.facts import FactTable
from unspill.store.files import FileTable
from unspill.store.layers import LayerTable
from unspill.store.marks import MarkTable
from unspill.store.migrations import APPLICATION_ID, MIGRATIONS, SIGNED, migrate
from unspill.store.operations import OperationTable
from unspill.store.runs import RunTable
from unspill.store.sandboxes import SandboxTable
from unspill.store.state import check_state_dir, make_parts, make_state_dir, set_aside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

    from unspill.store.grants import GrantTable
    from unspill.store.requests import RequestTable
    from unspill.store.shown import ShownTable
    from unspill.store.traffic import TrafficTable


class Store:
    """All that unspill remembers, by table.

    `with store.transaction:` makes several steps one; `with store.durable:` does so and has them on the disk
    afterwards, whatever happens to the power.
    """

    __slots__ = (
        *("caches", "durable", "facts", "files", "layers", "marks", "operations", "runs", "sandboxes"),
        *("state", "transaction", "_grants", "_requests"),
    )

    def __init__(self, state: bytes, db: Connection) -> None:
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
            from unspill.store.grants import GrantTable

            self._grants = GrantTable(self.transaction)
        return self._grants

    @property
    def requests(self) -> RequestTable:
        """The table of requests."""
        if self._requests is None:
            from unspill.store.requests import RequestTable

            self._requests = RequestTable(self.transaction)
        return self._requests

    @property
    def shown(self) -> ShownTable:
        """The table of what was shown on a terminal."""
        from unspill.store.shown import ShownTable

        return ShownTable(self.transaction)

    @property
    def traffic(self) -> TrafficTable:
        """The table of what went out of runs."""
        from unspill.store.traffic import TrafficTable

        return TrafficTable(self.transaction)

    @classmethod
    def open(cls, state: bytes) -> Self:
        """Open the store of a state directory; make both if there are none.

        Raises:
            StoreTooNew: a newer unspill wrote it.
            StoreDamaged: the file is not a database.
            StoreError: the directory is not ours alone, or can't be used.
        """
        path = state + b"/store.db"
        if not check_state_dir(state) or not os.path.exists(path):
            make_state_dir(state)
            check_state_dir(state)
            _make_private_file(path)
        db = Connection(path)
        version = _version(db)
        if version < len(MIGRATIONS):
            _upgrade(db, state)
        elif version > len(MIGRATIONS):
            raise StoreTooNew(f"{os.fsdecode(path)} has version {version}, this unspill knows {len(MIGRATIONS)}.")
        else:
            _refuse_foreign(db, version)
        return cls(state, db)

    def check(self) -> None:
        """Read the whole database once; slow, for those who doubt it.

        Raises:
            StoreDamaged: something in it contradicts something else.
        """
        with open(self.transaction.path, "rb") as file:
            # Bytes 18 and 19: from formats of the future SQLite reads, but does not write to them.
            if max(file.read(20)[18:], default=0) > 2:
                raise StoreDamaged(f"{os.fsdecode(self.transaction.path)} has a format that SQLite does not know.")
        rows = self.transaction.rows("PRAGMA integrity_check(1)")
        if rows != [("ok",)]:
            raise StoreDamaged(f"{os.fsdecode(self.transaction.path)} is damaged: {as_text(rows[0][0])}.")
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


def set_database_aside(state: bytes) -> bytes:
    """Give the database another name, under which SQLite can still open it; return that."""
    path, aside = state + b"/store.db", b"%b/store.db.damaged-%d" % (state, time.time_ns())
    lock = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The log last: beside a database that is new SQLite takes it for a left-over.
        for suffix in (b"", b"-wal", b"-shm"):
            if os.path.lexists(path + suffix):
                os.rename(path + suffix, aside + suffix)
    finally:
        os.close(lock)
    return aside


def _version(db: Connection) -> int:
    return as_int(db.rows("PRAGMA user_version")[0][0])


def _refuse_foreign(db: Connection, version: int) -> None:
    """Refuse a database that another program made, before anything is written to it."""
    if version >= SIGNED:
        is_ours = db.rows("PRAGMA application_id") == [(APPLICATION_ID,)]
    else:
        tables = {row[0] for row in db.rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
        is_ours = "sandboxes" in tables if version else not tables
    if not is_ours:
        raise StoreDamaged(f"{os.fsdecode(db.path)} is not a store of unspill.")


def _make_private_file(path: bytes) -> None:
    # SQLite gives the log beside the database the database's mode; by itself it would make all of them 0644.
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
    finally:
        os.close(fd)


def _upgrade(db: Connection, state: bytes) -> None:
    """Choose the journal and run the missing migrations; of several processes, one does it."""
    lock = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # SQLite's own waiting does not cover a change of the journal's mode.
        fcntl.flock(lock, fcntl.LOCK_EX)
        version = _version(db)
        _refuse_foreign(db, version)
        make_parts(state)
        if version == 0:
            _choose_journal(db)
            # Without rows the next sweep would take the layers of a database that is gone for garbage.
            set_aside(state, os.listdir(os.fsdecode(state + b"/layers")))
        if version < len(MIGRATIONS):
            migrate(db, version)
    finally:
        os.close(lock)


def _choose_journal(db: Connection) -> None:
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
