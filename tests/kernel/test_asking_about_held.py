# SPDX-License-Identifier: Apache-2.0
"""A program that applies what is held: the person is asked about each held file, and for its very content."""

import pytest

from tests.kernel.answering import Person, opened
from tests.support import Ground
from unspill import Callback, Question, Sandbox
from unspill.model.permission import HeldPath
from unspill.store.permissions import to_form

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
        ["becomes:   a file of 14 bytes", r'has:       "echo evil\u{1b}[8m\n"'],
    ),
    "one that can be run": (
        "echo x > .bashrc; chmod 777 .bashrc",
        ".bashrc",
        ["becomes:   a file of 2 bytes, executable, writable by everybody", r'has:       "x\n"'],
    ),
    "a link": ("ln -s /etc/passwd .bashrc", ".bashrc", ["becomes:   a symbolic link", "leads to:  /etc/passwd"]),
    "a link with letters that look alike": (
        "ln -s /etc/p\u0430sswd .bashrc",
        ".bashrc",
        [
            "becomes:   a symbolic link",
            "leads to:  /etc/p\u0430sswd",
            "careful:   /etc/p\u0430sswd mixes letters that look alike",
        ],
    ),
    "a long file, whatever comes where the shown part ends": (
        "{ yes | head -c 180; printf 'exit 0 # the end'; yes | head -c 5000; } > .bashrc",
        ".bashrc",
        [
            "becomes:   a file of 5196 bytes",
            'begins:    "' + r"y\n" * 90 + r"exit 0 # the endy\ny\n" + '" and 4996 more bytes',
        ],
    ),
    "one word": (
        "head -c 5000 /dev/zero | tr '\\0' y > .bashrc",
        ".bashrc",
        ["becomes:   a file of 5000 bytes", "begins:    " + "y" * 200 + " and 4800 more bytes"],
    ),
    "a file with the name of a secret": (
        "echo TOKEN=abc > .npmrc",
        ".npmrc",
        ["becomes:   a file of 10 bytes; its content is not shown because of its name: see `unspill diff`"],
    ),
    "one in disguise": (
        "echo TOKEN=abc > .NpmRC",
        ".NpmRC",
        ["becomes:   a file of 10 bytes; its content is not shown because of its name: see `unspill diff`"],
    ),
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
    labels = ("becomes:", "begins:", "has:", "leads to:", "careful:")
    assert [line for line in question.lines if line.startswith(labels)] == expected
    assert any(line.startswith("because:   ") for line in question.lines)
    assert all(line.isprintable() and len(line) < 1500 for line in question.lines)


def test_what_a_held_file_has_is_not_in_the_audit_nor_in_a_grant(ground: Ground) -> None:
    ground.run(["git", "init", "-q", "."], after="apply")
    with open(ground.project / ".git/config", "a") as file:
        file.write('[remote "x"]\n\turl = https://me:hunter2@example.org/x\n')
    person = Person("always")
    sandbox = opened(ground, person)
    sandbox.run("git config core.fsmonitor ./x")
    assert sandbox.apply(asked_by="model").left == ()
    assert any("hunter2" in line for question in person.asked for line in question.lines)
    kept = [path.read_bytes() for path in (ground.state / "audit").iterdir()]
    assert any(b".git/config" in text for text in kept)
    assert not any(b"hunter2" in text for text in kept)
    (grant,) = sandbox._project.store.grants.all()
    assert b"hunter2" not in to_form(grant.request)


def test_a_reason_that_a_command_chose_is_bounded(ground: Ground) -> None:
    ground.run(["git", "init", "-q", "."], after="apply")
    person = Person(False)
    sandbox = opened(ground, person)
    sandbox.run("printf '[x]\\n\\t%s = 1\\n' $(head -c 200000 /dev/zero | tr '\\0' k) >> .git/config")
    sandbox.apply(asked_by="model")
    (question,) = person.asked
    assert isinstance(question.request, HeldPath)
    assert len(question.request.why) <= 300


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
