# SPDX-License-Identifier: Apache-2.0
"""Hold changes again that an operation took out of the sandbox: undo of a discard, and of an apply that was asked for.

The layers lie in the directory of the operation that took them. What is held again becomes one layer per root, above
what was held then and below what later runs hold.
"""

from __future__ import annotations

import os

from unspill.apply.journal import Residue, kept_base_dir, residue_dir, tree_dir
from unspill.changes.scan import scan
from unspill.git.layout import repository_of
from unspill.layers.lifecycle import new_id, stat_root
from unspill.layers.locks import base_dir
from unspill.layers.marks import Marks, carry_over, renew, take_mark
from unspill.layers.residue import build_residue
from unspill.model.layer import LayerId
from unspill.sandbox.bases import keep_base

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unspill.apply.journal import Journal, Taken
    from unspill.model.change import Change
    from unspill.model.operation import OperationId, Skipped
    from unspill.store.db import Store

    # Tells whether a change of a root, by its path, is held again
    Wanted = Callable[[bytes, bytes], bool]


class HeldAgain:
    """Makes layers of what an operation took: of those paths that are wanted."""

    def __init__(self, store: Store, journal: Journal, wanted: Wanted, roots: Sequence[bytes] = ()) -> None:
        """Take the journal of the operation whose directory has the layers.

        In `roots` the person's own entries are back right now, so whatever they are like, they are what the changes
        were made from.
        """
        self._store = store
        self._taken_by = journal.operation.id
        self._wanted = wanted
        self._roots = roots
        self._residues = () if journal.end is None else journal.end.residues
        self._run = journal.operation.runs[-1] if journal.operation.runs else ""
        self._by_root: dict[bytes, list[Taken]] = {}
        for tree in journal.trees:
            if os.path.lexists(tree_dir(store.state, self._taken_by, tree.layer)):
                self._by_root.setdefault(tree.root, []).append(tree)

    def __bool__(self) -> bool:
        return bool(self._by_root)

    def settle(self, operation: OperationId, left: Sequence[Skipped], marks: Sequence[int]) -> tuple[Residue, ...]:
        """Return the layers that are held from now on; what was left is not among them."""
        lefts = {(self._roots[one.root], one.path) for one in left if one.root < len(self._roots)}
        moments = dict(zip(self._roots, marks, strict=False))
        found = (self._hold(operation, root, moments.get(root), lefts) for root in self._by_root)
        return tuple(residue for residue in found if residue is not None)

    def _hold(
        self, operation: OperationId, root: bytes, moment: int | None, left: set[tuple[bytes, bytes]]
    ) -> Residue | None:
        state, trees = self._store.state, self._by_root[root]
        uppers = tuple(tree_dir(state, self._taken_by, tree.layer) for tree in reversed(trees))
        bases = [kept_base_dir(state, self._taken_by, tree.layer) for tree in trees]
        base = next((base for base in bases if os.path.lexists(base)), None)
        changes = [
            change
            for change in scan(uppers, () if base is None else (base,), root)
            if self._wanted(root, change.path) and not _is_left(root, change.path, left)
        ]
        if not changes:
            return None
        layer = new_id()
        dest = residue_dir(state, operation, layer)
        os.makedirs(os.path.dirname(dest), 0o700, exist_ok=True)
        build_residue(dest, uppers, changes, _locate, root)
        keep_base(base, root, changes, base_dir(state, layer))
        older: dict[bytes, int] = {}
        if moment is None:
            moment = take_mark(root, stat_root(root), renew(dest, os.lstat(dest))).ctime_ns
            moments = zip(reversed(uppers), trees, strict=True)
            marks = [(upper, tree.mark_ns, dict(tree.overrides)) for upper, tree in moments]
            older = carry_over(root, changes, Marks(marks), moment)
        return Residue(
            layer=layer,
            root=root,
            # Journals of unspill 0.1 have no run for each layer
            run=trees[-1].run or self._run,
            mark_ns=moment,
            overrides=tuple(older.items()),
            seq=self._place_above(root, trees),
        )

    def _place_above(self, root: bytes, trees: list[Taken]) -> int:
        """Return the place of the last layer of a root that was there when these were taken."""
        rests = [LayerId(rest.layer) for rest in self._residues if rest.root == root]
        rows = [row for rest in rests if (row := self._store.layers.find(rest)) is not None]
        return max((*(tree.seq for tree in trees), *(row.seq for row in rows)))


def _is_left(root: bytes, path: bytes, left: set[tuple[bytes, bytes]]) -> bool:
    """Tell whether a path, or the repository that it belongs to, was left."""
    return (root, path) in left or (b".git/" in path and (root, repository_of(path) or path) in left)


def _locate(change: Change) -> bytes:
    assert change.layer is not None
    return change.layer + b"/" + change.path
