# SPDX-License-Identifier: Apache-2.0
"""Answers that are no proper HTTP: whatever a server sends, it ends in a file or in one of our errors, and soon."""

import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.rootfs.serving import PROXIES
from unspill.errors import RootfsError, RootfsUnreachable
from unspill.rootfs.download import Timeouts, fetch, read_text

pytestmark = pytest.mark.timeout(600)

TWICE = Timeouts(attempts=2, pause=0.0)
MOST = 50_000


class RawServer:
    """Sends fixed bytes to whoever asks."""

    def __init__(self) -> None:
        self.answer: Callable[[socket.socket], None] = lambda _: None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/a"

    def send(self, answer: bytes) -> None:
        self.answer = lambda connection: connection.sendall(answer)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                connection.settimeout(5)
                while not connection.recv(65536).endswith(b"\r\n\r\n"):
                    pass
                self.answer(connection)
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)

    def end(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture(scope="module")
def raw() -> Iterator[RawServer]:
    with pytest.MonkeyPatch.context() as patch:
        for name in PROXIES:
            patch.delenv(name, raising=False)
            patch.delenv(name.upper(), raising=False)
        server = RawServer()
        yield server
        server.end()


def get(raw: RawServer) -> None:
    with tempfile.TemporaryDirectory() as downloads:
        fetch(raw.address, os.fsencode(downloads), most_bytes=MOST, report=lambda _: None, timeouts=TWICE)


ANSWERS = {
    "nothing": b"",
    "no HTTP": b"hello\r\n\r\n",
    "the oldest HTTP": b"<html>hello</html>",
    "a status that is no number": b"HTTP/1.1 OK\r\n\r\n",
    "a status beyond all": b"HTTP/1.1 99999 x\r\n\r\n",
    "headers that stop": b"HTTP/1.1 200 OK\r\nContent-Le",
    "a rest that nobody asked for": b"HTTP/1.1 206 x\r\nContent-Range: bytes 0-4/5\r\nContent-Length: 5\r\n\r\nhello",
    "a range refused that nobody asked for": b"HTTP/1.1 416 x\r\nContent-Length: 5\r\n\r\nhello",
    "endless lines": b"HTTP/1.1 200 OK\r\n" + b"A: " + b"x" * 100_000,
    "endless headers": b"HTTP/1.1 200 OK\r\n" + b"A: x\r\n" * 5000,
    "a chunk of no size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello",
    "a chunk of a negative size": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello",
    "a chunk that stops": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhello",
    "a trailer without end": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + b"A: b\r\n" * 400_000,
    "a redirect to no address": b"HTTP/1.1 302 x\r\nLocation: http://[\r\n\r\n",
    "a redirect to too long a name": b"HTTP/1.1 302 x\r\nLocation: http://" + b"a" * 70 + b".example.org/\r\n\r\n",
    "a redirect that steers the terminal": b"HTTP/1.1 302 x\r\nLocation: http://\x1b[2J/\r\n\r\n",
    "a reason that steers the terminal": b"HTTP/1.1 404 \x1b[2J\r\n\r\n",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_what_is_no_answer_is_unreachable(answer: bytes, raw: RawServer) -> None:
    raw.send(answer)
    with pytest.raises(RootfsUnreachable) as caught:
        get(raw)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 700
    with pytest.raises(RootfsUnreachable):
        read_text(raw.address, most_bytes=MOST, timeouts=TWICE)


def test_a_connection_that_is_reset_is_told(raw: RawServer) -> None:
    def reset(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()

    raw.answer = reset
    with pytest.raises(RootfsUnreachable):
        get(raw)


ODD = {
    "a tag with signs beyond ASCII": b'ETag: "\xff\xfe"\r\n',
    "a tag over two lines": b'ETag: "a\r\n b"\r\n',
    "a tag without end": b'ETag: "' + b"x" * 60_000 + b'"\r\n',
    "a time beyond all": b"Date: x\r\nLast-Modified: Mon, 01 Jan 99999 00:00:00 +99999999999999\r\n",
    "a length twice": b"Content-Length: 10\r\nContent-Length: 10\r\n",
    "an encoding": b"Content-Encoding: gzip\r\n",
}


@pytest.mark.parametrize("header", ODD.values(), ids=ODD)
def test_odd_headers_do_not_prevent_a_next_attempt(header: bytes, raw: RawServer) -> None:
    several = [b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n" + header + b"\r\n01234", b"", b""]
    several[1] = several[0] + b"56789"

    def answer(connection: socket.socket) -> None:
        connection.sendall(several.pop(0))

    raw.answer = answer
    get(raw)


STATUS = [b"HTTP/1.1 ", b"200 ", b"206 ", b"302 ", b"100 ", b"OK"]
HEADERS = [b"Content-Length: ", b"Transfer-Encoding: chunked", b"Content-Range: bytes 0-4/5", b"Location: ", b"ETag: "]
PIECES = st.sampled_from([*STATUS, *HEADERS, b"\r\n", b"\n", b"\0", b":", b"-1", b"5", b"/a", b"hello", b"\xff", b'"'])
HEADS = st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 302 x\r\nLocation: "])


@given(head=HEADS, pieces=st.lists(PIECES, max_size=12))
def test_any_answer_ends_in_a_file_or_in_our_error(raw: RawServer, head: bytes, pieces: list[bytes]) -> None:
    raw.send(head + b"".join(pieces))
    with suppress(RootfsError):
        get(raw)
