# SPDX-License-Identifier: Apache-2.0
"""The tools `changes`, `diff` and `undo`: what a model may know of its own changes, and take back.

It is told of its own sandbox only, and never what files with names of secrets have: a change of one may be in the
layers because the person showed it to a single run. What the person applied or took back is the person's.
"""

from __future__ import annotations

import posixpath

from unspill.adapters.answering import Answer, changes_form
from unspill.adapters.seen import seen_in
from unspill.adapters.tool import Tool, fate_of_changes, make_schema
from unspill.adapters.window import offset_schema, window
from unspill.changes.diff import MAX_LINES
from unspill.changes.quote import quote
from unspill.changes.render import left_lines, summary_lines
from unspill.errors import UsageError
from unspill.policy.secrets import masked_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from unspill.adapters.tool import Fate
    from unspill.model.change import ChangeSet
    from unspill.model.operation import Operation, OperationId
    from unspill.sandbox.sandbox import Sandbox

    Mine = Callable[[Operation], bool]

CHANGES = "Changes:"
DIFF = "Diff:"
BY = "agent"
_MODELS = ("run", BY)
_ALL = 1_000_000
_FIRST_LOOK = 64
_LARGEST = (1 << 53) - 1
_MOST_PATHS = 1000
_MOST_SECRETS = 10
_TOO_LONG = f"Note: a diff ends after {MAX_LINES} lines. Set `paths` to see what is beyond that."
_NOTHING: dict[Fate, str] = {
    "apply": "Nothing is held: what commands changed was applied to the project. `diff` with `operation` shows it.",
    "hold": "Nothing is held.",
    "discard": "Nothing is held: what commands change is thrown away.",
    "container": "Nothing is held: there is no sandbox, and what commands change is changed at once.",
}
_HELD: dict[Fate, str] = {
    "apply": "What commands change is applied to the project at once; held is only what was kept back from that.",
    "hold": "All that commands change in the project is held until the user applies it.",
    "discard": "What commands change in the project is thrown away, so nothing is held.",
    "container": "There is no sandbox: what commands change is changed at once, so nothing is held.",
}
_UNDO: dict[Fate, str] = {
    "apply": "Take back what a command or a file tool of yours has applied to the project: by default the last.",
    "hold": "Take back what a command of yours has applied to the project. What is held is applied by the user only, "
    "so it is the user who can take that back: there may be nothing for you to undo.",
    "discard": "Take back what a command of yours has applied to the project. What commands change is thrown away "
    "here, so there may be nothing for you to undo.",
    "container": "Take back what a command of yours has applied to the project. There is no sandbox here, and what "
    "commands change without one can't be undone.",
}


def changes_tool(sandbox: Sandbox) -> Tool:
    """Return the tool `changes` as it is for this sandbox."""
    policy = sandbox.policy
    return Tool(
        name="changes",
        description=(
            "List what is held in the sandbox: changes that later commands see and the project does not have. "
            f"{_HELD[fate_of_changes(sandbox)]} At most {policy.shown_lines} lines and {policy.shown_bytes} bytes are "
            f"returned, and you are told where the rest begins. What follows `{CHANGES}` is one line for each path: "
            "A added, M modified, D deleted, T of another type, m with other metadata."
        ),
        schema=make_schema({"run": _number("Only what this run changed."), "offset": offset_schema()}),
        is_read_only=True,
    )


def call_changes(sandbox: Sandbox, given: dict[str, Any]) -> Answer:
    """Return what is held."""
    policy = sandbox.policy
    changes = sandbox.changes(run=given.get("run"))
    lines = _summary(sandbox, changes)
    if not lines:
        text = f"{_NOTHING[fate_of_changes(sandbox)]}\n" if "run" not in given else "This run has changed nothing.\n"
        return Answer(text=text, values={**changes_form(changes), "next_offset": None})
    shown = window(lines, given.get("offset", 0), policy.shown_lines, policy.shown_bytes)
    told = ["Held: later commands see it, the project does not have it until the user applies it."]
    told += [*shown.notes("changes"), *((CHANGES, *shown.lines) if shown.lines else ())]
    return Answer(text="\n".join(told) + "\n", values={**changes_form(changes), "next_offset": shown.next_offset})


def _summary(sandbox: Sandbox, changes: ChangeSet) -> list[str]:
    """Return the lines of a change set, with roots by the paths that commands know them by."""
    seen = seen_in(sandbox)
    parts = tuple(part.replace(root=seen.inside(part.root)) for part in changes.roots)
    return summary_lines(changes.replace(roots=parts), limit=_ALL, fold_git=True, project=seen.project)


def diff_tool(sandbox: Sandbox) -> Tool:
    """Return the tool `diff` as it is for this sandbox."""
    policy = sandbox.policy
    secrets = " What files with names of secrets have, such as .env, is not shown." if policy.secrets.mask else ""
    return Tool(
        name="diff",
        description=(
            "Show what is held in the sandbox, or what one run or one operation of it changed, as unified diffs."
            f"{secrets} At most {policy.shown_lines} lines and {policy.shown_bytes} bytes are returned, and you are "
            f"told where the rest begins. What follows `{DIFF}` is from the files."
        ),
        schema=make_schema(
            {
                "paths": paths_schema(),
                "run": _number("Show what this run changed, if it is held."),
                "operation": _number("Show what this operation changed in the project."),
                "offset": offset_schema(),
            }
        ),
        is_read_only=True,
    )


def call_diff(sandbox: Sandbox, given: dict[str, Any]) -> Answer:
    """Return what is held, or what a run or an operation changed, as text."""
    policy = sandbox.policy
    secrets = _Secrets(sandbox)
    lines = _diff(sandbox, given, secrets.skip).split("\n")[:-1]
    told = secrets.notes()
    if not lines:
        text = "\n".join([*told, "There is nothing to show."]) + "\n"
        return Answer(text=text, values={"diff": "", "lines": 0, "next_offset": None, "not_shown": secrets.names()})
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
    return Answer(text="\n".join(told) + "\n", values=values)


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


def undo_tool(sandbox: Sandbox) -> Tool:
    """Return the tool `undo` as it is for this sandbox."""
    return Tool(
        name="undo",
        description=(
            f"{_UNDO[fate_of_changes(sandbox)]} What was changed since is left alone, and you are told why. "
            "What the user has applied or taken back is left to the user."
        ),
        schema=make_schema({"operation": _number("Which operation, by its number.")}),
    )


def call_undo(
    sandbox: Sandbox, given: dict[str, Any], *, cancel_fd: int | None = None, is_mine: Mine | None = None
) -> Answer:
    """Take an operation of the model's own back; not where that was cancelled before it began.

    `is_mine` says what its own is, where the caller knows; otherwise all that runs in this sandbox have applied.
    """
    wanted = _to_undo(sandbox, given.get("operation"), is_mine)
    done = seen_in(sandbox).operation(sandbox.undo(wanted.number, asked_by=BY, cancel_fd=cancel_fd))
    if done.number:
        lines = [f"Operation {wanted.number} was taken back, as operation {done.number}: {_paths(done.changed)}."]
    else:
        lines = [f"Nothing of operation {wanted.number} was taken back."]
    if done.left:
        lines += ["Left alone:", *left_lines(done)]
    lines += [f"Note: {note}" for note in done.notes]
    return Answer(text="\n".join(lines) + "\n", values=operation_form(done) | {"undone": wanted.number})


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
    """The latest operations of a project, the youngest first: which are the model's, and which were taken back."""

    def __init__(self, sandbox: Sandbox, latest: tuple[Operation, ...], is_mine: Mine | None) -> None:
        done = [one for one in latest if one.ending == "done"]
        self._taken_back: set[OperationId] = set()
        for one in done:
            if one.of is not None and one.id not in self._taken_back:
                self._taken_back.add(one.of)
        self._redone = {one.origin for one in done if one.kind == "redo" and one.asked_by not in _MODELS}
        self._is_mine = is_mine
        own = (one for one in done if one.sandbox == sandbox.id and self._is_models(one))
        self.last = next((one for one in own if one.id not in self._taken_back), None)

    def refuse(self, wanted: Operation) -> None:
        """Stop where a model may not take an operation back.

        Raises:
            UsageError: why.
        """
        if not self._is_models(wanted):
            raise UsageError(
                f"operation {wanted.number} is not one that a command or a file tool of yours has applied",
                remedy="Ask the user, who can take back everything.",
            )
        if wanted.id in self._taken_back:
            raise UsageError(f"operation {wanted.number} was taken back already")

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


def operation_form(operation: Operation) -> dict[str, Any]:
    """Return what an operation did, for programs."""
    from unspill.changes.render import left_name, left_reason

    return {
        "operation": operation.number or None,
        "changed": operation.changed,
        "left": [
            {"path": left_name(operation, left), "reason": left_reason(left)} for left in operation.left[:_MOST_PATHS]
        ],
    }


def _paths(count: int) -> str:
    return "1 path is as it was before it" if count == 1 else f"{count} paths are as they were before it"


def paths_schema() -> dict[str, Any]:
    """Return the schema of the argument `paths`."""
    return {
        "type": "array",
        "items": {"type": "string"},
        "maxItems": _MOST_PATHS,
        "description": "Only these files and directories, relative to the project.",
    }


def _number(description: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": 1, "maximum": _LARGEST, "description": description}
