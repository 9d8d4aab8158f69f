# SPDX-License-Identifier: Apache-2.0
"""Every odd form of a host at the gates through which a person's list and a request's hosts come in."""

import json
from collections.abc import Callable

import pytest

from tests.unit.network.host_vectors import VECTORS
from unspill.errors import PolicyError, UnspillError
from unspill.model.permission import Egress
from unspill.permissions.question import check_request
from unspill.policy.config import parse_policy
from unspill.policy.hosts import parse_allowed

# A star before a name is no host, but it is a rule
RULES = {"*.example.org"}
TEXTS = [text for text in (host.decode("utf-8", "surrogateescape") for host in VECTORS) if text not in RULES]


def as_rule(text: str) -> None:
    parse_allowed(text)


def as_setting(text: str) -> None:
    quoted = json.dumps(text.encode("utf-8", "replace").decode())
    parse_policy(f"[network]\nhosts = [{quoted}]\n", where="config.toml", trusted=True, home=b"/home/me")


def as_request(text: str) -> None:
    check_request(Egress(project=b"/p", hosts=(text,)), home=b"/home/me", own=())


@pytest.mark.parametrize("gate", [as_rule, as_setting, as_request], ids=lambda gate: gate.__name__)
def test_no_odd_form_of_a_host_passes(gate: Callable[[str], None]) -> None:
    assert len(TEXTS) >= 200
    passed = []
    for text in TEXTS:
        try:
            gate(text)
        except UnspillError:
            continue
        passed.append(text)
    assert passed == []


@pytest.mark.parametrize("gate", [as_rule, as_setting, as_request], ids=lambda gate: gate.__name__)
def test_a_plain_host_passes(gate: Callable[[str], None]) -> None:
    for text in ("example.org", "*.example.org", "example.org:8443"):
        gate(text)
    with pytest.raises(PolicyError):
        parse_allowed("*.org")
