# SPDX-License-Identifier: Apache-2.0
"""The tables of sandboxes, of their layers, and of the layers over tool caches.

A sandbox is a project's path and a name, each pair once. A layer belongs to one sandbox, root and run and is open or
sealed; some of its paths have time marks of their own. No row holds a path into the state directory: a layer's place
follows from its id.
"""

from __future__ import annotations

import time

from unspill.model.run import LayerId, RunId, SandboxId
from unspill.record import Record
from unspill.store.connection import Table, as_blob, as_id, as_int, as_text, as_unsigned, new_id, to_signed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from unspill.store.connection import Row


_SANDBOX = "id, project, name, device, inode, created_ns, marked"
_LAYER = "id, sandbox, root, run, mark_ns, seq"
_CACHE = "id, project, path, run, position, tier"
_MOST_KNOWN = 2000


class SandboxRow(Record):
    """One sandbox as the store keeps it.

    `device` and `inode` are the project directory's when the sandbox was made; whether another directory at the same
    path is still the same project is for the caller to decide.
    """

    id: SandboxId
    project: bytes
    name: str
    device: int
    inode: int
    created_ns: int
    marked: bool = False


class SandboxTable(Table):
    """Sandboxes by project and name."""

    __slots__ = ()

    def get_or_create(self, project: bytes, name: str, device: int, inode: int) -> SandboxRow:
        """Return the sandbox of that project and name, whoever made it first."""
        found = self.find(project, name)
        if found is not None:
            return found
        with self._db:
            self._db.change(
                f"INSERT OR IGNORE INTO sandboxes ({_SANDBOX}) VALUES (?, ?, ?, ?, ?, ?, 0)",
                (new_id(), project, name, to_signed(device), to_signed(inode), time.time_ns()),
            )
            made = self.find(project, name)
        assert made is not None
        return made

    def find(self, project: bytes, name: str) -> SandboxRow | None:
        """Return the sandbox of that project and name, if there is one."""
        rows = self._db.rows(f"SELECT {_SANDBOX} FROM sandboxes WHERE project = ? AND name = ?", (project, name))
        return _to_sandbox(rows[0]) if rows else None

    def find_id(self, sandbox: SandboxId) -> SandboxRow | None:
        """Return a sandbox by id."""
        rows = self._db.rows(f"SELECT {_SANDBOX} FROM sandboxes WHERE id = ?", (sandbox,))
        return _to_sandbox(rows[0]) if rows else None

    def all(self) -> tuple[SandboxRow, ...]:
        """Return the sandboxes of all projects."""
        return tuple(map(_to_sandbox, self._db.rows(f"SELECT {_SANDBOX} FROM sandboxes ORDER BY project, name")))

    def of_project(self, project: bytes) -> tuple[SandboxRow, ...]:
        """Return a project's sandboxes by name."""
        rows = self._db.rows(f"SELECT {_SANDBOX} FROM sandboxes WHERE project = ? ORDER BY name", (project,))
        return tuple(map(_to_sandbox, rows))

    def projects_at(self, device: int, inode: int) -> tuple[bytes, ...]:
        """Return the projects whose directory had this device and inode when they were last used."""
        sql = "SELECT DISTINCT project FROM sandboxes WHERE device = ? AND inode = ? ORDER BY project"
        return tuple(as_blob(row[0]) for row in self._db.rows(sql, (to_signed(device), to_signed(inode))))

    def mark(self, sandbox: SandboxId) -> None:
        """Remember that something in the project's top directory marked it as a project."""
        self._db.change("UPDATE sandboxes SET marked = 1 WHERE id = ? AND marked = 0", (sandbox,))

    def is_marked(self, project: bytes, inode: int) -> bool:
        """Tell whether this very directory once had such a mark."""
        found = self._db.rows(
            "SELECT 1 FROM sandboxes WHERE project = ? AND inode = ? AND marked = 1", (project, to_signed(inode))
        )
        return bool(found)

    def move(self, sandbox: SandboxId, device: int, inode: int) -> None:
        """Record that the project's directory is another one from now on."""
        self._db.change(
            "UPDATE sandboxes SET device = ?, inode = ?, marked = 0 WHERE id = ?",
            (to_signed(device), to_signed(inode), sandbox),
        )

    def remove(self, sandbox: SandboxId) -> None:
        """Forget a sandbox of which nothing is left: one that has a run or a layer stays."""
        self._db.change(
            "DELETE FROM sandboxes WHERE id = ? AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.sandbox = sandboxes.id)"
            " AND NOT EXISTS (SELECT 1 FROM layers WHERE layers.sandbox = sandboxes.id)",
            (sandbox,),
        )


class LayerRow(Record):
    """One layer as the store keeps it; `seq` is its place among all others.

    `mark_ns` of an open layer may be a little older than the mark that it is sealed with. It is 0, and everything in
    the live directory counts as changed meanwhile, where an older unspill opened the layer.
    """

    id: LayerId
    sandbox: SandboxId
    root: bytes
    run: RunId
    mark_ns: int = 0
    seq: int = 0


# What rows mean: hundreds of layers may be held, and each run asks for all of them
_known: dict[Row, LayerRow] = {}


class LayerTable(Table):
    """Layers by sandbox, oldest first."""

    __slots__ = ()

    def add_open(self, layers: Iterable[LayerRow]) -> None:
        """Record layers before their directories are made."""
        self._db.change_each(
            "INSERT INTO layers (id, sandbox, root, run, state, mark_ns) VALUES (?, ?, ?, ?, 'open', ?)",
            [(layer.id, layer.sandbox, layer.root, layer.run, layer.mark_ns) for layer in layers],
        )

    def set_mark(self, layer: LayerId, mark_ns: int) -> None:
        """Record the time mark of an open layer."""
        self._db.change("UPDATE layers SET mark_ns = ? WHERE id = ? AND state = 'open'", (mark_ns, layer))

    def pass_on(self, run: RunId, other: RunId) -> None:
        """Record that the open layers of one run are written by another from now on."""
        self._db.change("UPDATE layers SET run = ? WHERE run = ? AND state = 'open'", (other, run))

    def pass_on_anew(self, layer: LayerId, run: RunId, mark_ns: int) -> None:
        """Record that an open layer to which nothing was written is another run's from now on, with a new time mark."""
        sql = "UPDATE layers SET run = ?, mark_ns = ? WHERE id = ? AND state = 'open'"
        self._db.change(sql, (run, mark_ns, layer))

    def move(self, run: RunId, sandbox: SandboxId) -> None:
        """Give the open layers of a run to another sandbox."""
        self._db.change("UPDATE layers SET sandbox = ? WHERE run = ? AND state = 'open'", (sandbox, run))

    def add_sealed(self, layer: LayerRow) -> None:
        """Record a layer that is sealed from the beginning, on top of its stack."""
        self._db.change(
            "INSERT INTO layers (id, sandbox, root, run, state, mark_ns) VALUES (?, ?, ?, ?, 'sealed', ?)",
            (layer.id, layer.sandbox, layer.root, layer.run, layer.mark_ns),
        )

    def add_sealed_at(self, layer: LayerRow) -> None:
        """Record a sealed layer again that was taken out of its stack: above those that are older than it.

        Those above it move up; so does it, where its place was given away.
        """
        with self._db:
            taken = self._db.rows("SELECT 1 FROM layers WHERE seq = ?", (layer.seq,))
            if not taken:
                self._db.change(
                    "INSERT INTO layers (seq, id, sandbox, root, run, state, mark_ns)"
                    " VALUES (?, ?, ?, ?, ?, 'sealed', ?)",
                    (layer.seq, layer.id, layer.sandbox, layer.root, layer.run, layer.mark_ns),
                )
                return
            above = [row for row in self.sealed(layer.sandbox) if row.root == layer.root and row.seq > layer.seq]
            self.add_sealed(layer)
            for row in above:
                self._raise(row.id)

    def seal(self, layer: LayerId, mark_ns: int) -> bool:
        """Make an open layer a sealed one, on top of its stack; tell whether it was still there."""
        sql = "UPDATE layers SET state = 'sealed', mark_ns = ? WHERE id = ? AND state = 'open'"
        with self._db:
            if self._db.change(sql, (mark_ns, layer)) != 1:
                return False
            # Others that began later may have ended before
            sql = (
                "SELECT 1 FROM layers JOIN layers AS other USING (sandbox)"
                " WHERE layers.id = ? AND other.state = 'sealed' AND other.seq > layers.seq"
            )
            if self._db.rows(sql, (layer,)):
                self._raise(layer)
        return True

    def _raise(self, layer: str) -> None:
        """Give a layer a place above all that were ever given: SQLite does not count those that an UPDATE gives."""
        self._db.change(
            "UPDATE sqlite_sequence SET seq = 1 + max(seq, (SELECT max(layers.seq) FROM layers)) WHERE name = 'layers'"
        )
        sql = "UPDATE layers SET seq = (SELECT seq FROM sqlite_sequence WHERE name = 'layers') WHERE id = ?"
        self._db.change(sql, (layer,))

    def sealed(self, sandbox: SandboxId) -> tuple[LayerRow, ...]:
        """Return a sandbox's sealed layers of all roots, oldest first."""
        sql = f"SELECT {_LAYER} FROM layers WHERE sandbox = ? AND state = 'sealed' ORDER BY seq"
        return tuple(map(_to_layer, self._db.rows(sql, (sandbox,))))

    def sealed_ids(self, sandbox: SandboxId) -> tuple[str, ...]:
        """Return the ids of those, for whoever only wants to know whether they are still the same."""
        sql = "SELECT id FROM layers WHERE sandbox = ? AND state = 'sealed' ORDER BY seq"
        return tuple(as_text(row[0]) for row in self._db.rows(sql, (sandbox,)))

    def open(self, sandbox: SandboxId) -> tuple[LayerRow, ...]:
        """Return the layers that runs of a sandbox are writing, or left when they died."""
        sql = f"SELECT {_LAYER} FROM layers WHERE sandbox = ? AND state = 'open' ORDER BY seq"
        return tuple(map(_to_layer, self._db.rows(sql, (sandbox,))))

    def find(self, layer: LayerId) -> LayerRow | None:
        """Return a layer by id."""
        rows = self._db.rows(f"SELECT {_LAYER} FROM layers WHERE id = ?", (layer,))
        return _to_layer(rows[0]) if rows else None

    def folding(self) -> tuple[LayerRow, ...]:
        """Return open layers that no run writes: others are being folded into them, or were when somebody died."""
        sql = (
            f"SELECT {_LAYER} FROM layers WHERE state = 'open'"
            " AND run NOT IN (SELECT id FROM runs WHERE ended_ns IS NULL)"
        )
        return tuple(map(_to_layer, self._db.rows(sql)))

    def open_of_run(self, run: RunId) -> tuple[LayerRow, ...]:
        """Return the open layers of one run."""
        sql = f"SELECT {_LAYER} FROM layers WHERE run = ? AND state = 'open' ORDER BY seq"
        return tuple(map(_to_layer, self._db.rows(sql, (run,))))

    def retire(self, layers: Iterable[LayerId]) -> None:
        """Take layers out of their stacks; a run that began before may still have them mounted."""
        rows = [(layer,) for layer in layers]
        with self._db:
            self._db.change_each(
                "INSERT OR IGNORE INTO retired (id, sandbox, retired_at)"
                " SELECT id, sandbox, (SELECT max(seq) FROM layers) FROM layers WHERE id = ?",
                rows,
            )
            self._db.change_each("DELETE FROM layers WHERE id = ?", rows)

    def take_unused(self) -> tuple[LayerId, ...]:
        """Forget and return retired layers that no run can have mounted: all open ones began after the retirement."""
        rows = self._db.rows(
            "SELECT id FROM retired AS old WHERE NOT EXISTS (SELECT 1 FROM layers AS user"
            " WHERE user.sandbox = old.sandbox AND user.state = 'open' AND user.seq <= old.retired_at)"
        )
        unused = tuple(LayerId(as_id(row[0])) for row in rows)
        if unused:
            self._db.change_each("DELETE FROM retired WHERE id = ?", [(layer,) for layer in unused])
            self.remove(unused)
        return unused

    def ids(self, *, only_open: bool = False) -> set[str]:
        """Return every layer's id, or those of open ones."""
        sql = "SELECT id FROM layers UNION ALL SELECT id FROM retired"
        if only_open:
            sql = "SELECT id FROM layers WHERE state = 'open'"
        return {as_id(row[0]) for row in self._db.rows(sql)}

    def remove(self, layers: Iterable[LayerId]) -> None:
        """Forget layers; their directories are garbage from then on."""
        rows = [(layer,) for layer in layers]
        with self._db:
            self._db.change_each("DELETE FROM layers WHERE id = ?", rows)
            self._db.change_each("DELETE FROM marks WHERE layer = ?", rows)


class MarkTable(Table):
    """Time marks of single paths, which hold for them in place of their layer's own; they go with the layer."""

    __slots__ = ()

    def put(self, layer: LayerId, marks: Mapping[bytes, int]) -> None:
        """Keep the marks of paths, in place of older ones of the same paths."""
        self._db.change_each(
            "INSERT OR REPLACE INTO marks (layer, path, mark_ns) VALUES (?, ?, ?)",
            [(layer, path, mark_ns) for path, mark_ns in marks.items()],
        )

    def of(self, layer: LayerId) -> dict[bytes, int]:
        """Return the marks of a layer's paths that have one of their own."""
        rows = self._db.rows("SELECT path, mark_ns FROM marks WHERE layer = ?", (layer,))
        return {as_blob(path): as_int(mark_ns) for path, mark_ns in rows}


class TextTable(Table):
    """Texts of files, by the layer whose run saw them so, or by the operation that put them so.

    A merge starts from them. Without one there is a conflict, so that nothing depends on their being there. Of what an
    operation put that is no text, or a large one, there is a digest instead.
    """

    __slots__ = ()

    def put(self, owner: str, texts: Mapping[tuple[bytes, bytes], bytes]) -> None:
        """Keep texts by root and path, packed by whoever reads them again."""
        now_ns = time.time_ns()
        rows = [(owner, root, path, now_ns, text) for (root, path), text in texts.items()]
        sql = "INSERT OR REPLACE INTO texts (owner, root, path, at_ns, text) VALUES (?, ?, ?, ?, ?)"
        if rows:
            self._db.change_each(sql, rows)

    def find(self, owner: str, root: bytes, path: bytes) -> bytes | None:
        """Return a text; None where none was kept."""
        sql = "SELECT text FROM texts WHERE owner = ? AND root = ? AND path = ?"
        rows = self._db.rows(sql, (owner, root, path))
        return as_blob(rows[0][0]) if rows else None

    def of_root(self, owner: str, root: bytes) -> dict[bytes, bytes]:
        """Return the texts that are kept below a root, by path."""
        rows = self._db.rows("SELECT path, text FROM texts WHERE owner = ? AND root = ?", (owner, root))
        return {as_blob(path): as_blob(text) for path, text in rows}

    def remove_before(self, moment_ns: int) -> None:
        """Forget texts that are older, but for those of layers and operations that are there."""
        self._db.change(
            "DELETE FROM texts WHERE at_ns < ? AND owner NOT IN (SELECT id FROM layers)"
            " AND owner NOT IN (SELECT id FROM operations)",
            (moment_ns,),
        )


class BaseTable(Table):
    """What the changes of a layer were made from, packed; kept beyond the layer, for as long as it may be undone."""

    __slots__ = ()

    def put(self, layer: LayerId, packed: bytes) -> None:
        """Keep the bases of a layer."""
        sql = "INSERT OR REPLACE INTO bases (layer, at_ns, packed) VALUES (?, ?, ?)"
        self._db.change(sql, (layer, time.time_ns(), packed))

    def find(self, layer: str) -> bytes | None:
        """Return the bases of a layer; None where none were kept."""
        rows = self._db.rows("SELECT packed FROM bases WHERE layer = ?", (layer,))
        return as_blob(rows[0][0]) if rows else None

    def remove_before(self, moment_ns: int) -> None:
        """Forget bases that are older, but for those of layers that are there."""
        self._db.change("DELETE FROM bases WHERE at_ns < ? AND layer NOT IN (SELECT id FROM layers)", (moment_ns,))


class CacheRow(Record):
    """One cache layer. `tier` counts how often it was squashed; `base` is the top that its run started from."""

    id: LayerId
    project: bytes
    path: bytes
    run: RunId
    position: int = 0
    tier: int = 0
    base: LayerId | None = None


class CacheTable(Table):
    """Cache layers by project, the lowest first.

    One is open (a run writes it), sealed (part of the stack) or retired (replaced by a squashed one, but perhaps still
    mounted by a run that began before).
    """

    __slots__ = ()

    def add_open(self, caches: Iterable[CacheRow]) -> None:
        """Record layers before their directories are made."""
        self._db.change_each(
            "INSERT INTO caches (id, project, path, run, state, position, tier, base)"
            " VALUES (?, ?, ?, ?, 'open', 0, ?, ?)",
            [(row.id, row.project, row.path, row.run, row.tier, row.base) for row in caches],
        )

    def sealed(self, project: bytes) -> tuple[CacheRow, ...]:
        """Return the stacks of all of a project's caches, the lowest layer first."""
        sql = f"SELECT {_CACHE} FROM caches WHERE project = ? AND state = 'sealed' ORDER BY position"
        return tuple(map(_to_cache, self._db.rows(sql, (project,))))

    def paths_below(self, owner: bytes) -> tuple[bytes, ...]:
        """Return what there are layers over, of every owner whose name begins so."""
        sql = "SELECT DISTINCT path FROM caches WHERE state = 'sealed' AND substr(project, 1, ?) = ?"
        return tuple(as_blob(row[0]) for row in self._db.rows(sql, (len(owner), owner)))

    def fold(self, cache: CacheRow) -> bool:
        """Put an open layer on top if the top is still the one that its run started from; tell whether it is."""
        with self._db:
            tops = self._db.rows(
                "SELECT id, position FROM caches WHERE project = ? AND path = ? AND state = 'sealed'"
                " ORDER BY position DESC LIMIT 1",
                (cache.project, cache.path),
            )
            top, position = (as_id(tops[0][0]), as_int(tops[0][1])) if tops else (None, 0)
            sql = "UPDATE caches SET state = 'sealed', position = ? WHERE id = ? AND state = 'open' AND base IS ?"
            return self._db.change(sql, (position + 1, cache.id, top)) == 1

    def replace(self, old: tuple[CacheRow, ...], new: CacheRow) -> bool:
        """Seal `new` in the place of adjacent layers, which are retired; tell whether all were still there."""
        with self._db:
            still = {row.id for row in self.sealed(new.project) if row.path == new.path}
            if not still.issuperset(row.id for row in old):
                return False
            self.retire(old)
            sql = "UPDATE caches SET state = 'sealed', position = ? WHERE id = ? AND state = 'open'"
            return self._db.change(sql, (old[-1].position, new.id)) == 1

    def retire(self, layers: tuple[CacheRow, ...]) -> None:
        """Take sealed layers out of their stack, and remember which runs began before."""
        with self._db:
            latest = self._db.rows("SELECT max(seq) FROM caches")[0][0]
            self._db.change_each(
                "UPDATE caches SET state = 'retired', retired_at = ? WHERE id = ? AND state = 'sealed'",
                [(latest, row.id) for row in layers],
            )

    def pass_on(self, run: RunId, other: RunId) -> None:
        """Record that the open layers of one run are written by another from now on."""
        self._db.change("UPDATE caches SET run = ? WHERE run = ? AND state = 'open'", (other, run))

    def open_of_run(self, run: RunId) -> tuple[LayerId, ...]:
        """Return the open cache layers of one run."""
        rows = self._db.rows("SELECT id FROM caches WHERE run = ? AND state = 'open'", (run,))
        return tuple(LayerId(as_id(row[0])) for row in rows)

    def runs_left(self) -> tuple[RunId, ...]:
        """Return runs that have ended and still have open layers: kept for the next one, or left by a dead process."""
        sql = (
            "SELECT DISTINCT run FROM caches WHERE state = 'open'"
            " AND run NOT IN (SELECT id FROM runs WHERE ended_ns IS NULL)"
        )
        return tuple(RunId(as_id(row[0])) for row in self._db.rows(sql))

    def take_unused(self) -> tuple[LayerId, ...]:
        """Forget and return retired layers that no run can have mounted: all open ones began after the retirement."""
        rows = self._db.rows(
            "SELECT id FROM caches AS old WHERE state = 'retired' AND NOT EXISTS (SELECT 1 FROM caches AS user"
            " WHERE user.project = old.project AND user.path = old.path AND user.state = 'open'"
            " AND user.seq <= old.retired_at)"
        )
        unused = tuple(LayerId(as_id(row[0])) for row in rows)
        if unused:
            self.remove(unused)
        return unused

    def ids(self, *, only_open: bool = False) -> set[str]:
        """Return every layer's id, or those of open ones."""
        sql = "SELECT id FROM caches WHERE state = 'open'" if only_open else "SELECT id FROM caches"
        return {as_id(row[0]) for row in self._db.rows(sql)}

    def remove(self, caches: Iterable[LayerId]) -> None:
        """Forget layers; their directories are garbage from then on."""
        self._db.change_each("DELETE FROM caches WHERE id = ?", [(cache,) for cache in caches])


def _to_sandbox(row: Row) -> SandboxRow:
    identity, project, name, device, inode, created_ns, marked = row
    return SandboxRow(
        id=SandboxId(as_id(identity)),
        project=as_blob(project),
        name=as_text(name),
        device=as_unsigned(device),
        inode=as_unsigned(inode),
        created_ns=as_int(created_ns),
        marked=bool(as_int(marked)),
    )


def _to_layer(row: Row) -> LayerRow:
    found = _known.get(row)
    if found is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        found = _known[row] = _new_layer(row)
    return found


def _new_layer(row: Row) -> LayerRow:
    identity, sandbox, root, run, mark_ns, seq = row
    return LayerRow(
        id=LayerId(as_id(identity)),
        sandbox=SandboxId(as_id(sandbox)),
        root=as_blob(root),
        run=RunId(as_id(run)),
        mark_ns=as_int(mark_ns),
        seq=as_int(seq),
    )


def _to_cache(row: Row) -> CacheRow:
    identity, project, path, run, position, tier = row
    return CacheRow(
        id=LayerId(as_id(identity)),
        project=as_blob(project),
        path=as_blob(path),
        run=RunId(as_id(run)),
        position=as_int(position),
        tier=as_int(tier),
    )
