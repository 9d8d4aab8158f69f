# SPDX-License-Identifier: Apache-2.0
"""What a run prints, takes of the disk and takes of the memory is bounded, and the bound is named."""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from unspill.layers.locks import this_process
from unspill.model.policy import Limits
from unspill.model.run import Cancelled, Exited, LimitReached, NeverStarted, Output, Signalled, TimedOut
from unspill.runner import watch as watch_module
from unspill.runner.watch import Collector, UsageWatch, find_excess, name_limit, rlimits


def collect(directory: Path, chunks: list[bytes], *, kept: int, cap: int | None = None) -> Output:
    collector = Collector(os.fsencode(directory / "run" / "stdout"), kept_bytes=kept, file_cap=cap)
    for chunk in chunks:
        collector.add(chunk)
    assert collector.total == sum(map(len, chunks))
    return collector.finish()


@for_all(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=30),
    kept=st.integers(0, 60),
    cap=st.none() | st.integers(0, 300),
)
def test_head_tail_and_file_are_parts_of_the_whole(chunks: list[bytes], kept: int, cap: int | None) -> None:
    whole = b"".join(chunks)
    with tempfile.TemporaryDirectory() as directory:
        output = collect(Path(directory), chunks, kept=kept, cap=cap)
        assert output.head == whole[:kept]
        rest = whole[kept:]
        assert output.tail == rest[max(0, len(rest) - kept) :]
        assert output.left_out == max(0, len(rest) - kept)
        assert output.total == len(whole)
        assert (output.file is None) == (output.left_out == 0)
        if output.file is not None:
            assert Path(os.fsdecode(output.file)).read_bytes() == whole[:cap]
        assert os.listdir(directory) == ([] if output.file is None else ["run"])


def test_nothing_printed_is_an_empty_output(tmp_path: Path) -> None:
    assert collect(tmp_path, [], kept=10) == Output()


def test_memory_stays_bounded(tmp_path: Path) -> None:
    collector = Collector(os.fsencode(tmp_path / "stdout"), kept_bytes=100, file_cap=0)
    for _ in range(1000):
        collector.add(b"x" * 64)
        assert len(collector._head) + len(collector._tail) <= 100 + 2 * 100 + 64
    assert collector.finish().total == 64_000


def test_a_directory_that_can_not_be_written_costs_only_the_file(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    output = collect(tmp_path, [b"x" * 100], kept=10)
    assert output == Output(head=b"x" * 10, tail=b"x" * 10, left_out=80, file=None)


def test_a_full_disk_costs_only_the_file() -> None:
    collector = Collector(b"/unused", kept_bytes=4, file_cap=None)
    # /dev/full is the disk that is always full
    collector._fd, collector._is_spilled = os.open("/dev/full", os.O_WRONLY), True
    for _ in range(3):
        collector.add(b"0123456789")
    output = collector.finish()
    assert (output.head, output.tail, output.left_out) == (b"0123", b"6789", 22)


@pytest.mark.parametrize("mode", [0o022, 0o000])
def test_others_can_not_read_the_file(tmp_path: Path, mode: int) -> None:
    before = os.umask(mode)
    try:
        output = collect(tmp_path, [b"x" * 100], kept=10)
    finally:
        os.umask(before)
    assert output.file is not None
    path = Path(os.fsdecode(output.file))
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


MIB = 1 << 20


def test_every_bound_that_the_kernel_keeps_is_told_to_it() -> None:
    limits = Limits(file_bytes=1, open_files=2, processes=3, memory_bytes=4)
    assert dict(rlimits(limits, has_group=False)) == {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: 1,
        resource.RLIMIT_NOFILE: 2,
        resource.RLIMIT_NPROC: 3,
        resource.RLIMIT_DATA: 4,
    }


def test_a_control_group_takes_over_processes_and_memory() -> None:
    told = dict(rlimits(Limits(), has_group=True))
    assert resource.RLIMIT_NPROC not in told
    assert resource.RLIMIT_DATA not in told
    assert resource.RLIMIT_FSIZE in told


def test_what_is_unlimited_is_not_told_but_no_core_is_ever_dumped() -> None:
    limits = Limits(file_bytes=None, open_files=None, processes=None, memory_bytes=None)
    assert rlimits(limits, has_group=False) == ((resource.RLIMIT_CORE, 0),)


@pytest.mark.parametrize(
    ("outcome", "reached", "expected"),
    [
        (Exited(code=0), "memory", Exited(code=0)),
        (Exited(code=1), None, Exited(code=1)),
        (Signalled(signal=9), "memory", LimitReached(limit="memory", bound=7)),
        (Exited(code=1), "processes", LimitReached(limit="processes", bound=8)),
        (Signalled(signal=25), None, LimitReached(limit="file_bytes", bound=9)),
        (Signalled(signal=24), None, Signalled(signal=24)),
        (TimedOut(after_s=1.0), "memory", TimedOut(after_s=1.0)),
        (Cancelled(), "processes", Cancelled()),
        (NeverStarted(reason="x"), "memory", NeverStarted(reason="x")),
    ],
)
def test_a_bound_is_named_where_the_kernel_tells(outcome: Any, reached: Any, expected: Any) -> None:
    limits = Limits(memory_bytes=7, processes=8, file_bytes=9)
    assert name_limit(outcome, reached, limits) == expected


def test_a_signal_of_a_bound_that_was_not_set_is_a_signal() -> None:
    assert name_limit(Signalled(signal=25), None, Limits(file_bytes=None)) == Signalled(signal=25)


def fill(top: Path, files: int, size: int) -> bytes:
    top.mkdir()
    for number in range(files):
        (top / str(number)).write_bytes(b"x" * size)
    return os.fsencode(top)


def test_what_lies_in_all_layers_counts_together(tmp_path: Path) -> None:
    uppers = tuple(fill(tmp_path / name, 3, MIB) for name in ("a", "b"))
    assert find_excess(Limits(layer_bytes=7 * MIB, layer_entries=6), uppers) is None
    assert find_excess(Limits(layer_bytes=5 * MIB), uppers) == LimitReached(limit="layer_bytes", bound=5 * MIB)
    assert find_excess(Limits(layer_entries=5), uppers) == LimitReached(limit="layer_entries", bound=5)
    assert find_excess(Limits(layer_bytes=None, layer_entries=None), uppers) is None
    assert find_excess(Limits(layer_bytes=0), ()) is None


def test_the_next_look_is_chosen_by_the_last(tmp_path: Path) -> None:
    budget = UsageWatch(Limits(), (fill(tmp_path / "a", 10, 1),))
    before = budget.next_check
    assert budget.check() is None
    assert budget.next_check >= before


@pytest.mark.parametrize(("free", "limit"), [((1000, 1 << 40), "free_space"), ((1 << 40, 5), "free_inodes")])
def test_a_disk_that_is_nearly_full_ends_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: tuple[int, int], limit: str
) -> None:
    budget = UsageWatch(Limits(), (fill(tmp_path / "a", 1, 1),))
    monkeypatch.setattr("unspill.runner.watch._room", lambda _path: free)
    reached = budget.check()
    assert reached is not None
    assert reached.limit == limit


def test_a_run_whose_sandbox_is_not_made_yet_is_not_charged_for_the_files_of_the_host(tmp_path: Path) -> None:
    budget = UsageWatch(Limits(layer_entries=1), (os.fsencode(tmp_path),), fresh=(b"/tmp", b"/run"))
    before_its_root_is_its_own = (os.getpid(), this_process().started)
    assert budget.check(before_its_root_is_its_own) is None


def test_a_directory_in_memory_at_a_place_that_the_host_does_not_have_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = UsageWatch(Limits(layer_entries=0), (os.fsencode(tmp_path),), fresh=(b"/",))
    monkeypatch.setattr("unspill.runner.watch._device_of", lambda _place: None)
    of_another_root = (os.getpid(), this_process().started)
    assert budget.check((os.getpid(), 0)) is None, "another process that has the same pid by now"
    reached = budget.check(of_another_root)
    assert reached == LimitReached(limit="tmp_entries", bound=0)


def _make_files(directory: Path, count: int) -> None:
    directory.mkdir(exist_ok=True)
    for number in range(count):
        (directory / f"{directory.name}-{number}").touch()


def _look_after_the_disk_changed(
    budget: UsageWatch, monkeypatch: pytest.MonkeyPatch, entries: int
) -> LimitReached | None:
    """Look as if the whole file system had so many entries more than at the beginning: others use it too."""
    room = budget._room
    monkeypatch.setattr("unspill.runner.watch._room", lambda _path: (room[0], room[1] - entries))
    budget._next_walk = 0.0
    return budget.check()


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A layer and a playground, both empty."""
    upper, playground = tmp_path / "upper", tmp_path / "playground"
    upper.mkdir()
    playground.mkdir()
    return upper, playground


def _budget(places: tuple[Path, Path]) -> UsageWatch:
    upper, playground = map(os.fsencode, places)
    return UsageWatch(Limits(layer_entries=150), (upper,), (playground,))


def test_whoever_removes_files_elsewhere_does_not_hide_that_a_run_fills_the_playground(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: by the free space alone it would be hidden."""
    budget = _budget(places)
    _make_files(places[1] / "made", 200)
    excess = LimitReached(limit="playground_entries", bound=150)
    assert _look_after_the_disk_changed(budget, monkeypatch, -5000) == excess
    monkeypatch.setattr("unspill.runner.watch.has_fresh", lambda *_place, **_bounds: False)
    assert _look_after_the_disk_changed(budget, monkeypatch, -5000) is None


def test_a_run_that_tidies_a_playground_that_is_too_large_is_let_alone(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    playground = places[1]
    for number in range(200):
        _make_files(playground / f"d{number}", 2)
    budget = _budget(places)
    budget._begun_ns = os.stat(playground / "d199").st_ctime_ns + 1
    for number in range(200):
        (playground / f"d{number}" / f"d{number}-0").chmod(0o600)
        (playground / f"d{number}" / f"d{number}-1").unlink()
    assert _look_after_the_disk_changed(budget, monkeypatch, -200) is None
    assert _look_after_the_disk_changed(budget, monkeypatch, 200) is not None


def test_the_hosts_memory_is_known() -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 16 * MIB < watch_module.free_memory() < 4 * pages


@pytest.mark.parametrize(
    ("before", "now", "is_ended"),
    [
        (8192, 8192, False),
        (8192, 256, False),
        (8192, 255, True),
        (600, 200, True),
        (300, 200, False),
        (200, 100, False),
        (100, 8192, False),
    ],
)
def test_a_run_is_ended_when_little_is_left_and_much_was_taken_meanwhile(
    monkeypatch: pytest.MonkeyPatch, before: int, now: int, is_ended: bool
) -> None:
    monkeypatch.setattr(watch_module, "free_memory", lambda: before * MIB)
    watch = watch_module.MemoryWatch()
    monkeypatch.setattr(watch_module, "free_memory", lambda: now * MIB)
    assert watch.check() == (LimitReached(limit="free_memory", bound=256 * MIB) if is_ended else None)


def test_the_budget_looks_at_memory_only_where_no_group_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upper = (os.fsencode(tmp_path),)
    watch = watch_module.MemoryWatch()
    monkeypatch.setattr(watch_module, "free_memory", lambda: 0)
    assert UsageWatch(Limits(), upper).check() is None
    reached = UsageWatch(Limits(), upper, memory=watch).check()
    assert reached is not None
    assert reached.limit == "free_memory"
