# SPDX-License-Identifier: Apache-2.0
"""Without its database, or with a damaged one, nothing that is held or displaced is lost; a copy takes its place."""

import os
import random
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.layers.ground import Ground
from tests.unit.sandbox.ledger import START_NS, Ledger
from unspill.errors import SandboxUnavailable, StoreDamaged, StoreError
from unspill.layers.lifecycle import sweep
from unspill.layers.locks import lock_sandbox, upper_dir
from unspill.sandbox.upkeep import Recovered, recover_now
from unspill.store.copies import make_copy
from unspill.store.db import Store
from unspill.store.migrations import MIGRATIONS

HELD = [b"first", b"second", b"third"]


class Kept:
    """A state directory with held layers and operations, a copy that knows half of them, and nothing else."""

    def __init__(self, base: Path) -> None:
        ledger = Ledger(base)
        ledger.write(b"f", b"old")
        self.ground = Ground(ledger.store, ledger.project, ledger.sandbox)
        self.known, self.unknown = self.fill(ledger, 0), set[str]()
        make_copy(ledger.store.transaction, ledger.state)
        self.unknown = self.fill(ledger, 2)
        self.sandbox, self.project, self.state = ledger.sandbox, ledger.project, ledger.state
        ledger.store.close()

    def fill(self, ledger: Ledger, first: int) -> set[str]:
        """Do operations and hold layers; return the ids of all of them."""
        before = self.rows(ledger.store)
        for number in range(first, first + 2):
            ledger.apply({b"f": b"%d" % number, b"new%d" % number: b"x"}, START_NS + number)
        for name in HELD:
            self.ground.hold(name + b"%d" % first)
        return self.rows(ledger.store) - before

    def rows(self, store: Store) -> set[str]:
        return store.layers.ids() | store.operations.ids()

    @property
    def database(self) -> bytes:
        return self.state + b"/store.db"

    def everything(self) -> dict[str, str]:
        """Return what is held and displaced, by the directory it is in, wherever that lies now."""
        found = {}
        for path in Path(os.fsdecode(self.state)).rglob("*"):
            parts = path.relative_to(os.fsdecode(self.state)).parts
            if parts[0].startswith("lost-"):
                parts = parts[1:]
            if path.is_file() and parts[0] in ("layers", "operations"):
                found["/".join(parts)] = path.read_text("latin-1")
        return found


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kept:
    monkeypatch.setenv("UNSPILL_STATE_DIR", os.fspath(tmp_path / "state"))
    return Kept(tmp_path)


def names(paths: tuple[bytes, ...]) -> set[str]:
    return {os.fsdecode(os.path.basename(path)) for path in paths}


def test_what_the_copy_knows_is_back_and_the_rest_is_set_aside_and_listed(kept: Kept) -> None:
    before = kept.everything()
    os.unlink(kept.database)
    done = recover_now()
    assert done.database is None
    assert done.copied_ns is not None
    assert names(done.aside) == kept.unknown
    assert kept.everything() == before
    with Store.open(kept.state) as store:
        assert kept.rows(store) == kept.known
        rows = store.layers.sealed(kept.sandbox.id)
        assert [os.listdir(upper_dir(kept.state, row.id)) for row in rows] == [[name + b"0"] for name in HELD]
        store.check()


def test_recovering_again_changes_nothing(kept: Kept) -> None:
    os.unlink(kept.database)
    recover_now()
    before = kept.everything()
    assert recover_now() == Recovered()
    assert kept.everything() == before


def test_recovering_what_is_whole_changes_nothing(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    before = kept.everything()
    assert recover_now() == Recovered()
    assert kept.everything() == before
    with Store.open(kept.state) as store:
        assert kept.rows(store) == kept.known | kept.unknown
    monkeypatch.setenv("UNSPILL_STATE_DIR", os.fsdecode(kept.state + b"-none"))
    assert recover_now() == Recovered()
    assert not os.path.exists(kept.state + b"-none")


def test_without_a_copy_everything_is_set_aside(kept: Kept) -> None:
    before = kept.everything()
    shutil.rmtree(kept.state + b"/copies")
    os.unlink(kept.database)
    done = recover_now()
    assert done.copied_ns is None
    assert names(done.aside) == kept.known | kept.unknown
    assert kept.everything() == before
    with Store.open(kept.state) as store:
        assert kept.rows(store) == set()


def test_nothing_works_before_the_recovery_and_nothing_is_lost_by_trying(kept: Kept) -> None:
    before = kept.everything()
    os.unlink(kept.database)
    for _ in range(3):
        with pytest.raises(StoreDamaged, match="missing or empty"):
            Store.open(kept.state)
    assert kept.everything() == before
    assert names(recover_now().aside) == kept.unknown


def test_after_the_recovery_runs_and_sweeps_remove_nothing_of_it(kept: Kept) -> None:
    before = kept.everything()
    os.unlink(kept.database)
    recover_now()
    with Store.open(kept.state) as store:
        ground = Ground(store, kept.project, kept.sandbox)
        for _ in range(2):
            ground.drop(ground.open())
            sweep(store)
    assert kept.everything() == before


def test_a_store_of_a_newer_unspill_is_kept_aside(kept: Kept) -> None:
    with closing(sqlite3.connect(kept.database)) as newer:
        newer.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    done = recover_now()
    assert "version" in done.reason
    assert done.database is not None
    assert os.path.exists(done.database)
    with Store.open(kept.state) as store:
        assert kept.rows(store) == kept.known


def test_a_database_of_another_program_is_kept_aside(kept: Kept) -> None:
    os.unlink(kept.database)
    with closing(sqlite3.connect(kept.database)) as foreign, foreign:
        foreign.execute("CREATE TABLE mail (subject TEXT)")
    done = recover_now()
    assert done.database is not None
    with closing(sqlite3.connect(done.database)) as foreign:
        assert foreign.execute("SELECT count(*) FROM mail").fetchone() == (0,)
    with Store.open(kept.state) as store:
        assert kept.rows(store) == kept.known


def test_nothing_is_recovered_while_a_sandbox_is_in_use(kept: Kept) -> None:
    os.unlink(kept.database)
    with lock_sandbox(kept.state, kept.sandbox.id), pytest.raises(SandboxUnavailable, match="in use"):
        recover_now()
    assert names(recover_now().aside) == kept.unknown


def test_a_layer_that_an_interrupted_operation_gives_back_has_its_row_or_is_set_aside(kept: Kept) -> None:
    before = kept.everything()
    operation = b"a" * 16
    tree = b"%b/operations/%b/tree/" % (kept.state, operation)
    os.makedirs(tree)
    taken = [name for name in os.listdir(os.fsdecode(kept.state + b"/layers")) if name in kept.known | kept.unknown]
    for name in taken:
        os.rename(kept.state + b"/layers/" + name.encode(), tree + name.encode())
    os.close(os.open(kept.state + b"/pending/" + operation, os.O_CREAT | os.O_WRONLY, 0o600))
    os.unlink(kept.database)
    done = recover_now()
    assert os.listdir(kept.state + b"/pending") == []
    assert names(done.aside) == kept.unknown
    assert kept.everything() == before
    with Store.open(kept.state) as store:
        assert kept.rows(store) == kept.known


def test_a_crash_at_any_step_of_the_recovery_is_made_good_by_the_next(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kept.everything()
    Path(os.fsdecode(kept.database)).write_bytes(b"garbage" * 1000)
    real, calls = os.rename, 0

    def rename_and_die(*arguments: object, **options: object) -> None:
        nonlocal calls
        calls += 1
        if calls == chosen:
            raise KeyboardInterrupt
        real(*arguments, **options)  # type: ignore[arg-type]

    chosen = 0
    while True:
        chosen, calls = chosen + 1, 0
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", rename_and_die)
            try:
                recover_now()
            except KeyboardInterrupt:
                pass
            else:
                break
        assert kept.everything() == before
    assert chosen > 2
    recover_now()
    assert kept.everything() == before
    with Store.open(kept.state) as store:
        assert kept.rows(store) == kept.known


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
def test_no_damage_of_the_database_ever_costs_a_layer_or_a_backup(kept: Kept, full: bool) -> None:
    content = Path(os.fsdecode(kept.database)).read_bytes()
    expected = kept.everything()
    whole = os.fsdecode(kept.state) + "-whole"
    os.rename(kept.state, whole)
    seen: dict[str, int] = {}
    for damaged in damages(content, sorted(kept.known)[:2], full=full):
        shutil.copytree(whole, os.fsdecode(kept.state), symlinks=True)
        Path(os.fsdecode(kept.database)).write_bytes(damaged)
        outcome = use(kept.state)
        seen[outcome] = seen.get(outcome, 0) + 1
        assert kept.everything() == expected, "deleted on the word of a damaged database"
        recover_now()
        assert use(kept.state) == "used"
        assert kept.everything() == expected
        with Store.open(kept.state) as store:
            assert kept.rows(store) | names(tuple(aside_of(kept))) >= kept.known | kept.unknown
        shutil.rmtree(os.fsdecode(kept.state))
    assert seen["store-damaged"] > 0
    assert seen["used"] > 0
    os.rename(whole, kept.state)


def aside_of(kept: Kept) -> Iterator[bytes]:
    from unspill.store.db import list_aside

    yield from list_aside(kept.state).values()


def use(state: bytes) -> str:
    """Do what each start does, and look at everything."""
    try:
        with Store.open(state) as store:
            sweep(store)
            store.operations.all()
            return "used"
    except StoreError as error:
        return error.code
