# SPDX-License-Identifier: Apache-2.0
"""What a client of the proxy says: HTTP, SOCKS5 and TLS are read in one way only, or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.network.hellos import in_records, real_hello, server_name, written_hello
from tests.unit.network.host_vectors import VECTORS
from unspill.network.protocols import (
    HEAD_BYTES,
    HELLO_BYTES,
    PHRASES,
    SOCKS_CHOSEN,
    SOCKS_NO_METHOD,
    TLS_ALERT,
    Head,
    Hello,
    ProxyRequest,
    SocksOpening,
    SocksUnsupported,
    denial_answer,
    find_head_end,
    opening_for,
    parse_head,
    parse_hello,
    parse_socks_request,
    socks_greeting_bytes,
    socks_reply,
)
from unspill.network.relay import BodyGate, HelloGate, RequestGate
from unspill.policy.hosts import Destination, Refused

SITE = Destination(host="example.org", port=80)


def head_of(raw: bytes, within: Destination | None = None) -> Head:
    end = find_head_end(raw)
    assert end == len(raw)
    return parse_head(raw, within=within)


def get(*fields: bytes, target: bytes = b"http://example.org/", method: bytes = b"GET") -> bytes:
    return b"\r\n".join((b"%s %s HTTP/1.1" % (method, target), *fields, b"", b""))


AMBIGUOUS = {
    "both lengths": get(b"Host: example.org", b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    "both lengths, the other way": get(b"Transfer-Encoding: chunked", b"Content-Length: 5"),
    "two equal lengths": get(b"Content-Length: 5", b"Content-Length: 5"),
    "two lengths": get(b"Content-Length: 5", b"Content-Length: 6"),
    "a list of lengths": get(b"Content-Length: 5, 5"),
    "a signed length": get(b"Content-Length: +5"),
    "a negative length": get(b"Content-Length: -1"),
    "a hexadecimal length": get(b"Content-Length: 0x5"),
    "a length with an underscore": get(b"Content-Length: 1_0"),
    "a length in other digits": get("Content-Length: \u0665".encode()),
    "an empty length": get(b"Content-Length:"),
    "an endless length": get(b"Content-Length: 9999999999999999"),
    "a length before the colon": get(b"Content-Length : 5"),
    "a length behind a tab": get(b"\tContent-Length: 5"),
    "a disguised length": get(b"Content_Length: 5"),
    "a disguised coding": get(b"Transfer_Encoding: chunked"),
    "two codings": get(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"),
    "a list of codings": get(b"Transfer-Encoding: gzip, chunked"),
    "chunked twice": get(b"Transfer-Encoding: chunked, chunked"),
    "identity": get(b"Transfer-Encoding: identity"),
    "another coding": get(b"Transfer-Encoding: xchunked"),
    "a coding with a parameter": get(b"Transfer-Encoding: chunked;q=1"),
    "a coding in quotes": get(b'Transfer-Encoding: "chunked"'),
    "a coding behind a vertical tab": get(b"Transfer-Encoding: \x0bchunked"),
    "a coding before the colon": get(b"Transfer-Encoding : chunked"),
    "an empty coding": get(b"Transfer-Encoding:"),
    "a coding on the next line": get(b"Transfer-Encoding:", b" chunked"),
    "a continued field": get(b"X: 1", b" 2"),
    "a field continued by a tab": get(b"X: 1", b"\t2"),
    "a continued request line": get(b" X: 1"),
    "a field without a colon": get(b"Host"),
    "a field without a name": get(b": 5"),
    "a name with a space": get(b"X Y: 5"),
    "a name with a NUL": get(b"X\0: 5"),
    "a value with a NUL": get(b"X: a\0b"),
    "a value with a CR": get(b"X: a\rContent-Length: 5"),
    "a bare LF": b"GET http://example.org/ HTTP/1.1\nHost: example.org\r\n\r\n",
    "only bare LF": b"GET http://example.org/ HTTP/1.1\nHost: example.org\n\n",
    "a bare LF in a value": get(b"X: a\nHost: evil.org"),
    "LF CR": b"GET http://example.org/ HTTP/1.1\r\nX: y\n\r\n\r\n",
    "a control character in a value": get(b"X: a\x01b"),
    "a DEL in a value": get(b"X: a\x7fb"),
    "two hosts": get(b"Host: example.org", b"Host: example.org"),
    "another host": get(b"Host: evil.org"),
    "another host before": get(b"Host: evil.org", b"Host: example.org"),
    "a host with another port": get(b"Host: example.org:8080"),
    "a host with somebody": get(b"Host: example.org@evil.org"),
    "a host with a NUL escape": get(b"Host: evil.org%00.example.org"),
    "an empty host": get(b"Host:"),
    "a list of hosts": get(b"Host: example.org, evil.org"),
    "a disguised host": get(b"Host: example.org", b"HOST_: evil.org", b"host: evil.org"),
    "origin-form": get(b"Host: example.org", target=b"/"),
    "a relative target": get(b"Host: example.org", target=b"index.html"),
    "two slashes": get(b"Host: example.org", target=b"//example.org/"),
    "https in absolute-form": get(target=b"https://example.org/"),
    "ftp": get(target=b"ftp://example.org/"),
    "file": get(target=b"file:///etc/passwd"),
    "no host": get(target=b"http:///path"),
    "no host but a port": get(target=b"http://:80/"),
    "somebody in the target": get(target=b"http://example.org@evil.org/"),
    "a backslash in the target": get(target=b"http://example.org\\@evil.org/"),
    "a fragment": get(target=b"http://example.org/#@evil.org"),
    "a fragment as host": get(target=b"http://example.org#@evil.org/"),
    "an odd port": get(target=b"http://example.org:080/"),
    "no port behind the colon": get(target=b"http://example.org:/"),
    "a target with a control character": get(target=b"http://example.org/\x01"),
    "a target beyond ASCII": get(target="http://example.org/\u00e4".encode()),
    "two spaces": b"GET  http://example.org/ HTTP/1.1\r\n\r\n",
    "a tab": b"GET\thttp://example.org/ HTTP/1.1\r\n\r\n",
    "a space in the target": b"GET http://example.org/ x HTTP/1.1\r\n\r\n",
    "no version": b"GET http://example.org/\r\n\r\n",
    "another version": b"GET http://example.org/ HTTP/2.0\r\n\r\n",
    "version 0.9": b"GET http://example.org/ HTTP/0.9\r\n\r\n",
    "version 1.2": b"GET http://example.org/ HTTP/1.2\r\n\r\n",
    "a version in lower case": b"GET http://example.org/ http/1.1\r\n\r\n",
    "a long version": b"GET http://example.org/ HTTP/1.10\r\n\r\n",
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\n",
    "an empty line first": b"\r\nGET http://example.org/ HTTP/1.1\r\n\r\n",
    "a method with a control character": b"G\x01T http://example.org/ HTTP/1.1\r\n\r\n",
    "no method": b" http://example.org/ HTTP/1.1\r\n\r\n",
    "chunks in version 1.0": b"POST http://example.org/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    "too many fields": get(*[b"X: y"] * 200),
    "CONNECT without a port": get(method=b"CONNECT", target=b"example.org"),
    "CONNECT with a path": get(method=b"CONNECT", target=b"example.org:443/"),
    "CONNECT in absolute-form": get(method=b"CONNECT", target=b"http://example.org:443"),
    "CONNECT for somebody": get(method=b"CONNECT", target=b"user@example.org:443"),
    "CONNECT with another host": get(b"Host: evil.org:443", method=b"CONNECT", target=b"example.org:443"),
    "CONNECT with another port": get(b"Host: example.org:22", method=b"CONNECT", target=b"example.org:443"),
    "CONNECT with a body": get(b"Content-Length: 5", method=b"CONNECT", target=b"example.org:443"),
    "CONNECT with chunks": get(b"Transfer-Encoding: chunked", method=b"CONNECT", target=b"example.org:443"),
    "connect in lower case": get(method=b"connect", target=b"example.org:443"),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_what_could_be_read_in_two_ways_is_refused(name: str) -> None:
    with pytest.raises(Refused):
        head_of(AMBIGUOUS[name])


@pytest.mark.parametrize(
    ("target", "method"),
    [
        (b"http://evil.org/", b"GET"),
        (b"http://example.org/", b"GET"),
        (b"evil.org:443", b"CONNECT"),
        (b"example.org:443", b"CONNECT"),
        (b"*", b"GET"),
        (b"evil.org", b"GET"),
    ],
)
def test_a_tunnel_to_a_web_server_takes_nothing_but_requests_to_that_server(target: bytes, method: bytes) -> None:
    with pytest.raises(Refused):
        head_of(get(b"Host: example.org", target=target, method=method), within=SITE)


@pytest.mark.parametrize("host", [b"evil.org", b"example.org:443", b"www.example.org"])
def test_a_request_in_a_tunnel_has_the_host_of_the_tunnel(host: bytes) -> None:
    with pytest.raises(Refused):
        head_of(get(b"Host: " + host, target=b"/"), within=SITE)
    assert head_of(get(b"Host: example.org", target=b"/"), within=SITE).destination == SITE


@pytest.mark.parametrize(
    ("raw", "passed"),
    [
        (
            get(b"Host: example.org", b"Accept: */*", target=b"http://example.org/a?b=c"),
            b"GET /a?b=c HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\nConnection: close\r\n\r\n",
        ),
        (
            get(b"HOST: EXAMPLE.ORG.:80", target=b"HTTP://Example.org"),
            b"GET / HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n",
        ),
        (
            get(target=b"http://example.org:8080?x"),
            b"GET /?x HTTP/1.1\r\nHost: example.org:8080\r\nConnection: close\r\n\r\n",
        ),
        (
            get(method=b"OPTIONS", target=b"http://example.org"),
            b"OPTIONS * HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n",
        ),
        (
            b"GET http://example.org/ HTTP/1.0\r\n\r\n",
            b"GET / HTTP/1.0\r\nHost: example.org\r\nConnection: close\r\n\r\n",
        ),
        (
            get(b"content-length: 0", method=b"POST"),
            b"POST / HTTP/1.1\r\nHost: example.org\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        ),
        (
            get(b"Transfer-Encoding: Chunked", b"Trailer: X", method=b"POST"),
            b"POST / HTTP/1.1\r\nHost: example.org\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
        ),
        (
            get(
                b"Proxy-Authorization: Basic x", b"Proxy-Connection: keep-alive", b"Connection: Upgrade, X-Hop, host",
                b"Upgrade: h2c", b"HTTP2-Settings: x", b"X-Hop: 1", b"TE: trailers", b"Keep-Alive: 5", b"Cookie: a=b",
            ),
            b"GET / HTTP/1.1\r\nHost: example.org\r\nCookie: a=b\r\nConnection: close\r\n\r\n",
        ),
        (
            get(b"Connection: content-length", b"Content-Length: 5", method=b"POST"),
            b"POST / HTTP/1.1\r\nHost: example.org\r\nContent-Length: 5\r\nConnection: close\r\n\r\n",
        ),
    ],
)  # fmt: skip
def test_a_request_is_passed_on_as_it_was_understood(raw: bytes, passed: bytes) -> None:
    assert head_of(raw).passed_on() == passed


@pytest.mark.parametrize("fields", [(), (b"Host: example.org:443",), (b"Host: example.org",)])
def test_a_connect_needs_no_host_but_may_have_the_same(fields: tuple[bytes, ...]) -> None:
    head = head_of(get(*fields, method=b"CONNECT", target=b"example.org:443"))
    assert head.is_tunnel
    assert head.destination == Destination(host="example.org", port=443)


def test_a_head_has_a_longest_length() -> None:
    start = b"GET http://example.org/ HTTP/1.1\r\nX: "
    assert find_head_end(start + b"a" * (HEAD_BYTES - len(start) - 1)) == 0
    with pytest.raises(Refused):
        find_head_end(start + b"a" * (HEAD_BYTES - len(start)))
    with pytest.raises(Refused):
        find_head_end(start + b"a" * HEAD_BYTES + b"\r\n\r\n")


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_are_either_refused_or_a_request_with_one_host_and_one_length(raw: bytes, cut: int) -> None:
    valid = get(b"Host: example.org", b"Content-Length: 3", method=b"POST")
    for candidate in (raw, valid[:cut] + raw + valid[cut:]):
        try:
            end = find_head_end(candidate)
            head = parse_head(candidate[:end]) if end else None
        except Refused:
            continue
        if head is not None and not head.is_tunnel:
            passed = head.passed_on().lower()
            assert passed.count(b"\r\nhost: ") == 1
            assert passed.count(b"\r\ncontent-length: ") + passed.count(b"\r\ntransfer-encoding: ") <= 1
            assert passed.count(b"\r\n\r\n") == 1
            assert passed.count(b"\n") == passed.count(b"\r\n") == passed.count(b"\r")


def body_gate(length: bytes) -> BodyGate:
    return BodyGate(head_of(get(length, method=b"POST")))


def test_a_request_behind_the_first_is_not_passed_on() -> None:
    second = get(target=b"http://evil.org/")
    for field, body in (
        (b"Content-Length: 5", b"hello"),
        (b"Content-Length: 0", b""),
        (b"Transfer-Encoding: chunked", b"5\r\nhello\r\n0\r\n\r\n"),
        (b"Transfer-Encoding: chunked", b"0\r\n\r\n"),
    ):
        gate = body_gate(field)
        assert gate.feed(body + second) == body
        assert gate.is_shut
        assert gate.feed(second) == b""


@pytest.mark.parametrize(
    "chunks",
    [
        b"5;ext=1\r\nhello\r\n0\r\n\r\n",
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhelloGET / HTTP/1.1",
        b"0x5\r\nhello\r\n",
        b"+5\r\nhello\r\n",
        b"-1\r\nhello\r\n",
        b" 5\r\nhello\r\n",
        b"5 \r\nhello\r\n",
        b"\r\nhello",
        b"g\r\n",
        b"0\r\nX: trailer\r\n\r\n",
        b"0\r\n0\r\n",
        b"1111111111111111\r\n",
        b"5\r\r\nhello",
        b"5\r\nhello\r\r\n",
        b"\0",
        "\uff15\r\nhello".encode(),
    ],
)
def test_malformed_chunks_are_refused(chunks: bytes) -> None:
    with pytest.raises(Refused):
        body_gate(b"Transfer-Encoding: chunked").feed(chunks)


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    st.booleans(),
    st.binary(max_size=30),
    st.lists(st.integers(1, 30), max_size=40),
)
def test_a_body_ends_at_the_same_place_however_it_arrives(
    parts: list[bytes], is_chunked: bool, behind: bytes, cuts: list[int]
) -> None:
    if is_chunked:
        field = b"Transfer-Encoding: chunked"
        body = b"".join(b"%X\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    else:
        body = b"".join(parts)
        field = b"Content-Length: %d" % len(body)
    gate, sent, passed = body_gate(field), body + behind, b""
    for cut in [*cuts, len(sent)]:
        passed += gate.feed(sent[:cut])
        sent = sent[cut:]
    assert passed == body
    assert gate.is_shut


@given(st.lists(st.integers(1, 20), max_size=40))
def test_a_request_in_a_tunnel_is_the_same_however_it_arrives(cuts: list[int]) -> None:
    gate, passed = RequestGate(SITE), b""
    sent = get(b"Host: example.org", b"Content-Length: 5", method=b"PUT", target=b"/x") + b"hello" + b"GET / HTTP/1.1"
    for cut in [*cuts, len(sent)]:
        passed += gate.feed(sent[:cut])
        sent = sent[cut:]
    assert passed == b"PUT /x HTTP/1.1\r\nHost: example.org\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
    assert gate.is_shut
    assert not gate.is_waiting


@pytest.mark.parametrize("rule", PHRASES)
def test_an_answer_has_one_head_whatever_it_says(rule: str) -> None:
    words = denial_answer(rule, "evil\r\n\r\nHTTP/1.1 200 OK \u00e4")  # type: ignore[arg-type]
    head, _, body = words.partition(b"\r\n\r\n")
    assert b"Content-Length: %d" % len(body) in head
    assert head.startswith((b"HTTP/1.1 403 ", b"HTTP/1.1 400 "))


GREETING = b"\x05\x01\x00"
FOUR_BYTES = b"\x09\x08\x07\x06"


def socks_request(host: bytes, port: int = 443, *, kind: int = 3, command: int = 1, reserved: int = 0) -> bytes:
    address = bytes((len(host),)) + host if kind == 3 else host
    return bytes((5, command, reserved, kind)) + address + port.to_bytes(2)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (socks_request(b"Example.org"), Destination(host="example.org", port=443)),
        (socks_request(FOUR_BYTES, 80, kind=1), Destination(host="9.8.7.6", port=80, address=FOUR_BYTES)),
        (socks_request(bytes(15) + b"\1", kind=4), Destination(host="::1", port=443, address=bytes(15) + b"\1")),
    ],
)  # fmt: skip
def test_a_destination_is_a_name_or_an_address(raw: bytes, expected: Destination) -> None:
    assert parse_socks_request(raw) == (expected, len(raw))
    assert parse_socks_request(raw + b"more") == (expected, len(raw))
    assert all(parse_socks_request(raw[:length]) is None for length in range(len(raw)))


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (socks_request(b"example.org", command=2), 7),
        (socks_request(b"example.org", command=3), 7),
        (socks_request(b"example.org", command=0), 7),
        (socks_request(b"abcd", kind=2), 8),
        (socks_request(b"abcd", kind=0), 8),
        (socks_request(b"example.org", reserved=1), 1),
        (b"\x04\x01\x00\x03\x01a\x00\x50", 1),
    ],
)
def test_what_is_not_supported_has_its_own_code(raw: bytes, code: int) -> None:
    with pytest.raises(SocksUnsupported) as caught:
        parse_socks_request(raw)
    assert caught.value.code == code


def test_no_odd_form_of_a_host_is_a_destination() -> None:
    passed = []
    for host in VECTORS:
        try:
            passed.append(parse_socks_request(socks_request(host[:255])))
        except Refused:
            continue
    assert passed == []


@pytest.mark.parametrize("host", [b"127.0.0.1", b"93.184.215.14", b"[2606:4700::1]"])
def test_an_address_that_is_sent_as_a_name_is_refused(host: bytes) -> None:
    with pytest.raises(Refused):
        parse_socks_request(socks_request(host))


def test_port_0_is_refused() -> None:
    with pytest.raises(Refused):
        parse_socks_request(socks_request(b"example.org", 0))


@pytest.mark.parametrize("methods", [b"", b"\x01", b"\x02", b"\x01\x02\xff"])
def test_a_client_that_insists_on_authentication_is_refused(methods: bytes) -> None:
    with pytest.raises(SocksUnsupported):
        socks_greeting_bytes(b"\x05" + bytes((len(methods),)) + methods)
    opening = SocksOpening()
    with pytest.raises(SocksUnsupported) as caught:
        opening.feed(b"\x05" + bytes((len(methods),)) + methods)
    assert opening.denied(caught.value, "") == SOCKS_NO_METHOD


@given(st.lists(st.integers(1, 10), max_size=20))
def test_an_opening_is_the_same_however_it_arrives(cuts: list[int]) -> None:
    opening = opening_for(5)
    sent, asked, said = GREETING + socks_request(b"example.org") + b"hello", None, b""
    for cut in [*cuts, len(sent)]:
        piece, sent = sent[:cut], sent[cut:]
        if asked is not None:
            asked = asked.replace(rest=asked.rest + piece)
        elif piece:
            asked = opening.feed(piece)
            said, opening.reply = said + opening.reply, b""
    assert asked == ProxyRequest(destination=Destination(host="example.org", port=443), rest=b"hello")
    assert said == SOCKS_CHOSEN


@given(st.binary(max_size=40))
def test_any_bytes_are_refused_incomplete_or_a_checked_destination(raw: bytes) -> None:
    try:
        found = parse_socks_request(b"\x05\x01\x00" + raw)
    except Refused:
        return
    assert found is None or found[1] <= len(raw) + 3


def test_a_reply_has_the_length_that_every_client_expects() -> None:
    assert [len(socks_reply(code)) for code in range(9)] == [10] * 9


TLS_SITE = Destination(host="example.org", port=443)
ADDRESS = Destination(host="93.184.215.14", port=443, address=b"\x5d\xb8\xd7\x0e")
GREASE = (0x0A0A, b"")


def gate(destination: Destination = TLS_SITE, *, is_required: bool = True) -> HelloGate:
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
    checked = gate(TLS_SITE.replace(port=22), is_required=False)
    assert not checked.is_waiting
    assert checked.feed(b"SSH-2.0-x\r\n") == b"SSH-2.0-x\r\n"
    assert checked.is_open
    with pytest.raises(Refused):
        gate(TLS_SITE.replace(port=8443), is_required=False).feed(real_hello("evil.org"))


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
