# SPDX-License-Identifier: Apache-2.0
"""What is old goes, oldest first, and never what an operation inside the window needs."""

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.layers.ground import Ground, ended, write
from tests.unit.sandbox.ledger import DAY_NS, START_NS, Ledger
from unspill.apply.journal import journal_file, operation_dir
from unspill.errors import StoreDamaged
from unspill.layers.lifecycle import drop_run, is_being_pruned
from unspill.layers.locks import spill_dir
from unspill.model.operation import Operation, OperationId
from unspill.model.permission import Egress
from unspill.model.policy import GIB, Policy
from unspill.permissions.question import make_question
from unspill.sandbox.history import backups_of, files_of
from unspill.sandbox.sandbox import do_daily
from unspill.sandbox.upkeep import Family, Pruned, choose, find_families, prune, status
from unspill.store.copies import BEFORE_MIGRATION, copied_ns, make_copy
from unspill.store.db import Store, list_aside
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
