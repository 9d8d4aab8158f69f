# SPDX-License-Identifier: Apache-2.0
"""An editor in a process of its own: it edits one file in bursts, in the ways in which programs save files.

Run as a program it reads one line per burst and answers when the burst is over, with how many edits were finished.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, Self

STYLES: Final = ("rename over", "truncate and write", "append")
# Not one of the usual ways: it has the file open for a while before it writes
SLOW: Final = "append slowly"
_HELD_OPEN_S: Final = 0.0005


def edit(path: str, style: str, text: bytes) -> None:
    """Save a file once."""
    if style == "rename over":
        _write(path + "~", os.O_CREAT | os.O_TRUNC, text)
        os.rename(path + "~", path)
    elif style == "truncate and write":
        _write(path, os.O_CREAT | os.O_TRUNC, text)
    else:
        _write(path, os.O_APPEND, text, _HELD_OPEN_S if style == SLOW else 0)


def _write(path: str, flags: int, text: bytes, pause_s: float = 0) -> None:
    fd = os.open(path, os.O_WRONLY | flags, 0o644)
    try:
        if pause_s:
            time.sleep(pause_s)
        os.write(fd, text)
    finally:
        os.close(fd)


def serve(path: str) -> None:
    """Edit as asked until the input ends: style, number of the first edit, how many, and microseconds to wait."""
    for line in sys.stdin:
        style, first, count, delay_us, pause_us = line.rstrip("\n").split("\t")
        time.sleep(int(delay_us) / 1e6)
        finished = []
        for number in range(int(first), int(first) + int(count)):
            try:
                edit(path, style, b"<edit %d>\n" % number)
                finished.append(str(number))
            except FileNotFoundError:
                # The file to be added to is not there: nothing was saved
                pass
            time.sleep(int(pause_us) / 1e6)
        print(*finished, flush=True)


class Editor:
    """The process, and what it has saved so far."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-S", __file__, os.fspath(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._next = 1

    def begin(self, style: str, count: int, delay_us: int, pause_us: int) -> None:
        """Let a burst begin soon."""
        assert self._process.stdin is not None
        print(style, self._next, count, delay_us, pause_us, sep="\t", file=self._process.stdin, flush=True)
        self._next += count

    def wait(self) -> list[bytes]:
        """Wait for the end of the burst; return what was saved."""
        assert self._process.stdout is not None
        return [b"<edit %d>\n" % int(number) for number in self._process.stdout.readline().split()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self._process.communicate(timeout=20)


if __name__ == "__main__":
    serve(sys.argv[1])
