# SPDX-License-Identifier: Apache-2.0
"""The steps of the schema that bring grants and requests; `migrations` has the rules and the order."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.store.connection import Connection


def m010_grants(db: Connection) -> None:
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


def m011_requests(db: Connection) -> None:
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
