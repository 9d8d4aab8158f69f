# SPDX-License-Identifier: Apache-2.0
"""One SQLite connection that the threads of a process share, and the values that go through it.

Owns transactions, waiting and the translation of SQLite's errors; knows no table. A connection never crosses a fork:
the child opens its own. A damaged or forged file may hold anything, a wrong type or an id that is a path: every value
is checked when it is read, so nothing of that becomes part of a path.
"""

from __future__ import annotations

import os
from _thread import RLock  # every run loads this, and no run loads `threading`

from unspill.errors import StoreDamaged, StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable
    from typing import TypeVar

    Cell = str | bytes | int | float | None
    Row = tuple[Cell, ...]
    Word = TypeVar("Word", bound=str)
else:
    # The package around it registers converters for dates, which imports datetime: 2 ms that nobody here needs.
    import _sqlite3 as sqlite3


BUSY_TIMEOUT_S = 20.0
ID_LENGTH = 16
_HEX = frozenset("0123456789abcdef")
# The module also decodes what SQLite says about a damaged schema, which is then not always text.
_FAILURES = (sqlite3.Error, UnicodeDecodeError)
# Primary result codes; `sqlite3` has names for them, but not in every version of Python.
_CORRUPT, _NOTADB = 11, 26
_SHORT_READ = 522
# Connections of a parent process. Closing one here could checkpoint under the parent's locks, so they stay open.
_inherited: list[sqlite3.Connection] = []


class Database:
    """Statements and transactions on one database file."""

    __slots__ = ("_depth", "_inode", "_lock", "_pid", "_sqlite", "path", "session")

    def __init__(self, path: bytes) -> None:
        self.path = path
        # What is recorded through this connection belongs to it
        self.session = ""
        self.reopen()

    def reopen(self) -> None:
        """Connect, after `close` or in a fork."""
        # Protects the connection: a statement of another thread would land in this thread's transaction.
        self._lock = RLock()
        self._depth = 0
        self._pid = os.getpid()
        try:
            self._sqlite = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        except _FAILURES as error:
            raise _translate(error, self.path) from error
        try:
            # In WAL mode this never breaks the file; a power cut can only take back the last transactions.
            self._sqlite.execute("PRAGMA synchronous = NORMAL")
            self._inode = self._find_inode()
        except BaseException as error:
            self._sqlite.close()
            raise _translate(error, self.path) from error

    def begin(self, *, is_durable: bool = False) -> None:
        """Begin a transaction, or join the one that this thread is in."""
        self._leave_parent()
        self._lock.acquire()
        if self._depth == 0 and self._find_inode() != self._inode:
            self._lock.release()
            # What is written to a file that has no name any more is lost
            raise StoreDamaged(
                f"{os.fsdecode(self.path)} was removed or replaced while it was open.",
                remedy="Start this program again. If it then says that the database is missing, run `unspill recover`.",
            )
        try:
            if is_durable:
                # Fails inside a transaction.
                self._sqlite.execute("PRAGMA synchronous = FULL")
            if self._depth == 0:
                self._sqlite.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            self._lock.release()
            raise _translate(error, self.path) from error
        self._depth += 1

    def end(self, *, is_good: bool, is_durable: bool = False) -> None:
        """End a transaction, or leave the one that was joined."""
        self._depth -= 1
        try:
            if self._depth == 0:
                self._end("COMMIT" if is_good else "ROLLBACK")
        finally:
            if is_durable:
                self._sqlite.execute("PRAGMA synchronous = NORMAL")
            self._lock.release()

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        self.end(is_good=kind is None)

    def rows(self, sql: str, values: Iterable[Cell] = ()) -> list[Row]:
        """Return all rows of a query, in this thread's transaction if it is in one."""
        self._leave_parent()
        with self._lock:
            try:
                return self._sqlite.execute(sql, tuple(values)).fetchall()
            except _FAILURES as error:
                raise _translate(error, self.path) from error

    def change(self, sql: str, values: Iterable[Cell] = ()) -> int:
        """Run one statement that writes; return how many rows it touched."""
        with self:
            try:
                return self._sqlite.execute(sql, tuple(values)).rowcount
            except _FAILURES as error:
                raise _translate(error, self.path) from error

    def change_each(self, sql: str, rows: Iterable[Row]) -> None:
        """Run one statement for each of the rows."""
        with self:
            try:
                self._sqlite.executemany(sql, rows)
            except _FAILURES as error:
                raise _translate(error, self.path) from error

    def check(self) -> None:
        """Read the whole file once, and compare indices with tables.

        Raises:
            StoreDamaged: something in it contradicts something else.
        """
        with open(self.path, "rb") as file:
            # Bytes 18 and 19: from formats of the future SQLite reads, but does not write to them.
            if max(file.read(20)[18:], default=0) > 2:
                raise StoreDamaged(f"{os.fsdecode(self.path)} has a format that SQLite can't read.")
        rows = self.rows("PRAGMA integrity_check(1)")
        if rows != [("ok",)]:
            raise StoreDamaged(f"{os.fsdecode(self.path)} is damaged: {as_text(rows[0][0])}.")

    def copy_to(self, path: str) -> None:
        """Write what is in the database now into another file, which must be empty. Others may write meanwhile."""
        with self._lock:
            try:
                self._sqlite.execute("VACUUM INTO ?", (path,))
            except _FAILURES as error:
                raise _translate(error, self.path) from error

    def close(self) -> None:
        """Close; the last connection of all processes also folds the write-ahead log back."""
        if self._pid != os.getpid():
            _inherited.append(self._sqlite)
            return
        with self._lock:
            self._sqlite.close()

    def _leave_parent(self) -> None:
        """Connect anew if this is a fork of the process that connected."""
        if self._pid != os.getpid():
            _inherited.append(self._sqlite)
            self.reopen()

    def _find_inode(self) -> int:
        try:
            return os.stat(self.path).st_ino
        except FileNotFoundError:
            return 0

    def _end(self, verb: str) -> None:
        # SQLite has already rolled back by itself after some errors (disk full, out of memory).
        if verb == "ROLLBACK" and not self._sqlite.in_transaction:
            return
        try:
            self._sqlite.execute(verb)
        except BaseException as error:
            if self._sqlite.in_transaction:
                self._sqlite.execute("ROLLBACK")
            raise _translate(error, self.path) from error


class Durable:
    """A transaction whose end is on the disk when it is over: `with Durable(db): ...`, never inside another."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.begin(is_durable=True)

    def __exit__(self, kind: type[BaseException] | None, *_rest: object) -> None:
        self._db.end(is_good=kind is None, is_durable=True)


class Table:
    """One table or a few that belong together: each subclass has the statements for its own."""

    __slots__ = ("_db",)

    def __init__(self, db: Database) -> None:
        self._db = db


def as_text(cell: Cell) -> str:
    """Return a text cell.

    Raises:
        StoreDamaged: it is none.
    """
    if not isinstance(cell, str):
        raise _unexpected("text", cell)
    return cell


def as_blob(cell: Cell) -> bytes:
    """Return a bytes cell."""
    if not isinstance(cell, bytes):
        raise _unexpected("bytes", cell)
    return cell


def as_int(cell: Cell) -> int:
    """Return an integer cell."""
    if not isinstance(cell, int):
        raise _unexpected("an integer", cell)
    return cell


def as_float(cell: Cell) -> float:
    """Return a number cell."""
    if not isinstance(cell, int | float):
        raise _unexpected("a number", cell)
    return float(cell)


def as_id(cell: Cell) -> str:
    """Return the id of a sandbox, run or layer: 16 hexadecimal digits, never anything a path could be made of."""
    text = as_text(cell)
    if not is_id(text):
        raise _unexpected("an id", cell)
    return text


def as_unsigned(cell: Cell) -> int:
    """Return a 64-bit number that was stored by `to_signed`."""
    return as_int(cell) & 0xFFFF_FFFF_FFFF_FFFF


def as_one_of(words: tuple[Word, ...], cell: Cell, damage: str) -> Word:
    """Return a text cell that is one of some words; `damage` says what is wrong with any other."""
    for word in words:
        if word == cell:
            return word
    raise StoreDamaged(damage)


def to_signed(number: int) -> int:
    """Return a device or inode number as SQLite can hold it: its integers are signed, the kernel's are not."""
    return number - (1 << 64) if number >= 1 << 63 else number


def to_text(text: str) -> str:
    """Return text as SQLite can hold it: what a path that is not UTF-8 was decoded to is spelt out."""
    return text.encode("utf-8", "backslashreplace").decode()


def new_id() -> str:
    """Return an id that nothing else has."""
    return os.urandom(ID_LENGTH // 2).hex()


def is_id(name: object) -> bool:
    """Tell whether a name is made as our ids are."""
    return isinstance(name, str) and len(name) == ID_LENGTH and _HEX.issuperset(name)


def _unexpected(wanted: str, cell: Cell) -> StoreDamaged:
    return StoreDamaged(f"The store has {type(cell).__name__} where {wanted} should be.")


def _translate(error: BaseException, path: bytes) -> BaseException:
    """Return what the caller should see for an error of SQLite's; anything else as it is."""
    if not isinstance(error, _FAILURES):
        return error
    name = os.fsdecode(path)
    if _is_damage(getattr(error, "sqlite_errorcode", 0), str(error)):
        return StoreDamaged(f"{name} is damaged: {error}.")
    return StoreError(
        f"{name} can't be used: {error}.",
        remedy="Check for free space and for another unspill that hangs. The directory must be on a local disk.",
    )


def _is_damage(code: int, text: str) -> bool:
    if code & 0xFF in (_CORRUPT, _NOTADB) or code == _SHORT_READ:
        return True
    # There is no code for text that is not UTF-8, which the module finds out itself, nor for a schema that is not ours.
    return "decode" in text or "no such" in text
