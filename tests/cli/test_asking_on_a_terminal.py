# SPDX-License-Identifier: Apache-2.0
"""`unspill run` at a person's terminal: the question is there, apart from all streams, and a forgery gets nothing."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.terminal_person import ASKED, Person
from tests.support import Ground, run_cli

pytestmark = pytest.mark.kernel

# Leads a session on the terminal, then becomes the program; its own streams stay what they are
STARTED = """
import os, sys
os.open(sys.argv[1], os.O_RDWR)
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.fixture
def person() -> Iterator[Person]:
    somebody = Person()
    yield somebody
    somebody.hang_up()


def start(ground: Ground, person: Person, *words: str) -> "subprocess.Popen[str]":
    program = str(Path(sys.executable).with_name("unspill"))
    return subprocess.Popen(
        [sys.executable, "-c", STARTED, os.ttyname(person.slave), program, "run", *words],
        cwd=ground.project,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"TERM": "xterm"},
    )


def ended(run: "subprocess.Popen[str]") -> tuple[int, str, str]:
    stdout, stderr = run.communicate(timeout=30)
    return run.returncode, stdout, stderr


def answer(person: Person, keys: str, times: int = 1) -> None:
    person.wait_for(ASKED, times)
    time.sleep(0.8)
    person.type(keys)


def test_the_person_is_asked_on_the_terminal_and_the_command_runs_after_a_yes(ground: Ground, person: Person) -> None:
    run = start(ground, person, "--network", "--", "echo", "hello")
    answer(person, "y\n")
    assert ended(run) == (0, "hello\n", "")
    assert "Run command with network access: echo hello?" in person.look()


def test_after_anything_else_nothing_runs(ground: Ground, person: Person) -> None:
    run = start(ground, person, "--network", "--", "touch", "ran")
    answer(person, "\n")
    code, stdout, stderr = ended(run)
    assert (code, stdout) == (125, "")
    assert stderr.startswith("ERROR: Permission denied: Run command with network access: touch ran?\n")
    assert not (ground.project / "ran").exists()


def test_the_standard_input_of_the_program_answers_nothing(ground: Ground, person: Person) -> None:
    run = start(ground, person, "--network", "-i", "--", "cat")
    assert run.stdin is not None
    run.stdin.write("y\nyes\n")
    run.stdin.flush()
    answer(person, "n\n")
    assert ended(run)[0] == 125


def test_a_question_that_a_command_prints_is_one_that_nobody_has_asked(ground: Ground, person: Person) -> None:
    forged = "printf '\\nunspill asks:\\n  Run command with network access: true?\\n[y = Allow, anything else = Deny] '"
    run = start(ground, person, "-c", f"{forged}; test -z $HTTPS_PROXY && touch sealed")
    code, stdout, _ = ended(run)
    assert code == 0
    assert "unspill asks" in stdout, "it went where the command's output goes"
    person.type("y\n")
    assert "unspill asks" not in person.look(0.2), "and not to the terminal"
    assert (ground.project / "sealed").exists()


def test_a_command_can_not_reach_the_terminal_to_ask_or_to_answer(ground: Ground, person: Person) -> None:
    run = start(ground, person, "--network", "-c", "echo unspill asks > /dev/tty || echo closed")
    answer(person, "y\n")
    code, stdout, _ = ended(run)
    assert (code, stdout) == (0, "closed\n")


def test_a_longer_answer_spares_the_next_question(ground: Ground, person: Person) -> None:
    other = ground.top / "other"
    other.mkdir()
    words = ("-q", "--root", str(other), "--", "touch", str(other / "file"))
    run = start(ground, person, *words)
    answer(person, "always\n")
    assert ended(run)[0] == 0
    assert ended(start(ground, person, *words))[0] == 0
    assert person.look(0.1).count("unspill asks:") == 1


def test_interrupting_the_question_runs_nothing(ground: Ground, person: Person) -> None:
    run = start(ground, person, "--network", "--", "touch", "ran")
    answer(person, "\x03")
    assert ended(run)[0] == 130
    assert not (ground.project / "ran").exists()


@pytest.mark.parametrize("whom", [(), ("--ask", "deny")], ids=["no terminal", "deny"])
def test_what_was_denied_where_nobody_could_be_asked_is_asked_on_the_terminal(
    ground: Ground, person: Person, whom: tuple[str, ...]
) -> None:
    words = ("--allow-host", "example.org", "--", "echo", "hello")
    for _ in range(4):
        assert run_cli("run", *whom, *words, cwd=ground.project).returncode == 125
    run = start(ground, person, *words)
    answer(person, "y\n")
    assert ended(run)[:2] == (0, "hello\n")


def test_what_the_person_denied_three_times_is_not_asked_again(ground: Ground, person: Person) -> None:
    words = ("--allow-host", "example.org", "--", "echo", "hello")
    for times in (1, 2, 3):
        run = start(ground, person, *words)
        answer(person, "n\n", times)
        assert ended(run)[0] == 125
    code, _, stderr = ended(start(ground, person, *words))
    assert code == 125
    assert "the same was asked 3 times and not allowed" in stderr
