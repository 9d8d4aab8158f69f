# SPDX-License-Identifier: Apache-2.0
"""What a caller gets back from a run, and the text of it that a model reads.

Our failure is never shown as the command's output: it is one line that starts with `ERROR:`.
"""

from __future__ import annotations

from unspill.model.run import Cancelled, Exited, LimitReached, NeverStarted, Signalled, TimedOut, exit_code_of
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from unspill.model.change import ChangeSet
    from unspill.model.layer import RunId
    from unspill.model.operation import Operation
    from unspill.model.run import Hint, Outcome, Output
    from unspill.model.traffic import Connection, Denial

    State = Literal["held", "thrown away", "applied", "needless", "left"]

_MOST_DENIALS = 10
_OF_PLACES = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-.:[]_*")
_HEADINGS: dict[State, str] = {
    "held": "Changes (held, the project is not touched{why}):",
    "thrown away": "Changes (thrown away, the project is not touched{why}):",
    "applied": "Changes (applied to the project):",
    "needless": "Changes (nothing of it had to be applied, the project is not touched):",
    "left": "Not applied (held in the sandbox, later commands see it, the project does not have it):",
}


class RunResult(Record):
    """One run as it ended. `changes` is what this run changed against what it saw.

    `held` if any of it is kept in the sandbox; `operation` is the apply that followed, with what it left and why.
    `flagged` are applied paths that run when somebody builds, tests or pushes. `problem` says why nothing was applied
    although it should have been. `connections` went out through the sandbox's proxy, `denials` were refused by it, each
    with what would allow it. `number` is 0 where the caller gave up before the sandbox was free; not `sandboxed` where
    the person allowed that. `project` is where the host has it, `workspace` the root that the command saw as
    `/workspace`, if it did.
    """

    run: RunId
    number: int
    outcome: Outcome
    stdout: Output
    stderr: Output
    changes: ChangeSet
    held: bool
    duration_s: float
    operation: Operation | None = None
    flagged: tuple[tuple[bytes, str], ...] = ()
    problem: str = ""
    hints: tuple[Hint, ...] = ()
    warnings: tuple[str, ...] = ()
    connections: tuple[Connection, ...] = ()
    denials: tuple[Denial, ...] = ()
    sandboxed: bool = True
    shown_lines: int = 50
    shown_bytes: int = 32 * 1024
    project: bytes = b""
    workspace: bytes = b""

    @property
    def exit_code(self) -> int:
        """The code that `unspill run` exits with: the command's own, 124 timeout, 125 our failure."""
        return exit_code_of(self.outcome)

    @property
    def ok(self) -> bool:
        return self.outcome == Exited(code=0)

    def text(self) -> str:
        """Return stdout, stderr, the exit code if it is not 0, and what changed, cut to the policy's bounds."""
        if isinstance(self.outcome, NeverStarted):
            return _error_text(self.outcome)
        parts = [stream_text(self.stdout), stream_text(self.stderr)]
        printed = "\n".join(part.rstrip("\n") for part in parts if part)
        lines = [] if self.sandboxed else [f"Note: {warning}" for warning in self.warnings]
        lines += [truncate(printed, self.shown_lines, self.shown_bytes)] if printed else []
        lines += [describe_end(self.outcome)] if not self.ok else []
        lines += [f"Note: {hint.text} {hint.remedy}".rstrip() for hint in self.hints]
        lines += network_lines(self.denials)
        if not lines:
            lines.append("No output received from command")
        if self.changes:
            lines += ["", *_change_lines(self)]
        return "\n".join(lines) + "\n"


def network_lines(denials: tuple[Denial, ...]) -> list[str]:
    """Say what was refused; only some of it, since the command chooses how much there is and how it reads."""
    lines = [f"Network: {place_told(denial)} was refused. {denial.remedy}" for denial in denials[:_MOST_DENIALS]]
    if len(denials) > _MOST_DENIALS:
        lines.append(f"Network: {len(denials) - _MOST_DENIALS} more were refused.")
    return lines


def place_told(denial: Denial) -> str:
    """Return where a connection was to go; what is no host name is the command's own text, and not told as ours."""
    return denial.place if _OF_PLACES.issuperset(denial.place) else "something that is not a host name"


def became(result: RunResult) -> list[tuple[State, list[str]]]:
    """Return what became of what a run changed: each state with the lines of what is in it."""
    from unspill.changes.render import applied_part, left_lines

    if not result.changes:
        return []
    operation, changes, project = _as_seen(result)
    if operation is None:
        return [("held" if result.held else "thrown away", _listed(changes, project))]
    if not operation.left:
        # Without a number it did nothing: what was held before, and is gone, the project never had
        return [("applied" if operation.number else "needless", _listed(changes, project))]
    left: tuple[State, list[str]] = ("left", left_lines(operation))
    return [("applied", _listed(applied_part(changes, operation), project)), left] if operation.number else [left]


def _as_seen(result: RunResult) -> tuple[Operation | None, ChangeSet, bytes]:
    """Return what was done, what changed and the project by the paths that the command knows."""
    operation, changes = result.operation, result.changes
    if not result.workspace:
        return operation, changes, result.project
    from unspill.plan.view import to_inside

    def inside(path: bytes) -> bytes:
        return to_inside(path, "rootfs", (result.workspace,))

    if operation is not None:
        roots = tuple(inside(root) for root in operation.roots)
        operation = operation.replace(project=inside(operation.project), roots=roots)
    parts = tuple(part.replace(root=inside(part.root)) for part in changes.roots)
    return operation, changes.replace(roots=parts), inside(result.project)


def _change_lines(result: RunResult) -> list[str]:
    """Say what changed and what became of it, without advice that only the person could follow."""
    why = f" because the apply failed: {result.problem}" if result.problem else ""
    lines = []
    for state, listed in became(result):
        lines += [_HEADINGS[state].format(why=why), *listed]
    return lines


def _listed(changes: ChangeSet, project: bytes) -> list[str]:
    from unspill.changes.render import summary_lines

    return summary_lines(changes, fold_git=True, project=project or None) or ["only times of files"]


def _error_text(outcome: NeverStarted) -> str:
    remedy = f" {outcome.remedy}" if outcome.remedy else ""
    if outcome.exit_code == 125:
        return f"ERROR: sandbox could not be started: {outcome.reason}.{remedy}\n"
    return f"ERROR: command could not be started: {outcome.reason}.{remedy}\nExit code: {outcome.exit_code}\n"


def stream_bytes(output: Output) -> bytes:
    """Return what was kept of a stream, with a mark where something was left out."""
    if not output.left_out:
        return output.kept()
    return b"\n".join([output.head, f"// ... ({output.left_out} bytes left out) ...".encode(), output.tail])


def stream_text(output: Output) -> str:
    """Return the same as text."""
    return stream_bytes(output).decode("utf-8", "backslashreplace")


class Cut(Record):
    """The beginning of a text: how many of its lines that is, and of how many.

    `is_part`: the last of them lacks its end. `left_out` is how many bytes there are after what is shown.
    """

    text: str
    lines: int
    total: int
    is_cut: bool
    is_part: bool
    left_out: int


def cut_text(text: str, lines: int, size: int) -> Cut:
    """Return the first lines of a text, and no more than so many bytes."""
    all_lines = text.split("\n")
    raw = text.encode("utf-8", "surrogatepass")
    shown = len("\n".join(all_lines[:lines]).encode("utf-8", "surrogatepass"))
    cut = raw[: min(shown, size)].decode("utf-8", "ignore")
    end = len(cut.encode("utf-8"))
    if end < shown and cut.endswith("\n"):
        cut, end = cut[:-1], end - 1
    return Cut(
        text=cut,
        lines=cut.count("\n") + 1,
        total=len(all_lines),
        is_cut=end < len(raw),
        is_part=end < shown and raw[end : end + 1] != b"\n",
        left_out=len(raw) - end,
    )


def truncate(text: str, lines: int, size: int) -> str:
    """Cut a text to its first lines and bytes, and say so."""
    cut = cut_text(text, lines, size)
    if not cut.is_cut:
        return text
    part = f", the last in part with {cut.left_out} bytes left out" if cut.is_part else ""
    notice = f"output truncated: showing first {cut.lines} of {cut.total} lines{part}, output too long"
    return f"{cut.text}\n\n// ... ({notice}) ..."


def describe_end(outcome: Outcome) -> str:
    """Return how a run ended, in one line."""
    match outcome:
        case Exited():
            return f"Exit code: {outcome.code}"
        case Signalled():
            return f"Exit code: {128 + outcome.signal} (signal {outcome.signal})"
        case TimedOut():
            return f"Command timed out after {outcome.after_s:g}s\nExit code: 124"
        case Cancelled():
            return "Command was cancelled\nExit code: 130"
        case LimitReached():
            return f"Command killed: the bound {outcome.limit} = {outcome.bound} was reached\nExit code: 137"
        case NeverStarted():
            return f"Command was not started: {outcome.reason}"
