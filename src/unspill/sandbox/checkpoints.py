# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a live sandbox that is never quiet: what was changed since the last one, applied if it is to be.

A checkpoint is scanned as a copy; the layer itself goes on, and is dealt with at the quiet point. What a checkpoint
applied is equal to the project then, what it left is still in the layer. So nothing here touches the held layers.

Conflicts are judged by the mark of the layer, when it was mounted; only what our own checkpoints put into the project
since is no edit of anybody. Git repositories move at the quiet point alone: they go as a whole or not at all.
"""

from __future__ import annotations

import os
import time

from unspill.apply.bases import keep_seen_bases
from unspill.apply.recover import OwnEntries, RolledBackEntries
from unspill.changes.scan import join, scan
from unspill.changes.select import with_parents
from unspill.errors import SandboxUnavailable
from unspill.layers.checkpoint import LayerCopy
from unspill.layers.lifecycle import drop_copies, record_copy
from unspill.layers.locks import upper_dir
from unspill.model.change import ChangeSet
from unspill.model.run import Hint, SealedLayer
from unspill.record import Record
from unspill.runner.live import overlays_of
from unspill.sandbox.apply import apply_checkpoint
from unspill.sandbox.result import Applied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from unspill.apply.bases import Explains
    from unspill.layers.lifecycle import OpenRun
    from unspill.model.change import Selection
    from unspill.model.operation import Operation
    from unspill.model.plan import Plan
    from unspill.model.run import LayerId, RunId, Stack
    from unspill.runner.live import LiveSandbox, Standstill
    from unspill.sandbox.project import Project

_GIT = b".git"
_DISK_REMEDY = "Look for free space and free inodes in the state directory."


class Checkpoint(Record):
    """What the runs of a busy sandbox changed since its last checkpoint, and what became of it.

    `shared_with` are the numbers of all runs that may have done it. Everything stood still for `standstill_s`. With
    `unsettled` there is no checkpoint, and it says why.
    """

    changes: ChangeSet
    held: bool = False
    operation: Operation | None = None
    problem: str = ""
    standstill_s: float = 0.0
    hints: tuple[Hint, ...] = ()
    shared_with: tuple[int, ...] = ()
    unsettled: str = ""


class SpanCopies:
    """The last copies of the open layers of a span, and what checkpoints of it have put into the project."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._copies: dict[bytes, tuple[LayerId, LayerCopy]] = {}
        self.own: dict[bytes, OwnEntries] = {root: OwnEntries() for root in project.roots}
        self.explained: dict[bytes, Explains] = {
            root: RolledBackEntries(project.store, project.path, root, own).explains for root, own in self.own.items()
        }

    def take(
        self, live: LiveSandbox, under_way: OpenRun, plan: Plan, selection: Selection | None = None, *, is_applied: bool
    ) -> Checkpoint:
        """Take a checkpoint, and apply what was changed since the last one if it is to be; or what a selection chooses.

        Raises:
            UsageError: the selection chooses nothing.
            SandboxUnavailable: it can't be taken.
        """
        store = self._project.store
        made: dict[bytes, tuple[LayerId, LayerCopy]] = {}
        try:
            still = self._copy(live, under_way, plan, made)
            since = join(self._scan(stack, made[stack.live][1], is_since=True) for stack in under_way.stacks)
            # Only what is applied is compared with the project
            whole = since
            if (is_applied or selection is not None) and self._copies:
                whole = join(self._scan(stack, made[stack.live][1]) for stack in under_way.stacks)
        except BaseException as error:
            drop_copies(store, tuple(layer for layer, _copy in made.values()))
            if isinstance(error, OSError):
                raise SandboxUnavailable(f"no checkpoint: {error.strerror}", remedy=_DISK_REMEDY) from error
            raise
        old, self._copies = self._copies, made
        applied = Applied(is_held=bool(since))
        hints = (*_watch_hints(live), *_git_hints(under_way), *_stop_hints(still.used))
        try:
            self._keep_seen(live, under_way, whole)
            chosen = self.only(whole, since) if selection is None else whole
            if selection is not None or (is_applied and chosen):
                stacks = tuple(self._with_copy(stack, under_way.run.id) for stack in under_way.stacks)
                run, beside = under_way.run.id, under_way.beside
                applied = apply_checkpoint(self._project, run, chosen, stacks, self.own, selection, beside)
                if applied.operation is not None:
                    live.excuse(applied.operation.paths)
            elif is_applied:
                applied = Applied()
        finally:
            drop_copies(store, tuple(layer for layer, _copy in old.values()))
        return Checkpoint(
            changes=since,
            held=applied.is_held,
            operation=applied.operation,
            problem=applied.problem,
            standstill_s=still.lasted_s,
            hints=hints,
        )

    def _copy(
        self, live: LiveSandbox, under_way: OpenRun, plan: Plan, made: dict[bytes, tuple[LayerId, LayerCopy]]
    ) -> Standstill:
        places = {upper: dest for _lowers, dest, upper, _work in overlays_of(plan)}
        begun_ns = time.time_ns()
        mapped = live.mapped()
        for stack in under_way.stacks:
            assert stack.open is not None
            layer = record_copy(self._project.store, under_way, stack.live)
            last = self._copies[stack.live][1] if stack.live in self._copies else None
            copy = LayerCopy(stack.open.upper, upper_dir(self._project.store.state, layer), last)
            made[stack.live] = layer, copy
            copy.begin(begun_ns, _inside(places[copy.upper], mapped))
        with live.standstill() as still:
            for _layer, copy in made.values():
                copy.catch_up(_inside(places[copy.upper], still.mapped))
        if not still.was_kept:
            raise SandboxUnavailable("something did not stand still", remedy="Run it again.")
        for _layer, copy in made.values():
            copy.finish()
        return still

    def _scan(self, stack: Stack, copy: LayerCopy, *, is_since: bool = False) -> ChangeSet:
        below = stack.lowers()[:-1]
        if is_since and stack.live in self._copies:
            below = (self._copies[stack.live][1].dest, *below)
        return _without_git(scan((copy.dest,), below, stack.live))

    def _with_copy(self, stack: Stack, run: RunId) -> Stack:
        layer, copy = self._copies[stack.live]
        assert stack.open is not None
        sealed = SealedLayer(id=layer, upper=copy.dest, mark=stack.open.mark, run=run)
        return stack.replace(open=None, sealed=(*stack.sealed, sealed))

    def _keep_seen(self, live: LiveSandbox, under_way: OpenRun, changes: ChangeSet) -> None:
        """Keep for the copies which names were taken away outside: what was written by such a name is a conflict."""
        taken_away = dict(live.taken_away())
        for part in changes.roots if taken_away else ():
            stack = next(stack for stack in under_way.stacks if stack.live == part.root)
            assert stack.open is not None
            layer, mark_ns = self._copies[part.root][0], stack.open.mark.ctime_ns
            taken, explains = taken_away.get(part.root), self.explained[part.root]
            keep_seen_bases(self._project.store, stack, layer, mark_ns, part.changes, taken, explains, may_read=False)

    def settle(self) -> None:
        """Mark in the layers what is gone since the last checkpoint: it may be in the project."""
        for _layer, copy in self._copies.values():
            copy.bury_in_layer()

    def since(self, under_way: OpenRun) -> ChangeSet | None:
        """Return what the layers have changed since the last checkpoint, None where there was none."""
        if not self._copies:
            return None
        parts = []
        for stack in under_way.stacks:
            assert stack.open is not None
            below = (self._copies[stack.live][1].dest, *stack.lowers()[:-1])
            parts.append(scan((stack.open.upper,), below, stack.live))
        return join(parts)

    def only(self, whole: ChangeSet, since: ChangeSet) -> ChangeSet:
        """Return what differs from the project, of what was changed since the last checkpoint."""
        paths = {part.root: {change.path for change in part.changes} for part in since.roots}
        wanted = with_parents(whole, paths)
        return _filtered(whole, lambda root, path: path in wanted.get(root, ()))

    def drop(self) -> None:
        """Remove the copies."""
        drop_copies(self._project.store, tuple(layer for layer, _copy in self._copies.values()))
        self._copies = {}

    def __bool__(self) -> bool:
        return bool(self._copies)


def _filtered(changes: ChangeSet, is_wanted: Callable[[bytes, bytes], bool]) -> ChangeSet:
    parts = (
        part.replace(changes=tuple(change for change in part.changes if is_wanted(part.root, change.path)))
        for part in changes.roots
    )
    return changes.replace(roots=tuple(part for part in parts if part.changes))


def _without_git(changes: ChangeSet) -> ChangeSet:
    return _filtered(changes, lambda _root, path: _GIT not in path.split(b"/"))


def _inside(place: bytes, mapped: Iterable[bytes] | None) -> list[bytes] | None:
    """Return paths of the sandbox that lie in a place, as counted from there."""
    if mapped is None:
        return None
    return [path[len(place) + 1 :] for path in mapped if path.startswith(place + b"/")]


def _watch_hints(live: LiveSandbox) -> tuple[Hint, ...]:
    if not live.tell_unwatched():
        return ()
    text = "Your edits can't be watched while commands are alive: they may still see files as they were."
    remedy = "Raise fs.inotify.max_user_instances and max_user_watches, or end other programs that watch files."
    return (Hint(code="not-watched", text=text, remedy=remedy),)


def _git_hints(under_way: OpenRun) -> tuple[Hint, ...]:
    if not any(stack.open is not None and os.path.lexists(stack.open.upper + b"/.git") for stack in under_way.stacks):
        return ()
    text = "What changed in .git is taken when the last command of this sandbox has ended."
    return (Hint(code="git-later", text=text, remedy=""),)


def _stop_hints(used: str) -> tuple[Hint, ...]:
    if used != "signal":
        return ()
    text = "Some processes could only be stopped by SIGSTOP: a shell may have noticed."
    return (Hint(code="stopped-by-signal", text=text, remedy=""),)
