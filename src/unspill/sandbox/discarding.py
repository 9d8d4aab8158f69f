# SPDX-License-Identifier: Apache-2.0
"""Discard what is held: all of it, or chosen changes, paths or hunks. The live tree is never written.

A discard is an operation: the layers lie in its directory afterwards, so undo brings them back. Of a stack that loses
only a part, the rest is folded into one new layer.
"""

from __future__ import annotations

import os

from unspill.apply.journal import Residue, operation_dir, residue_dir, tree_dir
from unspill.apply.operate import Task, operate
from unspill.changes.diff import apply_hunks, numbered_hunks
from unspill.changes.reader import Reader
from unspill.changes.select import select, without
from unspill.errors import RootRefused
from unspill.layers.lifecycle import new_id, refuse_if_used, stat_root
from unspill.layers.locks import base_dir, lock_sandbox
from unspill.layers.marks import Marks, carry_over, renew, take_mark
from unspill.layers.residue import build_residue
from unspill.layers.trees import copy_look
from unspill.sandbox.bases import keep_base
from unspill.sandbox.choosing import with_whole_repositories
from unspill.sandbox.layer_rows import taken_layers
from unspill.sandbox.masking import carry_changed, load_masked
from unspill.sandbox.partial import read_partly_chosen
from unspill.sandbox.reading import fold_changes
from unspill.sandbox.sweeping import end_interrupted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    # What a file holds without the hunks that it loses, by root and path.
    Texts = dict[tuple[bytes, bytes], bytes]

    from unspill.apply.journal import Taken
    from unspill.apply.operate import Settler
    from unspill.model.change import Change, ChangeSet, Hunks, Selection
    from unspill.model.layer import Stack
    from unspill.model.operation import Operation, OperationId, Skipped
    from unspill.sandbox.opening import Opened


def discard_held(opened: Opened, selection: Selection, asked_by: str = "person") -> Operation:
    """Discard what is held, or what is chosen of it; the operation's number is 0 if nothing was held.

    Raises:
        UsageError: the selection chooses nothing.
        SandboxUnavailable: a run that does not hold its changes still stands on the layers.
        ApplyFailed: the filesystem failed; nothing was discarded.
    """
    end_interrupted(opened.store)
    with lock_sandbox(opened.store.state, opened.row.id):
        refuse_if_used(opened.store, opened.row.id)
        if selection.is_everything:
            return discard_all(opened, asked_by)
        return _Discard(opened, selection, asked_by).run()


def discard_all(opened: Opened, asked_by: str) -> Operation:
    """Discard every layer; the live directories may be gone by now. The sandbox's lock is held."""
    trees = taken_layers(opened.store, opened.row.id)
    paths = _held_paths(opened) if trees else ()
    changed = max(1, len(paths)) if trees else 0
    return operate(opened.store, _task(opened, asked_by, trees, changed, None)).replace(paths=paths)


def _held_paths(opened: Opened) -> tuple[bytes, ...]:
    try:
        return tuple(fold_changes(load_masked(opened)).paths())
    except (OSError, RootRefused):
        return ()


def _task(opened: Opened, asked_by: str, trees: tuple[Taken, ...], changed: int, settle: Settler | None) -> Task:
    return Task(
        kind="discard",
        sandbox=opened.row.id,
        project=opened.project,
        roots=(),
        asked_by=asked_by,
        draft=lambda _draft, _dirs: None,
        settle=settle,
        runs=tuple(dict.fromkeys(tree.run for tree in trees)),
        trees=trees,
        changed=changed,
    )


class _Discard:
    """A discard of a part: which changes go, and which stay as one layer per root."""

    def __init__(self, opened: Opened, selection: Selection, asked_by: str) -> None:
        self._opened = opened
        self._state = opened.store.state
        self._asked_by = asked_by
        stacks = [stack for stack in load_masked(opened) if stack.sealed]
        changes = fold_changes(stacks)
        self._texts, hunks = _texts_without(changes, selection.hunks)
        chosen = with_whole_repositories(changes, stacks, select(changes, selection, parents=False))
        kept = without(changes, chosen, hunks)
        self._paths = tuple((part.root, change.path) for part in chosen.roots for change in part.changes)
        self._count = len(changes) - len(kept) + len(self._texts)
        # The stacks that lose something, with what stays of each
        self._losing = [
            (stack, left.changes)
            for stack, part, left in zip(stacks, changes.roots, kept.roots, strict=True)
            if len(left.changes) < len(part.changes) or any(root == stack.live for root, _path in self._texts)
        ]
        self._older = {stack.live: self._marks(stack) for stack, _left in self._losing}

    def run(self) -> Operation:
        taken = {layer.id for stack, _left in self._losing for layer in stack.sealed}
        trees = tuple(tree for tree in taken_layers(self._opened.store, self._opened.row.id) if tree.layer in taken)
        task = _task(self._opened, self._asked_by, trees, self._count, self._settle)
        return operate(self._opened.store, task.replace(paths=self._paths))

    def _settle(self, operation: OperationId, _left: Sequence[Skipped], _marks: Sequence[int]) -> tuple[Residue, ...]:
        """Fold what stays into one layer per root."""
        return tuple(self._fold(operation, stack, remaining) for stack, remaining in self._losing if remaining)

    def _fold(self, operation: OperationId, stack: Stack, remaining: tuple[Change, ...]) -> Residue:
        carry_changed(self._opened.store, stack)
        layer = new_id()
        sources = {sealed.upper: tree_dir(self._state, operation, sealed.id) for sealed in reversed(stack.sealed)}
        written = self._write_texts(operation, stack, remaining, sources)

        def locate(change: Change) -> bytes:
            assert change.layer is not None
            return written.get(change.path) or sources[change.layer] + b"/" + change.path

        dest = residue_dir(self._state, operation, layer)
        os.makedirs(os.path.dirname(dest), 0o700, exist_ok=True)
        build_residue(dest, tuple(sources.values()), remaining, locate, stack.live)
        keep_base(stack.base, stack.live, remaining, base_dir(self._state, layer))
        # Before anything live is looked at: what changes from now on is not older
        mark = take_mark(stack.live, stat_root(stack.live), renew(dest, os.lstat(dest))).ctime_ns
        marks = Marks([(sources[upper], mark_ns, single) for upper, mark_ns, single in self._older[stack.live]])
        older = carry_over(stack.live, remaining, marks, mark)
        run = stack.sealed[-1].run
        return Residue(layer=layer, root=stack.live, run=run, mark_ns=mark, overrides=tuple(older.items()))

    def _marks(self, stack: Stack) -> list[tuple[bytes, int, dict[bytes, int]]]:
        marks = self._opened.store.marks
        return [(layer.upper, layer.mark.ctime_ns, marks.of(layer.id)) for layer in stack.sealed]

    def _write_texts(
        self, operation: OperationId, stack: Stack, remaining: Sequence[Change], sources: Mapping[bytes, bytes]
    ) -> dict[bytes, bytes]:
        """Write files that lose only some of their hunks; return where each is."""
        top = operation_dir(self._state, operation) + b"/stage"
        written: dict[bytes, bytes] = {}
        for change in remaining:
            text = self._texts.get((stack.live, change.path))
            if text is not None and change.layer is not None:
                os.makedirs(top, 0o700, exist_ok=True)
                path = written[change.path] = b"%b/text-%d" % (top, len(written))
                _write_text(path, text, change.replace(layer=sources[change.layer]), stack.live)
        return written


def _texts_without(changes: ChangeSet, hunks: tuple[Hunks, ...]) -> tuple[Texts, list[Hunks]]:
    """Return what files hold without the chosen hunks; and those hunks, but for files that lose all of them."""
    texts: Texts = {}
    partial: list[Hunks] = []
    for some in hunks:
        file = read_partly_chosen(changes, some)
        old, new = file.old, file.new
        apply_hunks(old, new, some.numbers)
        stay = {hunk.number for hunk in numbered_hunks(old, new)}.difference(some.numbers)
        if stay or {"mode", "xattrs"}.intersection(file.change.aspects):
            texts[file.root, file.change.path] = apply_hunks(old, new, stay)
            partial.append(some)
    return texts, partial


def _write_text(path: bytes, text: bytes, change: Change, live: bytes) -> None:
    """Write a file that is like the one in the layer but for its text."""
    with Reader(live) as reader, open(reader.open_after(change), "rb") as source, open(path, "xb") as file:
        file.write(text)
        file.flush()
        copy_look(source.fileno(), file.fileno(), os.fstat(source.fileno()))
