# SPDX-License-Identifier: Apache-2.0
"""Offers the fixtures of a person's machine to the tests that run real commands on it."""

import pytest

from tests.support import ground as ground
from tests.support import known_facts as known_facts
from tests.support import no_spawner_survives as no_spawner_survives
from tests.support import parametrise_engines
from tests.support import trusted_bwrap as trusted_bwrap


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrise_engines(metafunc)
