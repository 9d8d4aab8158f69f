# SPDX-License-Identifier: Apache-2.0
"""When the host is nearly out of memory, and whose fault that may be."""

import os
from pathlib import Path

import pytest

from unspill.model.policy import Limits
from unspill.model.run import LimitReached
from unspill.runner import watch as watch_module
from unspill.runner.watch import UsageWatch

MIB = 1 << 20


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
