# SPDX-License-Identifier: Apache-2.0
"""What a command reads is a part of what is asked: a shell runs its input as well as its words."""

import os

import pytest

from tests.support import Ground
from unspill import Sandbox
from unspill.model.permission import INHERITED, UNKNOWN_PROGRAM, Question
from unspill.model.run import InheritedInput
from unspill.permissions.approvers import Callback, RetryQueue, answer_question, find_question

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


def test_input_that_a_caller_merely_has_does_not_shorten_an_answer_or_need_another(ground: Ground) -> None:
    person = Person("always")
    with opened(ground, person) as sandbox, open(os.devnull, "rb") as nothing:
        inherited = InheritedInput(nothing.fileno())
        for given in (inherited, inherited, None):
            assert sandbox.run(["true"], stdin=given, hosts=["example.org"]).ok
        assert len(person.asked) == 1
        assert person.asked[0].request.stdin == INHERITED
        assert "always" in person.asked[0].scopes
        # Whoever is asked is told that any input will do
        assert any(line.startswith("input:     whatever is piped to `unspill run`") for line in person.asked[0].lines)
        (grant,) = sandbox._project.store.grants.all()
        assert grant.request.stdin == ""


def test_an_answer_for_no_input_is_none_for_a_given_one(ground: Ground) -> None:
    person = Person("always")
    with opened(ground, person) as sandbox, open(os.devnull, "rb") as nothing:
        for given, count in (
            (InheritedInput(nothing.fileno()), 1),
            (b"echo a", 2),
            ("echo a", 2),
            (InheritedInput(nothing.fileno()), 2),
        ):
            assert sandbox.run(["sh", "-s"], stdin=given, hosts=["example.org"]).ok
            assert len(person.asked) == count


@pytest.mark.parametrize(("said", "is_run"), [(b"echo a", True), (b"echo b", False)])
def test_an_answer_that_came_later_is_for_the_very_input(ground: Ground, said: bytes, is_run: bool) -> None:
    with Sandbox(ground.project, policy=ground.policy()) as sandbox:
        requests = sandbox._project.store.requests
        first = RetryQueue(requests, wait_s=0.0)
        with pytest.raises(Exception, match="Permission denied"):
            sandbox.run(["sh", "-s"], stdin=b"echo a", network=True, approver=first)
        (waiting,) = first.left_open
        answer_question(requests, find_question(requests, waiting), scope="once", by="ann")
        second = RetryQueue(requests, wait_s=0.0)
        if is_run:
            assert sandbox.run(["sh", "-s"], stdin=said, network=True, approver=second).stdout.kept() == b"a\n"
        else:
            with pytest.raises(Exception, match="Permission denied"):
                sandbox.run(["sh", "-s"], stdin=said, network=True, approver=second)
