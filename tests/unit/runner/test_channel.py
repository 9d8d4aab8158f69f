# SPDX-License-Identifier: Apache-2.0
"""What a first program tells, where there is nobody to listen."""

import pytest

from tests.unit.plan.given import given
from unspill.errors import SandboxUnavailable
from unspill.model.plan import FirstInput
from unspill.plan.build import build_plan
from unspill.runner.channel import Channel


def test_without_another_thread_it_is_our_failure_and_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the user has no more threads: to use them all up would hold for the whole machine."""

    def refuse(*_given: object) -> None:
        raise RuntimeError("can't start new thread")

    first = FirstInput(source=b"", interpreters=(b"/usr/bin/python3",), notices=b"x" * 8)
    channel = Channel(build_plan(given(first=first)))
    monkeypatch.setattr("unspill.runner.channel.start_new_thread", refuse)
    with pytest.raises(SandboxUnavailable):
        channel.launched()
    channel.end()
    assert channel.denied() == ()
