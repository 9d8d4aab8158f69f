# SPDX-License-Identifier: Apache-2.0
"""A download that takes its time: a bar on a terminal, and Ctrl-C that leaves neither half a rootfs nor half a line."""

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support import Ground

pytestmark = pytest.mark.kernel

TOTAL = 64 << 20
FIRST = 16 << 20


class Slow(BaseHTTPRequestHandler):
    """Sends a quarter of what it promised, and then nothing until it is told to end."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(TOTAL))
        self.end_headers()
        self.wfile.write(bytes(FIRST))
        self.server.ended.wait(30)  # type: ignore[attr-defined]

    def log_message(self, *_words: object) -> None:
        """Say nothing."""


@pytest.fixture
def slow() -> Iterator[str]:
    """The address of an archive that never comes to its end."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
    server.ended = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/root.tar"
    server.ended.set()  # type: ignore[attr-defined]
    server.shutdown()
    thread.join()
    server.server_close()


def read_until(reader: int, wanted: bytes) -> bytes:
    text = b""
    while wanted not in text:
        text += os.read(reader, 4096)
    return text


def read_rest(reader: int) -> bytes:
    text = b""
    try:
        while chunk := os.read(reader, 4096):
            text += chunk
    except OSError:
        pass  # so a terminal says that the other end is closed
    return text


@pytest.mark.timeout(60)
def test_ctrl_c_in_the_middle_leaves_nothing_half_built_and_a_clean_line(ground: Ground, slow: str) -> None:
    ours, theirs = pty.openpty()
    program = str(Path(sys.executable).with_name("unspill"))
    words = [program, "rootfs", "pull", "x", "--archive", slow]
    run = subprocess.Popen(words, cwd=ground.project, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    seen = read_until(ours, b"% of 64.0 MiB")
    assert b"fetching root.tar [" in seen
    run.send_signal(signal.SIGINT)
    rest = read_rest(ours)
    os.close(ours)
    assert run.wait(30) == 130
    assert b"\r\x1b[Kunspill: cancelled; nothing was changed" in rest
    assert b"Traceback" not in rest
    registry = ground.home / ".local/share/unspill/rootfs"
    assert list((registry / "roots").iterdir()) == []
    assert list((registry / "staging").iterdir()) == []
    assert [path.name.endswith(".part") for path in (registry / "downloads").iterdir() if path.is_file()] != []
