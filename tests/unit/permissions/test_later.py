# SPDX-License-Identifier: Apache-2.0
"""Who can not wait for an answer asks again, and takes the answer that was given to the same meanwhile, once."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.permissions.conftest import Office
from tests.unit.permissions.given import FOR_A_COMMAND, ONE_OF_EACH, REQUESTS
from unspill.errors import DeniedError
from unspill.model.permission import Allowed, Denied, Egress, NetworkForCommand, Question
from unspill.permissions.approvers import KEPT_S, SECOND_NS, Queue, RetryQueue, answer_question, open_questions
from unspill.permissions.question import make_question
from unspill.store.db import Store
from unspill.store.permissions import to_form

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.model.permission import Answer, Request
    from unspill.model.policy import Scope
    from unspill.store.permissions import RequestTable

NETWORK = NetworkForCommand(**FOR_A_COMMAND)
EGRESS = Egress(**FOR_A_COMMAND, hosts=("example.org",))


def question_for(request: Request, wait_s: float = 30.0) -> Question:
    return make_question(request, request.scopes, wait_s=wait_s)


def ask(requests: RequestTable, request: Request, patience_s: float = 0.0) -> Answer:
    return RetryQueue(requests, wait_s=patience_s).ask(question_for(request))


def answer_all(requests: RequestTable, scope: Scope | None = "once", reason: str = "") -> list[Question]:
    found = open_questions(requests)
    for question in found:
        answer_question(requests, question, scope=scope, by="ann", reason=reason)
    return list(found)


@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=lambda one: one.kind)
def test_an_answer_is_found_by_who_asks_the_same_again_and_used_once(office: Office, request_: Request) -> None:
    first = ask(office.requests, request_)
    assert isinstance(first, Denied)
    (waiting,) = answer_all(office.requests)
    assert f"`unspill approve {waiting.id}`" in first.reason
    again = question_for(request_.replace(run="9" * 16))
    assert RetryQueue(office.requests, wait_s=0).ask(again) == Allowed(
        digest=again.digest, by="queue (ann)", scope="once"
    ), "the command begins anew, so the run is another"
    assert isinstance(ask(office.requests, request_), Denied)
    assert [question.id for question in open_questions(office.requests)] != [waiting.id]


def test_the_same_waits_only_once_however_often_it_is_asked(office: Office) -> None:
    told = {ask(office.requests, NETWORK).reason for _time in range(20)}  # type: ignore[union-attr]
    assert len(told) == len(open_questions(office.requests)) == 1


def test_a_denial_counts_too_and_says_why(office: Office) -> None:
    ask(office.requests, NETWORK)
    answer_all(office.requests, None, "not today")
    for _time in range(2):
        answer = ask(office.requests, NETWORK)
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
    ask(requests, answered)
    answer_all(requests)
    is_same = type(asked) is type(answered) and asked.replace(run="") == answered.replace(run="")
    assert isinstance(ask(requests, asked), Allowed) is is_same


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
    ask(office.requests, NETWORK)
    answer_all(office.requests)
    assert isinstance(ask(office.requests, NETWORK.replace(**change)), Denied)
    assert isinstance(ask(office.requests, NETWORK), Allowed), "it is still there for what it was given for"


def test_of_many_who_come_at_once_one_takes_the_answer(office: Office) -> None:
    ask(office.requests, NETWORK)
    answer_all(office.requests)
    answers: list[Answer] = []
    threads = [threading.Thread(target=lambda: answers.append(ask(office.requests, NETWORK))) for _ in range(8)]
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
    assert isinstance(ask(office.requests, NETWORK), Denied)


def test_an_answer_within_its_patience_is_returned_at_once(office: Office) -> None:
    timer = threading.Timer(0.2, answer_all, (office.requests,))
    timer.start()
    began = time.monotonic()
    assert isinstance(ask(office.requests, NETWORK, patience_s=20), Allowed)
    assert time.monotonic() - began < 10
    timer.join()


@pytest.mark.parametrize(("ago_s", "counts"), [(KEPT_S - 60, True), (KEPT_S + 1, False)])
def test_an_answer_does_not_lie_about_for_ever(office: Office, store: Store, ago_s: float, counts: bool) -> None:
    ask(office.requests, NETWORK)
    answer_all(office.requests)
    store.transaction.change("UPDATE requests SET deadline_ns = ?", (time.time_ns() - int(ago_s * SECOND_NS),))
    assert isinstance(ask(office.requests, NETWORK), Allowed) is counts


def test_a_row_that_was_tampered_with_is_no_answer(office: Office, store: Store) -> None:
    other = NETWORK.replace(argv=(b"true",))
    ask(office.requests, other)
    answer_all(office.requests)
    store.transaction.change("UPDATE requests SET request = ?", (to_form(NETWORK),))
    assert isinstance(ask(office.requests, NETWORK), Denied), "the digest is of what was shown"
    store.transaction.change("UPDATE requests SET state = 'allowed', scope = 'once' WHERE state = 'waiting'")
    assert isinstance(ask(office.requests, NETWORK), Denied), "an answer names what it is for"


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
