# SPDX-License-Identifier: Apache-2.0
"""Every technique of the list: it fails against a sandbox as it is, and succeeds where its defence is missing."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

import pytest

from tests.attack.arena import Arena
from tests.attack.techniques.every import TECHNIQUES

if TYPE_CHECKING:
    from tests.attack.techniques.record import Technique
    from unspill import RunResult
    from unspill.model.plan import Facts

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.rootfs_view]

# About changes, what the proxy lets through, questions, grants and settings: bubblewrap has no other part in them than
# to have run a command. That there is no way past the proxy is A15, D1 and D9.
WITHOUT_BWRAP = tuple("B5. C D2. D3. D4. D5. D6. D7. D8. D11. E4. E5. E6. E7. E13. E14.".split())


def marks_of(technique: Technique) -> tuple[pytest.MarkDecorator, ...]:
    if technique.row == "E14":
        return (pytest.mark.view("sealed", reason="who answers a question has nothing to do with the view"),)
    return () if technique.id.startswith(WITHOUT_BWRAP) else (pytest.mark.bwrap,)


@pytest.mark.parametrize("technique", [pytest.param(one, id=one.id, marks=marks_of(one)) for one in TECHNIQUES])
def test_a_technique_fails_and_succeeds_without_the_defence(
    arena: Arena, known_facts: tuple[str, Facts], technique: Technique
) -> None:
    assert not technique.attack(arena), technique.tries
    bwrap = known_facts[1].bwrap
    if technique.needs_flaw and bwrap is not None and not bwrap.symlink_flaw:
        pytest.skip("this bwrap does not follow links while it sets up, so the control can't show anything")
    assert technique.control(arena), f"the control of {technique.id} shows nothing: {technique.removed}"


# What never gets to a command, or is about what happens to changes afterwards in ways that a live sandbox shares
WITHOUT_COMMAND = tuple("C10. D2. D3. D4. D5. D6. D7. D8. D11. E1. E3. E4. E5. E6. E7. E12. E14.".split())
GROUPS = {
    group: [*found]
    for group, found in groupby(TECHNIQUES, lambda one: one.id.rpartition(".")[0] + ".")
    if group not in WITHOUT_COMMAND
}


@pytest.mark.parametrize("group", GROUPS)
def test_a_technique_fails_in_a_live_sandbox_too(
    arena: Arena, group: str, full: bool, through_live: list[RunResult]
) -> None:
    """The time buys the first of each group, and with `--full` all of them."""
    for technique in GROUPS[group] if full else GROUPS[group][:1]:
        assert not technique.attack(arena), technique.tries
    assert through_live
