# SPDX-License-Identifier: Apache-2.0
"""The parser of requests: what is passed on, and a table of what two parsers could read differently."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.network.protocols import HEAD_BYTES, PHRASES, Head, denial_answer, find_head_end, parse_head
from unspill.network.relay import BodyGate, RequestGate
from unspill.policy.hosts import Destination
from unspill.policy.refusal import Refused

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
