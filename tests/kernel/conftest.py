# SPDX-License-Identifier: Apache-2.0
"""Offers the fixtures of a person's machine to the tests that run real commands on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.alpine_mirror import alpine_mirror
from tests.kernel.debian_roots import workshop
from tests.kernel.twin_world import IDENTITY, World, world
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
    "alpine_mirror",
    "ground",
    "known_facts",
    "no_spawner_survives",
    "prepared_programs",
    "trusted_bwrap",
    "without_own_namespace",
    "workshop",
]


@pytest.fixture
def beside(ground: Ground) -> Iterator[World]:
    """A repository that a person and an agent share."""
    (ground.home / ".gitconfig").write_text(IDENTITY)
    with world(ground, "beside", "plain") as made:
        yield made


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrise_engines(metafunc)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave what needs a container engine to the long runs."""
    return True if collection_path.name == "test_baked.py" and not config.getoption("--full") else None
