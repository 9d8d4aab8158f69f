# SPDX-License-Identifier: Apache-2.0
"""What a refusal says would allow it does allow it, and no more."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.policy.hosts import Destination, HostRules, Refused, literal_destination, parse_authority, parse_rules

labels = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
names = st.builds(lambda parts: ".".join((*parts, "org")), st.lists(labels, min_size=1, max_size=3))
ports = st.sampled_from((80, 443)) | st.integers(1, 65535)
destinations = st.builds(lambda host, port: Destination(host=host, port=port), names, ports) | st.builds(
    literal_destination, st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), ports
)


def remedy_of(rules: HostRules, destination: Destination) -> str:
    with pytest.raises(Refused) as caught:
        rules.judge(destination)
    return caught.value.remedy(destination.host, destination.port)


def is_allowed(rules: HostRules, destination: Destination) -> bool:
    try:
        rules.judge(destination)
    except Refused:
        return False
    return True


@given(destinations, ports)
def test_the_named_rule_allows_what_was_refused_and_no_other_host(destination: Destination, other: int) -> None:
    remedy = remedy_of(parse_rules(()), destination)
    named = re.findall(r"`--allow-host ([^`]+)`, or add `([^`]+)` to `hosts`", remedy)
    assert len(named) == 1
    assert named[0][0] == named[0][1]
    rules = parse_rules([named[0][0]])
    rules.judge(destination)
    assert is_allowed(rules, destination.replace(port=other)) is (
        other == destination.port or {other, destination.port} == {80, 443}
    )
    assert not is_allowed(rules, Destination(host=f"www.{destination.host}", port=destination.port))


@given(names)
def test_a_refused_port_is_named_with_its_host(host: str) -> None:
    destination = parse_authority(f"{host}:8443".encode())
    remedy = remedy_of(parse_rules([host]), destination)
    assert f"`--allow-host {host}:8443`" in remedy
    parse_rules([f"{host}:8443"]).judge(destination)
