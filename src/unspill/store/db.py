# SPDX-License-Identifier: Apache-2.0
"""The store: opens the state directory's database, checks its version, and has one attribute per table.

Several threads and processes may use one store at once. Opening an existing one costs a connection and one
read; nothing is synchronised to disk per transaction.
"""

from __future__ import annotations

import fcntl
import os

from unspill.errors import StoreDamaged, StoreError, StoreTooNew
from unspill.store.caches import CacheTable
from unspill.store.connection import Database, Durable
from unspill.store.facts import FactTable
from unspill.store.files import FileTable
from unspill.store.layers import LayerTable
from unspill.store.marks import MarkTable
from unspill.store.migrations import MIGRATIONS, migrate, read_version, refuse_foreign
from unspill.store.operations import OperationTable
from unspill.store.runs import RunTable
from unspill.store.sandboxes import SandboxTable
from unspill.store.state import check_state_dir, is_used, make_parts, make_state_dir, remove_manifests

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
