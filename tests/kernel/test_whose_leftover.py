# SPDX-License-Identifier: Apache-2.0
"""What an apply leaves held stays that of the run that made it, whatever runs and is applied afterwards."""

from typing import Any

import pytest

from tests.support import Ground, kinds
from unspill import Sandbox
from unspill.errors import UsageError
from unspill.permissions.approvers import Callback

pytestmark = pytest.mark.kernel


def test_what_is_left_of_one_run_is_not_said_to_be_of_the_next(ground: Ground) -> None:
    with ground.sandbox() as sandbox:
        first = sandbox.run("echo x > .envrc; echo a > a", after="apply")
        second = sandbox.run("echo b > b", after="apply")
        assert second.operation is not None
        assert [left.path for left in (first.operation or second.operation).left] == [b".envrc"]
        assert kinds(sandbox.changes(run=first.number)) == {".envrc": "added"}
        with pytest.raises(UsageError, match="run 2 has no held changes"):
            sandbox.changes(run=second.number)


def test_what_several_runs_left_is_of_the_last_of_them(ground: Ground) -> None:
    with ground.sandbox() as sandbox:
        sandbox.run("echo x > .envrc", after="apply")
        last = sandbox.run("mkdir .vscode; echo x > .vscode/tasks.json", after="apply")
        sandbox.run("echo b > b", after="apply")
        assert set(kinds(sandbox.changes(run=last.number))) >= {".envrc"}


@pytest.mark.parametrize("approver", ["nobody", len, 5])
def test_what_can_not_answer_is_refused_when_it_is_given(ground: Ground, approver: Any) -> None:
    with pytest.raises(UsageError, match="not an approver") as refused:
        Sandbox(ground.project, policy=ground.policy(), approver=approver)
    assert "terminal" in refused.value.remedy
    assert getattr(refused.value, "__notes__", None) == [refused.value.remedy]


def test_what_can_answer_is_taken(ground: Ground) -> None:
    known: tuple[Any, ...] = ("terminal", "queue", "deny", None, Callback(lambda question: True))
    for approver in known:
        Sandbox(ground.project, policy=ground.policy(), approver=approver).close()
