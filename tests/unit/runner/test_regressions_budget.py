# SPDX-License-Identifier: Apache-2.0
"""Defects of the budget that were seen, by their symptom."""

from __future__ import annotations

import os
from pathlib import Path

from unspill import Limits
from unspill.runner.budget import Budget


def test_a_run_whose_sandbox_is_not_made_yet_is_not_charged_for_the_files_of_the_host(tmp_path: Path) -> None:
    budget = Budget(Limits(layer_entries=1), (os.fsencode(tmp_path),), fresh=(b"/tmp", b"/run"))
    before_its_root_is_its_own = os.pidfd_open(os.getpid())
    try:
        assert budget.check(before_its_root_is_its_own) is None
    finally:
        os.close(before_its_root_is_its_own)
