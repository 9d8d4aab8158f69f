# SPDX-License-Identifier: Apache-2.0
"""Remove the references that an operation made for itself in a repository, once it is kept no more."""

from __future__ import annotations

import os

from unspill.apply.git_move import Repository
from unspill.apply.journal import read_journal
from unspill.apply.places import journal_file
from unspill.apply.sites import Sites
from unspill.errors import UnspillError
from unspill.git.state import is_own_ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.operation import GitEnding, GitStep, OperationId, RefMove


def remove_own_refs(state: bytes, operation: OperationId) -> bool:
    """Remove pins and what arrived; tell whether nothing of it is left. A repository that is gone has none."""
    journal = read_journal(journal_file(state, operation), with_steps=False)
    if journal is None or journal.end is None or not journal.git:
        return True
    is_clean = True
    for step, ending in zip(journal.git, journal.end.git, strict=True):
        root, (_device, inode) = journal.operation.roots[step.root], journal.identities[step.root]
        refs = own_refs(step, ending)
        try:
            is_same = os.lstat(root).st_ino == inode
        except OSError:
            continue
        if refs and is_same:
            is_clean &= _remove(state, root, step, refs)
    return is_clean


def own_refs(step: GitStep, ending: GitEnding) -> list[RefMove]:
    """Return the references below our own name that were made in a repository."""
    arrived = step.arrival if ending == "arrived" else ()
    moved = step.move.refs if step.move is not None and ending == "moved" else ()
    return [ref for ref in (*arrived, *moved) if is_own_ref(ref.name, step.members) and ref.new is not None]


def _remove(state: bytes, root: bytes, step: GitStep, refs: list[RefMove]) -> bool:
    try:
        with Sites(state) as sites:
            sites.open_roots([root], patience_s=1.0)
            repository = Repository(sites, step.replace(root=0))
            return not repository.is_there() or repository.remove(refs)
    except (OSError, UnspillError):
        return False
