# SPDX-License-Identifier: Apache-2.0
"""The same techniques for a root caller who is let in by `allow_root`: what succeeds there is listed in SECURITY.md."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

from tests.attack.arena import Arena
from tests.attack.techniques.every import TECHNIQUES
from tests.support import Ground

if TYPE_CHECKING:
    from tests.attack.techniques.record import Technique
    from unspill import Policy

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.root]


class RootGround(Ground):
    """A machine whose root insists."""

    def policy(self, **settings: Any) -> Policy:
        return super().policy(**{"allow_root": True, **settings})


@pytest.mark.parametrize(
    "technique", [one for one in TECHNIQUES if one.as_root != "anybody"], ids=lambda technique: technique.id
)
def test_a_technique_fails_for_root_unless_it_is_listed(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, technique: Technique
) -> None:
    rooted = RootGround(**{field.name: getattr(ground, field.name) for field in fields(ground)})
    succeeded = bool(technique.attack(Arena(rooted, monkeypatch)))
    assert succeeded is (technique.as_root == "succeeds"), technique.tries
