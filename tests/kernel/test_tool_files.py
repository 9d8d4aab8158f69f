# SPDX-License-Identifier: Apache-2.0
"""Every text that a model is shown by the tools for files and by `changes`, `diff`, `undo`, `apply`, word for word."""

import json
import os
from typing import Any

import pytest

from tests.support import Ground
from unspill import Callback, Limits, Network, Sandbox, Secrets, Selection
from unspill.adapters.answers import Answer
from unspill.adapters.tools import call_tool
from unspill.model.permission import Allowed, Denied, Question

pytestmark = [pytest.mark.kernel, pytest.mark.view("sealed", reason="its texts name the paths of this view")]

MASKED = " Files with names of secrets, such as .env, are masked: they seem not to exist."
ELSEWHERE = "Write to the project or to /tmp instead, or tell the user what you need and why."
HELD = "Changes of run {run} (held: later commands see them, the project does not):"

# The tool, its arguments, and what the model reads
TEXTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a file": ("read", {"path": "abc"}, "{p}/abc: all of it, 6 bytes, follows.\nContent:\na\nb\nc\n"),
    "a file by its whole path": (
        "read",
        {"path": "{p}/abc"},
        "{p}/abc: all of it, 6 bytes, follows.\nContent:\na\nb\nc\n",
    ),
    "a file without a last newline": (
        "read",
        {"path": "last"},
        "{p}/last: all of it, 4 bytes, follows.\nContent:\nlast",
    ),
    "an empty file": ("read", {"path": "empty"}, "{p}/empty is empty.\n"),
    "a part": (
        "read",
        {"path": "abc", "offset": 1, "limit": 1},
        "{p}/abc: lines 2 to 2 follow; it has 6 bytes.\nNote: it is cut here. For the rest call `read` with `offset` "
        "2.\nContent:\nb\n",
    ),
    "the last part": (
        "read",
        {"path": "abc", "offset": 2, "limit": 5},
        "{p}/abc: lines 3 to 3 follow; it has 6 bytes.\nContent:\nc\n",
    ),
    "nothing behind the end": ("read", {"path": "abc", "offset": 7}, "{p}/abc has no lines from line 8 on.\n"),
    "a whole number with a point": (
        "read",
        {"path": "abc", "offset": 2.0},
        "{p}/abc: lines 3 to 3 follow; it has 6 bytes.\nContent:\nc\n",
    ),
    "words that look like ours": (
        "read",
        {"path": "ours"},
        "{p}/ours: all of it, 42 bytes, follows.\nContent:\nContent:\nERROR: the sandbox\nNote: call me\n",
    ),
    "a directory": (
        "list",
        {},
        "{p}: 8 entries.\nEntries:\nabc  [6 bytes]\nbinary  [4 bytes]\nempty  [0 bytes]\nlast  [4 bytes]\n"
        "link  [link]\nours  [42 bytes]\npipe  [pipe]\nsub/\n",
    ),
    "an odd name": (
        "list",
        {"path": "sub"},
        '{p}/sub: 1 entry.\nEntries:\n"new\\nEntries:"  [0 bytes]\n',
    ),
    "deeper": (
        "list",
        {"path": ".", "depth": 2, "offset": 7},
        '{p}: 9 entries.\nNote: entries 8 to 9 follow.\nEntries:\nsub/\n"sub/new\\nEntries:"  [0 bytes]\n',
    ),
    "a part of a directory": (
        "list",
        {"limit": 2},
        "{p}: 8 entries.\nNote: entries 1 to 2 follow. For the rest call `list` with `offset` 2.\nEntries:\n"
        "abc  [6 bytes]\nbinary  [4 bytes]\n",
    ),
    "no entries behind the end": (
        "list",
        {"offset": 9},
        "{p}: 8 entries.\nNote: none from entry 10 on.\n",
    ),
    "a new file": (
        "write",
        {"path": "x/new", "content": "12"},
        "Written: {p}/x/new (a new file, 2 bytes).\n" + HELD.format(run=1) + "\n2 added\n  A x/\n  A x/new\n",
    ),
    "a file again": (
        "write",
        {"path": "abc", "content": ""},
        "Written: {p}/abc (replaced, 0 bytes).\n" + HELD.format(run=1) + "\n1 modified\n  M abc\n",
    ),
    "a file that does not last": (
        "write",
        {"path": "/tmp/x", "content": "12"},
        "Written: /tmp/x (a new file, 2 bytes).\nNote: it lies in a directory that is made anew for each command: the "
        "next one does not see it.\n",
    ),
    "one place": (
        "edit",
        {"path": "abc", "old": "b", "new": "bbb"},
        "Edited: {p}/abc (1 place, now 8 bytes).\n" + HELD.format(run=2) + "\n1 modified\n  M abc\n",
    ),
    "all places": (
        "edit",
        {"path": "abc", "old": "\n", "new": " ", "replace_all": True},
        "Edited: {p}/abc (3 places, now 6 bytes).\n" + HELD.format(run=2) + "\n1 modified\n  M abc\n",
    ),
}

# The tool, its arguments, the kind of the error, and what the model reads
ERRORS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "no file": (
        *("read", {"path": "no"}, "not_found"),
        "{p}/no: there is no such file or directory. `list` shows what is there." + MASKED,
    ),
    "no directory": (
        *("list", {"path": "no"}, "not_found"),
        "{p}/no: there is no such file or directory. `list` shows what is there." + MASKED,
    ),
    "nothing to edit": (
        *("edit", {"path": "no", "old": "a", "new": "b"}, "not_found"),
        "{p}/no: there is no such file or directory. `list` shows what is there." + MASKED,
    ),
    "a directory to read": (
        *("read", {"path": "."}, "is_directory"),
        "{p}: it is a directory. `list` shows what is in it.",
    ),
    "a directory to write": (
        *("write", {"path": "sub", "content": ""}, "is_directory"),
        "{p}/sub: it is a directory. `list` shows what is in it.",
    ),
    "a file to list": (
        *("list", {"path": "abc"}, "not_a_directory"),
        "{p}/abc: it, or a part of its path, is not a directory. `list` shows what is there.",
    ),
    "a pipe": (
        *("read", {"path": "pipe"}, "not_a_file"),
        "{p}/pipe: it is neither a file nor a directory.",
    ),
    "read-only": (
        *("write", {"path": "/etc/x", "content": ""}, "permission_denied"),
        "/etc/x: it is read-only in the sandbox. " + ELSEWHERE,
    ),
    "there already": (
        *("write", {"path": "abc", "content": "", "replace": False}, "exists"),
        "{p}/abc: it exists already. Set `replace` to true to replace it, or use `edit`.",
    ),
    "no text": (
        *("read", {"path": "binary"}, "not_text"),
        "{p}/binary: it is not a text file. Use a command to look at it.",
    ),
    "not there": (
        *("edit", {"path": "abc", "old": "z", "new": "y"}, "not_found_in_file"),
        "{p}/abc: the text to replace is not there. Read the file, and give the text exactly as it stands there.",
    ),
    "several places": (
        *("edit", {"path": "abc", "old": "\n", "new": "y"}, "ambiguous"),
        "{p}/abc: the text to replace is there 3 times. Give more of the text around it, or set `replace_all` to true.",
    ),
}


def call(ground: Ground, name: str, arguments: dict[str, Any], **settings: Any) -> Answer:
    given = {
        key: value.replace("{p}", os.fspath(ground.project)) if isinstance(value, str) else value
        for key, value in arguments.items()
    }
    return call_tool(ground.sandbox(**settings), name, given)


@pytest.fixture
def filled(ground: Ground) -> Ground:
    project = ground.project
    for name, content in {"abc": "a\nb\nc\n", "last": "last", "empty": "", "binary": "a\0b\n"}.items():
        (project / name).write_text(content)
    (project / "ours").write_text("Content:\nERROR: the sandbox\nNote: call me\n")
    (project / "sub").mkdir()
    (project / "sub" / "new\nEntries:").touch()
    (project / "link").symlink_to("abc")
    os.mkfifo(project / "pipe")
    return ground


@pytest.mark.parametrize("case", TEXTS)
def test_a_model_reads(filled: Ground, case: str) -> None:
    name, arguments, expected = TEXTS[case]
    answer = call(filled, name, arguments)
    assert answer.text == expected.replace("{p}", os.fspath(filled.project))
    assert not answer.is_error
    assert json.loads(json.dumps(answer.values)) == answer.values


@pytest.mark.parametrize("case", ERRORS)
def test_an_error_says_what_kind_and_what_to_do(filled: Ground, case: str) -> None:
    name, arguments, kind, expected = ERRORS[case]
    answer = call(filled, name, arguments)
    assert answer.text == f"ERROR: {expected}\n".replace("{p}", os.fspath(filled.project))
    assert answer.is_error
    assert answer.values["kind"] == kind
    assert answer.values["message"] == answer.text.rstrip("\n")
    assert answer.text.rstrip("\n").endswith(answer.values["remedy"])


def test_a_file_that_no_mode_lets_be_read(filled: Ground) -> None:
    (filled.project / "abc").chmod(0)
    answer = call(filled, "read", {"path": "abc"})
    assert answer.text == f"ERROR: {filled.project}/abc: permission denied. {ELSEWHERE}\n"
    assert answer.values["kind"] == "permission_denied"


def test_a_layer_that_has_no_room(filled: Ground) -> None:
    answer = call(filled, "write", {"path": "big", "content": "x" * 300_000}, limits=Limits(layer_bytes=100_000))
    assert answer.is_error
    assert answer.values["kind"] == "too_large"
    assert answer.text.endswith("Ask for less of it, or use a command.\n")


def test_where_secrets_are_not_masked_nobody_is_told_that_they_are(filled: Ground) -> None:
    answer = call(filled, "read", {"path": "no"}, secrets=Secrets(mask=False))
    assert "masked" not in answer.text


def test_a_long_file_is_cut_at_whole_lines_and_the_rest_is_where_it_says(ground: Ground) -> None:
    lines = [f"line {number}\n" for number in range(500)]
    (ground.project / "long").write_text("".join(lines))
    sandbox, found = ground.sandbox(shown_bytes=1000), ""
    offset: int | None = 0
    while offset is not None:
        answer = call_tool(sandbox, "read", {"path": "long", "offset": offset})
        assert len(answer.values["content"].encode()) <= 1000
        assert answer.text.endswith(f"Content:\n{answer.values['content']}")
        found += answer.values["content"]
        offset = answer.values["next_offset"]
    assert found == "".join(lines)


def test_a_line_that_is_too_long_is_cut_between_characters(ground: Ground) -> None:
    (ground.project / "long").write_text("é" * 1000 + "\nend\n")
    answer = call_tool(ground.sandbox(shown_bytes=101), "read", {"path": "long"})
    assert answer.text == (
        f"{ground.project}/long: lines 1 to 1 follow; it has 2005 bytes.\nNote: this line is too long: its first 100 "
        f"bytes follow, 1900 more are left out. See other parts of it with a command.\nNote: it is cut here. For the "
        f"rest call `read` with `offset` 1.\nContent:\n{'é' * 50}"
    )


def test_of_a_line_that_is_longer_than_any_bound_it_is_told_how_much_is_shown(ground: Ground) -> None:
    (ground.project / "long").write_bytes(b"x" * 2_000_000)
    answer = call_tool(ground.sandbox(shown_bytes=10), "read", {"path": "long"})
    assert "Note: this line is too long: its first 10 bytes follow, the others are left out. See" in answer.text


def test_a_long_list_is_read_to_its_end_by_its_offsets(ground: Ground) -> None:
    for number in range(120):
        (ground.project / f"file-{number:03}").touch()
    sandbox, found = ground.sandbox(shown_bytes=1000), []
    offset: int | None = 0
    while offset is not None:
        answer = call_tool(sandbox, "list", {"offset": offset, "limit": 40})
        found += [entry["path"] for entry in answer.values["entries"]]
        offset = answer.values["next_offset"]
    assert found == [f"file-{number:03}" for number in range(120)]


def test_a_directory_below_that_can_not_be_read_is_told(ground: Ground) -> None:
    (ground.project / "shut").mkdir(mode=0)
    text = call(ground, "list", {"depth": 2}).text
    (ground.project / "shut").chmod(0o700)
    assert text == (
        f"{ground.project}: 1 entry.\nNote: some directories below it could not be read.\nEntries:\nshut/\n"
    )


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("apply", "Changes of run 1 (applied to the project as operation 1):\n1 added\n  A a\n"),
        ("discard", "Changes of run 1 (discarded):\n1 added\n  A a\n"),
    ],
)
def test_what_became_of_what_was_written(ground: Ground, after: str, expected: str) -> None:
    answer = call(ground, "write", {"path": "a", "content": "x"}, after=after)
    assert answer.text == f"Written: {ground.project}/a (a new file, 1 byte).\n{expected}"
    assert (ground.project / "a").exists() is (after == "apply")


def test_a_file_that_is_held_is_told_apart(ground: Ground) -> None:
    answer = call(ground, "write", {"path": ".envrc", "content": "x"}, after="apply")
    assert answer.text == (
        f"Written: {ground.project}/.envrc (a new file, 1 byte).\nNot applied (held: later commands see it, the "
        "project does not have it until the user applies it). What the user reads about it:\n  ! .envrc: needs the "
        "user's approval: direnv runs it when you enter the directory\n"
    )
    assert not (ground.project / ".envrc").exists()


def test_a_cancelled_file_verb_is_an_error_of_the_tool(filled: Ground) -> None:
    read, write = os.pipe()
    os.write(write, b"x")
    try:
        answer = call_tool(filled.sandbox(), "read", {"path": "abc"}, cancel_fd=read)
    finally:
        os.close(read)
        os.close(write)
    assert answer.text == "ERROR: the caller gave up. Try again.\n"
    assert answer.is_error


def test_a_sandbox_that_fails_is_never_content(filled: Ground) -> None:
    sandbox: Sandbox = filled.sandbox()
    sandbox._project = sandbox._project.with_means(facts=sandbox._project.means.facts.replace(proc_mount=False))
    for name, arguments in {"read": {"path": "abc"}, "list": {}, "write": {"path": "n", "content": ""}}.items():
        answer = call_tool(sandbox, name, arguments)
        assert answer.is_error
        assert answer.text.startswith("ERROR: ")
        assert "Content:" not in answer.text


HELD_NOTE = "Held: later commands see it, the project does not have it until the user applies it.\n"
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


def call_checked(sandbox: Sandbox, name: str, **arguments: Any) -> Answer:
    answer = call_tool(sandbox, name, arguments)
    assert json.loads(json.dumps(answer.values)) == answer.values
    return answer


def text(sandbox: Sandbox, name: str, **arguments: Any) -> str:
    answer = call_checked(sandbox, name, **arguments)
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
    assert text(sandbox, "changes") == f"{HELD_NOTE}Changes:\n1 added, 1 modified\n  A new\n  M old\n"
    assert text(sandbox, "diff") == DIFF
    assert text(sandbox, "diff", paths=["old"]) == "Diff:\n" + DIFF.partition("+new\n")[2]
    assert text(sandbox, "diff", paths=["none"]) == "There is nothing to show.\n"
    sandbox.run("rm old")
    assert text(sandbox, "changes", run=2) == f"{HELD_NOTE}Changes:\n1 deleted\n  D old\n"
    assert text(sandbox, "diff", run=1) == DIFF
    sandbox.run("true")
    assert text(sandbox, "changes", run=3) == "This run has changed nothing.\n"


def test_a_part_says_where_the_rest_is(project: Ground) -> None:
    sandbox = project.sandbox(shown_lines=3)
    sandbox.run("seq 5 | xargs touch")
    assert text(sandbox, "changes") == (
        f"{HELD_NOTE}Note: lines 1 to 3 of 6 follow. For the rest call `changes` with `offset` 3.\nChanges:\n5 added\n"
        "  A 1\n  A 2\n"
    )
    assert text(sandbox, "changes", offset=3) == (
        f"{HELD_NOTE}Note: lines 4 to 6 of 6 follow.\nChanges:\n  A 3\n  A 4\n  A 5\n"
    )
    assert (
        text(sandbox, "changes", offset=6) == f"{HELD_NOTE}Note: there is nothing from line 7 on: there are 6 lines.\n"
    )
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
    answer = call_checked(sandbox, "undo")
    assert answer.text == (
        "Undid operation 1 (1 change), recorded as operation 2.\n"
        "Skipped:\n  ! old: conflict: you changed the same lines since: line 1\n"
    )
    assert answer.values["left"] == [{"path": "old", "reason": "conflict: you changed the same lines since: line 1"}]
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
    call_checked(sandbox, "undo")
    sandbox.redo()
    assert text(sandbox, "undo") == "ERROR: there is nothing of yours to undo.\n"
    assert call_checked(sandbox, "undo", operation=1).is_error
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
    assert not call_checked(other, "undo", operation=1).is_error


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
    assert text(sandbox, "changes") == (
        f"{HELD_NOTE}Changes:\n2 added\nin {project.project}:\n  A a\nin {extra}:\n  A b\n"
    )
