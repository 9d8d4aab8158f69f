# SPDX-License-Identifier: Apache-2.0
"""The repositories of the roots as they stood when a run began: found before it, kept with what it wrote."""

from __future__ import annotations

import os

from unspill.errors import SandboxUnavailable
from unspill.layers.lifecycle import find_base
from unspill.layers.locks import base_dir, base_link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.layers.lifecycle import OpenRun
    from unspill.model.change import Change, ChangeSet
    from unspill.model.layer import LayerId
    from unspill.sandbox.project import Project


def find_bases(project: Project) -> tuple[tuple[bytes, bytes], ...]:
    """Return the repositories of the roots as they stand now: a run sees them so, whatever happens meanwhile."""
    roots = [root for root in project.roots if os.path.lexists(root + b"/.git")]
    if not roots:
        return ()
    from unspill.git import frozen  # lazy: git

    try:
        found = [(root, frozen.find_frozen(project.store.state, root)) for root in roots]
    except OSError as error:
        raise SandboxUnavailable(
            f"The state of a git repository can't be kept for the run: {error.strerror}.",
            remedy="Look for free space and free inodes in the state directory, or point UNSPILL_STATE_DIR elsewhere.",
        ) from error
    return tuple((root, base) for root, base in found if base is not None)


def keep_bases(project: Project, under_way: OpenRun, changes: ChangeSet | None) -> None:
    """Keep repositories that a run moved as they stood when it began, for as long as its changes are held.

    Not those in which it wrote a hook, say: the next run shall see what the person commits meanwhile. `changes` is None
    where what the run wrote can't be read.
    """
    state = project.store.state
    found = {} if changes is None else {part.root: part.changes for part in changes.roots}
    for stack in under_way.stacks:
        if stack.base is None or stack.open is None or find_base(state, stack.sealed) is not None:
            continue
        from unspill.git.layout import is_state  # lazy: git

        if changes is None or any(is_state(change.path) for change in found.get(stack.live, ())):
            from unspill.git.frozen import keep_frozen  # lazy: git

            keep_frozen(stack.base, base_dir(state, stack.open.id))


def keep_base(base: bytes | None, root: bytes, changes: Sequence[Change], dest: bytes) -> None:
    """Keep a repository as a stack was written over it for what of its changes remains, with the objects it needs."""
    if base is None:
        return
    from unspill.git.layout import is_state  # lazy: git

    if any(is_state(change.path) for change in changes):
        from unspill.git.frozen import keep_frozen, keep_objects  # lazy: git

        keep_frozen(base, dest)
        keep_objects(root, dest)


def keep_base_objects(project: Project, under_way: OpenRun) -> None:
    """Keep the objects that a run built on whose changes are held: git may remove them from the project at any time."""
    state = project.store.state
    for stack in under_way.stacks:
        if stack.open is not None and os.path.lexists(stack.open.upper + b"/.git"):
            base = find_base(state, stack.sealed) or base_dir(state, stack.open.id)
            if os.path.lexists(base):
                from unspill.git.frozen import keep_objects  # lazy: git

                keep_objects(stack.live, base)


def left_base(project: Project, layer: LayerId) -> bytes | None:
    """Return the repository that an open layer of a killed process was written over."""
    try:
        base = os.readlink(base_link(project.store.state, layer))
    except OSError:
        return None
    return base if os.path.isdir(base) else None
