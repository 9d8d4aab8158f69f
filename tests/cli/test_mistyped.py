# SPDX-License-Identifier: Apache-2.0
"""What was mistyped: commands, options, sandboxes and paths that are meant are named; nothing else is guessed."""

import pytest

from tests.support import Ground, run_cli
from unspill.policy.paths import closest

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("rnu",), "Did you mean `unspill run`?"),
        (("chnages",), "Did you mean `unspill changes`?"),
        (("playg",), "Did you mean `unspill playground`?"),
        (("run", "--tiemout", "3", "--", "true"), "Did you mean --timeout?"),
        (("run", "--holds", "--", "true"), "Did you mean --hold?"),
        (("apply", "man.py"), "Did you mean main.py?"),
        (("discard", "mian.py"), "Did you mean main.py?"),
        (("apply", "--hunk", "mian.py:1"), "Did you mean main.py?"),
        (("changes", "--sandbox", "trail"), "Did you mean 'trial'?"),
        (("undo", "--sandbox", "elsewhere"), "It has: default, trial."),
    ],
)
def test_what_was_meant_is_named(ground: Ground, words: tuple[str, ...], meant: str) -> None:
    ground.write("main.py", "1\n")
    run_cli("run", "--hold", "-c", "echo 2 >> main.py", cwd=ground.project)
    run_cli("run", "--sandbox", "trial", "--", "true", cwd=ground.project)
    done = run_cli(*words, cwd=ground.project)
    assert done.returncode in (2, 125)
    assert done.stdout == b""
    assert meant in done.stderr.decode()


def test_a_diff_of_nothing_says_what_may_have_been_meant(ground: Ground) -> None:
    ground.write("main.py", "1\n")
    run_cli("run", "--hold", "-c", "echo 2 >> main.py", cwd=ground.project)
    done = run_cli("diff", "mian.py", cwd=ground.project)
    assert (done.stdout, done.stderr.decode()) == (b"", "unspill: mian.py has no changes here. Did you mean main.py?\n")
    assert run_cli("diff", "main.py", cwd=ground.project).stderr == b""


def test_a_sandbox_is_made_only_by_who_runs_something_in_it(ground: Ground) -> None:
    assert run_cli("log", "--sandbox", "new", cwd=ground.project).returncode == 2
    assert run_cli("run", "--sandbox", "new", "--", "true", cwd=ground.project).returncode == 0
    assert run_cli("log", "--sandbox", "new", cwd=ground.project).returncode == 0


@pytest.mark.parametrize("line", ["echo a && echo b", "ls | wc -l", "echo $HOME", "make test"])
def test_a_line_for_a_shell_that_was_given_as_one_word_explains_how_to_run_it(ground: Ground, line: str) -> None:
    done = run_cli("run", line, cwd=ground.project)
    assert done.returncode == 127
    assert done.stderr.decode().splitlines()[1:] == [
        "  No program has this name. For a shell:",
        f"      unspill run -c '{line}'",
    ]
    assert run_cli("run", "-c", line, cwd=ground.project).returncode in (0, 2)


def test_a_program_that_is_missing_is_explained_as_ever(ground: Ground) -> None:
    done = run_cli("run", "--", "no-such-program", cwd=ground.project)
    assert b"Check that it is installed" in done.stderr


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("", ["a"], ""),
        ("x", ["a", "b"], ""),
        ("lgo", ["log", "logs"], "log"),
        ("lo", ["log", "logs"], ""),
        ("frobnicate", ["forget", "prune"], ""),
        ("statsu", ["status", "stop"], "status"),
        ("diff", ["diff"], "diff"),
    ],
)
def test_only_what_is_near_is_meant(word: str, known: list[str], meant: str) -> None:
    assert closest(word, known) == meant


def test_the_version_and_the_help_of_a_verb_have_short_ways(ground: Ground) -> None:
    assert run_cli("-V", cwd=ground.project).stdout == run_cli("--version", cwd=ground.project).stdout
    assert run_cli("help", "prune", cwd=ground.project).stdout == run_cli("prune", "-h", cwd=ground.project).stdout
