# SPDX-License-Identifier: Apache-2.0
"""pydantic-ai's own suite for backends of workspaces, whole."""

import shutil
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anyio
import pytest
from pydantic_ai.workspaces import WorkspaceBackend, WorkspaceRef, conformance

from tests.support import Ground
from unspill.adapters.pydantic_ai import UnspillBackend

pytestmark = [pytest.mark.kernel, pytest.mark.agents]

GUARD_S, SOON_S = 30, 2

# Why it can't pass here
_WAITS = (
    "it waits for a file that a command makes while it runs; here others see what a command wrote when it has ended"
)
NOT_HERE = {
    "test_cancellation_stops_foreground_work": _WAITS,
    "test_destroying_environment_during_command_raises_unavailable": _WAITS,
}
# It lets the child of a command that has ended go, which is dead here, and waits whether it writes a file
WAITS_IN_VAIN = {"test_background_child_does_not_hold_up_completed_command"}
TESTS = [name for name in dir(conformance.WorkspaceBackendSuite) if name.startswith("test_")]


@pytest.fixture
def anyio_backend() -> str:
    """asyncio, which the sandbox's own async face is for."""
    return "asyncio"


class Hurried:
    """anyio, with guards for what is near instead of those for what is across a network."""

    def __getattr__(self, name: str) -> Any:
        return getattr(anyio, name)

    def fail_after(self, delay: float, shield: bool = False) -> Any:
        return anyio.fail_after(SOON_S if delay == GUARD_S else delay, shield=shield)

    def move_on_after(self, delay: float, shield: bool = False) -> Any:
        return anyio.move_on_after(SOON_S if delay == GUARD_S else delay, shield=shield)


class TestUnspillBackend(conformance.WorkspaceBackendSuite):
    """All of it."""

    @pytest.fixture(autouse=True)
    def not_here(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
        """Expect those to fail that can't pass, and wait less for what never comes."""
        name = request.node.originalname
        if reason := NOT_HERE.get(name):
            request.applymarker(pytest.mark.xfail(strict=True, raises=BaseExceptionGroup, reason=reason))
        if not full and (name in NOT_HERE or name in WAITS_IN_VAIN):
            monkeypatch.setattr(conformance, "anyio", Hurried())

    @pytest.fixture
    def backend(self, ground: Ground) -> Iterator[WorkspaceBackend]:
        backend = UnspillBackend(ground.project, policy=ground.policy())
        yield backend
        backend.close()

    @pytest.fixture
    def fresh_backend(self, ground: Ground) -> Callable[[], WorkspaceBackend]:
        return lambda: UnspillBackend(ground.project, name="fresh", policy=ground.policy())

    @pytest.fixture
    def attach_backend(self, ground: Ground) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        def attach(ref: WorkspaceRef) -> WorkspaceBackend:
            return UnspillBackend(ground.project, ref=ref, policy=ground.policy())

        return attach

    @pytest.fixture
    def destructive_backend(self, ground: Ground) -> Callable[[], WorkspaceBackend]:
        return lambda: UnspillBackend(ground.project, policy=ground.policy())

    @pytest.fixture
    def destroy_environment(self, ground: Ground) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(_backend: WorkspaceBackend) -> None:
            shutil.rmtree(ground.project)

        return destroy


def test_no_more_than_2_rules_of_38_are_left_out() -> None:
    assert len(TESTS) == 38
    assert set(NOT_HERE) <= set(TESTS)
    assert len(NOT_HERE) <= 2
