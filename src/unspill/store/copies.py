# SPDX-License-Identifier: Apache-2.0
"""Copies of the database: one of the day, one from before the last migration, and how one is put back.

A copy is whole or not there: it is written under another name, synchronised and renamed. It is for its owner alone and
lies in the state directory, which no command sees. What is put back is a duplicate, so the copy stays.
"""

from __future__ import annotations

import fcntl
import os
import time

from unspill.errors import StoreDamaged, StoreError, StoreTooNew
from unspill.record import Record
from unspill.store.connection import Database, as_id
from unspill.store.migrations import migrate, read_version, refuse_foreign, refuse_newer

DAILY = b"daily.db"
BEFORE_MIGRATION = b"before-migration.db"


class PutBack(Record):
    """What took the place of a database: a copy from `copied_ns`, or a new one where that is None.

    `database` is where the one that was there lies now; None if there was none.
    """

    database: bytes | None
    copied_ns: int | None


def copied_ns(state: bytes, name: bytes = DAILY) -> int | None:
    """Return when a copy was made, None if there is none."""
    try:
        return os.stat(_path(state, name)).st_mtime_ns
    except FileNotFoundError:
        return None


def make_copy(db: Database, state: bytes, name: bytes = DAILY) -> None:
    """Copy a database that is whole, in place of an older copy.

    Raises:
        StoreDamaged: it is not whole; the older copy stays.
        StoreError: there is no room for the copy.
        OSError: likewise.
    """
    # A copy has new indices, so nothing would contradict damaged rows in it
    db.check()
    directory = os.open(state + b"/copies", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    new = name + b".new"
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        _make_file(b"/proc/self/fd/%d/%b" % (directory, new))
        try:
            # SQLite takes no path that is not text, and the state directory's may be none
            db.copy_to(f"/proc/self/fd/{directory}/{new.decode()}")
            _sync(new, directory)
        except BaseException:
            os.unlink(new, dir_fd=directory)
            raise
        os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
        os.fsync(directory)
    finally:
        os.close(directory)


def remove_older(state: bytes, moment_ns: int) -> None:
    """Remove the copy from before the last migration if it was made before a moment."""
    made = copied_ns(state, BEFORE_MIGRATION)
    if made is not None and made < moment_ns:
        os.unlink(_path(state, BEFORE_MIGRATION))


def put_back(state: bytes) -> PutBack:
    """Put the newest copy that is whole in the place of the database, or a new database where there is none.

    Nobody may have the database in use. The caller sets aside what has no row from then on.

    Raises:
        StoreError: the database that is made can't be written.
        OSError: likewise.
    """
    made = _prepare_newest(state)
    lock = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        aside = _set_database_aside(state)
        os.rename(_new_file(state), state + b"/store.db")
        os.fsync(lock)
    finally:
        os.close(lock)
    return PutBack(database=aside, copied_ns=made)


def _prepare_newest(state: bytes) -> int | None:
    """Make the file that becomes the database; return when the copy was made that it is of."""
    found = [(made, name) for name in (DAILY, BEFORE_MIGRATION) if (made := copied_ns(state, name)) is not None]
    for made, name in sorted(found, reverse=True):
        try:
            _prepare(state, _path(state, name))
        except (StoreDamaged, StoreTooNew):
            continue
        return made
    _prepare(state, None)
    return None


def _prepare(state: bytes, copy: bytes | None) -> None:
    try:
        _prepare_with(state, copy, "WAL")
    except (StoreDamaged, StoreTooNew):
        raise
    except StoreError:
        # The filesystem can't share memory
        _prepare_with(state, copy, "TRUNCATE")


def _prepare_with(state: bytes, copy: bytes | None, journal: str) -> None:
    path = _new_file(state)
    _make_file(path)
    if copy is not None:
        _duplicate(copy, path)
    db = Database(path)
    try:
        version = read_version(db)
        refuse_newer(db, version)
        refuse_foreign(db, version)
        db.check()
        db.rows(f"PRAGMA journal_mode = {journal}")
        migrate(db, version)
        _forget_what_is_gone(db, state)
    finally:
        db.close()
    _sync(path)


def _forget_what_is_gone(db: Database, state: bytes) -> None:
    """Forget what was open when the copy was made, and layers whose directories have gone since.

    What was open has ended since, and its directory may hold what matters: without a row it is set aside.
    """
    trees = [b"%b/operations/%b/tree" % (state, name) for name in os.listdir(state + b"/pending")]
    present = {name for path in (state + b"/layers", *trees) if os.path.isdir(path) for name in os.listdir(path)}
    with db:
        for table in ("layers", "caches"):
            rows = db.rows(f"SELECT id, state FROM {table}")
            gone = [(as_id(row[0]),) for row in rows if row[1] == "open" or as_id(row[0]).encode() not in present]
            db.change_each(f"DELETE FROM {table} WHERE id = ?", gone)
        db.change("DELETE FROM marks WHERE layer NOT IN (SELECT id FROM layers)")
        db.change("UPDATE runs SET held = 0 WHERE held AND id NOT IN (SELECT run FROM layers)")
        db.change("UPDATE runs SET ended_ns = ? WHERE ended_ns IS NULL", (time.time_ns(),))


def _set_database_aside(state: bytes) -> bytes | None:
    """Give the database another name, under which SQLite can still open it; return that."""
    path, aside = state + b"/store.db", b"%b/store.db.damaged-%d" % (state, time.time_ns())
    is_there = os.path.lexists(path) and os.path.getsize(path) > 0
    # The log last: beside a database that is not there SQLite takes it for a left-over.
    for suffix in (b"", b"-wal", b"-shm"):
        if os.path.lexists(path + suffix):
            os.rename(path + suffix, aside + suffix)
    if not is_there and os.path.lexists(aside):
        os.unlink(aside)
    return aside if is_there else None


def _path(state: bytes, name: bytes) -> bytes:
    return state + b"/copies/" + name


def _new_file(state: bytes) -> bytes:
    return state + b"/store.db.new"


def _make_file(path: bytes) -> None:
    """Make an empty file for its owner alone, in place of what a crash may have left."""
    for suffix in (b"", b"-wal", b"-shm", b"-journal"):
        if os.path.isfile(path + suffix):
            os.unlink(path + suffix)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
    finally:
        os.close(fd)


def _duplicate(source: bytes, dest: bytes) -> None:
    with open(source, "rb") as reader, open(dest, "wb") as writer:
        while part := reader.read(1 << 20):
            writer.write(part)


def _sync(name: bytes, directory: int | None = None) -> None:
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
