# SPDX-License-Identifier: Apache-2.0
"""Without its database, or with a damaged one, nothing that is held or displaced is lost; recover brings it back."""

import os
import random
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.layers.ground import Ground
from tests.unit.sandbox.ledger import START_NS, Ledger
from unspill.apply.places import journal_file
from unspill.errors import SandboxUnavailable, StoreError
from unspill.layers.locks import lock_sandbox
from unspill.layers.places import manifest_file, upper_dir
from unspill.layers.stack import load_stacks
from unspill.layers.sweep import sweep
from unspill.model.layer import LayerId
from unspill.model.operation import Operation
from unspill.sandbox.records import files_of
from unspill.sandbox.recovering import Recovered, recover
from unspill.store.db import Store
from unspill.store.migrations import MIGRATIONS

HELD = [b"first", b"second", b"third"]


class Kept:
    """A state directory with held layers and operations, and what must be found there whatever happens."""

    def __init__(self, base: Path) -> None:
        ledger = Ledger(base)
        ledger.write(b"f", b"old")
        for number in range(4):
            ledger.apply({b"f": b"%d" % number, b"new%d" % number: b"x"}, START_NS + number)
        self.ground = Ground(ledger.store, ledger.project, ledger.sandbox)
        for name in HELD:
            self.ground.hold(name)
        self.layers = list(ledger.store.layers.sealed(ledger.sandbox.id))
        ledger.store.marks.put(self.layers[1].id, {b"p\xff": 9})
        from unspill.layers.manifest import write_manifests

        write_manifests(ledger.store, [self.layers[1].id])
        self.runs = ledger.store.runs.latest(ledger.sandbox.id, 10)
        self.operations: tuple[Operation, ...] = ledger.store.operations.all()
        self.sandbox, self.project, self.state = ledger.sandbox, ledger.project, ledger.state
        self.files = files_of(ledger.store, ledger.project)
        ledger.store.close()

    @property
    def database(self) -> bytes:
        return self.state + b"/store.db"

    def everything(self) -> dict[str, str]:
        """Return what is held and displaced, by name, wherever it lies now."""
        found = {}
        for path in Path(os.fsdecode(self.state)).rglob("*"):
            parts = path.relative_to(os.fsdecode(self.state)).parts
            if path.is_file() and (parts[0] in ("layers", "operations") or parts[0].startswith("lost-")):
                found["/".join(parts[1:])] = path.read_text("latin-1")
        return found

    def assert_recovered(self, name: str = "default") -> None:
        with Store.open(self.state) as store:
            sandbox = store.sandboxes.find(self.project, name)
            assert sandbox is not None
            (stack,) = load_stacks(store, sandbox.id, (self.project,))
            assert [layer.id for layer in stack.sealed] == [row.id for row in self.layers]
            assert [os.listdir(layer.upper) for layer in stack.sealed] == [[name] for name in HELD]
            assert [layer.mark.ctime_ns for layer in stack.sealed] == [row.mark_ns for row in self.layers]
            assert store.marks.of(self.layers[1].id) == {b"p\xff": 9}
            assert store.operations.all() == self.operations
            store.check()


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_a_database_that_is_gone_is_rebuilt(kept: Kept) -> None:
    os.unlink(kept.database)
    recovered = recover(kept.state)
    assert recovered.database is None
    assert recovered.layers == tuple(sorted(row.id for row in kept.layers))
    assert set(recovered.operations) == {operation.id for operation in kept.operations}
    assert recovered.unknown == ()
    kept.assert_recovered()
    with Store.open(kept.state) as store:
        found = store.runs.latest(recovered.sandboxes[0].id, 10)
        assert [(run.id, run.number, run.argv, run.outcome, run.held) for run in found] == [
            (run.id, run.number, run.argv, run.outcome, run.held) for run in kept.runs
        ]
        assert store.operations.next_number(kept.project) == 5
        assert [file.path for file in files_of(store, kept.project)] == [file.path for file in kept.files]
    assert [name for name in os.listdir(kept.state) if name.startswith(b"lost-")] == []


def test_recovering_again_changes_nothing(kept: Kept) -> None:
    os.unlink(kept.database)
    recover(kept.state)
    assert recover(kept.state) == Recovered()
    kept.assert_recovered()


def test_recovering_what_is_whole_changes_nothing(kept: Kept) -> None:
    assert recover(kept.state) == Recovered()
    kept.assert_recovered()
    assert recover(kept.state + b"-none") == Recovered()


def test_a_sweep_and_a_new_run_before_the_recovery_lose_nothing(kept: Kept) -> None:
    before = kept.everything()
    os.unlink(kept.database)
    with Store.open(kept.state) as store:
        sandbox = store.sandboxes.get_or_create(kept.project, "default", 1, 2)
        sweep(store)
        ground = Ground(store, kept.project, sandbox)
        ground.drop(ground.open())
        sweep(store)
    assert kept.everything() == before
    recover(kept.state)
    kept.assert_recovered()


def test_held_layers_beside_newer_ones_come_back_in_a_sandbox_of_their_own(kept: Kept) -> None:
    os.unlink(kept.database)
    with Store.open(kept.state) as store:
        sandbox = store.sandboxes.get_or_create(kept.project, "default", 1, 2)
        Ground(store, kept.project, sandbox).hold(b"newer")
    recovered = recover(kept.state)
    assert [sandbox.name for sandbox in recovered.sandboxes] == ["default-lost-1"]
    kept.assert_recovered("default-lost-1")
    with Store.open(kept.state) as store:
        (layer,) = load_stacks(store, sandbox.id, (kept.project,))[0].sealed
        assert os.listdir(layer.upper) == [b"newer"]


def test_a_layer_that_lost_its_row_comes_back_at_its_depth(kept: Kept) -> None:
    with Store.open(kept.state) as store:
        store.layers.remove([kept.layers[1].id])
        sweep(store)
        assert len(store.layers.sealed(kept.sandbox.id)) == 2
    assert recover(kept.state).layers == (kept.layers[1].id,)
    kept.assert_recovered()


def test_an_operation_that_lost_its_row_comes_back(kept: Kept) -> None:
    with Store.open(kept.state) as store:
        store.operations.remove([kept.operations[-1].id])
        sweep(store)
    assert recover(kept.state).operations == (kept.operations[-1].id,)
    kept.assert_recovered()


def test_what_nothing_explains_is_named_and_stays(kept: Kept) -> None:
    os.unlink(kept.database)
    layer, operation = kept.layers[2].id, kept.operations[0].id
    with open(manifest_file(kept.state, layer), "r+b") as file:
        file.write(b"x")
    with open(journal_file(kept.state, operation), "r+b") as file:
        file.write(b"x")
    recovered = recover(kept.state)
    assert len(recovered.layers) == 2
    assert len(recovered.operations) == 3
    aside, journal = recovered.unknown
    assert os.path.basename(aside) == layer.encode()
    assert os.listdir(aside) == [b"third"]
    assert journal == kept.state + b"/operations/" + operation.encode()
    with Store.open(kept.state) as store:
        sweep(store)
    assert os.path.exists(aside)
    assert os.path.exists(journal)


def test_a_manifest_with_a_name_for_an_id_is_not_believed(kept: Kept) -> None:
    from zlib import crc32

    os.unlink(kept.database)
    path = manifest_file(kept.state, kept.layers[0].id)
    line = Path(os.fsdecode(path)).read_bytes().partition(b" ")[2].removesuffix(b"\n")
    line = line.replace(kept.sandbox.id.encode(), b"../../../../etc.")
    Path(os.fsdecode(path)).write_bytes(b"%08x %b\n" % (crc32(line), line))
    assert kept.layers[0].id not in recover(kept.state).layers


def test_a_store_of_a_newer_unspill_is_kept_aside(kept: Kept) -> None:
    with sqlite3.connect(kept.database) as newer:
        newer.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    newer.close()
    recovered = recover(kept.state)
    assert "version" in recovered.reason
    assert recovered.database is not None
    assert os.path.exists(recovered.database)
    kept.assert_recovered()


def test_a_database_of_another_program_is_kept_aside(kept: Kept) -> None:
    os.unlink(kept.database)
    with sqlite3.connect(kept.database) as foreign:
        foreign.execute("CREATE TABLE mail (subject TEXT)")
    foreign.close()
    recovered = recover(kept.state)
    assert recovered.database is not None
    with sqlite3.connect(recovered.database) as foreign:
        assert foreign.execute("SELECT count(*) FROM mail").fetchone() == (0,)
    foreign.close()
    kept.assert_recovered()


def test_a_row_that_contradicts_its_manifest_is_damage(kept: Kept) -> None:
    with sqlite3.connect(kept.database) as changed:
        changed.execute("UPDATE layers SET mark_ns = mark_ns + 1 WHERE id = ?", (kept.layers[0].id,))
    changed.close()
    recovered = recover(kept.state)
    assert "manifest" in recovered.reason
    kept.assert_recovered()


def test_nothing_is_recovered_while_a_sandbox_is_in_use(kept: Kept) -> None:
    os.unlink(kept.database)
    with lock_sandbox(kept.state, kept.sandbox.id), pytest.raises(SandboxUnavailable, match="in use"):
        recover(kept.state)
    recover(kept.state)
    kept.assert_recovered()


def test_layers_that_an_interrupted_operation_has_moved_are_recorded_for_it(kept: Kept) -> None:
    operation, layer = b"a" * 16, kept.layers[0].id
    tree = b"%b/operations/%b/tree" % (kept.state, operation)
    os.makedirs(tree)
    os.rename(upper_dir(kept.state, layer), tree + b"/" + layer.encode())
    os.close(os.open(kept.state + b"/pending/" + operation, os.O_CREAT | os.O_WRONLY, 0o600))
    os.unlink(kept.database)
    assert layer in recover(kept.state).layers
    assert os.listdir(tree) == [layer.encode()], "whoever takes the operation back moves it"
    os.rename(tree + b"/" + layer.encode(), upper_dir(kept.state, layer))
    kept.assert_recovered()


def test_a_crash_between_rows_and_directories_is_made_good(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    os.unlink(kept.database)

    def fail(*_paths: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("unspill.sandbox.recovering._move_back", fail)
    with pytest.raises(KeyboardInterrupt):
        recover(kept.state)
    monkeypatch.undo()
    with Store.open(kept.state) as store:
        sweep(store)
    recover(kept.state)
    kept.assert_recovered()


def damages(content: bytes, ids: list[str], *, full: bool) -> Iterator[bytes]:
    """Flip a bit in each page and a digit of each id, and cut the file at each sector."""
    for name in ids:
        for found in re.finditer(name.encode(), content):
            place = found.start() + 5
            yield content[:place] + (b"0" if content[place] != ord("0") else b"1") + content[place + 1 :]
    chance = random.Random(7)
    for page in range(len(content) // 4096):
        for _ in range(20 if full else 1):
            place = page * 4096 + chance.randrange(4096)
            damaged = bytearray(content)
            damaged[place] ^= 1 << chance.randrange(8)
            yield bytes(damaged)
    for size in range(0, len(content), 512 if full else 512 * 13):
        yield content[:size]


@pytest.mark.timeout(600)
def test_no_damage_of_the_database_ever_costs_a_layer_or_a_backup(kept: Kept, tmp_path: Path, full: bool) -> None:
    content = Path(os.fsdecode(kept.database)).read_bytes()
    expected = kept.everything()
    ids: list[str] = [*(row.id for row in kept.layers[:1]), *(one.id for one in kept.operations[:1])]
    whole = os.fsdecode(kept.state) + "-whole"
    os.rename(kept.state, whole)
    seen: dict[str, int] = {}
    for damaged in damages(content, ids, full=full):
        shutil.copytree(whole, os.fsdecode(kept.state), symlinks=True)
        Path(os.fsdecode(kept.database)).write_bytes(damaged)
        outcome = use(kept.state)
        seen[outcome] = seen.get(outcome, 0) + 1
        assert kept.everything() == expected, "deleted on the word of a damaged database"
        recover(kept.state)
        assert kept.everything() == expected
        kept_back(kept)
        shutil.rmtree(os.fsdecode(kept.state))
    assert seen["store-damaged"] > 0
    assert seen["used"] > 0
    os.rename(whole, kept.state)


def use(state: bytes) -> str:
    """Do what each start does, and look at everything."""
    try:
        with Store.open(state) as store:
            sweep(store)
            store.operations.all()
            return "used"
    except StoreError as error:
        return error.code


def kept_back(kept: Kept) -> None:
    """Compare all but names and numbers of runs: a flipped bit there contradicts nothing."""
    with Store.open(kept.state) as store:
        assert set(store.operations.ids()) == {operation.id for operation in kept.operations}
        assert {LayerId(name) for name in store.layers.ids()} == {row.id for row in kept.layers}
        rows = [store.layers.find(row.id) for row in kept.layers]
        assert [(row.root, row.mark_ns) for row in rows if row is not None] == [
            (row.root, row.mark_ns) for row in kept.layers
        ]
        for row in kept.layers:
            assert os.path.isdir(upper_dir(kept.state, row.id))
