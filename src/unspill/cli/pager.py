# SPDX-License-Identifier: Apache-2.0
"""The person's own pager, for verbs that have much to say: on their terminal, and only if it is more than a screen.

It is found without the project: not in its git configuration, and not in a directory of it that is on the PATH, for
commands in a sandbox may have written there. What it gets is escaped already, as for a terminal: of what a sandbox
wrote, nothing but text is in it.
"""

from __future__ import annotations

import os
import signal
import sys

from unspill.errors import UsageError
from unspill.host.places import find_home, read_git_configs
from unspill.plan.view import parse_gitconfig
from unspill.policy.paths import contains
from unspill.runner.plain import start_pager
from unspill.sandbox.project import find_project

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from unspill.runner.plain import PagerProcess

_USUAL = "less -FRX"
# These pass text on as it is, so there is nothing to start
_NONE = ("", "cat")


def run_paged(verb: str, run: Callable[[], int]) -> int:
    """Run a verb with its output in a pager where that is of use; return its exit code."""
    environ = _environ()
    command, is_own = _choose(verb, environ)
    if command in _NONE or os.environ.get("TERM", "dumb") == "dumb" or not _is_found(command, environ):
        return run()
    screen = sys.stdout
    paged = PagedOutput(screen, command, environ, is_eager=is_own)
    sys.stdout = paged
    try:
        return run()
    except BrokenPipeError:
        # The person has seen enough
        return 0
    finally:
        sys.stdout = screen
        paged.finish()


class PagedOutput:
    """A stream that keeps what fits the screen, and starts the pager with what is more; `is_eager`: in any case."""

    def __init__(self, screen: TextIO, command: str, environ: dict[bytes, bytes], *, is_eager: bool) -> None:
        size = os.get_terminal_size(1)
        self._screen = screen
        self._command = command
        self._environ = environ
        self._is_eager = is_eager
        self._columns = size.columns or 80
        # The next prompt needs a row
        self._rows = (size.lines or 24) - 1
        self._kept: list[str] = []
        self._pager: PagerProcess | None = None

    def isatty(self) -> bool:
        """Tell that what is written here comes to a terminal."""
        return True

    def fileno(self) -> int:
        """Return the terminal."""
        return self._screen.fileno()

    def write(self, text: str) -> int:
        """Take a text."""
        if self._pager is not None:
            self._send(text)
            return len(text)
        self._kept.append(text)
        if text:
            self._rows -= sum(len(line) // self._columns for line in text.split("\n")) + text.count("\n")
        if self._rows < 0 or (self._is_eager and text):
            self._start()
        return len(text)

    def flush(self) -> None:
        """Have the pager read what was written so far."""
        if self._pager is not None and self._pager.stdin is not None:
            self._pager.stdin.flush()

    def finish(self) -> None:
        """Print what was kept, or wait until the person leaves the pager."""
        if self._pager is None:
            self._screen.write("".join(self._kept))
            return
        try:
            # Closes its input
            self._pager.communicate()
        except BrokenPipeError:
            self._pager.wait()
        finally:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _start(self) -> None:
        self._screen.flush()
        # Ctrl-C is for the pager, which is on the same terminal
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._pager = start_pager(self._command, self._environ)
        self._send("".join(self._kept))
        self._kept.clear()

    def _send(self, text: str) -> None:
        assert self._pager is not None
        assert self._pager.stdin is not None
        self._pager.stdin.write(text.encode("utf-8", "surrogateescape"))


def _choose(verb: str, environ: dict[bytes, bytes]) -> tuple[str, bool]:
    """Return a pager, and whether it may do more with a text than to show it in pages."""
    for name in ("UNSPILL_PAGER", "PAGER"):
        if name == "PAGER" and verb == "diff" and (of_git := _of_git()):
            return of_git, True
        if (given := environ.get(name.encode())) is not None:
            return os.fsdecode(given).strip(), name == "UNSPILL_PAGER"
    return _USUAL, False


def _of_git() -> str:
    """Return the pager that git shows diffs with, by the person's own configuration; delta is one."""
    found: dict[str, str] = {}
    for text in read_git_configs(find_home(os.getuid(), os.environb.get(b"HOME")).path):
        try:
            found |= {key.lower(): value for key, value in parse_gitconfig(text.decode("utf-8", "replace"))}
        except UsageError:
            continue  # git itself will complain about it
    return (found.get("pager.diff") or found.get("core.pager") or "").strip()


def _environ() -> dict[bytes, bytes]:
    """Return the person's variables, with a PATH on which nothing of the project is found."""
    project = find_project(os.getcwdb())
    places = os.environb.get(b"PATH", os.defpath.encode()).split(b":")
    kept = [place for place in places if place.startswith(b"/") and not contains(project, os.path.realpath(place))]
    return {**os.environb, b"PATH": b":".join(kept)}


def _is_found(command: str, environ: dict[bytes, bytes]) -> bool:
    """Tell whether the program of a command is there: with none, all that it is to show would be lost."""
    program = os.path.expanduser(os.fsencode(command.split(maxsplit=1)[0]))
    if b"/" in program:
        # A relative one would be the project's
        return program.startswith(b"/") and os.access(program, os.X_OK)
    return any(os.access(os.path.join(place, program), os.X_OK) for place in environ[b"PATH"].split(b":"))
