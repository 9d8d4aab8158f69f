# SPDX-License-Identifier: Apache-2.0
"""Offers the fixtures of a person's machine to the tests that run real commands on it."""

import pytest

from tests.kernel.alpine_mirror import alpine_mirror
from tests.support import ground, known_facts, no_spawner_survives, parametrise_engines, trusted_bwrap

__all__ = ["alpine_mirror", "ground", "known_facts", "no_spawner_survives", "trusted_bwrap"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrise_engines(metafunc)
