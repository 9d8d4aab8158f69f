# SPDX-License-Identifier: Apache-2.0
"""One command executed once: the layers it writes to, how it ended, what it printed, what went out through its proxy.

A layer is one upper directory of one root (or cache) of one sandbox: open while a run writes, sealed for ever after. A
stack is layers in order over a live directory. Outcomes are types, so that our failure can never be mistaken for the
command's. Host names in these records are printable ASCII, whatever the command sent.
"""

from __future__ import annotations

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal, NewType

    LayerId = NewType("LayerId", str)
    RunId = NewType("RunId", str)
    SandboxId = NewType("SandboxId", str)

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

    Verdict = Literal["open", "allowed", "denied", "failed", "cut"]

    DenialRule = Literal["form", "host", "port", "address", "server name", "request", "budget"]
else:
    LayerId = RunId = SandboxId = str


# Of a command, which can have two million and may be given again and again
KEPT_COMMAND_BYTES = 16 * 1024


class Run(Record):
    """The record of one run, as the store keeps it. Of a long command `argv` is the beginning; the rest is counted.

    `shared_with` are the numbers of other runs that wrote to the same layers, in a live sandbox. `session` is that of
    the agent that asked for it, empty for none.
    """

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
    argv_left_out: int = 0
    shared_with: tuple[int, ...] = ()
    session: str = ""


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

    def describe(self) -> str:
        """Return what was reached, with its unit, and the setting that bounds it."""
        text, is_size, setting = _REACHED[self.limit]
        return text.format(_size(self.bound) if is_size else f"{self.bound:,}") + (f" (`{setting}`)" if setting else "")


# What each limit is about, whether it is a number of bytes, and the setting to change
_REACHED: dict[LimitName, tuple[str, bool, str]] = {
    "output": ("it printed more than {}", True, "limits.output_bytes"),
    "layer_bytes": ("it wrote more than {}", True, "limits.layer_bytes"),
    "layer_entries": ("it made more than {} files", False, "limits.layer_entries"),
    "playground_bytes": ("the playground has more than {}", True, "limits.layer_bytes"),
    "playground_entries": ("the playground has more than {} files", False, "limits.layer_entries"),
    "tmp_entries": ("it made more than {} temporary files", False, "limits.layer_entries"),
    "free_space": ("less than {} was left on the disk", True, ""),
    "free_inodes": ("room for fewer than {} files was left on the disk", False, ""),
    "free_memory": ("less than {} of this machine's memory was left", True, ""),
    "file_bytes": ("it made a file of more than {}", True, "limits.file_bytes"),
    "processes": ("it had more than {} processes", False, "limits.processes"),
    "memory": ("it used more than {} of memory", True, "limits.memory_bytes"),
    "open_files": ("it opened more than {} files", False, "limits.open_files"),
}


def _size(count: int) -> str:
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{count / (1 << power):.4g} {unit}"
    return f"{count} bytes"


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
    def text(self) -> str:
        """What was kept, as text: a line says where bytes are missing, and what is not UTF-8 is escaped."""
        return self.marked().decode("utf-8", "backslashreplace")

    @property
    def total(self) -> int:
        return len(self.head) + self.left_out + len(self.tail)

    def kept(self) -> bytes:
        """Return head and tail as one, with nothing between them where nothing was left out."""
        return self.head + self.tail

    def marked(self) -> bytes:
        """Return what was kept, with a line where something was left out."""
        if not self.left_out:
            return self.kept()
        return b"\n".join([self.head, f"// ... ({self.left_out} bytes left out) ...".encode(), self.tail])


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


class TakenAway(Record):
    """Names that somebody took away outside while a live sandbox still showed them, and the directories watched."""

    names: frozenset[bytes] = frozenset()
    watched: frozenset[bytes] = frozenset()

    def covers(self, path: bytes) -> bool:
        """Tell whether a path is one of the names, or below one."""
        while path:
            if path in self.names:
                return True
            path = path.rpartition(b"/")[0]
        return False

    def has_watched(self, path: bytes) -> bool:
        """Tell whether all directories above a path were watched, so that none was exchanged unseen."""
        while path:
            path = path.rpartition(b"/")[0]
            if path not in self.watched:
                return False
        return True


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


class Connection(Record):
    """One connection that the proxy made, or tried to make, for a sandbox.

    `address` is the one that was checked and connected to, empty where there was none. Verdicts: open (still going on),
    allowed (ended by one of its ends), denied (refused after it was made: nothing of the request was sent), failed (no
    such name, nobody listens, too slow), cut (ended by us: budget, or it went on when the run was over).
    """

    host: str
    port: int
    address: str
    up: int
    down: int
    started_ns: int
    ended_ns: int | None
    verdict: Verdict

    @property
    def place(self) -> str:
        """Where it went, as a person writes it."""
        return _place(self.host, self.port)


class Denial(Record):
    """A connection that was refused, by which rule, and what would allow it.

    Rules: form (not a host name), host (not allowed), port (not allowed for this host), address (private, or the
    host's own), server name (TLS asks for another host), request (malformed, or asks for another host), budget.
    `reason` is why, in one clause: for what was asked for, that of whoever was asked.
    """

    host: str
    port: int
    rule: DenialRule
    remedy: str
    times: int = 1
    reason: str = ""

    @property
    def place(self) -> str:
        """Where it was to go, as a person writes it."""
        return _place(self.host, self.port)


class PortTraffic(Record):
    """What went through one port: published, so that the host reached it inside; or exposed, a host's port inside.

    `inside` and `host` are its numbers there; `up` left the sandbox, `down` entered it. `refused` connections were too
    many at once, `failed` ones found nobody who listens.
    """

    is_published: bool
    inside: int
    host: int
    connections: int = 0
    up: int = 0
    down: int = 0
    refused: int = 0
    failed: int = 0


class Traffic(Record):
    """All that went out of one run or was refused, and what went through its ports.

    `left_out` counts what was too much to be kept. `faults` are defects of ours that ended connections: told once,
    never stored.
    """

    connections: tuple[Connection, ...] = ()
    denials: tuple[Denial, ...] = ()
    ports: tuple[PortTraffic, ...] = ()
    left_out: int = 0
    faults: tuple[str, ...] = ()


class Budget(Record):
    """How many bytes may leave and enter a sandbox, all connections together; None is no bound."""

    up: int | None = None
    down: int | None = None


def _place(host: str, port: int) -> str:
    if not port:
        return host  # what was asked for could not be taken apart
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class TimeMark(Record):
    """A moment of a root's own filesystem, taken before mounting, in nanoseconds.

    A live entry whose ctime is not older was changed meanwhile.
    """

    ctime_ns: int


class SealedLayer(Record):
    """An upper directory that nothing writes any more. `run` made it; `mark` precedes its run.

    `cover` is a layer of deletions right over it: it hides secrets that this run alone was shown, and changed.
    """

    id: LayerId
    upper: bytes
    mark: TimeMark
    run: RunId
    cover: bytes | None = None


class OpenLayer(Record):
    """The upper and work directory of the run that is going on."""

    id: LayerId
    upper: bytes
    work: bytes
    mark: TimeMark
    run: RunId


class Stack(Record):
    """A live directory, the sealed layers over it (oldest first) and at most one open layer on top.

    `mask` is a layer of deletions right over the live directory, below all that runs wrote: it hides secrets. `base` is
    a layer below that one, with the repository as it stood when the first of these runs began that wrote to it, or as
    it stands now.
    """

    live: bytes
    device: int
    inode: int
    sealed: tuple[SealedLayer, ...] = ()
    open: OpenLayer | None = None
    mask: bytes | None = None
    base: bytes | None = None

    def below(self, first: int = 0) -> tuple[bytes, ...]:
        """Return the layers under the sealed one of that number, the topmost first, without the live directory."""
        found: list[bytes] = []
        for layer in reversed(self.sealed[:first]):
            found += (layer.upper,) if layer.cover is None else (layer.cover, layer.upper)
        return (*found, *(layer for layer in (self.mask, self.base) if layer is not None))

    def lowers(self) -> tuple[bytes, ...]:
        """Return the lower directories as overlayfs wants them: topmost first, the live one last."""
        return (*self.below(len(self.sealed)), self.live)


if TYPE_CHECKING:
    Outcome = Exited | Signalled | TimedOut | Cancelled | LimitReached | NeverStarted
    Event = Started | OutputChunk | Ended
