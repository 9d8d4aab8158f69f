# SPDX-License-Identifier: Apache-2.0
"""Everything the command line prints about runs and operations: words for people, JSON for programs, and the terminal.

What was done comes first, then what was skipped and why, then what to type next. A command that is proposed can be
pasted: names of strangers in it are words of the shell and nothing else.

A terminal answers questions as if they had been typed, changes its title, its clipboard and its past. So of the output
of a command without a terminal text and colours pass, and whatever else a terminal obeys is shown instead. What is not
on a terminal gets every byte as it was. What output leaves in a terminal is taken back before our own lines: they come
last, and nothing hides them.
"""

from __future__ import annotations

import os
import stat
import sys
import time
import unicodedata
from _thread import allocate_lock, start_new_thread
from binascii import b2a_base64

from unspill.changes.render import (
    WHYS,
    applied_part,
    count_changes,
    group_skipped,
    name_here,
    named,
    safe_text,
    skipped_name,
    summary_lines,
    to_plain,
    without_own_files,
)
from unspill.errors import UsageError
from unspill.host.dirfd import write_whole
from unspill.lazy import lazy_module
from unspill.model.operation import AS_A_WHOLE, SAME_LINES, UNCHECKED
from unspill.model.rootfs import NOTE
from unspill.model.run import Exited, NeverStarted, TimedOut, exit_code_of
from unspill.policy.paths import TERMINAL_RESET, quote, shell_word, wrap
from unspill.progress import COUNT
from unspill.sandbox.project import find_project
from unspill.sandbox.result import ROOT_NOTE, STRICT_NOTE, UNHEARD, describe_end, hidden_notes, unsettled_text
from unspill.sandbox.secrets import is_about_secret

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Sequence
    from typing import Any, Literal, Self

    from unspill.model.change import ChangeSet
    from unspill.model.operation import (
        Operation,
        Skipped,
        Why,
    )
    from unspill.model.rootfs import Progress
    from unspill.model.run import Connection, Denial, Outcome, Output, PortTraffic, Run
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox

    Style = Literal["name", "dim", "bad", "good", "held", "who"]
else:
    re = lazy_module("re")  # lazy: terminal

_STYLES: dict[Style, str] = {"name": "1", "dim": "2", "bad": "31", "good": "32", "held": "33", "who": "36"}
# Exit code: something was skipped; the rest was done
LEFT = 6
# Lines of a list
LIMIT = 20
# How the line of a command that is proposed begins
_COMMAND = "      "
# What stands before one at the end of a sentence
_LABELS = (
    *("Apply", "Undo", "Redo", "Discard", "Make one", "See them", "Undo all of it", "As a page"),
    *("To discard held changes", "To try again", "Name the old path"),
)
# To tell what an operation changed is to read all that it changed
_MOST_CHANGES = 1000
_MOST_NAMED = 3
_LONGEST_NAMES = 60
_NOT_FOUND = (126, 127)
_ADD = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
_UNITS = ("KiB", "MiB", "GiB", "TiB")

_REMEDIES = {
    "conflict": "unspill diff{of} {path}, then unspill apply{of} --overwrite {path} or unspill discard{of} {path}",
    "stale": "unspill diff{of} {path}, then unspill apply{of} {path}",
    "earlier": "unspill apply{of} (applies everything that is held)",
    "refused": "unspill discard{of} {path}",
}
_CLASH = "unspill apply{of} --theirs {path} (the run's lines), --ours {path} (yours) or --markers {path} (both)"
_INCLUDED_CONFLICT = "unspill apply{of} --include {path}{token} --overwrite {path}, or unspill discard{of} {path}"
# The person is the one who approves
_REASONS: dict[Why, str] = {**WHYS, "held": "held"}
# Of a repository there is nothing to compare line by line, and its reason says what to do
_REPOSITORY = "unspill apply{of} (tries again), or unspill discard{of} {path}"
_WITH_INCLUDED = "It is applied with the held paths of it that you include."
_REVERSED = "unspill diff{at} --op op{number} {path}, then unspill restore{at} {path} --from op{number}"

# The line of `ProgressLine`, and how often it is written
_CLEAR = "\r\x1b[K"
_PAUSE_S = 0.1
_QUIET_PAUSE_S = 10.0
_BAR = 24
_FEWEST_COLUMNS = 20
_DEFAULT_COLUMNS = 80
# Below, a line of a table has no room for all of its columns
NARROW = 60

_ESC = 0x1B
_NEW_LINE = 0x0A
# New line, return (progress bars), tab, backspace: none of them leaves the line or speaks to the terminal
_PLAIN = frozenset(b"\n\r\t\b")
# Select graphic rendition, erase in line
_FINAL = frozenset(b"mK")
_PARAMETERS = frozenset(b"0123456789;:")
_LONGEST = 48
# All but the controls of ASCII, and of those the ones that never leave the line
_HARMLESS = bytes(byte for byte in range(256) if byte >= 0x20 and byte != 0x7F) + b"\n\r\t\b\a\x1b"
# The controls of eight bits, in UTF-8: sequences may begin with them as well
_C1 = tuple(bytes((0xC2, byte)) for byte in range(0x80, 0xA0))
_PLAIN_TEXT = b"\x1b[0m"
# The only number that some terminals know. It brings back a saved cursor, with attributes: all else must follow it
_LEAVE_ALTERNATE = b"\x1b[?1049l"
# Palette, text, background and cursor; the last one is the Linux console's
_USUAL_COLOURS = b"\x1b]104\x1b\\\x1b]110\x1b\\\x1b]111\x1b\\\x1b]112\x1b\\\x1b]R\x1b\\"
# What leaves the cursor in its row: colours, erasures, columns, how keys and the mouse are sent, whether the cursor is
# shown, letters, questions, titles, links, palettes. Nothing that saves or restores a cursor or sets margins
_STILL_MODES = rb"(?:1|5|9|12|25|100[023456]|101[56]|2004|2026)"
_STILL = (
    rb"\x1b(?:\[(?:[0-9;:]*[mKCDGcn]|0?J|[<=>?][0-9;:]*[umnc]|[0-9]* q|\?%b(?:;%b)*[hl])|[=>\\]|[()*+][0-9A-Z]"
    rb"|\](?:[012478]|1[0-2]|52|104|11[0-2]|133)(?:;[^\x00-\x1f\x7f]*)?(?:\x07|\x1b\\))"
) % (_STILL_MODES, _STILL_MODES)
# What may be the beginning of one
_STILL_BEGUN = rb"\x1b(?:\[[<=>?]?[0-9;:]* ?|[()*+]|\][^\x00-\x1f\x7f]*\x1b?)?"
_LONGEST_STILL = 4096
# Controls that go with them: padding, and other letters
_STILL_CONTROLS = b"\x00\x0e\x0f"
# Nothing is below the last line, whatever lies above
_TO_THE_END = b"\x1b[?6l\x1b[9999;1H\r\n"
# Reorder what is shown: embeddings, overrides, isolates
_REORDERING = frozenset("\u200e\u200f\u061c\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def fit(line: str, number: int = 1, taken: int = 0) -> str:
    """Return a line as rows of the terminal behind a stream, if it is one; names of strangers in it begin no row.

    A command to be pasted is left to the terminal: a mark in it would be read by the shell. One at the end of a
    sentence that is too long gets a line of its own.
    """
    width = columns(number) - taken
    if width <= 0 or line.startswith(f"{_COMMAND}unspill "):
        return line
    sentence, mark, command = line.rpartition(": unspill ")
    # A name that could hold such a text is in double quotes
    if mark and len(line) > width and sentence.endswith(_LABELS) and '"' not in line:
        return f"{wrap(sentence + ':', width, at_words=True)}\n{_COMMAND}unspill {command}"
    return wrap(line, width, at_words=True)


def columns(number: int = 1) -> int:
    """Return how wide the terminal behind a stream is, 0 if it is none or does not say."""
    try:
        return os.get_terminal_size(number).columns if os.isatty(number) else 0
    except OSError:
        return 0


def cut(line: str, most: int) -> str:
    """Return a line that takes at most so many columns, with a mark where it was cut; 0 is no bound. Colours pass."""
    if not most or (len(line) <= most and line.isascii()):
        return line
    at = width = last = 0
    while at < len(line):
        if line[at] == "\033":
            at = line.find("m", at) + 1 or len(line)
            continue
        width += 2 if unicodedata.east_asian_width(line[at]) in "WF" else 1
        if width > most:
            return line[:last] + "…" + (_PLAIN_TEXT.decode() if "\033" in line[:last] else "")
        at += 1
        if width < most:
            last = at
    return line


def table_lines(rows: Sequence[Sequence[str]], most: int, *, widest: int | None = None) -> list[str]:
    """Return rows as lines with aligned columns, cut to `most` columns; the last cell of a row is as long as it is."""
    widths = [max(map(visible_length, column)) for column in zip(*rows, strict=True)]
    widths = widths if widest is None else [min(widest, width) for width in widths]
    lines = []
    for *cells, last in rows:
        padded = [cell + " " * (width - visible_length(cell)) for cell, width in zip(cells, widths, strict=False)]
        lines.append(cut("  ".join([*padded, last]).rstrip(), most))
    return lines


def visible_length(text: str) -> int:
    """Return how many characters of a text are seen: those of colours are not."""
    length, at = len(text), text.find("\033")
    while at >= 0:
        end = text.find("m", at) + 1 or len(text)
        length -= end - at
        at = text.find("\033", end)
    return length


def is_agreed(question: str) -> bool:
    """Ask a person on their terminal; anything but a yes is a no."""
    print(f"{question} [y/N] ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def can_be_asked() -> bool:
    """Tell whether a person sees a question and can answer it."""
    return sys.stdin.isatty() and sys.stdout.isatty()


class Paint:
    """Colours for a few words of what is printed, if they are wanted: `paint("bad", "exit 3")`."""

    def __init__(self, given: str | None) -> None:
        """Take the value of --color.

        Raises:
            UsageError: it is none.
        """
        self.is_on = wants_colour(given)

    def __call__(self, style: Style, text: str) -> str:
        return f"\033[{_STYLES[style]}m{text}\033[0m" if self.is_on and text else text


def wants_colour(given: str | None) -> bool:
    """Tell whether what is printed has colours: by the value of --color, NO_COLOR and FORCE_COLOR, or by itself.

    Raises:
        UsageError: --color says something else.
    """
    given = given or "auto"
    if given not in ("auto", "always", "never"):
        raise UsageError(f"--color is not one of auto, always, never: {given!r}")
    if given != "auto":
        return given == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def print_json(value: object) -> None:
    """Print one JSON object on a line of its own."""
    print(json_line(value))


def json_line(value: object) -> str:
    """Return a value as JSON in ASCII, on one line."""
    import json  # lazy: json

    return json.dumps(value, ensure_ascii=True)


class EventLines:
    """Writes a JSON line for each path that an operation changed, from which an application updates its own index."""

    def __init__(self, given: str) -> None:
        """Take the number of an open descriptor, or a file, to which lines are added.

        Raises:
            UsageError: it can't be written.
        """
        try:
            self._fd = int(given) if given.isdecimal() else os.open(given, _ADD, 0o666)
            # Nothing that is started inherits it
            os.set_inheritable(self._fd, False)
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) else "no such descriptor"
            raise UsageError(
                f"--events can't be written: {given}: {why}", remedy="Give an open descriptor's number, or a file."
            ) from error

    def write(self, operation: Operation) -> None:
        """Write the lines of one operation."""
        is_back = operation.kind == "undo" or operation.ending == "rolled back"
        lines = [
            json_line(
                {
                    "event": "undone" if is_back else "applied",
                    "operation": operation.number,
                    "kind": operation.kind,
                    **named("path", path),
                    "now": _kind_at(path),
                }
            )
            for path in operation.paths
        ]
        write_whole(self._fd, "".join(f"{line}\n" for line in lines).encode("ascii"))


def _kind_at(path: bytes) -> str:
    """Return what is at a path now."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return "gone"
    return {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink"}.get(stat.S_IFMT(mode), "other")


def hidden_lines(sandbox: Sandbox, hidden: tuple[bytes, ...]) -> tuple[str, ...]:
    """Say which entries the next run does not see, because their deletion is held."""
    return hidden_notes(hidden, sandbox.project, seen_from_here, advised("unspill discard{of}", sandbox))


def result_lines(result: RunResult, sandbox: Sandbox) -> list[str]:
    """Say how a run ended, where that is not plain, and what it changed; the grave things first.

    The lines that do not begin with a space are sentences.
    """
    always = (ROOT_NOTE, STRICT_NOTE)
    lines = [warning for warning in result.warnings if warning in always]
    if not result.sandboxed:
        lines += list(result.warnings)
    if not isinstance(result.outcome, Exited):
        is_set = isinstance(result.outcome, TimedOut) and result.outcome.after_s == sandbox.policy.limits.wall_s
        lines.append(describe_end(result.outcome).splitlines()[0] + " (`limits.wall_s`)" * is_set)
    if isinstance(result.outcome, NeverStarted) and result.outcome.remedy:
        lines.append(f"  {result.outcome.remedy}")
    if result.exit_code in _NOT_FOUND:
        # What the sandbox does not show of this host may be what is missing
        lines += [warning for warning in result.warnings if warning not in always]
    else:
        told = (NOTE, UNHEARD)
        lines += [warning for warning in result.warnings if is_about_secret(warning) or warning.startswith(told)]
    lines += ["\n  ".join(filter(None, (hint.text, hint.remedy))) for hint in result.hints]
    if result.denials:
        lines += refused_lines(result.denials)
    for port in result.ports:
        if port.refused:
            lines.append(f"Refused {count_text(port.refused, 'connection')} to port {port.inside}: too many at once.")
    if result.unsettled:
        lines.append(unsettled_text(result.shared_with))
    if result.changes:
        lines += outcome_lines(result, sandbox, news=_news(sandbox, result.operation, 2))
    is_told = result.changes and (result.operation is None or result.operation.left)
    if result.held and not is_told:
        # What an earlier checkpoint skipped, or somebody undid since
        lines.append(f"Sandbox {sandbox.name!r} still holds changes: see {advised('unspill changes{of}', sandbox)}")
    return [part for line in lines for part in line.split("\n")]


def outcome_lines(result: RunResult, sandbox: Sandbox, news: Iterable[tuple[bytes, str]] = ()) -> list[str]:
    """Say what became of a run's changes: applied, held or discarded; `news` are flagged paths to tell of."""
    if result.operation is not None:
        return _applied(result, result.operation, sandbox, news)
    if result.apart:
        name = shell_word(os.fsencode(result.apart))
        command = advised("unspill apply --sandbox {name}{at}", sandbox, name=name)
        what = f"Held in sandbox {result.apart!r}. Apply: {command}"
        return [*_listed(result.changes, what, sandbox.project), f"  {safe_text(result.problem)}"]
    if result.held:
        what = f"Held in sandbox {sandbox.name!r} (run {result.number}). Apply: {advised('unspill apply{of}', sandbox)}"
    else:
        what = f"Discarded (run {result.number}); your project is unchanged."
    lines = _listed(result.changes, what, sandbox.project)
    if result.problem:
        lines.append(f"Not applied: {safe_text(result.problem)}")
        lines.append(f"  To try again: {advised('unspill apply{of}', sandbox)}")
    return lines


def _news(sandbox: Sandbox, operation: Operation | None, stream: int) -> tuple[tuple[bytes, str], ...]:
    """Return the flagged paths of an operation that were not told before where this stream leads, and are now."""
    if operation is None or not operation.flagged:
        return ()
    return sandbox.tell_flagged(operation, on_terminal=os.isatty(stream))


def print_operation(sandbox: Sandbox, operation: Operation, done: str, *, nothing: str, of: int | None = None) -> None:
    """Print what an operation did and how to undo it, and on stderr what it skipped.

    Args:
        sandbox: Where it was done.
        operation: What was done; its number is 0 if nothing was.
        done: What was done, such as `Applied 2 changes`.
        nothing: What to say if nothing was done.
        of: The number of the operation that is undone or redone.
    """
    if operation.number:
        if operation.kind == "apply" and not operation.changed:
            done = "Dropped held changes that your project already has"
        number = f" (op {operation.number})" if of is None else f", recorded as op {operation.number}"
        print(fit(f"{done}{number}. {advised(_reverse_text(operation), sandbox)}"))
        for line in (*flagged_lines(_news(sandbox, operation, 1), operation), *change_lines(sandbox, operation)):
            print(fit(line))
    else:
        print(nothing)
    for note in operation.notes:
        print(fit(f"  {safe_text(note)}"))
    sys.stdout.flush()
    if operation.left:
        what = "{is} still held" if operation.kind == "apply" else "{was} skipped"
        print(fit(f"unspill: {_skipped(operation, what)}", 2), file=sys.stderr)
    for line in (*skipped_lines(operation, sandbox, of), *_held_lines(sandbox, operation)):
        print(fit(line, 2), file=sys.stderr)


def operation_exit_code(operation: Operation) -> int:
    """Return 0, or the code that says that paths were skipped."""
    return LEFT if operation.left else 0


def skipped_lines(operation: Operation, sandbox: Sandbox, of: int | None = None) -> list[str]:
    """Return each path that an operation skipped, why, and what to type; `of` is the op that it reverses."""
    lines = []
    groups = group_skipped(operation)
    for left, inside in groups[:LIMIT]:
        own = "; applying it replaces your own" if left.is_there else ""
        reason = f"{_REASONS[left.why]}: {safe_text(left.reason)}{own}"
        lines.append(f"  ! {skipped_name(operation, left, inside, here=directory_here())}: {reason}")
        remedy = _remedy(operation, left, sandbox, of)
        lines += [f"      {remedy}"] if remedy else []
    if len(groups) > LIMIT:
        lines.append(f"  ! and {len(groups) - LIMIT} more: see {advised('unspill changes{of}', sandbox)}")
    if operation.kind == "apply" and any(left.why == "held" for left in operation.left):
        lines.append(f"  To discard held changes: {advised('unspill discard{of}', sandbox)} PATH")
    return lines


def change_lines(sandbox: Sandbox, operation: Operation) -> list[str]:
    """Return what an operation changed, as indented lines; nothing where that is too much or not kept."""
    if operation.changed > _MOST_CHANGES:
        return []
    try:
        changes = sandbox.operation_changes(operation.number)
    except UsageError:
        return []
    lines = summary_lines(changes, fold_git=True, project=sandbox.project, here=directory_here())[
        bool(count_changes(changes)) :
    ]
    return _indented(_without_git(lines, operation))


def flagged_lines(flagged: Iterable[tuple[bytes, str]], operation: Operation | None = None) -> list[str]:
    """Return the paths that deserve a look before anybody builds or pushes; few with one reason are on one line."""
    groups: list[tuple[str, str, int]] = []
    for path, reason in flagged:
        names, why = _flagged_name(path, operation), safe_text(reason)
        above, same, count = groups[-1] if groups else ("", "", 0)
        if same == why and len(above) + len(names) < _LONGEST_NAMES:
            groups[-1] = f"{above}, {names}", why, count + 1
        else:
            groups.append((names, why, 1))
    lines = [f"  ! Review before use: {names} ({why})" for names, why, _count in groups[:LIMIT]]
    more = sum(count for _names, _why, count in groups[LIMIT:])
    return [*lines, f"  ! and {more} more to review"] if more else lines


def _flagged_name(path: bytes, operation: Operation | None) -> str:
    """Return a path that was applied in one of an operation's roots as the person sees it."""
    roots = () if operation is None else operation.roots
    root = next((root for root in roots if os.path.lexists(root + b"/" + path)), None)
    return quote(path) if root is None else name_here(root, path, directory_here())


def recovered_lines(operation: Operation) -> list[str]:
    """Say what became of an operation that was interrupted, and where edits made meanwhile are kept."""
    return [_recovered(operation), *(f"  {safe_text(note)}" for note in operation.notes)]


def refused_lines(denials: Sequence[Denial]) -> list[str]:
    """Return the lines of a summary; the ones that begin with a space belong to the first."""
    lines = [f"The proxy refused {count_text(len(denials), 'destination')}:"]
    for denial in denials[:LIMIT]:
        times = "" if denial.times == 1 else f", {denial.times} times"
        lines.append(f"  ! {safe_text(denial.place)}: {denial.rule}{times}")
        lines.append(f"      {safe_text(denial.remedy)}")
    if len(denials) > LIMIT:
        lines.append(f"  ! and {len(denials) - LIMIT} more: see --json")
    return lines


def connection_lines(connections: Sequence[Connection]) -> list[str]:
    """Return one line a host and port: how many connections, how many bytes, and how those ended that went wrong."""
    hosts: dict[str, list[Connection]] = {}
    for made in connections:
        hosts.setdefault(made.place, []).append(made)
    lines = [f"  {safe_text(place)}: {_sums(found)}" for place, found in list(hosts.items())[:LIMIT]]
    if len(hosts) > LIMIT:
        lines.append(f"  and {len(hosts) - LIMIT} more: see --json")
    return lines


def port_lines(ports: Sequence[PortTraffic]) -> list[str]:
    """Return one line a port: which it is, how many connections and bytes, and how many were not served."""
    lines = []
    for port in ports:
        what = f"published {port.inside} at 127.0.0.1:{port.host}" if port.is_published else f"exposed {port.host}"
        sums = f"{count_text(port.connections, 'connection')}, {size_text(port.down)} in, {size_text(port.up)} out"
        refused = f", {port.refused} refused (too many at once)" if port.refused else ""
        failed = f", {port.failed} found no server" if port.failed else ""
        lines.append(f"  {what}: {sums}{refused}{failed}")
    return lines


def count_text(count: int, what: str) -> str:
    """Return a number of things in words."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def size_text(count: int) -> str:
    """Return a number of bytes for a person."""
    if count < 1024:
        return count_text(count, "byte")
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"


def when_text(at_ns: int) -> str:
    """Return a moment in the person's own time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ns / 1e9))


def advised(text: str, sandbox: Sandbox, **names: object) -> str:
    """Return a command that does what it says from where the person stands.

    `{at}` in it becomes the option that names the project, `{of}` those that name the sandbox and the project, where
    they are needed; `names` fill the rest.
    """
    here = directory_here()
    is_here = bool(here) and find_project(here) == sandbox.project
    at = "" if is_here else f" --project {shell_word(sandbox.project)}"
    of = "" if sandbox.name == "default" else f" --sandbox {shell_word(os.fsencode(sandbox.name))}"
    return text.format(at=at, of=of + at, **names)


def directory_here() -> bytes:
    """Return where this process stands; nothing if what was applied has deleted that."""
    try:
        return os.path.realpath(os.getcwdb())
    except OSError:
        return b""


def seen_from_here(path: bytes) -> bytes:
    """Return an absolute path as the person would type it: relative to where they stand, if it lies below."""
    here = directory_here()
    if not here or not path.startswith(here.rstrip(b"/") + b"/"):
        return path
    relative = os.path.relpath(path, here)
    return b"./" + relative if relative.startswith(b"-") else relative


def result_form(result: RunResult) -> dict[str, Any]:
    """Return the result of a run."""
    return {
        "run": result.run,
        "number": result.number,
        "outcome": outcome_form(result.outcome),
        "stdout": output_form(result.stdout),
        "stderr": output_form(result.stderr),
        "changes": to_plain(result.changes),
        "held": result.held,
        "operation": None if result.operation is None else operation_form(result.operation),
        "flagged": [
            {**named("path", path), "reason": reason, "told": path in result.told} for path, reason in result.flagged
        ],
        "problem": result.problem,
        "apart": result.apart,
        "duration_s": result.duration_s,
        "hints": [hint.as_dict() for hint in result.hints],
        "warnings": list(result.warnings),
        "sandboxed": result.sandboxed,
        "shared_with": list(result.shared_with),
        "unsettled": result.unsettled,
        **traffic_form(result.connections, result.denials, result.ports),
    }


def run_form(run: Run) -> dict[str, Any]:
    """Return the record of a run."""
    return {
        "run": run.id,
        "number": run.number,
        "argv": [decoded(word) for word in run.argv],
        "cwd": decoded(run.cwd),
        "started_ns": run.started_ns,
        "ended_ns": run.ended_ns,
        "outcome": outcome_form(run.outcome),
        "stdout": output_form(run.stdout),
        "stderr": output_form(run.stderr),
        "changed": run.changed,
        "held": run.held,
        "sandboxed": run.sandboxed,
        "argv_left_out": run.argv_left_out,
    }


def operation_form(operation: Operation) -> dict[str, Any]:
    """Return the record of an operation."""
    return {
        "operation": operation.id,
        "number": operation.number,
        "kind": operation.kind,
        "at_ns": operation.at_ns,
        "asked_by": operation.asked_by,
        "ending": operation.ending,
        "of": operation.of,
        "runs": list(operation.runs),
        "changed": operation.changed,
        "left": [
            {
                **named("root", operation.roots[left.root]),
                **named("path", left.path),
                "why": left.why,
                "reason": left.reason,
            }
            for left in operation.left
        ],
        "notes": list(operation.notes),
    }


def outcome_form(outcome: Outcome | None) -> dict[str, Any] | None:
    """Return an outcome with its kind and the exit code that stands for it."""
    if outcome is None:
        return None
    return {"kind": type(outcome).__name__, "exit_code": exit_code_of(outcome), **outcome.as_dict()}


def output_form(output: Output) -> dict[str, Any]:
    """Return one stream: its text, and in base64 what is lost in the text."""
    kept = output.kept()
    form: dict[str, Any] = {"text": kept.decode("utf-8", "replace"), "left_out": output.left_out}
    if form["text"].encode() != kept:
        form["bytes_b64"] = b2a_base64(kept, newline=False).decode()
    if output.file is not None:
        form["file"] = decoded(output.file)
    return form


def traffic_form(
    connections: Sequence[Connection], denials: Sequence[Denial], ports: Sequence[PortTraffic]
) -> dict[str, Any]:
    """Return all as values, under the names that a RunResult has for them."""
    return {
        "connections": [made.as_dict() for made in connections],
        "denials": [denial.as_dict() for denial in denials],
        "ports": [port.as_dict() for port in ports],
    }


def decoded(value: bytes) -> str:
    """Return bytes as text for JSON: what is no UTF-8 is escaped."""
    return value.decode("utf-8", "backslashreplace")


class ProgressLine:
    """Takes every step and shows what is worth showing; leaving the block leaves the terminal clean."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet
        self._is_terminal = not is_quiet and os.isatty(2)
        self._step = ""
        self._shown_at = 0.0
        self._is_open = False
        self.has_told = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        if self._is_open:
            self._write(_CLEAR)
            self._is_open = False

    def take(self, progress: Progress) -> None:
        """Show a step, unless the last one was shown a moment ago."""
        now = time.monotonic()
        is_new = progress.step != self._step
        pause = _PAUSE_S if self._is_terminal else _QUIET_PAUSE_S
        is_end = bool(progress.total) and progress.done >= progress.total and self._is_terminal
        if self._is_quiet or not (is_new or is_end or now - self._shown_at >= pause):
            return
        self._step, self._shown_at, self.has_told = progress.step, now, True
        text = progress_text(progress, has_bar=self._is_terminal, is_first=is_new and not self._is_terminal)
        if self._is_terminal:
            self._is_open = True
            self._write(_CLEAR + cut(text, _room()))
        else:
            self._write(f"unspill: {text}\n")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            self._is_quiet = True  # nobody looks; what is made is made all the same


class Elapsed:
    """Says on a terminal what is being done, how far it is and for how long; the line goes when it ends.

    It comes with the second second: what is over before needs no words.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._going_on = allocate_lock()
        self._shown = allocate_lock()
        self._is_terminal = os.isatty(2)

    def __enter__(self) -> Self:
        COUNT.begin("")
        if self._is_terminal:
            self._going_on.acquire()
            self._shown.acquire()
            start_new_thread(self._show, (time.monotonic(),))
        return self

    def __exit__(self, *_details: object) -> None:
        if self._is_terminal:
            self._going_on.release()
            # What follows is written when the line is gone
            self._shown.acquire()

    def _show(self, begun: float) -> None:
        try:
            while not self._going_on.acquire(timeout=1.0):
                far = COUNT.text()
                what = f"{COUNT.what or self._what}: {far}" if far else self._what
                text = f"unspill: {what} ({time.monotonic() - begun:.0f} s)"
                os.write(2, f"{_CLEAR}{cut(text, _room())}".encode())
            if time.monotonic() - begun >= 1.0:
                os.write(2, _CLEAR.encode())
        except OSError:
            return  # nobody looks; what is done is done all the same
        finally:
            self._shown.release()


def progress_text(progress: Progress, *, has_bar: bool, is_first: bool = False) -> str:
    """Return one step in words: what a server wrote in it can't speak to the terminal.

    The first line of a step says how much it is, not how far: where no other line follows, that would stay there.
    """
    step, unit = safe_text(progress.step), progress.unit
    done, total = progress.done, progress.total
    if is_first:
        return f"{step} ({_amount(total, unit)})" if total else step
    if not total:
        return f"{step}: {_amount(done, unit)}" if done else step
    done = min(done, total)
    percent = f"{100 * done // total:3d}%" if has_bar else f"{100 * done // total}%"
    bar = f" [{'#' * (_BAR * done // total):<{_BAR}}]" if has_bar else ""
    return f"{step}{bar if has_bar else ':'} {percent} of {_amount(total, unit)}"


def _applied(result: RunResult, operation: Operation, sandbox: Sandbox, news: Iterable[tuple[bytes, str]]) -> list[str]:
    lines = []
    if operation.number:
        done = applied_part(result.changes, operation)
        what = f"Applied as op {operation.number}. {advised(_reverse_text(operation), sandbox)}"
        heading, *listed = _listed(done, what, operation.project)
        lines += [heading, *flagged_lines(news, operation), *_without_git(listed, operation)]
    elif not operation.left:
        lines += _listed(result.changes, "Nothing to apply: your project already matches.", operation.project)
    lines += [f"  {safe_text(note)}" for note in operation.notes]
    if operation.left:
        lines.append(_skipped(operation, f"{{was}} not applied and {{is}} held in sandbox {sandbox.name!r}"))
        lines += skipped_lines(operation, sandbox)
    return lines


def _listed(changes: ChangeSet, what: str, project: bytes) -> list[str]:
    count = count_changes(changes)
    listed = summary_lines(changes, fold_git=True, project=project, here=directory_here())[bool(count) :]
    # A commit is many files of git's own, which one line stands for
    plain = count_changes(change for part in changes.roots for change in without_own_files(part.changes))
    return [
        f"{plain or ('Only git files changed' if count else 'Only timestamps changed')}. {what}",
        *_indented(listed),
    ]


def _skipped(operation: Operation, what: str) -> str:
    """Return the heading over what an operation skipped: how many paths, and what became of them."""
    verbs = {"is": "is", "was": "was"} if len(operation.left) == 1 else {"is": "are", "was": "were"}
    return f"{count_text(len(operation.left), 'path')} {what.format(**verbs)}:"


def _held_lines(sandbox: Sandbox, operation: Operation) -> list[str]:
    """Say what is still held of the runs that an operation came from, besides what it has just skipped."""
    left = {(operation.roots[one.root], one.path) for one in operation.left}
    held = sandbox.held_of(operation)
    held = held.replace(
        roots=tuple(
            part.replace(changes=tuple(one for one in part.changes if (part.root, one.path) not in left))
            for part in held.roots
        )
    )
    count = count_changes(held)
    if not count:
        return []
    listed = summary_lines(held, limit=LIMIT, fold_git=True, project=sandbox.project, here=directory_here())[1:]
    words = [
        shell_word(seen_from_here(os.path.join(part.root, one.path))) for part in held.roots for one in part.changes
    ]
    drop = " ".join([advised("unspill discard{of}", sandbox), *(words if len(words) <= _MOST_NAMED else ["PATH ..."])])
    return [f"unspill: Still held, visible to later runs: {count}. Discard: {drop}", *_indented(listed)]


def _remedy(operation: Operation, left: Skipped, sandbox: Sandbox, of: int | None) -> str:
    path = shell_word(seen_from_here(os.path.join(operation.roots[left.root], left.path)))
    is_repository = os.path.basename(left.path) == b".git" and (
        left.why == "conflict" or left.reason.startswith(UNCHECKED)
    )
    token = f"@{left.token}" if left.token else ""
    if operation.kind != "apply":
        text = _REVERSED if of is not None and left.why == "conflict" and not is_repository else ""
    elif is_repository:
        text = _REPOSITORY
    elif left.reason.startswith(AS_A_WHOLE):
        text = _WITH_INCLUDED
    elif left.why == "held":
        return f"{advised('unspill apply{of}', sandbox)} {include_option(path, token, is_there=left.is_there)}"
    else:
        text = _INCLUDED_CONFLICT if left.why == "conflict" and token else _REMEDIES[left.why]
        text = _CLASH if left.reason.startswith(SAME_LINES) else text
    return advised(text, sandbox, path=path, token=token, number=of)


def include_option(path: str, token: str, *, is_there: bool) -> str:
    """Return the options that apply something that is held, over the person's own if there is one."""
    return f"--include {path}{token}" + (f" --overwrite {path}" if is_there else "")


def _without_git(lines: Iterable[str], operation: Operation) -> list[str]:
    """Return lines of a summary without those that count git's own files, where a note says what moved."""
    is_told = any(note.startswith("git") for note in operation.notes)
    return [line for line in lines if not (is_told and line.startswith("  . "))]


def _indented(lines: Iterable[str]) -> list[str]:
    """Return lines of a summary so that none looks like a sentence of its own."""
    return [line if line.startswith(" ") else f"  {line}" for line in lines]


def _recovered(operation: Operation) -> str:
    what = f"an interrupted {operation.kind} (op {operation.number})"
    if operation.ending == "done":
        return f"Finished {what}."
    if not operation.left:
        return f"Rolled back {what}."
    names = ", ".join(skipped_name(operation, left) for left in operation.left[:LIMIT])
    return f"Rolled back {what}, except for files that changed since: {names}"


def _reverse_text(operation: Operation) -> str:
    """Return how to reverse what has just been done; without a name `undo` passes over what changed nothing."""
    name = "" if operation.changed else f" op{operation.number}"
    return "Redo: unspill redo{at}" if operation.kind == "undo" else "Undo: unspill undo{at}" + name


def _sums(found: list[Connection]) -> str:
    up, down = sum(made.up for made in found), sum(made.down for made in found)
    text = f"{count_text(len(found), 'connection')}, {up} bytes up, {down} bytes down"
    wrong = sorted({made.verdict for made in found} - {"allowed"})
    return f"{text} ({', '.join(wrong)})" if wrong else text


def _amount(count: int, unit: str) -> str:
    return count_text(count, unit) if unit else size_text(count)


def _room() -> int:
    """Return how long a line may be that is written over again and again: one that fills the row begins the next."""
    return max(columns(2) or _DEFAULT_COLUMNS, _FEWEST_COLUMNS) - 1


class Screen:
    """One stream, chunk by chunk; what a chunk ends in the middle of is kept for the next."""

    def __init__(self) -> None:
        self._kept = b""

    def render(self, chunk: bytes) -> bytes:
        """Return what may be written to the terminal now."""
        text = self._kept + chunk
        whole = len(text) - _unfinished(text)
        self._kept = text[whole:]
        return _rendered(text[:whole])

    def rest(self) -> bytes:
        """Return what is left when the stream has ended."""
        kept, self._kept = self._kept, b""
        return _rendered(kept)


class Traces:
    """What output, chunk by chunk, may have left in a terminal, by itself or by way of a program that reads it."""

    def __init__(self) -> None:
        self._kept = b""
        self._is_line_open = False
        self._has_sequences = False
        self._has_strings = False
        self._is_wild = False
        self._place = _Place()

    @property
    def is_wild(self) -> bool:
        """Whether it was more than text and colours: it may have asked the terminal something."""
        return self._is_wild

    def note(self, chunk: bytes, *, is_in_order: bool = True) -> None:
        """Look at what is written; `is_in_order` with all else that the terminal gets."""
        if is_in_order:
            self._place.note(chunk)
        else:
            self._place.lose()
        text = self._kept + chunk
        end = len(text) - _unfinished(text)
        self._kept = text[end:]
        self._look(text[:end])
        while (at := text.rfind(b"\x1b", 0, end)) >= 0 and _sequence(text[at:end].decode("latin-1"), 0) == end - at:
            # Colours are often put back after the end of the line
            end = at
        self._is_line_open = text[end - 1] != _NEW_LINE if end else self._is_line_open

    def reset(self, *, is_read: bool) -> bytes:
        """Return what makes a terminal usual again, nothing after plain lines; `is_read` is where our lines follow."""
        self._look(self._kept)
        if self._is_wild:
            colours = _USUAL_COLOURS if self._has_strings else b""
            if self._place.is_last:
                new_line = b"\n" if is_read and self._place.is_line_open else b""
                return TERMINAL_RESET + colours + b"\r" + new_line
            return TERMINAL_RESET + _LEAVE_ALTERNATE + TERMINAL_RESET + colours + _TO_THE_END
        new_line = b"\n" if is_read and (self._is_line_open or self._kept) else b""
        return (_PLAIN_TEXT if self._has_sequences else b"") + new_line

    def _look(self, text: bytes) -> None:
        if self._is_wild and self._has_strings:
            return
        is_high = b"\xc2" in text and any(control in text for control in _C1)
        has_sequences = b"\x1b" in text
        self._has_sequences = self._has_sequences or has_sequences
        self._has_strings = self._has_strings or is_high or b"\x1b]" in text
        self._is_wild = self._is_wild or is_high or bool(text.translate(None, _HARMLESS))
        if has_sequences and not self._is_wild:
            decoded = text.decode("latin-1")
            at = decoded.find("\x1b")
            while at >= 0 and not self._is_wild:
                self._is_wild = not _sequence(decoded, at)
                at = decoded.find("\x1b", at + 1)


class _Place:
    """Whether output, chunk by chunk, surely left the cursor in its last row, and whether there is text in that row."""

    def __init__(self) -> None:
        self._kept = self._last = b""
        self._has_moved = False
        self.is_line_open = False

    def lose(self) -> None:
        """Have it unknown from now on."""
        self._has_moved = True

    @property
    def is_last(self) -> bool:
        """Whether nothing of the output can be below the cursor."""
        return not self._has_moved and not self._kept

    def note(self, chunk: bytes) -> None:
        """Look at what is written."""
        if self._has_moved:
            return
        text = self._kept + chunk
        end = text.find(b"\x1b") % (len(text) + 1)
        shown = [text[:end]]
        while end < len(text) and (found := re.compile(_STILL).match(text, end)) is not None:
            before = text[end - 1 : end] if end else self._last
            # Whoever goes back to the beginning of a line and erases it has left nothing there
            is_erased = before == b"\r" and found[0] in (b"\x1b[K", b"\x1b[0K")
            end = text.find(b"\x1b", found.end()) % (len(text) + 1)
            shown.append(b"\n" * is_erased + text[found.end() : end])
        self._keep(text[end:], b"".join(shown))
        self._last = text[end - 1 : end] or self._last

    def _keep(self, kept: bytes, shown: bytes) -> None:
        self._kept = kept
        is_begun = not kept or (len(kept) < _LONGEST_STILL and re.fullmatch(_STILL_BEGUN, kept))
        text = self._last + shown
        is_high = b"\xc2" in text and any(control in text for control in _C1)
        controls = shown.translate(None, _HARMLESS + _STILL_CONTROLS)
        self._has_moved = bool(controls or is_high or not is_begun)
        lines = shown.rsplit(b"\n", 1)
        has_text = bool(lines[-1].translate(None, b"\r\a" + _STILL_CONTROLS))
        self.is_line_open = has_text or (len(lines) == 1 and self.is_line_open)


def _unfinished(text: bytes) -> int:
    """Return how many bytes at the end may be the beginning of a character or of a sequence."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte >= 0xC0:
            wanted = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < wanted else 0
        if byte < 0x80:
            break
    start = text.rfind(_ESC, max(0, len(text) - _LONGEST))
    if start < 0:
        return 0
    is_open = text[start + 1 : start + 2] in (b"", b"[") and all(byte in _PARAMETERS for byte in text[start + 2 :])
    return len(text) - start if is_open else 0


def _rendered(text: bytes) -> bytes:
    decoded = text.decode("utf-8", "surrogateescape")
    if decoded.isprintable():
        return text
    parts: list[str] = []
    at = 0
    while at < len(decoded):
        length = _sequence(decoded, at)
        parts.append(decoded[at : at + length] if length else _shown(decoded[at]))
        at += length or 1
    return "".join(parts).encode("utf-8", "surrogateescape")


def _sequence(text: str, at: int) -> int:
    """Return the length of a colour or of an erasure in the line that begins there, 0 where there is none."""
    if ord(text[at]) != _ESC or text[at + 1 : at + 2] != "[":
        return 0
    end = at + 2
    while end < len(text) and end - at < _LONGEST and ord(text[end]) in _PARAMETERS:
        end += 1
    return end + 1 - at if end < len(text) and ord(text[end]) in _FINAL else 0


def _shown(character: str) -> str:
    number = ord(character)
    if number in _PLAIN or character.isprintable():
        return character
    # What is no UTF-8 is shown; a lone byte of 0x80 to 0x9f is a control to some terminals
    if 0xDC80 <= number <= 0xDCFF:
        return f"\\x{number - 0xDC00:02x}"
    if number < 0x20 or 0x7F <= number < 0xA0:
        return f"\\x{number:02x}"
    # Joiners and selectors belong to letters and pictures
    return f"\\u{{{number:x}}}" if character in _REORDERING else character
