# SPDX-License-Identifier: Apache-2.0
"""Tool caches: one run's writes are the next run's cache, the fastest of several wins, and stacks stay shallow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.layers.ground import NOTHING, Ground, ended, layers_of, upper, write
from unspill.layers.lifecycle import FAN, OpenRun, drop_run, seal_run
from unspill.layers.sweep import Swept, sweep
from unspill.model.layer import LayerId, RunId
from unspill.store.layers import CacheRow


@pytest.fixture
def caches(tmp_path: Path) -> list[bytes]:
    paths = [tmp_path / "home" / "pip", tmp_path / "home" / "npm"]
    for path in paths:
        path.mkdir(parents=True)
    return [os.fsencode(path) for path in paths]


def put(opened: OpenRun, name: bytes, content: bytes = b"", cache: int = 0) -> None:
    """Write into a cache of a run that has one root."""
    write(upper(opened, 1 + cache) + b"/" + name, content)


def fill(ground: Ground, cache: bytes, *names: bytes) -> None:
    opened = ground.open(cache)
    for name in names:
        put(opened, name, name)
    ground.drop(opened)


def shown(ground: Ground, cache: bytes) -> set[bytes]:
    """Return the top-level names of all layers of a cache; enough where nothing is deleted."""
    opened = ground.open(cache)
    try:
        return {name for lower in opened.caches[0].stack.lowers() for name in os.listdir(lower)}
    finally:
        ground.drop(opened)


def depth(ground: Ground) -> int:
    return len(ground.store.caches.sealed(ground.project))


def test_each_cache_of_a_run_has_an_open_layer_over_the_live_one(ground: Ground, caches: list[bytes]) -> None:
    os.chmod(caches[1], 0o750)
    opened = ground.open(*caches)
    assert [cache.path for cache in opened.caches] == caches
    assert [cache.stack.lowers() for cache in opened.caches] == [(caches[0],), (caches[1],)]
    assert os.stat(upper(opened, 2)).st_mode & 0o777 == 0o750
    assert len({layer.id for layer in layers_of(opened)}) == 3


def test_what_is_no_directory_is_no_cache(ground: Ground, caches: list[bytes], tmp_path: Path) -> None:
    link, file = os.fsencode(tmp_path / "link"), os.fsencode(tmp_path / "file")
    os.symlink(caches[0], link)
    write(file)
    opened = ground.open(link, file, b"/nowhere", caches[1])
    assert [cache.path for cache in opened.caches] == [caches[1]]


def test_unwritten_caches_leave_nothing(ground: Ground, caches: list[bytes]) -> None:
    ground.drop(ground.open(*caches))
    assert ground.left() == NOTHING
    assert ground.rows() == 0


def test_what_a_run_wrote_is_in_the_next_runs_cache(ground: Ground, caches: list[bytes]) -> None:
    opened = ground.open(*caches)
    put(opened, b"wheel", b"content", cache=1)
    ground.drop(opened)
    again = ground.open(*caches)
    assert [len(cache.stack.sealed) for cache in again.caches] == [0, 1]
    folded = again.caches[1].stack.sealed[0]
    assert Path(os.fsdecode(folded.upper), "wheel").read_text() == "content"
    assert os.listdir(caches[1]) == [], "the live cache is not touched"
    assert ground.left() == {b"layers": 4, b"work": 3, b"runs": 0}


def test_held_and_dropped_runs_both_fill_caches_and_other_projects_have_their_own(
    ground: Ground, caches: list[bytes], tmp_path: Path
) -> None:
    opened = ground.open(caches[0])
    put(opened, b"a")
    seal_run(ground.store, opened, ended(opened))
    fill(ground, caches[0], b"b")
    assert shown(ground, caches[0]) == {b"a", b"b"}
    (tmp_path / "elsewhere").mkdir()
    elsewhere = os.fsencode(tmp_path / "elsewhere")
    other = Ground(ground.store, elsewhere, ground.store.sandboxes.get_or_create(elsewhere, "default", 1, 2))
    assert shown(other, caches[0]) == set()
    sibling = ground._replace(sandbox=ground.store.sandboxes.get_or_create(ground.project, "other", 1, 2))
    assert shown(sibling, caches[0]) == {b"a", b"b"}


def test_without_folding_the_caches_stay_as_they_were(ground: Ground, caches: list[bytes]) -> None:
    opened = ground.open(caches[0])
    put(opened, b"half-written")
    drop_run(ground.store, opened, ended(opened), fold=False)
    assert shown(ground, caches[0]) == set()
    assert ground.left() == NOTHING


def test_of_two_runs_the_first_to_end_wins_and_the_other_is_dropped(ground: Ground, caches: list[bytes]) -> None:
    first, second = ground.open(*caches), ground.open(*caches)
    put(first, b"first")
    put(second, b"second")
    put(second, b"npm", cache=1)
    ground.drop(second)
    ground.drop(first)
    assert shown(ground, caches[0]) == {b"second"}
    assert shown(ground, caches[1]) == {b"npm"}
    assert ground.left() == {b"layers": 2, b"work": 0, b"runs": 0}
    assert ground.rows() == 2


RACE = """
import os, sys
from tests.unit.layers.ground import Ground, upper, write
from unspill.store.db import Store
state, project, cache = map(os.fsencode, sys.argv[1:4])
store = Store.open(state)
ground = Ground(store, project, store.sandboxes.get_or_create(project, f"name {os.getpid()}", 1, 2))
for number in range(25):
    opened = ground.open(cache)
    below = {name for lower in opened.caches[0].stack.lowers() for name in os.listdir(lower)}
    write(upper(opened, 1) + b"/%d-%d" % (os.getpid(), number), b" ".join(sorted(below)))
    ground.drop(opened)
"""


def test_processes_that_race_build_one_chain(ground: Ground, caches: list[bytes]) -> None:
    """Each entry holds the names that were below it when it was written: no fold may hide or lose any of them."""
    command: list[str | bytes] = [sys.executable, "-c", RACE, ground.store.state, ground.project, caches[0]]
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    processes = [subprocess.Popen(command, env=environ) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    opened = ground.open(caches[0])
    uppers = [Path(os.fsdecode(layer.upper)) for layer in opened.caches[0].stack.sealed]
    entries = {path.name: set(path.read_text().split()) for upper in uppers for path in upper.iterdir()}
    assert len(entries) >= 25
    for name, below in entries.items():
        assert below <= set(entries) - {name}
    assert sorted(map(len, entries.values())) == list(range(len(entries)))
    ground.drop(opened)
    assert sweep(ground.store) == Swept()
    assert ground.left() == {b"layers": depth(ground), b"work": 0, b"runs": 0}


def test_a_deep_cache_is_squashed_tier_by_tier(ground: Ground, caches: list[bytes]) -> None:
    depths = []
    for number in range(FAN * FAN + 3):
        fill(ground, caches[0], b"%d" % number)
        depths.append(depth(ground))
    assert max(depths) == 2 * (FAN - 1)
    assert depths[FAN * FAN - 1] == 1
    assert shown(ground, caches[0]) == {b"%d" % number for number in range(FAN * FAN + 3)}
    assert ground.left() == {b"layers": depth(ground), b"work": 0, b"runs": 0}
    assert ground.rows() == depth(ground)


def test_layers_that_a_run_has_mounted_stay_until_it_ends(ground: Ground, caches: list[bytes]) -> None:
    for number in range(FAN - 1):
        fill(ground, caches[0], b"%d" % number)
    slow = ground.open(caches[0])
    mounted = slow.caches[0].stack.lowers()
    assert len(mounted) == FAN
    fill(ground, caches[0], b"last")
    assert depth(ground) == 1
    assert sweep(ground.store) == Swept()
    assert all(os.path.isdir(lower) for lower in mounted)
    late = ground.open(caches[0])
    assert len(late.caches[0].stack.sealed) == 1
    ground.drop(slow)
    assert not any(os.path.isdir(lower) for lower in mounted[:-1])
    assert os.path.isdir(late.caches[0].stack.sealed[0].upper)
    ground.drop(late)
    assert ground.left() == {b"layers": 1, b"work": 0, b"runs": 0}


def test_a_cache_that_can_not_be_squashed_is_cut_back(ground: Ground, caches: list[bytes]) -> None:
    for number in range(FAN):
        opened = ground.open(caches[0])
        put(opened, b"%d" % number)
        if number == 3:
            os.mkdir(upper(opened, 1) + b"/closed", 0)
        ground.drop(opened)
    assert depth(ground) == 0
    assert ground.left() == NOTHING
    assert ground.rows() == 0
    fill(ground, caches[0], b"again")
    assert shown(ground, caches[0]) == {b"again"}


def test_a_run_over_a_cache_that_was_cut_back_meanwhile_does_not_fold(ground: Ground, caches: list[bytes]) -> None:
    fill(ground, caches[0], b"a")
    opened = ground.open(caches[0])
    put(opened, b"b")
    ground.store.caches.retire(ground.store.caches.sealed(ground.project))
    ground.drop(opened)
    assert shown(ground, caches[0]) == set()
    assert ground.left() == NOTHING


def test_a_squash_of_a_killed_process_is_swept(ground: Ground, caches: list[bytes]) -> None:
    opened = ground.open(caches[0])
    row = CacheRow(id=LayerId("f" * 16), project=ground.project, path=caches[0], run=opened.run.id, tier=1)
    ground.store.caches.add_open([row])
    write(os.path.join(ground.store.state, b"layers", row.id.encode(), b"half"))
    assert sweep(ground.store) == Swept()
    ground.store.transaction.change("UPDATE runs SET owner_boot = 'an earlier boot'")
    # What the run wrote to the project is for whoever opens that
    assert sweep(ground.store) == Swept()
    assert ground.store.caches.ids() == set()
    assert ground.left() == NOTHING | {b"layers": 1, b"work": 1}
    ground.store.transaction.change("UPDATE runs SET after_cancel = 'discard'")
    assert sweep(ground.store) == Swept(runs=(RunId(opened.run.id),))
    assert ground.left() == NOTHING
    assert ground.rows() == 0


def test_two_squashes_of_the_same_layers_do_not_both_succeed(ground: Ground, caches: list[bytes]) -> None:
    for number in range(3):
        fill(ground, caches[0], b"%d" % number)
    old = ground.store.caches.sealed(ground.project)
    rows = [
        CacheRow(id=LayerId(letter * 16), project=ground.project, path=caches[0], run=old[0].run, tier=1)
        for letter in "ef"
    ]
    ground.store.caches.add_open(rows)
    assert [ground.store.caches.replace(old, row) for row in rows] == [True, False]
    assert [row.id for row in ground.store.caches.sealed(ground.project)] == ["e" * 16]
