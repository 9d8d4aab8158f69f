# SPDX-License-Identifier: Apache-2.0
"""What a run left in its layers, now that every process of it is dead: too much perhaps, and its changes."""

from __future__ import annotations

import os

from unspill.host.overlay import OPAQUE
from unspill.layers.lifecycle import is_empty, is_untouched
from unspill.model.change import ChangeSet
from unspill.model.run import LimitReached
from unspill.runner.watch import find_excess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.layers.lifecycle import OpenRun
    from unspill.model.policy import Limits
    from unspill.runner.perform import Performed


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
