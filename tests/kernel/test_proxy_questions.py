# SPDX-License-Identifier: Apache-2.0
"""A proxy that may ask: who waits, who is asked, how often, and what holds afterwards. Real sockets on loopback."""

import threading
import time
from collections.abc import Callable

import pytest

from tests.unit.network.scene import Names, Scene, echo, scene, server, wait_until
from unspill.network.proxy import Questions
from unspill.policy.hosts import Destination

pytestmark = pytest.mark.kernel


class Person:
    """Answers when told to; remembers what was asked."""

    def __init__(self, answer: Callable[[str], str] = lambda host: "") -> None:
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self._answer = answer

    def __call__(self, host: str) -> str:
        self.asked.append(host)
        assert self.may_answer.wait(20)
        return self._answer(host)


def willing(answer: Callable[[str], str] = lambda host: "") -> Person:
    person = Person(answer)
    person.may_answer.set()
    return person


def statuses(stage: Scene, *authorities: str) -> list[bytes]:
    """Ask for tunnels at the same time and return the status lines, each in its place."""
    found = [b""] * len(authorities)

    def get(number: int) -> None:
        found[number] = stage.status(authorities[number])

    threads = [threading.Thread(target=get, args=(number,)) for number in range(len(authorities))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_a_host_that_no_rule_covers_is_asked_for_and_reached_when_it_is_allowed() -> None:
    person = willing()
    with server(echo) as port, scene([], servers={443: port}, ask=person) as stage:
        client, status = stage.tunnel("example.org:443")
        client.close()
    assert status == b"HTTP/1.1 200 Connection established"
    assert person.asked == ["example.org"]
    assert stage.names.asked == ["example.org"]
    assert stage.proxy.denials() == ()


def test_without_somebody_to_ask_the_same_host_is_refused() -> None:
    with server(echo) as port, scene([], servers={443: port}) as stage:
        assert stage.status("example.org:443").startswith(b"HTTP/1.1 403 Host not allowed")
    assert stage.names.asked == []


def test_no_name_is_looked_up_before_it_is_allowed() -> None:
    person = Person(lambda host: "it was not allowed")
    with scene([], ask=person) as stage:
        thread = threading.Thread(target=stage.status, args=("secret.example.org:443",))
        thread.start()
        wait_until(lambda: bool(person.asked))
        time.sleep(0.1)
        assert (stage.names.asked, stage.doorman.asked) == ([], [])
        person.may_answer.set()
        thread.join()
    assert (stage.names.asked, stage.doorman.asked) == ([], [])


def test_a_refusal_is_told_with_its_reason_and_is_not_asked_about_again() -> None:
    person = willing(lambda host: "it was not allowed (no)")
    with scene([], ask=person) as stage:
        for _ in range(5):
            answer = stage.exchange(b"GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 403 Host not allowed")
            assert b"it was not allowed (no)" in answer
    assert person.asked == ["example.org"]
    assert [(denial.host, denial.rule) for denial in stage.proxy.denials()] == [("example.org", "host")]


def test_what_was_allowed_holds_for_both_ports_of_the_web_and_no_other() -> None:
    person = willing(lambda host: "no" if ":" in host else "")
    with server(echo) as port, scene([], servers={80: port, 443: port, 22: port}, ask=person) as stage:
        assert stage.status("example.org:443").startswith(b"HTTP/1.1 200")
        assert stage.status("example.org:80").startswith(b"HTTP/1.1 200")
        assert stage.status("example.org:22").startswith(b"HTTP/1.1 403")
        assert stage.status("www.example.org:443").startswith(b"HTTP/1.1 200")
    assert person.asked == ["example.org", "example.org:22", "www.example.org"]


def test_many_clients_of_one_host_wait_for_one_question() -> None:
    person = Person()
    with server(echo) as port, scene([], servers={443: port}, ask=person) as stage:
        threading.Timer(0.3, person.may_answer.set).start()
        found = statuses(stage, *["example.org:443"] * 20)
    assert {status[:12] for status in found} == {b"HTTP/1.1 200"}
    assert person.asked == ["example.org"]


def test_while_somebody_thinks_all_others_go_on() -> None:
    person = Person()
    with server(echo) as port, scene(["example.net"], servers={443: port}, ask=person) as stage:
        waiting = threading.Thread(target=stage.status, args=("example.org:443",))
        waiting.start()
        wait_until(lambda: bool(person.asked))
        assert stage.status("example.net:443").startswith(b"HTTP/1.1 200")
        assert waiting.is_alive()
        person.may_answer.set()
        waiting.join()


@pytest.mark.parametrize(
    "authority", ["127.0.0.1:443", "169.254.169.254:80", "[::1]:80", "10.0.0.1:443", "localhost:80"]
)
def test_nobody_is_asked_about_what_nothing_allows(authority: str) -> None:
    person = willing()
    with server(echo) as port, scene([], servers={443: port, 80: port}, ask=person) as stage:
        assert stage.status(authority).startswith((b"HTTP/1.1 403", b"HTTP/1.1 400"))
    assert (person.asked, stage.doorman.asked) == ([], [])


def test_an_allowed_name_with_a_private_address_is_refused_all_the_same() -> None:
    person = willing()
    with scene([], ask=person, names=Names({"inward.example.org": ["10.0.0.1"]})) as stage:
        assert stage.status("inward.example.org:443").startswith(b"HTTP/1.1 403 Address not allowed")
    assert (person.asked, stage.doorman.asked) == (["inward.example.org"], [])


def test_at_most_eight_questions_wait_at_once() -> None:
    person = Person()
    with server(echo) as port, scene([], servers={443: port}, ask=person) as stage:
        wanted = [f"host{number}.example.org:443" for number in range(30)]
        threading.Timer(0.5, person.may_answer.set).start()
        found = statuses(stage, *wanted)
    assert len(person.asked) == 8
    assert sorted(status[:12] for status in found) == [b"HTTP/1.1 200"] * 8 + [b"HTTP/1.1 403"] * 22


def test_a_question_that_fails_is_a_refusal() -> None:
    def broken(host: str) -> str:
        raise RuntimeError("not for a command to read")

    with scene([], ask=broken) as stage:
        answer = stage.exchange(b"GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n")
    assert b"the question failed: RuntimeError" in answer
    assert b"not for a command" not in answer


def test_a_proxy_closes_at_once_although_somebody_still_thinks() -> None:
    person = Person()
    with scene([], ask=person) as stage:
        client = stage.client()
        client.sendall(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n")
        wait_until(lambda: bool(person.asked))
        begun = time.monotonic()
        stage.proxy.close()
        assert time.monotonic() - begun < 2
        assert client.recv(100) == b""
        client.close()
    person.may_answer.set()
    assert stage.names.asked == []


def test_the_time_of_questions_that_overlap_counts_once() -> None:
    person = Person()
    questions = Questions(person, lambda: None)
    assert questions.waited_s() == 0.0
    for name in ("a.example.org", "b.example.org"):
        questions.put(object(), Destination(host=name, port=443))
    time.sleep(0.3)
    assert 0.25 < questions.waited_s() < 2
    person.may_answer.set()
    answered: list[object] = []
    wait_until(lambda: len(answered.extend(questions.answers()) or answered) == 2)  # type: ignore[func-returns-value]
    total = questions.waited_s()
    time.sleep(0.2)
    assert questions.waited_s() == total < 2


def test_the_time_of_a_client_that_has_gone_does_not_count() -> None:
    person = Person()
    with scene([], ask=person) as stage:
        client = stage.client()
        client.sendall(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n")
        wait_until(lambda: bool(person.asked))
        client.close()
        wait_until(lambda: stage.proxy._loop.questions is not None and stage.proxy._loop.questions._since is None)
        total = stage.proxy.waited_s()
        time.sleep(0.3)
        assert stage.proxy.waited_s() == total
        person.may_answer.set()
    assert stage.names.asked == []


def test_a_client_that_goes_on_talking_while_it_waits_is_heard_in_the_end() -> None:
    person = Person()
    with server(echo) as port, scene([], servers={9: port}, ask=person) as stage, stage.client() as client:
        client.sendall(b"CONNECT example.org:9 HTTP/1.1\r\nHost: example.org:9\r\n\r\n")
        wait_until(lambda: bool(person.asked))
        client.sendall(b"early words")
        time.sleep(0.2)
        assert stage.proxy.waited_s() > 0.1
        person.may_answer.set()
        received = b""
        while b"early words" not in received:
            received += client.recv(100)
    assert received == b"HTTP/1.1 200 Connection established\r\n\r\nearly words"


def test_no_more_time_is_given_back_than_one_persons_patience() -> None:
    questions = Questions(Person(), lambda: None, most_s=0.2)
    questions.put(object(), Destination(host="example.org", port=443))
    time.sleep(0.4)
    assert questions.waited_s() == 0.2
