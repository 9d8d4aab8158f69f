# SPDX-License-Identifier: Apache-2.0
"""A person is not worn out: equal questions and many questions come to a pause, which ends by itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.permissions.conftest import Office
from tests.unit.permissions.given import FOR_A_COMMAND, ONE_OF_EACH, PROJECT
from unspill.errors import DeniedError
from unspill.model.permission import Denied, NetworkForCommand, Question
from unspill.permissions.approvers import Approver, DenyAll, Queue, Terminal
from unspill.permissions.broker import RateLimit, find_pause
from unspill.store.permissions import Recent

if TYPE_CHECKING:
    from unspill.store.permissions import RequestState

SECOND_NS = 1_000_000_000
NOW = 10_000 * SECOND_NS
LIMIT = RateLimit(equal=3, equal_s=600, many=10, many_s=300)


def recent(*ages_s: float, key: str = "k", state: RequestState = "denied") -> list[Recent]:
    return [Recent(key=key, state=state, asked_ns=NOW - int(age_s * SECOND_NS)) for age_s in ages_s]


@pytest.mark.parametrize(
    ("asked", "wait_s"),
    [
        ([], None),
        (recent(10, 20), None),
        (recent(10, 20, 100), 500),
        (recent(10, 20, 100, 599), 500),
        (recent(10, 20, 601), None),
        (recent(10, 20) + recent(30, key="other"), None),
        (recent(*range(9), state="allowed"), None),
        (recent(*range(10), state="allowed"), 291),
        (recent(*range(9), key="other") + recent(200, state="asked"), 100),
        (recent(*range(8), key="other") + recent(299), None),
        (recent(*range(9), key="other") + recent(301), None),
        (recent(1, 2, 3, state="expired"), 597),
        (recent(1, 2, 3, state="waiting"), 597),
    ],
)
def test_a_pause_begins_with_too_many_and_ends_when_the_window_has_passed(
    asked: list[Recent], wait_s: float | None
) -> None:
    pause = find_pause(asked, "k", NOW, LIMIT)
    assert (None if pause is None else round(pause.wait_s)) == wait_s
    assert pause is None or pause.remedy.startswith("Wait ")


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 700), st.booleans(), st.sampled_from(["allowed", "denied"])), max_size=15))
def test_a_pause_is_over_when_it_says(asked: list[tuple[int, bool, RequestState]]) -> None:
    rows = [row for age, is_same, state in asked for row in recent(age, key="k" if is_same else "other", state=state)]
    pause = find_pause(rows, "k", NOW, LIMIT)
    if pause is not None:
        after = NOW + int(pause.wait_s * SECOND_NS) + 1
        following = find_pause(rows, "k", after, LIMIT)
        # The other window may still be full
        assert following is None or following.reason.split()[1] != pause.reason.split()[1]


def test_a_clock_that_was_set_back_does_not_pause_for_ever() -> None:
    pause = find_pause(recent(-90_000, -90_001, -90_002), "k", NOW, LIMIT)
    assert pause is not None
    assert pause.wait_s <= 600


def test_who_refused_three_times_is_not_asked_again_until_the_pause_is_over(office: Office) -> None:
    broker = office.broker(False)
    request = ONE_OF_EACH[0]
    for _ in range(3):
        with pytest.raises(DeniedError):
            broker.obtain(request)
    with pytest.raises(DeniedError, match="Permission denied") as caught:
        broker.obtain(request)
    assert len(office.asked) == 3
    assert "Wait 10 min" in caught.value.remedy
    assert office.recorded()[-1]["rule"] == "pause: the same was asked 3 times and not allowed"
    office.pass_time(601)
    with pytest.raises(DeniedError):
        broker.obtain(request)
    assert len(office.asked) == 4


def test_the_same_from_another_run_or_sandbox_is_the_same_question(office: Office) -> None:
    for number in range(5):
        with pytest.raises(DeniedError):
            office.broker(False).obtain(ONE_OF_EACH[0].replace(run=f"{number:016x}", sandbox=f"{number:016x}"))
    assert len(office.asked) == 3


def test_a_command_that_is_allowed_each_time_is_asked_up_to_the_limit_of_all_questions(office: Office) -> None:
    broker = office.broker(True)
    for _ in range(10):
        broker.obtain(ONE_OF_EACH[0])
    with pytest.raises(DeniedError):
        broker.obtain(ONE_OF_EACH[0])
    assert len(office.asked) == 10


def test_changing_a_byte_each_time_does_not_get_round_the_pause(office: Office) -> None:
    for number in range(30):
        with pytest.raises(DeniedError):
            office.broker(False).obtain(NetworkForCommand(**FOR_A_COMMAND | {"argv": (b"x", b" " * number)}))
    assert len(office.asked) == 10


def test_one_project_does_not_silence_another(office: Office) -> None:
    for number in range(30):
        with pytest.raises(DeniedError):
            office.broker(False).obtain(NetworkForCommand(**FOR_A_COMMAND | {"argv": (b"x", b"%d" % number)}))
    office.broker(True).obtain(NetworkForCommand(**FOR_A_COMMAND | {"project": PROJECT + b"2"}))


def test_a_hundred_at_once_are_counted_one_after_the_other(office: Office) -> None:
    broker = office.broker(False)

    def ask(number: int) -> None:
        with pytest.raises(DeniedError):
            broker.obtain(NetworkForCommand(**FOR_A_COMMAND | {"argv": (b"x", b"%d" % number)}))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(40)))
    assert len(office.asked) == 10


def test_without_the_limit_every_question_is_asked(office: Office) -> None:
    broker = office.broker(False, limit=RateLimit(equal=1000, many=1000))
    for _ in range(30):
        with pytest.raises(DeniedError):
            broker.obtain(ONE_OF_EACH[0])
    assert len(office.asked) == 30


UNSEEN: dict[str, Approver] = {
    "nobody answers": DenyAll(),
    "there is no terminal": Terminal(path=b"/there/is/no/terminal"),
}


def _deny_times(office: Office, times: int, approver: Approver) -> None:
    broker = office.broker(approver=approver, wait_s=0.01)
    for _ in range(times):
        with pytest.raises(DeniedError):
            broker.obtain(ONE_OF_EACH[0])


@pytest.mark.parametrize("approver", UNSEEN.values(), ids=UNSEEN.keys())
def test_a_question_that_nobody_saw_does_not_count(office: Office, approver: Approver) -> None:
    _deny_times(office, 12, approver)
    assert office.requests.recent(PROJECT, 0) == ()
    assert [event["kind"] for event in office.recorded()] == ["request", "answer"] * 12
    office.broker(True).obtain(ONE_OF_EACH[0])
    assert len(office.asked) == 1


def test_a_question_that_waited_in_the_queue_counts_though_nobody_answered(office: Office) -> None:
    _deny_times(office, 3, Queue(office.requests))
    with pytest.raises(DeniedError) as caught:
        office.broker(True).obtain(ONE_OF_EACH[0])
    assert "asked 3 times" in caught.value.remedy
    assert office.asked == []


def test_what_waited_in_the_queue_counts_even_if_its_approver_says_that_nobody_saw_it(office: Office) -> None:
    class Forgetful(Queue):
        def ask(self, question: Question) -> Denied:
            super().ask(question)
            return Denied(digest=question.digest, by="x", is_unseen=True)

    _deny_times(office, 3, Forgetful(office.requests))
    assert [asked.state for asked in office.requests.recent(PROJECT, 0)] == ["expired"] * 3
