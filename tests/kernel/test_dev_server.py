# SPDX-License-Identifier: Apache-2.0
"""Somebody develops a page: a dev server from npm in the background, and edits by runs beside it."""

import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from tests.support import Ground, run_cli
from unspill.errors import SandboxUnavailable
from unspill.sandbox.keeper import find_keepers

pytestmark = [pytest.mark.kernel, pytest.mark.any_bwrap]

SERVER = Path("/opt/unspill-ci/dev-server")
PAGE = '<!doctype html><title>Page</title><script type="module" src="/main.js"></script>\n'
MAIN = 'import { text } from "./text.js"\ndocument.body.append(text)\n'
FIRST, SECOND = (f'export const text = "{word}"\n' for word in ("first", "second"))
WAIT_S = 40


@pytest.fixture
def project(ground: Ground) -> Iterator[Path]:
    """A project with the server and all that it needs; at the end nothing runs there."""
    if not SERVER.exists():
        pytest.skip("the dev server is not installed here: see .ci/setup")
    shutil.copytree(SERVER / "node_modules", ground.project / "node_modules", symlinks=True)
    shutil.copy(SERVER / "package.json", ground.project)
    for name, content in {"index.html": PAGE, "main.js": MAIN, "text.js": FIRST}.items():
        ground.write(name, content)
    yield ground.project
    for link in find_keepers(os.fsencode(ground.state)):
        # One that ends by itself may be gone in between
        with link, suppress(SandboxUnavailable):
            link.ask("stop")


def until(found: Callable[[], Any]) -> Any:
    """Return what is true at last."""
    deadline = time.monotonic() + WAIT_S
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


class Browser:
    """Has a page of the server open, as a browser on the host does: a web socket says when to load it again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self._sock.sendall(
            f"GET / HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: vite-hmr\r\n\r\n".encode()
        )
        self._heard = b""
        self._read_to(b"\r\n\r\n")

    def _read_to(self, mark: bytes) -> bytes:
        while mark not in self._heard:
            chunk = self._sock.recv(1 << 16)
            assert chunk, self._heard
            self._heard += chunk
        found, _mark, self._heard = self._heard.partition(mark)
        return found

    def get(self, path: str) -> str:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=WAIT_S)
        connection.request("GET", f"/{path}", headers={"Accept": "text/html, */*", "Connection": "close"})
        with connection.getresponse() as answer:
            return answer.read().decode()

    def wait_for_reload(self) -> None:
        """Messages are short JSON, so the bytes between two of them need no reading."""
        self._read_to(b'"type":"full-reload"')

    def close(self) -> None:
        self._sock.close()


def open_page(project: Path, *options: str) -> Browser:
    """Start the server in the background, and open its page when it is up."""
    begun = run_cli("run", "-d", *options, "-p", "5173", "--", "npm", "run", "dev", cwd=project)
    assert begun.returncode == 0, begun.stderr
    found = re.search(rb"http://127.0.0.1:(\d+) is port 5173 of the sandbox", begun.stdout)
    assert found is not None, begun.stdout
    until(lambda: b"ready in" in run_cli("logs", cwd=project).stdout)
    browser = Browser(int(found[1]))
    assert 'src="/main.js"' in browser.get("")
    assert "text.js" in browser.get("main.js")
    assert browser.get("text.js").startswith(FIRST.rstrip())
    return browser


def edit(project: Path, *options: str) -> str:
    """Change a file by a run; return what is said of it."""
    done = run_cli("run", *options, "-c", f"printf %s '{SECOND}' > text.js", cwd=project)
    assert done.returncode == 0, done.stderr
    return done.stderr.decode()


@pytest.mark.parametrize("after", ["apply", "hold"])
def test_a_dev_server_reloads_what_a_run_edits_and_the_edit_is_applied_and_undone(project: Path, after: str) -> None:
    browser = open_page(project, f"--{after}")
    said = edit(project, f"--{after}")
    assert "  M text.js" in said
    browser.wait_for_reload()
    assert browser.get("text.js").startswith(SECOND.rstrip())
    assert b"page reload" in run_cli("logs", cwd=project).stdout
    if after == "hold":
        assert (project / "text.js").read_text() == FIRST
        applied = run_cli("apply", "text.js", cwd=project)
        assert applied.stdout == b"Applied 1 change (op 1). Undo: unspill undo\n  M text.js\n"
    assert (project / "text.js").read_text() == SECOND
    undone = run_cli("undo", cwd=project)
    assert (undone.returncode, b"M text.js" in undone.stdout) == (0, True)
    assert (project / "text.js").read_text() == FIRST
    # The server goes on, with what it has
    assert browser.get("text.js").startswith(SECOND.rstrip())
    browser.close()
    stopped = run_cli("stop", cwd=project)
    assert (stopped.returncode, stopped.stdout.startswith(b"Stopped run 1.\n")) == (0, True)
    assert run_cli("ps", cwd=project).stdout == b"Nothing runs in the background.\n"
    assert (project / "text.js").read_text() == FIRST
    held = json.loads(run_cli("changes", "--json", cwd=project).stdout)
    assert "text.js" in json.dumps(held)


@pytest.mark.parametrize("polls", [True, False], ids=["polls", "control"])
def test_a_dev_server_reloads_what_the_person_saves_if_it_polls(project: Path, polls: bool) -> None:
    browser = open_page(project, *(["--env", "CHOKIDAR_USEPOLLING=1"] if polls else []))
    (project / "new").write_text(SECOND)
    (project / "new").rename(project / "text.js")
    if polls:
        browser.wait_for_reload()
    else:
        time.sleep(2)
    assert browser.get("text.js").startswith((SECOND if polls else FIRST).rstrip())
    browser.close()
    assert run_cli("stop", cwd=project).returncode == 0
