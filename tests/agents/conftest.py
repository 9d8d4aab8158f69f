# SPDX-License-Identifier: Apache-2.0
"""What is tested against the frameworks themselves, in an environment that has them (constraints-agents.txt).

Elsewhere nothing here is collected: the package must work, and be tested, without any of them.
"""

import gc
import importlib.util

import pytest

from tests.support import ground, known_facts, no_spawner_survives, parametrise_engines, trusted_bwrap

__all__ = ["ground", "known_facts", "no_spawner_survives", "trusted_bwrap"]

if importlib.util.find_spec("mcp") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    # Much of the time in which frameworks are loaded would go into looking for garbage among what stays
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrise_engines(metafunc)
