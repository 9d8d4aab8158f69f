# SPDX-License-Identifier: Apache-2.0
"""A program that applies what is held: the person is asked about each held file, and for its very content."""

import pytest

from tests.kernel.answering import Person, opened
from tests.support import Ground
from unspill import Callback, Question, Sandbox

pytestmark = pytest.mark.kernel


def test_a_program_that_applies_what_is_held_has_the_person_asked(ground: Ground) -> None:
    person = Person()
    sandbox = opened(ground, person)
    sandbox.run("echo evil > .envrc; echo fine > file")
    operation = sandbox.apply(asked_by="model")
    assert person.texts == ["Apply the held change of .envrc?"]
    assert operation.left == ()
    assert (ground.project / ".envrc").read_text() == "evil\n"


# What a command leaves, the path, and the lines of the question that are about it
SHOWN: dict[str, tuple[str, str, list[str]]] = {
    "a file": (
        "printf 'echo evil\\033[8m\\n' > .bashrc",
        ".bashrc",
        ["becomes:   a file of 14 bytes", r'begins:    "echo evil\u{1b}[8m\n"'],
    ),
    "one that can be run": (
        "echo x > .bashrc; chmod +x .bashrc",
        ".bashrc",
        ["becomes:   a file of 2 bytes, executable", r'begins:    "x\n"'],
    ),
    "a link": (
        "ln -s /etc/passwd .bashrc",
        ".bashrc",
        ["becomes:   a symbolic link to what follows", "begins:    /etc/passwd"],
    ),
    "a long file": (
        "yes | head -c 5000 > .bashrc",
        ".bashrc",
        ["becomes:   a file of 5000 bytes", 'begins:    "' + r"y\n" * 80],
    ),
    "a file with the name of a secret": ("echo TOKEN=abc > .npmrc", ".npmrc", ["becomes:   a file of 10 bytes"]),
}


@pytest.mark.parametrize("case", SHOWN)
def test_whoever_is_asked_sees_why_it_is_held_and_what_it_becomes(ground: Ground, case: str) -> None:
    command, path, expected = SHOWN[case]
    person = Person(False)
    sandbox = opened(ground, person)
    sandbox.run(command)
    sandbox.apply(asked_by="model")
    (question,) = person.asked
    assert question.text == f"Apply the held change of {path}?"
    said = [line for line in question.lines if line.startswith(("becomes:", "begins:"))]
    assert [line[: len(wanted)] for line, wanted in zip(said, expected, strict=True)] == expected
    assert any(line.startswith("because:   ") for line in question.lines)
    assert all(line.isprintable() and len(line) < 500 for line in question.lines)


def test_a_held_file_to_which_the_person_says_no_stays_held(ground: Ground) -> None:
    sandbox = opened(ground, Person(False))
    sandbox.run("echo evil > .envrc; echo fine > file")
    operation = sandbox.apply(asked_by="model")
    assert [(left.path, left.why) for left in operation.left] == [(b".envrc", "held")]
    assert (ground.project / "file").exists()
    assert not (ground.project / ".envrc").exists()


def test_an_answer_for_a_held_file_is_for_that_content(ground: Ground) -> None:
    person = Person("always")
    sandbox = opened(ground, person)
    for content, count in (("one", 1), ("one", 1), ("two", 2)):
        sandbox.run(f"echo {content} > .envrc; date +%N > file")
        assert sandbox.apply(asked_by="model").left == ()
        assert len(person.asked) == count
        sandbox.undo()


def test_what_changes_while_the_person_is_asked_is_not_applied(ground: Ground) -> None:
    person = Person()
    sandbox = opened(ground, person)
    sandbox.run("echo shown > .envrc")

    def ask(question: Question) -> bool:
        opened(ground, person).run("echo other > .envrc")
        return True

    deceived = Sandbox(ground.project, policy=ground.policy(), approver=Callback(ask))
    ground.opened.append(deceived)
    operation = deceived.apply(asked_by="model")
    assert not (ground.project / ".envrc").exists()
    assert operation.left


def test_a_held_directory_is_never_asked_about_nor_let_in_with_all_it_contains(ground: Ground) -> None:
    ground.run(["git", "init", "-q", "."], after="apply")
    person = Person()
    sandbox = opened(ground, person)
    sandbox.run("mkdir -p .git/hooks && echo evil > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit")
    sandbox.apply(asked_by="model")
    assert all("pre-commit" in text for text in person.texts), person.texts


def test_a_persons_own_apply_asks_nothing(ground: Ground) -> None:
    person = Person()
    sandbox = opened(ground, person)
    sandbox.run("echo evil > .envrc")
    assert [left.why for left in sandbox.apply().left] == ["held"]
    assert person.asked == []
