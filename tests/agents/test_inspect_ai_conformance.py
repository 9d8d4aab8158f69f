# SPDX-License-Identifier: Apache-2.0
"""inspect-ai's own checks of a sandbox, all of them, as an ordinary user."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
import pytest_asyncio
from inspect_ai.util._sandbox import self_check

from tests.apart import apart  # noqa: F401
from unspill.adapters.inspect_ai import UnspillEnvironment

pytestmark = [pytest.mark.kernel, pytest.mark.usefixtures("apart"), pytest.mark.agents]

# Why it can't pass here
NOT_HERE = {
    "test_exec_as_user": "it adds a user as root: a sandbox of an ordinary user has that one alone, and no root",
}

# Each is an async function without a marker, and pytest-asyncio runs none but those it is told to
globals().update({name: pytest.mark.asyncio(getattr(self_check, name)) for name in self_check.__all__})


class Hurried:
    """anyio, but for pauses in which a machine across the network would end processes: here they are dead before."""

    def __getattr__(self, name: str) -> Any:
        return getattr(anyio, name)

    async def sleep(self, delay: float) -> None:
        await anyio.sleep(min(delay, 0.1))


@pytest_asyncio.fixture
async def sandbox_env(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, full: bool
) -> AsyncIterator[UnspillEnvironment]:
    """A sample's sandbox."""
    reason = NOT_HERE.get(request.node.originalname)
    if reason is not None:
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    if not full:
        monkeypatch.setattr(self_check, "anyio", Hurried())
    places = await UnspillEnvironment.sample_init("task", None, {})
    yield places["default"].as_type(UnspillEnvironment)
    await UnspillEnvironment.sample_cleanup("task", None, places, interrupted=False)


def test_no_more_than_5_checks_of_44_are_left_out() -> None:
    assert len(self_check.__all__) == 44
    assert set(NOT_HERE) <= set(self_check.__all__)
    assert len(NOT_HERE) <= 5
