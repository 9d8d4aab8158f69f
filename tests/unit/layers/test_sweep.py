# SPDX-License-Identifier: Apache-2.0
"""What dead processes leave is removed at the next start; what living ones use, and what only lacks a row, is not."""

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.layers.ground import NOTHING, Ground, ended, layers_of, leave_work, upper, write
from unspill.layers.lifecycle import Swept, _sweep_bases, discard_stacks, open_run, seal_run, sweep, sweep_operations
from unspill.layers.locks import FOREIGN_NS, is_abandoned, make_in_use, may_live, this_process, upper_dir, work_dir
from unspill.layers.trees import remove_tree
from unspill.model.run import LayerId, RunId
from unspill.store.db import Store, list_aside, set_aside
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
from unspill.layers.lifecycle import discard_stacks
from unspill.layers.lifecycle import seal_run
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
    assert os.listdir(closed[0].sealed[0].upper) == [b"a"]


def test_a_sweep_does_not_take_a_run_of_its_own_process(ground: Ground) -> None:
    opened = ground.open()
    write(upper(opened) + b"/file")
    assert sweep(ground.store) == Swept()
    leave_work(opened)
    assert len(seal_run(ground.store, opened, ended(opened))[0].sealed) == 1


@pytest.mark.parametrize(
    "place", [b"work/0123456789abcdef", b"work/\xff not an id", b"layers/0123456789abcdef.dropped"]
)
def test_work_directories_without_a_row_and_dropped_layers_are_garbage(ground: Ground, place: bytes) -> None:
    ground.hold(b"kept")
    path = os.path.join(ground.store.state, place)
    write(path + b"/a/b/c")
    os.chmod(path + b"/a", 0)
    assert sweep(ground.store) == Swept(directories=1)
    assert not os.path.lexists(path)
    assert ground.left() == NOTHING | {b"layers": 1}
    assert list_aside(ground.store.state) == {}


@pytest.mark.parametrize("part", [b"layers", b"runs"])
@pytest.mark.parametrize("name", [b"0123456789abcdef", b"\xff not an id", b"x"])
@pytest.mark.parametrize("mode", [0o700, 0o500, 0])
def test_what_has_a_content_and_no_row_is_set_aside_and_never_swept(
    ground: Ground, part: bytes, name: bytes, mode: int
) -> None:
    ground.hold(b"kept")
    path = os.path.join(ground.store.state, part, name)
    write(path + b"/a", b"precious")
    os.chmod(path, mode)
    for _ in range(2):
        assert sweep(ground.store) == Swept()
    assert ground.left() == NOTHING | {b"layers": 1}
    ((found, aside),) = list_aside(ground.store.state).items()
    assert os.fsencode(found) == name
    assert os.stat(aside).st_mode & 0o777 == mode
    os.chmod(aside, 0o700)
    with open(aside + b"/a", "rb") as file:
        assert file.read() == b"precious"


def test_without_that_rule_it_would_be_swept(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control arm."""
    path = os.path.join(ground.store.state, b"layers/0123456789abcdef")
    write(path + b"/a", b"precious")

    def remove(state: bytes, part: bytes, names: set[str]) -> None:
        for name in names:
            remove_tree(os.path.join(state, part, name.encode()))

    monkeypatch.setattr("unspill.layers.lifecycle.set_aside", remove)
    sweep(ground.store)
    assert not os.path.lexists(path)
    assert list_aside(ground.store.state) == {}


def test_a_layer_that_lost_its_row_is_set_aside_with_its_base(ground: Ground) -> None:
    (stack,) = ground.hold(b"precious")
    layer = stack.sealed[0].id
    base = ground.store.state + b"/bases/" + layer.encode()
    write(base + b"/object")
    ground.store.layers.remove([layer])
    for _ in range(2):
        assert sweep(ground.store) == Swept()
    assert ground.left() == NOTHING
    assert os.listdir(list_aside(ground.store.state)[layer]) == [b"precious"]
    assert os.path.exists(base + b"/object")
    shutil.rmtree(os.path.dirname(list_aside(ground.store.state)[layer]))
    assert sweep(ground.store) == Swept(directories=1)
    assert not os.path.exists(base), "the person has removed the layer"


def test_layers_that_unspill_0_1_set_aside_are_listed(ground: Ground) -> None:
    write(ground.store.state + b"/lost-17/0123456789abcdef/file")
    write(ground.store.state + b"/lost-18/layers/fedcba9876543210/file")
    assert sweep(ground.store) == Swept()
    assert set(list_aside(ground.store.state)) == {"0123456789abcdef", "fedcba9876543210"}


def test_what_another_process_has_taken_meanwhile_leaves_nothing_behind(ground: Ground) -> None:
    before = os.listdir(ground.store.state)
    set_aside(ground.store.state, b"layers", ["0123456789abcdef"])
    assert os.listdir(ground.store.state) == before


def test_a_row_whose_layer_was_dropped_goes_with_it(ground: Ground) -> None:
    """Killed after the directory was dropped and before the transaction ended."""
    (stack,) = ground.hold(b"a")
    os.rename(stack.sealed[0].upper, stack.sealed[0].upper + b".dropped")
    assert sweep(ground.store) == Swept(directories=1)
    assert ground.rows() == 0
    assert ground.left() == NOTHING


@pytest.mark.parametrize("abandoner", ["hold"], indirect=True)
def test_the_work_directory_of_a_layer_that_was_dropped_goes_with_its_row(
    ground: Ground, abandoner: subprocess.Popen[bytes]
) -> None:
    """Killed there too, by a run that changed nothing."""
    run = RunId(line(abandoner))
    abandoner.kill()
    abandoner.wait()
    (layer,) = ground.store.layers.open_of_run(run)
    dropped = upper_dir(ground.store.state, layer.id)
    os.rename(dropped, dropped + b".dropped")
    assert sweep(ground.store) == Swept(directories=2)
    assert ground.rows() == 0
    assert ground.left() == NOTHING | {b"runs": 1}


def test_a_retired_layer_stays_until_nobody_uses_it(ground: Ground) -> None:
    (stack,) = ground.hold(b"a")
    running = ground.open()
    ground.store.layers.retire([stack.sealed[0].id])
    sweep(ground.store)
    assert os.path.exists(stack.sealed[0].upper)
    ground.drop(running)
    sweep(ground.store)
    assert ground.left() == NOTHING
    assert list_aside(ground.store.state) == {}


def test_of_operations_without_a_row_those_without_a_journal_are_swept_and_the_others_set_aside(
    ground: Ground,
) -> None:
    operations = ground.store.state + b"/operations/"
    lost, pending, bare, pruned = (letter * 16 for letter in "abcd")
    for name in (lost, pending, bare, pruned):
        write(operations + name.encode() + b"/old/file", b"content")
    for name in (lost, pruned):
        write(operations + name.encode() + b"/journal", b"damaged")
    write(operations + pruned.encode() + b"/pruned")
    write(ground.store.state + b"/pending/" + pending.encode())
    for swept in (1, 0):
        assert sweep_operations(ground.store) == swept
        assert set(os.listdir(operations)) == {pending.encode(), pruned.encode()}
    (aside,) = list_aside(ground.store.state).values()
    assert os.path.basename(aside) == lost.encode()
    assert sorted(os.listdir(aside)) == [b"journal", b"old"]


def test_an_operation_that_ends_while_others_look_is_not_set_aside(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(ground.store.state + b"/operations/0123456789abcdef/journal")
    marker = ground.store.state + b"/pending/0123456789abcdef"
    write(marker)
    ids = type(ground.store.operations).ids

    def ids_before_the_end(self: object) -> set[str]:
        found = ids(ground.store.operations)
        if os.path.exists(marker):
            os.unlink(marker)
        return found

    monkeypatch.setattr(type(ground.store.operations), "ids", ids_before_the_end)
    sweep_operations(ground.store)
    assert list_aside(ground.store.state) == {}


def test_the_work_directory_of_a_sealed_layer_is_garbage(ground: Ground) -> None:
    (stack,) = ground.hold(b"a")
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
    (stack,) = ground.hold(b"a")
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
    assert list_aside(store.state) == {}, "nothing was taken for lost that was only discarded"


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
        begun = time.process_time()
        assert sweep(ground.store) == Swept()
        took.append(time.process_time() - begun)
    assert min(took) < 0.05
    assert discard_stacks(ground.store, ground.sandbox.id) == 200


def test_a_run_may_be_opened_while_others_sweep(ground: Ground, cache: bytes) -> None:
    program = CHURN.partition("print(")[0] + (
        "from unspill.layers.lifecycle import sweep\nprint('begun', flush=True)\nwhile True: sweep(store)"
    )
    with start(program, ground, cache) as sweeper:
        assert line(sweeper) == "begun"
        for _ in range(150):
            opened = open_run(
                ground.store, ground.sandbox, argv=(b"true",), cwd=b"/", roots=(ground.project,), caches=(cache,)
            )
            write(upper(opened) + b"/file")
            assert len(seal_run(ground.store, opened, ended(opened))[0].sealed) > 0
        sweeper.kill()
    assert len(ground.store.layers.sealed(ground.sandbox.id)) == 150


def test_a_directory_may_be_taken_in_use_while_others_sweep(ground: Ground, cache: bytes) -> None:
    program = CHURN.partition("print(")[0] + (
        "from unspill.layers.lifecycle import sweep\nprint('begun', flush=True)\nwhile True: sweep(store)"
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
