# SPDX-License-Identifier: Apache-2.0
"""Defects of the budget that were seen, by their symptom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unspill import LimitReached, Limits
from unspill.runner.watch import UsageWatch


def test_a_run_whose_sandbox_is_not_made_yet_is_not_charged_for_the_files_of_the_host(tmp_path: Path) -> None:
    budget = UsageWatch(Limits(layer_entries=1), (os.fsencode(tmp_path),), fresh=(b"/tmp", b"/run"))
    before_its_root_is_its_own = os.pidfd_open(os.getpid())
    try:
        assert budget.check(before_its_root_is_its_own) is None
    finally:
        os.close(before_its_root_is_its_own)


def test_a_directory_in_memory_at_a_place_that_the_host_does_not_have_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = UsageWatch(Limits(layer_entries=0), (os.fsencode(tmp_path),), fresh=(b"/",))
    monkeypatch.setattr("unspill.runner.watch._device_of", lambda _place: None)
    of_another_root = os.pidfd_open(os.getpid())
    try:
        reached = budget.check(of_another_root)
    finally:
        os.close(of_another_root)
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
