# SPDX-License-Identifier: Apache-2.0
"""Answers of a resolver: one that is not public refuses all; nobody waits for a slow one."""

import os
import select
import threading
import time

import pytest

from unspill.network.resolve import AddressRules, Endpoint, Lookups, system_resolver
from unspill.policy.hosts import Refused, pack_address

PUBLIC, OTHER, PRIVATE = "93.184.215.14", "2606:4700:4700::1111", "10.0.0.1"


def test_all_public_answers_are_tried_in_their_order_and_once() -> None:
    packed = AddressRules().check_answers([OTHER, PUBLIC, OTHER], 443)
    assert packed == (pack_address(OTHER), pack_address(PUBLIC))


@pytest.mark.parametrize(
    "answers",
    [
        [PRIVATE],
        [PUBLIC, PRIVATE],
        [PRIVATE, PUBLIC],
        [PUBLIC] * 20 + [PRIVATE],
        [PUBLIC, "::1"],
        [PUBLIC, "::ffff:10.0.0.1"],
        [PUBLIC, "64:ff9b::a9fe:a9fe"],
        [PUBLIC, "fe80::1%eth0"],
        [PUBLIC, "not an address"],
        [PUBLIC, ""],
        [PUBLIC, "127.1"],
        [PUBLIC, "8.8.8.8\0"],
    ],
)
def test_one_answer_that_is_not_public_refuses_the_name(answers: list[str]) -> None:
    with pytest.raises(Refused) as caught:
        AddressRules().check_answers(answers, 443)
    assert caught.value.rule == "address"


def test_an_endpoint_is_one_address_and_one_port() -> None:
    rules = AddressRules(endpoints=frozenset((Endpoint(address=pack_address(PRIVATE), port=8443),)))
    rules.check(pack_address(PRIVATE), 8443)
    for address, port in ((PRIVATE, 443), ("10.0.0.2", 8443)):
        with pytest.raises(Refused):
            rules.check(pack_address(address), port)


def test_the_systems_resolver_is_given_bytes_that_it_can_not_change() -> None:
    assert system_resolver("127.0.0.1") == ["127.0.0.1"]
    with pytest.raises(OSError):
        system_resolver("")


def answers_of(lookups: Lookups, count: int) -> dict[object, object]:
    found: dict[object, object] = {}
    deadline = time.monotonic() + 10
    while len(found) < count and time.monotonic() < deadline:
        if select.select([lookups.wake], [], [], 0.1)[0]:
            os.eventfd_read(lookups.wake)
        found |= lookups.answers()
    return found


def test_every_question_is_answered_by_a_few_threads() -> None:
    seen = set()

    def resolver(host: str) -> list[str]:
        seen.add(threading.get_ident())
        if host == "none.example":
            raise OSError
        return [host]

    lookups = Lookups(resolver)
    for number in range(100):
        lookups.ask(number, "none.example" if number == 50 else f"{number}.example")
    found = answers_of(lookups, 100)
    lookups.close()
    assert found == {number: None if number == 50 else [f"{number}.example"] for number in range(100)}
    assert len(seen) <= 100


def test_a_resolver_that_hangs_blocks_neither_asking_nor_closing() -> None:
    release = threading.Event()
    running: list[str] = []

    def resolver(host: str) -> list[str]:
        running.append(host)
        release.wait(10)
        return []

    lookups = Lookups(resolver)
    started = time.monotonic()
    for number in range(100):
        lookups.ask(number, f"{number}.example")
    lookups.close()
    assert time.monotonic() - started < 2
    release.set()
    assert len(running) <= 8
