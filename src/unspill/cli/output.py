# SPDX-License-Identifier: Apache-2.0
"""The output of a command on its way to this program's own streams.

A stream that can't be written, on a full disk for example, must not cost what the command changed: the run goes on,
and the person is told. A reader that went away ends the run, as it ends any program in a pipe.
"""

from __future__ import annotations

import os

from unspill.host.writing import write_whole
from unspill.model.event import Ended, OutputChunk, Started

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.cli.screen import Screen
    from unspill.model.event import Event
    from unspill.model.run import StreamName

_NUMBERS = {"stdout": 1, "stderr": 2}


class Output:
    """Passes on what a command prints, and keeps why it could not."""

    def __init__(self) -> None:
        self._lost: dict[str, str] = {}
        self._screens: dict[StreamName, Screen | None] = {}
        self.is_started = False

    def keep_back(self, event: Event) -> None:
        """Take one event of a run whose output is not shown as it comes."""
        if isinstance(event, Started):
            self.is_started = True
            # What is needed afterwards is loaded while the command begins, when there is nothing else to do
            __import__("unspill.sandbox.recording")

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

    def problems(self) -> list[str]:
        """Return a line for each stream of which something is lost."""
        return [f"{stream} could not be written: {why}; the rest of it is lost" for stream, why in self._lost.items()]

    def _screen(self, stream: StreamName) -> Screen | None:
        """Return what stands between a stream and a terminal; elsewhere every byte is passed on as it is."""
        if stream not in self._screens:
            self._screens[stream] = None
            if os.isatty(_NUMBERS[stream]):
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
