# SPDX-License-Identifier: Apache-2.0
"""Undo, redo and restore: operations on what operations left behind."""

from __future__ import annotations

import os

from unspill.apply.journal import journal_file, read_journal, tree_dir
from unspill.apply.operate import Task, operate
from unspill.apply.reverse import LaterOperations, Reversal
from unspill.apply.staging import opened_and_closed
from unspill.errors import RootRefused, UsageError
from unspill.git.layout import repository_of
from unspill.layers.lifecycle import stat_root
from unspill.layers.locks import upper_dir
from unspill.model.layer import LayerId, SandboxId
from unspill.model.operation import OperationId
from unspill.sandbox.claims import forget_untracked
from unspill.sandbox.held_again import HeldAgain
from unspill.sandbox.layer_rows import taken_layers
from unspill.sandbox.sweeping import end_interrupted
from unspill.sandbox.turn import lock_unless_given_up, refuse_given_up

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unspill.apply.journal import Journal
    from unspill.model.operation import Operation, OperationKind, Step
    from unspill.sandbox.opening import Opened
    from unspill.store.db import Store

_ALL = 1_000_000
# Who asks for an apply that follows a run by itself
AFTER_RUN = "run"


def get_operation(opened: Opened, operation: str | int) -> Operation:
    """Return an operation of this project by number or id.

    Raises:
        UsageError: there is none.
    """
    text = str(operation)
    if text.isdecimal() and len(text) < 16:
        found = opened.store.operations.find_number(opened.project, int(text))
    else:
        found = opened.store.operations.find(OperationId(text))
    if found is None or found.project != opened.project:
        raise UsageError(f"no such operation: {text}", remedy="See `unspill log`.")
    return found


def undo_operation(
    opened: Opened, operation: str | int | None, asked_by: str, cancel_fd: int | None = None
) -> Operation:
    """Take an operation back: by default the last one that was not taken back yet.

    Raises:
        UsageError: there is nothing to take back.
        SandboxUnavailable: the caller gave up; nothing was changed.
    """
    end_interrupted(opened.store)
    done = _done(opened)
    reversed_by = _reversals(done)
    if operation is None:
        # What only changed times is undone when it is named, but nobody means it by "the last"
        wanted = next((one for one in done if one.kind != "undo" and one.changed and one.id not in reversed_by), None)
        if wanted is None:
            raise UsageError("there is nothing to undo", remedy="See `unspill log`.")
    else:
        wanted = get_operation(opened, operation)
    kind: OperationKind = "undo" if wanted.kind != "undo" else "redo"
    return _reverse(opened, wanted, kind, reversed_by, asked_by, cancel_fd)


def redo_operation(opened: Opened, operation: str | int | None, asked_by: str) -> Operation:
    """Do again what an undo took back: by default the last undo that was not followed by its redo.

    Raises:
        UsageError: there is nothing to do again.
    """
    end_interrupted(opened.store)
    done = _done(opened)
    reversed_by = _reversals(done)
    if operation is None:
        wanted = next((one for one in done if one.kind == "undo" and one.id not in reversed_by), None)
        if wanted is None:
            raise UsageError("there is nothing to redo", remedy="See `unspill log`.")
    else:
        wanted = get_operation(opened, operation)
        if wanted.kind != "undo":
            wanted = reversed_by.get(wanted.id, wanted)
        if wanted.kind != "undo":
            raise UsageError(f"operation {wanted.number} was not undone", remedy="See `unspill log`.")
    return _reverse(opened, wanted, "redo", reversed_by, asked_by)


def steps_of(opened: Opened, operation: Operation) -> tuple[Step, ...]:
    """Return the steps of an operation that were done; none where its journal is not kept any more."""
    journal = read_journal(journal_file(opened.store.state, operation.id))
    if journal is None or journal.end is None:
        return ()
    return tuple(journal.steps[index] for index in journal.end.done)


def _done(opened: Opened) -> list[Operation]:
    """Return the operations of the project that were done, the youngest first."""
    return [one for one in opened.store.operations.latest(opened.project, _ALL) if one.ending == "done"]


def _reversals(done: Sequence[Operation]) -> dict[OperationId, Operation]:
    """Return, by operation, what took it back and was not itself taken back."""
    found: dict[OperationId, Operation] = {}
    gone: set[OperationId] = set()
    for one in done:
        if one.of is not None and one.id not in gone:
            found.setdefault(one.of, one)
            gone.add(one.of)
    return found


def _refuse_other_roots(journal: Journal) -> None:
    """Stop where another directory is at the path of a root than the one that the operation changed."""
    for root, (_device, inode) in zip(journal.operation.roots, journal.identities, strict=True):
        if stat_root(root).st_ino != inode:
            raise RootRefused(
                f"{os.fsdecode(root)} is another directory than the one that was changed",
                remedy="Put the project back where it was.",
            )


def _reverse(
    opened: Opened,
    wanted: Operation,
    kind: OperationKind,
    reversed_by: dict[OperationId, Operation],
    asked_by: str,
    cancel_fd: int | None = None,
) -> Operation:
    if wanted.ending != "done":
        raise UsageError(f"operation {wanted.number} was rolled back: there is nothing to take back")
    if wanted.id in reversed_by:
        by = reversed_by[wanted.id]
        raise UsageError(
            f"operation {wanted.number} was taken back by operation {by.number}",
            remedy=f"To do it again: unspill undo op{by.number}",
        )
    journal = read_journal(journal_file(opened.store.state, wanted.id))
    if journal is None or journal.end is None:
        raise UsageError(
            f"the backup of operation {wanted.number} is not kept any more", remedy="See `keep_days` in the settings."
        )
    _refuse_other_roots(journal)
    later = LaterOperations(opened.store, wanted)
    task = Task(
        kind=kind,
        sandbox=wanted.sandbox,
        project=wanted.project,
        roots=wanted.roots,
        asked_by=asked_by,
        draft=Reversal(later.as_of_now(journal), later.explains, kind).draft,
        of=wanted.id,
        origin=wanted.origin,
        runs=wanted.runs,
        check=lambda: refuse_given_up(cancel_fd),
    )
    try:
        if not _concerns_layers(opened.store, wanted, journal):
            return operate(opened.store, task)
        with lock_unless_given_up(opened.store.state, SandboxId(wanted.sandbox), cancel_fd):
            return operate(opened.store, _with_layers(opened.store, wanted, journal, task))
    finally:
        forget_untracked(opened)


def _concerns_layers(store: Store, wanted: Operation, journal: Journal) -> bool:
    """Tell whether a reversal changes what is held: of a discard, or of an apply that was asked for."""
    assert journal.end is not None
    origin = store.operations.find(wanted.origin) if wanted.origin is not None else None
    first = wanted if origin is None else origin
    return first.kind == "discard" or (first.kind == "apply" and first.asked_by != AFTER_RUN)


def _with_layers(store: Store, wanted: Operation, journal: Journal, task: Task) -> Task:
    """Return the task of a reversal with what it does to the layers of the sandbox.

    Raises:
        UsageError: what was held again by an undo is not held any more, or what was discarded lies elsewhere by now.
    """
    end = journal.end
    assert end is not None
    held = [tree.layer for tree in end.restored] + [residue.layer for residue in end.residues]
    if held and wanted.kind == "undo":
        known = {tree.layer: tree for tree in taken_layers(store, SandboxId(wanted.sandbox))}
        trees = tuple(known[layer] for layer in held if layer in known)
        if len(trees) < len(held):
            raise UsageError(
                f"what operation {wanted.number} put on hold again was applied or discarded since",
                remedy="See `unspill log`, and undo that instead.",
            )
        is_discard = not journal.steps and not journal.git
        if is_discard:
            _refuse_built_on(store, wanted, held, [*known])
        return task.replace(trees=trees, changed=wanted.changed if is_discard else 0)
    first = read_journal(journal_file(store.state, wanted.origin or wanted.id), with_steps=False)
    if first is None:
        return task
    if not journal.steps and not journal.git:
        if not journal.paths:
            _refuse_if_done_again(store, wanted, journal)
            return task.replace(restored=journal.trees, changed=wanted.changed)
        paths = set(journal.paths)
        again = HeldAgain(store, journal, lambda root, path: (root, path) in paths)
        return task.replace(settle=again.settle, changed=wanted.changed)
    return task.replace(settle=HeldAgain(store, first, _applied(wanted, journal), wanted.roots).settle)


def _refuse_built_on(store: Store, wanted: Operation, held: Sequence[str], layers: Sequence[str]) -> None:
    """Stop where a later layer that stays has to do with a repository that the layers to be taken changed.

    Its references may lead to commits that only these have.
    """
    with_git = [layer for layer in layers if os.path.lexists(upper_dir(store.state, LayerId(layer)) + b"/.git")]
    first = next((at for at, layer in enumerate(with_git) if layer in held), len(with_git))
    if any(layer not in held for layer in with_git[first:]):
        raise UsageError(
            f"a later run built on the git repository that operation {wanted.number} put on hold again",
            remedy="Discard or apply all that is held instead.",
        )


def _refuse_if_done_again(store: Store, discard: Operation, journal: Journal) -> None:
    """Stop where a discard does not have its layers any more: its undo held them again, and the redo has them now."""
    if all(os.path.lexists(tree_dir(store.state, discard.id, tree.layer)) for tree in journal.trees):
        return
    raise UsageError(
        f"what operation {discard.number} discarded was held again and discarded since",
        remedy="See `unspill log`, and undo the redo instead.",
    )


def _applied(operation: Operation, journal: Journal) -> Callable[[bytes, bytes], bool]:
    """Return what tells whether an operation applied a path, by itself or with its repository."""
    assert journal.end is not None
    steps = [journal.steps[index] for index in journal.end.done]
    # A directory that was only opened and closed again has steps too; one whose special bits were left out has not
    changed = {(step.root, step.path) for step in steps if step.action == "set_metadata" and step.was != step.becomes}
    unchanged = opened_and_closed(steps) & changed
    paths = {
        (operation.roots[step.root], step.path)
        for step in steps
        if step.action != "set_metadata" or (step.root, step.path) not in unchanged
    }
    tops = {
        (operation.roots[git.root], git.top)
        for git, ending in zip(journal.git, journal.end.git, strict=True)
        if ending != "left"
    }
    return lambda root, path: (root, path) in paths or (b".git" in path and (root, repository_of(path)) in tops)
