# SPDX-License-Identifier: Apache-2.0
"""A real terminal emulator without a screen: a pane of tmux, in a server of its own."""

import os
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
    """One terminal in which a script was run to its end."""

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
