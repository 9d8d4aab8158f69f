# SPDX-License-Identifier: Apache-2.0
"""The server name of TLS: read from real and written messages, whole or split, and compared with the tunnel's host."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.network.hellos import in_records, real_hello, server_name, written_hello
from unspill.network.protocols import HELLO_BYTES, TLS_ALERT, Hello, parse_hello
from unspill.network.relay import HelloGate
from unspill.policy.hosts import Destination
from unspill.policy.refusal import Refused

SITE = Destination(host="example.org", port=443)
ADDRESS = Destination(host="93.184.215.14", port=443, address=b"\x5d\xb8\xd7\x0e")
GREASE = (0x0A0A, b"")


def gate(destination: Destination = SITE, *, is_required: bool = True) -> HelloGate:
    return HelloGate(destination, is_required=is_required)


@pytest.mark.parametrize("newest", [True, False])
@pytest.mark.parametrize("name", ["example.org", "a.b.example.net", None])
def test_the_name_of_a_real_client_is_read(name: str | None, newest: bool) -> None:
    hello = parse_hello(real_hello(name, newest=newest))
    assert hello == Hello(name=(name or "").encode(), is_encrypted=False)


@given(st.lists(st.integers(1, 60), max_size=15), st.lists(st.integers(1, 60), max_size=30))
def test_a_message_is_the_same_however_it_is_split(sizes: list[int], cuts: list[int]) -> None:
    sent = in_records(written_hello(GREASE, server_name(b"example.org"), (21, bytes(200))), *sizes)
    whole, passed, checked = sent, b"", gate()
    for cut in [*cuts, len(sent)]:
        if sent:
            assert not checked.is_open
            passed += checked.feed(sent[:cut])
            sent = sent[cut:]
    assert checked.is_open
    assert passed == whole


@given(st.integers(0, 5000), st.binary(min_size=1, max_size=3))
def test_a_damaged_message_is_refused_incomplete_or_for_the_same_host(at: int, damage: bytes) -> None:
    hello = real_hello("example.org")
    at %= len(hello)
    damaged = hello[:at] + damage + hello[at + len(damage) :]
    checked = gate()
    try:
        passed = checked.feed(damaged)
    except Refused:
        return
    assert passed in (b"", damaged)
    if checked.is_open:
        found = parse_hello(damaged)
        assert found is not None
        assert found.name.lower() == b"example.org"


REFUSED = {
    "another host": in_records(written_hello(server_name(b"evil.org"))),
    "a host that begins alike": in_records(written_hello(server_name(b"example.org.evil.org"))),
    "a subdomain": in_records(written_hello(server_name(b"www.example.org"))),
    "a NUL": in_records(written_hello(server_name(b"example.org\0.evil.org"))),
    "no name": in_records(written_hello(GREASE)),
    "no extensions": in_records(b"\x01\0\0\x29\x03\x03" + bytes(32) + b"\0\0\x02\x13\x01\x01\0"),
    "an empty name": in_records(written_hello(server_name(b""))),
    "an empty list": in_records(written_hello(server_name())),
    "two names": in_records(written_hello(server_name(b"example.org", b"evil.org"))),
    "two extensions": in_records(written_hello(server_name(b"example.org"), server_name(b"evil.org"))),
    "another kind of name": in_records(written_hello(server_name(b"example.org", kind=1))),
    "an encrypted message": in_records(written_hello(server_name(b"example.org"), (0xFE0D, bytes(40)))),
    "an encrypted message for a front end": in_records(written_hello(server_name(b"cdn.example"), (0xFE0D, b""))),
    "bytes behind the extensions": in_records(written_hello(server_name(b"example.org"), behind=b"\0")),
    "an extension beyond the end": in_records(written_hello((0, b"\0\x50\0"))),
    "a ServerHello": in_records(b"\x02" + written_hello(server_name(b"example.org"))[1:]),
    "a second message in the record": in_records(written_hello(server_name(b"example.org")) + b"\x01"),
    "an empty record": b"\x16\x03\x01\0\0",
    "a record that is too long": b"\x16\x03\x01\x40\x01",
    "an alert": b"\x15\x03\x01\0\x02\x02\0",
    "HTTP": b"GET / HTTP/1.1\r\n",
    "SSH": b"SSH-2.0-x\r\n",
    "SSL 2": b"\x80\x2e\x01\x03\x01",
    "a message that never ends": b"\x16\x03\x01\x40\0\x01\xff\xff\xff",
    "a message of single bytes": in_records(written_hello(server_name(b"example.org")), *[1] * 16),
    "a message that is longer than any client's": in_records(written_hello((21, bytes(60000))), *[1] * 9),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_asks_for_another_server_or_hides_it_is_refused(name: str) -> None:
    with pytest.raises(Refused) as caught:
        gate().feed(REFUSED[name])
    assert caught.value.rule == "server name"


def test_the_case_and_a_trailing_dot_do_not_matter() -> None:
    for name in (b"EXAMPLE.org", b"example.org."):
        checked = gate()
        assert checked.feed(in_records(written_hello(server_name(name))))
        assert checked.is_open


def test_a_tunnel_to_an_address_has_no_name() -> None:
    checked = gate(ADDRESS)
    assert checked.feed(real_hello(None))
    assert checked.is_open
    with pytest.raises(Refused):
        gate(ADDRESS).feed(real_hello("example.org"))


def test_what_follows_in_further_records_is_passed_on() -> None:
    sent = real_hello("example.org") + b"\x14\x03\x03\0\x01\x01" + b"\x17\x03\x03\0\x05early"
    assert gate().feed(sent) == sent


def test_on_a_named_port_there_may_be_something_else_than_tls() -> None:
    checked = gate(SITE.replace(port=22), is_required=False)
    assert not checked.is_waiting
    assert checked.feed(b"SSH-2.0-x\r\n") == b"SSH-2.0-x\r\n"
    assert checked.is_open
    with pytest.raises(Refused):
        gate(SITE.replace(port=8443), is_required=False).feed(real_hello("evil.org"))


def test_a_client_that_never_ends_is_refused_before_it_takes_memory() -> None:
    checked, message = gate(), written_hello((21, bytes(30000)))
    for at in range(0, 30000, 2000):
        assert checked.feed(in_records(message[at : at + 2000])) == b""
    longer = in_records(written_hello((21, bytes(HELLO_BYTES)))[:10])
    with pytest.raises(Refused):
        gate().feed(longer)


def test_a_tls_client_is_told_by_an_alert_and_others_by_silence() -> None:
    for sent, words in ((real_hello("evil.org"), TLS_ALERT), (b"SSH-2.0-x\r\n", b"")):
        checked = gate()
        with pytest.raises(Refused) as caught:
            checked.feed(sent)
        assert checked.answer(caught.value, "") == words
