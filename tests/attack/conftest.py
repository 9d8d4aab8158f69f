# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the attacks: a machine, and an arena on it."""

from collections.abc import Iterator
from typing import Any

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
from unspill import Limits, RunResult, Sandbox
from unspill.runner.launcher import stop_launchers

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


@pytest.fixture
def own_spawner() -> Iterator[None]:
    """A spawner, and doors, that are forks of this process."""
    stop_launchers()
    yield
    stop_launchers()


@pytest.fixture
def through_live(monkeypatch: pytest.MonkeyPatch) -> list[RunResult]:
    """Have every run of a sandbox made in a live one; return their results, as they come."""
    results: list[RunResult] = []

    def run(sandbox: Sandbox, command: Any, *, limits: Limits | None = None, **options: Any) -> RunResult:
        policy = sandbox.policy if limits is None else sandbox.policy.replace(limits=limits)
        with Sandbox(sandbox.project, name=sandbox.name, policy=policy) as built, built.live() as live:
            results.append(live.run(command, **options))
        return results[-1]

    monkeypatch.setattr(Sandbox, "run", run)
    return results
