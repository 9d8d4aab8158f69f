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
from unspill.store.cells import as_int
from unspill.store.connection import Connection
from unspill.store.facts import FactTable
from unspill.store.layers import LayerTable
from unspill.store.migrations import MIGRATIONS, migrate
from unspill.store.runs import RunTable
from unspill.store.sandboxes import SandboxTable
from unspill.store.state import check_state_dir, make_state_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self


class Store:
    """All that unspill remembers, by table. `with store.transaction:` makes several steps one."""

    __slots__ = ("caches", "facts", "layers", "runs", "sandboxes", "state", "transaction")

    def __init__(self, state: bytes, db: Connection) -> None:
        self.state = state
        self.transaction = db
        self.sandboxes = SandboxTable(db)
        self.runs = RunTable(db)
        self.layers = LayerTable(db)
        self.caches = CacheTable(db)
        self.facts = FactTable(db)

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
        return cls(state, db)

    def close(self) -> None:
        """Give the connection back. A process that just ends need not do it."""
        self.transaction.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_rest: object) -> None:
        self.close()


def _version(db: Connection) -> int:
    return as_int(db.rows("PRAGMA user_version")[0][0])


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
        if version == 0:
            _choose_journal(db)
            _set_layers_aside(state)
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


def _set_layers_aside(state: bytes) -> None:
    """Keep the layers of a database that is gone: without rows the next sweep would take them for garbage."""
    layers = state + b"/layers"
    if os.listdir(layers):
        os.rename(layers, b"%b/lost-%d" % (state, time.time_ns()))
        os.mkdir(layers, 0o700)
