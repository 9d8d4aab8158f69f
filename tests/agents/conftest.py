# SPDX-License-Identifier: Apache-2.0
"""What is tested against the frameworks themselves, in an environment that has them (constraints-agents.txt).

Elsewhere nothing here is collected: the package must work, and be tested, without any of them.
"""

import importlib.util

import pytest

from tests.prepared import prepared_programs
from tests.support import ground, known_facts, no_spawner_survives, parametrise_engines, trusted_bwrap

__all__ = ["ground", "known_facts", "no_spawner_survives", "prepared_programs", "trusted_bwrap"]

if importlib.util.find_spec("mcp") is None:
    collect_ignore_glob = ["test_*.py", "*/test_*.py"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrise_engines(metafunc)
