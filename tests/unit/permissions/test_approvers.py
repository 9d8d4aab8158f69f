# SPDX-License-Identifier: Apache-2.0
"""Approvers that wait in the store: only an answer to exactly what was asked counts, and it is taken once."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.permissions.conftest import Office
from tests.unit.permissions.given import FOR_A_COMMAND, ONE_OF_EACH, PROJECT, REQUESTS
from unspill.errors import DeniedError, UsageError
from unspill.model.permission import Allowed, Denied, Egress, NetworkForCommand, Question, ReadablePath, RequestId
from unspill.permissions.approvers import (
    KEPT_S,
    SECOND_NS,
    Queue,
    RetryQueue,
    answer_question,
    find_question,
    open_questions,
)
from unspill.permissions.question import make_question
from unspill.store.db import Store
from unspill.store.permissions import to_form

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unspill.model.permission import Answer, Request
    from unspill.model.policy import Scope
    from unspill.store.permissions import RequestTable

    Start = Callable[..., subprocess.Popen[str]]
    Ask = Callable[[Question], list[Answer]]

NETWORK = NetworkForCommand(**FOR_A_COMMAND)
EGRESS = Egress(**FOR_A_COMMAND, hosts=("example.org",))

OPEN = """
import os, sys, time
from unspill.store.db import Store
from unspill.store.permissions import GrantTable
from unspill.store.permissions import RequestTable
store = Store.open(os.fsencode(sys.argv[1]))
requests = RequestTable(store.transaction)
"""
ASK = (
    OPEN
    + """
from unspill.model.permission import NetworkForCommand
from unspill.permissions.approvers import Queue
from unspill.permissions.question import make_question
request = NetworkForCommand(project=b"/p", argv=(b"git", os.fsencode(sys.argv[2])), cwd=b"/p")
answer = Queue(requests).ask(make_question(request, ("once",), wait_s=float(sys.argv[3])))
print(type(answer).__name__, answer.by, flush=True)
"""
)
APPROVE = (
    OPEN
    + """
from unspill.permissions.approvers import answer_question, open_questions
deadline = time.monotonic() + 30
while time.monotonic() < deadline:
    for question in open_questions(requests):
        if question.text == f"Run command with network access: git {sys.argv[2]}?":
            answer_question(requests, question, scope="once" if sys.argv[3] == "yes" else None, by="other")
            sys.exit(0)
    time.sleep(0.02)
sys.exit(1)
"""
)


@pytest.fixture
def python() -> Iterator[Start]:
    """Start programs; those that still run at the end of the test are ended."""
    started: list[subprocess.Popen[str]] = []

    def start(program: str, *arguments: str | bytes) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-c", program, *arguments], text=True, stdout=subprocess.PIPE)
        started.append(process)
        return process

    yield start
    for process in started:
        with process:
            process.kill()


@pytest.fixture
def ask(office: Office) -> Iterator[Ask]:
    """Ask in another thread; the answer is in the list that is returned when the thread has ended."""
    threads: list[threading.Thread] = []

    def start(question: Question) -> list[Answer]:
        answers: list[Answer] = []
        thread = threading.Thread(target=lambda: answers.append(Queue(office.requests).ask(question)))
        threads.append(thread)
        thread.start()
        while office.requests.find(question.id) is None:
            time.sleep(0.005)
        return answers

    yield start
    for thread in threads:
        thread.join()


def settled(answers: list[Answer]) -> Answer:
    deadline = time.monotonic() + 20
    while not answers and time.monotonic() < deadline:
        time.sleep(0.01)
    return answers[0]


def test_two_processes_that_ask_and_two_that_answer_find_each_other(store: Store, state: bytes, python: Start) -> None:
    del store
    asking = {word: python(ASK, state, word, "30") for word in ("fetch", "push")}
    answering = [python(APPROVE, state, "fetch", "yes"), python(APPROVE, state, "push", "no")]
    assert [process.wait(40) for process in answering] == [0, 0]
    assert asking["fetch"].communicate(timeout=20)[0] == "Allowed queue (other)\n"
    assert asking["push"].communicate(timeout=20)[0] == "Denied queue (other)\n"


def test_of_two_who_answer_at_once_one_is_told_that_it_is_over(store: Store, state: bytes, python: Start) -> None:
    del store
    asking = python(ASK, state, "fetch", "30")
    answering = [python(APPROVE, state, "fetch", word) for word in ("yes", "no")]
    said = asking.communicate(timeout=40)[0]
    winners = {"Allowed queue (other)\n": [True, False], "Denied queue (other)\n": [False, True]}
    # The other one finds nothing to answer any more, or is told that it came too late
    winner = answering[winners[said].index(True)]
    assert winner.wait(20) == 0


def test_nobody_answers_and_it_is_denied_at_the_deadline(office: Office) -> None:
    question = make_question(NETWORK, ("once",), wait_s=0.15)
    began = time.monotonic()
    answer = Queue(office.requests).ask(question)
    assert isinstance(answer, Denied)
    assert answer.reason == "nobody answered in time"
    assert 0.15 <= time.monotonic() - began < 5
    with pytest.raises(UsageError):
        answer_question(office.requests, question, scope="once", by="late")
    assert open_questions(office.requests) == ()


def test_who_asks_and_dies_leaves_nothing_that_can_be_allowed_later(
    state: bytes, office: Office, python: Start
) -> None:
    asking = python(ASK, state, "fetch", "1.5")
    deadline = time.monotonic() + 30
    while not (found := open_questions(office.requests)) and time.monotonic() < deadline:
        time.sleep(0.01)
    asking.kill()
    asking.wait()
    time.sleep(max(0.0, found[0].wait_s + 0.05))
    assert open_questions(office.requests) == ()
    with pytest.raises(UsageError):
        answer_question(office.requests, found[0], scope="once", by="late")


@pytest.mark.parametrize("scope", ["once", "run", "sandbox", "always"])
def test_an_answer_has_the_scope_that_was_chosen(office: Office, ask: Ask, scope: str) -> None:
    readable = ReadablePath(**FOR_A_COMMAND, path=b"/opt/x")
    question = make_question(readable, readable.scopes, wait_s=20)
    answers = ask(question)
    shown = find_question(office.requests, question.id)
    answer_question(office.requests, shown, scope=next(s for s in shown.scopes if s == scope), by="ann")
    answer = settled(answers)
    assert isinstance(answer, Allowed)
    assert (answer.digest, answer.by, answer.scope) == (question.digest, "queue (ann)", scope)


def test_what_is_shown_to_who_answers_is_worded_from_the_request_itself(office: Office, ask: Ask) -> None:
    for request in ONE_OF_EACH:
        question = make_question(request, request.scopes, wait_s=20)
        answers = ask(question)
        shown = find_question(office.requests, question.id)
        assert shown.replace(wait_s=20.0) == question
        answer_question(office.requests, shown, scope=None, by="ann", reason="not today")
        assert settled(answers) == Denied(digest=question.digest, by="queue (ann)", reason="not today")


def test_a_scope_that_was_not_offered_cannot_be_chosen(office: Office, ask: Ask) -> None:
    question = make_question(NETWORK, ("once",), wait_s=20)
    answers = ask(question)
    for scope in ("run", "sandbox", "always"):
        with pytest.raises(UsageError):
            answer_question(office.requests, question, scope=scope, by="ann")
    answer_question(office.requests, question, scope=None, by="ann")
    assert isinstance(settled(answers), Denied)


def test_a_request_that_changed_after_it_was_shown_is_not_answered(store: Store, office: Office, ask: Ask) -> None:
    question = make_question(NETWORK, ("once",), wait_s=20)
    answers = ask(question)
    shown = find_question(office.requests, question.id)
    evil = NETWORK.replace(argv=(b"evil",))
    forged = make_question(evil, ("once",), identity=question.id)
    store.transaction.change("UPDATE requests SET request = ?, digest = ?", (to_form(evil), forged.digest))
    with pytest.raises(UsageError):
        answer_question(office.requests, shown, scope="once", by="ann")
    assert settled(answers) == Denied(
        digest=question.digest,
        by="queue",
        reason="the request was changed while it waited",
        remedy="Answer sooner with `unspill approve`, or let it wait longer.",
    )


def test_who_asked_does_not_take_the_answer_to_what_was_shown_in_its_place(
    store: Store, office: Office, ask: Ask
) -> None:
    harmless = NETWORK.replace(argv=(b"true",))
    question = make_question(NETWORK, ("once",), wait_s=20)
    answers = ask(question)
    forged = make_question(harmless, ("once",), identity=question.id)
    with store.transaction:
        store.transaction.change("UPDATE requests SET request = ?, digest = ?", (to_form(harmless), forged.digest))
        answer_question(office.requests, find_question(office.requests, question.id), scope="once", by="ann")
    assert isinstance(settled(answers), Denied)


def test_a_row_that_lies_about_its_digest_is_not_shown(store: Store, office: Office, ask: Ask) -> None:
    question = make_question(NETWORK, ("once",), wait_s=20)
    answers = ask(question)
    store.transaction.change("UPDATE requests SET request = ?", (to_form(NETWORK.replace(argv=(b"true",))),))
    assert open_questions(office.requests) == ()
    with pytest.raises(UsageError):
        find_question(office.requests, question.id)
    assert isinstance(settled(answers), Denied)


def test_a_removed_request_is_denied(store: Store, ask: Ask) -> None:
    answers = ask(make_question(NETWORK, ("once",), wait_s=20))
    store.transaction.change("DELETE FROM requests")
    assert isinstance(settled(answers), Denied)


def test_an_answer_copied_from_another_request_is_none(store: Store, office: Office, ask: Ask) -> None:
    first, second = (make_question(NETWORK, ("once",), wait_s=20) for _ in range(2))
    answers = ask(first), ask(second)
    answer_question(office.requests, first, scope="once", by="ann")
    assert isinstance(settled(answers[0]), Allowed)
    store.transaction.change(
        "UPDATE requests SET state = 'allowed', scope = 'once', answered_digest = ? WHERE id = ?",
        (first.digest, second.id),
    )
    assert isinstance(settled(answers[1]), Denied)


@pytest.mark.parametrize("name", ["", "x", "0" * 16, "../../etc", "\x1b[2J"])
def test_there_is_nothing_to_answer_under_another_name(office: Office, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_question(office.requests, RequestId(name))
    assert str(caught.value).isprintable()


def test_a_broker_with_a_queue_waits_and_remembers(office: Office) -> None:
    broker = office.broker(approver=Queue(office.requests), now_ns=time.time_ns, wait_s=20)
    permits: list[object] = []
    thread = threading.Thread(target=lambda: permits.append(broker.obtain(EGRESS)))
    thread.start()
    deadline = time.monotonic() + 20
    while not (found := open_questions(office.requests, PROJECT)) and time.monotonic() < deadline:
        time.sleep(0.01)
    answer_question(office.requests, found[0], scope="always", by="ann")
    thread.join()
    assert len(permits) == 1
    broker.obtain(EGRESS.replace(run="", sandbox=""))
    assert [event["kind"] for event in office.recorded()] == ["request", "answer", "decision"]
    assert office.recorded()[1]["by"] == "queue (ann)"


def test_an_asking_thread_that_is_interrupted_takes_its_request_back(office: Office) -> None:
    class Interrupted(Queue):
        def _look(self, question: Question) -> Answer | None:
            raise KeyboardInterrupt

    question = make_question(NETWORK, ("once",), wait_s=20)
    with pytest.raises(KeyboardInterrupt):
        Interrupted(office.requests).ask(question)
    assert open_questions(office.requests) == ()


def test_without_an_answer_the_broker_denies(office: Office) -> None:
    broker = office.broker(approver=Queue(office.requests), now_ns=time.time_ns, wait_s=0.05)
    with pytest.raises(DeniedError) as caught:
        broker.obtain(NETWORK)
    assert "nobody answered in time" in caught.value.remedy
    assert os.path.exists(office.directory)


def question_for(request: Request, wait_s: float = 30.0) -> Question:
    return make_question(request, request.scopes, wait_s=wait_s)


def ask_soon(requests: RequestTable, request: Request, wait_s: float = 0.0) -> Answer:
    return RetryQueue(requests, wait_s=wait_s).ask(question_for(request))


def answer_all(requests: RequestTable, scope: Scope | None = "once", reason: str = "") -> list[Question]:
    found = open_questions(requests)
    for question in found:
        answer_question(requests, question, scope=scope, by="ann", reason=reason)
    return list(found)


@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=lambda one: one.kind)
def test_an_answer_is_found_by_who_asks_the_same_again_and_used_once(office: Office, request_: Request) -> None:
    first = ask_soon(office.requests, request_)
    assert isinstance(first, Denied)
    (waiting,) = answer_all(office.requests)
    assert f"`unspill approve {waiting.id}`" in first.reason
    again = question_for(request_.replace(run="9" * 16))
    assert RetryQueue(office.requests, wait_s=0).ask(again) == Allowed(
        digest=again.digest, by="queue (ann)", scope="once"
    ), "the command begins anew, so the run is another"
    assert isinstance(ask_soon(office.requests, request_), Denied)
    assert [question.id for question in open_questions(office.requests)] != [waiting.id]


def test_the_same_waits_only_once_however_often_it_is_asked(office: Office) -> None:
    told = {ask_soon(office.requests, NETWORK).reason for _time in range(20)}  # type: ignore[union-attr]
    assert len(told) == len(open_questions(office.requests)) == 1


def test_a_denial_counts_too_and_says_why(office: Office) -> None:
    ask_soon(office.requests, NETWORK)
    answer_all(office.requests, None, "not today")
    for _time in range(2):
        answer = ask_soon(office.requests, NETWORK)
        assert isinstance(answer, Denied)
        assert (answer.reason, answer.by) == ("not today", "queue (ann)")
    assert open_questions(office.requests) == (), "who has answered is not asked again"


@pytest.fixture(scope="module")
def lasting_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(bytes(tmp_path_factory.mktemp("later") / "state")) as store:
        yield store


@given(answered=REQUESTS, other=REQUESTS, run=st.sampled_from(["", "5" * 16]), is_again=st.booleans())
def test_an_answer_is_for_what_differs_in_nothing_but_the_run(
    lasting_store: Store, answered: Request, other: Request, run: str, is_again: bool
) -> None:
    requests = lasting_store.requests
    lasting_store.transaction.change("DELETE FROM requests")
    asked = answered.replace(run=run) if is_again else other
    ask_soon(requests, answered)
    answer_all(requests)
    is_same = type(asked) is type(answered) and asked.replace(run="") == answered.replace(run="")
    assert isinstance(ask_soon(requests, asked), Allowed) is is_same


CHANGES = [
    {"sandbox": "3" * 16},
    {"argv": (b"git", b"push")},
    {"cwd": b"/"},
    {"names": ("PATH",)},
    {"variables": "x"},
    {"stdin": "0" * 64},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda one: next(iter(one)))
def test_no_field_but_the_run_may_be_another(office: Office, change: dict[str, object]) -> None:
    ask_soon(office.requests, NETWORK)
    answer_all(office.requests)
    assert isinstance(ask_soon(office.requests, NETWORK.replace(**change)), Denied)
    assert isinstance(ask_soon(office.requests, NETWORK), Allowed), "it is still there for what it was given for"


def test_of_many_who_come_at_once_one_takes_the_answer(office: Office) -> None:
    ask_soon(office.requests, NETWORK)
    answer_all(office.requests)
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(ask_soon(office.requests, NETWORK))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [isinstance(answer, Allowed) for answer in answers].count(True) == 1


def test_an_answer_that_a_queue_has_used_is_used(office: Office) -> None:
    answers: list[Answer] = []
    question = question_for(NETWORK, 20)
    thread = threading.Thread(target=lambda: answers.append(Queue(office.requests).ask(question)))
    thread.start()
    while not answer_all(office.requests):
        time.sleep(0.01)
    thread.join()
    assert isinstance(answers[0], Allowed)
    assert isinstance(ask_soon(office.requests, NETWORK), Denied)


def test_an_answer_within_its_wait_is_returned_at_once(office: Office) -> None:
    timer = threading.Timer(0.2, answer_all, (office.requests,))
    timer.start()
    began = time.monotonic()
    assert isinstance(ask_soon(office.requests, NETWORK, wait_s=20), Allowed)
    assert time.monotonic() - began < 10
    timer.join()


@pytest.mark.parametrize(("ago_s", "counts"), [(KEPT_S - 60, True), (KEPT_S + 1, False)])
def test_an_answer_does_not_lie_about_for_ever(office: Office, store: Store, ago_s: float, counts: bool) -> None:
    ask_soon(office.requests, NETWORK)
    answer_all(office.requests)
    store.transaction.change("UPDATE requests SET deadline_ns = ?", (time.time_ns() - int(ago_s * SECOND_NS),))
    assert isinstance(ask_soon(office.requests, NETWORK), Allowed) is counts


def test_a_row_that_was_tampered_with_is_no_answer(office: Office, store: Store) -> None:
    other = NETWORK.replace(argv=(b"true",))
    ask_soon(office.requests, other)
    answer_all(office.requests)
    store.transaction.change("UPDATE requests SET request = ?", (to_form(NETWORK),))
    assert isinstance(ask_soon(office.requests, NETWORK), Denied), "the digest is of what was shown"
    store.transaction.change("UPDATE requests SET state = 'allowed', scope = 'once' WHERE state = 'waiting'")
    assert isinstance(ask_soon(office.requests, NETWORK), Denied), "an answer names what it is for"


def test_a_broker_counts_what_waits_as_one_question_and_takes_the_answer(office: Office) -> None:
    def obtain() -> object:
        broker = office.broker(approver=RetryQueue(office.requests, wait_s=0), now_ns=time.time_ns, wait_s=20)
        return broker.obtain(NETWORK)

    for _time in range(12):
        with pytest.raises(DeniedError) as caught:
            obtain()
        assert "unspill approve" in caught.value.reason, "twelve times the same is not twelve questions"
    answer_all(office.requests)
    obtain()
    with pytest.raises(DeniedError, match="network access"):
        obtain()
    allowed = [event for event in office.recorded() if "queue (ann)" in str(event)]
    assert len(allowed) == 1, "what was allowed is on record, once"
