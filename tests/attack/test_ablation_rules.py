# SPDX-License-Identifier: Apache-2.0
"""Every rule of the system call filter, taken away alone: the call that it refuses is then let through.

The kernel's own refusals are out of the way: what the filter allows is answered before the kernel sees it, with an
error that no kernel has. So a rule that another defence happens to repeat is seen to be missing as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scripts.seccomp.rules import AllowCall, Refuse, RefuseIf, verdicts
from tests.attack.ablation_rules import FAMILIES, answers, rules
from tests.attack.entries_inside import PASSED
from tests.attack.requests import REQUESTS
from tests.figures import record_figure
from tests.kernel.seccomp_box import MACHINE
from unspill.host.bwrap import build_filter

if TYPE_CHECKING:
    from pathlib import Path

    from scripts.seccomp.rules import Verdict
    from unspill.model.policy import Profile

pytestmark = [pytest.mark.attack, pytest.mark.kernel]

both_profiles = pytest.mark.parametrize("profile", ["default", "strict"])
OF_THE_WHOLE = {"x86_64": 4, "aarch64": 2}


def parts_of(verdict: Verdict) -> int:
    """Return how many rules a verdict is, counted by another way than they are generated."""
    match verdict:
        case AllowCall():
            return 0
        case Refuse():
            return 1
        case RefuseIf():
            if verdict.test == "has-a-bit-of":
                return sum(value.bit_count() for value in verdict.values)
            if verdict.argument == 1:
                return len(REQUESTS)
            return FAMILIES - sum(value < FAMILIES for value in verdict.values)


@both_profiles
def test_a_rule_that_is_taken_away_lets_its_call_through(profile: Profile, tmp_path: Path) -> None:
    """Each rule of the table, by a filter without it. Control: under the whole filter each gives its own error."""
    table = rules(MACHINE, profile)
    full = build_filter(MACHINE, profile)
    intact = answers([(full, rule.call) for rule in table], tmp_path)
    ablated = answers([(rule.without, rule.call) for rule in table], tmp_path)
    assert {rule.name: error for rule, error in zip(table, intact, strict=True)} == {
        rule.name: rule.error for rule in table
    }
    assert [rule.name for rule, error in zip(table, ablated, strict=True) if error != PASSED] == []
    count = sum(map(parts_of, verdicts(MACHINE, profile))) + OF_THE_WHOLE[MACHINE]
    assert len(table) == len({rule.name for rule in table}) == count
    print(f"{profile}: {len(table)} rules, each of them missed when it is taken away")
    record_figure(f"ablation: rules of the filter, {profile}", f"{len(table)} of {count}", "taken away one by one")


@both_profiles
def test_a_rule_that_is_taken_away_changes_nothing_else(profile: Profile, tmp_path: Path) -> None:
    """Under a filter without one rule the neighbours of that rule in the table still give their errors."""
    table = rules(MACHINE, profile)
    # Rules of one number are weakened in its check, so only those of another number are neighbours
    pairs = [
        (rule, other)
        for rule, other in zip(table, table[1:] + table[:1], strict=True)
        if rule.call[:2] != other.call[:2] and rule.without != other.without
    ]
    assert len(pairs) > 100
    found = answers([(rule.without, other.call) for rule, other in pairs], tmp_path)
    wrong = [pair for pair, error in zip(pairs, found, strict=True) if error != pair[1].error]
    assert [(rule.name, other.name) for rule, other in wrong] == []
