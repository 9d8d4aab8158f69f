# SPDX-License-Identifier: Apache-2.0
"""`unspill log`: one line for each run, with what became of its changes; and the names of runs and operations.

`run12` is a run, `op7` an operation, `@` the last run and `@-1` the one before it.
"""

from __future__ import annotations

import os
import time

from unspill.changes.render import safe_text
from unspill.cli.main import NO_PROJECT, SESSION, Option, open_sandbox, verb
from unspill.cli.output import (
    NARROW,
    Paint,
    columns,
    count_text,
    decoded,
    operation_form,
    print_json,
    run_form,
    table_lines,
)
from unspill.errors import UsageError
from unspill.model.operation import reversals_of
from unspill.model.run import Run, exit_code_of
from unspill.policy.paths import quote, show_line
from unspill.record import Record
from unspill.sandbox.files import runs_but_reads, verb_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unspill.cli.main import Arguments
    from unspill.model.operation import Operation, OperationId
    from unspill.model.run import RunId
    from unspill.sandbox.sandbox import Sandbox

_FEW = 3
_ALL = 1_000_000
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_FORMS = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")
# What changes the project though no run is behind it
_OWN_LINES = ("edit", "restore")
_ENDINGS = {
    "TimedOut": "timed out",
    "Cancelled": "cancelled",
    "LimitReached": "limit reached",
    "NeverStarted": "not started",
}
_KINDS = ("apply", "discard", "undo", "redo", "restore", "edit")
_CHOOSING = ("--grep", "--since", "--session")
# The widest that a column is made for
_WIDEST = 28


@verb(
    "List the runs of this sandbox, newest first: how each one ended, what it changed, and what became of that.",
    Option(name="--limit", metavar="N", help="how many to list (default 20)"),
    Option(name="--grep", metavar="TEXT", help="only commands with this text in them"),
    Option(name="--since", metavar="WHEN", help="only since then: 30m, 2h, 3d, 14:30 or 2026-11-01"),
    SESSION.replace(help="only what an agent did in its session (default: the last one)"),
    Option(name="--all", help="also list reads by file tools, and every operation"),
    NO_PROJECT.replace(help="list the runs without a project"),
    positional="[PATH]",
    most=1,
    is_paged=True,
    examples=(
        "unspill log",
        "unspill log --since 2h notes.txt",
        "unspill log --grep make --limit 5",
    ),
)
def log(arguments: Arguments) -> int:
    """List runs, and operations that have none."""
    limit = arguments.count("--limit", 20)
    since_ns = _since(arguments.value("--since"))
    sandbox = open_sandbox(arguments)
    runs, operations, reads, done = _find(arguments, sandbox, limit, since_ns)
    if arguments.flag("--json"):
        forms = [operation_form(operation) for operation in operations]
        print_json({"runs": [run_form(record) for record in runs], "operations": forms, "file_reads": reads})
        return 0
    if not (runs or operations or reads) and not any(map(arguments.flag, _CHOOSING)) and not arguments.words:
        print("No runs yet.")
    paint = Paint(arguments.value("--color"))
    for line in _lines(sandbox, runs, operations, done, limit, paint, with_all=arguments.flag("--all")):
        print(line)
    if reads:
        print(f"and {count_text(reads, 'file read')} (list with --all)")
    return 0


@verb(
    "Say for each line of a file which run wrote it, as far as operations are kept.",
    positional="FILE",
    most=1,
    is_paged=True,
    examples=("unspill blame notes.txt",),
)
def blame(arguments: Arguments) -> int:
    """Print the lines of a file with whoever wrote them."""
    if not arguments.words:
        raise UsageError("no file given", remedy="For example: unspill blame notes.txt")
    sandbox = open_sandbox(arguments)
    lines = sandbox.blame(absolute_path(arguments.words[0]))
    names = {one.id: _author(sandbox, one) for one, _line in lines if not isinstance(one, str)}
    rows = [
        (one, "", line) if isinstance(one, str) else (names[one.id], moment_text(one.at_ns), line)
        for one, line in lines
    ]
    if arguments.flag("--json"):
        print_json({"lines": [{"by": by, "line": decoded(line)} for by, _when, line in rows]})
        return 0
    paint = Paint(arguments.value("--color"))
    cells = [(paint("who", by), paint("dim", when), show_line(line.rstrip(b"\r\n"))) for by, when, line in rows]
    # Lines of content are not cut: a pager can be scrolled sideways
    for text in table_lines(cells, 0) if cells else ():
        print(text)
    return 0


def absolute_path(word: str) -> bytes:
    """Return the absolute path of what a person names; the last part may be a link, which is meant itself."""
    return os.path.normpath(os.path.join(os.path.realpath(os.getcwdb()), os.fsencode(word)))


def _author(sandbox: Sandbox, operation: Operation) -> str:
    """Return the run that an operation applied, or else the operation."""
    for run in operation.runs[-1:] if operation.kind == "apply" else ():
        try:
            return f"run{sandbox.find_run(run).number}"
        except UsageError:
            break
    return f"op{operation.number}"


def is_name(word: str) -> bool:
    """Tell whether a word can name a run or an operation: `run12`, `op7`, `@`, `@-1`."""
    return word.startswith("@") or any(
        word.startswith(kind) and word[len(kind) :].isdecimal() for kind in ("run", "op")
    )


def find_named(sandbox: Sandbox, word: str) -> Run | Operation:
    """Return the run or the operation that a word names: `run12`, `op7`, `@`, `@-1`, or an id.

    Raises:
        UsageError: there is none, or the word is a number alone.
    """
    if word.startswith("op") and word[2:].isdecimal():
        return sandbox.find_operation(word[2:])[0]
    if word.startswith("run") and word[3:].isdecimal():
        return sandbox.find_run(word[3:])
    if word.startswith("@"):
        return _find_before(sandbox, word)
    if word.isdecimal():
        raise _refuse_number(sandbox, word)
    for find in (sandbox.find_run, lambda name: sandbox.find_operation(name)[0]):
        try:
            return find(word)
        except UsageError:
            continue
    raise UsageError(
        f"no such run or operation: {word!r}", remedy="See `unspill log`: run12, op7, or @ for the last run."
    )


def operation_of(sandbox: Sandbox, word: str) -> Operation:
    """Return the operation that a word names; for a run, the last one that applied its changes and was not undone.

    Raises:
        UsageError: there is none.
    """
    found = find_named(sandbox, word)
    if not isinstance(found, Run):
        return found
    done = [one for one in sandbox.operations(limit=_ALL) if one.ending == "done"]
    reversed_by = reversals_of(done)
    applied = [one for one in done if found.id in one.runs and one.of is None]
    for one in applied:
        if one.id not in reversed_by:
            return one
    if applied:
        by = reversed_by[applied[0].id]
        raise UsageError(
            f"what run {found.number} changed is undone already, by op {by.number}",
            remedy=f"To redo it: unspill redo op{applied[0].number}",
        )
    why = "its changes are held" if found.held else "it changed nothing, or that is not kept any more"
    raise UsageError(f"no operation applied run {found.number}: {why}", remedy="See `unspill log`.")


def _find_before(sandbox: Sandbox, word: str) -> Run:
    back = word[1:].removeprefix("-")
    if word != "@" and not (word.startswith("@-") and back.isdecimal() and len(back) < 7):
        raise UsageError(f"not a run: {word!r}", remedy="@ is the last run, @-1 the one before it.")
    count = int(back or 0) + 1
    runs, _reads = runs_but_reads(sandbox, count)
    if len(runs) < count:
        raise UsageError(f"there is no run {word}", remedy="See `unspill log`.")
    return runs[-1]


def _refuse_number(sandbox: Sandbox, word: str) -> UsageError:
    """Return why a number alone is refused, with what it could mean here."""
    meant = []
    for name, find, tell in (
        ("run", sandbox.find_run, lambda run: command_text(run)[:60]),
        ("op", lambda number: sandbox.find_operation(number)[0], lambda operation: operation.kind),
    ):
        try:
            meant.append(f"{name}{word}: {tell(find(word))}")
        except UsageError:
            continue
    if not meant:
        return UsageError(f"no such run or operation: {word}", remedy="See `unspill log`.")
    return UsageError(f"{word} alone may be a run or an operation", remedy=f"Say which. {'; '.join(meant)}.")


def _since(given: str | None) -> int:
    """Return a moment in nanoseconds: so long ago, today at a time, or a date.

    Raises:
        UsageError: it is none.
    """
    if given is None:
        return 0
    number, unit = given[:-1], given[-1:]
    if number.isdecimal() and unit in _UNITS:
        return time.time_ns() - int(number) * _UNITS[unit] * 10**9
    today = time.strftime("%Y-%m-%d ")
    for text, form in ((today + given, "%Y-%m-%d %H:%M"), *((given, form) for form in _FORMS)):
        try:
            return int(time.mktime(time.strptime(text, form))) * 10**9
        except ValueError:
            continue
    raise UsageError(f"--since: {given!r} is not a time", remedy="For example: 30m, 2h, 3d, 14:30, 2026-11-01.")


def _find(
    arguments: Arguments, sandbox: Sandbox, limit: int, since_ns: int
) -> tuple[Sequence[Run], Sequence[Operation], int, Sequence[Operation]]:
    """Return the runs that are wanted, the operations that are, how many reads are left out, and all operations since.

    By the last ones it is told what became of the runs.
    """
    grep, path = arguments.value("--grep"), arguments.words[0] if arguments.words else None
    is_chosen = grep is not None or path is not None or bool(since_ns)
    reads = 0
    if arguments.flag("--session"):
        session = sandbox.find_session(arguments.value("--session") or None)
        runs: Sequence[Run] = session.runs[::-1]
    elif arguments.flag("--all"):
        runs = sandbox.runs(limit=_ALL if is_chosen else limit)
    else:
        runs, reads = runs_but_reads(sandbox, _ALL if is_chosen else limit)
    if since_ns:
        runs = [record for record in runs if record.started_ns >= since_ns]
    if grep is not None:
        runs = [record for record in runs if grep in command_text(record)]
    done = operations = _operations(sandbox, runs, limit, since_ns, is_chosen=is_chosen)
    if grep is not None:
        known = {record.id for record in runs}
        operations = [one for one in operations if known.intersection(one.runs)]
    if arguments.flag("--session"):
        operations = [one for one in operations if one.session == session.name or one.of is not None]
    if path is not None:
        runs, operations = _touching(sandbox, path, runs, operations)
    return runs[:limit], operations, 0 if is_chosen else reads, done


def _operations(
    sandbox: Sandbox, runs: Sequence[Run], limit: int, since_ns: int, *, is_chosen: bool
) -> Sequence[Operation]:
    """Return the operations that may tell what became of these runs, and those that have a line of their own."""
    if is_chosen or len(runs) < limit:
        found = sandbox.operations(limit=_ALL)
    else:
        found = sandbox.operations_since(runs[-1].started_ns)
    return [one for one in found if one.at_ns >= since_ns]


def _touching(
    sandbox: Sandbox, word: str, runs: Sequence[Run], operations: Sequence[Operation]
) -> tuple[Sequence[Run], Sequence[Operation]]:
    """Return of runs and operations those that changed what is at a path, or below it."""
    changers = sandbox.find_changers(absolute_path(word))
    known = set(changers.by_operation)
    # What undid one of them, what redid that, and so on; the oldest come first here
    for one in reversed(operations):
        if one.of in known:
            known.add(one.id)
    applied = changers.held.union(*changers.by_operation.values())
    chosen = [record for record in runs if record.id in applied]
    return chosen, [one for one in operations if one.id in known]


def _lines(
    sandbox: Sandbox,
    runs: Sequence[Run],
    operations: Sequence[Operation],
    done: Sequence[Operation],
    limit: int,
    paint: Paint,
    *,
    with_all: bool,
) -> list[str]:
    """Return the lines of a log, the newest first, each cut to the terminal; by `done` their fate is told."""
    undone, fates = fates_of(done)
    dated = [(record.started_ns, run_line(record, fates.get(record.id, []), undone)) for record in runs]
    for one in operations:
        if with_all or (one.kind in _OWN_LINES and one.ending == "done"):
            dated.append((one.at_ns, _operation_line(sandbox, one, undone)))
    listed = sorted(dated, key=lambda pair: -pair[0])[:limit]
    width = columns()
    rows = [line.cells(at_ns, paint, is_narrow=0 < width < NARROW) for at_ns, line in listed]
    return table_lines(rows, width, widest=_WIDEST)


def fates_of(
    operations: Sequence[Operation],
) -> tuple[Mapping[OperationId, Operation], Mapping[RunId, list[Operation]]]:
    """Return what was undone and by what, and what applied each run; the newest operation comes first."""
    done = [one for one in operations if one.ending == "done"]
    fates: dict[RunId, list[Operation]] = {}
    for one in reversed(done):
        for run in one.runs if one.of is None else ():
            fates.setdefault(run, []).append(one)
    return reversals_of(done), fates


class LogLine(Record):
    """One line of a log, by column."""

    name: str
    took: str
    ending: str
    fate: str
    about: str

    def cells(self, at_ns: int, paint: Paint, *, is_narrow: bool) -> tuple[str, ...]:
        """Return its columns; on a narrow terminal without the times, and without its end where that was well."""
        times = (paint("dim", f"{moment_text(at_ns):>8}"), paint("dim", f"{self.took:>6}"))
        is_bad = is_bad_ending(self.ending)
        ending = paint("bad", self.ending) if is_bad else self.ending
        waits = self.fate.endswith((" held", " not applied"))
        is_gone = self.fate == "no change" or self.fate.endswith("undone")
        fate = paint("held" if waits else "dim" if is_gone else "good", self.fate)
        if is_narrow:
            return paint("name", self.name), ending if is_bad else fate, self.about
        return (paint("name", self.name), *times, ending, fate, self.about)


def run_line(record: Run, applied: Sequence[Operation], undone: Mapping[OperationId, Operation]) -> LogLine:
    """Return the line of a run, with the operations that applied it."""
    took = "" if record.ended_ns is None else duration_text((record.ended_ns - record.started_ns) / 1e9)
    return LogLine(
        name=f"run{record.number}",
        took=took,
        ending=ending_text(record),
        fate=_fate(record, applied, undone),
        about=command_text(record),
    )


def _fate(record: Run, applied: Sequence[Operation], undone: Mapping[OperationId, Operation]) -> str:
    """Return what a run changed, and what became of it."""
    if not record.sandboxed:
        return "not sandboxed"
    words = [
        f"op{one.number}" + " (shared)" * _is_shared(record, one) + " undone" * (one.id in undone)
        for one in applied[-_FEW:]
    ]
    words = [
        word if one.kind == "apply" else f"{one.kind}ed {word}"
        for one, word in zip(applied[-_FEW:], words, strict=True)
    ]
    words += ["held"] if record.held else []
    if not record.changed:
        return ", ".join(words if record.shared_with and words else ["no change", *words])
    return ", ".join([f"{record.changed} changed", *(words or ["not applied"])])


def _is_shared(record: Run, operation: Operation) -> bool:
    """Tell whether an operation has changes that others may have made, who ran beside a run in one sandbox."""
    return bool(record.shared_with) and len(operation.runs) > 1


def _operation_line(sandbox: Sandbox, operation: Operation, undone: Mapping[OperationId, Operation]) -> LogLine:
    fate = f"{operation.changed} changed" + (f", {len(operation.left)} skipped" if operation.left else "")
    fate += ", undone" if operation.id in undone and operation.of is None else ""
    kind = operation.kind if operation.ending == "done" else "rolled back"
    return LogLine(
        name=f"op{operation.number}", took="", ending=kind, fate=fate, about=about_operation(sandbox, operation)
    )


def ending_text(record: Run) -> str:
    """Return how a run ended, in a word or two."""
    if record.outcome is None:
        return "interrupted" if record.ended_ns else "running"
    name = type(record.outcome).__name__
    return _ENDINGS.get(name) or f"exit {exit_code_of(record.outcome)}"


def is_bad_ending(ending: str) -> bool:
    """Tell whether a run ended in a way that deserves a look, by the words for it."""
    return ending not in ("exit 0", "running", *_KINDS)


def moment_text(at_ns: int) -> str:
    """Return a moment as short as it is clear: today the time, this year the day too, else the date."""
    then, now = time.localtime(at_ns / 1e9), time.localtime()
    if (then.tm_year, then.tm_yday) == (now.tm_year, now.tm_yday):
        return time.strftime("%H:%M:%S", then)
    return time.strftime("%b %d %H:%M" if then.tm_year == now.tm_year else "%Y-%m-%d", then)


def duration_text(seconds: float) -> str:
    """Return how long something took, in the largest unit that it fills."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    if seconds < 3600:
        return f"{int(seconds // 60)}m{int(seconds % 60):02}s"
    return f"{int(seconds // 3600)}h{int(seconds % 3600 // 60):02}m"


def command_text(record: Run) -> str:
    """Return what a run was: its words, or what a file tool did."""
    return verb_of(record) or " ".join(quote(word) for word in record.argv)


def about_operation(sandbox: Sandbox, operation: Operation) -> str:
    """Return what an operation was about: another one that it undoes or redoes, or runs that it applied."""
    if operation.of is not None:
        original = find_original(sandbox, operation)
        return f"of op {operation.of if original is None else original}"
    if operation.kind == "edit":
        return f"by {safe_text(operation.asked_by)}"
    names = [_run_name(sandbox, name) for name in operation.runs[:_FEW]]
    more = [f"{len(operation.runs) - _FEW} more"] if len(operation.runs) > _FEW else []
    return "of " + ", ".join([*names, *more]) if names else ""


def find_original(sandbox: Sandbox, operation: Operation) -> int | None:
    """Return the number of what an undo or redo is about; None for other kinds, or if it is pruned."""
    if operation.of is None:
        return None
    original = operation.origin or operation.of
    return next((one.number for one in sandbox.operations(limit=_ALL) if one.id == original), None)


def _run_name(sandbox: Sandbox, run: str) -> str:
    """Return a run as a person would name it."""
    try:
        return f"run {sandbox.find_run(run).number}"
    except UsageError:
        # Of another sandbox, or too old to be recorded still
        return f"run {run}"
