# SPDX-License-Identifier: Apache-2.0
"""What is old goes and never what is needed, status names every part, and a lost database loses nothing held."""

import os
import random
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.layers.ground import Ground, ended, upper, write
from tests.unit.rootfs.making import make
from tests.unit.sandbox.ledger import DAY_NS, START_NS, Ledger
from unspill.apply.journal import journal_file, operation_dir
from unspill.errors import SandboxUnavailable, StoreDamaged, StoreError
from unspill.layers.lifecycle import drop_run, is_being_pruned, playground_dir, sweep
from unspill.layers.locks import lock_sandbox, spill_dir, upper_dir
from unspill.model.operation import Operation, OperationId
from unspill.model.permission import Egress
from unspill.model.policy import GIB, Policy
from unspill.permissions.question import make_question
from unspill.rootfs.registry import Registry
from unspill.sandbox.history import backups_of, files_of
from unspill.sandbox.projects import status
from unspill.sandbox.sandbox import do_daily
from unspill.sandbox.upkeep import Family, Pruned, Recovered, choose, find_families, prune, recover_now
from unspill.store.copies import BEFORE_MIGRATION, copied_ns, make_copy
from unspill.store.db import Store, list_aside
from unspill.store.migrations import MIGRATIONS
from unspill.store.permissions import AskedRequest

WEEK_NS = 7 * DAY_NS
MUCH = 100 * GIB


def operation(number: int, at_ns: int, origin: int | None = None, of: int | None = None) -> Operation:
    return Operation(
        id=OperationId(f"{number:016x}"),
        number=number,
        kind="apply" if of is None else "undo",
        sandbox="0" * 16,
        project=b"/p",
        roots=(b"/p",),
        at_ns=at_ns,
        asked_by="a test",
        of=None if of is None else OperationId(f"{of:016x}"),
        origin=OperationId(f"{number if origin is None else origin:016x}"),
    )


FAMILIES = st.lists(
    st.tuples(st.integers(0, 15 * DAY_NS), st.integers(0, 10)), max_size=12, unique_by=lambda pair: pair[0]
)


@given(FAMILIES, st.integers(1, 14), st.integers(0, 40))
def test_the_longest_window_is_kept_that_days_and_budget_allow(
    ages: list[tuple[int, int]], days: int, budget: int
) -> None:
    now = 100 * DAY_NS
    families = [
        Family(operations=(operation(number, now - age),), bytes=size) for number, (age, size) in enumerate(ages)
    ]
    youngest_first = sorted(families, key=lambda family: -family.at_ns)

    def is_allowed(kept: list[Family]) -> bool:
        inside = all(now - family.at_ns <= days * DAY_NS for family in kept)
        fits = sum(family.bytes for family in kept) <= budget
        return inside and (fits or all(now - family.at_ns <= DAY_NS for family in kept))

    longest = max(length for length in range(len(families) + 1) if is_allowed(youngest_first[:length]))
    gone = choose(families, now, days=days, budget=budget)
    assert list(gone) == youngest_first[longest:][::-1]


LINKS = st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=10)


@given(LINKS)
def test_operations_that_share_a_place_are_one_family(links: list[tuple[int, bool]]) -> None:
    operations = [operation(0, 0)]
    for number, (other, is_new) in enumerate(links, start=1):
        before = operations[other % len(operations)]
        origin = int(before.origin or "0", 16)
        operations.append(operation(number, number) if is_new else operation(number, number, origin, before.number))
    families = find_families(operations)
    assert sorted(one.id for family in families for one in family) == [one.id for one in operations]
    assert {frozenset(one.id for one in family) for family in families} == {
        frozenset(one.id for one in operations if one.origin == origin) for origin in {one.origin for one in operations}
    }


def test_an_operation_outside_the_window_goes_with_its_backups_and_records(ledger: Ledger) -> None:
    ledger.write(b"f", b"old")
    ledger.write(b"deleted", b"old")
    first = ledger.apply({b"f": b"1", b"deleted": None})
    second = ledger.apply({b"f": b"2"}, START_NS + 2 * DAY_NS)
    file, deleted = files_of(ledger.store, ledger.project, with_deleted=True)[::-1]
    assert prune(ledger.store, START_NS + WEEK_NS, days=7, budget=MUCH) == Pruned()
    pruned = prune(ledger.store, START_NS + WEEK_NS + 1, days=7, budget=MUCH)
    assert pruned.operations == (first.id,)
    assert set(pruned.names) == {b"%d-25-10-09-f" % file.id, b"%d-25-10-09-deleted" % deleted.id}
    assert pruned.bytes > 0
    assert ledger.store.operations.ids() == {second.id}
    assert os.listdir(ledger.state + b"/operations") == [second.id.encode()]
    (kept,) = files_of(ledger.store, ledger.project, with_deleted=True)
    assert kept.last_approved_copy_path == b"%d-25-10-11-f" % file.id
    assert [backup.where for backup in backups_of(ledger.store, kept)] == ["kept"]
    assert ledger.read(b"f") == b"2"


def test_when_its_last_backup_goes_a_file_that_is_there_keeps_its_record(ledger: Ledger) -> None:
    ledger.write(b"f", b"old")
    ledger.apply({b"f": b"1"})
    prune(ledger.store, START_NS + 8 * DAY_NS, days=7, budget=MUCH)
    (file,) = files_of(ledger.store, ledger.project)
    assert file.last_approved_copy_path == b""
    assert backups_of(ledger.store, file) == ()


def test_a_dry_run_says_the_same_and_removes_nothing(ledger: Ledger) -> None:
    ledger.write(b"f", b"old")
    ledger.apply({b"f": b"1"})
    ledger.apply({b"f": b"2"}, START_NS + 5 * DAY_NS)
    now = START_NS + 8 * DAY_NS
    said = prune(ledger.store, now, days=7, budget=MUCH, dry_run=True)
    assert len(said.operations) == 1
    assert len(ledger.store.operations.all()) == 2
    assert prune(ledger.store, now, days=7, budget=MUCH) == said
    assert prune(ledger.store, now, days=7, budget=MUCH) == Pruned()


def test_what_an_undo_inside_the_window_needs_stays(ledger: Ledger) -> None:
    ledger.write(b"f", b"old")
    applied = ledger.apply({b"f": b"new"})
    undone = ledger.reverse(applied, START_NS + 6 * DAY_NS)
    assert prune(ledger.store, START_NS + 8 * DAY_NS, days=7, budget=MUCH) == Pruned()
    ledger.reverse(undone, START_NS + 8 * DAY_NS, "redo")
    assert ledger.read(b"f") == b"new"
    assert prune(ledger.store, START_NS + 14 * DAY_NS, days=7, budget=MUCH) == Pruned()
    assert len(prune(ledger.store, START_NS + 16 * DAY_NS, days=7, budget=MUCH).operations) == 3
    assert os.listdir(ledger.state + b"/operations") == []
    assert ledger.read(b"f") == b"new"


def test_over_the_budget_the_oldest_go_first_but_never_those_of_the_last_day(ledger: Ledger) -> None:
    ledger.write(b"f", b"0" * 100_000)
    made = [ledger.apply({b"f": b"%d" % n * 100_000}, START_NS + n * DAY_NS) for n in range(5)]
    now = START_NS + 4 * DAY_NS
    sizes = [shown.bytes for shown in status(ledger.store, ledger.state, ledger.state + b"-rootfs").displaced]
    assert all(size > 100_000 for size in sizes)
    assert prune(ledger.store, now, days=7, budget=sum(sizes)) == Pruned()
    assert prune(ledger.store, now, days=7, budget=sum(sizes[2:])).operations == tuple(one.id for one in made[:2])
    assert prune(ledger.store, now, days=7, budget=0).operations == (made[2].id,)
    assert ledger.store.operations.ids() == {made[3].id, made[4].id}


def test_times_of_files_do_not_matter_only_when_they_were_displaced(ledger: Ledger) -> None:
    ledger.write(b"f", b"old")
    os.utime(ledger.live(b"f"), (1, 1))
    operation = ledger.apply({b"f": b"new"})
    os.utime(operation_dir(ledger.state, operation.id), (1, 1))
    assert prune(ledger.store, START_NS + DAY_NS, days=7, budget=MUCH) == Pruned()


def test_removing_never_follows_a_link(ledger: Ledger, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("content")
    operation = ledger.apply({b"f": b"new"})
    os.symlink(precious, operation_dir(ledger.state, operation.id) + b"/tree/link")
    prune(ledger.store, START_NS + 8 * DAY_NS, days=7, budget=MUCH)
    assert not os.path.exists(operation_dir(ledger.state, operation.id))
    assert (precious / "file").read_text() == "content"


def test_nothing_goes_while_an_operation_is_under_way(ledger: Ledger) -> None:
    ledger.apply({b"f": b"new"})
    marker = ledger.state + b"/pending/" + b"a" * 16
    write(marker)
    assert prune(ledger.store, START_NS + 8 * DAY_NS, days=7, budget=MUCH) == Pruned()
    os.unlink(marker)
    assert len(prune(ledger.store, START_NS + 8 * DAY_NS, days=7, budget=MUCH).operations) == 1


def test_an_operation_that_begins_meanwhile_finds_what_it_needs(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its marker is written just before the rows go: then they come back."""
    operation = ledger.apply({b"f": b"new"})
    remove = type(ledger.store.operations).remove

    def begin_and_remove(table: object, names: tuple[OperationId, ...]) -> None:
        write(ledger.state + b"/pending/" + b"a" * 16)
        remove(ledger.store.operations, names)

    monkeypatch.setattr(type(ledger.store.operations), "remove", begin_and_remove)
    assert prune(ledger.store, START_NS + 8 * DAY_NS, days=7, budget=MUCH) == Pruned()
    assert ledger.store.operations.all() == (operation,)
    assert os.path.exists(journal_file(ledger.state, operation.id))
    assert not is_being_pruned(ledger.state, operation.id)


@pytest.mark.parametrize("moment", ["_touch", "_forget_names", "remove_own_refs", "_unlink", "remove_tree"])
def test_an_interrupted_prune_is_finished_by_the_next_one(
    ledger: Ledger, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ledger.apply({b"f": b"1"}), ledger.apply({b"g": b"2"})

    def stop(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"unspill.sandbox.upkeep.{moment}", stop)
        with pytest.raises(KeyboardInterrupt):
            prune(ledger.store, START_NS + 8 * DAY_NS, days=7, budget=MUCH)
    assert set(os.listdir(ledger.state + b"/operations")) == {first.id.encode(), second.id.encode()}
    prune(ledger.store, START_NS, days=7, budget=MUCH)
    gone = set(prune(ledger.store, START_NS + 8 * DAY_NS, days=7, budget=MUCH).operations)
    assert gone == ({second.id} if moment == "remove_tree" else {first.id, second.id})
    assert os.listdir(ledger.state + b"/operations") == []
    assert list_aside(ledger.state) == {}


def test_an_operation_whose_row_was_lost_is_set_aside_and_never_pruned(ledger: Ledger) -> None:
    ledger.write(b"f", b"displaced")
    operation = ledger.apply({b"f": b"1"})
    ledger.store.operations.remove([operation.id])
    for days in (1, 800):
        assert prune(ledger.store, START_NS + days * DAY_NS, days=7, budget=0) == Pruned()
    ((name, aside),) = list_aside(ledger.state).items()
    assert name == operation.id
    assert sorted(os.listdir(aside)) == [b"journal", b"tree"]
    with open(aside + b"/tree/0", "rb") as file:
        assert file.read() == b"displaced"


def test_the_database_is_copied_once_a_day_before_anything_is_forgotten(ledger: Ledger) -> None:
    operation = ledger.apply({b"f": b"1"})
    now = time.time_ns()
    do_daily(ledger.store, Policy(), now)
    assert copied_ns(ledger.state) is None, "there was nothing to lose yet"
    do_daily(ledger.store, Policy(), now + DAY_NS)
    copied = copied_ns(ledger.state)
    with closing(sqlite3.connect(ledger.state + b"/copies/daily.db")) as db:
        assert db.execute("SELECT id FROM operations").fetchall() == [(operation.id,)]
    assert ledger.store.operations.all() == ()
    do_daily(ledger.store, Policy(), now + DAY_NS + 1)
    assert copied_ns(ledger.state) == copied
    do_daily(ledger.store, Policy(), now + 2 * DAY_NS)
    assert copied_ns(ledger.state) != copied


def test_the_copy_from_before_a_migration_goes_with_what_is_too_old(ledger: Ledger) -> None:
    now = time.time_ns()
    make_copy(ledger.store.transaction, ledger.state, BEFORE_MIGRATION)
    do_daily(ledger.store, Policy(keep_days=3), now)
    for days, is_there in ((1, True), (4, False)):
        do_daily(ledger.store, Policy(keep_days=3), now + days * DAY_NS)
        assert (copied_ns(ledger.state, BEFORE_MIGRATION) is not None) == is_there
        assert copied_ns(ledger.state) is not None


def test_a_day_without_room_for_a_copy_is_no_reason_not_to_run(ledger: Ledger) -> None:
    do_daily(ledger.store, Policy(), START_NS)
    os.chmod(ledger.state + b"/copies", 0o500)
    do_daily(ledger.store, Policy(), START_NS + DAY_NS)
    assert copied_ns(ledger.state) is None
    os.chmod(ledger.state + b"/copies", 0o700)


def test_damage_that_the_daily_look_finds_is_said(ledger: Ledger) -> None:
    operation = ledger.apply({b"f": b"1"})
    do_daily(ledger.store, Policy(), START_NS)
    ledger.store.close()
    path = Path(os.fsdecode(ledger.state), "store.db")
    path.write_bytes(path.read_bytes().replace(operation.id.encode(), b"0" * 16, 1))
    ledger.store = Store.open(ledger.state)
    with pytest.raises(StoreDamaged, match="damaged"):
        do_daily(ledger.store, Policy(), START_NS + DAY_NS)
    assert copied_ns(ledger.state) is None


def test_old_runs_that_hold_nothing_go_with_their_output(ledger: Ledger) -> None:
    ground = Ground(ledger.store, ledger.project, ledger.sandbox)
    ground.hold(b"held")
    runs = []
    for _ in range(3):
        opened = ground.open()
        write(spill_dir(ledger.state, opened.run.id) + b"/stdout", b"x" * 10_000)
        drop_run(ledger.store, opened, ended(opened))
        runs.append(opened.run)
    needed = runs[1].id
    ledger.apply({b"f": b"1"}, runs[0].started_ns + 6 * DAY_NS, runs=(needed,))
    now = runs[0].started_ns + 8 * DAY_NS
    assert status(ledger.store, ledger.state, ledger.state + b"-rootfs").spilled_bytes > 30_000
    pruned = prune(ledger.store, now, days=7, budget=MUCH)
    assert pruned.runs == (runs[0].id,), "one is held, one belongs to an operation, one is the last"
    assert pruned.bytes > 10_000
    assert [run.number for run in ledger.store.runs.latest(ledger.sandbox.id, 9)] == [4, 3, 1]
    assert not os.path.exists(spill_dir(ledger.state, runs[0].id))
    assert os.path.exists(spill_dir(ledger.state, needed))
    assert ground.open().run.number == 5


def test_by_itself_it_happens_once_a_day(ledger: Ledger) -> None:
    policy, now = Policy(keep_days=1), START_NS + 3 * DAY_NS

    def left_after(moment_ns: int) -> int:
        do_daily(ledger.store, policy, moment_ns)
        return len(ledger.store.operations.all())

    ledger.apply({b"f": b"1"})
    assert left_after(now) == 1, "a store that nobody has looked at yet"
    assert left_after(now + DAY_NS - 1) == 1
    assert left_after(now + DAY_NS) == 0
    ledger.apply({b"f": b"2"}, START_NS)
    assert left_after(now + DAY_NS + 1) == 1
    assert left_after(now - DAY_NS) == 0, "a clock that was set back"


def test_grants_that_have_expired_and_requests_of_long_ago_go_with_the_rest(ledger: Ledger) -> None:
    grants, requests = ledger.store.grants, ledger.store.requests
    asked = Egress(project=b"/p", hosts=("example.org",))
    for expires_ns in (START_NS + DAY_NS, START_NS + 30 * DAY_NS):
        request = asked.replace(hosts=(f"a{expires_ns}.example.org",))
        grants.add(request, "always", granted_ns=START_NS, expires_ns=expires_ns, granted_by="ann")
    question = make_question(asked, asked.scopes)
    requests.add(
        AskedRequest(
            id=question.id,
            request=asked,
            digest=question.digest,
            asked_ns=START_NS,
            deadline_ns=START_NS + 1,
            scopes=asked.scopes,
        )
    )
    do_daily(ledger.store, Policy(), START_NS)
    do_daily(ledger.store, Policy(), START_NS + 2 * DAY_NS)
    assert len(grants.all()) == 1
    assert requests.find(question.id) is not None
    do_daily(ledger.store, Policy(), START_NS + 10 * DAY_NS)
    assert requests.find(question.id) is None


def test_a_failure_to_prune_does_not_keep_anyone_from_running(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_wishes: object, **_options: object) -> bool:
        raise OSError("an immutable file")

    do_daily(ledger.store, Policy(), START_NS)
    monkeypatch.setattr("unspill.sandbox.upkeep.prune_in_time", fail)
    do_daily(ledger.store, Policy(), START_NS + 2 * DAY_NS)


def test_what_takes_too_long_is_left_for_the_next_time(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.apply({b"f": b"1"})
    monkeypatch.setattr("unspill.sandbox.upkeep._PATIENCE_S", -1.0)
    for moment_ns in (START_NS, START_NS + 8 * DAY_NS):
        do_daily(ledger.store, Policy(), moment_ns)
    assert len(ledger.store.operations.all()) == 1
    monkeypatch.undo()
    do_daily(ledger.store, Policy(), START_NS + 8 * DAY_NS + 1)
    assert ledger.store.operations.all() == ()


def test_the_defaults_are_a_week_and_five_gibibytes() -> None:
    assert (Policy().keep_days, Policy().keep_bytes) == (7, 5 * GIB)


def test_a_window_of_many_years_is_no_problem(ledger: Ledger) -> None:
    ledger.apply({b"f": b"1"})
    assert prune(ledger.store, START_NS + 8 * DAY_NS, days=1 << 62, budget=MUCH) == Pruned()


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


SIZE = 200_000


def test_an_empty_store_costs_only_its_database(ledger: Ledger) -> None:
    shown = status(ledger.store, ledger.state + b"-data", ledger.state + b"-rootfs")
    assert shown.database_bytes == shown.total_bytes > 0
    assert (shown.held, shown.displaced, shown.aside, shown.pending, shown.spilled_bytes) == ((), (), (), (), 0)
    (project,) = shown.projects
    assert (project.path, project.caches, project.playground_bytes) == (ledger.project, 0, 0)


def test_each_part_is_counted_where_it_belongs(ledger: Ledger) -> None:
    ground = Ground(ledger.store, ledger.project, ledger.sandbox)
    cache = ledger.project + b"-cache"
    os.mkdir(cache)
    opened = ground.open(cache)
    write(upper(opened, 1) + b"/wheel", b"w" * SIZE)
    ground.drop(opened)
    opened = ground.open()
    write(upper(opened) + b"/held", b"h" * SIZE * 2)
    ground.hold(b"small")
    ground.drop(opened)
    ledger.write(b"f", b"o" * SIZE)
    ledger.apply({b"f": b"new"})
    write(ledger.state + b"/runs/" + opened.run.id.encode() + b"/stdout", b"s" * SIZE)
    write(ledger.state + b"/pending/" + b"a" * 16)
    data = ledger.state + b"-data"
    write(playground_dir(data, ledger.project) + b"/note", b"p" * SIZE)
    shown = status(ledger.store, data, ledger.state + b"-rootfs")
    (held,), (displaced,), (project,) = shown.held, shown.displaced, shown.projects
    assert (held.sandbox, held.layers) == (ledger.sandbox, 1)
    assert held.bytes < SIZE, "what was dropped is gone"
    assert displaced.operation in ledger.store.operations.all()
    for size in (displaced.bytes, project.caches, project.playground_bytes, shown.spilled_bytes):
        assert SIZE <= size < SIZE + 40_000
    assert shown.pending == ("a" * 16,)
    whole = held.bytes + displaced.bytes + project.caches + shown.spilled_bytes + shown.database_bytes
    assert shown.total_bytes == whole, "the playground is not in the state directory"


def test_what_was_set_aside_is_named(ledger: Ledger) -> None:
    Ground(ledger.store, ledger.project, ledger.sandbox).hold(b"a")
    (row,) = ledger.store.layers.sealed(ledger.sandbox.id)
    ledger.store.layers.remove([row.id])
    sweep(ledger.store)
    write(ledger.state + b"/store.db.damaged-1", b"x" * SIZE)
    shown = status(ledger.store, ledger.state + b"-data", ledger.state + b"-rootfs")
    assert [os.path.basename(path) for path in shown.aside] == [row.id.encode(), b"store.db.damaged-1"]
    assert os.path.basename(os.path.dirname(shown.aside[0])) == b"layers"
    assert shown.aside_bytes > SIZE


def test_each_rootfs_and_what_was_fetched_is_told_beside_the_state(ledger: Ledger) -> None:
    directory = ledger.state + b"-rootfs"
    shown = status(ledger.store, ledger.state + b"-data", directory)
    assert (shown.rootfs_sizes.rootfs, shown.rootfs_sizes.downloads_bytes) == ((), 0)
    total = shown.total_bytes
    made = make(Registry(directory))
    assert made.manifest is not None
    write(directory + b"/downloads/" + b"a" * 64, b"x" * SIZE)
    write(directory + b"/downloads/debian-x/archives/y.deb", b"x" * SIZE)
    shown = status(ledger.store, ledger.state + b"-data", directory)
    assert shown.rootfs_sizes.rootfs == ((made.name, made.manifest.size_bytes),)
    assert 2 * SIZE <= shown.rootfs_sizes.downloads_bytes < 2 * SIZE + 40_000
    assert shown.total_bytes == total
    os.chmod(directory, 0o777)
    assert status(ledger.store, ledger.state + b"-data", directory).rootfs_sizes.rootfs == (), "not to be trusted"
    os.chmod(directory, 0o700)
