# SPDX-License-Identifier: Apache-2.0
"""What became of changes, in words for a person: what was done, what was left and why, and what to type next.

A command that is proposed can be pasted: names of strangers in it are words of the shell and nothing else.
"""

from __future__ import annotations

import os
import sys
import time

from unspill.changes.render import count_changes, group_left, left_name, safe_text, summary_lines
from unspill.errors import UsageError
from unspill.policy.words import shell_word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.operation import Operation, OperationKind, Skipped, Why
    from unspill.sandbox.sandbox import Sandbox

# Something was left alone; the rest was done
LEFT = 6
LIMIT = 20
# To tell what an operation changed is to read all that it changed
_LISTED = 1000

_NAMED = 3
_UNITS = ("KiB", "MiB", "GiB", "TiB")

_REMEDIES: dict[Why, str] = {
    "held": "unspill apply --include {path}{token}",
    "conflict": "unspill diff {path}, then unspill apply --overwrite {path} or unspill discard {path}",
    "stale": "unspill diff {path}, then unspill apply {path}",
    "earlier": "unspill apply, which applies all that is held",
    "refused": "unspill discard {path}",
}
_WORDS: dict[Why, str] = {
    "held": "held",
    "conflict": "conflict",
    "stale": "not what was reviewed",
    "earlier": "kept back",
    "refused": "refused",
}
# Of a repository there is nothing to compare line by line, and its reason says what to do
_REPOSITORY = "unspill apply, which tries again, or unspill discard {path}"
_REVERSED = "unspill diff --op op{number} {path}, then unspill restore {path} --from op{number}"


def exit_code_of(operation: Operation) -> int:
    """Return 0, or the code that says that paths were left alone."""
    return LEFT if operation.left else 0


def left_lines(operation: Operation, of: int | None = None) -> list[str]:
    """Return each path that an operation left with the reason and what to type; `of` is the op that it reverses."""
    lines = []
    groups = group_left(operation)
    for left, inside in groups[:LIMIT]:
        lines.append(f"  ! {left_name(operation, left, inside)}: {_WORDS[left.why]}: {safe_text(left.reason)}")
        remedy = _remedy(operation, left, of)
        lines += [f"      {remedy}"] if remedy else []
    if len(groups) > LIMIT:
        lines.append(f"  ! and {len(groups) - LIMIT} more: see unspill changes")
    if operation.kind == "apply" and any(left.why == "held" for left in operation.left):
        lines.append("  To drop what is held: unspill discard PATH")
    return lines


def print_operation(sandbox: Sandbox, operation: Operation, word: str, *, nothing: str, of: int | None = None) -> None:
    """Print what an operation did and how to take it back, and on stderr what it left.

    Args:
        sandbox: Where it was done.
        operation: What was done; its number is 0 if nothing was.
        word: The past tense of what was asked for.
        nothing: What to say if nothing was done.
        of: The number of the operation that is taken back or done again.
    """
    paths = count_text(operation.changed, "path")
    if operation.number:
        what = f"{word} {paths}" if of is None else f"{word} op {of} ({paths})"
        print(f"{what}: op {operation.number} ({done_text(operation.kind)})")
        for line in change_lines(sandbox, operation):
            print(line)
    else:
        print(nothing)
    for note in operation.notes:
        print(f"  {safe_text(note)}")
    sys.stdout.flush()
    if operation.left:
        print(f"unspill: {_left_text(operation)}:", file=sys.stderr)
    for line in left_lines(operation, of):
        print(line, file=sys.stderr)
    for line in _held_lines(sandbox, operation):
        print(line, file=sys.stderr)


def _left_text(operation: Operation) -> str:
    count, is_one = count_text(len(operation.left), "path"), len(operation.left) == 1
    if operation.kind == "apply":
        return f"{count} {'is' if is_one else 'are'} still held"
    return f"{count} {'was left as it is' if is_one else 'were left as they are'}"


def _held_lines(sandbox: Sandbox, operation: Operation) -> list[str]:
    """Say what is on hold of the runs that an operation came from, besides what it has just left."""
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
    listed = summary_lines(held, limit=LIMIT, fold_git=True, project=sandbox.project)[1:]
    words = [
        shell_word(seen_from_here(os.path.join(part.root, one.path))) for part in held.roots for one in part.changes
    ]
    drop = " ".join(["unspill discard", *words]) if len(words) <= _NAMED else "unspill discard PATH ..."
    return [f"unspill: On hold, and seen by the next run: {count}. Drop it: {drop}", *indented(listed)]


def change_lines(sandbox: Sandbox, operation: Operation) -> list[str]:
    """Return what an operation changed, as indented lines; nothing where that is too much or not kept."""
    if operation.changed > _LISTED:
        return []
    try:
        changes = sandbox.operation_changes(operation.number)
    except UsageError:
        return []
    lines = summary_lines(changes, fold_git=True, project=sandbox.project)[bool(count_changes(changes)) :]
    return indented(without_git(lines, operation))


def without_git(lines: Iterable[str], operation: Operation) -> list[str]:
    """Return lines of a summary without those that count git's own files, where a note says what moved."""
    is_told = any(note.startswith("git") for note in operation.notes)
    return [line for line in lines if not (is_told and line.startswith("  . "))]


def indented(lines: Iterable[str]) -> list[str]:
    """Return lines of a summary so that none looks like a sentence of its own."""
    return [line if line.startswith(" ") else f"  {line}" for line in lines]


def _remedy(operation: Operation, left: Skipped, of: int | None) -> str:
    path = shell_word(seen_from_here(os.path.join(operation.roots[left.root], left.path)))
    is_repository = os.path.basename(left.path) == b".git" and left.why == "conflict"
    if is_repository:
        return _REPOSITORY.format(path=path) if operation.kind == "apply" else ""
    if operation.kind == "apply":
        return _REMEDIES[left.why].format(path=path, token=f"@{left.token}" if left.token else "")
    return _REVERSED.format(path=path, number=of) if of is not None and left.why == "conflict" else ""


def flagged_lines(flagged: Iterable[tuple[bytes, str]]) -> list[str]:
    """Return the paths that deserve a look before anybody builds or pushes."""
    from unspill.changes.quote import quote

    listed = list(flagged)
    lines = [f"  ! {quote(path)}: look at it first: {safe_text(reason)}" for path, reason in listed[:LIMIT]]
    return [*lines, f"  ! and {len(listed) - LIMIT} more to look at first"] if len(listed) > LIMIT else lines


def recovered_lines(operation: Operation) -> list[str]:
    """Say what became of an operation that was interrupted, and where edits made meanwhile are kept."""
    return [_recovered(operation), *(f"  {safe_text(note)}" for note in operation.notes)]


def _recovered(operation: Operation) -> str:
    what = f"an interrupted {operation.kind} (op {operation.number})"
    if operation.ending == "done":
        return f"{what} was finished"
    if not operation.left:
        return f"{what} was taken back"
    names = ", ".join(left_name(operation, left) for left in operation.left[:LIMIT])
    return f"{what} was taken back, except for what was changed since: {names}"


def count_text(count: int, what: str) -> str:
    """Return a number of things in words."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def done_text(kind: OperationKind) -> str:
    """Return how to take back what has just been done."""
    return "redo: unspill redo" if kind == "undo" else "undo: unspill undo"


def seen_from_here(path: bytes) -> bytes:
    """Return an absolute path as the person would type it: relative to where they stand, if it lies below."""
    here = os.path.realpath(os.getcwdb())
    if not path.startswith(here.rstrip(b"/") + b"/"):
        return path
    relative = os.path.relpath(path, here)
    return b"./" + relative if relative.startswith(b"-") else relative


def when_text(at_ns: int) -> str:
    """Return a moment in the person's own time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ns / 1e9))


def size_text(count: int) -> str:
    """Return a number of bytes for a person."""
    if count < 1024:
        return count_text(count, "byte")
    power = min((count.bit_length() - 1) // 10, len(_UNITS))
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"
