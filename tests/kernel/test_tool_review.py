# SPDX-License-Identifier: Apache-2.0
"""Every text that a model is shown by `changes`, `diff`, `undo` and `apply`, word for word; what it may not have."""

import json
import os
from typing import Any

import pytest

from tests.support import Ground
from unspill import Callback, Network, Sandbox, Secrets, Selection
from unspill.adapters.answers import Answer
from unspill.adapters.tools import call_tool
from unspill.model.permission import Allowed, Denied, Question

pytestmark = [pytest.mark.kernel, pytest.mark.view("sealed", reason="its texts name the paths of this view")]

HELD = "Held: later commands see it, the project does not have it until the user applies it.\n"
NUMBERS = "The answers of `run`, `write`, `edit` and `undo` name runs and operations."
MAKE = "echo new > new; echo more >> old"
DIFF = (
    "Diff:\nadded new\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+new\n"
    "modified old\n--- a/old\n+++ b/old\n@@ -1 +1,2 @@\n old\n+more\n"
)


@pytest.fixture
def project(ground: Ground) -> Ground:
    (ground.project / "old").write_text("old\n")
    return ground


def call(sandbox: Sandbox, name: str, **arguments: Any) -> Answer:
    answer = call_tool(sandbox, name, arguments)
    assert json.loads(json.dumps(answer.values)) == answer.values
    return answer


def text(sandbox: Sandbox, name: str, **arguments: Any) -> str:
    answer = call(sandbox, name, **arguments)
    assert answer.is_error is answer.text.startswith("ERROR: ")
    return answer.text


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("hold", "Nothing is held.\n"),
        (
            "apply",
            "Nothing is held: what commands changed was applied to the project. `diff` with `operation` shows it.\n",
        ),
        ("discard", "Nothing is held: what commands change is discarded.\n"),
    ],
)
def test_nothing_is_held(project: Ground, after: str, expected: str) -> None:
    sandbox = project.sandbox(after=after)
    assert text(sandbox, "changes") == expected
    assert text(sandbox, "diff") == "There is nothing to show.\n"


def test_what_is_held(project: Ground) -> None:
    sandbox = project.sandbox()
    sandbox.run(MAKE)
    assert text(sandbox, "changes") == f"{HELD}Changes:\n1 added, 1 modified\n  A new\n  M old\n"
    assert text(sandbox, "diff") == DIFF
    assert text(sandbox, "diff", paths=["old"]) == "Diff:\n" + DIFF.partition("+new\n")[2]
    assert text(sandbox, "diff", paths=["none"]) == "There is nothing to show.\n"
    sandbox.run("rm old")
    assert text(sandbox, "changes", run=2) == f"{HELD}Changes:\n1 deleted\n  D old\n"
    assert text(sandbox, "diff", run=1) == DIFF
    sandbox.run("true")
    assert text(sandbox, "changes", run=3) == "This run has changed nothing.\n"


def test_a_part_says_where_the_rest_is(project: Ground) -> None:
    sandbox = project.sandbox(shown_lines=3)
    sandbox.run("seq 5 | xargs touch")
    assert text(sandbox, "changes") == (
        f"{HELD}Note: lines 1 to 3 of 6 follow. For the rest call `changes` with `offset` 3.\nChanges:\n5 added\n"
        "  A 1\n  A 2\n"
    )
    assert text(sandbox, "changes", offset=3) == (
        f"{HELD}Note: lines 4 to 6 of 6 follow.\nChanges:\n  A 3\n  A 4\n  A 5\n"
    )
    assert text(sandbox, "changes", offset=6) == f"{HELD}Note: there is nothing from line 7 on: there are 6 lines.\n"
    assert text(sandbox, "diff") == (
        "Note: lines 1 to 3 of 10 follow. For the rest call `diff` with `offset` 3.\nDiff:\nadded 1\n(empty)\nadded 2\n"
    )
    assert text(sandbox, "diff", offset=8) == "Note: lines 9 to 10 of 10 follow.\nDiff:\nadded 5\n(empty)\n"


def test_a_line_that_is_too_long_is_cut(project: Ground) -> None:
    sandbox = project.sandbox(shown_bytes=12)
    sandbox.run("printf 0123456789012345 > a")
    assert text(sandbox, "diff", offset=4) == (
        "Note: lines 5 to 5 of 6 follow, and of the last one 5 bytes at the end are left out: it is too long. For the "
        "rest call `diff` with `offset` 5.\nDiff:\n+01234567890\n"
    )


def test_a_diff_that_is_longer_than_any(project: Ground) -> None:
    sandbox = project.sandbox(shown_lines=1)
    sandbox.run("seq 3000 > many")
    assert text(sandbox, "diff") == (
        "Note: lines 1 to 1 of 2001 follow. For the rest call `diff` with `offset` 1.\nNote: a diff ends after 2000 "
        "lines. Set `paths` to see what is beyond that.\nDiff:\nadded many\n"
    )


def test_what_an_operation_changed(project: Ground) -> None:
    sandbox = project.sandbox(after="apply")
    sandbox.run(MAKE)
    assert text(sandbox, "diff", operation=1) == DIFF
    assert text(sandbox, "diff", operation=1, run=1) == ("ERROR: a diff is of a run or of an operation, not of both.\n")


def test_numbers_that_nothing_has(project: Ground) -> None:
    sandbox = project.sandbox()
    for name in ("changes", "diff"):
        assert text(sandbox, name, run=7) == f"ERROR: no such run: 7. {NUMBERS}\n"
    for name in ("diff", "undo"):
        assert text(sandbox, name, operation=7) == f"ERROR: no such operation: 7. {NUMBERS}\n"


def test_an_undo_takes_back_the_last_of_its_own(project: Ground) -> None:
    sandbox = project.sandbox(after="apply")
    sandbox.run(MAKE)
    sandbox.run("echo third > third")
    assert text(sandbox, "undo") == "Undid operation 2 (1 change), recorded as operation 3.\n"
    assert text(sandbox, "undo", operation=2) == "ERROR: operation 2 was already undone.\n"
    assert text(sandbox, "undo") == "Undid operation 1 (2 changes), recorded as operation 4.\n"
    assert os.listdir(project.project) == ["old"]
    assert text(sandbox, "undo") == "ERROR: there is nothing of yours to undo.\n"
    assert {one.asked_by for one in sandbox.operations() if one.kind == "undo"} == {"agent"}


def test_an_undo_says_what_it_left_alone(project: Ground) -> None:
    sandbox = project.sandbox(after="apply")
    sandbox.run(MAKE)
    (project.project / "old").write_text("by hand\n")
    answer = call(sandbox, "undo")
    assert answer.text == (
        "Undid operation 1 (1 change), recorded as operation 2.\nSkipped:\n  ! old: conflict: it has changed since\n"
    )
    assert answer.values["left"] == [{"path": "old", "reason": "conflict: it has changed since"}]
    (project.project / "old").unlink()


def test_what_the_person_did_is_left_to_the_person(project: Ground) -> None:
    """An undo of an undo would be an apply. Control: the person may do all of it."""
    sandbox = project.sandbox()
    sandbox.run(MAKE)
    sandbox.apply()
    sandbox.undo()
    refusal = "was not applied by a command or a file tool of yours. Ask the user, who can undo everything."
    for number in (1, 2):
        assert text(sandbox, "undo", operation=number) == f"ERROR: operation {number} {refusal}\n"
    assert text(sandbox, "undo") == "ERROR: there is nothing of yours to undo.\n"
    assert os.listdir(project.project) == ["old"]
    sandbox.undo(2)
    assert sorted(os.listdir(project.project)) == ["new", "old"]


def test_what_the_person_did_again_is_left_to_the_person(project: Ground) -> None:
    sandbox = project.sandbox(after="apply")
    sandbox.run(MAKE)
    call(sandbox, "undo")
    sandbox.redo()
    assert text(sandbox, "undo") == "ERROR: there is nothing of yours to undo.\n"
    assert call(sandbox, "undo", operation=1).is_error
    assert (project.project / "new").exists()


def test_other_sandboxes_are_none_of_its_business(project: Ground) -> None:
    """Control: the same operation is its own sandbox's to show and to undo."""
    other = Sandbox(project.project, name="other", policy=project.policy(after="apply"))
    project.opened.append(other)
    other.run(MAKE)
    own = project.sandbox(after="apply")
    assert text(own, "undo") == "ERROR: there is nothing of yours to undo.\n"
    for name in ("undo", "diff"):
        assert text(own, name, operation=1) == f"ERROR: no such operation: 1. {NUMBERS}\n"
    assert text(other, "diff", operation=1) == DIFF
    assert not call(other, "undo", operation=1).is_error


def _allow_all(question: Question) -> Allowed | Denied:
    return Allowed(digest=question.digest, by="test")


@pytest.mark.parametrize("is_masked", [True, False])
def test_a_secret_that_one_run_was_shown_is_not_shown_by_a_diff(project: Ground, is_masked: bool) -> None:
    """Neither while its change is held nor when the person has applied it. Control: where nothing is masked."""
    secret = project.project / ".env"
    secret.write_text("TOKEN=old\n")
    policy = project.policy(secrets=Secrets(mask=is_masked))
    sandbox = Sandbox(project.project, policy=policy, approver=Callback(_allow_all))
    project.opened.append(sandbox)
    reveal = [".env"] if is_masked else []
    assert sandbox.run("echo TOKEN=new > .env; echo x > x", reveal=reveal).ok
    held = text(sandbox, "diff")
    sandbox.apply(Selection(included=(b".env",)))
    applied = text(sandbox, "diff", operation=1)
    for told in (held, applied):
        assert ("TOKEN" in told) is not is_masked
        assert told.startswith("Note: not shown, because of names of secrets: .env.\nDiff:\nadded x\n") is is_masked
    assert "TOKEN=new" in secret.read_text()


def test_apply_is_no_tool_unless_the_person_wants_it(project: Ground) -> None:
    sandbox = project.sandbox()
    sandbox.run(MAKE)
    assert text(sandbox, "apply") == (
        "ERROR: there is no tool 'apply'. There are run, changes, diff, undo, read, write, list, edit.\n"
    )
    assert os.listdir(project.project) == ["old"]
    answer = call_tool(sandbox, "apply", {"paths": ["new"]}, may_apply=True)
    assert answer.text == "Applied 1 change to the project (operation 1).\n"
    assert (project.project / "new").read_text() == "new\n"
    assert sandbox.operations()[0].asked_by == "agent"
    assert text(sandbox, "undo") == "Undid operation 1 (1 change), recorded as operation 2.\n"


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("is_allowed", [True, False])
def test_the_person_is_asked_about_held_files_that_are_to_be_applied(
    project: Ground, is_allowed: bool, is_own: bool
) -> None:
    """By the approver of the sandbox, or by that of the call."""
    asked: list[Question] = []

    def ask(question: Question) -> Allowed | Denied:
        asked.append(question)
        return _allow_all(question) if is_allowed else Denied(digest=question.digest, by="test")

    approver = Callback(ask)
    sandbox = Sandbox(project.project, policy=project.policy(), approver=approver if is_own else None)
    project.opened.append(sandbox)
    sandbox.run("echo x > .envrc")
    answer = call_tool(sandbox, "apply", {}, may_apply=True, approver=None if is_own else approver)
    assert len(asked) == 1
    assert (project.project / ".envrc").exists() is is_allowed
    assert answer.text == (
        "Applied 1 change to the project (operation 1).\n"
        if is_allowed
        else "Nothing was applied.\nNot applied (still held). What the user reads about it:\n  ! .envrc: needs the "
        "user's approval: direnv runs it when you enter the directory\n"
    )


def test_there_is_nothing_to_apply(project: Ground) -> None:
    answer = call_tool(project.sandbox(), "apply", {}, may_apply=True)
    assert answer.text == "Nothing was applied.\n"
    refused = call_tool(project.sandbox(), "apply", {"paths": ["none"]}, may_apply=True)
    assert refused.text == "ERROR: none has no changes. `changes` lists what can be chosen.\n"


def test_another_root_is_named_by_its_path_and_the_project_by_that_inside(project: Ground) -> None:
    extra = project.home / "extra"
    extra.mkdir()
    sandbox = project.sandbox(roots=(os.fsencode(extra),), network=Network())
    sandbox.run(f"echo a > a; echo b > {extra}/b")
    assert text(sandbox, "changes") == (f"{HELD}Changes:\n2 added\nin {project.project}:\n  A a\nin {extra}:\n  A b\n")
