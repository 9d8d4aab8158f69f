# SPDX-License-Identifier: Apache-2.0
"""`unspill show` of what was applied, and what is listed of an apply."""

import json

import pytest

from tests.cli.test_apply import typed
from tests.support import Ground

pytestmark = pytest.mark.kernel


def test_show_of_an_operation(ground: Ground) -> None:
    ground.write("file", "old\n")
    typed(ground, "run", "-q", "-c", "echo new > file; touch exe; chmod 4755 exe; echo x > .envrc")
    lines = typed(ground, "show", "op1")[0].splitlines()
    assert lines[0].startswith("op 1 (")
    assert lines[0].endswith("): apply of run 1, done")
    assert lines[1].endswith("requested by: run")
    assert lines[2:6] == ["changes:", "1 added, 1 modified", "  A exe", "  M file"]
    assert lines[6] == "note: exe: set-user-id, set-group-id and sticky bits are not applied"
    assert lines[7:9] == ["skipped:", "  ! .envrc: held: direnv runs it when you enter the directory"]
    operation = ground.sandbox().operations()[0]
    assert typed(ground, "show", operation.id)[0].splitlines() == lines
    value = json.loads(typed(ground, "show", "op1", "--json")[0])
    assert (value["number"], value["changed"], value["asked_by"]) == (1, 2, "run")
    assert [(left["path"], left["why"]) for left in value["left"]] == [(".envrc", "held")]
    # A number alone is a run's
    assert typed(ground, "show", "1")[0].startswith("run 1 (")


def test_show_of_a_run_says_what_became_of_its_changes(ground: Ground) -> None:
    typed(ground, "run", "-q", "-c", "touch a b")
    typed(ground, "undo")
    typed(ground, "run", "-q", "--hold", "-c", "touch c d")
    typed(ground, "apply", "c")
    typed(ground, "apply")
    typed(ground, "run", "-q", "--discard", "-c", "touch e")
    typed(ground, "run", "-q", "-c", "true")
    last = [typed(ground, "show", run)[0].splitlines()[-1] for run in "1234"]
    assert last == [
        "changed 2 paths: applied by op 1 (unspill show op1)",
        "changed 2 paths: applied by op 3 (unspill show op3), op 4 (unspill show op4)",
        "changed 1 path: no operation on record applied them",
        f"directory: {ground.project}",
    ]


def test_the_number_of_an_operation_is_known_for_one(ground: Ground) -> None:
    typed(ground, "run", "-q", "-c", "touch a b")
    typed(ground, "undo")
    _stdout, stderr = typed(ground, "show", "2", code=2)
    assert stderr.splitlines() == [
        "unspill: no such run: 2",
        "  There is an operation with this number: `unspill show op2`.",
    ]


def test_what_git_keeps_for_itself_is_one_line_of_an_apply_too(ground: Ground) -> None:
    git = "git -c user.email=a@example.org -c user.name=A"
    typed(ground, "run", "-q", "-c", "git init -q . && touch a && git add a")
    typed(ground, "run", "-q", "--hold", "-c", f"touch b; {git} commit -qm one")
    lines = typed(ground, "apply")[0].splitlines()
    assert lines[1] == "  A b"
    assert lines[2] == "  git: new master"
    assert len(lines) == 3
    assert [line[:9] for line in typed(ground, "undo")[0].splitlines()[1:]] == ["  D b", "  git: ma"]
