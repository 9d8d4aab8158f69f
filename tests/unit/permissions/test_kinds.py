# SPDX-License-Identifier: Apache-2.0
"""A kind of request is complete: a setting that decides about it, words that ask, a check, and a stored form."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.permissions.given import DIGEST, HOME, ONE_OF_EACH, OWN, PROJECT, name_of
from unspill.errors import UsageError
from unspill.model.permission import (
    REQUESTS,
    AsRoot,
    Egress,
    HeldPath,
    MaskedSecret,
    NetworkForCommand,
    ReadablePath,
    RequestBase,
    Unsandboxed,
    WritableRoot,
)
from unspill.model.policy import Policy, Rules
from unspill.permissions.broker import Deny, decide
from unspill.permissions.question import KINDS, check_request, make_question, question_text
from unspill.store.permissions import from_form, plain_request, to_form

if TYPE_CHECKING:
    from unspill.model.permission import Request

STORABLE = {"bytes", "str", "tuple[bytes, ...]", "tuple[str, ...]"}

# Written by earlier versions: what is remembered or waits in a database of theirs has to be read for ever
STORED: dict[str, Request] = {
    '{"argv":["git","fetch"],"cwd":"/p","kind":"network","mode":"proxy","names":["HOME"],"project":"/p","run":"2222",'
    '"sandbox":"1111","script":""}': NetworkForCommand(
        project=b"/p", sandbox="1111", run="2222", argv=(b"git", b"fetch"), cwd=b"/p", names=("HOME",)
    ),
    '{"argv":[],"cwd":"","hosts":["example.org"],"kind":"egress","names":[],"project":"/p","run":"","sandbox":"",'
    '"script":""}': Egress(project=b"/p", hosts=("example.org",)),
    '{"argv":[],"cwd":"","kind":"writable-root","names":[],"path":"/\\udcff","project":"/p","run":"","sandbox":"",'
    '"script":""}': WritableRoot(project=b"/p", path=b"/\xff"),
    '{"argv":[],"cwd":"","kind":"readable-path","names":[],"path":"/r","project":"/p","run":"","sandbox":"",'
    '"script":""}': ReadablePath(project=b"/p", path=b"/r"),
    '{"argv":["make"],"cwd":"","kind":"masked-secret","names":[],"path":"/p/.env","project":"/p","run":"","sandbox":"",'
    '"script":"unknown","stdin":"inherited","variables":"%(digest)s"}': MaskedSecret(
        project=b"/p", argv=(b"make",), path=b"/p/.env", script="unknown", stdin="inherited", variables=DIGEST
    ),
    '{"argv":[],"becomes":"a file of 9 bytes","cwd":"","digest":"%(digest)s","head":"x","kind":"held-path","names":[],'
    '"path":".envrc","project":"/p","rest":"8","root":"/p","run":"","sandbox":"","script":"","why":"direnv runs it"}': (
        HeldPath(
            project=b"/p",
            root=b"/p",
            path=b".envrc",
            digest=DIGEST,
            why="direnv runs it",
            becomes="a file of 9 bytes",
            head=b"x",
            rest="8",
        )
    ),
    '{"argv":["ls"],"cwd":"","environ":["A=1"],"kind":"unsandboxed","names":[],"project":"/p","run":"","sandbox":"",'
    '"script":"","stdin":"%(digest)s","stdin_head":"in"}': Unsandboxed(
        project=b"/p", argv=(b"ls",), environ=(b"A=1",), stdin=DIGEST, stdin_head=b"in"
    ),
    '{"argv":[],"cwd":"","kind":"as-root","names":[],"project":"/p","run":"","sandbox":"","script":""}': AsRoot(
        project=b"/p"
    ),
}


def lacking(kind: type[RequestBase]) -> list[str]:
    """Return what a kind of request does not have."""
    found = []
    if kind not in REQUESTS:
        found.append("a place in Request")
    if kind not in KINDS:
        found.append("a row in KINDS")
    if getattr(Rules(), getattr(kind, "setting", ""), None) not in ("ask", "deny"):
        found.append("a setting of [permissions]")
    if not STORABLE.issuperset(kind.field_types().values()):
        found.append("fields that can be stored")
    if not set(kind.optional) <= set(kind._defaults):  # type: ignore[attr-defined]
        found.append("defaults for what the stored form leaves out")
    if sum(other.kind == getattr(kind, "kind", "") for other in REQUESTS) != 1:
        found.append("a name of its own")
    return found


DEFINED = [kind for kind in RequestBase.__subclasses__() if kind.__module__ == RequestBase.__module__]


@pytest.mark.parametrize("kind", DEFINED, ids=lambda kind: kind.__name__)
def test_every_kind_of_request_has_all_that_one_needs(kind: type[RequestBase]) -> None:
    assert lacking(kind) == []


def test_control_a_kind_that_is_only_half_there_is_seen() -> None:
    class Half(RequestBase):
        kind = "network"
        optional = ("number",)

        number: int

    assert lacking(Half) == [
        "a place in Request",
        "a row in KINDS",
        "a setting of [permissions]",
        "fields that can be stored",
        "defaults for what the stored form leaves out",
    ]

    class Nameless(RequestBase):
        setting = "network"

    assert lacking(Nameless) == ["a place in Request", "a row in KINDS", "a name of its own"]


def test_the_tests_have_one_request_of_each_kind() -> None:
    assert {type(request) for request in ONE_OF_EACH} == set(REQUESTS) == set(KINDS)
    assert {type(request) for request in STORED.values()} == set(REQUESTS)


@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=name_of)
def test_its_own_setting_denies_it_and_no_other_does(request_: Request) -> None:
    asks = {kind.setting: "ask" for kind in REQUESTS}
    denied = [
        setting
        for setting in asks
        if isinstance(decide(request_, Policy(permissions=Rules(**asks | {setting: "deny"})), now_ns=1), Deny)  # type: ignore[arg-type]
    ]
    assert denied == [request_.setting]


@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=name_of)
def test_its_question_is_its_own_and_what_it_is_about_is_shown_whole(request_: Request) -> None:
    others = {question_text(other) for other in ONE_OF_EACH if other is not request_}
    assert question_text(request_) not in others
    long = request_.replace(argv=(b"x" * 1000,))
    assert any(PROJECT.decode() in line for line in make_question(long, ("once",)).whole)


@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=name_of)
def test_without_a_command_it_is_refused_where_it_means_nothing_without(request_: Request) -> None:
    without = request_.replace(argv=())
    if not request_.needs_command:
        check_request(without, home=HOME, own=OWN)
        return
    with pytest.raises(UsageError, match="names no command"):
        check_request(without, home=HOME, own=OWN)


@pytest.mark.parametrize("form", STORED, ids=lambda form: STORED[form].kind)
def test_what_earlier_versions_stored_is_read_and_written_alike(form: str) -> None:
    raw = form.replace("%(digest)s", DIGEST).encode()
    assert from_form(raw) == STORED[form]
    assert to_form(STORED[form]) == raw


@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=name_of)
def test_the_audit_keeps_nothing_that_the_stored_form_has_not(request_: Request) -> None:
    plain = plain_request(request_) | {"environ": []}
    assert set(request_.audited()) <= set(plain)
