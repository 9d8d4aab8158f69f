# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the attacks: a machine, and an arena on it."""

import pytest

from tests.attack.arena import Arena
from tests.support import Ground as Ground
from tests.support import ground as ground
from tests.support import known_facts as known_facts
from tests.support import no_spawner_survives as no_spawner_survives
from tests.support import parametrise_engines
from tests.support import trusted_bwrap as trusted_bwrap


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrise_engines(metafunc)


@pytest.fixture
def arena(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Arena:
    return Arena(ground, monkeypatch)
