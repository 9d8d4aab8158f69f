# SPDX-License-Identifier: Apache-2.0
"""Limits as what the kernel is told, and the names of those that ended a run."""

import os
import resource
from pathlib import Path
from typing import Any

import pytest

from unspill.model.policy import Limits
from unspill.model.run import Cancelled, Exited, LimitReached, NeverStarted, Signalled, TimedOut
from unspill.runner.watch import UsageWatch, find_excess, name_limit, rlimits

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
