# SPDX-License-Identifier: Apache-2.0
"""What is on hold is said where it matters: after an apply, an undo and a redo, and before a run that can't see."""

import subprocess

import pytest

from tests.cli.test_apply import typed
from tests.support import Ground

pytestmark = pytest.mark.kernel

HIDDEN = "unspill: This run does not see .git: held changes delete it. To see it: unspill discard .git"


def on_hold(stderr: str) -> list[str]:
    """Return the line that says what is on hold, and what is listed below it."""
    lines = stderr.splitlines()
    first = next((index for index, line in enumerate(lines) if "Still held" in line), len(lines))
    return lines[first:]


@pytest.fixture
def wiped(ground: Ground) -> Ground:
    """A repository in which a run has deleted everything: the files are gone, that `.git` goes is held."""
    subprocess.run(["git", "init", "-q", ground.project], check=True)
    ground.write("file", "x\n")
    stderr = typed(ground, "run", "-c", "rm -rf ./* ./.[a-z]*")[1]
    assert "! .git: held: " in stderr
    assert stderr.endswith("  To discard held changes: unspill discard PATH\n")
    return ground


def test_an_undo_says_what_of_that_run_is_still_held_and_how_to_drop_it(wiped: Ground) -> None:
    stdout, stderr = typed(wiped, "undo")
    assert stdout.splitlines() == ["Undid op 1 (1 change), recorded as op 2. Redo: unspill redo", "  A file"]
    held = ["unspill: Still held, visible to later runs: 1 deleted. Discard: unspill discard .git", "  D .git/"]
    assert on_hold(stderr) == held
    typed(wiped, "discard", ".git")
    assert on_hold(typed(wiped, "redo", "op1")[1]) == []


def test_a_run_that_does_not_see_git_says_so_before_it_starts(wiped: Ground) -> None:
    typed(wiped, "undo")
    lines = typed(wiped, "run", "--", "git", "status", code=128)[1].splitlines()
    assert lines[0] == HIDDEN
    assert lines[1].startswith("fatal: not a git repository")
    (wiped.project / "below").mkdir()
    assert f"unspill discard {wiped.project}/.git" in typed(wiped, "run", "--", "true", cwd="below")[1]
    result = wiped.sandbox().run("true")
    assert any(note.startswith("This run does not see .git") for note in result.warnings)
    typed(wiped, "discard", ".git")
    assert typed(wiped, "run", "--", "git", "status", "--short")[1] == ""


def test_a_run_that_sees_everything_says_nothing(ground: Ground) -> None:
    ground.write("file", "x\n")
    typed(ground, "run", "-q", "--hold", "-c", "echo y > file; touch new; rm new")
    assert typed(ground, "run", "--", "true")[1] == ""


def test_what_is_deleted_and_made_again_is_seen(ground: Ground) -> None:
    ground.write("file", "x\n")
    typed(ground, "run", "-q", "--hold", "-c", "rm file")
    assert "does not see file:" in typed(ground, "run", "--", "true")[1]
    typed(ground, "run", "-q", "--hold", "-c", "echo again > file")
    assert typed(ground, "run", "--", "true")[1] == ""


def test_a_part_that_was_not_applied_is_named(ground: Ground) -> None:
    typed(ground, "run", "-q", "--hold", "-c", "echo 1 > a; echo 2 > b")
    said = ["unspill: Still held, visible to later runs: 1 added. Discard: unspill discard b", "  A b"]
    assert on_hold(typed(ground, "apply", "a")[1]) == said
    assert on_hold(typed(ground, "apply")[1]) == []


def test_an_undo_of_an_apply_says_that_its_changes_are_on_hold_again(ground: Ground) -> None:
    typed(ground, "run", "-q", "--hold", "-c", "echo 1 > a")
    typed(ground, "apply")
    said = ["unspill: Still held, visible to later runs: 1 added. Discard: unspill discard a", "  A a"]
    assert on_hold(typed(ground, "undo")[1]) == said
    assert on_hold(typed(ground, "redo")[1]) == []


def test_a_project_that_can_be_listed_but_not_entered_is_refused_in_words(ground: Ground) -> None:
    ground.write("file", "x\n")
    typed(ground, "run", "-q", "--hold", "-c", "rm file; chmod 644 .")
    stderr = typed(ground, "run", "--", "true", code=125)[1]
    assert "the working directory can't be entered" in stderr
    assert "`unspill discard`" in stderr
