# SPDX-License-Identifier: Apache-2.0
"""Rebuild the store from what lies beside it: manifests of layers, journals of operations.

A database that can't be trusted is kept under another name. Rows come before directories here too, all of it can be
done again, and nothing is removed: what no manifest or journal explains stays where it is and is named.
"""

from __future__ import annotations

import os

from unspill.apply.journal import read_journal
from unspill.errors import SandboxUnavailable, StoreDamaged, StoreTooNew
from unspill.layers.locks import SandboxLock
from unspill.layers.manifest import read_manifest, write_manifests
from unspill.layers.places import upper_dir
from unspill.layers.sweep import lost_layers
from unspill.model.layer import LayerId, SandboxId
from unspill.model.operation import OperationId
from unspill.model.record import Record
from unspill.store.cells import is_id
from unspill.store.db import Store, set_database_aside
from unspill.store.sandboxes import SandboxRow
from unspill.store.state import check_state_dir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.apply.journal import Journal
    from unspill.layers.manifest import Manifest
    from unspill.store.layers import LayerRow


class Recovered(Record):
    """What was brought back. `database` is where a damaged one lies now, `reason` what is wrong with it.

    `unknown` are layers without a readable manifest and operations without a readable journal.
    """

    database: bytes | None = None
    reason: str = ""
    sandboxes: tuple[SandboxRow, ...] = ()
    layers: tuple[LayerId, ...] = ()
    operations: tuple[OperationId, ...] = ()
    unknown: tuple[bytes, ...] = ()


def recover(state: bytes) -> Recovered:
    """Bring back every held layer and every operation that the state directory has and the store has not.

    Raises:
        SandboxUnavailable: a run or an operation is going on.
        StoreError: the directory is not ours, or can't be used.
    """
    if not check_state_dir(state):
        return Recovered()
    locks = _lock_all(state)
    try:
        reason = _find_damage(state)
        database = set_database_aside(state) if reason else None
        with Store.open(state) as store:
            sandboxes, layers = _restore_layers(store)
            operations = _restore_operations(store)
            _adopt_strays(store)
            return Recovered(
                database=database,
                reason=reason,
                sandboxes=sandboxes,
                layers=layers,
                operations=operations,
                unknown=(*_unknown_layers(store), *_unknown_operations(store)),
            )
    finally:
        for lock in locks:
            lock.release()


def _lock_all(state: bytes) -> list[SandboxLock]:
    held: list[SandboxLock] = []
    for name in filter(is_id, os.listdir(os.fsdecode(state + b"/locks"))):
        lock = SandboxLock(state, SandboxId(name))
        if not lock.try_acquire():
            for other in held:
                other.release()
            raise SandboxUnavailable("A sandbox is in use.", remedy="Wait for its run to end, then recover.")
        held.append(lock)
    return held


def _find_damage(state: bytes) -> str:
    """Return what is wrong with the database, an empty text where nothing is."""
    try:
        with Store.open(state) as store:
            store.check()
            return _find_contradiction(store)
    except (StoreDamaged, StoreTooNew) as error:
        return error.message


def _find_contradiction(store: Store) -> str:
    """Compare rows with manifests: those have checksums, pages of a database have none."""
    for layer in store.layers.sealed_ids():
        row, manifest = store.layers.find(layer), read_manifest(store.state, layer)
        if row is not None and manifest is not None:
            said = manifest.layer
            if (row.root, row.mark_ns, row.run) != (said.root, said.mark_ns, said.run):
                return f"layer {layer} is not what its manifest says"
    return ""


def _restore_layers(store: Store) -> tuple[tuple[SandboxRow, ...], tuple[LayerId, ...]]:
    """Record layers that have a manifest but no row, then move their directories back."""
    places = _find_uppers(store.state)
    known = store.layers.ids()
    missing: dict[SandboxId, list[Manifest]] = {}
    for layer in places.keys() - known:
        manifest = read_manifest(store.state, LayerId(layer))
        if manifest is not None:
            missing.setdefault(manifest.sandbox.id, []).append(manifest)
    # The sandbox that was made last keeps the name
    groups = sorted(missing.values(), key=lambda group: -group[0].sandbox.created_ns)
    if groups:
        with store.durable:
            sandboxes = tuple(_restore_stack(store, group) for group in groups)
    else:
        sandboxes = ()
    restored = tuple(sorted(manifest.layer.id for group in groups for manifest in group))
    for layer in store.layers.ids():
        if layer in places and places[layer] != upper_dir(store.state, LayerId(layer)):
            _move_back(store.state, LayerId(layer), places[layer])
    write_manifests(store, restored, durable=True)
    return sandboxes, restored


def _find_uppers(state: bytes) -> dict[str, bytes]:
    """Return where the upper directory of each layer is, also of those that an interrupted operation has moved."""
    trees = (
        b"%b/operations/%b/tree" % (state, os.fsencode(name))
        for name in os.listdir(os.fsdecode(state + b"/pending"))
        if is_id(name)
    )
    found = {name: os.path.join(tree, os.fsencode(name)) for tree in trees for name in _names(tree)}
    found |= lost_layers(state)
    layers = state + b"/layers"
    found |= {name: os.path.join(layers, os.fsencode(name)) for name in _names(layers)}
    return {name: path for name, path in found.items() if is_id(name)}


def _names(path: bytes) -> list[str]:
    try:
        return os.listdir(os.fsdecode(path))
    except OSError:
        return []


def _restore_stack(store: Store, manifests: list[Manifest]) -> SandboxRow:
    """Put layers back into their sandbox, each at its depth among those that are still recorded."""
    sandbox = _find_place(store, manifests[0].sandbox)
    rows = _with_depths(store, sandbox.id)
    marks = {row.id: store.marks.of(row.id) for _depth, row in rows}
    for manifest in manifests:
        if manifest.run is not None:
            store.runs.restore(manifest.run.replace(sandbox=sandbox.id))
        rows.append((manifest.depth, manifest.layer.replace(sandbox=sandbox.id)))
        marks[manifest.layer.id] = dict(manifest.overrides)
    rows.sort(key=lambda pair: (pair[0], pair[1].mark_ns))
    store.layers.remove(row.id for _depth, row in rows)
    for _depth, row in rows:
        store.layers.add_sealed(row)
        store.marks.put(row.id, marks[row.id])
    return sandbox


def _find_place(store: Store, sandbox: SandboxRow) -> SandboxRow:
    """Return the sandbox itself, or one of the same name that holds nothing, or a new one beside that."""
    namesake = store.sandboxes.find(sandbox.project, sandbox.name)
    is_free = namesake is not None and not (store.layers.sealed(namesake.id) or store.layers.open(namesake.id))
    if namesake is not None and is_free and store.sandboxes.find_id(sandbox.id) is None:
        return namesake
    return store.sandboxes.restore(sandbox)


def _adopt_strays(store: Store) -> None:
    """Make a sandbox for layers whose own one is unknown: an operation was finished after its database was lost."""
    rows = [store.layers.find(LayerId(layer)) for layer in store.layers.ids()]
    strays = {row.sandbox for row in rows if row is not None}
    strays -= {sandbox.id for sandbox in store.sandboxes.all()}
    for operation in store.operations.all() if strays else ():
        if operation.sandbox in strays:
            found = os.stat(operation.project) if os.path.isdir(operation.project) else os.stat(store.state)
            sandbox = SandboxRow(
                id=SandboxId(operation.sandbox),
                project=operation.project,
                name="default",
                device=found.st_dev,
                inode=found.st_ino,
                created_ns=operation.at_ns,
            )
            store.sandboxes.restore(sandbox)


def _with_depths(store: Store, sandbox: SandboxId) -> list[tuple[int, LayerRow]]:
    counted: dict[bytes, int] = {}
    rows = []
    for row in store.layers.sealed(sandbox):
        index = counted[row.root] = counted.get(row.root, -1) + 1
        manifest = read_manifest(store.state, row.id)
        rows.append((index if manifest is None else manifest.depth, row))
    return rows


def _move_back(state: bytes, layer: LayerId, path: bytes) -> None:
    # What lies in the tree of an operation is moved by whoever finishes or takes back that operation
    if not os.path.basename(os.path.dirname(path)).startswith(b"lost-"):
        return
    os.rename(path, upper_dir(state, layer))
    try:
        os.rmdir(os.path.dirname(path))
    except OSError:
        return


def _restore_operations(store: Store) -> tuple[OperationId, ...]:
    """Record the operations whose journals are complete; one that was interrupted is for the next start."""
    found = []
    for name in _unrecorded(store):
        journal = _read(store.state, name)
        if journal is not None and journal.end is not None and journal.end.operation.id == name:
            found.append(journal.end.operation)
    found.sort(key=lambda operation: (operation.at_ns, operation.number))
    if found:
        with store.durable:
            for operation in found:
                store.operations.add(operation)
    return tuple(operation.id for operation in found)


def _unrecorded(store: Store) -> Iterable[str]:
    names = set(filter(is_id, _names(store.state + b"/operations")))
    return sorted(names - store.operations.ids() - set(_names(store.state + b"/pending")))


def _read(state: bytes, name: str) -> Journal | None:
    try:
        return read_journal(b"%b/operations/%b/journal" % (state, name.encode()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _unknown_layers(store: Store) -> Iterable[bytes]:
    known = store.layers.ids() | store.caches.ids()
    return (path for name, path in sorted(_find_uppers(store.state).items()) if name not in known)


def _unknown_operations(store: Store) -> Iterable[bytes]:
    return (b"%b/operations/%b" % (store.state, name.encode()) for name in _unrecorded(store))
