# SPDX-License-Identifier: Apache-2.0
"""What a run reached and what it was refused: kept as it was, bounded, and gone with the run."""

import os
import sqlite3
import tempfile
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.errors import StoreDamaged
from unspill.model.run import Connection, Denial, RunId, Traffic
from unspill.store.db import Store
from unspill.store.migrations import MIGRATIONS
from unspill.store.runs import KEPT_ROWS, Owner

OWNER = Owner(pid=4711, started=99, boot="7f0c", pids=1)
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
    runs = [store.runs.start(sandbox.id, argv=(b"x",), cwd=b"/", started_ns=1, owner=OWNER).id for _ in range(3)]
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
