# SPDX-License-Identifier: Apache-2.0
"""Every word that a model or a framework reads after a call: how it ended, what changed, what to do about a refusal.

    answer_run(result)        what a model reads of a run, as text and as values
    answer_error(error)       what it reads where nothing was done
    command_output(result)    the same for a framework that has places of its own for it
    batch_output(results)     the same for several commands of one call

Our own words come first and end at a line such as `Output:`; all that follows is the command's. So whatever a command
prints, it can't pass for how it ended or for what it changed. Our failure is an error of the tool, never output.
"""

from __future__ import annotations

import re
from threading import Lock
from weakref import WeakKeyDictionary

from unspill.errors import DeniedError, FileError, HostError, RootRefused, SandboxUnavailable, UsageError
from unspill.model.policy import Policy
from unspill.model.run import Cancelled, Exited, LimitReached, NeverStarted, Signalled, TimedOut
from unspill.policy.paths import quote
from unspill.record import Record
from unspill.sandbox.result import became, describe_end, place_told

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Any

    from unspill.errors import FileErrorKind, UnspillError
    from unspill.model.change import ChangeSet
    from unspill.model.run import Denial, Hint, Output
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox

    # Where all of a stream can be read, by the run's number and `stdout` or `stderr`
    Where = Callable[[int, str], str]

MARK = "[unspill]"
OUTPUT = "Output:"
CONTENT, ENTRIES, CHANGES, DIFF = "Content:", "Entries:", "Changes:", "Diff:"
_HEADS = frozenset((OUTPUT, CONTENT, ENTRIES, CHANGES, DIFF))
_REST = "Write it to a file, and read the part that you need, to see the rest."
# Their messages are about what the caller gave, or for whoever builds the agent: paths in them may be told
_KNOWN = (UsageError, FileError, DeniedError, HostError)
_MOST = 10
_MOST_VALUES = 1000
_DENIED = "Nothing was run. Do without it, or tell the user what you need and why."
_HEADINGS = {
    "held": "Changes of run {run} (held: later commands see them, the project does not{why}):",
    "discarded": "Changes of run {run} (discarded{why}):",
    "applied": "Changes of run {run} (applied to the project{operation}):",
    "needless": "Changes of run {run} (nothing to apply: the project already matches):",
    "skipped": "Not applied (held: later commands see it, the project does not have it until the user applies it). "
    "What the user reads about it:",
}
_MOST_SHARING = 3
_UNSETTLED = "Note: what it changed is told with the next command's changes, or when the last background run has ended."
# What becomes of changes by default, which frameworks are not told each time
_USUAL = {"apply": "applied", "hold": "held"}

# Words of a command line, of Python and of the configuration
_OF_PERSONS = ("`unspill", "--", "configuration", "in Python", "in the settings", "pull ", "[permissions]", "[secrets]")
_PATH = re.compile(r"(?:^|[^\w.~/])/[\w.]")
_ASK_AGAIN = "If it needs it, call again with `network` set to true: the user is asked."
_ASK_FOR_ROOT = "If the command needs it, call again with that directory in `roots`: the user is asked."
_ELSEWHERE = "Write to the project or to /tmp instead, or tell the user what you need and why."
_REWORDED = {
    "See `unspill log`.": "The answers of `run`, `write`, `edit` and `undo` name runs and operations.",
    "See `unspill changes` for what can be chosen.": "`changes` lists what can be chosen.",
    "Wait for it, or use another sandbox: --sandbox NAME.": "Wait for it, and try again.",
}
_FILE_ADVICE: dict[FileErrorKind, str] = {
    "not_found": "`list` shows what is there.",
    "is_directory": "`list` shows what is in it.",
    "not_a_directory": "`list` shows what is there.",
    "permission_denied": _ELSEWHERE,
    "exists": "Set `replace` to true to replace it, or use `edit`.",
    "too_large": "Ask for less of it, or use a command.",
    "not_text": "Use a command to look at it.",
    "changed": "Read it again, and then decide what to replace.",
    "not_found_in_file": "Read the file, and give the text exactly as it stands there.",
    "ambiguous": "Give more of the text around it, or set `replace_all` to true.",
}

# How often a batch is cut anew until it fits, and the least of a stream that is worth showing
_TRIES = 4
_LEAST = 16
# Of what is not UTF-8 each byte is shown as four
_WIDEST = 4
_CONTINUED = bytes(range(0x80, 0xC0))

_lock = Lock()  # protects _told: several threads may answer for one sandbox
_told: WeakKeyDictionary[Sandbox, int] = WeakKeyDictionary()


class Answer(Record):
    """What a tool returns: `is_error` where the tool failed, not the command.

    `values` is the same for programs, within the same bounds: of each stream of a command as much as of both in `text`.
    """

    text: str
    values: dict[str, Any]
    is_error: bool = False


def answer_run(result: RunResult, *, policy: Policy | None = None, where: Where | None = None) -> Answer:
    """Return what a model is told of a run.

    Args:
        result: The run.
        policy: That of the sandbox, for what can be asked for.
        where: Gives the place at which the model can read all that a stream had, if there is one.
    """
    outcome = result.outcome
    if isinstance(outcome, NeverStarted) and outcome.exit_code == 125:
        told = _with_reason("the sandbox could not be started", outcome.reason)
        return _error("sandbox-unavailable", f"{told}.", for_user(without_paths(outcome.remedy)))
    shown, cut = _shown_output(result, where)
    lines = [*_ending(result), *_refusals(result, policy or Policy()), *change_lines(result), *cut]
    lines += [OUTPUT, shown] if shown else ["The command printed nothing."]
    values = {
        "exit_code": result.exit_code,
        "ended": type(outcome).__name__.lower(),
        "stdout": _stream_values(result, result.stdout),
        "stderr": _stream_values(result, result.stderr),
        **result_values(result),
        "sandboxed": result.sandboxed,
        "duration_s": round(result.duration_s, 3),
    }
    return text_answer(lines, values)


def notes_of(text: str) -> str:
    """Return what an answer says in our own words: all before what comes from commands or files."""
    lines = text.rstrip("\n").split("\n")
    end = next((number for number, line in enumerate(lines) if line in _HEADS), len(lines))
    return "\n".join(lines[:end])


def text_answer(lines: Iterable[str], values: dict[str, Any]) -> Answer:
    """Return an answer of lines."""
    return Answer(text="\n".join(lines) + "\n", values=values)


def answer_error(error: UnspillError, *, policy: Policy | None = None) -> Answer:
    """Return what a model is told where nothing was done: why, and what would help."""
    message, remedy = _of_model(error)
    # What has our mark already is in its final words, which may end with a path
    message = message if message.startswith("ERROR:") or message.endswith((".", "?")) else f"{message}."
    if isinstance(error, FileError):
        advice = file_advice(error, is_masked=(policy or Policy()).secrets.mask)
        answer = _error(error.code, message, advice)
        return answer.replace(values={**answer.values, "kind": error.kind, "remedy": advice})
    if isinstance(error, DeniedError):
        why = f"Why: {error.reason}." if error.reason else ""
        return _error(error.code, message, why, for_user(error.remedy.removeprefix(why).lstrip()), _DENIED)
    return _error(error.code, message, for_user(remedy))


def failure_text(error: UnspillError) -> str:
    """Return the same for a framework, whose model does not have our tools."""
    if isinstance(error, FileError):
        return f"{error.message}. {for_user(error.remedy)}".rstrip()
    return answer_error(error).text.removeprefix("ERROR: ").rstrip()


def own_failure(error: OSError) -> SandboxUnavailable:
    """Return what is told of an error with the sandbox's own files: not its path, which is one of the host."""
    return SandboxUnavailable(f"the sandbox failed: {error.strerror or type(error).__name__}")


def _error(code: str, *told: str) -> Answer:
    text = " ".join(filter(None, told))
    text = text if text.startswith("ERROR:") else f"ERROR: {text}"
    return Answer(text=text + "\n", values={"error": code, "message": text}, is_error=True)


def _of_model(error: UnspillError) -> tuple[str, str]:
    """Return what went wrong and what helps; without the paths that a message for the person may have."""
    if isinstance(error, _KNOWN) and not isinstance(error, RootRefused):
        return error.message, error.remedy
    message = error.message
    if (why := without_paths(message)) != message:
        message = f"the sandbox failed: {why}" if why else f"the sandbox failed ({error.code})"
    return message, without_paths(error.remedy) or error.default_remedy


def _with_reason(what: str, message: str) -> str:
    """Return what failed and why, without a path of the host."""
    why = without_paths(message)
    return f"{what}: {why}" if why else what


def _ending(result: RunResult) -> Iterator[str]:
    if isinstance(result.outcome, NeverStarted):
        remedy = for_user(result.outcome.remedy)
        yield f"The command could not be started: {result.outcome.reason}. {remedy}".rstrip()
        yield f"Exit code: {result.outcome.exit_code}"
    else:
        yield describe_end(result.outcome)
    yield from _unsandboxed(result)


def _unsandboxed(result: RunResult) -> list[str]:
    return [] if result.sandboxed else [f"Note: {warning}" for warning in result.warnings]


def _refusals(result: RunResult, policy: Policy) -> Iterator[str]:
    """Yield what the sandbox kept from a command, and what to do about it."""
    yield from (f"Note: {hint.text} {_hint_advice(hint, policy)}".rstrip() for hint in result.hints[:_MOST])
    for denial in result.denials[:_MOST]:
        # The other rules have it in their remedy
        why = f": {denial.reason}" if denial.reason and denial.rule in ("host", "port", "budget") else ""
        yield f"Network: {place_told(denial)} was refused{why}. {_denial_advice(denial, policy)}"
    if len(result.denials) > _MOST:
        yield f"Network: {len(result.denials) - _MOST} more were refused."


def change_lines(result: RunResult) -> Iterator[str]:
    """Yield what a run changed and what became of it."""
    operation = result.operation
    why = f"; {_with_reason('the apply failed', result.problem)}" if result.problem else ""
    if result.apart:
        why = f"; {result.problem}"
    if not why and result.held and isinstance(result.outcome, TimedOut | LimitReached | Cancelled):
        why = "; what was cut short is not applied by itself"
    number = f" as operation {operation.number}" if operation is not None and operation.number else ""
    for state, lines in became(result):
        yield _HEADINGS[state].format(run=_sharing(result), why=why, operation=number)
        yield from lines
    if result.unsettled:
        yield _UNSETTLED


def _sharing(result: RunResult) -> str:
    """Return the number of a run, and those of the runs that may have changed the same while they shared a sandbox."""
    others = result.shared_with
    if len(others) > _MOST_SHARING:
        return f"{result.number} and {len(others)} others together"
    return " and run ".join(map(str, (result.number, *others))) + (" together" if others else "")


def result_values(result: RunResult) -> dict[str, Any]:
    """Return what a run changed and what became of it, for programs."""
    operation = result.operation
    return {
        "run": result.number,
        **change_values(result.changes),
        "held": result.held,
        "operation": None if operation is None or not operation.number else operation.number,
        "not_applied": [] if operation is None else [quote(left.path) for left in operation.left[:_MOST_VALUES]],
    }


def change_values(changes: ChangeSet) -> dict[str, Any]:
    """Return a change set for programs, as far as the bound."""
    found = list(changes)
    return {
        "changes": [{"kind": change.kind, "path": quote(change.path)} for change in found[:_MOST_VALUES]],
        "changes_left_out": max(0, len(found) - _MOST_VALUES),
    }


def _shown_output(result: RunResult, where: Where | None) -> tuple[str, list[str]]:
    """Return what is shown of the output, and what to say of what is not."""
    streams = {"stdout": result.stdout, "stderr": result.stderr}
    shown = clip(tuple(streams.values()), result.shown_lines, result.shown_bytes)
    if not shown.left_out:
        return shown.text.rstrip("\n"), []
    # One follows the other, so what is cut of the first is at its end, and of the second at its beginning
    is_there = {
        "stdout": shown.head.startswith(result.stdout.kept()),
        "stderr": shown.tail.endswith(result.stderr.kept()),
    }
    partly = [name for name, stream in streams.items() if stream.left_out or not is_there[name]]
    rest = _REST
    if where is not None and result.number:
        rest = f"For the rest read {' and '.join(where(result.number, name) for name in partly)}."
    return shown.text.rstrip("\n"), [f"Note: {shown.told()}. {rest}"]


def _stream_values(result: RunResult, stream: Output) -> dict[str, Any]:
    shown = clip((stream,), result.shown_lines, result.shown_bytes)
    return {"text": shown_as(shown.head), "left_out": shown.left_out, "end": shown_as(shown.tail)}


def interrupted_notes(sandbox: Sandbox) -> list[str]:
    """Return what became of runs that were cut off before their end; each is told once."""
    with _lock:
        known = _told.get(sandbox, 0)
        found = sandbox.interrupted_runs[known:]
        _told[sandbox] = known + len(found)
    held = "What it had changed is held: later commands see it, the project does not."
    gone = "What it had changed was too much to be kept, and is gone."
    return [f"Note: run {run.number} was cut off before its end. {held if run.held else gone}" for run in found]


def with_interrupted(sandbox: Sandbox, answer: Answer) -> Answer:
    """Return an answer that also tells of runs that were cut off, where no model was told of them yet."""
    notes = "".join(f"{note}\n" for note in interrupted_notes(sandbox))
    # An error begins with the word for it, and all that follows `Output:` is the command's
    return answer.replace(text=answer.text + notes if answer.is_error else notes + answer.text)


class CommandOutput(Record):
    """A command for a framework: what it printed (stdout, stderr) apart from our `notes` on it, and how it ended.

    Our lines are marked where they must share a text with the command's. `is_cut`: it printed more than is shown.
    `late_s`: the time limit that ended it. Not `was_started`: no such program (127), or it can't be run (126).
    """

    exit_code: int
    printed: tuple[bytes, bytes]
    notes: tuple[str, ...]
    is_cut: bool = False
    late_s: float | None = None
    was_started: bool = True

    @property
    def is_late(self) -> bool:
        return self.late_s is not None

    @property
    def stdout(self) -> str:
        """What it wrote there; what is not UTF-8 is U+FFFD."""
        return self.printed[0].decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """What it wrote there, and after that our notes."""
        return self.noted_stderr().decode("utf-8", "replace")

    def noted_stderr(self) -> bytes:
        """Return what it wrote to stderr, and after that our notes; where that looks like ours, the last says so."""
        stderr, lines = self.printed[1], self._marked()
        if MARK.encode() in stderr:
            own = f"the last {len(lines) + 1} are" if lines else "this last one is"
            lines.append(f"{MARK} Of the lines that are marked like this, only {own} not from the command.")
        between = b"\n" if lines and stderr and not stderr.endswith(b"\n") else b""
        return stderr + between + b"".join(f"{line}\n".encode("utf-8", "backslashreplace") for line in lines)

    def output(self) -> str:
        """Return what it wrote to stdout, and after that what it wrote to stderr."""
        stdout, stderr = map(shown_as, self.printed)
        return stdout + ("\n" if stdout and stderr and not stdout.endswith("\n") else "") + stderr

    def noted_output(self) -> str:
        """Return our notes, and after a line that ends them what it printed: nothing in there can pass for a note."""
        output = self.output()
        if not self.notes and MARK not in output:
            return output
        end = f"{MARK} {OUTPUT}" if output else f"{MARK} The command printed nothing."
        return "\n".join([*self._marked(), end, output])

    def _marked(self) -> list[str]:
        return [f"{MARK} {note}" for note in self.notes]


def command_output(sandbox: Sandbox, result: RunResult, most: int | None = None) -> CommandOutput:
    """Return a run for a framework, with at most `most` bytes of each stream, by default what the policy keeps."""
    streams, outcome = (result.stdout, result.stderr), result.outcome
    notes = [*interrupted_notes(sandbox), *_notes(result, sandbox.policy)]
    if most is None and (left_out := sum(stream.left_out for stream in streams)):
        notes.append(f"Note: {left_out} bytes are left out where the output says so. {_REST}")
    is_over = isinstance(outcome, LimitReached) and outcome.limit == "output"
    stdout, stderr = (one.marked() if most is None else one.kept()[:most] for one in streams)
    return CommandOutput(
        exit_code=result.exit_code,
        printed=(stdout, stderr),
        notes=tuple(notes),
        is_cut=is_over or any(one.left_out or (most is not None and one.total > most) for one in streams),
        late_s=outcome.after_s if isinstance(outcome, TimedOut) else None,
        was_started=not isinstance(outcome, NeverStarted),
    )


def _notes(result: RunResult, policy: Policy, *, tells_changes: bool = False) -> Iterator[str]:
    """Yield what the exit code and the output do not say of a run: why it was ended, and what was refused.

    What became of changes is among it if that is not what usually does, or with `tells_changes`.
    """
    outcome = result.outcome
    if isinstance(outcome, NeverStarted):
        yield f"The command could not be started: {outcome.reason}."
    elif not isinstance(outcome, Exited | Signalled):
        yield describe_end(outcome).partition("\n")[0]
    yield from _unsandboxed(result)
    # Nothing more can be asked for where only a command is given
    stances = policy.permissions.replace(network="deny", egress="deny", roots="deny")
    yield from _refusals(result, policy.replace(permissions=stances))
    if tells_changes or any(state != _USUAL.get(policy.after) for state, _lines in became(result)):
        yield from change_lines(result)


class Printed(Record):
    """What is shown of one command's output, and how it ended."""

    command: str
    stdout: str
    stderr: str
    exit_code: int
    is_late: bool


class Batch(Record):
    """What was run of the commands of a call; `words` is what we say of that, if there is anything to say."""

    printed: tuple[Printed, ...]
    words: str


def batch_output(
    sandbox: Sandbox, commands: Sequence[str], results: Sequence[RunResult], most: int | None = None
) -> Batch:
    """Return several commands of one call, with at most `most` characters of them all and of our words."""
    policy = sandbox.policy
    notes = [[*interrupted_notes(sandbox), *_notes(result, policy, tells_changes=True)] for result in results]
    return fit(commands, results, notes, most)


def fit(commands: Sequence[str], results: Sequence[RunResult], notes: list[list[str]], most: int | None) -> Batch:
    """Return what is shown of runs, within so many characters with our words about them; without those if need be."""
    batch = compose(commands, results, notes)
    if most is None or size_of(batch) <= most:
        return batch
    sizes = [len(text) for printed in batch.printed for text in (printed.stdout, printed.stderr)]
    room = most - len(batch.words)
    for _ in range(_TRIES):
        batch = compose(commands, results, notes, level_of(sizes, room))
        if size_of(batch) <= most:
            return batch
        # What is said of what is cut takes room as well
        room -= size_of(batch) - most
    return compose(commands, results, notes, 0)


def compose(
    commands: Sequence[str], results: Sequence[RunResult], notes: list[list[str]], level: int | None = None
) -> Batch:
    """Return what is shown of runs, of each stream at most so many bytes, and our notes on each with what is cut."""
    printed, words, is_cut = [], [], False
    for number, (command, result) in enumerate(zip(commands, results, strict=False), 1):
        (stdout, stderr), cut = shown_of(result, level)
        is_late = isinstance(result.outcome, TimedOut)
        printed.append(
            Printed(command=command, stdout=stdout, stderr=stderr, exit_code=result.exit_code, is_late=is_late)
        )
        if said := [*notes[number - 1], *cut]:
            words += [f"About command {number} of {len(commands)}:", *said]
        is_cut |= bool(cut)
    if len(results) < len(commands):
        words.append(f"Those after command {len(results)} were not run.")
    words += [_REST] if is_cut else []
    return Batch(printed=tuple(printed), words="\n".join(words))


def shown_of(result: RunResult, level: int | None = None) -> tuple[list[str], list[str]]:
    """Return what is shown of stdout and of stderr, and what to say of the rest."""
    shown, said = [], []
    most = result.shown_bytes if level is None else min(result.shown_bytes, level)
    for name, stream in (("stdout", result.stdout), ("stderr", result.stderr)):
        found = clip((stream,), result.shown_lines, most)
        is_nothing = found.left_out and most < _LEAST
        shown.append("" if is_nothing else found.text.rstrip("\n"))
        if is_nothing:
            said.append(f"Note: {name} is not shown: {many(stream.total, 'byte')}.")
        elif found.left_out:
            said.append(f"Note: {found.told(name)}.")
    return shown, said


def level_of(sizes: Sequence[int], room: int) -> int:
    """Return how much of each there can be, so that all have room: the short ones whole, the long ones alike."""
    left, level = max(0, room), 0
    for index, size in enumerate(sorted(sizes)):
        share = left // (len(sizes) - index)
        if size > share:
            return share
        left, level = left - size, size
    return level


def size_of(batch: Batch) -> int:
    """Return how many characters a model is shown of all of it."""
    return sum(len(one.stdout) + len(one.stderr) for one in batch.printed) + len(batch.words)


def _hint_advice(hint: Hint, policy: Policy) -> str:
    match hint.code:
        case "network-off" if policy.permissions.network == "deny":
            return "The user's policy allows no more: do without it, or ask the user to change that."
        case "network-off":
            return _ASK_AGAIN
        case "masked-secret":
            return "Do without it, or ask the user for what you need of it."
        case "read-only":
            return _ELSEWHERE
        case "link-leads-out" if policy.permissions.roots == "ask" and "`--root " in hint.remedy:
            return _ASK_FOR_ROOT
    return for_user(hint.remedy)


def _denial_advice(denial: Denial, policy: Policy) -> str:
    match denial.rule:
        case "host" | "port":
            if policy.network.ask:
                return "Do without it, or tell the user why you need it."
            if policy.permissions.egress == "deny":
                return f"Do without it, or ask the user to allow {denial.place} for this project."
            return f"If the command needs it, call again with {denial.place} in `hosts`: the user is asked."
        case "budget":
            return "Transfer less, or ask the user for more."
    return denial.remedy


def file_advice(error: FileError, *, is_masked: bool) -> str:
    """Return what a model can do about a file that can't be had as asked."""
    advice = _FILE_ADVICE.get(error.kind) or for_user(error.remedy)
    if error.kind == "not_found" and is_masked:
        return f"{advice} Files with names of secrets, such as .env, are masked: they seem not to exist."
    return advice


def without_paths(text: str) -> str:
    """Return a message of ours that names no path, or what follows it; nothing where that can't be told apart.

    Where unspill itself fails, its messages are for the person, and their paths those of the person's machine.
    """
    if not _PATH.search(text):
        return text
    head, _colon, reason = text.rpartition(": ")
    return reason if head and not _PATH.search(reason) else ""


def for_user(remedy: str) -> str:
    """Return a remedy whose first sentence with words of a command line is told as something that the user can do.

    The library's own remedies are for the person at a command line; a model needs what it can do itself.
    """
    if remedy in _REWORDED:
        return _REWORDED[remedy]
    sentences = remedy.split(". ")
    for at, sentence in enumerate(sentences):
        if any(word in sentence for word in _OF_PERSONS):
            sentences[at] = f"What the user can do: {sentence}"
            break
    return ". ".join(sentences)


class Clip(Record):
    """What is shown of an output: all of it as `head`, or that and `tail`, with `left_out` bytes between them.

    `total` is the number of lines, None where there is more than was kept. `is_apart`: the tail begins with a line.
    """

    head: bytes
    tail: bytes = b""
    left_out: int = 0
    total: int | None = None
    is_apart: bool = True

    @property
    def mark(self) -> str:
        """What stands for what is left out: nothing that is shown has it."""
        dots = 3
        while b"[%b]" % (b"." * dots) in self.head + b" " + self.tail:
            dots += 1
        return f"[{'.' * dots}]"

    @property
    def text(self) -> str:
        """What is shown, with a mark where something is not: in a line of its own between whole lines."""
        if not self.left_out:
            return shown_as(self.head)
        end = "\n" if self.is_apart else ""
        return f"{shown_as(self.head)}{self.mark}{end}{shown_as(self.tail)}"

    def told(self, what: str = "the output") -> str:
        """Say where the mark is, and what it stands for."""
        is_whole = not self.head or self.head.endswith(b"\n")
        line = _count(self.head)
        place = ("after" if is_whole else "in") + f" line {line}" if line else "before its end"
        left_out = many(self.left_out, "byte")
        if self.total is not None and is_whole and self.is_apart:
            left_out = f"{self.total - line - _count(self.tail)} of {many(self.total, 'line')}"
        return f'{what} is cut {place}, at "{self.mark}": {left_out} left out'


class _Joined(Record):
    """Parts one after the other, each from the beginning of a line on; `ours` is where a line had to be ended."""

    raw: bytes
    ours: tuple[int, ...]


def clip(streams: Sequence[Output], lines: int, size: int) -> Clip:
    """Return what is shown of streams, one after the other: at most so many lines, and bytes as they are shown.

    Most tools say at the end what went wrong, so the end has the larger share of both bounds.
    """
    before, after, missing = _around_the_gap(streams)
    total = None if missing else _count(before.raw)
    if total is not None and total <= lines and _fits(before, size):
        return Clip(head=before.raw, total=total)
    head, tail = _ends(before.raw, after.raw, lines, size)
    left_out = missing + len(before.raw) - len(head) - sum(place >= len(head) for place in before.ours)
    if missing:
        left_out += len(after.raw) - len(tail) - sum(place < len(after.raw) - len(tail) for place in after.ours)
    else:
        left_out -= len(tail) - sum(place >= len(before.raw) - len(tail) for place in before.ours)
    is_apart = not tail or after.raw.endswith(b"\n" + tail)
    return Clip(head=head, tail=tail, left_out=left_out, total=total, is_apart=is_apart)


def shown_as(raw: bytes) -> str:
    """Return bytes of a command as text."""
    return raw.decode("utf-8", "backslashreplace")


def _ends(before: bytes, after: bytes, lines: int, size: int) -> tuple[bytes, bytes]:
    # Nothing but these can be shown, and there may be megabytes between them
    before, after = before[: size + 1], after[-size - 1 :]
    narrow = size * len(before + after) // max(1, _width(before) + _width(after))
    for most in (narrow, size // _WIDEST):
        begins = max(min(1, lines - 1), lines * 2 // 5)
        tail = _last(after, lines - begins, most - most * 2 // 5)
        head = _first(before, lines - _count(tail), most - len(tail))
        if _width(head) + _width(tail) <= size:
            break
    return head, tail


def _around_the_gap(streams: Sequence[Output]) -> tuple[_Joined, _Joined, int]:
    """Return what was kept before the first gap and after the last one, and how much is missing between the two.

    Without a gap both are everything.
    """
    gaps = [index for index, stream in enumerate(streams) if stream.left_out]
    if not gaps:
        whole = _join(stream.kept() for stream in streams)
        return whole, whole, 0
    first, last = gaps[0], gaps[-1]
    head, tail = whole_characters(streams[first].head), _from_a_character(streams[last].tail)
    before = _join((*(stream.kept() for stream in streams[:first]), head))
    after = _join((tail, *(stream.kept() for stream in streams[last + 1 :])))
    return before, after, sum(stream.total for stream in streams[first : last + 1]) - len(head) - len(tail)


def _join(parts: Iterable[bytes]) -> _Joined:
    whole, ours = b"", []
    for part in filter(None, parts):
        if whole and not whole.endswith(b"\n"):
            ours.append(len(whole))
            whole += b"\n"
        whole += part
    return _Joined(raw=whole, ours=tuple(ours))


def _fits(joined: _Joined, size: int) -> bool:
    return len(joined.raw) - len(joined.ours) <= size and _width(joined.raw) - len(joined.ours) <= size


def _first(raw: bytes, lines: int, size: int) -> bytes:
    return whole_characters(b"".join(_lines(raw)[: max(0, lines)])[: max(0, size)])


def _last(raw: bytes, lines: int, size: int) -> bytes:
    found = b"".join(_lines(raw)[-lines:]) if lines > 0 else b""
    if len(found) <= size:
        return found
    return _from_a_character(found[-size:]) if size > 0 else b""


def _from_a_character(raw: bytes) -> bytes:
    """Return it without the end of a character at its beginning, where it was cut."""
    beginning = raw[:3]
    return raw[len(beginning) - len(beginning.lstrip(_CONTINUED)) :]


def _lines(raw: bytes) -> list[bytes]:
    *whole, rest = raw.split(b"\n")
    return [line + b"\n" for line in whole] + ([rest] if rest else [])


def _count(raw: bytes) -> int:
    return raw.count(b"\n") + (not raw.endswith(b"\n") if raw else 0)


def _width(raw: bytes) -> int:
    return len(shown_as(raw).encode())


class Window(Record):
    """Lines of a text, from line `offset` (the first is 0) on. `next_offset` is None where these are the last.

    `left_out`: the only line is longer than the bound, so this many bytes at the end of it are missing.
    """

    lines: tuple[str, ...]
    offset: int
    total: int
    next_offset: int | None
    left_out: int = 0

    def notes(self, tool: str) -> list[str]:
        """Return what a model is told before the lines, if they are not all; `tool` is what shows the rest."""
        if not self.lines:
            return [f"Note: there is nothing from line {self.offset + 1} on: there are {self.total} lines."]
        if not self.offset and self.next_offset is None and not self.left_out:
            return []
        lines = f"lines {self.offset + 1} to {self.offset + len(self.lines)} of {self.total} follow"
        if self.left_out:
            lines += f", and of the last one {many(self.left_out, 'byte')} at the end are left out: it is too long"
        return [f"Note: {lines}.{rest_from(tool, self.next_offset)}"]


def rest_from(tool: str, offset: int | None) -> str:
    """Return the words for where the rest is."""
    return "" if offset is None else f" For the rest call `{tool}` with `offset` {offset}."


def window(lines: Sequence[str], offset: int, most_lines: int, most_bytes: int) -> Window:
    """Return as many lines as the bounds permit, at least a part of one."""
    shown: list[str] = []
    left, left_out = most_bytes, 0
    for line in lines[offset : offset + most_lines]:
        raw = line.encode("utf-8", "surrogatepass")
        if len(raw) >= left:
            if not shown:
                part = whole_characters(raw[:most_bytes])
                shown.append(part.decode("utf-8", "surrogatepass"))
                left_out = len(raw) - len(part)
            break
        shown.append(line)
        left -= len(raw) + 1
    following = offset + len(shown)
    return Window(
        lines=tuple(shown),
        offset=offset,
        total=len(lines),
        next_offset=following if shown and following < len(lines) else None,
        left_out=left_out,
    )


def whole_characters(raw: bytes) -> bytes:
    """Return it without the beginning of a character at its end, where it was cut."""
    for count, byte in enumerate(reversed(raw[-3:]), 1):
        if 0xC2 <= byte <= 0xF4:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return raw[:-count] if count < length else raw
        if not 0x80 <= byte < 0xC0:
            break
    return raw


def many(count: int, what: str) -> str:
    """Return how many there are, as `1 byte` or `2 bytes`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
