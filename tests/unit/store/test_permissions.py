# SPDX-License-Identifier: Apache-2.0
"""Requests, grants and what was shown: what the store keeps of them, and what it refuses to read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.permissions.given import ONCE_ONLY, ONE_OF_EACH, PROJECT, REMEMBERED, REQUESTS, name_of
from unspill.errors import StoreDamaged, StoreError, UsageError
from unspill.model.change import Consent
from unspill.model.permission import Egress, Request, RequestBase, RequestId
from unspill.model.policy import SCOPES
from unspill.model.run import KEPT_COMMAND_BYTES
from unspill.store import permissions as module
from unspill.store.db import Store
from unspill.store.permissions import (
    AskedRequest,
    GrantTable,
    RequestTable,
    digest_of_question,
    from_form,
    key_of,
    to_form,
)

if TYPE_CHECKING:
    from unspill.model.policy import Scope

DAY = 86_400_000_000_000
NOW = 1_000 * DAY


@pytest.fixture
def grants(store: Store) -> GrantTable:
    return store.grants


@pytest.fixture
def requests(store: Store) -> RequestTable:
    return store.requests


def grant(grants: GrantTable, request: Request, scope: Scope = "always", days: int = 30) -> str:
    return grants.add(request, scope, granted_ns=NOW, expires_ns=NOW + days * DAY, granted_by="ann").id


def asked(request: Request, **other: object) -> AskedRequest:
    identity = RequestId(os.urandom(8).hex())
    made = AskedRequest(
        id=identity,
        request=request,
        digest=digest_of_question(identity, request),
        asked_ns=NOW,
        deadline_ns=NOW + 100,
        scopes=request.scopes,
    )
    return made.replace(**other)


@pytest.mark.parametrize("request_", REMEMBERED, ids=name_of)
@pytest.mark.parametrize("scope", ["run", "sandbox", "always"])
def test_a_grant_comes_back_as_it_was_given(grants: GrantTable, request_: Request, scope: Scope) -> None:
    made = grants.add(request_, scope, granted_ns=NOW, expires_ns=NOW + DAY, granted_by="ann")
    assert made.request == request_.at_scope(scope)
    assert grants.matching(request_, NOW) == (made,)
    assert grants.find(made.id) == made
    assert grants.all() == grants.all(PROJECT) == (made,)
    assert grants.all(b"/elsewhere") == ()


@pytest.mark.parametrize("request_", ONCE_ONLY, ids=name_of)
@pytest.mark.parametrize("scope", SCOPES)
def test_what_is_asked_every_time_is_never_remembered(grants: GrantTable, request_: Request, scope: Scope) -> None:
    with pytest.raises(UsageError):
        grant(grants, request_, scope)
    assert grants.all() == ()


def test_an_answer_for_once_is_never_remembered(grants: GrantTable) -> None:
    with pytest.raises(UsageError):
        grant(grants, REMEMBERED[0], "once")


@pytest.mark.parametrize(("scope", "without"), [("run", "run"), ("sandbox", "sandbox")])
def test_a_grant_for_a_run_or_sandbox_needs_one(grants: GrantTable, scope: Scope, without: str) -> None:
    with pytest.raises(UsageError):
        grant(grants, REMEMBERED[0].replace(**{without: ""}), scope)


def test_a_forged_row_of_something_asked_every_time_is_damage_not_a_grant(store: Store, grants: GrantTable) -> None:
    identity = grant(grants, REMEMBERED[0])
    store.transaction.change(
        "UPDATE grants SET request = ?, key = ? WHERE id = ?",
        (to_form(ONCE_ONLY[0].at_scope("always")), key_of(ONCE_ONLY[0]), identity),
    )
    with pytest.raises(StoreDamaged):
        grants.matching(ONCE_ONLY[0], NOW)


def test_a_forged_key_does_not_make_a_grant_cover_more(store: Store, grants: GrantTable) -> None:
    grant(grants, REMEMBERED[0])
    other = REMEMBERED[0].replace(argv=(b"rm",))
    store.transaction.change("UPDATE grants SET key = ?", (key_of(other),))
    assert grants.matching(other, NOW) == ()


def test_the_database_itself_refuses_a_grant_for_once(store: Store, grants: GrantTable) -> None:
    grant(grants, REMEMBERED[0])
    with pytest.raises(StoreError):
        store.transaction.change("UPDATE grants SET scope = 'once'")


def test_grants_expire_and_are_then_forgotten(grants: GrantTable) -> None:
    identity = grants.find(grants.add(REMEMBERED[0], "always", granted_ns=NOW, expires_ns=NOW + DAY, granted_by="a").id)
    assert identity is not None
    assert grants.matching(REMEMBERED[0], NOW + DAY - 1)
    assert grants.matching(REMEMBERED[0], NOW + DAY) == ()
    assert not grants.use(identity.id, NOW + DAY)
    assert grants.remove_expired(NOW + DAY) == 1
    assert grants.all() == ()


def test_the_last_use_is_remembered(grants: GrantTable) -> None:
    made = grants.add(REMEMBERED[0], "always", granted_ns=NOW, expires_ns=NOW + DAY, granted_by="ann")
    assert grants.use(made.id, NOW + 5)
    assert grants.use(made.id, NOW + 7)
    assert grants.find(made.id) == made.replace(last_used_ns=NOW + 7, uses=2)


def test_a_revoked_grant_is_gone_for_everybody_at_once(grants: GrantTable, state: bytes) -> None:
    made = grants.add(REMEMBERED[0], "always", granted_ns=NOW, expires_ns=NOW + DAY, granted_by="ann")
    with Store.open(state) as other:
        elsewhere = GrantTable(other.transaction)
        assert elsewhere.revoke(made.id)
        assert not elsewhere.revoke(made.id)
    assert grants.matching(REMEMBERED[0], NOW) == ()
    assert not grants.use(made.id, NOW)


def test_granting_again_replaces_the_older_grant(grants: GrantTable) -> None:
    first, second = grant(grants, REMEMBERED[0], days=1), grant(grants, REMEMBERED[0], days=2)
    assert [found.id for found in grants.all()] == [second]
    assert first != second


@settings(max_examples=200)
@given(REQUESTS)
def test_a_request_has_one_form_and_comes_back_from_it(request_: Request) -> None:
    assert from_form(to_form(request_)) == request_


@settings(max_examples=300)
@given(REQUESTS, REQUESTS)
def test_two_requests_have_the_same_form_only_if_they_are_the_same(one: Request, other: Request) -> None:
    assert (to_form(one) == to_form(other)) is (one == other)
    assert (key_of(one) == key_of(other)) is (one.at_scope("always") == other.at_scope("always"))


@settings(max_examples=300)
@given(REQUESTS, st.data())
def test_a_form_with_another_byte_is_another_request_or_none(request_: Request, draw: st.DataObject) -> None:
    form = bytearray(to_form(request_))
    at = draw.draw(st.integers(0, len(form) - 1))
    form[at] ^= draw.draw(st.integers(1, 255))
    try:
        read = from_form(bytes(form))
    except StoreDamaged:
        return
    assert read != request_
    assert to_form(read) == bytes(form)


@pytest.mark.parametrize(
    "form",
    [
        *(b"", b"{}", b"[]", b"null", b'"x"', b"\xff", b"[" * 100_000),
        b'{"kind":"everything"}',
        b'{"argv":[],"cwd":"","kind":"as-root","names":[],"project":1,"run":"","sandbox":"","script":""}',
        b'{"argv":"ab","cwd":"","kind":"as-root","names":[],"project":"/","run":"","sandbox":"","script":""}',
        b'{"argv":[],"cwd":"","kind":"as-root","names":[],"project":"/","run":"","sandbox":"","script":"","x":""}',
        b'{"argv":[],"cwd":"","kind":"as-root","names":[],"project":"/","run":"","sandbox":""}',
        b'{"kind":"as-root","argv":[],"cwd":"","names":[],"project":"/","run":"","sandbox":"","script":""}',
    ],
)
def test_what_is_not_exactly_a_form_is_damage(form: bytes) -> None:
    with pytest.raises(StoreDamaged):
        from_form(form)


@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=name_of)
def test_a_waiting_request_comes_back_and_is_genuine(requests: RequestTable, request_: Request) -> None:
    waiting = asked(request_, state="waiting")
    requests.add(waiting)
    assert requests.find(waiting.id) == waiting
    assert requests.waiting(NOW) == requests.waiting(NOW, PROJECT) == (waiting,)
    assert requests.waiting(NOW, b"/elsewhere") == requests.waiting(NOW + 100) == ()
    assert waiting.is_genuine


@pytest.mark.parametrize(
    ("digest", "now_ns", "its_state"),
    [("right", NOW + 100, "waiting"), ("wrong", NOW, "waiting"), ("right", NOW, "asked"), ("right", NOW, "expired")],
)
def test_an_answer_too_late_or_to_something_else_changes_nothing(
    requests: RequestTable, digest: str, now_ns: int, its_state: str
) -> None:
    put = asked(REMEMBERED[0], state=its_state)
    requests.add(put)
    named = put.digest if digest == "right" else "0" * 64
    assert not requests.answer(put.id, named, scope="once", by="ann", now_ns=now_ns)
    assert requests.find(put.id) == put


def test_a_request_is_answered_once(requests: RequestTable) -> None:
    put = asked(REMEMBERED[0], state="waiting")
    requests.add(put)
    assert requests.answer(put.id, put.digest, scope=None, by="ann", now_ns=NOW, reason="no")
    assert not requests.answer(put.id, put.digest, scope="once", by="bob", now_ns=NOW)
    found = requests.find(put.id)
    assert found == put.replace(state="denied", answered_by="ann", answered_digest=put.digest, reason="no")
    assert not requests.close(put.id, "expired")


def test_adding_again_neither_reopens_nor_changes_a_request(requests: RequestTable) -> None:
    put = asked(REMEMBERED[0])
    requests.add(put)
    requests.add(put.replace(digest="0" * 64, state="waiting"))
    assert requests.find(put.id) == put
    requests.close(put.id, "denied")
    requests.add(put.replace(state="waiting"))
    assert requests.find(put.id) == put.replace(state="denied")


def test_old_requests_are_forgotten(requests: RequestTable) -> None:
    requests.add(asked(REMEMBERED[0], deadline_ns=NOW - 1))
    kept = asked(REMEMBERED[0], deadline_ns=NOW)
    requests.add(kept)
    assert requests.remove_before(NOW) == 1
    assert requests.find(kept.id) == kept


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.binary(max_size=40))
def test_a_damaged_row_is_reported_never_believed(store: Store, requests: RequestTable, noise: bytes) -> None:
    put = asked(REMEMBERED[0], state="waiting")
    requests.add(put)
    store.transaction.change("UPDATE requests SET request = ? WHERE id = ?", (noise, put.id))
    with pytest.raises(StoreDamaged):
        requests.find(put.id)
    store.transaction.change("DELETE FROM requests")


ONE = "7f3a9c" + "1" * 58
OTHER = "7f3a9c" + "2" * 58
ROOT = b"/home/ann/project"


def long_egress(end: bytes = b"") -> Egress:
    script = b"curl example.org " + b"x" * 10 * KEPT_COMMAND_BYTES + end
    return Egress(project=PROJECT, sandbox="0123456789abcdef", argv=(b"/bin/sh", b"-c", script), hosts=("example.org",))


def bytes_of(store: Store, table: str) -> int:
    ((found,),) = store.grants._db.rows(f"SELECT total(length(request)) FROM {table}")
    assert isinstance(found, float)
    return int(found)


def test_of_a_long_command_a_grant_keeps_the_beginning_and_covers_the_very_same(store: Store) -> None:
    grant(store.grants, long_egress())
    assert bytes_of(store, "grants") < 2 * KEPT_COMMAND_BYTES
    (found,) = store.grants.matching(long_egress(), NOW)
    assert found.covers(long_egress(), NOW)
    assert found.request.argv[2].startswith(b"curl example.org x")


OTHERS = {
    "another end": long_egress(b"; rm -rf /"),
    "the part that is kept": long_egress().replace(argv=long_egress().bounded().argv),
}


@pytest.mark.parametrize("case", OTHERS)
def test_it_covers_nothing_that_only_begins_alike(store: Store, case: str) -> None:
    grant(store.grants, long_egress())
    assert store.grants.matching(OTHERS[case], NOW) == ()
    assert not store.grants.all()[0].covers(OTHERS[case], NOW)


def test_by_the_beginning_alone_it_would(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the digest of the whole is what tells one long command from another."""
    bounded = RequestBase.bounded
    monkeypatch.setattr(RequestBase, "bounded", lambda self: bounded(self).replace(command=""))
    grant(store.grants, long_egress())
    assert store.grants.matching(OTHERS["another end"], NOW)


def test_a_long_command_is_kept_whole_while_somebody_may_read_it_and_no_longer(
    store: Store, requests: RequestTable
) -> None:
    open_, over, late = (asked(long_egress(), state="waiting") for _ in range(3))
    for one in (open_.replace(deadline_ns=NOW + 10 * DAY), over, late):
        requests.add(one)
    assert requests.answer(over.id, over.digest, scope="once", by="ann", now_ns=NOW)
    assert bytes_of(store, "requests") > 30 * KEPT_COMMAND_BYTES
    requests.add(asked(ONE_OF_EACH[0], asked_ns=NOW + DAY, deadline_ns=NOW + 2 * DAY))
    kept = {one.id: requests.find(one.id) for one in (open_, over, late)}
    assert all(found is not None and found.is_genuine for found in kept.values())
    assert {identity for identity, found in kept.items() if found and found.request == long_egress()} == {open_.id}
    assert bytes_of(store, "requests") < 15 * KEPT_COMMAND_BYTES
    assert requests.take(over.id, over.digest)


def test_an_answer_to_a_long_command_is_for_no_other(requests: RequestTable) -> None:
    one = asked(long_egress(), state="waiting")
    requests.add(one)
    assert digest_of_question(one.id, OTHERS["another end"]) != one.digest
    assert requests.latest_of(long_egress(), NOW)
    assert requests.latest_of(OTHERS["another end"], NOW) == ()


def consent(digest: str, path: bytes = b".envrc", root: bytes = ROOT) -> Consent:
    return Consent(root=root, path=path, digest=digest)


def test_a_token_names_what_was_shown_at_its_path(store: Store) -> None:
    store.shown.put("s", [consent(ONE)])
    assert store.shown.has("s", consent(ONE), "7f3a9c")
    assert store.shown.has("s", consent(ONE), ONE)


NEVER = {
    "another content by the same beginning": ("s", consent(OTHER), "7f3a9c"),
    "another path": ("s", consent(ONE, b"sub/.envrc"), "7f3a9c"),
    "another root": ("s", consent(ONE, root=b"/home/ann/library"), "7f3a9c"),
    "another sandbox": ("t", consent(ONE), "7f3a9c"),
    "another token": ("s", consent(ONE), "7f3a9d"),
    "a pattern": ("s", consent(ONE), "7f%"),
}


@pytest.mark.parametrize("case", NEVER)
def test_it_names_nothing_else(store: Store, case: str) -> None:
    sandbox, asked, token = NEVER[case]
    store.shown.put("s", [consent(ONE)])
    assert not store.shown.has(sandbox, asked, token)


def test_a_token_that_could_name_two_names_none(store: Store) -> None:
    store.shown.put("s", [consent(ONE), consent(OTHER)])
    assert not store.shown.has("s", consent(ONE), "7f3a9c")
    assert store.shown.has("s", consent(ONE), "7f3a9c1")


def test_a_token_is_as_long_as_it_must_be(store: Store) -> None:
    assert store.shown.token_of("s", ROOT, b".envrc", ONE) == "7f3a9c"
    store.shown.put("s", [consent(ONE)])
    assert store.shown.token_of("s", ROOT, b".envrc", ONE) == "7f3a9c"
    assert store.shown.token_of("s", ROOT, b".envrc", OTHER) == "7f3a9c2"


def test_what_was_refused_was_never_shown(store: Store) -> None:
    store.shown.put("s", [consent(ONE), consent(ONE, b"other")])
    store.shown.drop("s", consent(ONE))
    assert not store.shown.has("s", consent(ONE), "7f3a9c")
    assert store.shown.has("s", consent(ONE, b"other"), "7f3a9c")


def test_what_was_shown_long_ago_is_forgotten(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.shown.put("s", [consent(ONE)])
    monkeypatch.setattr(module, "KEPT_NS", -1)
    store.shown.put("s", [])
    assert not store.shown.has("s", consent(ONE), "7f3a9c")


def test_it_goes_with_its_sandbox(store: Store) -> None:
    row = store.sandboxes.get_or_create(b"/p", "default", device=1, inode=2)
    store.shown.put(row.id, [consent(ONE)])
    store.sandboxes.remove(row.id)
    assert not store.shown.has(row.id, consent(ONE), "7f3a9c")
