# SPDX-License-Identifier: Apache-2.0
"""Apply what a run has just changed: the rest of what is held stays held."""

from __future__ import annotations

from unspill.errors import UnspillError
from unspill.sandbox.applying import apply_held
from unspill.sandbox.choosing import Wish
from unspill.sandbox.ending import Applied
from unspill.sandbox.preload import preload

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.change import ChangeSet
    from unspill.model.layer import RunId, Stack
    from unspill.sandbox.project import Project


def apply_run(project: Project, run: RunId, changes: ChangeSet, stacks: tuple[Stack, ...]) -> Applied:
    """Apply the changes of a run that is sealed on top of its stacks; a failure to apply leaves them held."""
    preload(project.roots, after_run=True)
    uppers = tuple(layer.upper for stack in stacks for layer in stack.sealed)
    # With nothing beneath, what the run changed is all that is held, and it has just been read
    is_all = all(layer.run == run for stack in stacks for layer in stack.sealed)
    reviewed = changes.replace(layers=uppers) if is_all else None
    try:
        operation = apply_held(project, Wish(reviewed=reviewed, run=run, asked_by="run", automatic=True))
    except UnspillError as error:
        return Applied(is_held=True, problem=error.message)
    return Applied(
        operation=operation,
        is_held=bool(operation.left),
        flagged=operation.flagged,
    )
