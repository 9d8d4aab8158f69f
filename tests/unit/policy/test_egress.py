# SPDX-License-Identifier: Apache-2.0
"""Allowed hosts: exact ones, subdomains label by label, ports; an empty list allows nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.errors import PolicyError
from unspill.policy.hosts import (
    AllowedHost,
    Destination,
    HostRules,
    Refused,
    is_public_suffix,
    parse_allowed,
    parse_authority,
    parse_reachable,
    parse_rules,
)

LABELS = st.sampled_from(["a", "b", "example", "org", "evilexample", "com", "x-y"])
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(lambda labels: ".".join([*labels, "org"]))


def verdict(rules: HostRules, authority: str) -> str:
    try:
        rules.judge(parse_authority(authority.encode()))
    except Refused as refused:
        return refused.rule
    return "allowed"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("example.org", AllowedHost(host="example.org")),
        ("Example.ORG.", AllowedHost(host="example.org")),
        ("*.example.org", AllowedHost(host="example.org", subdomains=True)),
        ("example.org:8443", AllowedHost(host="example.org", port=8443)),
        ("*.example.org:22", AllowedHost(host="example.org", subdomains=True, port=22)),
        ("198.51.100.7", AllowedHost(host="198.51.100.7")),
        ("[2001:DB8::1]:8443", AllowedHost(host="2001:db8::1", port=8443)),
        ("www.example.co.uk", AllowedHost(host="www.example.co.uk")),
        ("*.example.co.uk", AllowedHost(host="example.co.uk", subdomains=True)),
        ("project.github.io", AllowedHost(host="project.github.io")),
    ],
)
def test_a_rule_is_a_host_or_a_star_with_or_without_a_port(text: str, rule: AllowedHost) -> None:
    assert parse_allowed(text) == rule


@pytest.mark.parametrize(
    "text",
    """
    * *. *.com *.org *.co.uk *.com.au *.gov.uk *.github.io *.gitlab.io *.vercel.app *.pages.dev *.workers.dev *.nip.io
    *.herokuapp.com *.s3.amazonaws.com *.eu-west-1.amazonaws.com *.amazonaws.com *.ngrok.io *.trycloudflare.com
    *.blob.core.windows.net *.localhost *.local *.*.example.org www.*.example.org *example.org exam*.org example.*
    **.example.org *.127.0.0.1 *.1 https://example.org example.org/ example.org:0 example.org:65536 example.org:http
    user@example.org localhost metadata 0x7f.1 127.1 2130706433 .example.org example..org -a.org _a.example.org
    [::1 ::1 example.org:80:80 bücher.example
    """.split(),
)
def test_what_would_allow_everybodys_hosts_or_is_no_host_is_no_rule(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_allowed(text)
    assert caught.value.remedy


def test_the_empty_text_is_no_rule() -> None:
    with pytest.raises(PolicyError):
        parse_allowed("")


@pytest.mark.parametrize("authority", ["example.org:443", "example.org:80", "198.51.100.7:443", "[2001:db8::1]:443"])
def test_an_empty_list_allows_nothing(authority: str) -> None:
    assert verdict(parse_rules([]), authority) == "host"
    assert verdict(HostRules(), authority) == "host"


@pytest.mark.parametrize(
    ("authority", "expected"),
    [
        ("example.org:443", "allowed"),
        ("EXAMPLE.ORG.:80", "allowed"),
        ("example.org:22", "port"),
        ("example.org:8080", "port"),
        ("www.example.org:443", "host"),
        ("evilexample.org:443", "host"),
        ("example.org.evil.com:443", "host"),
        ("a.example.net:443", "allowed"),
        ("a.b.example.net:443", "allowed"),
        ("example.net:443", "host"),
        ("evilexample.net:443", "host"),
        ("a.example.net.evil.com:443", "host"),
        ("api.example.com:8443", "allowed"),
        ("api.example.com:443", "port"),
        ("198.51.100.7:443", "allowed"),
        ("198.51.100.8:443", "host"),
    ],
)
def test_hosts_are_compared_label_by_label_and_ports_are_the_web_ones(authority: str, expected: str) -> None:
    rules = parse_rules(["example.org", "*.example.net", "api.example.com:8443", "198.51.100.7"])
    assert verdict(rules, authority) == expected


def test_a_granted_network_is_every_host_on_the_web_ports() -> None:
    rules = parse_rules(["git.example.org:22"], public=True)
    assert verdict(rules, "anything.example:443") == "allowed"
    assert verdict(rules, "[2001:db8::1]:80") == "allowed"
    assert verdict(rules, "anything.example:25") == "port"
    assert verdict(rules, "git.example.org:22") == "allowed"


@given(NAMES, NAMES, st.booleans())
def test_a_star_is_the_same_as_a_suffix_with_its_dot(host: str, other: str, subdomains: bool) -> None:
    rule = AllowedHost(host=other, subdomains=subdomains)
    expected = host.endswith(f".{other}") if subdomains else host == other
    assert rule.covers_host(host) is expected
    assert (verdict(HostRules(allowed=(rule,)), f"{host}:443") == "allowed") is expected


def test_an_address_and_a_name_are_never_taken_for_each_other() -> None:
    rules = parse_rules(["198.51.100.7"])
    rules.judge(Destination(host="198.51.100.7", port=443, address=bytes((198, 51, 100, 7))))
    assert verdict(rules, "[::ffff:198.51.100.7]:443") == "host"


@pytest.mark.parametrize(
    ("name", "expected"), [("org", True), ("co.uk", True), ("example.co.uk", False), ("example.org", False)]
)
def test_a_public_suffix_is_where_anybody_can_have_a_name(name: str, expected: bool) -> None:
    assert is_public_suffix(name) is expected


RULES = st.builds(
    AllowedHost,
    host=NAMES.filter(lambda name: not is_public_suffix(name)),
    subdomains=st.booleans(),
    port=st.sampled_from([None, 80, 443, 22]),
)


@given(RULES, RULES, st.lists(NAMES, max_size=8))
def test_a_rule_covers_another_only_if_it_allows_all_that_the_other_does(
    rule: AllowedHost, other: AllowedHost, names: list[str]
) -> None:
    tried = [*names, other.host, f"a.{other.host}", f"b.a.{other.host}", rule.host, f"a.{rule.host}"]
    cases = [Destination(host=name, port=port) for name in tried for port in (22, 80, 443, 8080)]
    by_rule, by_other = ([_allows(which, case) for case in cases] for which in (rule, other))
    assert rule.covers(other) is all(ours for ours, theirs in zip(by_rule, by_other, strict=True) if theirs)


def _allows(rule: AllowedHost, destination: Destination) -> bool:
    return rule.covers_host(destination.host) and rule.covers_port(destination.port)


@given(RULES)
def test_the_text_of_a_rule_is_the_rule_again(rule: AllowedHost) -> None:
    assert parse_allowed(rule.text) == rule


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("http://example.org", "a host has no scheme and no path"),
        ("example.org/path", "a host has no scheme and no path"),
        ("https://example.org:443/", "a host has no scheme and no path"),
        ("2001:db8::1", "an IPv6 address needs brackets"),
        ("::1", "an IPv6 address needs brackets"),
        ("2A00::1:443", "an IPv6 address needs brackets"),
        ("example.org:http", "a port is a number"),
        ("example.org:80:80", "a label has"),
    ],
)
def test_who_wrote_no_host_is_told_what_is_wrong_with_it(text: str, because: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_allowed(text)
    assert f"({because}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10.0.0.1", "private"),
        ("192.168.0.1:8080", "private"),
        ("127.0.0.1", "loopback"),
        ("169.254.169.254", "link-local, metadata service"),
        ("[::1]", "loopback"),
        ("[fe80::1]:443", "link-local"),
        ("[::FFFF:10.0.0.1]", "IPv4-mapped"),
    ],
)
def test_an_address_that_is_not_public_can_not_be_allowed(text: str, why: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_reachable(text)
    assert str(caught.value).endswith(f"can never be allowed: it is not public ({why})")
    assert parse_allowed(text)


@pytest.mark.parametrize("text", ["example.org", "*.example.org:8443", "1.2.3.4", "[2a00::1]:8443"])
def test_what_could_be_reached_can_be_allowed(text: str) -> None:
    assert parse_reachable(text) == parse_allowed(text)
