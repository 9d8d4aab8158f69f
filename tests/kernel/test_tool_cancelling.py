# SPDX-License-Identifier: Apache-2.0
"""What a caller gave up before it began does not happen: not at once, and not later when others have ended."""

import os
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support import Ground
from unspill import Sandbox
from unspill.adapters.answers import Answer
from unspill.adapters.tools import call_tool
from unspill.apply import operate, perform
from unspill.model.permission import Allowed, Denied, Question
from unspill.permissions.approvers import Callback

pytestmark = pytest.mark.kernel

GIVEN_UP = "ERROR: cancelled by the caller; nothing was changed."


class Caller:
    """One who can give up."""

    def __init__(self) -> None:
        self.fd, self._end = os.pipe()

    def give_up(self) -> None:
        os.write(self._end, b"x")

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._end)


@pytest.fixture
def caller() -> Iterator[Caller]:
    made = Caller()
    yield made
    made.close()


def call(sandbox: Sandbox, name: str, caller: Caller) -> Answer:
    return call_tool(sandbox, name, {}, may_apply=True, cancel_fd=caller.fd)


@pytest.mark.parametrize("gives_up", [True, False])
@pytest.mark.parametrize("is_asked", [True, False])
def test_an_apply_that_is_given_up_behind_a_run_never_happens(
    ground: Ground, caller: Caller, gives_up: bool, is_asked: bool
) -> None:
    """Control: the same without giving up."""

    def allow(question: Question) -> Allowed | Denied:
        return Allowed(digest=question.digest, by="test")

    sandbox = Sandbox(ground.project, policy=ground.policy(), approver=Callback(allow) if is_asked else None)
    ground.opened.append(sandbox)
    sandbox.run("echo a > made")
    other = threading.Thread(target=lambda: sandbox.run("sleep 1.5"))
    began = time.monotonic()
    other.start()
    time.sleep(0.5)
    timer = threading.Timer(0.2, caller.give_up if gives_up else lambda: None)
    timer.start()
    answer = call(sandbox, "apply", caller)
    took = time.monotonic() - began
    other.join()
    timer.join()
    time.sleep(0.1)
    assert (ground.project / "made").exists() is not gives_up
    if gives_up:
        assert answer.text.startswith(GIVEN_UP)
        assert took < 1.4, "who gives up does not wait"
    assert (sandbox.operations() == ()) is gives_up


@pytest.mark.parametrize("name", ["apply", "undo"])
@pytest.mark.parametrize("gives_up", [True, False])
def test_what_is_given_up_right_before_the_first_step_does_not_happen_and_leaves_nothing(
    ground: Ground, caller: Caller, name: str, gives_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is made ready and every lock is held when the caller gives up. Control: it does not."""
    sandbox = ground.sandbox(after="hold" if name == "apply" else "apply")
    sandbox.run("echo a > made")
    made, before = ground.project / "made", len(sandbox.operations())
    was = made.exists()
    ready = perform.sync_staged

    def sync_staged(*arguments: object, **options: object) -> None:
        ready(*arguments, **options)  # type: ignore[arg-type]
        if gives_up:
            caller.give_up()

    monkeypatch.setattr(operate, "sync_staged", sync_staged)
    answer = call(sandbox, name, caller)
    assert made.exists() is (was if gives_up else not was)
    assert answer.is_error is gives_up
    assert len(sandbox.operations()) == before + (not gives_up)
    assert list((ground.state / "pending").iterdir()) == []
    monkeypatch.undo()
    assert sandbox.run("cat made", after="hold").ok is (gives_up or name == "apply"), "what is held is still held"


@pytest.mark.parametrize("name", ["run", "changes", "diff", "undo", "apply"])
def test_what_was_given_up_before_it_was_called_is_not_begun(ground: Ground, caller: Caller, name: str) -> None:
    sandbox = ground.sandbox(after="apply")
    sandbox.run("echo a > made; echo x > .envrc")
    caller.give_up()
    arguments = {"command": "rm made"} if name == "run" else {}
    answer = call_tool(sandbox, name, arguments, may_apply=True, cancel_fd=caller.fd)
    assert answer.text.startswith(GIVEN_UP if name != "run" else "Command was cancelled\n")
    assert (ground.project / "made").exists()
    assert not (ground.project / ".envrc").exists()
