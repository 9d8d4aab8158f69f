# SPDX-License-Identifier: Apache-2.0
"""The schema of the database, as ordered steps: a store of version n has had the first n of them.

A step that was once released is never edited; the next one changes what it made.
"""

from __future__ import annotations

import os

from unspill.errors import StoreDamaged, StoreTooNew
from unspill.store.connection import as_int

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.store.connection import Database


# "unsp": what `file` and SQLite itself show as the owner of the format
APPLICATION_ID = 0x756E7370
# From this version on the file is signed
SIGNED = 9


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
        raise StoreTooNew(
            f"{os.fsdecode(db.path)} has version {version}, but this unspill only knows {newest_version()}."
        )


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
        raise StoreDamaged(f"{os.fsdecode(db.path)} is not an unspill database.")


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


def m019_argv_left_out(db: Database) -> None:
    """Say how many bytes of a long command are not in its row."""
    db.change("ALTER TABLE runs ADD COLUMN argv_left_out INTEGER NOT NULL DEFAULT 0")


def m020_span(db: Database) -> None:
    """Say of a run in a live sandbox with which others it shared its layers: the numbers of all of them."""
    db.change("ALTER TABLE runs ADD COLUMN span TEXT NOT NULL DEFAULT ''")


def m021_ports(db: Database) -> None:
    """Keep what went through the ports of a run."""
    db.change("ALTER TABLE traffic ADD COLUMN ports TEXT NOT NULL DEFAULT '[]'")


def m022_sessions(db: Database) -> None:
    """Say to which session of an agent a run and an operation belong, and keep what the person asked for in it."""
    db.change("ALTER TABLE runs ADD COLUMN session TEXT NOT NULL DEFAULT ''")
    db.change("ALTER TABLE operations ADD COLUMN session TEXT NOT NULL DEFAULT ''")
    db.change("""
        CREATE TABLE prompts (
            seq INTEGER PRIMARY KEY,
            project BLOB NOT NULL,
            session TEXT NOT NULL,
            at_ns INTEGER NOT NULL,
            text TEXT NOT NULL
        )
    """)
    db.change("CREATE INDEX operations_of_session ON operations (project, session) WHERE session != ''")
    db.change("CREATE INDEX runs_of_session ON runs (sandbox, session) WHERE session != ''")


def m023_texts(db: Database) -> None:
    """Make the table of texts as a layer's run saw them, and as an operation put them: what later edits build on."""
    db.change("""
        CREATE TABLE texts (
            owner TEXT NOT NULL,
            root BLOB NOT NULL,
            path BLOB NOT NULL,
            at_ns INTEGER NOT NULL,
            text BLOB NOT NULL,
            PRIMARY KEY (owner, root, path)
        )
    """)


def m024_bases(db: Database) -> None:
    """Make the table of what the changes of a layer were made from, beside its texts."""
    db.change("""
        CREATE TABLE bases (
            layer TEXT PRIMARY KEY NOT NULL,
            at_ns INTEGER NOT NULL,
            packed BLOB NOT NULL
        )
    """)


def m025_trust(db: Database) -> None:
    """Move why git's index is believed about secrets, or is not, out of the cache."""
    db.change("CREATE TABLE trust (key TEXT PRIMARY KEY NOT NULL, value TEXT NOT NULL) WITHOUT ROWID")
    for beginning in (
        *("secrets changed by ", "claims about ", "claims of all directories", "tracked by the person in "),
        *("repository written by a command: ", "made by commands below "),
    ):
        own = (len(beginning), beginning)
        db.change("INSERT INTO trust SELECT key, value FROM facts WHERE substr(key, 1, ?) = ?", own)
        db.change("DELETE FROM facts WHERE substr(key, 1, ?) = ?", own)


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
    m019_argv_left_out,
    m020_span,
    m021_ports,
    m022_sessions,
    m023_texts,
    m024_bases,
    m025_trust,
)
