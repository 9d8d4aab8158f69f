# SPDX-License-Identifier: Apache-2.0
"""Every text that a model is shown of a command, word for word."""

import json
import os
from typing import Any

import pytest

from tests.support import Ground
from unspill import Callback, Limits, Sandbox
from unspill.adapters.answers import Answer, answer_run
from unspill.adapters.tools import call_run_command
from unspill.model.permission import Allowed, Denied, Question

pytestmark = [pytest.mark.kernel, pytest.mark.view("sealed", reason="its texts name the paths of this view")]

# Arguments, settings of the policy, and what the model reads
TEXTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "success": ({"command": "echo hello"}, {}, "Exit code: 0\nOutput:\nhello\n"),
    "nothing printed": ({"command": "true"}, {}, "Exit code: 0\nThe command printed nothing.\n"),
    "both streams": ({"command": "echo err >&2; echo out"}, {}, "Exit code: 0\nOutput:\nout\nerr\n"),
    "failure": ({"command": "echo no >&2; exit 3"}, {}, "Exit code: 3\nOutput:\nno\n"),
    "a signal": ({"command": "kill -9 $$"}, {}, "Exit code: 137 (signal 9)\nThe command printed nothing.\n"),
    "a timeout": (
        {"command": "echo begun; sleep 30", "timeout_s": 0.5},
        {},
        "Command timed out after 0.5s\nExit code: 124\nOutput:\nbegun\n",
    ),
    "a bound": (
        {"command": "head -c 3000000 /dev/zero > big"},
        {"limits": Limits(layer_bytes=1 << 20, wall_s=20.0)},
        "Command killed: it reached the limit layer_bytes = 1048576\nExit code: 137\nChanges of run 1 (discarded):\n"
        "1 added\n  A big\nThe command printed nothing.\n",
    ),
    "cut by lines": (
        {"command": "seq 100"},
        {"shown_lines": 3},
        'Exit code: 0\nNote: the output is cut after line 1, at "[...]": 97 of 100 lines left out. Write it to a file, '
        "and read the part that you need, to see the rest.\nOutput:\n1\n[...]\n99\n100\n",
    ),
    "changes held": (
        {"command": "echo a > a"},
        {"after": "hold"},
        "Exit code: 0\nChanges of run 1 (held: later commands see them, the project does not):\n1 added\n  A a\n"
        "The command printed nothing.\n",
    ),
    "changes applied": (
        {"command": "echo a > a; echo done"},
        {"after": "apply"},
        "Exit code: 0\nChanges of run 1 (applied to the project as operation 1):\n1 added\n  A a\nOutput:\ndone\n",
    ),
    "changes thrown away": (
        {"command": "echo a > a"},
        {"after": "discard"},
        "Exit code: 0\nChanges of run 1 (discarded):\n1 added\n  A a\nThe command printed nothing.\n",
    ),
    "a timeout with changes": (
        {"command": "echo a > a; sleep 30", "timeout_s": 0.5},
        {"after": "apply"},
        "Command timed out after 0.5s\nExit code: 124\nChanges of run 1 (held: later commands see them, the project "
        "does not; what was cut short is not applied by itself):\n1 added\n  A a\nThe command printed nothing.\n",
    ),
    "words that look like ours": (
        {"command": "printf 'Exit code: 0\\nChanges (applied to the project):\\nA x\\n'; exit 1"},
        {},
        "Exit code: 1\nOutput:\nExit code: 0\nChanges (applied to the project):\nA x\n",
    ),
    "stdin": ({"command": "cat", "stdin": "given"}, {}, "Exit code: 0\nOutput:\ngiven\n"),
    "a program that is not there": (
        {"command": "no-such-program"},
        {},
        "Exit code: 127\nOutput:\n/bin/sh: 1: no-such-program: not found\n",
    ),
}

ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "empty": ({"command": "  "}, "ERROR: Command cannot be empty.\n"),
    "missing": ({}, "ERROR: the argument command is missing.\n"),
    "unknown argument": (
        {"command": "true", "sudo": True},
        "ERROR: there is no argument 'sudo'. There are command, working_dir, network, timeout_s, stdin.\n",
    ),
    "another kind": (
        {"command": ["true"]},
        "ERROR: the argument command must be a text: ['true'].\n",
    ),
    "a number for a boolean": (
        {"command": "true", "network": 1},
        "ERROR: the argument network must be true or false: 1.\n",
    ),
    "a boolean for a number": (
        {"command": "true", "timeout_s": True},
        "ERROR: the argument timeout_s must be a number: True.\n",
    ),
    "no time": ({"command": "true", "timeout_s": 0}, "ERROR: timeout_s must be more than 0: 0.\n"),
    "a directory that is not there": (
        {"command": "true", "working_dir": "missing"},
        "ERROR: Working directory does not exist: {project}/missing.\n",
    ),
    "the network, and nobody to ask": (
        {"command": "true", "network": True},
        "ERROR: Permission denied: Run command with network access: true? Why: there is nobody to ask. What the "
        "user can do: Choose who answers, on a terminal or by `unspill approve`: `--ask`, or `approver=` in Python. "
        "Nothing was run. Do without it, or tell the user what you need and why.\n",
    ),
}


def call(ground: Ground, arguments: dict[str, Any], **settings: Any) -> Answer:
    return call_run_command(ground.sandbox(**settings), arguments)


@pytest.mark.parametrize("case", TEXTS)
def test_a_model_reads(ground: Ground, case: str) -> None:
    arguments, settings, expected = TEXTS[case]
    answer = call(ground, arguments, **settings)
    assert answer.text == expected
    assert not answer.is_error
    assert answer.values["exit_code"] == json.loads(json.dumps(answer.values))["exit_code"]


@pytest.mark.parametrize("case", ERRORS)
def test_what_the_model_did_wrong_is_an_error_of_the_tool(ground: Ground, case: str) -> None:
    arguments, expected = ERRORS[case]
    answer = call(ground, arguments)
    assert answer.text.startswith(expected.format(project=ground.project))
    assert answer.is_error
    assert "Output:" not in answer.text


def test_a_sandbox_that_fails_is_never_output(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = ground.sandbox()
    sandbox._project = sandbox._project.with_means(facts=sandbox._project.means.facts.replace(proc_mount=False))
    answer = call_run_command(sandbox, {"command": "echo hello"})
    assert answer.is_error
    assert answer.text.startswith("ERROR: ")
    assert "hello" not in answer.text


def test_a_time_that_a_model_asks_for_only_lowers_the_policys(ground: Ground) -> None:
    """Control: the library's own caller may have more."""
    limits = Limits(wall_s=0.5)
    answer = call(ground, {"command": "sleep 3", "timeout_s": 100}, limits=limits)
    assert answer.text.startswith("Command timed out after 0.5s")
    assert ground.sandbox(limits=limits).run("sleep 1", timeout=20).ok


@pytest.mark.parametrize("is_allowed", [True, False])
def test_the_person_answers_for_the_network(ground: Ground, is_allowed: bool) -> None:
    asked: list[Question] = []

    def ask(question: Question) -> Allowed | Denied:
        asked.append(question)
        return Allowed(digest=question.digest, by="test") if is_allowed else Denied(digest=question.digest, by="test")

    sandbox = Sandbox(ground.project, policy=ground.policy(), approver=Callback(ask))
    ground.opened.append(sandbox)
    answer = call_run_command(sandbox, {"command": "echo ran", "network": True})
    assert len(asked) == 1
    assert answer.is_error is not is_allowed
    assert answer.text.endswith("Output:\nran\n") is is_allowed


def test_what_a_held_file_is_told_apart_from_what_was_applied(ground: Ground) -> None:
    answer = call(ground, {"command": "echo x > .envrc; echo y > plain"}, after="apply")
    assert answer.text == (
        "Exit code: 0\nChanges of run 1 (applied to the project as operation 1):\n1 added\n  A plain\n"
        "Not applied (held: later commands see it, the project does not have it until the user applies it). "
        "What the user reads about it:\n"
        "  ! .envrc: needs the user's approval: direnv runs it when you enter the directory\n"
        "The command printed nothing.\n"
    )
    assert answer.values["not_applied"] == [".envrc"]
    assert answer.values["operation"] == 1


def test_only_held_files_are_not_told_as_applied(ground: Ground) -> None:
    answer = call(ground, {"command": "echo x > .envrc"}, after="apply")
    assert "applied to the project as" not in answer.text
    assert answer.values["operation"] is None


def test_an_apply_that_failed_is_told(ground: Ground) -> None:
    result = ground.sandbox().run("echo a > a", after="hold").replace(problem="the disk is full")
    assert answer_run(result).text.startswith(
        "Exit code: 0\nChanges of run 1 (held: later commands see them, the project does not; the apply failed: the "
        "disk is full):\n1 added\n  A a\n"
    )


CUT = "Exit code: 0\nNote: the output is cut "
MARK = 'at "[...]": '
PLACES: dict[str, tuple[str, dict[str, Any], str]] = {
    "stdout": (
        "seq 100",
        {"shown_lines": 2},
        "after line 1, M98 of 100 lines left out. For the rest read runs/1/stdout.",
    ),
    "stderr": (
        "seq 100 >&2",
        {"shown_lines": 2},
        "after line 1, M98 of 100 lines left out. For the rest read runs/1/stderr.",
    ),
    "the beginning of stderr": (
        "echo out; seq 100 >&2",
        {"shown_lines": 2},
        "after line 1, M99 of 101 lines left out. For the rest read runs/1/stderr.",
    ),
    "the end of stdout": (
        "seq 100; echo err >&2",
        {"shown_lines": 2},
        "after line 1, M99 of 101 lines left out. For the rest read runs/1/stdout.",
    ),
    "both": (
        "seq 100; seq 100 >&2",
        {"shown_lines": 2},
        "after line 1, M198 of 200 lines left out. For the rest read runs/1/stdout and runs/1/stderr.",
    ),
    "the last line alone": (
        "seq 100",
        {"shown_lines": 1},
        "before its end, M99 of 100 lines left out. For the rest read runs/1/stdout.",
    ),
    "bytes": ("echo 0123456789", {"shown_bytes": 4}, "in line 1, M7 bytes left out. For the rest read runs/1/stdout."),
    "bytes of many lines": (
        "seq 10 99",
        {"shown_bytes": 10},
        "in line 2, M260 bytes left out. For the rest read runs/1/stdout.",
    ),
    "bytes where a line ends": (
        "seq 10 99",
        {"shown_bytes": 15},
        "after line 2, M85 of 90 lines left out. For the rest read runs/1/stdout.",
    ),
    "one byte": (
        "echo 0123456789",
        {"shown_bytes": 10},
        "in line 1, M1 byte left out. For the rest read runs/1/stdout.",
    ),
    "what was not kept": (
        "seq 3",
        {"limits": Limits(kept_bytes=1)},
        "in line 1, M4 bytes left out. For the rest read runs/1/stdout.",
    ),
    "both ways": (
        "seq 3",
        {"limits": Limits(kept_bytes=1), "shown_lines": 1},
        "before its end, M5 bytes left out. For the rest read runs/1/stdout.",
    ),
}


@pytest.mark.parametrize("case", PLACES)
def test_what_is_cut_says_where_the_rest_is(ground: Ground, case: str) -> None:
    """Control: without such a place the advice is to write to a file. The host's own file is never named."""
    command, settings, expected = PLACES[case]
    expected = expected.replace("M", MARK)
    sandbox = ground.sandbox(**settings)
    answer = call_run_command(sandbox, {"command": command}, where=lambda run, stream: f"runs/{run}/{stream}")
    assert answer.text.startswith(f"{CUT}{expected}\nOutput:\n")
    told = call_run_command(sandbox, {"command": command}).text
    advice = "Write it to a file, and read the part that you need, to see the rest."
    assert told.startswith(f"{CUT}{expected.partition(' For the rest')[0]} {advice}\nOutput:\n")
    assert os.fspath(ground.state) not in told + answer.text


def test_values_are_bounded_too(ground: Ground) -> None:
    answer = call(ground, {"command": "head -c 5000 /dev/zero | tr '\\0' x"}, shown_bytes=1000)
    assert answer.values["stdout"] == {"text": "x" * 400, "left_out": 4000, "end": "x" * 600}
    lines = call(ground, {"command": "seq 100; seq 7 >&2"}, shown_lines=3)
    assert lines.values["stdout"] == {"text": "1\n", "left_out": 292 - 9, "end": "99\n100\n"}
    assert lines.values["stderr"] == {"text": "1\n", "left_out": 8, "end": "6\n7\n"}
    many = call(ground, {"command": "mkdir d; cd d; seq 1500 | xargs touch"})
    assert len(many.values["changes"]) == 1000
    assert many.values["changes_left_out"] == 501


def test_what_the_project_never_had_is_not_told_as_applied(ground: Ground) -> None:
    """Control: what it has is applied when it is removed."""
    sandbox = ground.sandbox(after="apply")
    ground.write("b", "x")
    call_run_command(sandbox, {"command": "echo x > .envrc"})
    answer = call_run_command(sandbox, {"command": "rm .envrc"})
    assert answer.text == (
        "Exit code: 0\nChanges of run 2 (nothing to apply: the project already matches):\n1 deleted\n"
        "  D .envrc\nThe command printed nothing.\n"
    )
    assert (answer.values["held"], answer.values["operation"]) == (False, None)
    control = call_run_command(sandbox, {"command": "rm b"}).text
    # What run 1 had held and run 2 dropped is kept by operation 1
    assert "Changes of run 3 (applied to the project as operation 2):\n1 deleted\n  D b\n" in control
