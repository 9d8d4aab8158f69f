# SPDX-License-Identifier: Apache-2.0
"""The broker: what a request becomes, what is remembered and recorded of it, and how often a person may be asked."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.permissions.conftest import Office
from tests.unit.permissions.given import FOR_A_COMMAND, ONCE_ONLY, ONE_OF_EACH, PROJECT, REMEMBERED, name_of
from unspill.errors import DeniedError, RootRefused, StoreError, UsageError
from unspill.model.permission import (
    UNKNOWN_PROGRAM,
    Allowed,
    Denied,
    Egress,
    HeldPath,
    NetworkForCommand,
    Question,
    Request,
    WritableRoot,
)
from unspill.model.policy import Policy, Rules
from unspill.permissions.approvers import Approver, DenyAll, Queue, TerminalApprover
from unspill.permissions.broker import find_pause
from unspill.store.permissions import Recent

if TYPE_CHECKING:
    from unspill.model.policy import Scope
    from unspill.store.permissions import RequestState

ALL = Policy(permissions=Rules(unsandboxed="ask", as_root="ask"))
NETWORK = NetworkForCommand(**FOR_A_COMMAND)
EGRESS = Egress(**FOR_A_COMMAND, hosts=("example.org",))
DAY_S = 86_400


def test_a_denied_command_is_told_so_in_these_words(office: Office) -> None:
    with pytest.raises(DeniedError) as caught:
        office.broker(False).obtain(NETWORK)
    assert f"ERROR: {caught.value}" == "ERROR: Permission denied: Run command with network access: git fetch?"
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("request_", ONCE_ONLY, ids=name_of)
def test_what_is_asked_every_time_is_asked_again_after_it_was_allowed(office: Office, request_: Request) -> None:
    broker = office.broker(True, policy=ALL)
    for count in (1, 2, 3):
        broker.obtain(request_)
        assert len(office.asked) == count
    assert office.grants.all() == ()


@pytest.mark.parametrize("request_", ONCE_ONLY, ids=name_of)
@pytest.mark.parametrize("scope", ["run", "sandbox", "always"])
def test_no_approver_can_make_it_remembered(office: Office, request_: Request, scope: Scope) -> None:
    def forge(question: Question) -> Allowed:
        return Allowed(digest=question.digest, by="forger", scope=scope)

    with pytest.raises(DeniedError):
        office.broker(forge, policy=ALL).obtain(request_)
    assert office.grants.all() == ()


@pytest.mark.parametrize("request_", REMEMBERED, ids=name_of)
def test_an_answer_is_remembered_for_as_long_as_it_said(office: Office, request_: Request) -> None:
    broker = office.broker("sandbox", policy=ALL)
    broker.obtain(request_)
    permit = broker.obtain(request_.replace(run="9" * 16))
    assert permit.grant == office.grants.all()[0].id
    assert len(office.asked) == 1
    broker.obtain(request_.replace(sandbox="9" * 16))
    assert len(office.asked) == 2


def test_a_grant_lasts_thirty_days_unless_configured_otherwise(office: Office) -> None:
    broker = office.broker("always")
    broker.obtain(EGRESS)
    office.pass_time(30 * DAY_S - 1)
    broker.obtain(EGRESS)
    assert len(office.asked) == 1
    office.pass_time(1)
    broker.obtain(EGRESS)
    assert len(office.asked) == 2
    short = office.broker("always", policy=Policy(permissions=Rules(grant_days=1)))
    short.obtain(EGRESS.replace(hosts=("example.com",)))
    office.pass_time(DAY_S)
    short.obtain(EGRESS.replace(hosts=("example.com",)))
    assert len(office.asked) == 4


def test_hosts_that_are_allowed_for_a_project_are_so_for_each_of_its_commands(office: Office) -> None:
    broker = office.broker("project")
    broker.obtain(EGRESS.replace(hosts=("example.org", "example.com:8443")))
    others = {"argv": (b"other",), "cwd": PROJECT, "sandbox": "9" * 16, "script": UNKNOWN_PROGRAM, "names": ("A",)}
    for hosts in (("example.org",), ("example.com:8443",), ("example.com:8443", "example.org")):
        broker.obtain(EGRESS.replace(hosts=hosts, **others))
    assert len(office.asked) == 1
    assert [grant.uses for grant in office.grants.all()] == [3, 3]
    assert {grant.answer for grant in office.grants.all()} == {"project"}
    # Not for more: another host, port or project, one host of two, or something else than hosts
    for other in (
        EGRESS.replace(hosts=("a.example.org",)),
        EGRESS.replace(hosts=("example.com",)),
        EGRESS.replace(hosts=("example.org", "example.net")),
        EGRESS.replace(project=b"/home/ann/other", cwd=b"/home/ann/other"),
        NETWORK,
    ):
        asked = len(office.asked)
        with pytest.raises(DeniedError):
            office.broker(False).obtain(other)
        assert len(office.asked) == asked + 1


def test_hosts_for_a_project_expire_and_are_revoked_one_by_one(office: Office) -> None:
    broker = office.broker("project")
    both = EGRESS.replace(hosts=("example.org", "example.com"))
    broker.obtain(both)
    (of_com,) = [grant.id for grant in office.grants.all() if getattr(grant.request, "hosts", ()) == ("example.com",)]
    assert office.grants.revoke(of_com)
    broker.obtain(EGRESS)
    assert len(office.asked) == 1
    broker.obtain(both)
    assert len(office.asked) == 2
    office.pass_time(30 * DAY_S)
    broker.obtain(EGRESS)
    assert len(office.asked) == 3


def test_where_answers_may_not_last_hosts_are_not_offered_for_the_project(office: Office) -> None:
    office.broker("project").obtain(EGRESS)
    short = office.broker(True, policy=Policy(permissions=Rules(longest="sandbox")))
    short.obtain(EGRESS)
    assert "project" not in office.asked[-1].scopes
    assert "project" not in WritableRoot(**FOR_A_COMMAND, path=b"/srv").scopes
    assert len(office.asked) == 2


def test_the_use_of_a_grant_is_remembered_and_recorded(office: Office) -> None:
    broker = office.broker("always")
    broker.obtain(EGRESS)
    office.pass_time(5)
    broker.obtain(EGRESS)
    (grant,) = office.grants.all()
    assert (grant.uses, grant.last_used_ns) == (2, office.now_ns)
    assert office.recorded()[-1]["rule"] == f"grant {grant.id}"


def test_a_revoked_grant_is_asked_about_again(office: Office) -> None:
    broker = office.broker("always")
    broker.obtain(EGRESS)
    assert office.grants.revoke(office.grants.all()[0].id)
    broker.obtain(EGRESS)
    assert len(office.asked) == 2


def test_a_held_path_with_other_content_is_asked_about_again(office: Office) -> None:
    broker = office.broker("always")
    request = HeldPath(project=PROJECT, root=PROJECT, path=b".envrc", digest="a" * 64)
    broker.obtain(request)
    broker.obtain(request)
    assert len(office.asked) == 1
    broker.obtain(request.replace(digest="b" * 64))
    assert len(office.asked) == 2


def test_a_once_is_good_for_one_use_of_the_very_request(office: Office) -> None:
    permit = office.broker(True).obtain(NETWORK)
    with pytest.raises(DeniedError):
        permit.take(NETWORK.replace(argv=(b"rm",)))
    permit.take(NETWORK)
    with pytest.raises(DeniedError):
        permit.take(NETWORK)


@pytest.mark.parametrize(
    "answer",
    [False, "no", "", None, 1, "always!", "Once", object(), Denied(digest="", by="x"), (True,)],
    ids=lambda answer: "object" if type(answer) is object else repr(answer),
)
def test_whatever_is_not_clearly_a_yes_is_a_no(office: Office, answer: Any) -> None:
    with pytest.raises(DeniedError):
        office.broker(lambda _: answer).obtain(NETWORK)


def test_an_answer_to_another_question_is_none(office: Office) -> None:
    old: list[Question] = []

    def replay(question: Question) -> Allowed:
        old.append(question)
        return Allowed(digest=old[0].digest, by="x")

    broker = office.broker(replay)
    broker.obtain(NETWORK)
    with pytest.raises(DeniedError):
        broker.obtain(NETWORK)


def test_a_late_answer_of_a_callback_is_none(office: Office) -> None:
    def slow(_: Question) -> bool:
        time.sleep(0.05)
        return True

    with pytest.raises(DeniedError) as caught:
        office.broker(slow, wait_s=0.01).obtain(NETWORK)
    assert "too late" in caught.value.remedy
    office.broker(slow, wait_s=10).obtain(NETWORK)


def test_an_approver_that_fails_denies_and_keeps_its_secrets(office: Office) -> None:
    def fail(_: Question) -> bool:
        raise RuntimeError("token 1234")

    with pytest.raises(DeniedError) as caught:
        office.broker(fail).obtain(NETWORK)
    assert "1234" not in caught.value.remedy + str(caught.value)
    assert office.recorded()[-1]["answer"] == "denied"


def test_an_interrupted_question_is_recorded_as_denied(office: Office) -> None:
    def interrupt(_: Question) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        office.broker(interrupt).obtain(NETWORK)
    assert office.recorded()[-1]["reason"] == "the question was interrupted"
    assert office.requests.recent(PROJECT, 0)[0].state == "denied"


def test_nobody_is_asked_where_nobody_is(office: Office) -> None:
    with pytest.raises(DeniedError) as caught:
        office.broker(approver=DenyAll()).obtain(NETWORK)
    assert "unspill approve" in caught.value.remedy


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (NETWORK.replace(argv=()), UsageError),
        (WritableRoot(project=PROJECT, path=b"/"), RootRefused),
        (EGRESS.replace(hosts=("127.0.0.1",)), UsageError),
    ],
)
def test_everything_is_checked_before_a_person_is_asked(
    office: Office, request_: Request, error: type[Exception]
) -> None:
    with pytest.raises(error):
        office.broker(True).obtain(request_)
    assert office.asked == []


def test_what_the_policy_decides_needs_nobody(office: Office) -> None:
    policy = Policy(roots=(b"/srv/a",))
    permit = office.broker(False, policy=policy).obtain(WritableRoot(project=PROJECT, path=b"/srv/a"))
    assert permit.rule == "roots"
    with pytest.raises(DeniedError) as caught:
        office.broker(True, policy=Policy(permissions=Rules(network="deny"))).obtain(NETWORK)
    assert "permissions.network = deny" in caught.value.remedy
    assert office.asked == []


def test_requests_and_answers_are_recorded_in_order(office: Office) -> None:
    office.broker("always").obtain(EGRESS)
    with pytest.raises(DeniedError):
        office.broker(False).obtain(NETWORK)
    events = office.recorded()
    said = [(event["kind"], event.get("answer"), event.get("scope")) for event in events]
    assert said == [
        ("request", None, None),
        ("answer", "allowed", "always"),
        ("request", None, None),
        ("answer", "denied", None),
    ]
    assert [event["digest"] for event in events[::2]] == [question.digest for question in office.asked]


def test_what_cannot_be_recorded_is_not_allowed(office: Office) -> None:
    os.mkdir(office.directory + b"/lock")
    with pytest.raises(StoreError):
        office.broker(True).obtain(NETWORK)
    assert office.asked == []


def test_words_of_an_approver_cannot_move_the_cursor_of_who_reads_the_refusal(office: Office) -> None:
    def rude(question: Question) -> Denied:
        return Denied(digest=question.digest, by="x", reason="\x1b[2J\r\nfine", remedy="\x1b[H")

    with pytest.raises(DeniedError) as caught:
        office.broker(rude).obtain(NETWORK)
    assert caught.value.remedy.isprintable()


def test_of_several_requests_none_is_asked_while_one_is_malformed_or_denied(office: Office) -> None:
    broker = office.broker(True, policy=Policy(permissions=Rules(network="deny")))
    with pytest.raises(DeniedError):
        broker.obtain_all((EGRESS, NETWORK))
    with pytest.raises(RootRefused):
        broker.obtain_all((EGRESS, WritableRoot(project=PROJECT, path=b"/")))
    assert office.asked == []


def test_of_several_requests_all_are_obtained_in_order(office: Office) -> None:
    requests: tuple[Request, ...] = (EGRESS, NETWORK)
    permits = office.broker(True).obtain_all(requests)
    assert [question.request for question in office.asked] == list(requests)
    for permit, request in zip(permits, requests, strict=True):
        permit.take(request)


SECOND_NS = 1_000_000_000
NOW = 10_000 * SECOND_NS
RULES = Rules(max_denials=10, max_same_denials=3, denial_window_s=600)


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
        (recent(*range(30), state="allowed"), None),
        (recent(*range(9), key="other") + recent(200, state="asked"), 400),
        (recent(*range(9), key="other") + recent(*range(9), state="allowed"), None),
        (recent(*range(8), key="other") + recent(599), None),
        (recent(*range(9), key="other") + recent(601), None),
        (recent(1, 2, 3, state="expired"), 597),
        (recent(1, 2, 3, state="waiting"), None),
        (recent(*range(10), state="waiting"), 591),
    ],
)
def test_a_pause_begins_with_too_many_and_ends_when_the_window_has_passed(
    asked: list[Recent], wait_s: float | None
) -> None:
    pause = find_pause(asked, "k", NOW, RULES)
    assert (None if pause is None else round(pause.wait_s)) == wait_s
    assert pause is None or pause.remedy.startswith("Wait ")


@settings(max_examples=300)
@given(st.lists(st.tuples(st.integers(0, 700), st.booleans(), st.sampled_from(["allowed", "denied"])), max_size=15))
def test_a_pause_is_over_when_it_says(asked: list[tuple[int, bool, RequestState]]) -> None:
    rows = [row for age, is_same, state in asked for row in recent(age, key="k" if is_same else "other", state=state)]
    pause = find_pause(rows, "k", NOW, RULES)
    if pause is not None:
        after = NOW + int(pause.wait_s * SECOND_NS) + 1
        following = find_pause(rows, "k", after, RULES)
        # The other limit may still be reached
        assert following is None or following.setting != pause.setting


def test_a_clock_that_was_set_back_does_not_pause_for_ever() -> None:
    pause = find_pause(recent(-90_000, -90_001, -90_002), "k", NOW, RULES)
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
    assert office.recorded()[-1]["rule"] == "pause: the same was denied 3 times"
    office.pass_time(601)
    with pytest.raises(DeniedError):
        broker.obtain(request)
    assert len(office.asked) == 4


def test_the_same_from_another_run_or_sandbox_is_the_same_question(office: Office) -> None:
    for number in range(5):
        with pytest.raises(DeniedError):
            office.broker(False).obtain(ONE_OF_EACH[0].replace(run=f"{number:016x}", sandbox=f"{number:016x}"))
    assert len(office.asked) == 3


def test_a_person_who_allows_everything_is_asked_as_often_as_needed(office: Office) -> None:
    broker = office.broker(True)
    for _ in range(30):
        broker.obtain(ONE_OF_EACH[0])
    assert len(office.asked) == 30
    with pytest.raises(DeniedError):
        office.broker(False).obtain(ONE_OF_EACH[0])
    broker.obtain(ONE_OF_EACH[0])


LIMITS = {
    "of all": ({"max_denials": 2}, 2),
    "of the same": ({"max_same_denials": 1}, 1),
    "of the time": ({"denial_window_s": 30.0}, 6),
    "by default": ({}, 3),
}


@pytest.mark.parametrize(("rules", "asked"), LIMITS.values(), ids=LIMITS.keys())
def test_how_often_one_may_say_no_is_a_setting(office: Office, rules: dict[str, Any], asked: int) -> None:
    broker = office.broker(False, policy=Policy(permissions=Rules(**rules)))
    for _ in range(6):
        with pytest.raises(DeniedError):
            broker.obtain(ONE_OF_EACH[0])
        office.pass_time(20)
    assert len(office.asked) == asked


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
    rules = Rules(max_denials=1000, max_same_denials=1000)
    broker = office.broker(False, policy=Policy(permissions=rules))
    for _ in range(30):
        with pytest.raises(DeniedError):
            broker.obtain(ONE_OF_EACH[0])
    assert len(office.asked) == 30


UNSEEN: dict[str, Approver] = {
    "nobody answers": DenyAll(),
    "there is no terminal": TerminalApprover(path=b"/there/is/no/terminal"),
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
    assert "denied 3 times" in caught.value.remedy
    assert office.asked == []


def test_what_waited_in_the_queue_counts_even_if_its_approver_says_that_nobody_saw_it(office: Office) -> None:
    class Forgetful(Queue):
        def ask(self, question: Question) -> Denied:
            super().ask(question)
            return Denied(digest=question.digest, by="x", is_unseen=True)

    _deny_times(office, 3, Forgetful(office.requests))
    assert [asked.state for asked in office.requests.recent(PROJECT, 0)] == ["expired"] * 3
