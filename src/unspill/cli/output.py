# SPDX-License-Identifier: Apache-2.0
"""The output of a command on its way to this program's own streams.

A stream that can't be written, on a full disk for example, must not cost what the command changed: the run goes on,
and the person is told. A reader that went away ends the run, as it ends any program in a pipe.
"""

from __future__ import annotations

import os
import stat

from unspill.host.descriptors import write_whole
from unspill.model.run import Ended, OutputChunk, Started

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.screen import Screen, Traces
    from unspill.model.run import Event, StreamName

_NUMBERS = {"stdout": 1, "stderr": 2}
# What records a run and what tells of it
_LOADED = ("sandbox.recording", "cli.outcome", "cli.traffic", "model.rootfs")


class Output:
    """Passes on what a command prints, and keeps why it could not."""

    def __init__(self) -> None:
        self._lost: dict[str, str] = {}
        self._screens: dict[StreamName, Screen | None] = {}
        self._terminals = [number for number in _NUMBERS.values() if os.isatty(number)]
        self._shown: dict[StreamName, bool] = {}
        self._traces: Traces | None = None
        self.is_started = False

    def keep_back(self, event: Event) -> None:
        """Take one event of a run whose output is not shown as it comes."""
        if isinstance(event, Started):
            self.is_started = True
            # While the command begins, when there is nothing else to do; and before anything of it is applied
            for name in _LOADED:
                __import__(f"unspill.{name}")

    def pass_on(self, event: Event) -> None:
        """Take one event of a run."""
        if isinstance(event, OutputChunk):
            screen = self._screen(event.stream)
            self._write(event.stream, event.chunk if screen is None else screen.render(event.chunk))
        elif isinstance(event, Ended):
            for stream, screen in self._screens.items():
                self._write(stream, b"" if screen is None else screen.rest())
        else:
            self.keep_back(event)

    def settle(self) -> None:
        """Take back what the command left in a terminal: our own lines come next."""
        if self._traces is None:
            return
        for number in self._terminals:
            try:
                write_whole(number, self._traces.reset(is_read=number == _NUMBERS["stderr"]))
            except OSError:
                continue  # it is gone; nobody can be told there
        self._traces = None

    def problems(self) -> list[str]:
        """Return a line for each stream of which something is lost."""
        return [f"{stream} could not be written: {why}; the rest of it is lost" for stream, why in self._lost.items()]

    def _screen(self, stream: StreamName) -> Screen | None:
        """Return what stands between a stream and a terminal; elsewhere every byte is passed on as it is."""
        if stream not in self._screens:
            self._screens[stream] = None
            if _NUMBERS[stream] in self._terminals:
                from unspill.cli.screen import Screen

                self._screens[stream] = Screen()
        return self._screens[stream]

    def _write(self, stream: StreamName, content: bytes) -> None:
        if stream in self._lost:
            return
        try:
            write_whole(_NUMBERS[stream], content)
        except BrokenPipeError:
            raise
        except OSError as error:
            self._lost[stream] = error.strerror or str(error)
        if self._terminals and content and self._may_be_shown(stream):
            if self._traces is None:
                from unspill.cli.screen import Traces

                self._traces = Traces()
            self._traces.note(content)

    def _may_be_shown(self, stream: StreamName) -> bool:
        """Tell whether a stream leads to a terminal, by itself or by way of another program such as `tee`."""
        if stream not in self._shown:
            mode = os.fstat(_NUMBERS[stream]).st_mode
            is_read = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
            self._shown[stream] = is_read or _NUMBERS[stream] in self._terminals
        return self._shown[stream]


def marked(line: str) -> str:
    """Return one of our own lines so that it can be told from the command's, where both are on one terminal."""
    return line if line.startswith(" ") and not os.isatty(_NUMBERS["stderr"]) else f"unspill: {line}"
