# SPDX-License-Identifier: Apache-2.0
"""The inverse of one step, and whether the backup that it needs is still what was displaced."""

from __future__ import annotations

import os

from unspill.apply.entries import matches
from unspill.apply.staging import digest_entry
from unspill.apply.steps import make_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.apply.draft import Draft
    from unspill.apply.loans import Loans
    from unspill.apply.sites import Sites
    from unspill.model.operation import Action, Entry, Step, Why

NO_BACKUP = "what was displaced is not in the backup any more"
DAMAGED = "the backup is not what was put there"


def invert(draft: Draft, sites: Sites, step: Step, there: Entry | None) -> Step:
    """Return the inverse of a put or a take; `there` is what is live now."""
    action: Action = "take" if step.action == "put" and step.before is None else "put"
    inverse = make_step(step.root, step.path, action, step.group, step.place, there, step.before)
    return _staged_anew(draft, sites, step, inverse.replace(staged=True)) if step.staged else inverse


def _staged_anew(draft: Draft, sites: Sites, step: Step, inverse: Step) -> Step:
    """Give a step in a root on another mount a place there: a copy of the backup, or a free one."""
    inverse = inverse.replace(kept=b"", digest=b"", was=None)
    if inverse.action == "take":
        return inverse.replace(place=draft.next_place(step.root))
    before = step.before
    assert before is not None
    if before.kind == "dir":
        place, status = draft.stage_directory(step.root)
    else:
        fd, name = sites.operations.parent(step.kept)
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        place, status = draft.stage(step.root, fd, name, status, None)
    return inverse.replace(place=place, after=before.replace(inode=status.st_ino))


def backup_problem(sites: Sites, step: Step, before: Entry | None, loans: Loans) -> tuple[Why, str] | None:
    """Look at a backup before it is used: it must be what was displaced."""
    assert before is not None
    fd, name = sites.operations.parent(step.backup)
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return "refused", NO_BACKUP
    if not step.staged:
        return None if matches(status, before) else ("refused", DAMAGED)
    if before.kind == "dir":
        return None
    is_whole = status.st_size == before.size and digest_entry(fd, name, status, loans) == step.digest
    return None if is_whole else ("refused", DAMAGED)
