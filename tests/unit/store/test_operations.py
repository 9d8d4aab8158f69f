# SPDX-License-Identifier: Apache-2.0
"""Operations come back as they were put, are numbered once for ever, and marks go with their layer."""

import os
import sqlite3

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unspill.errors import StoreDamaged, StoreError
from unspill.model.operation import Operation, OperationId, Skipped
from unspill.model.run import LayerId, RunId, SandboxId
from unspill.store.db import Store
from unspill.store.layers import LayerRow
from unspill.store.operations import ENDINGS, KEPT_LEFTS, KINDS, WHYS

PROJECT = b"/home/ann/project"


def name(number: int) -> OperationId:
    return OperationId(f"{number:016x}")


def operation(number: int, **other: object) -> Operation:
    made = Operation(
        id=name(number),
        number=number,
        kind="apply",
        sandbox="0" * 16,
        project=PROJECT,
        roots=(PROJECT,),
        at_ns=number,
        asked_by="ann",
    )
    return made.replace(**other)


PATHS = st.binary(min_size=1, max_size=20).filter(lambda path: b"\0" not in path)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
NOTES = TEXTS.filter(bool)
IDS = st.integers(0, 2**64 - 1).map(lambda number: f"{number:016x}")
LEFTS = st.builds(Skipped, root=st.integers(0, 9), path=PATHS, why=st.sampled_from(WHYS), reason=TEXTS)
OPERATIONS = st.builds(
    Operation,
    id=IDS.map(OperationId),
    number=st.integers(1, 2**40),
    kind=st.sampled_from(KINDS),
    sandbox=IDS,
    project=PATHS,
    roots=st.lists(PATHS, max_size=3).map(tuple),
    at_ns=st.integers(0, 2**62),
    asked_by=TEXTS,
    ending=st.sampled_from(ENDINGS),
    of=st.none() | IDS.map(OperationId),
    origin=st.none() | IDS.map(OperationId),
    runs=st.lists(IDS.map(RunId), max_size=3).map(tuple),
    marks=st.lists(st.integers(0, 2**62), max_size=3).map(tuple),
    changed=st.integers(0, 2**31),
    left=st.lists(LEFTS, max_size=5).map(tuple),
    notes=st.lists(NOTES, max_size=3).map(tuple),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(OPERATIONS)
def test_an_operation_comes_back_as_it_was_put(store: Store, made: Operation) -> None:
    store.operations.remove([made.id, *(one.id for one in store.operations.all())])
    assert store.operations.add(made) == made
    assert store.operations.find(made.id) == made
    assert store.operations.find_number(made.project, made.number) == made
    assert store.operations.latest(made.project, 5) == (made,)


def test_adding_an_operation_again_changes_nothing(store: Store) -> None:
    store.operations.add(operation(1))
    assert store.operations.add(operation(1, asked_by="bob")) == operation(1)
    assert store.operations.all() == (operation(1),)


def test_a_number_is_never_given_again_even_if_all_operations_are_gone(store: Store) -> None:
    assert [store.operations.next_number(PROJECT) for _ in range(3)] == [1, 2, 3]
    store.operations.add(operation(3))
    store.operations.remove([name(3)])
    assert store.operations.next_number(PROJECT) == 4
    assert store.operations.next_number(b"/other") == 1
    store.operations.add(operation(9))
    assert store.operations.next_number(PROJECT) == 10


def test_a_number_that_another_operation_has_gives_way_to_the_next(store: Store) -> None:
    store.operations.add(operation(4))
    assert store.operations.add(operation(4, id=name(77))).number == 5
    assert [one.id for one in store.operations.latest(PROJECT, 9)] == [name(77), name(4)]


def test_later_operations_are_those_that_were_done_the_oldest_first(store: Store) -> None:
    for number in (1, 2, 3, 4):
        store.operations.add(operation(number, ending="rolled back" if number == 3 else "done"))
    store.operations.add(operation(5, project=b"/other"))
    assert [one.number for one in store.operations.later(PROJECT, 1)] == [2, 4]
    assert [one.number for one in store.operations.latest(PROJECT, 2)] == [4, 3]


def test_of_many_paths_that_were_left_the_first_are_kept_and_the_others_counted(store: Store) -> None:
    left = tuple(Skipped(root=0, path=b"%d" % n, why="conflict", reason="changed") for n in range(KEPT_LEFTS + 7))
    store.operations.add(operation(1, left=left, notes=("a note",)))
    found = store.operations.find(name(1))
    assert found is not None
    assert found.left == left[:KEPT_LEFTS]
    assert found.notes == ("a note", "7 more paths were skipped")


def test_an_operation_is_claimed_for_the_records_once(store: Store) -> None:
    store.operations.add(operation(1))
    assert [one.id for one in store.operations.unrecorded(PROJECT)] == [name(1)]
    assert [store.operations.claim(name(1)) for _ in range(2)] == [True, False]
    assert store.operations.unrecorded(PROJECT) == ()


def test_what_an_operation_takes_on_the_disk_is_unknown_again_after_its_undo(store: Store) -> None:
    store.operations.add(operation(1, origin=name(1)))
    store.operations.set_kept_bytes({name(1): 4096})
    assert store.operations.kept_bytes() == {name(1): 4096}
    store.operations.add(operation(2, kind="undo", of=name(1), origin=name(1)))
    assert store.operations.kept_bytes() == {}


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("kind", "explode"),
        ("ending", "maybe"),
        ("sandbox", "../../etc"),
        ("origin", "/"),
        ("runs", "no id"),
        ("marks", "1 x"),
        ("lefts", b"0\0path"),
        ("lefts", b"0\0path\0because\0reason"),
        ("lefts", b"x\0path\0held\0reason"),
    ],
)
def test_a_row_that_makes_no_sense_is_damage(store: Store, column: str, cell: str | bytes) -> None:
    store.operations.add(operation(1))
    store.transaction.change(f"UPDATE operations SET {column} = ?", (cell,))
    with pytest.raises(StoreDamaged):
        store.operations.all()


def test_marks_of_paths_go_with_their_layer(store: Store) -> None:
    layer = LayerRow(id=LayerId("a" * 16), sandbox=SandboxId("b" * 16), root=b"/r", run=RunId("c" * 16), mark_ns=5)
    store.layers.add_sealed(layer)
    assert store.layers.sealed(layer.sandbox) == (layer.replace(seq=1),)
    store.marks.put(layer.id, {b"p": 1, b"\xff/q": 2})
    store.marks.put(layer.id, {b"p": 3})
    assert store.marks.of(layer.id) == {b"p": 3, b"\xff/q": 2}
    store.layers.remove([layer.id])
    assert store.marks.of(layer.id) == {}


def test_a_retired_layer_stays_known_until_every_run_that_began_before_has_ended(store: Store) -> None:
    sandbox, run = SandboxId("b" * 16), RunId("c" * 16)
    rows = [LayerRow(id=LayerId(letter * 16), sandbox=sandbox, root=b"/r", run=run) for letter in "def"]
    store.layers.add_sealed(rows[0].replace(mark_ns=1))
    store.layers.add_open([rows[1]])
    store.layers.retire([rows[0].id])
    store.layers.add_open([rows[2]])
    assert store.layers.sealed(sandbox) == ()
    assert rows[0].id in store.layers.ids()
    assert store.layers.take_unused() == ()
    store.layers.remove([rows[1].id])
    assert store.layers.take_unused() == (rows[0].id,), "the other run began after the retirement"
    assert rows[0].id not in store.layers.ids()
    assert store.layers.take_unused() == ()


def test_a_durable_transaction_waits_for_the_disk_and_only_it(store: Store) -> None:
    def synchronous() -> object:
        return store.transaction.rows("PRAGMA synchronous")[0][0]

    full, normal = 2, 1
    assert synchronous() == normal
    with store.durable:
        assert synchronous() == full
        store.facts.put("key", "value")
    assert synchronous() == normal

    def fail() -> None:
        with store.durable:
            store.facts.put("key", "other")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert synchronous() == normal
    assert store.facts.find("key") == "value"


def test_a_transaction_that_has_begun_can_not_be_made_durable(store: Store) -> None:
    with store.transaction:
        store.facts.put("key", "value")
        with pytest.raises(StoreError, match="transaction"), store.durable:
            pass
    assert store.facts.find("key") == "value"


@pytest.mark.parametrize("version", [0, 3, 9, 12])
def test_a_database_of_another_program_is_refused_and_left_as_it_is(state: bytes, version: int) -> None:
    Store.open(state).close()
    for suffix in (b"", b"-wal", b"-shm"):
        if os.path.exists(state + b"/store.db" + suffix):
            os.unlink(state + b"/store.db" + suffix)
    with sqlite3.connect(state + b"/store.db") as foreign:
        foreign.execute("CREATE TABLE mail (subject TEXT)")
        foreign.execute(f"PRAGMA user_version = {version}")
    foreign.close()
    with pytest.raises(StoreError):
        Store.open(state)
    with sqlite3.connect(state + b"/store.db") as foreign:
        assert foreign.execute("SELECT name FROM sqlite_master").fetchall() == [("mail",)]
    foreign.close()
