# SPDX-License-Identifier: Apache-2.0
"""Defects of the budget that were seen, by their symptom."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from unspill import LimitReached, Limits
from unspill.runner.budget import Budget


def test_a_run_whose_sandbox_is_not_made_yet_is_not_charged_for_the_files_of_the_host(tmp_path: Path) -> None:
    budget = Budget(Limits(layer_entries=1), (os.fsencode(tmp_path),), fresh=(b"/tmp", b"/run"))
    before_its_root_is_its_own = os.pidfd_open(os.getpid())
    try:
        assert budget.check(before_its_root_is_its_own) is None
    finally:
        os.close(before_its_root_is_its_own)


def test_a_directory_in_memory_at_a_place_that_the_host_does_not_have_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = Budget(Limits(layer_entries=0), (os.fsencode(tmp_path),), fresh=(b"/",))
    monkeypatch.setattr("unspill.runner.budget._device_of", lambda _place: None)
    of_another_root = os.pidfd_open(os.getpid())
    try:
        reached = budget.check(of_another_root)
    finally:
        os.close(of_another_root)
    assert reached == LimitReached(limit="tmp_entries", bound=0)
