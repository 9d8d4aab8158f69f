# SPDX-License-Identifier: Apache-2.0
"""What a command reads is a part of what is asked: a shell runs its input as well as its words."""

import os

import pytest

from tests.support import Ground
from unspill import Sandbox
from unspill.model.permission import UNKNOWN_PROGRAM, Question
from unspill.permissions.approver import Callback
from unspill.permissions.later import Later
from unspill.permissions.queue import answer_question, find_question

pytestmark = pytest.mark.kernel


class Person:
    """Always says the same, and remembers what was asked."""

    def __init__(self, answer: str) -> None:
        self.asked: list[Question] = []
        self._answer = answer

    def __call__(self, question: Question) -> str:
        self.asked.append(question)
        return self._answer


def opened(ground: Ground, person: Person) -> Sandbox:
    return Sandbox(ground.project, policy=ground.policy(), approver=Callback(person))  # type: ignore[arg-type]


def test_a_lasting_answer_is_for_the_very_input(ground: Ground) -> None:
    person = Person("always")
    with opened(ground, person) as sandbox:
        for said, count in ((b"echo a", 1), (b"echo a", 1), (b"echo b", 2), (b"", 3), (b"echo a", 3)):
            result = sandbox.run(["sh", "-s"], stdin=said, hosts=["example.org"])
            assert result.ok
            assert len(person.asked) == count


def test_a_person_sees_what_the_command_reads(ground: Ground) -> None:
    person = Person("once")
    with opened(ground, person) as sandbox:
        sandbox.run(["sh", "-s"], stdin=b"curl \x1b[2Jexample.org\n", hosts=["example.org"])
        sandbox.run(["sh", "-s"], stdin=b"x" * 100_000, hosts=["example.org"])
    assert person.asked[0].lines[-1] == 'input:     "curl \\u{1b}[2Jexample.org\\n"'
    assert max(map(len, person.asked[1].lines)) < 300


def test_what_comes_by_a_descriptor_is_allowed_once_only(ground: Ground) -> None:
    person = Person("once")
    with opened(ground, person) as sandbox, open(os.devnull, "rb") as nothing:
        sandbox.run(["sh", "-s"], stdin=nothing.fileno(), hosts=["example.org"])
    assert person.asked[0].scopes == ("once",)
    assert person.asked[0].request.stdin == UNKNOWN_PROGRAM


@pytest.mark.parametrize(("said", "is_run"), [(b"echo a", True), (b"echo b", False)])
def test_an_answer_that_came_later_is_for_the_very_input(ground: Ground, said: bytes, is_run: bool) -> None:
    with Sandbox(ground.project, policy=ground.policy()) as sandbox:
        requests = sandbox._opened.store.requests
        first = Later(requests, patience_s=0.0)
        with pytest.raises(Exception, match="Permission denied"):
            sandbox.run(["sh", "-s"], stdin=b"echo a", network=True, approver=first)
        (waiting,) = first.left_open
        answer_question(requests, find_question(requests, waiting), scope="once", by="ann")
        second = Later(requests, patience_s=0.0)
        if is_run:
            assert sandbox.run(["sh", "-s"], stdin=said, network=True, approver=second).stdout.kept() == b"a\n"
        else:
            with pytest.raises(Exception, match="Permission denied"):
                sandbox.run(["sh", "-s"], stdin=said, network=True, approver=second)
