# SPDX-License-Identifier: Apache-2.0
"""The schema of the database as ordered steps, and copies of the database that can be put back.

A store of version n has had the first n steps. One that was once released is never edited; the next one changes what
it made.

There is a copy of the day and one from before the last migration. A copy is whole or not there: it is written under
another name, synchronised and renamed. It is for its owner alone and lies in the state directory, which no command
sees. What is put back is a duplicate, so the copy stays.
"""

from __future__ import annotations

import fcntl
import os
import time

from unspill.errors import StoreDamaged, StoreError, StoreTooNew
from unspill.record import Record
from unspill.store.connection import Database, as_id, as_int

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


# "unsp": what `file` and SQLite itself show as the owner of the format
APPLICATION_ID = 0x756E7370
# From this version on the file is signed
SIGNED = 9

DAILY = b"daily.db"
BEFORE_MIGRATION = b"before-migration.db"


def migrate(db: Database, version: int) -> None:
    """Bring a store of `version` to the newest, in one transaction."""
    with db:
        for step in MIGRATIONS[version:]:
            step(db)
        db.change(f"PRAGMA user_version = {newest_version()}")


def read_version(db: Database) -> int:
    """Return how many steps a database has had; 0 for a new one."""
    return as_int(db.rows("PRAGMA user_version")[0][0])


def newest_version() -> int:
    """Return the version that this unspill writes."""
    return len(MIGRATIONS)


def refuse_newer(db: Database, version: int) -> None:
    """Refuse a database that a newer unspill wrote.

    Raises:
        StoreTooNew: it is one.
    """
    if version > newest_version():
        raise StoreTooNew(f"{os.fsdecode(db.path)} has version {version}, this unspill knows {newest_version()}.")


def refuse_foreign(db: Database, version: int) -> None:
    """Refuse a database that another program made, before anything is written to it.

    Raises:
        StoreDamaged: it is none of ours.
    """
    if version >= SIGNED:
        is_ours = db.rows("PRAGMA application_id") == [(APPLICATION_ID,)]
    else:
        tables = {row[0] for row in db.rows("SELECT name FROM sqlite_master WHERE type = 'table'")}
        is_ours = "sandboxes" in tables if version else not tables
    if not is_ours:
        raise StoreDamaged(f"{os.fsdecode(db.path)} is not a store of unspill.")


def m001_sandboxes(db: Database) -> None:
    """Make the table of sandboxes: one name per project once."""
    db.change("""
        CREATE TABLE sandboxes (
            id TEXT PRIMARY KEY NOT NULL,
            project BLOB NOT NULL,
            name TEXT NOT NULL,
            device INTEGER NOT NULL,
            inode INTEGER NOT NULL,
            created_ns INTEGER NOT NULL,
            UNIQUE (project, name)
        ) WITHOUT ROWID
    """)


def m002_runs(db: Database) -> None:
    """Make the table of runs; what was printed comes last, so that a list of runs need not read it."""
    db.change("""
        CREATE TABLE runs (
            seq INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            sandbox TEXT NOT NULL,
            number INTEGER NOT NULL,
            owner_pid INTEGER NOT NULL,
            owner_started INTEGER NOT NULL,
            owner_boot TEXT NOT NULL,
            owner_pids INTEGER NOT NULL,
            started_ns INTEGER NOT NULL,
            ended_ns INTEGER,
            outcome TEXT,
            outcome_number NUMERIC,
            outcome_text TEXT,
            outcome_remedy TEXT,
            changed INTEGER NOT NULL DEFAULT 0,
            held INTEGER NOT NULL DEFAULT 0,
            cwd BLOB NOT NULL,
            argv BLOB NOT NULL,
            stdout_left_out INTEGER NOT NULL DEFAULT 0,
            stdout_file BLOB,
            stderr_left_out INTEGER NOT NULL DEFAULT 0,
            stderr_file BLOB,
            stdout_head BLOB NOT NULL DEFAULT x'',
            stdout_tail BLOB NOT NULL DEFAULT x'',
            stderr_head BLOB NOT NULL DEFAULT x'',
            stderr_tail BLOB NOT NULL DEFAULT x'',
            UNIQUE (sandbox, number)
        )
    """)
    db.change("CREATE INDEX runs_going_on ON runs (seq) WHERE ended_ns IS NULL")


def m003_layers(db: Database) -> None:
    """Make the table of layers over roots; `seq` is their order in a stack."""
    db.change("""
        CREATE TABLE layers (
            seq INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            sandbox TEXT NOT NULL,
            root BLOB NOT NULL,
            run TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('open', 'sealed')),
            mark_ns INTEGER NOT NULL DEFAULT 0
        )
    """)
    db.change("CREATE INDEX layers_of_sandbox ON layers (sandbox, seq)")


def m004_caches(db: Database) -> None:
    """Make the table of layers over tool caches, which a project's sandboxes share."""
    db.change("""
        CREATE TABLE caches (
            seq INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            project BLOB NOT NULL,
            path BLOB NOT NULL,
            run TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('open', 'sealed', 'retired')),
            position INTEGER NOT NULL,
            tier INTEGER NOT NULL DEFAULT 0,
            base TEXT,
            retired_at INTEGER
        )
    """)
    db.change("CREATE INDEX caches_of_project ON caches (project, position)")
    db.change("CREATE INDEX caches_retired ON caches (seq) WHERE state = 'retired'")


def m005_facts(db: Database) -> None:
    """Make the cache of what was found out about the host."""
    db.change("CREATE TABLE facts (key TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) WITHOUT ROWID")


def m006_operations(db: Database) -> None:
    """Make the table of operations, and the number that each project's next one gets."""
    db.change("""
        CREATE TABLE operations (
            seq INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            project BLOB NOT NULL,
            number INTEGER NOT NULL,
            kind TEXT NOT NULL,
            sandbox TEXT NOT NULL,
            at_ns INTEGER NOT NULL,
            ending TEXT NOT NULL,
            reverses TEXT,
            origin TEXT,
            changed INTEGER NOT NULL,
            is_recorded INTEGER NOT NULL DEFAULT 0,
            kept_bytes INTEGER,
            asked_by TEXT NOT NULL,
            roots BLOB NOT NULL,
            runs TEXT NOT NULL,
            marks TEXT NOT NULL,
            notes TEXT NOT NULL,
            lefts BLOB NOT NULL,
            UNIQUE (project, number)
        )
    """)
    db.change("CREATE INDEX operations_unrecorded ON operations (project, number) WHERE NOT is_recorded")
    db.change("CREATE TABLE counters (project BLOB PRIMARY KEY NOT NULL, number INTEGER NOT NULL) WITHOUT ROWID")


def m007_marks(db: Database) -> None:
    """Make the table of time marks that hold for single paths of a layer in place of the layer's own.

    And that of layers which are in no stack any more, but perhaps still mounted by a run that began before.
    """
    db.change("""
        CREATE TABLE retired (
            id TEXT PRIMARY KEY NOT NULL,
            sandbox TEXT NOT NULL,
            retired_at INTEGER NOT NULL
        ) WITHOUT ROWID
    """)
    db.change("""
        CREATE TABLE marks (
            layer TEXT NOT NULL,
            path BLOB NOT NULL,
            mark_ns INTEGER NOT NULL,
            PRIMARY KEY (layer, path)
        ) WITHOUT ROWID
    """)


def m008_files(db: Database) -> None:
    """Make the records of files and the names of their backups; an id is never given twice."""
    db.change("""
        CREATE TABLE files (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            project BLOB NOT NULL,
            root BLOB NOT NULL,
            path BLOB NOT NULL,
            last_modified INTEGER NOT NULL,
            is_deleted INTEGER NOT NULL,
            last_approved_copy_path BLOB NOT NULL DEFAULT x'',
            UNIQUE (project, root, path)
        )
    """)
    db.change("""
        CREATE TABLE backups (
            name BLOB PRIMARY KEY NOT NULL,
            file INTEGER NOT NULL,
            operation TEXT NOT NULL,
            place BLOB NOT NULL,
            recorded_ns INTEGER NOT NULL,
            kind TEXT NOT NULL,
            mode INTEGER NOT NULL,
            inode INTEGER NOT NULL,
            size INTEGER NOT NULL,
            mtime_ns INTEGER NOT NULL,
            digest BLOB NOT NULL DEFAULT x''
        ) WITHOUT ROWID
    """)
    db.change("CREATE INDEX backups_of_file ON backups (file, recorded_ns)")
    db.change("CREATE INDEX backups_of_operation ON backups (operation)")


def m009_signature(db: Database) -> None:
    """Sign the file, so that another program's database is not taken for a store."""
    db.change(f"PRAGMA application_id = {APPLICATION_ID}")


def m010_grants(db: Database) -> None:
    """Make the table of grants; what is granted once only is never in it."""
    db.change("""
        CREATE TABLE grants (
            id TEXT PRIMARY KEY NOT NULL,
            key TEXT NOT NULL,
            scope TEXT NOT NULL CHECK (scope IN ('run', 'sandbox', 'always')),
            project BLOB NOT NULL,
            granted_ns INTEGER NOT NULL,
            expires_ns INTEGER NOT NULL,
            granted_by TEXT NOT NULL,
            last_used_ns INTEGER NOT NULL DEFAULT 0,
            uses INTEGER NOT NULL DEFAULT 0,
            request BLOB NOT NULL
        ) WITHOUT ROWID
    """)
    db.change("CREATE INDEX grants_by_key ON grants (key)")


def m011_requests(db: Database) -> None:
    """Make the table of requests that a person was asked about, and of those that wait for an answer."""
    db.change("""
        CREATE TABLE requests (
            seq INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            key TEXT NOT NULL,
            digest TEXT NOT NULL,
            project BLOB NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('asked', 'waiting', 'allowed', 'denied', 'expired')),
            asked_ns INTEGER NOT NULL,
            deadline_ns INTEGER NOT NULL,
            scopes TEXT NOT NULL,
            scope TEXT NOT NULL DEFAULT '',
            answered_by TEXT NOT NULL DEFAULT '',
            answered_digest TEXT NOT NULL DEFAULT '',
            reason TEXT NOT NULL DEFAULT '',
            request BLOB NOT NULL
        )
    """)
    db.change("CREATE INDEX requests_recent ON requests (project, asked_ns)")
    db.change("CREATE INDEX requests_waiting ON requests (seq) WHERE state = 'waiting'")


def m012_traffic(db: Database) -> None:
    """Make the table of what went out of runs; a row goes with its run."""
    db.change("""
        CREATE TABLE traffic (
            run TEXT PRIMARY KEY NOT NULL,
            connections TEXT NOT NULL,
            denials TEXT NOT NULL,
            left_out INTEGER NOT NULL
        ) WITHOUT ROWID
    """)
    db.change("""
        CREATE TRIGGER traffic_goes_with_its_run AFTER DELETE ON runs
        BEGIN DELETE FROM traffic WHERE run = OLD.id; END
    """)


def m013_unsandboxed(db: Database) -> None:
    """Tell runs without a sandbox from the others: what they changed is not known."""
    db.change("ALTER TABLE runs ADD COLUMN sandboxed INTEGER NOT NULL DEFAULT 1")


def m014_marked(db: Database) -> None:
    """Remember which projects had a mark that says where they end, since a command may take it away."""
    db.change("ALTER TABLE sandboxes ADD COLUMN marked INTEGER NOT NULL DEFAULT 0")


def m015_layer_order(db: Database) -> None:
    """Give no place among the layers twice: what is held again goes where it was, below what came later."""
    db.change("ALTER TABLE layers RENAME TO older_layers")
    db.change("""
        CREATE TABLE layers (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            sandbox TEXT NOT NULL,
            root BLOB NOT NULL,
            run TEXT NOT NULL,
            state TEXT NOT NULL CHECK (state IN ('open', 'sealed')),
            mark_ns INTEGER NOT NULL DEFAULT 0
        )
    """)
    db.change("INSERT INTO layers SELECT seq, id, sandbox, root, run, state, mark_ns FROM older_layers ORDER BY seq")
    db.change("DROP TABLE older_layers")
    db.change("CREATE INDEX layers_of_sandbox ON layers (sandbox, seq)")


def m016_after_cancel(db: Database) -> None:
    """Remember of a run what becomes of its changes if its process dies, and how large its layers may be.

    Of older runs that is not known: what they wrote is kept within the usual limits rather than lost.
    """
    db.change("ALTER TABLE runs ADD COLUMN after_cancel TEXT NOT NULL DEFAULT 'hold'")
    db.change("ALTER TABLE runs ADD COLUMN layer_bytes INTEGER DEFAULT 4294967296")
    db.change("ALTER TABLE runs ADD COLUMN layer_entries INTEGER DEFAULT 500000")


def m017_shown(db: Database) -> None:
    """Make the table of what was shown whole on a terminal, by the digest of its content."""
    db.change("""
        CREATE TABLE shown (
            sandbox TEXT NOT NULL,
            root BLOB NOT NULL,
            path BLOB NOT NULL,
            digest TEXT NOT NULL,
            at_ns INTEGER NOT NULL,
            PRIMARY KEY (sandbox, root, path, digest)
        ) WITHOUT ROWID
    """)
    db.change("""
        CREATE TRIGGER shown_goes_with_its_sandbox AFTER DELETE ON sandboxes
        BEGIN DELETE FROM shown WHERE sandbox = OLD.id; END
    """)


def m018_held_runs(db: Database) -> None:
    """Find the runs that hold something without reading the others: an apply asks for them."""
    db.change("CREATE INDEX runs_held ON runs (sandbox) WHERE held")


MIGRATIONS: tuple[Callable[[Database], None], ...] = (
    m001_sandboxes,
    m002_runs,
    m003_layers,
    m004_caches,
    m005_facts,
    m006_operations,
    m007_marks,
    m008_files,
    m009_signature,
    m010_grants,
    m011_requests,
    m012_traffic,
    m013_unsandboxed,
    m014_marked,
    m015_layer_order,
    m016_after_cancel,
    m017_shown,
    m018_held_runs,
)


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
