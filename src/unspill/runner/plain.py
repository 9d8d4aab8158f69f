# SPDX-License-Identifier: Apache-2.0
"""Runs a command without any sandbox, for a person who has said so: its output, a deadline, and nothing else.

The person's own pager is started here too.

It is in a session of its own, and what is left of its process group at the end is killed. What has left that group
goes on; no bound but the time and the output is kept.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time

from unspill.layers.locks import is_given_up
from unspill.model.run import Cancelled, Exited, LimitReached, NeverStarted, OutputChunk, Signalled, TimedOut
from unspill.runner.perform import Performed
from unspill.runner.watch import make_collectors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

    from unspill.model.policy import Limits
    from unspill.model.run import Outcome
    from unspill.runner.watch import Collector, RunControl

    PagerProcess = subprocess.Popen[bytes]


_CHUNK = 1 << 16
# What a process beyond our reach still writes after the command has ended is not waited for
_LATE_OUTPUT_S = 0.5
_PAUSE_MS = 50


def perform_plainly(
    argv: tuple[bytes, ...], cwd: bytes, environ: dict[bytes, bytes], limits: Limits, control: RunControl
) -> Performed:
    """Run a command to its end; not one that was given up before."""
    collectors = make_collectors(control.spill_dir, limits)
    if is_given_up(control.cancel_fd):
        return _performed(Cancelled(), collectors)
    stdin = _stdin(control.stdin)
    try:
        process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=environ,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126
        failure = NeverStarted(reason=f"{error.strerror}", remedy="Check its name.", exit_code=code)
        return _performed(failure, collectors)
    finally:
        if isinstance(control.stdin, bytes):
            os.close(stdin)
    with process:
        try:
            outcome = _PlainWatch(process, collectors, limits, control).until_end()
        finally:
            _kill(process)
    return _performed(outcome, collectors)


def start_pager(command: str, environ: dict[bytes, bytes]) -> PagerProcess:
    """Start a person's pager on their terminal; what it shows is written to its standard input."""
    return subprocess.Popen(["/bin/sh", "-c", command], env=environ, stdin=subprocess.PIPE)


class _PlainWatch:
    """The loop around one command."""

    def __init__(
        self, process: subprocess.Popen[bytes], collectors: list[Collector], limits: Limits, control: RunControl
    ) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._limits = limits
        self._control = control
        self._outputs: dict[int, tuple[IO[bytes], Collector]] = {
            stream.fileno(): (stream, collector)
            for stream, collector in zip((process.stdout, process.stderr), collectors, strict=True)
        }
        self._stderr = process.stderr.fileno()
        self._stopped: Outcome | None = None
        self._begun = time.monotonic()

    def until_end(self) -> Outcome:
        end_of_output: float | None = None
        while self._outputs and (end_of_output is None or time.monotonic() < end_of_output):
            self._turn()
            if end_of_output is None and self._process.poll() is not None:
                end_of_output = time.monotonic() + _LATE_OUTPUT_S
        while self._process.poll() is None:
            self._turn()
        if self._stopped is not None:
            return self._stopped
        code = self._process.returncode
        return Exited(code=code) if code >= 0 else Signalled(signal=-code)

    def _turn(self) -> None:
        cancel = [] if self._control.cancel_fd is None or self._stopped else [self._control.cancel_fd]
        # Not by select, which ends at descriptor 1023
        waiting = select.poll()
        for fd in (*self._outputs, *cancel):
            waiting.register(fd, select.POLLIN)
        for fd, _events in waiting.poll(_PAUSE_MS):
            if fd in self._outputs:
                self._read(fd)
            else:
                self._stop(Cancelled())
        bound = self._limits.wall_s
        if bound is not None and time.monotonic() - self._begun >= bound:
            self._stop(TimedOut(after_s=bound))

    def _read(self, fd: int) -> None:
        chunk = os.read(fd, _CHUNK)
        if not chunk:
            del self._outputs[fd]
            return
        collector = self._outputs[fd][1]
        collector.add(chunk)
        if self._control.on_event is not None:
            self._control.on_event(OutputChunk(stream="stderr" if fd == self._stderr else "stdout", chunk=chunk))
        bound = self._limits.output_bytes
        if bound is not None and collector.total > bound:
            self._stop(LimitReached(limit="output", bound=bound))

    def _stop(self, why: Outcome) -> None:
        if self._stopped is None and self._process.poll() is None:
            self._stopped = why
            _kill(self._process)


def _stdin(given: bytes | int | None) -> int:
    if not isinstance(given, bytes):
        return subprocess.DEVNULL if given is None else given
    fd = os.memfd_create("stdin")
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(given)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _performed(outcome: Outcome, collectors: list[Collector]) -> Performed:
    stdout, stderr = (collector.finish() for collector in collectors)
    return Performed(outcome=outcome, stdout=stdout, stderr=stderr)


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
