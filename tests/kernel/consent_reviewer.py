# SPDX-License-Identifier: Apache-2.0
"""A person who reviews what is held, in a process of their own, at a terminal or through a pipe.

The process is the command line itself, started once: it is told the words of each command by a pipe.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from tests.kernel.terminal_person import ASKED, Person

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROGRAM = """
import json, os, sys
tty = os.open(sys.argv[1], os.O_RDWR)
orders, answers, other = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w"), os.open(sys.argv[2], os.O_RDWR)
from unspill.cli.main import run_words
from unspill.permissions.approvers import TerminalApprover
TerminalApprover.__init__.__kwdefaults__["settle_s"] = 0.02
os.dup2(tty, 0)
for order in orders:
    order = json.loads(order)
    os.ftruncate(other, 0)
    os.lseek(other, 0, 0)
    for number in (1, 2):
        os.dup2(tty if order["terminal"] else other, number)
    print(run_words(order["words"]), file=answers, flush=True)
"""

HEADER = re.compile(r"(added|modified|deleted|replaced|metadata) (\S+)")
HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@(?: hunk (\d+)@?(\w*))?")


@dataclass(frozen=True)
class Hunk:
    """A hunk as it was shown: lines of the old text from the first on give way to others."""

    first: int
    count: int
    lines: tuple[str, ...]

    def applied_to(self, old: str) -> str:
        """Return the old text with this hunk."""
        lines = old.splitlines(keepends=True)
        return "".join([*lines[: self.first - 1], *self.lines, *lines[self.first - 1 + self.count :]])


@dataclass(frozen=True)
class Seen:
    """What one command printed: contents of new files by path, hunks by path and number, tokens by what they name."""

    code: int
    text: str

    def content(self, path: str) -> bytes | None:
        """Return all of a new file, or where a new link leads; None where it was not shown."""
        if f"added {path}\n(empty)\n" in self.text:
            return b""
        lines = self._lines_of(path)
        if lines and lines[0].startswith("-> "):
            return lines[0].encode()
        shown = [line[1:] for line in lines if line.startswith("+") and not line.startswith("+++ b/")]
        return "".join(f"{line}\n" for line in shown).encode() if lines else None

    def hunks(self, path: str) -> dict[int, Hunk]:
        """Return the hunks of a text, as they were numbered."""
        found: dict[int, Hunk] = {}
        lines = self._lines_of(path)
        for at, line in enumerate(lines):
            if match := HUNK.match(line):
                body = lines[
                    at + 1 : next((n for n, one in enumerate(lines) if n > at and HUNK.match(one)), len(lines))
                ]
                new = tuple(one[1:] + "\n" for one in body if one[:1] in ("+", " "))
                found[int(match[3] or 1)] = Hunk(int(match[1]), int(match[2] or 1), new)
        return found

    def token(self, path: str) -> str | None:
        """Return the token that was printed for a held path."""
        match = re.search(rf"--include {re.escape(path)}@(\w+)", self.text)
        return match[1] if match else None

    def hunk_token(self, path: str) -> str | None:
        """Return the token that was printed for the hunks of a file."""
        match = next(filter(None, map(HUNK.match, self._lines_of(path))), None)
        return (match[4] or None) if match else None

    def _lines_of(self, path: str) -> list[str]:
        found: list[str] = []
        is_in = False
        for line in self.text.splitlines():
            if line[:1] not in ("+", "-", " ", "@", "\\"):
                match = HEADER.match(line)
                is_in = match is not None and match[2] == path
            elif is_in:
                found.append(line)
        return found


class Reviewer:
    """The process, its terminal, and the file that stands for a pipe."""

    def __init__(self, cwd: Path, other: Path) -> None:
        self.person = Person()
        self._other = other
        other.touch()
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, os.ttyname(self.person.slave), os.fspath(other)],
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"TERM": "dumb", "NO_COLOR": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_rest: Any) -> None:
        assert self._process.stdin is not None
        self._process.communicate(timeout=30)
        self.person.hang_up()

    def types(self, *words: str, on_terminal: bool = True, meanwhile: Callable[[], None] | None = None) -> Seen:
        """Have one command run; say yes if it asks, after what else happens meanwhile."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.person.seen = ""
        print(json.dumps({"words": words, "terminal": on_terminal}), file=self._process.stdin, flush=True)
        if meanwhile is not None:
            self._answer(meanwhile)
        code = int(self._process.stdout.readline())
        text = self.person.look(0.01) if on_terminal else self._other.read_text()
        return Seen(code, text.replace("\r\n", "\n"))

    def _answer(self, meanwhile: Callable[[], None]) -> None:
        deadline = time.monotonic() + 20
        while ASKED not in self.person.look(0.01):
            assert time.monotonic() < deadline, self.person.seen
            if "Applied" in self.person.seen or "unspill: " in self.person.seen or "ERROR" in self.person.seen:
                return
        meanwhile()
        time.sleep(0.06)
        self.person.type("y\n")
