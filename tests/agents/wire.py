# SPDX-License-Identifier: Apache-2.0
"""A client of `unspill mcp` that writes lines as they are, however wrong, and looks at every line that comes back."""

import contextlib
import hashlib
import json
import os
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from tests.prepared import PREPARED_SERVER, PROGRAM

MODERN: Final = "2026-07-28"
LEGACY: Final = "2025-11-25"
PATIENCE_S: Final = 40.0
Era = Literal["legacy", "modern"]
# What a client sends back to a question, each in a message of its own
Person = Callable[[dict[str, Any]], list[dict[str, Any]]]
ERAS: Final[tuple[Era, ...]] = ("legacy", "modern")


class Wire:
    """One server process and the lines from and to it."""

    def __init__(self, process: "subprocess.Popen[bytes]", era: Era, log: Path, person: Person | None = None) -> None:
        self.process = process
        self.era = era
        self.log = log
        self.person = person
        self.wrong: list[str] = []
        self.lines: list[str] = []
        self._answers: dict[str, dict[str, Any]] = {}
        self._news = threading.Condition()
        self._last = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if era == "legacy":
            greeting = {
                "protocolVersion": LEGACY,
                "capabilities": self.capabilities,
                "clientInfo": {"name": "wire", "version": "1"},
            }
            assert "result" in self.ask("initialize", greeting)
            self.note("notifications/initialized")

    @property
    def capabilities(self) -> dict[str, Any]:
        """What the client says it can."""
        return {} if self.person is None else {"elicitation": {}}

    def meta(self) -> dict[str, Any]:
        """Return what a request of the newer protocol says of its client."""
        return {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientInfo": {"name": "wire", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": self.capabilities,
        }

    def put(self, method: str, params: Any = None) -> str:
        """Send a request and return its id."""
        identity, line = self.line_of(method, params)
        self.send(line)
        return identity

    def line_of(self, method: str, params: Any = None) -> tuple[str, bytes]:
        """Return the id and the line of a request."""
        self._last += 1
        identity = f"q{self._last}"
        given = {} if params is None else params
        meta = given.get("_meta") or {} if isinstance(given, dict) else None
        if self.era == "modern" and isinstance(meta, dict):
            params = {**given, "_meta": {**self.meta(), **meta}}
        message = {"jsonrpc": "2.0", "id": identity, "method": method}
        return identity, json.dumps(message if params is None else {**message, "params": params}).encode()

    def note(self, method: str, params: Any = None) -> None:
        """Send a notification."""
        self.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": params or {}}).encode())

    def send(self, line: bytes) -> None:
        """Send a line as it is."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, params: Any = None, *, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """Send a request and return the whole answer to it."""
        return self.answers([self.put(method, params)], patience_s=patience_s)[0]

    def call(self, tool: str, arguments: Any = None, **more: Any) -> dict[str, Any]:
        """Call a tool and return its result."""
        answer = self.ask("tools/call", {"name": tool, "arguments": arguments or {}, **more})
        assert "result" in answer, answer
        return dict(answer["result"])

    def answers(self, identities: Iterable[str], *, patience_s: float = PATIENCE_S) -> list[dict[str, Any]]:
        """Wait for the answers to these requests."""
        wanted = list(identities)
        end = time.monotonic() + patience_s
        with self._news:
            while missing := [one for one in wanted if one not in self._answers]:
                assert self.process.poll() is None, f"the server has ended: {self.log.read_text()[-3000:]}"
                assert time.monotonic() < end, (
                    f"no answer to {missing}, wrong: {self.wrong}: {self.log.read_text()[-3000:]}"
                )
                self._news.wait(0.2)
            return [self._answers.pop(one) for one in wanted]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._take(line)
        with self._news:
            self._news.notify_all()

    def _take(self, line: bytes) -> None:
        try:
            text = line.decode("utf-8")
            message = json.loads(text, parse_constant=_refuse)
            assert isinstance(message, dict)
            assert message["jsonrpc"] == "2.0"
            assert line.endswith(b"\n")
            assert len({"result", "error", "method"} & set(message)) == 1
        except (ValueError, AssertionError, KeyError):
            self.wrong.append(repr(line[:300]))
            return
        if self.person is not None and message.get("method") == "elicitation/create":
            for answer in self.person(message["params"]):
                self.send(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}).encode())
        with self._news:
            self.lines.append(text)
            if isinstance(message.get("id"), str) and "method" not in message:
                self._answers[message["id"]] = message
            self._news.notify_all()

    def close(self) -> None:
        """End the server as a client does: by going away."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.wrong.append("the server did not end when its client went away")
        self._reader.join(10)
        self.process.stdout.close()


def _refuse(constant: str) -> None:
    raise ValueError(constant)


@contextmanager
def wired(
    project: Path,
    log: Path,
    era: Era,
    *options: str,
    pass_fds: tuple[int, ...] = (),
    person: Person | None = None,
) -> Iterator[Wire]:
    """Run `unspill mcp` over a project until the block is left."""
    words = [PROGRAM, "mcp", "--project", os.fspath(project), *options]
    with log.open("ab") as errors:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=project,
            env={**os.environ, **PREPARED_SERVER},
            pass_fds=pass_fds,
        )
    wire = None
    try:
        wire = Wire(process, era, log, person)
        yield wire
    finally:
        if wire is not None:
            wire.close()
        elif process.poll() is None:
            process.kill()
            process.wait()


def digest(*places: Path, but: tuple[Path, ...] = ()) -> dict[str, str]:
    """Return everything there is below these places: names, kinds, modes, times, links, contents."""
    found: dict[str, str] = {}
    waiting = list(places)
    while waiting:
        path = waiting.pop()
        if path in but:
            continue
        seen = path.lstat()
        content = ""
        if stat.S_ISDIR(seen.st_mode):
            waiting += path.iterdir()
        elif stat.S_ISLNK(seen.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(seen.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[os.fspath(path)] = f"{seen.st_mode:o} {seen.st_ino} {seen.st_size} {seen.st_ctime_ns} {content}"
    return found


def descendants(pid: int) -> dict[int, str]:
    """Return the processes that a process has started, and those that these have, with their command lines."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            with contextlib.suppress(OSError):
                found[child] = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            waiting.append(child)
    return found
