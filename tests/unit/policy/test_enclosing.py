# SPDX-License-Identifier: Apache-2.0
"""The files of the directories above a project: whatever they say more tightly counts, nothing else does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from tests.unit.policy.test_merge import any_settings, is_no_wider
from unspill.errors import PolicyError
from unspill.model.policy import Limits, Network, Policy, Rules, Secrets
from unspill.policy.config import Settings
from unspill.policy.merge import seen_from, tighten, tightest, with_own


@given(any_settings(), any_settings(), any_settings())
def test_the_result_is_no_wider_than_either(own: Settings, inner: Settings, outer: Settings) -> None:
    policy = with_own(Policy(), own)
    try:
        one, other = tighten(policy, inner), tighten(policy, outer)
    except PolicyError:
        return
    found = tightest(one, other)
    assert is_no_wider(found, one)
    assert is_no_wider(found, other)
    assert tightest(one, one) == one


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (
            {"network": Network(hosts=("a.example.org", "b.example.org"), up_bytes=5)},
            {"network": Network(hosts=("*.example.org",), up_bytes=None, down_bytes=7)},
            {"network": Network(hosts=("a.example.org", "b.example.org"), up_bytes=5, down_bytes=7)},
        ),
        (
            {"network": Network(hosts=("a.example.org",))},
            {"network": Network(hosts=("b.example.org",))},
            {"network": Network()},
        ),
        (
            {"permissions": Rules(egress="deny", grant_days=3, longest="sandbox")},
            {"permissions": Rules(held="deny", grant_days=5, longest="once", approver="deny")},
            {"permissions": Rules(egress="deny", held="deny", grant_days=3, longest="once", approver="deny")},
        ),
        (
            {"secrets": Secrets(mask=False, names=(b"a",), directories=(b"x",), reveal=(b".env",))},
            {"secrets": Secrets(names=(b"b",), directories=(b"y",), reveal=(b".env",))},
            {"secrets": Secrets(names=(b"a", b"b"), directories=(b"x", b"y"), reveal=(b".env",))},
        ),
        ({"limits": Limits(processes=None)}, {"limits": Limits(processes=20)}, {"limits": Limits(processes=20)}),
    ],
)
def test_of_both_the_tighter_counts(one: dict[str, Any], other: dict[str, Any], expected: dict[str, Any]) -> None:
    assert tightest(Policy(**one), Policy(**other)) == Policy(**expected)


def test_directories_of_secrets_are_seen_from_the_project() -> None:
    said = Settings(where="file", secrets=(("directories", (b"a", b"a/b", b"a/b/c", b"ab", b"d")), ("names", (b"n",))))
    found = dict(seen_from(b"/p/a", said, b"/p").secrets)
    assert found == {"directories": (b"b", b"b/c"), "names": (b"n",)}
