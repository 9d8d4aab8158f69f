# SPDX-License-Identifier: Apache-2.0
"""The sessions of coding agents: what one did in a project, from its first command to its last edit, and its undo.

A session has the name that its agent gave it, or whoever started it. Runs, operations and what the person asked for
carry it. An undo takes its operations back one by one, the newest first; what others have done in between stays.
"""

from __future__ import annotations

import hashlib
import os

from unspill.apply.edits import note_edit, record_edit
from unspill.errors import ApplyFailed, SandboxUnavailable, UsageError
from unspill.model.operation import Skipped, reversals_of
from unspill.record import Record
from unspill.sandbox.history import done_in, lets_go, redo_operation, undo_operation
from unspill.sandbox.scan import end_interrupted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unspill.model.operation import Operation, OperationKind
    from unspill.model.run import Run
    from unspill.sandbox.project import Project
    from unspill.store.operations import PromptRow

_SEE = "See `unspill sessions`."


class Session(Record):
    """One session: when it began and did something last, and what of it is on record.

    `operations` are those that changed the project, the oldest first; `undone` are the numbers of those that were
    undone since.
    """

    name: str
    begun_ns: int
    last_ns: int
    runs: tuple[Run, ...] = ()
    operations: tuple[Operation, ...] = ()
    prompts: tuple[PromptRow, ...] = ()
    undone: tuple[int, ...] = ()

    @property
    def can_be_undone(self) -> bool:
        """Whether it changed something that is not undone."""
        return len(self.undone) < len(self.operations)

    def point(self, prompt: PromptRow) -> int:
        """Return the number of the last operation before a prompt: where to go back to; 0 for before the session."""
        return max((one.number for one in self.operations if one.at_ns < prompt.at_ns), default=0)


def list_sessions(project: Project) -> tuple[Session, ...]:
    """Return the sessions of a project, the newest last."""
    done = done_in(project)
    times = project.store.sessions.times(project.path)
    return tuple(_load(project, done, name, *moments) for name, moments in times.items())


def find_session(project: Project, word: str | None = None) -> Session:
    """Return a session by its name or the beginning of it.

    By default it is the last one that changed something, undone or not; where there is none, the last one.

    Raises:
        UsageError: there is none, or more than one begins so.
    """
    times = project.store.sessions.times(project.path)
    if word is None:
        if not times:
            raise UsageError("this project has no session", remedy="Agents that call `unspill hook` have one.")
        found = list_sessions(project)
        changed = [one for one in found if one.operations]
        return max(changed or found, key=lambda session: session.last_ns)
    names = [name for name in times if name == word] or [name for name in times if name.startswith(word)]
    if len(names) != 1:
        why = "no such session" if not names else "more than one session begins so"
        raise UsageError(f"{why}: {word}", remedy=_SEE)
    return _load(project, done_in(project), names[0], *times[names[0]])


def undo_session(
    project: Project, word: str | None, to: int | None, asked_by: str, *, is_dry: bool = False
) -> tuple[Operation, ...]:
    """Undo what a session changed, or what it changed after operation `to`; return what was done, the newest first.

    By default it is the last one that changed something. What somebody else has changed since is left, and named by the
    operation that left it, and so is all of an operation that is refused. If `is_dry`, only say what would be done.

    Raises:
        UsageError: there is no such session, or nothing to undo.
    """
    end_interrupted(project.store)
    session = find_session(project, word)
    wanted = [one for one in session.operations[::-1] if one.number not in session.undone and one.number > (to or 0)]
    if to is not None and to not in {0, *(one.number for one in session.operations)}:
        raise UsageError(f"op {to} is not part of session {session.name}", remedy="See `unspill show --session`.")
    if not wanted:
        raise UsageError(
            f"nothing of session {session.name} is left to undo", remedy="Name another one: see `unspill sessions`."
        )
    done = _each(wanted, "undo", lambda number: undo_operation(project, number, asked_by, is_dry=is_dry))
    return _planned(done) if is_dry else done


def _each(wanted: Sequence[Operation], kind: OperationKind, do: Callable[[int], Operation]) -> tuple[Operation, ...]:
    """Reverse some operations one by one; all of one that is refused is left, and the others go on."""
    found: list[Operation] = []
    for one in wanted:
        try:
            found.append(do(one.number))
        except (UsageError, SandboxUnavailable) as error:
            left = Skipped(root=0, path=b".", why="refused", reason=error.message)
            found.append(one.replace(number=0, kind=kind, of=one.id, changed=0, notes=(), left=(left,)))
    return tuple(found)


def _planned(planned: Sequence[Operation]) -> tuple[Operation, ...]:
    """Return what undoing operations would do, one after the other.

    Each was looked at as things are now: that a later one of them changed the same path is not said to be in its way.
    """
    found: list[Operation] = []
    going: set[bytes] = set()
    for one in planned:
        places = [os.path.join(one.roots[left.root], left.path) for left in one.left]
        solved = [at for at, left in zip(places, one.left, strict=True) if left.why == "conflict" and at in going]
        kept = tuple(left for at, left in zip(places, one.left, strict=True) if at not in solved)
        paths = tuple(dict.fromkeys([*one.paths, *solved]))
        found.append(one.replace(left=kept, paths=paths, changed=len(paths)))
        going.update(paths)
    return tuple(found)


def redo_session(project: Project, word: str | None, asked_by: str) -> tuple[Operation, ...]:
    """Redo what was undone of a session, the oldest first; return what was done.

    Raises:
        UsageError: there is no such session, or nothing of it is undone.
    """
    end_interrupted(project.store)
    session = find_session(project, word)
    if not session.undone:
        raise UsageError(f"nothing of session {session.name} was undone", remedy=_SEE)
    undone = [one for one in session.operations if one.number in session.undone]
    return _each(undone, "redo", lambda number: redo_operation(project, number, asked_by))


def note_files(project: Project, call: str, paths: Sequence[bytes]) -> None:
    """Remember what is at some paths before a tool of an agent changes them; `call` names that call of it.

    Some tools write through a link and others replace it, so both ends are remembered.

    Raises:
        UsageError: something can't be read.
    """
    try:
        real = [one for path in paths for one in (_real(path), os.path.realpath(path))]
        note_edit(project.store.state, _key(project, call), project.roots, real)
    except OSError as error:
        raise UsageError(f"unspill can't keep what is there before the edit: {error.strerror}") from error


def record_files(project: Project, call: str, asked_by: str) -> Operation | None:
    """Record what that call has changed; None where that is nothing.

    Raises:
        ApplyFailed: it can't be recorded.
        ProjectBusy: an operation on the project is under way.
    """
    try:
        return record_edit(project.store, project.row, _key(project, call), asked_by)
    except OSError as error:
        raise ApplyFailed(f"the edit can't be recorded: {error.strerror}") from error


def _real(path: bytes) -> bytes:
    """Return where an entry is: links above it are followed, it itself is not."""
    above, name = os.path.split(path)
    return os.path.join(os.path.realpath(above), name)


def _key(project: Project, call: str) -> str:
    whole = "\0".join((project.store.session, call)).encode("utf-8", "surrogatepass")
    return hashlib.sha256(whole).hexdigest()[:32]


def _load(project: Project, done: Sequence[Operation], name: str, begun_ns: int, last_ns: int) -> Session:
    """Return a session; `done` are the project's operations, the youngest first."""
    store = project.store
    runs = store.runs.of_session(project.path, name)
    known = {run.id for run in runs}
    # What the session held, and the person applied later, is its work too
    operations = tuple(
        one
        for one in reversed(done)
        if one.of is None
        and not lets_go(one)
        and (one.session == name or (one.kind == "apply" and not known.isdisjoint(one.runs)))
    )
    undone = reversals_of(done)
    return Session(
        name=name,
        begun_ns=begun_ns,
        last_ns=last_ns,
        runs=runs,
        operations=operations,
        prompts=store.sessions.prompts(project.path, name),
        undone=tuple(one.number for one in operations if one.id in undone),
    )
