# SPDX-License-Identifier: Apache-2.0
"""Records in, the same records out: sandboxes, runs, layers and facts, and what a run reached."""

from __future__ import annotations

import inspect
import os
import re
import sqlite3
import tempfile
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.errors import StoreDamaged
from unspill.model import run as run_module
from unspill.model.run import (
    KEPT_COMMAND_BYTES,
    Cancelled,
    Connection,
    Denial,
    Exited,
    LayerId,
    LimitReached,
    NeverStarted,
    Output,
    RunId,
    Signalled,
    TimedOut,
    Traffic,
)
from unspill.store.db import Store
from unspill.store.layers import LayerRow
from unspill.store.migrations import MIGRATIONS
from unspill.store.runs import KEPT_BYTES, KEPT_ROWS, LIMIT_NAMES, Owner, shorten, to_cells, to_outcome

if TYPE_CHECKING:
    from unspill.model.run import Outcome

OWNER = Owner(pid=4711, started=99, boot="7f0c", pids=2**64 - 1)
HUGE = 2**64 - 2


def test_a_sandbox_is_reopened_by_project_and_name(store: Store) -> None:
    first = store.sandboxes.get_or_create(b"/p\xff", "default", HUGE, 2)
    assert store.sandboxes.get_or_create(b"/p\xff", "default", 8, 9) == first
    assert (first.device, first.inode, first.project) == (HUGE, 2, b"/p\xff")
    other = store.sandboxes.get_or_create(b"/p\xff", "other", 1, 2)
    assert store.sandboxes.of_project(b"/p\xff") == (first, other)
    assert store.sandboxes.find(b"/p", "default") is None
    assert len({first.id, other.id, store.sandboxes.get_or_create(b"/p", "default", 1, 2).id}) == 3


def test_a_directory_that_was_a_project_with_a_mark_is_remembered(store: Store) -> None:
    row = store.sandboxes.get_or_create(b"/p", "default", 1, HUGE)
    assert (row.marked, store.sandboxes.is_marked(b"/p", HUGE)) == (False, False)
    store.sandboxes.mark(row.id)
    assert store.sandboxes.get_or_create(b"/p", "default", 1, HUGE).marked
    assert [store.sandboxes.is_marked(b"/p", inode) for inode in (HUGE, 2)] == [True, False]
    store.sandboxes.move(row.id, 1, 2)
    assert [store.sandboxes.is_marked(b"/p", inode) for inode in (HUGE, 2)] == [False, False]


def test_a_sandbox_can_be_told_that_its_project_is_another_directory_now(store: Store) -> None:
    row = store.sandboxes.get_or_create(b"/p", "default", 1, 2)
    store.sandboxes.move(row.id, 3, HUGE)
    assert store.sandboxes.find(b"/p", "default") == row.replace(device=3, inode=HUGE)


def test_a_sandbox_is_forgotten_only_when_nothing_of_it_is_left(store: Store) -> None:
    row, other = (store.sandboxes.get_or_create(b"/p", name, 1, 2) for name in ("a", "b"))
    run = store.runs.start(row.id, argv=(b"true",), cwd=b"/", started_ns=1, owner=OWNER)
    store.sandboxes.remove(row.id)
    assert store.sandboxes.all() == (row, other)
    store.runs.remove(run.id)
    store.sandboxes.remove(row.id)
    assert store.sandboxes.all() == (other,)


def test_runs_are_numbered_within_their_sandbox(store: Store) -> None:
    first, second = (store.sandboxes.get_or_create(b"/p", name, 1, 2).id for name in ("a", "b"))
    order = [first, first, second, first, second]
    runs = [store.runs.start(each, argv=(b"true",), cwd=b"/", started_ns=1, owner=OWNER) for each in order]
    assert [run.number for run in runs] == [1, 2, 1, 3, 2]
    assert store.runs.latest(first, 2) == (runs[3], runs[1])
    assert store.runs.find_number(second, 2) == runs[4]
    assert store.runs.find_number(second, 3) is None
    assert store.runs.find(runs[1].id) == runs[1]
    assert store.runs.find(RunId("0" * 16)) is None


outcomes = st.one_of(
    st.builds(Exited, code=st.integers(0, 255)),
    st.builds(Signalled, signal=st.integers(1, 64)),
    st.builds(TimedOut, after_s=st.floats(0, 1e6)),
    st.builds(Cancelled),
    st.builds(LimitReached, limit=st.sampled_from(LIMIT_NAMES), bound=st.integers(0, 2**62)),
    st.builds(
        NeverStarted,
        reason=st.text(st.characters(codec="utf-8")),
        remedy=st.text(st.characters(codec="utf-8")),
        exit_code=st.integers(125, 127),
    ),
)


@given(outcomes)
def test_every_outcome_survives_the_columns(outcome: Outcome) -> None:
    assert to_outcome(*to_cells(outcome)) == outcome


def test_a_reason_with_a_path_that_is_no_text_is_kept_readable(store: Store) -> None:
    sandbox = store.sandboxes.get_or_create(b"/p", "default", 1, 2).id
    run = store.runs.start(sandbox, argv=(b"true",), cwd=b"/", started_ns=5, owner=OWNER)
    store.runs.end(run.replace(ended_ns=6, outcome=NeverStarted(reason=os.fsdecode(b"no such file: \xff"))))
    found = store.runs.find(run.id)
    assert found is not None
    assert found.outcome == NeverStarted(reason="no such file: \\udcff")


def test_every_limit_can_be_read_back() -> None:
    (names,) = re.findall(r"LimitName = Literal\[(.*?)\]", inspect.getsource(run_module), re.DOTALL)
    assert re.findall(r'"(\w+)"', names) == list(LIMIT_NAMES)


@pytest.mark.parametrize("cells", [("exploded", None, None, None), ("limit-reached", 1, "patience", None)])
def test_an_outcome_that_does_not_exist_is_damage(cells: tuple[str, int | None, str | None, None]) -> None:
    with pytest.raises(StoreDamaged):
        to_outcome(*cells)


def test_an_ended_run_comes_back_whole(store: Store) -> None:
    sandbox = store.sandboxes.get_or_create(b"/p", "default", 1, 2).id
    run = store.runs.start(sandbox, argv=(b"sh", b"-c", b"", b"\xff"), cwd=b"/\xfe", started_ns=5, owner=OWNER)
    assert [(each.id, each.owner) for each in store.runs.unfinished()] == [(run.id, OWNER)]
    ended = run.replace(
        ended_ns=9,
        outcome=NeverStarted(reason="no such file", exit_code=127),
        stdout=Output(head=b"\0\xff", tail=b"end", left_out=2**40, file=b"/state/runs/\xff"),
        stderr=Output(head=b"E"),
        changed=3,
        held=True,
    )
    store.runs.end(ended)
    assert store.runs.find(run.id) == ended
    assert store.runs.unfinished() == ()
    store.runs.drop_held(sandbox)
    assert store.runs.find(run.id) == ended.replace(held=False)


def test_an_interrupted_run_has_an_end_but_no_outcome(store: Store) -> None:
    sandbox = store.sandboxes.get_or_create(b"/p", "default", 1, 2).id
    runs = [store.runs.start(sandbox, argv=(b"true",), cwd=b"/", started_ns=5, owner=OWNER) for _ in range(2)]
    store.runs.end(runs[1].replace(ended_ns=6, outcome=Exited(code=0)))
    for run in runs:
        store.runs.interrupt(run.id, 70)
    assert store.runs.find(runs[0].id) == runs[0].replace(ended_ns=70)
    assert store.runs.find(runs[1].id) == runs[1].replace(ended_ns=6, outcome=Exited(code=0))


@given(head=st.integers(0, 3 * KEPT_BYTES), tail=st.integers(0, 3 * KEPT_BYTES), left_out=st.integers(0, 9))
def test_a_row_keeps_the_beginning_and_the_end_and_counts_the_rest(head: int, tail: int, left_out: int) -> None:
    output = Output(head=b"h" * head, tail=b"t" * tail, left_out=left_out, file=b"f")
    kept = shorten(output)
    assert kept.total == output.total
    assert len(kept.head) <= KEPT_BYTES
    assert len(kept.tail) <= KEPT_BYTES
    assert output.kept().startswith(kept.head)
    assert output.kept().endswith(kept.tail)
    assert kept.file == b"f"
    if left_out == 0 and output.total <= 2 * KEPT_BYTES:
        assert kept.kept() == output.kept()


def test_of_a_long_command_a_row_keeps_the_beginning_and_counts_the_rest(store: Store) -> None:
    sandbox = store.sandboxes.get_or_create(b"/p", "default", 1, 2).id
    words = (b"sh", b"-c", *(b"x" * 99 for _ in range(1000)))
    run = store.runs.start(sandbox, argv=words, cwd=b"/p", started_ns=1, owner=OWNER)
    found = store.runs.find(run.id)
    assert found == run
    joined = b"\0".join(words)
    assert b"\0".join(run.argv) == joined[:KEPT_COMMAND_BYTES]
    assert run.argv_left_out == len(joined) - KEPT_COMMAND_BYTES
    short = store.runs.start(sandbox, argv=(b"true", b""), cwd=b"/p", started_ns=1, owner=OWNER)
    assert (short.argv, short.argv_left_out) == ((b"true", b""), 0)


def test_known_runs_are_told_from_other_names(store: Store) -> None:
    sandbox = store.sandboxes.get_or_create(b"/p", "default", 1, 2).id
    run = store.runs.start(sandbox, argv=(b"true",), cwd=b"/", started_ns=5, owner=OWNER)
    strangers = [f"{number:016x}" for number in range(1200)]
    assert store.runs.known([*strangers, run.id, "\udcff", "../x"]) == {run.id}
    store.runs.remove(run.id)
    assert store.runs.known([run.id]) == set()


def test_layers_come_back_in_the_order_they_were_made(store: Store) -> None:
    sandbox = store.sandboxes.get_or_create(b"/p", "default", 1, 2).id
    rows = [
        LayerRow(
            id=LayerId(f"{15 - n:016x}"), sandbox=sandbox, root=b"/r%d" % (n % 2), run=RunId(f"{n:016x}"), seq=n + 1
        )
        for n in range(5)
    ]
    store.layers.add_open(rows)
    assert store.layers.open(sandbox) == tuple(rows)
    assert store.layers.sealed(sandbox) == ()
    assert all(store.layers.seal(row.id, 100 + n) for n, row in enumerate(rows[:4]))
    assert not store.layers.seal(rows[0].id, 1)
    assert store.layers.sealed(sandbox) == tuple(row.replace(mark_ns=100 + n) for n, row in enumerate(rows[:4]))
    assert store.layers.open_of_run(rows[4].run) == (rows[4],)
    assert store.layers.ids(only_open=True) == {rows[4].id}
    store.layers.remove([rows[1].id, rows[4].id])
    assert store.layers.ids() == {rows[0].id, rows[2].id, rows[3].id}
    late = LayerRow(id=LayerId("f" * 16), sandbox=sandbox, root=b"/r", run=RunId("f" * 16))
    store.layers.add_open([late])
    store.layers.seal(late.id, 1)
    assert store.layers.sealed(sandbox)[-1].id == late.id


def test_facts_are_kept_until_they_are_replaced_or_forgotten(store: Store) -> None:
    assert store.facts.find("key") is None
    store.facts.put("key", "one")
    store.facts.put("key", "two\0\N{SNOWMAN}")
    assert store.facts.find("key") == "two\0\N{SNOWMAN}"
    store.facts.forget()
    assert store.facts.find("key") is None


def test_a_layer_comes_back_to_its_place_below_what_came_later(store: Store) -> None:
    sandbox = store.sandboxes.get_or_create(b"/p", "default", 1, 2).id
    rows = [LayerRow(id=LayerId(letter * 16), sandbox=sandbox, root=b"/r", run=RunId("0" * 16)) for letter in "abcde"]
    for row in rows[:3]:
        store.layers.add_sealed(row)
    second = store.layers.sealed(sandbox)[1]
    store.layers.remove((rows[1].id, rows[2].id))
    store.layers.add_sealed(rows[3])
    assert store.layers.sealed(sandbox)[-1].seq == 4, "no place is given twice"
    store.layers.add_sealed_at(second)
    assert "".join(row.id[0] for row in store.layers.sealed(sandbox)) == "abd"
    # Its place is taken: it goes right above, and so does all that came later
    store.layers.add_sealed_at(rows[4].replace(seq=second.seq))
    assert "".join(row.id[0] for row in store.layers.sealed(sandbox)) == "abed"


def test_a_place_to_which_a_layer_moved_up_is_not_given_again(store: Store) -> None:
    sandbox = store.sandboxes.get_or_create(b"/p", "default", 1, 2).id
    rows = [LayerRow(id=LayerId(letter * 16), sandbox=sandbox, root=b"/r", run=RunId("0" * 16)) for letter in "abcd"]
    for row in rows[:2]:
        store.layers.add_sealed(row)
    # The second moves up
    store.layers.add_sealed_at(rows[2].replace(seq=store.layers.sealed(sandbox)[0].seq))
    last = store.layers.sealed(sandbox)[-1]
    assert last.id == rows[1].id
    store.layers.remove([last.id])
    store.layers.add_open([rows[3]])
    store.layers.seal(rows[3].id, 1)
    assert store.layers.sealed(sandbox)[-1].seq > last.seq


OWNER_TRAFFIC = Owner(pid=4711, started=99, boot="7f0c", pids=1)
RUN = RunId("00000000deadbeef")

printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=260)
ports = st.integers(0, 65535)
sizes = st.integers(0, 2**63 - 1)
connections = st.builds(
    Connection,
    host=printable,
    port=ports,
    address=printable,
    up=sizes,
    down=sizes,
    started_ns=sizes,
    ended_ns=st.none() | sizes,
    verdict=st.sampled_from(("open", "allowed", "denied", "failed", "cut")),
)
denials = st.builds(
    Denial, host=printable, port=ports, rule=st.sampled_from(("form", "host", "budget")), remedy=st.text(), times=sizes
)
traffics = st.builds(
    Traffic,
    connections=st.lists(connections, max_size=5).map(tuple),
    denials=st.lists(denials, max_size=5).map(tuple),
    left_out=st.integers(0, 1 << 40),
)


def denial(number: int) -> Denial:
    return Denial(host=f"{number}.example.org", port=443, rule="host", remedy="Nothing.")


@given(traffics)
def test_what_was_put_is_found(traffic: Traffic) -> None:
    with tempfile.TemporaryDirectory() as top, Store.open(os.fsencode(top) + b"/state") as store:
        store.traffic.put(RUN, traffic)
        assert store.traffic.find(RUN) == traffic


def test_a_run_that_had_no_way_out_has_no_row(store: Store) -> None:
    assert store.traffic.find(RUN) is None
    store.traffic.put(RUN, Traffic())
    assert store.traffic.find(RUN) == Traffic()


def test_only_the_first_thousand_of_each_kind_are_kept(store: Store) -> None:
    store.traffic.put(RUN, Traffic(denials=tuple(map(denial, range(KEPT_ROWS + 7))), left_out=5))
    found = store.traffic.find(RUN)
    assert found is not None
    assert found.denials == tuple(map(denial, range(KEPT_ROWS)))
    assert found.left_out == 12


def test_a_row_goes_with_its_run_and_with_no_other(state: bytes, store: Store) -> None:
    sandbox = store.sandboxes.get_or_create(b"/p", "default", 1, 2)
    runs = [
        store.runs.start(sandbox.id, argv=(b"x",), cwd=b"/", started_ns=1, owner=OWNER_TRAFFIC).id for _ in range(3)
    ]
    for number, run in enumerate(runs):
        store.traffic.put(run, Traffic(left_out=number))
    with closing(sqlite3.connect(os.path.join(state, b"store.db"))) as db, db:
        db.execute("DELETE FROM runs WHERE id = ?", (runs[1],))
    assert [store.traffic.find(run) for run in runs] == [Traffic(left_out=0), None, Traffic(left_out=2)]


DAMAGED = {
    "not JSON": "{",
    "not a list": '{"host": 1}',
    "an unknown field": '[{"who": "me"}]',
    "a missing field": '[{"host": "example.org"}]',
    "not records": "[1]",
}


@pytest.mark.parametrize("how", DAMAGED)
@pytest.mark.parametrize("column", ["connections", "denials"])
def test_a_damaged_row_is_named_as_such(how: str, column: str, state: bytes, store: Store) -> None:
    store.traffic.put(RUN, Traffic())
    with closing(sqlite3.connect(os.path.join(state, b"store.db"))) as db, db:
        db.execute(f"UPDATE traffic SET {column} = ?", (DAMAGED[how],))
    with pytest.raises(StoreDamaged, match=f"record of run {RUN}"):
        store.traffic.find(RUN)


def test_a_store_from_before_gets_the_table(state: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [step.__name__ for step in MIGRATIONS].index("m012_traffic")
    with monkeypatch.context() as earlier:
        earlier.setattr("unspill.store.migrations.MIGRATIONS", MIGRATIONS[:before])
        Store.open(state).close()
    with Store.open(state) as store:
        assert store.traffic.find(RUN) is None
        store.traffic.put(RUN, Traffic(left_out=3))
        assert store.traffic.find(RUN) == Traffic(left_out=3)


def test_very_many_runs_are_read_in_brief_by_sandbox_and_session(store: Store) -> None:
    rows = [store.sandboxes.get_or_create(b"/p", name, 1, 2) for name in ("one", "two", "three")]
    for number, (row, session) in enumerate([(rows[0], ""), (rows[1], "s"), (rows[0], "s"), (rows[2], "s")]):
        store.session = session
        words = (b"look" if number == 1 else b"do", b"x")
        run = store.runs.start(row.id, argv=words, cwd=b"/", started_ns=number, owner=OWNER)
        if number < 2:
            store.runs.end(
                run.replace(ended_ns=9, outcome=Exited(code=number), stdout=Output(head=b"o"), changed=number)
            )
        made = Connection(
            host=f"h{number}", port=1, address="", up=0, down=0, started_ns=0, ended_ns=None, verdict="allowed"
        )
        store.traffic.put(run.id, Traffic(connections=(made,)))
    chosen = [row.id for row in rows[:2]]
    moments = store.runs.moments(chosen, "")
    assert [(one.started_ns, one.is_over, one.is_well, one.changed) for one in moments] == [
        (0, True, True, 0),
        (1, True, False, 1),
        (2, False, False, 0),
    ]
    assert [one.started_ns for one in store.runs.moments(chosen, "s", but=[b"look"])] == [2]
    brief = store.runs.brief(chosen, "", 2)
    assert [(run.started_ns, run.stdout) for run in brief] == [(2, Output()), (1, Output())]
    assert store.runs.brief(chosen, "s", 9, but=[b"look"]) == brief[:1]
    assert [one.connections[0].host for one in store.traffic.of_runs(chosen, "")] == ["h0", "h1", "h2"]
    assert [one.connections[0].host for one in store.traffic.of_runs(chosen, "s")] == ["h1", "h2"]
    assert store.runs.moments([], "") == ()
