# SPDX-License-Identifier: Apache-2.0
"""What a run left in its layers now that every process of it is dead, and the repositories as they stood when it began.

A repository is found before the run and kept with what the run wrote.
"""

from __future__ import annotations

import os

from unspill.errors import SandboxUnavailable
from unspill.host.overlay import OPAQUE
from unspill.layers.lifecycle import find_base, is_empty, is_untouched
from unspill.layers.locks import base_dir, base_link
from unspill.model.change import ChangeSet
from unspill.model.run import LimitReached
from unspill.runner.watch import find_excess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.layers.lifecycle import OpenRun
    from unspill.model.change import Change
    from unspill.model.layer import LayerId
    from unspill.model.policy import Limits
    from unspill.runner.perform import Performed
    from unspill.sandbox.project import Project


def with_last_look(performed: Performed, under_way: OpenRun, limits: Limits) -> Performed:
    """Name the bound that a run outgrew after it was last measured, or where nobody could look while it ran."""
    excess = None if isinstance(performed.outcome, LimitReached) else excess_of(under_way, limits)
    return performed if excess is None else performed.replace(outcome=excess)


def excess_of(under_way: OpenRun, limits: Limits) -> LimitReached | None:
    """Return the bound that the layers of a run exceed, if any. Every process of it is dead."""
    stacks = (*under_way.stacks, *(cache.stack for cache in (*under_way.caches, *under_way.rootfs)))
    uppers = tuple(stack.open.upper for stack in stacks if stack.open is not None and not is_empty(stack.open.upper))
    return find_excess(limits, uppers, is_over=True) if uppers else None


def is_unwritten(under_way: OpenRun) -> bool:
    """Tell whether nothing at all was written to the roots of a run."""
    return all(stack.open is None or is_untouched(stack.open.upper, stack.lowers()[0]) for stack in under_way.stacks)


def _without_noise(changes: ChangeSet, upper: bytes, below: tuple[bytes, ...]) -> ChangeSet:
    """Leave out what git did for itself: an index that was only refreshed, objects that were packed or cleaned away.

    It goes from the layer too. Held, it would show the next run a repository that the person has left behind.
    """
    if not any(b".git/" in change.path for change in changes):
        return changes
    from unspill.git.repository import find_noise, find_repositories

    parts = []
    for part in changes.roots:
        noise = find_noise(find_repositories(part, (upper,), below, is_frozen=True))
        for path in sorted(noise, reverse=True):
            _remove(upper + b"/" + path)
        for directory in {path.rpartition(b"/")[0] for path in noise}:
            _make_transparent(upper + b"/" + directory)
        parts.append(part.replace(changes=tuple(change for change in part.changes if change.path not in noise)))
    return changes.replace(roots=tuple(part for part in parts if part.changes))


def _make_transparent(directory: bytes) -> None:
    """Show again what lies below a directory that was removed and made anew."""
    try:
        os.removexattr(directory, OPAQUE, follow_symlinks=False)
    except OSError:
        # It hides nothing, or is not there
        return


def _remove(path: bytes) -> None:
    try:
        os.unlink(path)
    except IsADirectoryError:
        _remove_directory(path)
    except OSError:
        # Below something that is gone already, or too long a name: it stays, and means nothing
        return


def _remove_directory(path: bytes) -> None:
    try:
        os.rmdir(path)
    except OSError:
        # Something else lies in it
        return


def scan_run(under_way: OpenRun) -> ChangeSet:
    """Return what a run changed against what it saw. Every process of it is dead."""
    parts = []
    for stack in under_way.stacks:
        assert stack.open is not None
        lowers = stack.lowers()
        if is_untouched(stack.open.upper, lowers[0]):
            continue
        from unspill.changes.scan import scan

        found = scan((stack.open.upper,), lowers[:-1], stack.live)
        parts.append(_without_noise(found, stack.open.upper, lowers[:-1]))
    if not parts:
        return ChangeSet(roots=())
    from unspill.changes.scan import join

    return join(parts)


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
