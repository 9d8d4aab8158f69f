# SPDX-License-Identifier: Apache-2.0
"""Throw away what is held: all of it, or chosen changes, paths or hunks. The live tree is never written.

Of a stack that loses only a part, the rest is folded into one new layer, which takes the place of the old ones in one
transaction. Its row comes before its directory, and whoever finds it unfinished removes both.
"""

from __future__ import annotations

import os

from unspill.changes.partial import apply_hunks, numbered_hunks
from unspill.changes.reader import Reader
from unspill.changes.select import select, without
from unspill.errors import SandboxUnavailable
from unspill.host.libc import syncfs
from unspill.layers.discard import discard_stacks, refuse_if_used
from unspill.layers.duplicate import copy_look
from unspill.layers.garbage import Garbage, clean
from unspill.layers.locks import lock_sandbox
from unspill.layers.make import new_id
from unspill.layers.manifest import remove_manifests, write_manifests
from unspill.layers.mark import renew, take_mark
from unspill.layers.marks import Marks, carry_over
from unspill.layers.places import upper_dir, work_dir
from unspill.layers.residue import build_residue
from unspill.layers.stack import stat_root
from unspill.model.record import Record
from unspill.model.selection import Selection
from unspill.sandbox.masking import carry_changed, load_masked
from unspill.sandbox.partial import read_partly_chosen
from unspill.sandbox.reading import fold_changes
from unspill.sandbox.recording import record_discard
from unspill.store.layers import LayerRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    # What a file holds without the hunks that it loses, by root and path.
    Texts = dict[tuple[bytes, bytes], bytes]

    from unspill.model.change import Change, ChangeSet
    from unspill.model.layer import LayerId, Stack
    from unspill.model.selection import Hunks
    from unspill.sandbox.opening import Opened
    from unspill.store.db import Store


class _Fold(Record):
    """One stack that loses something: what stays of it, as a layer that is to be made."""

    stack: Stack
    row: LayerRow
    remaining: tuple[Change, ...]


class _Folded(Record):
    """A layer that was made of what stays; `overrides` are older marks of some of its paths."""

    row: LayerRow
    overrides: Mapping[bytes, int]


def discard_held(opened: Opened, chosen: Selection) -> int:
    """Throw away what is held, or what is chosen of it, and record that; return how many layers or changes it were."""
    count = discard_all(opened) if chosen.is_everything else discard_selected(opened, chosen)
    record_discard(opened, count)
    return count


def discard_all(opened: Opened) -> int:
    """Throw away every layer of a sandbox; return how many there were.

    Raises:
        SandboxUnavailable: a run that does not hold its changes still stands on them.
    """
    with lock_sandbox(opened.store.state, opened.row.id):
        return discard_stacks(opened.store, opened.row.id)


def discard_selected(opened: Opened, selection: Selection) -> int:
    """Throw away chosen changes of what is held; return how many. A file that loses only some hunks counts as one.

    Raises:
        UsageError: the selection chooses nothing.
        SandboxUnavailable: a run that does not hold its changes still stands on the layers.
    """
    store = opened.store
    with lock_sandbox(store.state, opened.row.id):
        refuse_if_used(store, opened.row.id)
        stacks = [stack for stack in load_masked(opened) if stack.sealed]
        changes = fold_changes(stacks)
        texts, hunks = _texts_without(changes, selection.hunks)
        kept = without(changes, select(changes, selection, parents=False), hunks)
        folds = _folds(opened, stacks, changes, kept, texts)
        if folds:
            _fold_all(opened, folds, texts)
        return len(changes) - len(kept) + len(texts)


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


def _folds(opened: Opened, stacks: list[Stack], changes: ChangeSet, kept: ChangeSet, texts: Texts) -> list[_Fold]:
    folds = []
    for stack, part, left in zip(stacks, changes.roots, kept.roots, strict=True):
        if len(left.changes) < len(part.changes) or any(root == stack.live for root, _ in texts):
            carry_changed(opened.store, stack)
            row = LayerRow(id=new_id(), sandbox=opened.row.id, root=stack.live, run=stack.sealed[-1].run)
            folds.append(_Fold(stack=stack, row=row, remaining=left.changes))
    return folds


def _fold_all(opened: Opened, folds: list[_Fold], texts: Texts) -> None:
    store, rows = opened.store, [fold.row for fold in folds]
    ids = tuple(row.id for row in rows)
    gone = tuple(layer.id for fold in folds for layer in fold.stack.sealed)
    store.layers.add_open(rows)
    try:
        made = [_fold(store, fold, texts) for fold in folds if fold.remaining]
        _swap(opened, made, [fold.row.id for fold in folds if not fold.remaining], gone)
    except BaseException as error:
        clean(store.state, Garbage(uppers=ids, works=ids))
        store.layers.remove(ids)
        # Directories that were opened to their owner get their modes back by this.
        fold_changes([fold.stack for fold in folds])
        if isinstance(error, OSError):
            raise SandboxUnavailable(
                f"What stays can't be folded: {error.strerror}. Nothing was discarded.",
                remedy="Look for free space in the state directory.",
            ) from error
        raise
    clean(store.state, Garbage(uppers=gone, works=ids))


def _fold(store: Store, fold: _Fold, texts: Texts) -> _Folded:
    """Make the layer of what stays of one stack."""
    stack, dest, work = fold.stack, upper_dir(store.state, fold.row.id), work_dir(store.state, fold.row.id)
    os.mkdir(work, 0o700)
    written = {
        change.path: _write_text(work, number, change, texts[stack.live, change.path], stack.live)
        for number, change in enumerate(fold.remaining)
        if (stack.live, change.path) in texts
    }

    def locate(change: Change) -> bytes:
        assert change.layer is not None
        return written.get(change.path) or change.layer + b"/" + change.path

    uppers = [layer.upper for layer in reversed(stack.sealed)]
    build_residue(dest, uppers, fold.remaining, locate, stack.live)
    # Before anything live is looked at: what changes from now on is not older.
    mark = take_mark(stack.live, stat_root(stack.live), renew(dest, os.lstat(dest))).ctime_ns
    marks = Marks([(layer.upper, layer.mark.ctime_ns, store.marks.of(layer.id)) for layer in stack.sealed])
    overrides = carry_over(stack.live, fold.remaining, marks, mark)
    return _Folded(row=fold.row.replace(mark_ns=mark), overrides=overrides)


def _write_text(work: bytes, number: int, change: Change, text: bytes, live: bytes) -> bytes:
    """Write a file that is like the one in the layer but for its text; return its path."""
    path = b"%b/%d" % (work, number)
    with Reader(live) as reader, open(reader.open_after(change), "rb") as source, open(path, "xb") as file:
        file.write(text)
        file.flush()
        copy_look(source.fileno(), file.fileno(), os.fstat(source.fileno()))
    return path


def _swap(opened: Opened, made: list[_Folded], empty: list[LayerId], gone: tuple[LayerId, ...]) -> None:
    """Put the new layers in the place of the old ones."""
    store = opened.store
    fd = os.open(store.state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syncfs(fd)
    finally:
        os.close(fd)
    with store.durable:
        refuse_if_used(store, opened.row.id)
        store.layers.remove((*gone, *empty))
        remove_manifests(store.state, gone)
        for folded in made:
            if not store.layers.seal(folded.row.id, folded.row.mark_ns):
                raise SandboxUnavailable(f"Layer {folded.row.id} is gone: another process took its owner for dead.")
            store.marks.put(folded.row.id, folded.overrides)
        store.runs.drop_held(opened.row.id)
        store.runs.hold(row.run for row in store.layers.sealed(opened.row.id))
    write_manifests(store, [folded.row.id for folded in made], durable=True)
