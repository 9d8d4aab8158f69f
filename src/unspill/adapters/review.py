# SPDX-License-Identifier: Apache-2.0
"""What the tools `changes`, `diff`, `undo` and `apply` do: a model looks at its own changes and takes them back.

It is told of its own sandbox only, and never what files with names of secrets have: a change of one may be in the
layers because the person showed it to a single run. What the person applied or took back is the person's. With `apply`,
the sandbox's approver is asked about each file that needs consent; without anybody to ask it stays held.
"""

from __future__ import annotations

import posixpath

from unspill.adapters.answers import CHANGES, DIFF, change_values, many, text_answer, window
from unspill.adapters.files import places_of
from unspill.changes.diff import MAX_LINES
from unspill.changes.render import skipped_lines, skipped_name, skipped_reason, summary_lines
from unspill.errors import UsageError
from unspill.layers.locks import refuse_given_up
from unspill.policy.paths import quote
from unspill.policy.secrets import masked_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from unspill.adapters.answers import Answer
    from unspill.adapters.files import Fate
    from unspill.model.operation import Operation, OperationId
    from unspill.sandbox.project import Who
    from unspill.sandbox.sandbox import Sandbox

    Mine = Callable[[Operation], bool]

MOST_PATHS = 1000
_BY = "agent"
_MODELS = ("run", _BY)
_ALL = 1_000_000
_FIRST_LOOK = 64
_MOST_SECRETS = 10
_TOO_LONG = f"Note: a diff ends after {MAX_LINES} lines. Set `paths` to see what is beyond that."
_NOTHING: dict[Fate, str] = {
    "apply": "Nothing is held: what commands changed was applied to the project. `diff` with `operation` shows it.",
    "hold": "Nothing is held.",
    "discard": "Nothing is held: what commands change is discarded.",
    "container": "Nothing is held: there is no sandbox, and what commands change is changed at once.",
}


def call_changes(sandbox: Sandbox, given: dict[str, Any], *, cancel_fd: int | None = None) -> Answer:
    """Return what is held."""
    refuse_given_up(cancel_fd)
    places = places_of(sandbox)
    changes = sandbox.changes(run=given.get("run"))
    # Roots by the paths that commands know them by
    parts = tuple(part.replace(root=places.inside(part.root)) for part in changes.roots)
    lines = summary_lines(changes.replace(roots=parts), limit=_ALL, fold_git=True, project=places.project)
    if not lines:
        nothing = "This run has changed nothing." if "run" in given else _NOTHING[places.fate]
        return text_answer([nothing], {**change_values(changes), "next_offset": None})
    policy = places.policy
    shown = window(lines, given.get("offset", 0), policy.shown_lines, policy.shown_bytes)
    told = ["Held: later commands see it, the project does not have it until the user applies it."]
    told += [*shown.notes("changes"), *((CHANGES, *shown.lines) if shown.lines else ())]
    return text_answer(told, {**change_values(changes), "next_offset": shown.next_offset})


def call_diff(sandbox: Sandbox, given: dict[str, Any], *, cancel_fd: int | None = None) -> Answer:
    """Return what is held, or what a run or an operation changed, as text."""
    refuse_given_up(cancel_fd)
    policy, secrets = sandbox.policy, _Secrets(sandbox)
    lines = _diff(sandbox, given, secrets.skip).split("\n")[:-1]
    told = secrets.notes()
    if not lines:
        values = {"diff": "", "lines": 0, "next_offset": None, "not_shown": secrets.names()}
        return text_answer([*told, "There is nothing to show."], values)
    shown = window(lines, given.get("offset", 0), policy.shown_lines, policy.shown_bytes)
    told += shown.notes("diff")
    told += [_TOO_LONG] if len(lines) > MAX_LINES else []
    told += [DIFF, *shown.lines] if shown.lines else []
    values = {
        "diff": "\n".join(shown.lines),
        "lines": shown.total,
        "next_offset": shown.next_offset,
        "not_shown": secrets.names(),
    }
    return text_answer(told, values)


def held_diff(sandbox: Sandbox) -> tuple[str, list[str]]:
    """Return all that is held as a diff, without what files with names of secrets have, and what to say of those."""
    secrets = _Secrets(sandbox)
    return _diff(sandbox, {}, secrets.skip), secrets.notes()


def _diff(sandbox: Sandbox, given: dict[str, Any], skip: Callable[[bytes], bool]) -> str:
    paths, run, operation = given.get("paths", []), given.get("run"), given.get("operation")
    if operation is None:
        return sandbox.diff(paths, run=run, skip=skip)
    if run is not None:
        raise UsageError("a diff is of a run or of an operation, not of both")
    return sandbox.diff(paths, operation=_own(sandbox, operation).number, skip=skip)


class _Secrets:
    """Skips files by the names of secrets, and knows which it has skipped."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._names = frozenset(masked_names(sandbox.policy.secrets))
        self._project = sandbox.project
        self._found: list[bytes] = []

    def skip(self, path: bytes) -> bool:
        """Tell whether a path, an absolute one, is not to be shown."""
        if posixpath.basename(path) not in self._names:
            return False
        self._found.append(path.removeprefix(self._project + b"/"))
        return True

    def names(self) -> list[str]:
        """Return what was skipped, as far as the bound."""
        return [quote(path) for path in self._found[:_MOST_SECRETS]]

    def notes(self) -> list[str]:
        """Return what a model is told of it."""
        names = ", ".join(self.names())
        more = f" and {len(self._found) - _MOST_SECRETS} more" if len(self._found) > _MOST_SECRETS else ""
        return [f"Note: not shown, because of names of secrets: {names}{more}."] if names else []


def call_undo(
    sandbox: Sandbox, given: dict[str, Any], *, cancel_fd: int | None = None, is_mine: Mine | None = None
) -> Answer:
    """Undo an operation of the model's own; not where that was cancelled before it began.

    `is_mine` says what its own is, where the caller knows; otherwise all that runs in this sandbox have applied.
    """
    wanted = _to_undo(sandbox, given.get("operation"), is_mine)
    done = sandbox.undo(wanted.number, asked_by=_BY, cancel_fd=cancel_fd)
    first = f"Undid operation {wanted.number} ({many(done.changed, 'change')}), recorded as operation {done.number}."
    first = first if done.number else f"Did not undo operation {wanted.number}."
    answer = _answer_operation(sandbox, done, first, "Skipped:")
    return answer.replace(values=answer.values | {"undone": wanted.number})


def call_apply(
    sandbox: Sandbox, given: dict[str, Any], *, cancel_fd: int | None = None, approver: Who = None
) -> Answer:
    """Apply what is held, or a part of it; not what was cancelled before it began."""
    done = sandbox.apply(given.get("paths", []), asked_by=_BY, approver=approver, cancel_fd=cancel_fd)
    first = f"Applied {many(done.changed, 'change')} to the project (operation {done.number})."
    left = "Not applied (still held). What the user reads about it:"
    return _answer_operation(sandbox, done, first if done.number else "Nothing was applied.", left)


def _answer_operation(sandbox: Sandbox, done: Operation, first: str, left: str) -> Answer:
    """Return what an operation did; `left` is the heading of what it skipped."""
    done = places_of(sandbox).operation(done)
    lines = [first, *((left, *skipped_lines(done)) if done.left else ()), *(f"Note: {note}" for note in done.notes)]
    values = {
        "operation": done.number or None,
        "changed": done.changed,
        "left": [{"path": skipped_name(done, one), "reason": skipped_reason(one)} for one in done.left[:MOST_PATHS]],
    }
    return text_answer(lines, values)


def _to_undo(sandbox: Sandbox, number: int | None, is_mine: Mine | None) -> Operation:
    """Return the operation that is meant.

    Raises:
        UsageError: there is none that a model may take back.
    """
    wanted = None if number is None else _own(sandbox, number)
    limit, is_whole = _FIRST_LOOK, False
    # What took an operation back is younger than it, so there is no need to know all that were ever done
    while not is_whole:
        latest = sandbox.operations(limit=limit)
        is_whole = len(latest) < limit
        past = _Past(sandbox, latest, is_mine)
        if wanted is None and past.last is not None:
            return past.last
        if wanted is not None and (is_whole or any(one.id == wanted.id for one in latest)):
            past.refuse(wanted)
            return wanted
        limit = _ALL if limit >= _ALL else 8 * limit
    raise UsageError("there is nothing of yours to undo")


class _Past:
    """The latest operations of a project, the youngest first: which are the model's, and which were undone."""

    def __init__(self, sandbox: Sandbox, latest: tuple[Operation, ...], is_mine: Mine | None) -> None:
        done = [one for one in latest if one.ending == "done"]
        self._undone: set[OperationId] = set()
        for one in done:
            if one.of is not None and one.id not in self._undone:
                self._undone.add(one.of)
        self._redone = {one.origin for one in done if one.kind == "redo" and one.asked_by not in _MODELS}
        self._is_mine = is_mine
        own = (one for one in done if one.sandbox == sandbox.id and self._is_models(one))
        self.last = next((one for one in own if one.id not in self._undone), None)

    def refuse(self, wanted: Operation) -> None:
        """Stop where a model may not undo an operation.

        Raises:
            UsageError: why.
        """
        if not self._is_models(wanted):
            raise UsageError(
                f"operation {wanted.number} was not applied by a command or a file tool of yours",
                remedy="Ask the user, who can undo everything.",
            )
        if wanted.id in self._undone:
            raise UsageError(f"operation {wanted.number} was already undone")

    def _is_models(self, operation: Operation) -> bool:
        """Tell whether a run or a model has applied it: an undo of an undo would be an apply."""
        is_theirs = operation.kind == "apply" and operation.asked_by in _MODELS and operation.id not in self._redone
        return is_theirs and (self._is_mine is None or self._is_mine(operation))


def _own(sandbox: Sandbox, number: int) -> Operation:
    """Return an operation of this sandbox."""
    found, _steps = sandbox.find_operation(number)
    if found.sandbox != sandbox.id:
        raise UsageError(f"no such operation: {number}", remedy="See `unspill log`.")
    return found
