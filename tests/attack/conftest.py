# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the attacks: a machine, and an arena on it."""

import pytest

from tests.attack.arena import Arena
from tests.prepared import prepared_programs
from tests.support import (
    Ground,
    ground,
    known_facts,
    no_spawner_survives,
    parametrise_engines,
    trusted_bwrap,
    without_own_namespace,
)

__all__ = [
    "arena",
    "ground",
    "known_facts",
    "no_spawner_survives",
    "prepared_programs",
    "trusted_bwrap",
    "without_own_namespace",
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrise_engines(metafunc)


@pytest.fixture(name="arena")
def arena(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Arena:
    """A machine to attack from inside."""
    return Arena(ground, monkeypatch)
