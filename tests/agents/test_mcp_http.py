# SPDX-License-Identifier: Apache-2.0
"""E2: requests to a real HTTP server over a real socket, each wrong in one thing or in its bytes; none gets through."""

import asyncio
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import repeat
from typing import Any, Final

import pytest

from tests.agents.http_world import (
    ALLOWED_ORIGIN,
    LEGACY,
    Served,
    call_of_touch,
    exchange,
    initialize,
    parse,
    serving,
    until,
)
from unspill.adapters.mcp.http import MOST_BYTES, MOST_HEADERS, Guard, Token

pytestmark = pytest.mark.agents

JSON: Final = "application/json"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server under attack."""
    with serving(tmp_path_factory.mktemp("served")) as one:
        yield one


@pytest.fixture(scope="module")
def naive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server without our guard: the control arm."""
    with serving(tmp_path_factory.mktemp("naive"), guarded=False) as one:
        yield one


def test_a_request_that_is_right_in_everything_does_its_work(served: Served) -> None:
    before = served.marks
    reply = served.ask()
    assert (reply.status, served.marks) == (200, before + "x"), reply
    assert b"touched" in reply.body


def filled(text: str | None, served: Served) -> str | None:
    """Put the server's own port and token into a value of a table."""
    if text is None:
        return None
    other = "x" if served.token[0] != "x" else "y"
    return (
        text.replace("PORT", str(served.port))
        .replace("SHORTER", served.token[:-1])
        .replace("OTHER", other + served.token[1:])
        .replace("SWAPPED", served.token.swapcase())
        .replace("TOKEN", served.token)
    )


def attack(served: Served, parts: dict[str, Any]) -> tuple[int, bool]:
    """Return the status of a request, and whether it did something."""
    filled_in = dict(parts)
    filled_in["change"] = {name: filled(value, served) for name, value in parts.get("change", {}).items()}
    filled_in["add"] = tuple((name, filled(value, served) or "") for name, value in parts.get("add", ()))
    filled_in["target"] = filled(parts.get("target", "/mcp"), served)
    before = served.marks
    reply = served.ask(**filled_in)
    assert not [name for name in reply.headers if name.startswith("access-control-")]
    return reply.status, served.marks != before


def header(name: str, value: str | None) -> dict[str, Any]:
    return {"change": {name: value}}


TOKENS: Final[dict[str, dict[str, Any]]] = {
    "missing": header("Authorization", None),
    "empty": header("Authorization", ""),
    "only the scheme": header("Authorization", "Bearer"),
    "only the scheme and a blank": header("Authorization", "Bearer "),
    "of the same length": header("Authorization", "Bearer OTHER"),
    "without its last letter": header("Authorization", "Bearer SHORTER"),
    "with a letter more": header("Authorization", "Bearer TOKENx"),
    "in other case": header("Authorization", "Bearer SWAPPED"),
    "without the scheme": header("Authorization", "TOKEN"),
    "with another scheme": header("Authorization", "Basic TOKEN"),
    "quoted": header("Authorization", 'Bearer "TOKEN"'),
    "behind a tab": header("Authorization", "Bearer\tTOKEN"),
    "twice in one header": header("Authorization", "Bearer TOKEN, Bearer TOKEN"),
    "right, then wrong": {"add": (("Authorization", "Bearer OTHER"),)},
    "wrong, then right": {**header("Authorization", "Bearer OTHER"), "add": (("Authorization", "Bearer TOKEN"),)},
    "twice right": {"add": (("Authorization", "Bearer TOKEN"),)},
    "in the query": {**header("Authorization", None), "target": "/mcp?access_token=TOKEN&token=TOKEN"},
    "in a cookie": {**header("Authorization", None), "add": (("Cookie", "token=TOKEN; Authorization=Bearer TOKEN"),)},
    "in another header": {**header("Authorization", None), "add": (("Proxy-Authorization", "Bearer TOKEN"),)},
    "in the target": {**header("Authorization", None), "target": "http://user:TOKEN@127.0.0.1:PORT/mcp"},
}


@pytest.mark.parametrize("name", TOKENS)
def test_e2_without_the_token_nothing_is_done(name: str, served: Served) -> None:
    """Call a tool by HTTP with a token that is missing, wrong, doubled or elsewhere, in 20 ways.

    Control: with it the call is done, and a server without our guard does it for everybody.
    """
    assert attack(served, TOKENS[name]) == (401, False)


def test_control_a_server_without_a_token_serves_everybody(naive: Served) -> None:
    assert attack(naive, TOKENS["missing"]) == (200, True)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_control_the_scheme_may_be_written_in_any_case(scheme: str, served: Served) -> None:
    assert attack(served, header("Authorization", f"{scheme} TOKEN")) == (200, True)


def test_a_refusal_says_nothing_of_the_server_or_of_what_was_wrong(served: Served) -> None:
    replies = [served.ask(change={"Authorization": value}) for value in (None, "", "Bearer wrong", "Basic x")]
    assert len({(one.status, one.body, one.headers["www-authenticate"]) for one in replies}) == 1
    assert replies[0].headers["www-authenticate"] == "Bearer"
    assert replies[0].headers["connection"] == "close"
    assert "server" not in replies[0].headers


HOSTS: Final = {
    "evil.example.org": 421,
    "evil.example.org:PORT": 421,
    "127.0.0.1": 421,
    "localhost": 421,
    "127.0.0.1:1PORT": 421,
    "127.0.0.1:0PORT": 421,
    "127.0.0.1:": 421,
    "127.0.0.1:PORT:PORT": 421,
    "127.0.0.1.:PORT": 421,
    "localhost.:PORT": 421,
    "LOCALHOST:PORT": 421,
    "127.0.0.1.evil.example.org:PORT": 421,
    "localhost.evil.example.org:PORT": 421,
    "evil.example.org@127.0.0.1:PORT": 421,
    "127.0.0.1:PORT@evil.example.org": 421,
    "127.0.0.1:PORT, evil.example.org": 421,
    "127.0.0.1:PORT/evil": 421,
    "127.0.0.1:PORT#": 421,
    "http://127.0.0.1:PORT": 421,
    "[::1]:PORT": 421,
    "::1:PORT": 421,
    "[::ffff:127.0.0.1]:PORT": 421,
    "[::]:PORT": 421,
    "0.0.0.0:PORT": 421,
    "127.1:PORT": 421,
    "127.0.0.2:PORT": 421,
    "2130706433:PORT": 421,
    "0x7f000001:PORT": 421,
    "": 421,
}


@pytest.mark.parametrize("host", HOSTS)
def test_e2_a_name_that_was_bound_to_this_machine_by_somebody_else_is_refused(host: str, served: Served) -> None:
    """Rebind a name to the address of the HTTP server: another host, port, spelling or form of the address, even with
    the token.

    Control: by its own names it is reached, and a server that does not look by any.
    """
    assert attack(served, header("Host", host)) == (HOSTS[host], False)


@pytest.mark.parametrize("host", ["127.0.0.1:PORT", "localhost:PORT"])
def test_control_the_names_of_the_server_are_accepted(host: str, served: Served) -> None:
    assert attack(served, header("Host", host)) == (200, True)


def test_control_a_server_that_does_not_look_serves_any_name(naive: Served) -> None:
    assert attack(naive, header("Host", "evil.example.org")) == (200, True)


OTHER_WAYS_TO_NAME_A_HOST: Final[dict[str, tuple[dict[str, Any], int]]] = {
    "none": (header("Host", None), 400),
    "none, as HTTP 1.0 has it": ({**header("Host", None), "version": "HTTP/1.0"}, 421),
    "right, then evil": ({"add": (("Host", "evil.example.org"),)}, 400),
    "evil, then right": ({**header("Host", "evil.example.org"), "add": (("Host", "127.0.0.1:PORT"),)}, 400),
    "right twice": ({"add": (("Host", "127.0.0.1:PORT"),)}, 400),
    "right twice, as HTTP 1.0": ({"add": (("Host", "127.0.0.1:PORT"),), "version": "HTTP/1.0"}, 400),
    "evil in the target": ({"target": "http://evil.example.org/mcp"}, 404),
    "right in the target": ({"target": "http://127.0.0.1:PORT/mcp"}, 404),
    "evil, forwarded as right": (
        {**header("Host", "evil.example.org"), "add": (("X-Forwarded-Host", "127.0.0.1:PORT"),)},
        421,
    ),
    "evil, forwarded as right in the newer header": (
        {**header("Host", "evil.example.org"), "add": (("Forwarded", "host=127.0.0.1:PORT"),)},
        421,
    ),
}


@pytest.mark.parametrize("name", OTHER_WAYS_TO_NAME_A_HOST)
def test_e2_a_host_that_two_readers_could_understand_differently_is_refused(name: str, served: Served) -> None:
    """Name two hosts to the HTTP server, none, or one in the target and another in the header.

    Control: by its own names, given once, it is reached.
    """
    parts, status = OTHER_WAYS_TO_NAME_A_HOST[name]
    assert attack(served, parts) == (status, False)


ORIGINS: Final = (
    "null",
    "",
    "http://evil.example.org",
    "https://app.example.org:8080",
    "http://app.example.org",
    "http://app.example.org:80801",
    "http://app.example.org:8080/",
    "http://app.example.org:8080.evil.example.org",
    "http://app.example.org:8080@evil.example.org",
    "http://evil-app.example.org:8080",
    "http://APP.example.org:8080",
    "http://app.example.org:8080, http://evil.example.org",
    "http://127.0.0.1:PORT",
    "http://localhost:PORT",
    "http://127.0.0.1",
    "http://[::1]:PORT",
    "file://",
    "chrome-extension://abcdefghijklmnop",
    "*",
)


@pytest.mark.parametrize("origin", ORIGINS)
def test_e2_a_page_from_elsewhere_is_refused_even_with_the_token(origin: str, served: Served) -> None:
    """Send a request from a page: of no origin, a foreign, a look-alike, or another program's on this machine.

    Control: from an origin that is allowed, or by a program that names none, it is done.
    """
    assert attack(served, {"add": (("Origin", origin),)}) == (403, False)


def test_one_origin_that_is_allowed_does_not_hide_another(served: Served) -> None:
    both = (("Origin", ALLOWED_ORIGIN), ("Origin", "http://evil.example.org"))
    assert attack(served, {"add": both}) == (403, False)
    assert attack(served, {"add": both[::-1]}) == (403, False)


def test_control_an_origin_that_is_allowed_is_let_in_and_a_server_that_does_not_look_lets_all_in(
    served: Served, naive: Served
) -> None:
    assert attack(served, {"add": (("Origin", ALLOWED_ORIGIN),)}) == (200, True)
    assert attack(naive, {"add": (("Origin", "http://evil.example.org"),)}) == (200, True)


def test_control_the_sdk_alone_takes_an_empty_origin_for_none_and_of_two_the_first(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    evil = ("Origin", "http://evil.example.org")
    with serving(tmp_path_factory.mktemp("checked"), guarded=False, checked=True) as alone:
        assert attack(alone, {"add": (evil,)}) == (403, False)
        assert attack(alone, {"add": (("Origin", ""),)}) == (200, True)
        assert attack(alone, {"add": (("Origin", ALLOWED_ORIGIN), evil)}) == (200, True)


KINDS: Final = (
    None,
    "",
    "text/plain",
    "text/plain;application/json",
    "text/plain, application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/jsonx",
    "application/json-patch+json",
    "application/json, text/plain",
    "application/json; charset=utf-16",
    "application/json; charset=utf-8; boundary=x",
    "json",
)


@pytest.mark.parametrize("kind", KINDS)
def test_e2_what_a_page_may_send_without_asking_is_not_read(kind: str | None, served: Served) -> None:
    """Send a call as a form or as plain text, which a browser does for any page without asking.

    Control: as JSON it is read, and a server that looks only at the beginning of the type reads another.
    """
    assert attack(served, header("Content-Type", kind)) == (415, False)


def test_a_body_is_not_unpacked_and_its_kind_is_said_once(served: Served) -> None:
    assert attack(served, {"add": (("Content-Encoding", "gzip"),)}) == (415, False)
    assert attack(served, {"add": (("Content-Type", "text/plain"),)}) == (415, False)


@pytest.mark.parametrize("kind", [JSON, "Application/JSON", "application/json; charset=utf-8", "application/json ;"])
def test_control_json_is_read(kind: str, served: Served) -> None:
    assert attack(served, header("Content-Type", kind)) == (200, True)


def test_control_a_server_that_looks_at_the_beginning_of_the_kind_reads_others(naive: Served) -> None:
    assert attack(naive, header("Content-Type", "application/jsonx")) == (200, True)


PREFLIGHT: Final = (
    ("Origin", ALLOWED_ORIGIN),
    ("Access-Control-Request-Method", "POST"),
    ("Access-Control-Request-Headers", "authorization,content-type,mcp-protocol-version"),
    ("Access-Control-Request-Private-Network", "true"),
)


def test_e2_a_browser_that_asks_first_gets_no_permission_not_even_for_an_origin_that_is_allowed(served: Served) -> None:
    """Ask as a browser does whether a page may send the call.

    Control: the call itself, from that origin, is done.
    """
    assert attack(served, {"method": "OPTIONS", **header("Authorization", None), "add": PREFLIGHT}) == (401, False)
    assert attack(served, {"method": "OPTIONS", "add": PREFLIGHT}) == (405, False)


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "PATCH", "HEAD", "TRACE", "POST", "FOO"])
def test_no_method_does_without_the_token(method: str, served: Served) -> None:
    assert attack(served, {"method": method, **header("Authorization", None)}) == (401, False)


@pytest.mark.parametrize("method", ["PUT", "PATCH", "HEAD", "TRACE", "OPTIONS", "post", "FOO"])
def test_only_the_methods_of_the_protocol_exist(method: str, served: Served) -> None:
    assert attack(served, {"method": method}) == (405, False)


TARGETS: Final = (
    *("/", "/mcp/", "//mcp", "/MCP", "/%6dcp", "/mcp%00", "/mcp/../mcp", "/x/../mcp", "/mcp;x", "/mcp%3Fx"),
    *("*", "mcp", "/docs", "/openapi.json", "/sse", "/messages/", "/.well-known/oauth-protected-resource"),
)


@pytest.mark.parametrize("target", TARGETS)
def test_there_is_one_path_and_no_other_way_to_write_it(target: str, served: Served) -> None:
    assert attack(served, {"target": target}) == (404, False)
    assert attack(served, {"target": target, **header("Authorization", None)}) == (401, False)


@pytest.mark.parametrize("upgrade", ["websocket", "h2c", "TLS/1.0"])
def test_a_connection_does_not_become_another_one(upgrade: str, served: Served) -> None:
    wish = (("Connection", "Upgrade"), ("Upgrade", upgrade), ("Sec-WebSocket-Key", "eA=="), ("HTTP2-Settings", "AA"))
    assert attack(served, {"method": "GET", **header("Authorization", None), "add": wish}) == (401, False)
    status, done = attack(served, {"method": "GET", "add": wish})
    assert status not in (101, 200)
    assert not done


def test_e2_what_a_client_of_one_token_began_is_for_nobody_else(served: Served) -> None:
    """Read, go on with or end what another client began, whose identity is known, without its token.

    Control: with the token each of these is done.
    """
    older = {"MCP-Protocol-Version": LEGACY, "Mcp-Method": None, "Mcp-Name": None}
    opened = served.ask(change=older, body=initialize())
    identity = opened.headers["mcp-session-id"]
    assert opened.status == 200
    known = (("Mcp-Session-Id", identity),)
    listing = b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}'
    for method in ("POST", "GET", "DELETE"):
        for token in (None, "Bearer wrong", "Bearer "):
            parts = {"method": method, "change": {**older, "Authorization": token}, "add": known, "body": listing}
            assert served.ask(**parts).status == 401, (method, token)
    note = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
    assert served.ask(change=older, add=known, body=note).status == 202
    assert b"touch" in served.ask(change=older, add=known, body=listing).body
    assert served.ask(method="DELETE", change=older, add=known).status == 200
    assert served.ask(change=older, add=known, body=listing).status == 404


def test_what_identifies_a_client_can_not_be_guessed(served: Served) -> None:
    older = {"MCP-Protocol-Version": LEGACY, "Mcp-Method": None, "Mcp-Name": None}
    seen = [served.ask(change=older, body=initialize()).headers["mcp-session-id"] for _ in range(8)]
    assert len(set(seen)) == 8
    assert all(len(one) == 32 and int(one, 16) >> 64 for one in seen)
    # Version 4: all but six bits are from the kernel's generator
    assert {one[12] for one in seen} == {"4"}


def test_another_server_knows_nothing_of_it(served: Served, tmp_path_factory: pytest.TempPathFactory) -> None:
    older = {"MCP-Protocol-Version": LEGACY, "Mcp-Method": None, "Mcp-Name": None}
    known = (("Mcp-Session-Id", served.ask(change=older, body=initialize()).headers["mcp-session-id"]),)
    with serving(tmp_path_factory.mktemp("second")) as second:
        listing = b'{"jsonrpc":"2.0","id":2,"method":"tools/list"}'
        assert second.ask(change=older, add=known, body=listing).status == 404
        stolen = {**older, "Authorization": f"Bearer {served.token}"}
        assert second.ask(change=stolen, add=known, body=listing).status == 401


def test_the_token_is_in_no_log_no_argument_and_no_variable(served: Served) -> None:
    # The last of this module: the log has all of the attacks before
    assert served.token not in served.log.read_text()
    place = f"/proc/{served.process.pid}"
    for name in ("cmdline", "environ"):
        with open(f"{place}/{name}", "rb") as file:
            assert served.token.encode() not in file.read()
    assert "Traceback" not in served.log.read_text()


SMUGGLED: Final = b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
MOST_SILENT: Final = 16
SILENT_S: Final = 4.0


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server under attack, which waits less long for headers than usual."""
    bounds = {"MOST_SILENT": MOST_SILENT, "HEADERS_WAIT_S": SILENT_S}
    with serving(tmp_path_factory.mktemp("served"), bounds=bounds) as one:
        yield one


def framed(served: Served, *headers: str, body: bytes) -> bytes:
    """Return a request whose body is described by these headers alone."""
    added = tuple((name, value) for name, _, value in (one.partition(":") for one in headers))
    return served.request(body=body, length=False, add=added)


def chunked(body: bytes, size: int = 65536) -> bytes:
    """Return a body in chunks."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


CALL: Final = call_of_touch()
LENGTH: Final = len(CALL)
AMBIGUOUS: Final[dict[str, tuple[tuple[str, ...], bytes]]] = {
    "a length and chunks": ((f"Content-Length:{LENGTH}", "Transfer-Encoding:chunked"), chunked(CALL) + SMUGGLED),
    "chunks and a length": (("Transfer-Encoding:chunked", "Content-Length:4"), chunked(CALL) + SMUGGLED),
    "no length but chunks, and a length of nothing": (
        ("Content-Length:0", "Transfer-Encoding:chunked"),
        chunked(CALL) + SMUGGLED,
    ),
    "two lengths": ((f"Content-Length:{LENGTH}", "Content-Length:0"), CALL + SMUGGLED),
    "two lengths in one": ((f"Content-Length:{LENGTH}, 0",), CALL + SMUGGLED),
    "a length with a sign": ((f"Content-Length:+{LENGTH}",), CALL),
    "a length below nothing": (("Content-Length:-1",), CALL),
    "a length in hexadecimal": ((f"Content-Length:{LENGTH:#x}",), CALL),
    "a length with a blank in it": ((f"Content-Length:{LENGTH} 0",), CALL),
    "a length of many digits": (("Content-Length:" + "9" * 40,), CALL),
    "another coding": (("Transfer-Encoding:gzip, chunked",), chunked(CALL)),
    "chunks twice": (("Transfer-Encoding:chunked", "Transfer-Encoding:chunked"), chunked(CALL)),
    "chunks as nobody writes them": (("Transfer-Encoding:xchunked",), chunked(CALL)),
    "a blank before the colon": (("Transfer-Encoding :chunked",), chunked(CALL)),
    "a chunk of no size": (("Transfer-Encoding:chunked",), b"zz\r\n" + CALL),
    "a NUL in a header": (("X:a\0b", f"Content-Length:{LENGTH}"), CALL),
    "a line end alone in a header": (("X:a\rb", f"Content-Length:{LENGTH}"), CALL),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_e2_a_request_whose_end_two_readers_could_see_differently_ends_the_connection(
    name: str, impatient: Served
) -> None:
    """Hide a second request in the body of a first: two lengths, a length and chunks, codings that nobody knows.

    Control: below, with one length or in chunks, the body is read.
    """
    headers, body = AMBIGUOUS[name]
    before = impatient.marks
    with impatient.connect() as made:
        reply = exchange(made, framed(impatient, *headers, body=body))
        # Nothing of what follows is taken for a request
        assert reply.status == 400, reply
        assert reply.headers["connection"] == "close"
        assert reply.more == b""
        made.settimeout(5)
        with suppress(ConnectionResetError):
            assert made.recv(1) == b""
    assert impatient.marks == before


@pytest.mark.parametrize(
    ("headers", "body"), [((f"Content-Length:{LENGTH}",), CALL), (("Transfer-Encoding:chunked",), chunked(CALL, 10))]
)
def test_control_a_body_of_one_clear_end_is_read(headers: tuple[str, ...], body: bytes, impatient: Served) -> None:
    before = impatient.marks
    assert impatient.send(framed(impatient, *headers, body=body)).status == 200
    assert impatient.marks == before + "x"


def test_a_request_behind_one_that_was_refused_is_not_read(impatient: Served) -> None:
    before = impatient.marks
    refused = impatient.request(change={"Authorization": None})
    with impatient.connect() as made:
        made.sendall(refused + impatient.request())
        received = b""
        with suppress(ConnectionResetError):
            while piece := made.recv(65536):
                received += piece
    assert parse(received).status == 401
    assert received.count(b"HTTP/1.1") == 1
    assert impatient.marks == before


def test_control_two_requests_that_are_right_are_both_answered(impatient: Served) -> None:
    before = impatient.marks
    with impatient.connect() as made:
        assert [exchange(made, impatient.request()).status for _ in range(2)] == [200, 200]
    assert impatient.marks == before + "xx"


@pytest.mark.parametrize("headers", [("Content-Length:4",), ("Transfer-Encoding:chunked",)])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_what_has_no_body_may_bring_none(method: str, headers: tuple[str, ...], impatient: Served) -> None:
    added = tuple((name, value) for name, _, value in (one.partition(":") for one in headers))
    assert impatient.ask(method=method, add=added).status == 400


def test_a_body_that_says_that_it_is_too_large_is_not_waited_for(impatient: Served) -> None:
    with impatient.connect() as made:
        began = time.monotonic()
        head = framed(impatient, f"Content-Length:{MOST_BYTES + 1}", "Expect:100-continue", body=b"")
        assert exchange(made, head).status == 413
        assert time.monotonic() - began < 5


def test_e2_a_body_that_turns_out_too_large_is_refused(impatient: Served) -> None:
    """Send more than the bound in chunks, so that no header says how much it is.

    Control: below, as much as the bound is read.
    """
    body = CALL + b" " * (MOST_BYTES + 1 - LENGTH)
    reply = impatient.send(framed(impatient, "Transfer-Encoding:chunked", body=chunked(body)))
    # What was still under way when the server closed may have taken the reply with it
    assert reply.status in (413, 0)


def test_control_the_largest_body_is_read(impatient: Served) -> None:
    before = impatient.marks
    body = CALL + b" " * (MOST_BYTES - LENGTH)
    assert impatient.send(framed(impatient, f"Content-Length:{MOST_BYTES}", body=body)).status == 200
    assert impatient.send(framed(impatient, "Transfer-Encoding:chunked", body=chunked(body))).status == 200
    assert impatient.marks == before + "xx"


def test_headers_are_counted(impatient: Served) -> None:
    before = impatient.marks
    room = MOST_HEADERS - impatient.request().count(b"\r\n") + 2
    many = tuple((f"X-{number}", "1") for number in range(room))
    assert impatient.ask(add=many).status == 200
    assert impatient.ask(add=(*many, ("X", "1"))).status == 431
    assert impatient.marks == before + "x"


@pytest.mark.parametrize("size", [20_000, 1_000_000])
def test_headers_are_measured(size: int, impatient: Served) -> None:
    assert impatient.ask(add=(("X", "1" * 8_000),)).status == 200
    assert impatient.ask(add=(("X", "1" * size),)).status in (431, 400, 0)
    assert impatient.ask(target="/mcp?" + "x" * size).status in (431, 400, 0)
    assert impatient.ask().status == 200


def test_without_the_token_no_body_is_read(impatient: Served) -> None:
    with impatient.connect() as made:
        head = impatient.request(change={"Authorization": None}, body=b"", length=False, add=(("Content-Length", "4"),))
        assert exchange(made, head).status == 401


def test_e2_slow_clients_hold_up_nobody_and_silent_ones_are_sent_away(impatient: Served) -> None:
    """Hold many connections to the HTTP server open, with half a header or half a body.

    Control: clients with the token, slow ones too, are served meanwhile.
    """
    silent = [impatient.connect() for _ in range(20 * MOST_SILENT)]
    assert until(lambda: sum(not _is_closed(one) for one in silent) <= MOST_SILENT, SILENT_S / 2), "of many few stay"
    slow = [impatient.connect() for _ in range(8)]
    try:
        for one in silent:
            _try_to_send(one, b"POST /mcp HTTP/1.1\r\nHost: ")
        for one in slow:
            one.sendall(framed(impatient, f"Content-Length:{LENGTH}", body=CALL[:10]))
        began = time.monotonic()
        assert impatient.ask().status == 200
        assert time.monotonic() - began < 5
        assert until(lambda: all(_is_closed(one) for one in silent), SILENT_S + 10)
        # Whoever has shown the token may take their time
        for one in slow:
            assert exchange(one, CALL[10:]).status == 200
    finally:
        for one in (*silent, *slow):
            one.close()


def _try_to_send(made: socket.socket, content: bytes) -> None:
    # It may be sent away already, for those who came after
    with suppress(OSError):
        made.sendall(content)


def _is_closed(made: socket.socket) -> bool:
    made.setblocking(False)
    try:
        return made.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def guarded(messages: Iterable[dict[str, Any]], *, body_wait_s: float = 10.0) -> tuple[list[int], int]:
    """Send a request that is right, whose body comes in these messages; return the refusals, and what got through."""
    sent: list[int] = []
    reached: list[bytes] = []
    waiting = iter(messages)

    async def inner(_scope: Any, receive: Any, _send: Any) -> None:
        reached.append((await receive())["body"])

    async def receive() -> Any:
        await asyncio.sleep(0.03)
        return next(waiting)

    async def send(message: Any) -> None:
        if "status" in message:
            sent.append(message["status"])

    headers = [
        (b"host", b"localhost"),
        (b"authorization", b"Bearer " + b"t" * 32),
        (b"content-type", b"application/json"),
    ]
    scope = {"type": "http", "method": "POST", "raw_path": b"/mcp", "query_string": b"", "headers": headers}
    guard = Guard(inner, Token(b"t" * 32), body_wait_s=body_wait_s)
    asyncio.run(asyncio.wait_for(guard(scope, receive, send), 20))
    return sent, sum(map(len, reached))


PART: Final = {"type": "http.request", "body": b" ", "more_body": True}
LAST: Final = {"type": "http.request", "body": b" ", "more_body": False}


def test_a_body_that_takes_too_long_is_given_up() -> None:
    assert guarded(repeat(PART), body_wait_s=0.2) == ([408], 0)


def test_a_client_that_goes_in_the_middle_of_its_body_is_no_failure_of_the_server() -> None:
    assert guarded([PART, PART, {"type": "http.disconnect"}]) == ([], 0)


def test_control_a_body_that_comes_in_parts_gets_through() -> None:
    assert guarded([PART, PART, LAST]) == ([], 3)
