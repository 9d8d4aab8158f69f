# SPDX-License-Identifier: Apache-2.0
"""The pipes between a run and its caller: a command never gets a terminal, a file or a socket of the caller's."""

from __future__ import annotations

import os

from unspill.host.numbers import above_standard, make_pipe

_NULL = os.O_RDONLY | os.O_CLOEXEC
_PIPE_READ, _PIPE_WRITE = 0, 1


class Pipes:
    """The pipes of one run: ours are read or written here, theirs go to the command and are closed here."""

    def __init__(self, has_stdin: bool) -> None:
        pipes: list[tuple[int, int]] = []
        try:
            while len(pipes) < (4 if has_stdin else 3):
                pipes.append(make_pipe())
            stdin = pipes[3][_PIPE_READ] if has_stdin else above_standard(os.open(os.devnull, _NULL))
        except OSError:
            for fd in (fd for pipe in pipes for fd in pipe):
                os.close(fd)
            raise
        self.stdout, self.stderr, self.status = (pipe[_PIPE_READ] for pipe in pipes[:3])
        self.stdin: int | None = pipes[3][_PIPE_WRITE] if has_stdin else None
        self.theirs = [stdin, *(pipe[_PIPE_WRITE] for pipe in pipes[:3])]
        for fd in (self.stdout, self.stderr):
            os.set_blocking(fd, False)
        if self.stdin is not None:
            os.set_blocking(self.stdin, False)

    def close_theirs(self) -> None:
        while self.theirs:
            os.close(self.theirs.pop())

    def close_stdin(self) -> None:
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    def read_status(self) -> bytes:
        """Return what bwrap said of the command; only after it is dead, when the pipe has an end."""
        text = b""
        while chunk := os.read(self.status, 4096):
            text += chunk
        return text

    def close(self) -> None:
        self.close_theirs()
        self.close_stdin()
        for fd in (self.stdout, self.stderr, self.status):
            os.close(fd)
