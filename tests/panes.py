# SPDX-License-Identifier: Apache-2.0
"""A real terminal emulator without a screen: a pane of tmux, in a server of its own, and somebody who types there."""

import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

COLUMNS: Final = 60
ROWS: Final = 24
WAIT_S: Final = 30.0


class Pane:
    """One terminal in which a script was run to its end, or in which somebody types."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def tmux(self, *words: str) -> str:
        """Return what tmux answers."""
        command = ["tmux", "-u", "-f", "/dev/null", "-S", os.fspath(self._socket), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=WAIT_S).stdout

    def value(self, name: str) -> str:
        """Return one of the variables that tmux has about the terminal."""
        return self.tmux("display-message", "-p", f"#{{{name}}}").strip()

    def lines(self, *, with_attributes: bool = False) -> list[str]:
        """Return what is on the screen, without the blank lines below it; wrapped lines are one."""
        text = self.tmux("capture-pane", "-p", "-J", *(["-e"] if with_attributes else []))
        return [line.rstrip() for line in text.rstrip().splitlines()]

    def type(self, *keys: str) -> None:
        """Press keys, by the names that tmux has for them: `C-c`, `Enter`; all else is a text."""
        self.tmux("send-keys", *keys)

    def see(self, pattern: str, wait_s: float = WAIT_S) -> str:
        """Wait until something is on the screen; return what that is."""
        deadline = time.monotonic() + wait_s
        while not (found := re.search(pattern, "\n".join(self.lines()), re.MULTILINE)):
            assert time.monotonic() < deadline, (pattern, self.lines())
            time.sleep(0.02)
        return found[0]

    def enter(self, line: str, pattern: str) -> str:
        """Type a line, and wait until something is on the screen that is not there when the line is typed."""
        self.type("-l", line)
        self.see(re.escape(line) + "$")
        self.type("Enter")
        return self.see(pattern)


@contextmanager
def typed(cwd: Path, scratch: Path, *, rows: int = ROWS, columns: int = COLUMNS) -> Iterator[Pane]:
    """Sit somebody at a shell in a terminal, with `out> ` for its prompt."""
    pane = Pane(Path(tempfile.mkdtemp(dir=scratch)) / "socket")
    shell = ["env", "PS1=out> ", "TERM=screen-256color", "bash", "--norc", "--noprofile"]
    pane.tmux("new-session", "-d", "-x", str(columns), "-y", str(rows), "-c", os.fspath(cwd), *shell)
    try:
        pane.see("^out>")
        yield pane
    finally:
        pane.tmux("kill-server")


@contextmanager
def shown(script: str, cwd: Path, scratch: Path) -> Iterator[Pane]:
    """Run a shell script in a terminal of 60 columns and 24 rows, and look at it when the script has ended."""
    # A server that was just ended may still have its socket
    place = Path(tempfile.mkdtemp(dir=scratch))
    done = place / "done"
    pane = Pane(place / "socket")
    waiting = f"{script}\ntouch {shlex.quote(os.fspath(done))}; exec sleep {2 * WAIT_S:.0f}"
    pane.tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), "-c", os.fspath(cwd), "sh", "-c", waiting)
    try:
        deadline = time.monotonic() + WAIT_S
        while not done.exists():
            assert time.monotonic() < deadline, pane.lines()
            time.sleep(0.02)
        # What was written last is on its way from the terminal to tmux
        time.sleep(0.1)
        yield pane
    finally:
        pane.tmux("kill-server")
