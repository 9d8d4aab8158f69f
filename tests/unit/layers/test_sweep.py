# SPDX-License-Identifier: Apache-2.0
"""What dead processes leave is removed at the next start; what living ones use is not."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.layers.ground import NOTHING, Ground, ended, layers_of, leave_work, upper, write
from unspill.layers.create import open_run
from unspill.layers.discard import discard_stacks
from unspill.layers.locks import make_in_use
from unspill.layers.owner import FOREIGN_NS, is_abandoned, may_live, this_process
from unspill.layers.places import upper_dir, work_dir
from unspill.layers.seal import seal_run
from unspill.layers.sweep import Swept, _sweep_bases, lost_layers, sweep
from unspill.model.layer import LayerId, RunId
from unspill.store.db import Store
from unspill.store.runs import Owner, UnfinishedRun

# Opens a run with some content, says so, and waits to be killed.
ABANDON = """
import os, sys, time
from tests.unit.layers.ground import Ground, leave_work, upper, write
from unspill.store.db import Store
state, project, cache = map(os.fsencode, sys.argv[1:4])
store = Store.open(state)
ground = Ground(store, project, store.sandboxes.get_or_create(project, "default", 1, 2))
opened = ground.open(cache, after_cancel=sys.argv[4])
write(upper(opened) + b"/some/file", b"x")
write(upper(opened, 1) + b"/cached", b"x")
write(state + b"/runs/" + opened.run.id.encode() + b"/stdout", b"spilled")
leave_work(opened)
print(opened.run.id, flush=True)
time.sleep(60)
"""

# Does runs of every kind for ever.
CHURN = """
import os, sys
from tests.unit.layers.ground import Ground, ended, upper, write
from unspill.layers.discard import discard_stacks
from unspill.layers.seal import seal_run
from unspill.store.db import Store
state, project, cache = map(os.fsencode, sys.argv[1:4])
store = Store.open(state)
ground = Ground(store, project, store.sandboxes.get_or_create(project, f"name {os.getpid()}", 1, 2))
print("begun", flush=True)
while True:
    ground.hold(b"a", b"b/c")
    ground.drop(ground.open(cache))
    opened = ground.open(cache)
    write(upper(opened, 1) + b"/cached", b"x")
    seal_run(store, opened, ended(opened))
    discard_stacks(store, ground.sandbox.id)
"""


@pytest.fixture
def cache(tmp_path: Path) -> bytes:
    (tmp_path / "cache").mkdir()
    return os.fsencode(tmp_path / "cache")


def start(program: str, ground: Ground, cache: bytes, *words: str) -> subprocess.Popen[bytes]:
    command: list[str | bytes] = [sys.executable, "-c", program, ground.store.state, ground.project, cache, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.getcwd()})


def line(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


@pytest.fixture(params=["discard"])
def abandoner(ground: Ground, cache: bytes, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    with start(ABANDON, ground, cache, request.param) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("abandoner", ["discard", "hold", "apply"], indirect=True)
def test_a_run_of_a_living_process_is_left_alone(ground: Ground, abandoner: subprocess.Popen[bytes]) -> None:
    assert line(abandoner)
    assert sweep(ground.store) == Swept()
    assert ground.left() == {b"layers": 2, b"work": 2, b"runs": 1}


@pytest.mark.parametrize("reaped", [True, False])
def test_all_of_a_run_that_keeps_nothing_is_removed_when_its_process_is_killed(
    ground: Ground, abandoner: subprocess.Popen[bytes], reaped: bool
) -> None:
    run = RunId(line(abandoner))
    abandoner.kill()
    if reaped:
        abandoner.wait()
    else:
        os.waitid(os.P_PID, abandoner.pid, os.WEXITED | os.WNOWAIT)
    assert sweep(ground.store) == Swept(runs=(run,))
    assert ground.left() == NOTHING
    assert ground.rows() == 0
    record = ground.store.runs.find(run)
    assert record is not None
    assert record.ended_ns is not None
    assert record.outcome is None
    assert sweep(ground.store) == Swept()
    assert ground.open().run.number == 2


@pytest.mark.parametrize("abandoner", ["hold", "apply"], indirect=True)
def test_what_another_run_wrote_is_left_for_whoever_opens_its_project(
    ground: Ground, abandoner: subprocess.Popen[bytes]
) -> None:
    run = RunId(line(abandoner))
    abandoner.kill()
    abandoner.wait()
    for _ in range(2):
        assert sweep(ground.store) == Swept()
        (layer,) = ground.store.layers.open_of_run(run)
        assert os.listdir(upper_dir(ground.store.state, layer.id)) == [b"some"]
        assert 0 < layer.mark_ns <= time.time_ns()
        assert ground.store.caches.ids() == set(), "a cache may be thrown away"
        (left,) = ground.store.runs.unfinished()
        assert (left.id, left.keeps, may_live(left)) == (run, True, False), "nobody looks for its processes again"


def test_what_is_held_survives_the_sweep(ground: Ground) -> None:
    closed = ground.hold(b"a")
    assert sweep(ground.store) == Swept()
    assert os.listdir(closed.stacks[0].sealed[0].upper) == [b"a"]


def test_a_sweep_does_not_take_a_run_of_its_own_process(ground: Ground) -> None:
    opened = ground.open()
    write(upper(opened) + b"/file")
    assert sweep(ground.store) == Swept()
    leave_work(opened)
    assert len(seal_run(ground.store, opened, ended(opened)).stacks[0].sealed) == 1


@pytest.mark.parametrize("part", ["layers", "work", "runs"])
@pytest.mark.parametrize("name", [b"0123456789abcdef", b"\xff not an id", b"x"])
def test_directories_without_a_row_are_garbage(ground: Ground, part: str, name: bytes) -> None:
    ground.hold(b"kept")
    path = os.path.join(ground.store.state, part.encode(), name)
    write(path + b"/a/b/c")
    os.chmod(path + b"/a", 0)
    assert sweep(ground.store) == Swept(directories=1)
    assert not os.path.lexists(path)
    assert ground.left() == NOTHING | {b"layers": 1}


def test_the_work_directory_of_a_sealed_layer_is_garbage(ground: Ground) -> None:
    (stack,) = ground.hold(b"a").stacks
    os.mkdir(os.path.join(ground.store.state, b"work", stack.sealed[0].id.encode()))
    assert sweep(ground.store) == Swept(directories=1)
    assert ground.left() == NOTHING | {b"layers": 1}


def test_a_directory_without_a_row_stays_while_its_maker_has_it_in_use(ground: Ground) -> None:
    path = work_dir(ground.store.state, LayerId("0123456789abcdef"))
    fd = make_in_use(path)
    write(path + b"/a/b")
    assert sweep(ground.store) == Swept()
    assert os.path.exists(path + b"/a/b")
    os.close(fd)
    assert sweep(ground.store) == Swept(directories=1)


def test_a_base_that_is_being_filled_stays_for_as_long_as_its_layer_is_known(ground: Ground) -> None:
    (stack,) = ground.hold(b"a").stacks
    opened = ground.open()
    known = [stack.sealed[0].id, *(layer.id for layer in layers_of(opened))]
    bases = ground.store.state + b"/bases/"
    for layer in (*known, "0123456789abcdef"):
        write(bases + layer.encode() + b".new/file")
    assert sweep(ground.store) == Swept(directories=1)
    assert set(os.listdir(bases)) == {layer.encode() + b".new" for layer in known}


def test_a_base_of_an_operation_that_ends_during_a_sweep_stays(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    base = ground.store.state + b"/bases/0123456789abcdef"
    marker = ground.store.state + b"/pending/fedcba9876543210"
    write(base + b"/file")
    write(marker)
    rows = type(ground.store.layers)
    ids = rows.ids

    def ids_before_the_end(self: object, *, only_open: bool = False) -> set[str]:
        found = ids(ground.store.layers, only_open=only_open)
        if os.path.exists(marker):
            os.unlink(marker)
        return found

    monkeypatch.setattr(rows, "ids", ids_before_the_end)
    _sweep_bases(ground.store)
    assert os.path.exists(base + b"/file")


def test_spilled_output_of_ended_runs_is_kept(ground: Ground) -> None:
    opened = ground.open()
    path = os.path.join(ground.store.state, b"runs", opened.run.id.encode(), b"stdout")
    write(path, b"spilled")
    ground.drop(opened)
    assert sweep(ground.store) == Swept()
    assert os.path.exists(path)


def test_a_layer_whose_directories_were_not_made_yet_is_swept_too(ground: Ground) -> None:
    """Killed between the row and the directories."""
    dead = Owner(pid=this_process().pid, started=0, boot="an earlier boot", pids=0)
    run = ground.store.runs.start(ground.sandbox.id, argv=(b"true",), cwd=b"/", started_ns=1, owner=dead)
    assert sweep(ground.store) == Swept(runs=(run.id,))


def test_a_process_is_known_by_pid_start_boot_and_namespace() -> None:
    me = this_process()

    def abandoned(owner: Owner, started_ns: int) -> bool:
        return is_abandoned(UnfinishedRun(id=RunId("0" * 16), owner=owner, started_ns=started_ns))

    now = time.time_ns()
    assert not abandoned(me, now)
    assert abandoned(me.replace(pid=1), now), "another process has that pid now"
    assert abandoned(me.replace(boot="another"), now)
    assert abandoned(me.replace(pid=2**22 + 1), now)
    assert not abandoned(me.replace(pids=1, pid=2**22 + 1), now), "a pid of another namespace can't be judged"
    assert abandoned(me.replace(pids=1), now - FOREIGN_NS - 1)


def test_a_fork_is_another_process() -> None:
    me = this_process()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, str(this_process().pid).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with open(reader) as pipe:
        assert int(pipe.read()) == pid != me.pid


@pytest.mark.timeout(600)
def test_after_any_kill_the_next_start_finds_rows_and_directories_in_agreement(
    ground: Ground, cache: bytes, full: bool
) -> None:
    """Two processes do runs of every kind and are killed at random; a third sweeps all the while."""
    chance = random.Random(3)
    for _ in range(60 if full else 6):
        with start(CHURN, ground, cache) as first, start(CHURN, ground, cache) as second:
            churners = (first, second)
            try:
                assert [line(process) for process in churners] == ["begun", "begun"]
                until = time.monotonic() + chance.random() * 0.15
                while time.monotonic() < until:
                    sweep(ground.store)
                assert [process.poll() for process in churners] == [None, None], "the living were disturbed"
            finally:
                for process in churners:
                    process.kill()
        sweep(ground.store)
        assert_in_agreement(ground.store)
        assert not any(map(may_live, ground.store.runs.unfinished()))


def assert_in_agreement(store: Store) -> None:
    names = {name.decode() for name in os.listdir(store.state + b"/layers")}
    # Of a killed run that keeps what it wrote, a layer may have a row and no directory yet
    left = store.layers.ids(only_open=True)
    assert {row.id for run in store.runs.unfinished() for row in store.layers.open_of_run(run.id)} == left
    assert names | left == store.layers.ids() | store.caches.ids()
    assert set(os.listdir(os.fsdecode(store.state + b"/work"))) <= left
    assert set(os.listdir(os.fsdecode(store.state + b"/manifests"))) == store.layers.sealed_ids()
    assert lost_layers(store.state) == {}, "nothing was taken for lost that was only discarded"


def test_with_directories_before_rows_a_sweep_would_take_them(ground: Ground) -> None:
    """The control arm: what `open_run` must not do."""
    path = ground.store.state + b"/layers/0123456789abcdef"
    os.mkdir(path)
    sweep(ground.store)
    assert not os.path.exists(path)


def test_sweeping_thousands_of_held_layers_is_cheap(ground: Ground) -> None:
    for _ in range(200):
        ground.hold(b"a")
    state = ground.store.state
    with ground.store.transaction:
        for number in range(3000):
            name = f"{number:016x}"
            os.mkdir(os.path.join(state, b"layers", name.encode()))
            sql = "INSERT INTO layers (id, sandbox, root, run, state) VALUES (?, ?, x'2f', ?, 'sealed')"
            ground.store.transaction.change(sql, (name, "0" * 16, "0" * 16))
    took = []
    for _ in range(5):
        begun = time.perf_counter()
        assert sweep(ground.store) == Swept()
        took.append(time.perf_counter() - begun)
    assert min(took) < 0.05
    assert discard_stacks(ground.store, ground.sandbox.id) == 200


def test_a_run_may_be_opened_while_others_sweep(ground: Ground, cache: bytes) -> None:
    program = CHURN.partition("print(")[0] + (
        "from unspill.layers.sweep import sweep\nprint('begun', flush=True)\nwhile True: sweep(store)"
    )
    with start(program, ground, cache) as sweeper:
        assert line(sweeper) == "begun"
        for _ in range(150):
            opened = open_run(
                ground.store, ground.sandbox, argv=(b"true",), cwd=b"/", roots=(ground.project,), caches=(cache,)
            )
            write(upper(opened) + b"/file")
            assert len(seal_run(ground.store, opened, ended(opened)).stacks[0].sealed) > 0
        sweeper.kill()
    assert len(ground.store.layers.sealed(ground.sandbox.id)) == 150


def test_a_directory_may_be_taken_in_use_while_others_sweep(ground: Ground, cache: bytes) -> None:
    program = CHURN.partition("print(")[0] + (
        "from unspill.layers.sweep import sweep\nprint('begun', flush=True)\nwhile True: sweep(store)"
    )
    with start(program, ground, cache) as sweeper:
        assert line(sweeper) == "begun"
        for number in range(300):
            path = work_dir(ground.store.state, LayerId(f"{number:016x}"))
            fd = make_in_use(path)
            write(path + b"/file")
            time.sleep(0.001)
            assert os.path.exists(path + b"/file")
            os.close(fd)
        sweeper.kill()
