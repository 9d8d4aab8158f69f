# SPDX-License-Identifier: Apache-2.0
"""C10, D11, E4, E7: how a question is put to a person, and who may answer it, how often, for how long."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tests.attack.arena import Arena, python, shown_as_it_is, with_mounts
from tests.attack.techniques.office import DAY_NS, NOW_NS, Office, egress, network, readable
from tests.attack.techniques.record import Defence, Listed
from tests.kernel.terminal_person import Person, asking, visible
from unspill.model.permission import Allowed, Question
from unspill.model.policy import Policy, Rules
from unspill.permissions.approvers import DenyAll, Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unspill.model.permission import Request


LIST: Final = Listed()


@contextmanager
def person(**given: Any) -> Iterator[tuple[Person, Any]]:
    somebody = Person()
    try:
        if typed := given.pop("typed", ""):
            somebody.type(typed)
        with asking(somebody, **given) as program:
            yield somebody, program
    finally:
        somebody.hang_up()


def typed_ahead(wait_s: float, **given: Any) -> Callable[[Arena], object]:
    def attack(_arena: Arena) -> object:
        with person(typed="y\n", wait_s=wait_s, **given) as (_somebody, program):
            return program.verdict()[0] == "Allowed"

    return attack


def hidden(before: str, **given: Any) -> Callable[[Arena], object]:
    """Tell whether the person is asked without seeing what about."""

    def attack(_arena: Arena) -> object:
        with person(output=before, **given) as (somebody, program):
            program.answer("n\n")
            program.result()
            return "Run command with network access" not in visible(somebody.look())

    return attack


LIST.add_pair(
    "C10",
    "Have an answer typed before the question is asked",
    typed_ahead(1.0),
    "without throwing away what was typed before",
    typed_ahead(10.0, without=["drain"]),
    as_root="anybody",
)
for _what, _before in {"a title that does not end": "\x1b]0;", "concealed writing": "\x1b[8m"}.items():
    LIST.add_pair(
        "C10",
        f"Leave the terminal in a state that hides the question: {_what}",
        hidden(_before),
        "without clearing the state of the terminal",
        hidden(_before, without=["clear"]),
        as_root="anybody",
    )


def wiped(**given: Any) -> Callable[[Arena], object]:
    def attack(_arena: Arena) -> object:
        with person(text="\x1b[2Jtrue?", **given) as (somebody, program):
            program.answer("n\n")
            program.result()
            return "\x1b[2Jtrue?" in somebody.look()

    return attack


LIST.add_pair(
    "C10",
    "Bring a control sequence into the question itself",
    wiped(),
    "without replacing what can't be printed",
    wiped(without=["printable"]),
    as_root="anybody",
)


def replayed(first: Request, second: Request, scope: str) -> Callable[[Arena], object]:
    """Allow one request, and make another when nobody would allow it."""

    def attack(arena: Arena) -> object:
        office = Office(arena)
        assert office.obtains(first, office.saying(scope if scope != "once" else True))
        try:
            return office.obtains(second, DenyAll())
        finally:
            for grant in office.store.grants.all():
                office.store.grants.revoke(grant.id)

    return attack


KEPT: Final = "for a request that equals what is remembered"
for _tries, _first, _second, _scope in (
    ("Use an answer for one command with network a second time", network(), network(), "once"),
    ("Use an answer given once for hosts a second time", egress(), egress(), "once"),
    ("Use what was allowed after the program was changed", egress(script="a" * 64), egress(script="b" * 64), "sandbox"),
    ("Use what was allowed for one run in another", readable(), readable(run="3" * 16), "run"),
    ("Use a host that was allowed while one run went on in another", egress(), egress(run="3" * 16), "once"),
    ("Use what was allowed for one sandbox in another", egress(), egress(sandbox="3" * 16), "sandbox"),
):
    LIST.add_pair(
        "D11",
        _tries,
        replayed(_first, _second, _scope),
        KEPT,
        replayed(egress(), egress(), "sandbox"),
        as_root="anybody",
    )


def after_days(days: int) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        first = Office(arena, now_ns=lambda: NOW_NS)
        assert first.obtains(egress(), first.saying("always"))
        later = Office(arena, now_ns=lambda: NOW_NS + days * DAY_NS)
        return later.obtains(egress(), DenyAll())

    return attack


LIST.add_pair(
    "D11",
    "Use what was allowed after its time",
    after_days(31),
    "within its time",
    after_days(29),
    as_root="anybody",
)


def answered(make: Callable[[Question], Any], request: Request) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        office = Office(arena)
        return office.obtains(request, office.saying(make))

    return attack


def wider(question: Question) -> Allowed:
    return Allowed(digest=question.digest, by="forger", scope="always")


def of_another(_question: Question) -> Allowed:
    return Allowed(digest="ab" * 32, by="forger")


@contextmanager
def unchecked(arena: Arena) -> Iterator[None]:
    with arena.patch.context() as patch:
        patch.setattr("unspill.permissions.broker._checked", lambda _question, answer: answer)
        yield


CHECKED: Final = Defence("the look at what an answer is about", unchecked)
LIST.add(
    "E4",
    "Answer a question with the answer to another one",
    answered(of_another, network()),
    CHECKED,
    as_root="anybody",
)


def forged_scope(arena: Arena) -> object:
    office = Office(arena, policy=Policy(permissions=Rules(longest="run")))
    office.obtains(egress(), office.saying(wider))
    return [grant for grant in office.store.grants.all() if grant.scope == "always"]


LIST.add("E4", "Answer with a scope that was not offered", forged_scope, CHECKED, as_root="anybody")


def late(wait_s: float) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        office = Office(arena, wait_s=wait_s)

        def slow(_question: Question) -> bool:
            time.sleep(0.15)
            return True

        return office.obtains(network(), office.saying(slow))

    return attack


LIST.add_pair("E4", "Answer when the time for it is over", late(0.05), "within the time", late(5.0), as_root="anybody")

APPROVE: Final = """
import sqlite3
deadline = time.monotonic() + 1.0
while time.monotonic() < deadline:
    try:
        with sqlite3.connect("file:" + path + "?mode=rw", uri=True) as store:
            done = store.execute(
                "UPDATE requests SET state = 'allowed', scope = 'once', answered_digest = digest, answered_by = 'me'"
                " WHERE state = 'waiting'").rowcount
        if done > 0: won("answered"); break
    except sqlite3.Error as error: lost(error)
    time.sleep(0.05)
"""


def approves_itself(arena: Arena) -> object:
    """A question waits in the queue; the command looks for the store and answers it."""
    office = Office(arena, wait_s=2.0)
    allowed: list[bool] = []

    def ask() -> None:
        mine = Office(arena, wait_s=2.0)
        allowed.append(mine.obtains(network(), Queue(mine.store.requests)))

    thread = threading.Thread(target=ask)
    sandbox = arena.ground.sandbox()
    thread.start()
    sandbox.run(python(f"path = {os.fspath(arena.ground.state / 'store.db')!r}\n{APPROVE}"))
    thread.join()
    office.store.close()
    return allowed == [True]


def shown_state(arena: Arena) -> Any:
    bind = shown_as_it_is(arena.ground.state, writable=True)
    return arena.plan_changed(lambda mounts: with_mounts(mounts, bind))


LIST.add(
    "E4",
    "Answer one's own question in the store, from inside",
    approves_itself,
    Defence("a state directory that is nowhere to be seen", shown_state),
)


def asked_for_ever(requests: Callable[[int], Request], **settings: Any) -> Callable[[Arena], object]:
    """Tell whether a person is asked more than ten times in a row."""

    def attack(arena: Arena) -> object:
        office = Office(arena, **settings)
        for number in range(14):
            office.obtains(requests(number), office.saying(False))
        return office.asked > 10

    return attack


PATIENT: Final = Policy(permissions=Rules(max_denials=1000, max_same_denials=1000))
for _tries, _requests in {
    "Ask the same again and again until somebody is tired": lambda _number: network(),
    "Ask for something slightly different again and again": lambda number: network(b"git", b"fetch", b"%d" % number),
}.items():
    LIST.add_pair(
        "E7",
        _tries,
        asked_for_ever(_requests),
        "without the bound on questions",
        asked_for_ever(_requests, policy=PATIENT),
        as_root="anybody",
    )
