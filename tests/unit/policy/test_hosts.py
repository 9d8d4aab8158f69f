# SPDX-License-Identifier: Apache-2.0
"""Hosts: names, literal and public addresses, the lists that allow them, and what a refusal says."""

import ipaddress
import json
import random
import re
import socket
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.unit.network.host_vectors import FAMILIES, VECTORS
from unspill.errors import PolicyError, UnspillError
from unspill.model.permission import Egress
from unspill.network.protocols import printable
from unspill.permissions.question import check_request
from unspill.policy.config import parse_policy
from unspill.policy.hosts import (
    SPECIAL,
    AllowedHost,
    Destination,
    HostRules,
    Refused,
    address_text,
    find_literal,
    is_public_suffix,
    literal_destination,
    pack_address,
    parse_allowed,
    parse_authority,
    parse_host,
    parse_port,
    parse_private,
    parse_reachable,
    parse_rules,
    why_forbidden,
)

LABEL = rb"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
NAME = re.compile(rb"(?:" + LABEL + rb"\.)+([a-z]{1,63}|xn--" + rb"[a-z0-9-]{0,58}[a-z0-9])")
ODD = st.sampled_from(
    [b"a", b"Z", b"0", b"7f", b"0x", b"-", b".", b"xn--", b"\0", b"%", b"@", b"[", b":", b"\xe3\x80\x82", b"_", b"org"]
)


def is_name(raw: bytes) -> bool:
    """Decide the grammar by a regular expression, as an oracle."""
    name = raw.lower().removesuffix(b".")
    matched = NAME.fullmatch(name)
    return bool(matched and len(name) <= 253 and matched[2].decode() not in SPECIAL and b"xn--" not in name.split(b"."))


def is_refused(raw: bytes) -> bool:
    try:
        parse_host(raw)
    except Refused:
        return True
    return False


def test_there_are_at_least_200_odd_forms_and_none_twice() -> None:
    assert len(VECTORS) >= 200
    assert len(VECTORS) == len(set(VECTORS))


@pytest.mark.parametrize("family", FAMILIES)
def test_no_odd_form_is_a_name(family: str) -> None:
    assert [host for host in FAMILIES[family] if not is_refused(host)] == []


def test_many_odd_forms_are_addresses_for_the_resolver_that_nobody_guards() -> None:
    reached = []
    for host in VECTORS:
        try:
            text = host.split(b"\0")[0].decode()
            found = socket.getaddrinfo(text, None, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            continue
        address = ipaddress.ip_address(str(found[0][4][0]).partition("%")[0])
        if not address.is_global:
            reached.append(host)
    assert len(reached) >= 60


def test_a_nul_ends_a_name_for_getaddrinfo() -> None:
    found = socket.getaddrinfo("127.0.0.1\0.example.org", None, type=socket.SOCK_STREAM)
    assert {str(address[0]) for *_, address in found} == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"example.org", "example.org"),
        (b"EXAMPLE.Org", "example.org"),
        (b"example.org.", "example.org"),
        (b"a-b.c--d.example.org", "a-b.c--d.example.org"),
        (b"r3---sn-a.example.org", "r3---sn-a.example.org"),
        (b"1.example.org", "1.example.org"),
        (b"0x7f.example.org", "0x7f.example.org"),
        (b"xn--bcher-kva.example", "xn--bcher-kva.example"),
        (b"example.xn--p1ai", "example.xn--p1ai"),
        (b"a" * 63 + b".org", "a" * 63 + ".org"),
        (b"a." * 124 + b"a.org", "a." * 124 + "a.org"),
    ],
)
def test_a_name_is_lower_case_and_without_its_trailing_dot(raw: bytes, name: str) -> None:
    assert parse_host(raw) == name


@given(st.lists(ODD, min_size=1, max_size=12).map(b"".join))
def test_the_grammar_is_that_of_a_regular_expression(raw: bytes) -> None:
    assert is_refused(raw) is not is_name(raw)


@given(st.binary(max_size=40))
def test_no_bytes_are_a_name_unless_a_regular_expression_says_so(raw: bytes) -> None:
    assert is_refused(raw) is not is_name(raw)


@given(st.ip_addresses())
def test_the_written_form_of_an_address_is_a_literal_and_never_a_name(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    text = str(address).encode() if address.version == 4 else f"[{address}]".encode()
    assert find_literal(text) == address.packed
    assert is_refused(text)
    assert parse_authority(text + b":443") == Destination(
        host=socket.inet_ntop(socket.AF_INET if address.version == 4 else socket.AF_INET6, address.packed),
        port=443,
        address=address.packed,
    )


@pytest.mark.parametrize(
    "raw",
    [b"0", b"00080", b"080", b"65536", b"99999", b"-1", b"+80", b" 80", b"8_0", b"", b"80a", "\uff18\uff10".encode()],
)
def test_a_port_is_a_plain_number_from_1_to_65535(raw: bytes) -> None:
    with pytest.raises(Refused):
        parse_port(raw)


@pytest.mark.parametrize(
    "raw", [b"example.org", b"example.org:", b":443", b"", b"[2001:db8::1]", b"example.org:443:443"]
)
def test_an_authority_without_a_port_is_refused_where_there_is_no_default(raw: bytes) -> None:
    with pytest.raises(Refused):
        parse_authority(raw)


def test_a_default_port_is_for_a_missing_one_only() -> None:
    assert parse_authority(b"example.org", port=80) == Destination(host="example.org", port=80)
    with pytest.raises(Refused):
        parse_authority(b"example.org:", port=80)


@given(st.binary(max_size=400))
def test_what_is_shown_of_a_host_is_short_printable_ascii(raw: bytes) -> None:
    text = printable(raw)
    assert text.isascii()
    assert text.isprintable() or not text
    assert len(text) <= 4 * 260 + 3


PIECES = [b":", b"::", b".", b"0", b"00", b"1", b"12", b"255", b"256", b"fFfF", b"10000", b"g", b"%1"]
ODD_LITERALS = [
    b"%lo",
    b"[",
    b"]",
    b" ",
    b"\0",
    b"\n",
    b"/",
    b"-",
    b"+",
    b"_",
    b"0x",
    b"0177",
    b"\xb2",
    "\uff11".encode(),
]
GROUPS = [0, 0, 0, 1, 0xFFFF, 0xAB]
LITERALS, ALL_LITERALS = 20_000, 200_000


def packed_by_libc(family: int, raw: bytes) -> bytes:
    try:
        return socket.inet_pton(family, raw.decode("ascii"))
    except (OSError, ValueError):
        return b""


@given(st.lists(st.sampled_from(PIECES), max_size=16).map(b"".join))
@example(b"1:2:3:4:5:6:7::")
@example(b"::1:2:3:4:5:6:7:8")
@example(b"1::2::3")
@example(b"::ffff:1.2.3.4")
@example(b"1.2.3.4::")
@example(b"1:2:3:4:5:6:7:1.2.3.4")
def test_what_is_between_brackets_is_read_as_the_c_library_does(raw: bytes) -> None:
    assert find_literal(b"[" + raw + b"]") == packed_by_libc(socket.AF_INET6, raw)


@given(st.lists(st.sampled_from(PIECES), max_size=9).map(b"".join))
@example(b"1.2.3.4")
@example(b"01.2.3.4")
def test_four_numbers_are_read_as_the_c_library_does(raw: bytes) -> None:
    assert find_literal(raw) == packed_by_libc(socket.AF_INET, raw)


@given(st.lists(st.sampled_from(GROUPS), min_size=8, max_size=8))
def test_an_address_is_written_as_the_c_library_does(groups: list[int]) -> None:
    packed = b"".join(group.to_bytes(2) for group in groups)
    assert address_text(packed) == socket.inet_ntop(socket.AF_INET6, packed)
    assert find_literal(f"[{address_text(packed)}]".encode()) == packed
    assert address_text(packed[:4]) == socket.inet_ntop(socket.AF_INET, packed[:4])


def made_up(chance: random.Random) -> bytes:
    """Return an address, or what looks like one: whole, of pieces, or with one piece replaced."""
    kind = chance.choice(("four", "numbers", "six", "groups", "pieces", "bytes"))
    packed = bytes(chance.choice((0, 0, 255, chance.randrange(256))) for _ in range(16))
    numbers = (str(chance.choice((0, 1, 127, 255, chance.randrange(400)))) for _ in range(chance.choice((3, 4, 4, 5))))
    raw = {
        "four": lambda: socket.inet_ntop(socket.AF_INET, packed[:4]).encode(),
        "numbers": lambda: ".".join(numbers).encode(),
        "six": lambda: socket.inet_ntop(socket.AF_INET6, packed).encode(),
        "groups": lambda: packed.hex(":", 2).upper().encode(),
        "pieces": lambda: b"".join(chance.choice(PIECES) for _ in range(chance.randrange(16))),
        "bytes": lambda: packed[: chance.choice((4, 16, chance.randrange(17)))],
    }[kind]()
    if chance.random() < 0.4:
        at = chance.randrange(len(raw) + 1)
        raw = raw[:at] + chance.choice(PIECES + ODD_LITERALS) + raw[at + chance.randrange(2) :]
    return raw


def test_many_made_up_literals_are_read_as_the_c_library_does(full: bool) -> None:
    chance = random.Random(14)
    count = ALL_LITERALS if full else LITERALS
    accepted = 0
    for raw in (made_up(chance) for _ in range(count // 2)):
        four, six = packed_by_libc(socket.AF_INET, raw), packed_by_libc(socket.AF_INET6, raw)
        assert (find_literal(raw), find_literal(b"[%b]" % raw)) == (four, six), raw
        assert pack_address(raw.decode("latin-1")) == (four or six), raw
        accepted += bool(four or six)
    assert 0.3 < accepted / (count // 2) < 0.7


@pytest.mark.parametrize("raw", [b"", b"[]", b"[", b"]", b"::1", b"[::1%eth0]", b"127.1", b"0x7f.0.0.1", b"1.2.3.4."])
def test_other_forms_are_no_literals(raw: bytes) -> None:
    assert find_literal(raw) == b""


@pytest.mark.parametrize("family", FAMILIES)
def test_no_odd_form_is_a_literal(family: str) -> None:
    assert [host for host in FAMILIES[family] if find_literal(host)] == []
    for host in FAMILIES[family]:
        with pytest.raises(Refused):
            parse_authority(host + b":443")


# Every spelling that is an address, and the one that it is compared and recorded by
SPELLINGS = {
    b"127.0.0.1": "127.0.0.1",
    b"0.0.0.0": "0.0.0.0",
    b"255.255.255.255": "255.255.255.255",
    b"169.254.169.254": "169.254.169.254",
    b"[::]": "::",
    b"[::1]": "::1",
    b"[::0001]": "::1",
    b"[0:0:0:0:0:0:0:1]": "::1",
    b"[0000:0000:0000:0000:0000:0000:0000:0001]": "::1",
    b"[::0.0.0.1]": "::1",
    b"[::127.0.0.1]": "::127.0.0.1",
    b"[::7f00:1]": "::127.0.0.1",
    b"[::1:0]": "::0.1.0.0",
    b"[::ffff:127.0.0.1]": "::ffff:127.0.0.1",
    b"[::FFFF:7F00:1]": "::ffff:127.0.0.1",
    b"[0:0:0:0:0:ffff:127.0.0.1]": "::ffff:127.0.0.1",
    b"[::ffff:0.0.0.0]": "::ffff:0.0.0.0",
    b"[::ffff:0:127.0.0.1]": "::ffff:0:7f00:1",
    b"[64:ff9b::169.254.169.254]": "64:ff9b::a9fe:a9fe",
    b"[FE80::A9FE:A9FE]": "fe80::a9fe:a9fe",
    b"[fd00:ec2::254]": "fd00:ec2::254",
    b"[2002:7f00:1::]": "2002:7f00:1::",
    b"[1:2:3:4:5:6:7::]": "1:2:3:4:5:6:7:0",
    b"[::2:3:4:5:6:7:8]": "0:2:3:4:5:6:7:8",
    b"[2001:db8:0:0:1:0:0:1]": "2001:db8::1:0:0:1",
}


@pytest.mark.parametrize("raw", SPELLINGS, ids=bytes.decode)
def test_every_spelling_of_an_address_is_that_address_and_is_checked_as_such(raw: bytes) -> None:
    text = SPELLINGS[raw]
    packed = socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)
    assert parse_authority(raw + b":443") == Destination(host=text, port=443, address=packed)
    assert pack_address(text) == packed
    assert why_forbidden(packed)


@pytest.mark.parametrize("name", [b"a.de", b"www1.example.org"])
def test_a_name_of_4_or_16_bytes_is_a_name_although_python_reads_it_as_a_packed_address(name: bytes) -> None:
    assert ipaddress.ip_address(name).packed == name
    assert find_literal(name) == b""
    assert parse_authority(name + b":443") == Destination(host=name.decode(), port=443)


@pytest.mark.parametrize("text", ["fe80::1%eth0", "::1%lo", "::1%1", "2001:4860:4860::8888%x"])
def test_an_address_with_a_zone_is_none_although_python_reads_it(text: str) -> None:
    assert ipaddress.ip_address(text)
    assert pack_address(text) == b""
    assert find_literal(f"[{text}]".encode()) == b""


FORBIDDEN = """
0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1 127.255.255.254
168.63.129.16 169.254.0.1 169.254.0.23 169.254.169.123 169.254.169.254 169.254.170.2 169.254.42.42 172.16.0.1
172.31.255.255 192.0.0.1 192.0.0.192 192.0.2.1 192.80.8.124 192.88.99.1 192.168.0.1 192.168.255.255 198.18.0.1
198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
:: ::1 ::127.0.0.1 ::169.254.169.254 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:8.8.8.8 ::ffff:0:7f00:1
64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b::808:808 64:ff9b:1::a00:1 64:ff9b:2::1 100::1 2001::1
2001:0:7f00:1::1 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:7f00:1::1 2002:a9fe:a9fe::1 2620:4f:8000::1
2a00:1450:4001::5efe:a00:1 2a00:1450:4001:1:200:5efe:7f00:1 3ffe::1 3fff::1 4000::1 5f00::1 fc00::1 fd00:ec2::254
fd20:ce::254 fd00:42::42 fdff::1 fe80::1 fe80::a9fe:a9fe fec0::1 ff02::1 ff0e::1 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff
""".split()
PUBLIC = """
1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 93.184.215.14 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0 151.101.1.1
168.63.129.15 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 192.0.1.1 192.167.255.255 192.169.0.0 198.17.255.255
198.20.0.0 223.255.255.255 2001:4860:4860::8888 2600::1 2606:4700:4700::1111 2620:fe::fe 2a00:1450:4001:800::200e
2001:200::1 2003::1 3fff:1000::1
""".split()

# What no address may be sent to, said by those who know: the IANA registries, and the clouds.
REGISTRIES = [
    ipaddress.ip_network(text)
    for text in """
    0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
    192.0.2.0/24 192.31.196.0/24 192.52.193.0/24
    192.80.8.124/32 192.88.99.0/24 192.168.0.0/16 192.175.48.0/24 198.18.0.0/15
    198.51.100.0/24 203.0.113.0/24 224.0.0.0/3
    ::/3 4000::/2 8000::/1 2001::/23 2001:db8::/32 2002::/16 2620:4f:8000::/48 3ffe::/16 3fff::/20
    """.split()
]


def packed(text: str) -> bytes:
    return ipaddress.ip_address(text).packed


def is_forbidden(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    in_registry = any(address.version == network.version and address in network for network in REGISTRIES)
    is_isatap = address.version == 6 and address.packed[8:12].hex() in ("00005efe", "02005efe")
    return in_registry or is_isatap


def test_there_are_at_least_60_forbidden_addresses() -> None:
    assert len(set(map(packed, FORBIDDEN))) >= 60


@pytest.mark.parametrize("text", FORBIDDEN)
def test_a_special_address_is_forbidden_with_a_reason(text: str) -> None:
    assert why_forbidden(packed(text))


@pytest.mark.parametrize("text", PUBLIC)
def test_a_public_address_is_not_forbidden(text: str) -> None:
    assert why_forbidden(packed(text)) == ""


def test_the_standard_library_calls_many_of_them_global() -> None:
    wrong = [text for text in FORBIDDEN if ipaddress.ip_address(text).is_global]
    assert {"168.63.129.16", "64:ff9b::a9fe:a9fe", "2a00:1450:4001::5efe:a00:1"} <= set(wrong)


@given(st.ip_addresses())
def test_any_address_is_forbidden_if_and_only_if_the_registries_say_so(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    assert bool(why_forbidden(address.packed)) is is_forbidden(address)


@given(st.sampled_from(REGISTRIES), st.integers(-2, 2), st.booleans())
def test_the_edges_of_every_range_are_exact(
    network: ipaddress.IPv4Network | ipaddress.IPv6Network, offset: int, is_end: bool
) -> None:
    edge = int(network.broadcast_address if is_end else network.network_address) + offset
    if not 0 <= edge < 2**network.max_prefixlen:
        return
    address = ipaddress.ip_address(edge.to_bytes(network.max_prefixlen // 8))
    assert bool(why_forbidden(address.packed)) is is_forbidden(address)


def test_the_hosts_own_public_address_is_forbidden() -> None:
    own = frozenset((packed("93.184.215.14"), packed("2606:4700::1")))
    assert why_forbidden(packed("93.184.215.14"), own) == "the host's own"
    assert why_forbidden(packed("2606:4700::1"), own) == "the host's own"
    assert why_forbidden(packed("93.184.215.15"), own) == ""


@pytest.mark.parametrize("raw", [b"", b"\x08", b"\x08\x08\x08", b"\x08" * 5, b"\x26" * 15, b"\x26" * 17])
def test_bytes_of_another_length_are_no_address(raw: bytes) -> None:
    assert why_forbidden(raw)


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
    how = "can't" if why == "private" else "can never"
    assert caught.value.message.endswith(f"{how} be allowed: it is not public ({why})")
    assert ("private_hosts" in caught.value.remedy) == (why == "private")
    assert parse_allowed(text)


@pytest.mark.parametrize(
    "text", ["nexus", "nexus01:8081", "mirror.lan", "*.corp.internal", "10.0.0.1:8443", "[fd12::1]", "100.64.0.1"]
)
def test_a_private_rule_may_be_for_a_host_of_a_private_network(text: str) -> None:
    rule = parse_private(text)
    assert rule.text == text
    with pytest.raises(PolicyError):
        parse_reachable(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "localhost",
            "a.localhost",
            "db.onion",
            "4.arpa",
            "0x7f000001",
            "2130706433",
            "127.1",
            "127.0.0.1",
            "0.0.0.0",
        ),
        *("[::1]", "[::ffff:10.0.0.1]", "[64:ff9b::a00:1]", "169.254.169.254", "100.100.100.200", "[fd00:ec2::254]"),
        *("[fe80::1]", "224.0.0.1", "255.255.255.255", "168.63.129.16", "*.internal", "*.com", "a_b.lan"),
    ],
)
def test_no_private_rule_leads_to_this_machine_or_a_metadata_service(text: str) -> None:
    with pytest.raises(PolicyError):
        parse_private(text)


def test_a_local_name_is_a_destination_only_where_a_private_rule_names_it() -> None:
    rules = parse_rules([], private=["mirror.lan", "nexus:8081"])
    for name, port in ((b"mirror.lan", 443), (b"nexus", 8081)):
        destination = parse_authority(b"%b:%d" % (name, port), local=rules.private)
        rules.judge(destination)
        with pytest.raises(Refused, match="public"):
            parse_authority(b"%b:%d" % (name, port))
    for other in (b"printer.lan:443", b"router:80", b"localhost:8081"):
        with pytest.raises(Refused, match="public"):
            parse_authority(other, local=rules.private)
    with pytest.raises(Refused) as caught:
        rules.judge(parse_authority(b"nexus:443", local=rules.private))
    assert caught.value.rule == "port"


@pytest.mark.parametrize("text", ["example.org", "*.example.org:8443", "1.2.3.4", "[2a00::1]:8443"])
def test_what_could_be_reached_can_be_allowed(text: str) -> None:
    assert parse_reachable(text) == parse_allowed(text)


# A star before a name is no host, but it is a rule
ODD_RULES = {"*.example.org"}
TEXTS = [text for text in (host.decode("utf-8", "surrogateescape") for host in VECTORS) if text not in ODD_RULES]


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
