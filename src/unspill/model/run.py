# SPDX-License-Identifier: Apache-2.0
"""One command executed once: how it ended, what it printed, and what a caller may see while it goes on.

Outcomes are types, so that our failure can never be mistaken for the command's.
"""

from __future__ import annotations

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from unspill.model.layer import RunId

    StreamName = Literal["stdout", "stderr"]
    LimitName = Literal[
        "output",
        "layer_bytes",
        "layer_entries",
        "playground_bytes",
        "playground_entries",
        "tmp_entries",
        "free_space",
        "free_inodes",
        "free_memory",
        "file_bytes",
        "processes",
        "memory",
        "open_files",
    ]


class Run(Record):
    """The record of one run, as the store keeps it."""

    id: RunId
    number: int
    sandbox: str
    argv: tuple[bytes, ...]
    cwd: bytes
    started_ns: int
    ended_ns: int | None
    outcome: Outcome | None
    stdout: Output
    stderr: Output
    changed: int = 0
    held: bool = False
    sandboxed: bool = True


class Exited(Record):
    """The command ended by itself."""

    code: int


class Signalled(Record):
    """The command was ended by a signal; inferred from 128+n, which a command can also return by itself."""

    signal: int


class TimedOut(Record):
    """The wall time was over."""

    after_s: float


class Cancelled(Record):
    """The caller gave up."""


class LimitReached(Record):
    """A bound was hit and the run was ended for it."""

    limit: LimitName
    bound: int


class NeverStarted(Record):
    """The command did not run at all. 127: not found, 126: not executable, 125: our failure."""

    reason: str
    remedy: str = ""
    exit_code: int = 125


def exit_code_of(outcome: Outcome) -> int:
    """Return the exit code that `unspill run` ends with."""
    match outcome:
        case Exited():
            return outcome.code
        case Signalled():
            return 128 + outcome.signal
        case TimedOut():
            return 124
        case Cancelled():
            return 130
        case LimitReached():
            return 137
        case NeverStarted():
            return outcome.exit_code


class Output(Record):
    """What was kept of one stream. `left_out` bytes lie between head and tail; `file` has more of it.

    The file has the first bytes up to the cap, `None` where head and tail are all there was.
    """

    head: bytes = b""
    tail: bytes = b""
    left_out: int = 0
    file: bytes | None = None

    @property
    def total(self) -> int:
        return len(self.head) + self.left_out + len(self.tail)

    def kept(self) -> bytes:
        """Return head and tail as one, with nothing between them where nothing was left out."""
        return self.head + self.tail


class Remains(Record):
    """What a run left that is gone: entries in temporary directories, and processes that were alive at its end.

    `lost` and `killed` say how many there were, the paths and command lines are some of them.
    """

    lost: int = 0
    paths: tuple[bytes, ...] = ()
    killed: int = 0
    commands: tuple[bytes, ...] = ()


class Hint(Record):
    """Something that the sandbox refused or did not keep, with the remedy if there is one."""

    code: str
    text: str
    remedy: str


class InheritedInput(int):
    """A descriptor that this program was started with and passes on: nobody chose it for the command."""


class Started(Record):
    """The command is about to be let go; all limits are set."""

    run: RunId


class OutputChunk(Record):
    """Bytes as they arrived; a character may be split between two chunks."""

    stream: StreamName
    chunk: bytes


class Ended(Record):
    """Every process of the run is dead."""

    run: RunId
    outcome: Outcome


if TYPE_CHECKING:
    Outcome = Exited | Signalled | TimedOut | Cancelled | LimitReached | NeverStarted
    Event = Started | OutputChunk | Ended
