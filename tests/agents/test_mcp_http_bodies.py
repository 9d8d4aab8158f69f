# SPDX-License-Identifier: Apache-2.0
"""E2: what is wrong with the bytes of a request: where it ends, how large it is, how slowly it comes.

Against a real server over real sockets; the same bytes with that one thing right do their work.
"""

import asyncio
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import repeat
from typing import Any, Final

import pytest

from tests.agents.http_world import Served, call_of_touch, exchange, parse, serving, until
from unspill.adapters.mcp.http import MOST_BYTES, MOST_HEADERS, Guard, Token

pytestmark = pytest.mark.agents

SMUGGLED: Final = b"POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
MOST_SILENT: Final = 16
SILENT_S: Final = 4.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
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
    name: str, served: Served
) -> None:
    """Hide a second request in the body of a first: two lengths, a length and chunks, codings that nobody knows.

    Control: below, with one length or in chunks, the body is read.
    """
    headers, body = AMBIGUOUS[name]
    before = served.marks
    with served.connect() as made:
        reply = exchange(made, framed(served, *headers, body=body))
        # Nothing of what follows is taken for a request
        assert reply.status == 400, reply
        assert reply.headers["connection"] == "close"
        assert reply.more == b""
        made.settimeout(5)
        with suppress(ConnectionResetError):
            assert made.recv(1) == b""
    assert served.marks == before


@pytest.mark.parametrize(
    ("headers", "body"), [((f"Content-Length:{LENGTH}",), CALL), (("Transfer-Encoding:chunked",), chunked(CALL, 10))]
)
def test_control_a_body_of_one_clear_end_is_read(headers: tuple[str, ...], body: bytes, served: Served) -> None:
    before = served.marks
    assert served.send(framed(served, *headers, body=body)).status == 200
    assert served.marks == before + "x"


def test_a_request_behind_one_that_was_refused_is_not_read(served: Served) -> None:
    before = served.marks
    refused = served.request(change={"Authorization": None})
    with served.connect() as made:
        made.sendall(refused + served.request())
        received = b""
        with suppress(ConnectionResetError):
            while piece := made.recv(65536):
                received += piece
    assert parse(received).status == 401
    assert received.count(b"HTTP/1.1") == 1
    assert served.marks == before


def test_control_two_requests_that_are_right_are_both_answered(served: Served) -> None:
    before = served.marks
    with served.connect() as made:
        assert [exchange(made, served.request()).status for _ in range(2)] == [200, 200]
    assert served.marks == before + "xx"


@pytest.mark.parametrize("headers", [("Content-Length:4",), ("Transfer-Encoding:chunked",)])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_what_has_no_body_may_bring_none(method: str, headers: tuple[str, ...], served: Served) -> None:
    added = tuple((name, value) for name, _, value in (one.partition(":") for one in headers))
    assert served.ask(method=method, add=added).status == 400


def test_a_body_that_says_that_it_is_too_large_is_not_waited_for(served: Served) -> None:
    with served.connect() as made:
        began = time.monotonic()
        head = framed(served, f"Content-Length:{MOST_BYTES + 1}", "Expect:100-continue", body=b"")
        assert exchange(made, head).status == 413
        assert time.monotonic() - began < 5


def test_e2_a_body_that_turns_out_too_large_is_refused(served: Served) -> None:
    """Send more than the bound in chunks, so that no header says how much it is.

    Control: below, as much as the bound is read.
    """
    body = CALL + b" " * (MOST_BYTES + 1 - LENGTH)
    reply = served.send(framed(served, "Transfer-Encoding:chunked", body=chunked(body)))
    # What was still under way when the server closed may have taken the reply with it
    assert reply.status in (413, 0)


def test_control_the_largest_body_is_read(served: Served) -> None:
    before = served.marks
    body = CALL + b" " * (MOST_BYTES - LENGTH)
    assert served.send(framed(served, f"Content-Length:{MOST_BYTES}", body=body)).status == 200
    assert served.send(framed(served, "Transfer-Encoding:chunked", body=chunked(body))).status == 200
    assert served.marks == before + "xx"


def test_headers_are_counted(served: Served) -> None:
    before = served.marks
    room = MOST_HEADERS - served.request().count(b"\r\n") + 2
    many = tuple((f"X-{number}", "1") for number in range(room))
    assert served.ask(add=many).status == 200
    assert served.ask(add=(*many, ("X", "1"))).status == 431
    assert served.marks == before + "x"


@pytest.mark.parametrize("size", [20_000, 1_000_000])
def test_headers_are_measured(size: int, served: Served) -> None:
    assert served.ask(add=(("X", "1" * 8_000),)).status == 200
    assert served.ask(add=(("X", "1" * size),)).status in (431, 400, 0)
    assert served.ask(target="/mcp?" + "x" * size).status in (431, 400, 0)
    assert served.ask().status == 200


def test_without_the_token_no_body_is_read(served: Served) -> None:
    with served.connect() as made:
        head = served.request(change={"Authorization": None}, body=b"", length=False, add=(("Content-Length", "4"),))
        assert exchange(made, head).status == 401


def test_e2_slow_clients_hold_up_nobody_and_silent_ones_are_sent_away(served: Served) -> None:
    """Hold many connections to the HTTP server open, with half a header or half a body.

    Control: clients with the token, slow ones too, are served meanwhile.
    """
    silent = [served.connect() for _ in range(20 * MOST_SILENT)]
    assert until(lambda: sum(not _is_closed(one) for one in silent) <= MOST_SILENT, SILENT_S / 2), "of many few stay"
    slow = [served.connect() for _ in range(8)]
    try:
        for one in silent:
            _try_to_send(one, b"POST /mcp HTTP/1.1\r\nHost: ")
        for one in slow:
            one.sendall(framed(served, f"Content-Length:{LENGTH}", body=CALL[:10]))
        began = time.monotonic()
        assert served.ask().status == 200
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
