# SPDX-License-Identifier: Apache-2.0
"""A command without a sandbox: off by default, asked each time, labelled everywhere."""

from pathlib import Path
from typing import Any

import pytest

from tests.kernel.answering import Person, opened
from tests.support import Ground
from unspill import DeniedError, Rules

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap, pytest.mark.rootfs_view]


def test_a_command_without_a_sandbox_is_denied_without_a_question_by_default(ground: Ground) -> None:
    person = Person()
    with pytest.raises(DeniedError, match="Run command WITHOUT a sandbox: true"):
        opened(ground, person).run(["true"], unsandboxed=True)
    assert person.asked == []


def test_a_command_without_a_sandbox_runs_plainly_and_is_labelled(ground: Ground, tmp_path: Path) -> None:
    person = Person()
    sandbox = opened(ground, person, permissions=Rules(unsandboxed="ask"))
    events: list[Any] = []
    result = sandbox.run(
        f"echo out; echo err >&2; cat; echo x > {tmp_path}/plain; exit 3",
        unsandboxed=True,
        stdin=b"in\n",
        on_event=events.append,
    )
    assert (result.exit_code, result.stdout.kept(), result.stderr.kept()) == (3, b"out\nin\n", b"err\n")
    assert (tmp_path / "plain").read_text() == "x\n"
    assert not result.sandboxed
    assert "WITHOUT a sandbox" in result.text()
    assert len(events) >= 4
    assert person.asked[0].request.is_dangerous
    assert [choice.label for choice in person.asked[0].choices] == ["Allow", "Deny"]
    (recorded,) = sandbox.runs()
    assert not recorded.sandboxed
    sandbox.run("true")
    assert [run.sandboxed for run in sandbox.runs()] == [True, False]


def test_a_command_without_a_sandbox_ends_in_time_and_takes_its_children_with_it(ground: Ground) -> None:
    sandbox = opened(ground, Person(), permissions=Rules(unsandboxed="ask"))
    result = sandbox.run("sleep 300 & echo begun; sleep 300", unsandboxed=True, timeout=0.5)
    assert result.exit_code == 124
    assert result.stdout.kept() == b"begun\n"
    assert result.duration_s < 10


def test_a_command_that_is_not_there_is_not_started_without_a_sandbox_either(ground: Ground) -> None:
    sandbox = opened(ground, Person(), permissions=Rules(unsandboxed="ask"))
    assert sandbox.run(["there-is-no-such-command"], unsandboxed=True).exit_code == 127
