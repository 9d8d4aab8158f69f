# SPDX-License-Identifier: Apache-2.0
"""Requests, answers, runs and operations are in the audit, with every path that changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.kernel.answering import Person, opened
from tests.support import Ground, shell_of_texts
from unspill import DeniedError, Rules
from unspill.model.run import OutputChunk
from unspill.permissions.audit import MOST_PATHS, Audit

if TYPE_CHECKING:
    from unspill.model.run import Event

pytestmark = pytest.mark.kernel


def audit_of(ground: Ground) -> list[dict[str, Any]]:
    return list(Audit(os.fsencode(ground.state / "audit")).events())


def test_requests_answers_runs_and_operations_are_in_one_audit(ground: Ground) -> None:
    person = Person()
    sandbox = opened(ground, person, after="apply")
    sandbox.run("echo x > file", network=True)
    sandbox.undo()
    person.answer = False
    with pytest.raises(DeniedError):
        sandbox.run("echo x > file", network=True)
    sandbox.run("echo y > file", after="hold")
    sandbox.discard()
    events = audit_of(ground)
    assert [event["kind"] for event in events] == [
        *("request", "answer", "run", "operation", "operation"),
        *("request", "answer", "run", "operation"),
    ]
    assert [event["answer"] for event in events if event["kind"] == "answer"] == ["allowed", "denied"]
    assert [event["what"] for event in events if event["kind"] == "operation"] == ["apply", "undo", "discard"]
    run = events[2]
    assert (run["command"], run["ending"], run["network"]) == (
        [shell_of_texts(), "-c", "echo x > file"],
        "Exited 0",
        "proxy",
    )


def test_the_audit_names_every_path_that_changed(ground: Ground) -> None:
    other = ground.top / "other"
    other.mkdir()
    for name in ("changed", "deleted", "touched"):
        ground.write(name, "old")
    sandbox = opened(ground, Person(), after="apply")
    far = f"{other}/far"
    sandbox.run(f"echo x > changed; rm deleted; mkdir d; touch d/new touched '{far}'; ln -s x l", roots=[str(other)])
    sandbox.undo()
    sandbox.run("touch held kept; echo y > changed", after="hold")
    sandbox.discard(["held"])
    sandbox.discard()
    sandbox.run("true")
    project = {"changed", "d", "d/new", "deleted", "l"}
    assert [(event.get("what", "run"), set(event["paths"])) for event in audit_of(ground) if "paths" in event] == [
        ("run", {*project, far}),
        ("apply", {*project, far}),
        ("undo", {*project, far, "touched"}),
        ("run", {"changed", "held", "kept"}),
        ("discard", {"held"}),
        ("discard", {"changed", "kept"}),
        ("run", set()),
    ]


def test_of_very_many_paths_the_audit_names_some_and_counts_the_others(ground: Ground) -> None:
    ground.sandbox(after="apply").run(f"seq {MOST_PATHS + 7} | xargs touch")
    for event in audit_of(ground):
        assert (len(event["paths"]), event["more_paths"], event["changed"]) == (MOST_PATHS, 7, MOST_PATHS + 7)


@pytest.mark.parametrize("unsandboxed", [False, True])
def test_a_run_that_its_caller_broke_off_is_in_the_audit_too(ground: Ground, unsandboxed: bool) -> None:
    def give_up(event: Event) -> None:
        if isinstance(event, OutputChunk):
            raise KeyboardInterrupt

    sandbox = opened(ground, Person(), permissions=Rules(unsandboxed="ask"))
    with pytest.raises(KeyboardInterrupt) as raised:
        sandbox.run("echo x; sleep 9", on_event=give_up, unsandboxed=unsandboxed)
    told = "It ran without a sandbox: what it has changed is not known" if unsandboxed else "It had changed nothing."
    assert told in raised.value.__notes__[0]
    *_asked, event = audit_of(ground)
    assert (event["kind"], event["command"]) == ("run", [shell_of_texts(), "-c", "echo x; sleep 9"])
    ending = "failed: KeyboardInterrupt" if unsandboxed else "Cancelled 130"
    assert (event["ending"], event["sandboxed"]) == (ending, not unsandboxed)


def test_a_run_that_can_not_be_recorded_says_so(ground: Ground) -> None:
    sandbox = ground.sandbox()
    assert not any("audit" in warning for warning in sandbox.run("true").warnings)
    directory = ground.state / "audit"
    (directory / "lock").unlink()
    (directory / "lock").mkdir()
    assert any("audit" in warning for warning in sandbox.run("true").warnings)
