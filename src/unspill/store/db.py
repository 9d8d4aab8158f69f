# SPDX-License-Identifier: Apache-2.0
"""The store: all that unspill remembers in its state directory, one attribute per table of the database.

Several threads and processes may use one store at once. Opening an existing one costs a connection and one
read; nothing is synchronised to disk per transaction.

The state directory is made for its owner alone, and refused when anyone else could reach into it:

    store.db, -wal, -shm      every record
    copies/                   copies of store.db: of the day, and from before the last migration
    layers/ID/                one upper directory each, with its root's own mode; `layers` keeps others out
    work/ID/                  the work directory of an open layer
    runs/ID/                  output that was too long for a row
    locks/                    one file per sandbox
    operations/ID/            the journal of an operation and what it displaced
    pending/ID                an operation that is under way, or was when its process died
    masks/                    layers of deletions that hide a project's secrets, and repositories as they stand
    bases/ID                  the repository as it stood when the run of a sealed layer began
    empty/                    never written: the second lower of a read-only overlay
    skeletons/                empty directories and files, laid over what a view shows, for mounts
"""

from __future__ import annotations

import fcntl
import os
import stat
import time

from unspill.errors import StoreDamaged, StoreError
from unspill.lazy import lazy_module
from unspill.store.connection import (
    Database,
    Durable,
    Table,
    as_text,
)
from unspill.store.layers import (
    BaseTable,
    CacheTable,
    LayerTable,
    MarkTable,
    SandboxTable,
    TextTable,
)
from unspill.store.migrations import (
    migrate,
    newest_version,
    read_version,
    refuse_foreign,
    refuse_newer,
)
from unspill.store.operations import FileTable, OperationTable, SessionTable
from unspill.store.runs import RunTable, TrafficTable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self

    from unspill.store import permissions, projects
else:
    permissions = lazy_module("unspill.store.permissions")  # lazy: approvals
    projects = lazy_module("unspill.store.projects")  # lazy: upkeep


PARTS = (
    *(b"layers", b"work", b"runs", b"locks", b"copies", b"operations", b"pending", b"masks", b"bases", b"audit"),
    *(b"empty", b"skeletons", b"edits", b"plugins"),
)


def check_state_dir(state: bytes) -> bool:
    """Tell whether the directory exists, and is ours alone.

    Raises:
        StoreError: someone else owns it, may enter it, or it is no directory.
    """
    try:
        found = os.lstat(state)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _refused(
            state, f"can't be read: {error.strerror}", "Point UNSPILL_STATE_DIR at another directory."
        ) from error
    name = os.fsdecode(state)
    if not stat.S_ISDIR(found.st_mode):
        raise _refused(
            state, "is not a directory", "Move it elsewhere, or point UNSPILL_STATE_DIR at another directory."
        )
    if found.st_uid != os.geteuid():
        raise _refused(state, f"belongs to user {found.st_uid}", "Point UNSPILL_STATE_DIR at a directory that you own.")
    if found.st_mode & 0o077:
        raise _refused(state, "can be entered by other users", f"Run: chmod 700 {name}")
    return True


def make_state_dir(state: bytes) -> None:
    """Make the directory and its parts, for the owner alone whatever the umask is.

    Raises:
        StoreError: it can't be made.
    """
    try:
        make_parents(state)
        _make_private(state)
        make_parts(state)
    except OSError as error:
        raise _refused(
            state, f"can't be created: {error.strerror}", "Point UNSPILL_STATE_DIR at another directory."
        ) from error


def make_parts(state: bytes) -> None:
    """Make those parts that are missing: an older unspill knew fewer."""
    for part in PARTS:
        _make_private(os.path.join(state, part))
    # The kernel shows an overlay's root with the mode of its upmost directory.
    os.chmod(os.path.join(state, b"empty"), 0o755)


def mend_parts(state: bytes) -> None:
    """Make the parts again that somebody removed, or that a copy without empty directories does not have.

    What was in them is lost, but nothing else stops.

    Raises:
        StoreError: something else is in the place of one, or it can't be made.
    """
    with os.scandir(state) as entries:
        found = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    for part in PARTS:
        if not found.get(part, True):
            name = os.fsdecode(os.path.join(state, part))
            raise _refused(state, f"is damaged: {name} is not a directory", f"Move it elsewhere: mv {name} {name}.old")
    if not found.keys() >= set(PARTS):
        make_state_dir(state)


def make_parents(path: bytes) -> None:
    """Make the missing directories above a path, for the owner alone: `os.makedirs` leaves them to the umask."""
    missing: list[bytes] = []
    parent = os.path.dirname(path)
    while not os.path.isdir(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)
    for directory in reversed(missing):
        _make_private(directory)


def is_used(state: bytes) -> bool:
    """Tell whether a state directory holds what only a database can explain, or a copy of one."""
    return any(_names(os.path.join(state, part)) for part in (b"layers", b"operations", b"pending", b"copies"))


def set_aside(state: bytes, part: bytes, names: Iterable[str]) -> None:
    """Keep directories of a part that have no row: nothing ever removes `lost-*`."""
    found = [os.fsencode(name) for name in names]
    if not found:
        return
    lost = b"%b/lost-%d" % (state, time.time_ns())
    aside = os.path.join(lost, part)
    _make_private(lost)
    _make_private(aside)
    for name in found:
        try:
            _move(os.path.join(state, part, name), os.path.join(aside, name))
        except FileNotFoundError:
            # Another process was faster.
            continue
    if not os.listdir(aside):
        os.rmdir(aside)
        os.rmdir(lost)


def list_aside(state: bytes) -> dict[str, bytes]:
    """Return where everything lies that was set aside, by id: layers, operations and output of runs without a row."""
    found: dict[str, bytes] = {}
    for lost in (name for name in os.listdir(state) if name.startswith(b"lost-")):
        top = os.path.join(state, lost)
        for name in _names(top):
            # unspill 0.1 kept layers only, and no directory for each part
            places = [os.path.join(name, inner) for inner in _names(os.path.join(top, name))]
            for place in places if name in PARTS else [name]:
                found[os.fsdecode(os.path.basename(place))] = os.path.join(top, place)
    return found


def remove_manifests(state: bytes) -> None:
    """Remove the file per layer that an older unspill kept; the copies of the database replace them."""
    top = os.path.join(state, b"manifests")
    for name in _names(top):
        os.unlink(os.path.join(top, name))
    if os.path.isdir(top):
        os.rmdir(top)


def _make_private(path: bytes) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    # An inherited default ACL or an odd umask may have taken bits away or added some.
    os.chmod(path, 0o700)


def _move(source: bytes, dest: bytes) -> None:
    try:
        os.rename(source, dest)
    except PermissionError:
        # To move a directory is to write its "..", and a command may have closed it to its owner
        mode = stat.S_IMODE(os.lstat(source).st_mode)
        os.chmod(source, mode | 0o200)
        os.rename(source, dest)
        os.chmod(dest, mode)


def _names(path: bytes) -> list[bytes]:
    try:
        return os.listdir(path)
    except OSError:
        return []


def _refused(state: bytes, why: str, remedy: str) -> StoreError:
    return StoreError(f"The state directory {os.fsdecode(state)} {why}.", remedy=remedy)


class Store:
    """All that unspill remembers, by table.

    `with store.transaction:` makes several steps one; `with store.durable:` does so and has them on the disk
    afterwards, whatever happens to the power.
    """

    __slots__ = (
        *("bases", "caches", "durable", "facts", "files", "layers", "marks", "operations", "runs", "sandboxes"),
        *("sessions", "state", "texts", "traffic", "transaction", "trust"),
    )

    def __init__(self, state: bytes, db: Database) -> None:
        self.state = state
        self.transaction = db
        self.durable = Durable(db)
        self.sandboxes = SandboxTable(db)
        self.layers = LayerTable(db)
        self.marks = MarkTable(db)
        self.texts = TextTable(db)
        self.bases = BaseTable(db)
        self.caches = CacheTable(db)
        self.runs = RunTable(db)
        self.traffic = TrafficTable(db)
        self.operations = OperationTable(db)
        self.files = FileTable(db)
        self.sessions = SessionTable(db)
        self.facts = FactTable(db)
        self.trust = TrustTable(db)

    @property
    def session(self) -> str:
        """The session that all belongs to which is recorded through this object, empty for none."""
        return self.transaction.session

    @session.setter
    def session(self, name: str) -> None:
        self.transaction.session = name

    # A plain run must not pay for the modules of these

    @property
    def grants(self) -> permissions.GrantTable:
        """The table of grants."""
        return permissions.GrantTable(self.transaction)

    @property
    def requests(self) -> permissions.RequestTable:
        """The table of requests."""
        return permissions.RequestTable(self.transaction)

    @property
    def shown(self) -> permissions.ShownTable:
        """The table of what was shown on a terminal."""
        return permissions.ShownTable(self.transaction)

    @property
    def projects(self) -> projects.ProjectTable:
        """What all tables know of a project."""
        return projects.ProjectTable(self.transaction)

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
                mend_parts(state)
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
    _name = "facts"

    def find(self, key: str) -> str | None:
        """Return the value that was put last, or None."""
        rows = self._db.rows(f"SELECT value FROM {self._name} WHERE key = ?", (key,))
        return as_text(rows[0][0]) if rows else None

    def starting_with(self, beginning: str) -> dict[str, str]:
        """Return all values whose keys begin like this, by the rest of their keys; it ends with ASCII."""
        after = beginning[:-1] + chr(ord(beginning[-1]) + 1)
        rows = self._db.rows(f"SELECT key, value FROM {self._name} WHERE key >= ? AND key < ?", (beginning, after))
        return {as_text(key).removeprefix(beginning): as_text(value) for key, value in rows}

    def put(self, key: str, value: str) -> None:
        """Keep a value, in place of an older one."""
        self._db.change(f"INSERT OR REPLACE INTO {self._name} (key, value) VALUES (?, ?)", (key, value))

    def forget(self) -> None:
        """Remove every value."""
        self._db.change(f"DELETE FROM {self._name}")


class TrustTable(FactTable):
    """Why git's index is believed about secrets, and why it is not. It is no cache: without it nothing is believed."""

    __slots__ = ()
    _name = "trust"


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
