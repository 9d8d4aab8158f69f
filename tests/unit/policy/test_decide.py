# SPDX-License-Identifier: Apache-2.0
"""A request is allowed, asked or denied, and the rule that decided is named; grants match exactly or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.permissions.given import (
    DIGEST,
    FOR_A_COMMAND,
    ONCE_ONLY,
    ONE_OF_EACH,
    PROJECT,
    REMEMBERED,
    REQUESTS,
    name_of,
)
from unspill.model.permission import (
    AsRoot,
    Egress,
    Grant,
    GrantId,
    HeldPath,
    MaskedSecret,
    ReadablePath,
    Request,
    WritableRoot,
)
from unspill.model.policy import LENGTHS, SCOPES, Network, Policy, Rules
from unspill.permissions.broker import Allow, Ask, Deny, decide

if TYPE_CHECKING:
    from unspill.model.policy import Scope

NOW = 1_000_000
DEFAULT = Policy()
EVERYTHING_ASKED = Policy(permissions=Rules(unsandboxed="ask", as_root="ask"))


def allowing(*hosts: str) -> Policy:
    return Policy(network=Network(hosts=hosts))


def grant_of(request: Request, scope: Scope = "always", **other: Any) -> Grant:
    made = Grant(
        id=GrantId("0" * 16),
        request=request.at_scope(scope),
        scope=scope,
        granted_ns=NOW - 10,
        expires_ns=NOW + 10,
        granted_by="ann",
    )
    return made.replace(**other)


@pytest.mark.parametrize("request_", ONE_OF_EACH, ids=name_of)
def test_every_kind_is_asked_where_the_configuration_lets_it(request_: Request) -> None:
    decision = decide(request_, EVERYTHING_ASKED, now_ns=NOW)
    assert isinstance(decision, Ask)
    assert decision.scopes == (
        ("once",) if request_ in ONCE_ONLY else SCOPES if isinstance(request_, Egress) else LENGTHS
    )


@pytest.mark.parametrize(
    ("request_", "rules", "rule"),
    [
        (ONE_OF_EACH[0], Rules(network="deny"), "permissions.network = deny"),
        (ONE_OF_EACH[1], Rules(egress="deny"), "permissions.egress = deny"),
        (ONE_OF_EACH[2], Rules(roots="deny"), "permissions.roots = deny"),
        (ONE_OF_EACH[3], Rules(readable="deny"), "permissions.readable = deny"),
        (ONE_OF_EACH[4], Rules(secrets="deny"), "permissions.secrets = deny"),
        (ONE_OF_EACH[5], Rules(held="deny"), "permissions.held = deny"),
        (ONE_OF_EACH[6], Rules(), "permissions.unsandboxed = deny"),
        (ONE_OF_EACH[7], Rules(), "permissions.as_root = deny"),
    ],
)
def test_what_the_configuration_denies_is_not_asked_and_no_grant_helps(
    request_: Request, rules: Rules, rule: str
) -> None:
    decision = decide(request_, Policy(permissions=rules), [grant_of(request_)], now_ns=NOW)
    assert isinstance(decision, Deny)
    assert decision.rule == rule
    assert decision.remedy


@pytest.mark.parametrize(
    ("request_", "policy", "rules", "rule"),
    [
        (WritableRoot(project=PROJECT, path=b"/srv/a"), Policy(roots=(b"/srv/a",)), Rules(roots="deny"), "roots"),
        (WritableRoot(project=PROJECT, path=b"/srv/a/b"), Policy(roots=(b"/srv/a",)), Rules(), "roots"),
        (ReadablePath(project=PROJECT, path=b"/srv/a/b"), Policy(readable=(b"/srv/a",)), Rules(), "readable"),
        (Egress(project=PROJECT, hosts=("a.org",)), allowing("b.org", "a.org"), Rules(), "network.hosts"),
        (
            Egress(project=PROJECT, hosts=("x.a.org", "b.org:443")),
            allowing("*.a.org", "b.org"),
            Rules(),
            "network.hosts",
        ),
        (Egress(project=PROJECT, hosts=("*.x.a.org",)), allowing("*.a.org"), Rules(), "network.hosts"),
        (AsRoot(project=PROJECT), Policy(allow_root=True), Rules(), "allow_root"),
    ],
)
def test_what_the_configuration_names_is_allowed_without_a_question(
    request_: Request, policy: Policy, rules: Rules, rule: str
) -> None:
    assert decide(request_, policy.replace(permissions=rules), now_ns=NOW) == Allow(rule=rule)


@pytest.mark.parametrize(
    ("request_", "policy", "rules"),
    [
        (WritableRoot(project=PROJECT, path=b"/srv/ab"), Policy(roots=(b"/srv/a",)), Rules()),
        (WritableRoot(project=PROJECT, path=b"/srv"), Policy(roots=(b"/srv/a",)), Rules()),
        (ReadablePath(project=PROJECT, path=b"/srv/ab"), Policy(readable=(b"/srv/a",)), Rules()),
        (Egress(project=PROJECT, hosts=("a.org", "c.org")), allowing("a.org"), Rules()),
        (Egress(project=PROJECT, hosts=("x.a.org",)), allowing("a.org"), Rules()),
        (Egress(project=PROJECT, hosts=("a.org",)), allowing("*.a.org"), Rules()),
        (Egress(project=PROJECT, hosts=("*.a.org",)), allowing("x.a.org"), Rules()),
        (Egress(project=PROJECT, hosts=("a.org:22",)), allowing("a.org"), Rules()),
        (Egress(project=PROJECT, hosts=("a.org",)), allowing("a.org:443"), Rules()),
        (Egress(project=PROJECT, hosts=()), Policy(), Rules()),
    ],
)
def test_what_the_configuration_names_only_in_part_is_asked(request_: Request, policy: Policy, rules: Rules) -> None:
    assert isinstance(decide(request_, policy.replace(permissions=rules), now_ns=NOW), Ask)


@pytest.mark.parametrize("kind", [ReadablePath, MaskedSecret])
def test_what_the_person_hid_is_never_shown_even_if_something_else_shows_it(kind: type[ReadablePath]) -> None:
    policy = Policy(hidden=(b"/srv/a/secret",), readable=(b"/srv/a",))
    request = kind(project=PROJECT, path=b"/srv/a/secret/key")
    assert isinstance(decide(request, policy, [grant_of(request)], now_ns=NOW), Deny)


@pytest.mark.parametrize("request_", ONCE_ONLY, ids=name_of)
@pytest.mark.parametrize("scope", SCOPES)
def test_what_is_asked_every_time_is_asked_whatever_grants_there_are(request_: Request, scope: Scope) -> None:
    grants = [grant_of(request_, scope), grant_of(request_, scope).replace(request=request_)]
    decision = decide(request_, EVERYTHING_ASKED, grants, now_ns=NOW)
    assert decision == Ask(rule="this is asked every time", scopes=("once",))


@pytest.mark.parametrize("request_", REMEMBERED, ids=name_of)
def test_a_grant_allows_the_same_request_again(request_: Request) -> None:
    decision = decide(request_, EVERYTHING_ASKED, [grant_of(request_)], now_ns=NOW)
    assert decision == Allow(rule=f"grant {'0' * 16}", grant=GrantId("0" * 16))


@pytest.mark.parametrize(
    ("scope", "change", "is_covered"),
    [
        ("run", {}, True),
        ("run", {"run": "9" * 16}, False),
        ("run", {"run": ""}, False),
        ("sandbox", {"run": "9" * 16}, True),
        ("sandbox", {"sandbox": "9" * 16}, False),
        ("sandbox", {"sandbox": ""}, False),
        ("always", {"run": "9" * 16, "sandbox": "9" * 16}, True),
        ("always", {"run": "", "sandbox": ""}, True),
        ("always", {"project": b"/home/ann/projects"}, False),
        ("once", {}, False),
    ],
)
def test_a_scope_says_which_run_and_which_sandbox(scope: Scope, change: dict[str, Any], is_covered: bool) -> None:
    request = Egress(**FOR_A_COMMAND, hosts=("example.org",))
    assert grant_of(request, scope).covers(request.replace(**change), NOW) is is_covered


# Variants of one command by which permission caches were deceived before
SIMILAR: list[dict[str, Any]] = [
    {"argv": argv}
    for argv in (
        (b"git", b"fetch", b"origin"),
        (b"git",),
        (b"git", b"fetch", b""),
        (b"git", b"fetch "),
        (b"git", b" fetch"),
        (b"git", b"fetch\n"),
        (b"git fetch",),
        (b"git", b"Fetch"),
        (b"GIT", b"fetch"),
        (b"./git", b"fetch"),
        (b"/usr/bin/git", b"fetch"),
        (b"git", b"-c", b"core.pager=x", b"fetch"),
        (b"env", b"git", b"fetch"),
        (b"git", b"fetch;rm"),
        (b"git", b"fetch", b";", b"rm"),
        (b"git", b"fetch", b"&&", b"rm"),
        (b"git", b"fetch$(rm)"),
        (b"git", b"fetch`rm`"),
        (b"git", b"fetch|sh"),
        (b"git", b"fetch>x"),
        (b"X=1", b"git", b"fetch"),
        (b"/bin/sh", b"-c", b"git fetch"),
        (b"git", b"f\xd0\xb5tch"),
        (b"git", b"fetch\xe2\x80\x8b"),
        (b"fetch", b"git"),
        (),
    )
] + [
    {"cwd": PROJECT + b"/sub"},
    {"cwd": b"/home/ann"},
    {"cwd": b""},
    {"names": ("HOME", "LD_PRELOAD", "PATH")},
    {"names": ("HOME",)},
    {"names": ()},
    {"script": DIGEST},
    {"project": PROJECT + b"2"},
    {"project": b"/home/ann"},
    {"hosts": ("example.org", "example.com")},
    {"hosts": ("www.example.org",)},
    {"hosts": ("*.example.org",)},
    {"hosts": ("example.org.",)},
    {"hosts": ()},
]


@pytest.mark.parametrize("change", SIMILAR, ids=repr)
@pytest.mark.parametrize("scope", ["run", "sandbox", "always"])
def test_no_request_that_is_only_similar_is_covered(scope: Scope, change: dict[str, Any]) -> None:
    request = Egress(**FOR_A_COMMAND, hosts=("example.org",))
    grant = grant_of(request, scope)
    assert isinstance(decide(request, DEFAULT, [grant], now_ns=NOW), Allow)
    assert isinstance(decide(request.replace(**change), DEFAULT, [grant], now_ns=NOW), Ask)


@pytest.mark.parametrize("change", [{"digest": "cd" * 32}, {"path": b"sub/.envrc"}, {"root": b"/home/ann/other"}])
def test_a_held_path_is_granted_with_its_content(change: dict[str, Any]) -> None:
    request = HeldPath(project=PROJECT, root=PROJECT, path=b".envrc", digest=DIGEST)
    assert grant_of(request).covers(request, NOW)
    assert not grant_of(request).covers(request.replace(**change), NOW)


def test_a_grant_is_for_one_capability_even_if_all_its_fields_are_the_same() -> None:
    path = b"/srv/a"
    writable, readable = WritableRoot(**FOR_A_COMMAND, path=path), ReadablePath(**FOR_A_COMMAND, path=path)
    secret = MaskedSecret(**FOR_A_COMMAND, path=path)
    for granted in (writable, readable, secret):
        covered = [request for request in (writable, readable, secret) if grant_of(granted).covers(request, NOW)]
        assert covered == [granted]


@pytest.mark.parametrize(("granted_ns", "expires_ns"), [(NOW - 10, NOW), (NOW - 10, NOW - 1), (NOW + 1, NOW + 10)])
def test_a_grant_that_expired_or_comes_from_the_future_counts_for_nothing(granted_ns: int, expires_ns: int) -> None:
    request = Egress(**FOR_A_COMMAND, hosts=("example.org",))
    grant = grant_of(request, granted_ns=granted_ns, expires_ns=expires_ns)
    assert isinstance(decide(request, DEFAULT, [grant], now_ns=NOW), Ask)


def test_a_shorter_scope_in_the_configuration_ends_the_grants_of_longer_ones() -> None:
    request = Egress(**FOR_A_COMMAND, hosts=("example.org",))
    policy = Policy(permissions=Rules(longest="run"))
    assert decide(request, policy, [grant_of(request)], now_ns=NOW) == Ask(
        rule="no rule and no grant covers it", scopes=("once", "run")
    )
    assert isinstance(decide(request, policy, [grant_of(request, "run")], now_ns=NOW), Allow)


@settings(max_examples=300)
@given(granted=REQUESTS, asked=REQUESTS, scope=st.sampled_from(LENGTHS))
def test_a_grant_covers_exactly_what_differs_in_nothing_that_its_scope_keeps(
    granted: Request, asked: Request, scope: Scope
) -> None:
    forgotten: set[str] = {"once": set[str](), "run": set(), "sandbox": {"run"}, "always": {"run", "sandbox"}}[scope]
    for request in (asked, granted, granted.replace(**dict.fromkeys(forgotten, "5" * 16))):
        kept = set(request.as_dict()) - forgotten
        same = type(request) is type(granted) and all(getattr(request, x) == getattr(granted, x) for x in kept)
        can_be_remembered = scope != "once" and not granted.one_time_only
        belongs = {"run": request.run, "sandbox": request.sandbox}.get(scope, "x")
        expected = bool(same and can_be_remembered and belongs)
        assert grant_of(granted, scope).covers(request, NOW) is expected
