# SPDX-License-Identifier: Apache-2.0
"""What all tables together know of one project: to find it by its directory, to move it to another path, to forget it.

Rows that have a directory of their own (layers, operations, output of runs) are not forgotten here: whoever removes
those directories removes the rows with them.
"""

from __future__ import annotations

import re

from unspill.model.run import LayerId, RunId, SandboxId
from unspill.policy.paths import contains, moved
from unspill.record import Record
from unspill.store.connection import Table, as_blob, as_id, as_int, as_text, to_signed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# Tables that name a project, and whose rows go with it
_OWNED = ("files", "prompts", "counters", "grants", "requests", "sandboxes")

_OF_PROJECT = "sandbox IN (SELECT id FROM sandboxes WHERE project = ?)"


class ProjectCounts(Record):
    """How much there is of a project."""

    runs: int = 0
    operations: int = 0
    grants: int = 0


class ProjectTable(Table):
    """Projects by path: they are what the rows of all other tables have in common."""

    __slots__ = ()

    def all(self) -> tuple[bytes, ...]:
        """Return every project of which anything is kept."""
        rows = self._db.rows("SELECT project FROM sandboxes UNION SELECT project FROM operations ORDER BY 1")
        return tuple(as_blob(row[0]) for row in rows)

    def tally(self, sandbox: SandboxId) -> tuple[int, int | None]:
        """Return how many runs a sandbox has, and when the last one began."""
        count, last_ns = self._db.rows("SELECT count(*), max(started_ns) FROM runs WHERE sandbox = ?", (sandbox,))[0]
        return as_int(count), None if last_ns is None else as_int(last_ns)

    def runs(self, project: bytes) -> tuple[RunId, ...]:
        """Return all runs of a project's sandboxes."""
        rows = self._db.rows(f"SELECT id FROM runs WHERE {_OF_PROJECT}", (project,))
        return tuple(RunId(as_id(row[0])) for row in rows)

    def last_number(self, project: bytes) -> int:
        """Return the number of a project's last operation, whether that is still kept or not; 0 before the first."""
        rows = self._db.rows("SELECT number FROM counters WHERE project = ?", (project,))
        return as_int(rows[0][0]) if rows else 0

    def count(self, project: bytes) -> ProjectCounts:
        """Return how much there is of a project."""
        sql = (
            "SELECT (SELECT count(*) FROM runs WHERE sandbox IN (SELECT id FROM sandboxes WHERE project = ?1)),"
            " (SELECT count(*) FROM operations WHERE project = ?1), (SELECT count(*) FROM grants WHERE project = ?1)"
        )
        runs, operations, grants = self._db.rows(sql, (project,))[0]
        return ProjectCounts(runs=as_int(runs), operations=as_int(operations), grants=as_int(grants))

    def remove_layers(self, project: bytes, owners: Iterable[bytes]) -> tuple[LayerId, ...]:
        """Forget all layers of a project, also those over its caches and by other owners; return them."""
        found = self._db.rows(
            f"SELECT id FROM layers WHERE {_OF_PROJECT} UNION ALL SELECT id FROM retired WHERE {_OF_PROJECT}",
            (project, project),
        )
        for owner in (project, *owners):
            found += self._db.rows("SELECT id FROM caches WHERE project = ?", (owner,))
        for table, column in (
            ("layers", "id"),
            ("retired", "id"),
            ("caches", "id"),
            ("marks", "layer"),
            ("texts", "owner"),
            ("bases", "layer"),
        ):
            self._db.change_each(f"DELETE FROM {table} WHERE {column} = ?", found)
        return tuple(LayerId(as_id(row[0])) for row in found)

    def forget(self, project: bytes) -> None:
        """Forget a project: its rows in all tables that have no directories."""
        with self._db:
            # What is known of secrets in the directory stays: it is why some of them are hidden
            for sandbox in self._sandboxes(project).values():
                self._db.change("DELETE FROM facts WHERE instr(key, ?)", (sandbox,))
            # Its backups are named by operations, which are gone
            for table in _OWNED:
                self._db.change(f"DELETE FROM {table} WHERE project = ?", (project,))

    def move(self, old: bytes, new: bytes, device: int, inode: int, joined: str = "") -> None:
        """Give all that is known of one project to another path, where its directory has this device and inode.

        What is known of that path already came later: its runs and operations are counted on from those that come.
        Grants and requests name a path that a person agreed to; they stay behind. Facts whose key begins with `joined`
        are words of which those of both paths count; of others, those of the new path.
        """
        with self._db:
            self._join_sandboxes(old, new)
            self._renumber_operations(old, new)
            self._join_files(old, new)
            self._join_caches(old, new, new)
            self._db.change("UPDATE prompts SET project = ? WHERE project = ?", (new, old))
            self._db.change(
                "UPDATE sandboxes SET project = ?, device = ?, inode = ? WHERE project = ?",
                (new, to_signed(device), to_signed(inode), old),
            )
            self._move_roots(old, new)
            self._move_texts(old, new)
            self._move_facts(old, new, joined)

    def _sandboxes(self, project: bytes) -> dict[str, SandboxId]:
        rows = self._db.rows("SELECT name, id FROM sandboxes WHERE project = ?", (project,))
        return {as_text(name): SandboxId(as_id(identity)) for name, identity in rows}

    def _join_sandboxes(self, old: bytes, new: bytes) -> None:
        """Put what a sandbox of the new path has behind what the one of its name at the old path has."""
        coming = self._sandboxes(old)
        for name, later in self._sandboxes(new).items():
            earlier = coming.get(name)
            if earlier is None:
                continue
            offset = as_int(
                self._db.rows("SELECT coalesce(max(number), 0) FROM runs WHERE sandbox = ?", (earlier,))[0][0]
            )
            for number, span in self._db.rows("SELECT number, span FROM runs WHERE sandbox = ?", (later,)):
                together = " ".join(str(int(one) + offset) for one in as_text(span).split())
                self._db.change(
                    "UPDATE runs SET sandbox = ?, number = ?, span = ? WHERE sandbox = ? AND number = ?",
                    (earlier, as_int(number) + offset, together, later, number),
                )
            for table in ("layers", "retired", "operations"):
                self._db.change(f"UPDATE {table} SET sandbox = ? WHERE sandbox = ?", (earlier, later))
            self._db.change("UPDATE OR IGNORE shown SET sandbox = ? WHERE sandbox = ?", (earlier, later))
            # A rootfs that commands write to has layers by sandbox
            for (cell,) in self._db.rows(
                "SELECT DISTINCT project FROM caches WHERE instr(project, ?)", (later.encode(),)
            ):
                owner = as_blob(cell).replace(later.encode(), earlier.encode())
                self._join_caches(owner, as_blob(cell), owner)
            self._db.change("DELETE FROM sandboxes WHERE id = ?", (later,))

    def _join_caches(self, earlier: bytes, later: bytes, owner: bytes) -> None:
        """Give the layers of two owners to one; of two stacks over one path the newer stays."""
        self._db.change(
            "UPDATE caches SET state = 'retired', retired_at = (SELECT max(seq) FROM caches) WHERE project = ?"
            " AND state = 'sealed' AND path IN (SELECT path FROM caches WHERE project = ?)",
            (earlier, later),
        )
        self._db.change("UPDATE caches SET project = ? WHERE project IN (?, ?)", (owner, earlier, later))

    def _renumber_operations(self, old: bytes, new: bytes) -> None:
        earlier, later = self.last_number(old), self.last_number(new)
        # By way of negative numbers: no two rows may have one number at any moment
        self._db.change("UPDATE operations SET number = -number - ? WHERE project = ?", (earlier, new))
        self._db.change("UPDATE operations SET number = -number WHERE project = ?", (new,))
        self._db.change("UPDATE operations SET project = ? WHERE project = ?", (new, old))
        self._db.change("DELETE FROM counters WHERE project = ?", (old,))
        self._db.change("INSERT OR REPLACE INTO counters (project, number) VALUES (?, ?)", (new, earlier + later))

    def _join_files(self, old: bytes, new: bytes) -> None:
        sql = "SELECT id, root, path FROM files WHERE project = ?"
        known = {(as_blob(root), as_blob(path)): as_int(file) for file, root, path in self._db.rows(sql, (new,))}
        for cell, root, path in self._db.rows(sql, (old,)):
            file = as_int(cell)
            place = moved(as_blob(root), old, new)
            later = known.get((place, as_blob(path)))
            if later is None:
                self._db.change("UPDATE files SET project = ?, root = ? WHERE id = ?", (new, place, file))
                continue
            # The record of the new path says what the file is now, the other one has a copy from before
            self._db.change("UPDATE backups SET file = ? WHERE file = ?", (later, file))
            self._db.change(
                "UPDATE files SET last_approved_copy_path = (SELECT last_approved_copy_path FROM files WHERE id = ?)"
                " WHERE id = ? AND last_approved_copy_path = x''",
                (file, later),
            )
            self._db.change("DELETE FROM files WHERE id = ?", (file,))

    def _move_roots(self, old: bytes, new: bytes) -> None:
        """Name the roots of layers, operations and reviews by the new path."""
        for table in ("layers", "shown"):
            for (cell,) in self._db.rows(f"SELECT DISTINCT root FROM {table} WHERE {_OF_PROJECT}", (new,)):
                sql = f"UPDATE OR IGNORE {table} SET root = ? WHERE root = ? AND {_OF_PROJECT}"
                self._db.change(sql, (moved(as_blob(cell), old, new), cell, new))
        for identity, cell in self._db.rows("SELECT id, roots FROM operations WHERE project = ?", (new,)):
            roots = as_blob(cell).split(b"\0")
            there = b"\0".join(moved(root, old, new) for root in roots)
            self._db.change("UPDATE operations SET roots = ? WHERE id = ?", (there, identity))

    def _move_texts(self, old: bytes, new: bytes) -> None:
        """Name the roots of what layers and operations have kept; those have moved before."""
        own = (
            f"(owner IN (SELECT id FROM layers WHERE {_OF_PROJECT})"
            " OR owner IN (SELECT id FROM operations WHERE project = ?))"
        )
        for (cell,) in self._db.rows(f"SELECT DISTINCT root FROM texts WHERE {own}", (new, new)):
            sql = f"UPDATE OR IGNORE texts SET root = ? WHERE root = ? AND {own}"
            self._db.change(sql, (moved(as_blob(cell), old, new), cell, new, new))

    def _move_facts(self, old: bytes, new: bytes, joined: str) -> None:
        """Rename paths in what was found out: keys and values have them in hexadecimal, as words of their own."""
        path = re.compile(f"(?<![0-9a-f]){old.hex()}(?:2f[0-9a-f]*)?(?![0-9a-f])")
        # What lies in the old directory and is a project of its own stays where it is
        others = [other for other in self.all() if other.startswith(old + b"/")]

        def renamed(match: re.Match[str]) -> str:
            found = bytes.fromhex(match[0])
            return match[0] if any(contains(other, found) for other in others) else moved(found, old, new).hex()

        of_old = " WHERE instr(key, ?1) OR instr(value, ?1)"
        both = f"SELECT 'facts', key, value FROM facts{of_old} UNION ALL SELECT 'trust', key, value FROM trust{of_old}"
        for name, key, value in self._db.rows(both, (old.hex(),)):
            table = as_text(name)
            there = path.sub(renamed, as_text(key)), path.sub(renamed, as_text(value))
            if there == (key, value):
                continue
            self._db.change(f"DELETE FROM {table} WHERE key = ?", (key,))
            known = self._db.rows(f"SELECT value FROM {table} WHERE key = ?", there[:1])
            if known and (not joined or not there[0].startswith(joined)):
                continue
            if known:
                there = there[0], " ".join(sorted({*there[1].split(), *as_text(known[0][0]).split()}))
            self._db.change(f"INSERT OR REPLACE INTO {table} (key, value) VALUES (?, ?)", there)
