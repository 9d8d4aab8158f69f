# SPDX-License-Identifier: Apache-2.0
"""Holds what a run has written that has no result: its process was killed, or something failed while it ran.

Nothing is read or sealed before every process of the run is dead. Until the one transaction that seals its layers it is
an unfinished run, which the next opening finds again; from then on it is a held one. So a crash here loses nothing.

If the process was killed, all that the command wrote until then is kept. After a power cut it is what the filesystem
kept: nothing was synchronised, so a file may be empty or old.
"""

from __future__ import annotations

import os
import time

from unspill.changes.render import count_changes
from unspill.errors import UnspillError
from unspill.host.cgroup import sweep_groups
from unspill.host.libc import DeferredSignals
from unspill.layers.lifecycle import OpenRun, drop_run, seal_run
from unspill.layers.locks import SandboxLock, is_abandoned, may_live, spill_dir, upper_dir, work_dir
from unspill.layers.sweep import drop_caches, end_processes, remove_run
from unspill.layers.trees import remove_tree
from unspill.model.change import ChangeSet
from unspill.model.layer import OpenLayer, TimeMark
from unspill.model.policy import Limits
from unspill.model.run import Cancelled, LimitReached
from unspill.policy.paths import quote
from unspill.sandbox.audit import record_failure, record_run
from unspill.sandbox.scan import excess_of, is_unwritten, keep_base_objects, keep_bases, left_base, scan_run
from unspill.sandbox.secrets import load_masked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.policy import After
    from unspill.model.run import Run
    from unspill.sandbox.planning import Request
    from unspill.sandbox.project import Project
    from unspill.sandbox.result import RunResult
    from unspill.store.layers import LayerRow, SandboxRow
    from unspill.store.runs import UnfinishedRun

_REVIEW = "See `unspill changes`, then `unspill apply` or `unspill discard`."
_LONGEST_COMMAND = 60


def hold_of_project(project: Project) -> tuple[Run, ...]:
    """Hold what runs of a project had written when their processes were killed; return those to tell the person of.

    That is: the held ones, and those that were too large. A sandbox that is in use is left to whoever uses it.
    """
    sandboxes = {row.id: row for row in project.store.sandboxes.of_project(project.path)}
    found: list[Run] = []
    for run in project.store.runs.unfinished():
        if run.keeps and run.sandbox in sandboxes and is_abandoned(run):
            lock = SandboxLock(project.store.state, run.sandbox)
            if lock.try_acquire():
                with lock:
                    found += _try_hold(project, sandboxes[run.sandbox], run)
    return tuple(found)


def hold_of_sandbox(project: Project) -> tuple[Run, ...]:
    """Do the same for one sandbox, before the next run of it. Its lock is held.

    Whoever keeps something has the lock until the end, so every run without an end lost its process; or this process
    was interrupted twice and did not come to hold it.
    """
    found: list[Run] = []
    for run in project.store.runs.unfinished():
        if run.keeps and run.sandbox == project.row.id:
            found += _try_hold(project, project.row, run)
    return tuple(found)


def _try_hold(project: Project, sandbox: SandboxRow, left: UnfinishedRun) -> list[Run]:
    """Hold what a run has written, if that can be done now: a root may be gone, or the disk full."""
    try:
        return _hold(project, sandbox, left)
    except (OSError, UnspillError):
        return []


def _hold(project: Project, sandbox: SandboxRow, left: UnfinishedRun) -> list[Run]:
    store = project.store
    run = store.runs.find(left.id)
    if run is None or run.ended_ns is not None:
        return []  # another process was faster
    if may_live(left) and not end_processes(store, left.id):
        return []  # what can't be killed may still write
    if project.means.facts.cgroup != "none":
        sweep_groups(project.means.facts.cgroup, (left.id,))
    rows = [row for row in store.layers.open_of_run(run.id) if os.path.isdir(upper_dir(store.state, row.id))]
    if not rows:
        remove_run(store, run.id)
        return []
    drop_caches(store, run.id)
    remove_tree(spill_dir(store.state, run.id))
    limits = Limits(layer_bytes=left.layer_bytes, layer_entries=left.layer_entries)
    held = _hold_written(project, _reopened(project, sandbox, run, rows), limits)
    return [held] if held.held or held.outcome is not None else []


def _reopened(project: Project, sandbox: SandboxRow, run: Run, rows: list[LayerRow]) -> OpenRun:
    """Return a run as it was under way, from what the store has of it."""
    state, by_root = project.store.state, {row.root: row for row in rows}
    stacks = load_masked(project.replace(row=sandbox, roots=tuple(by_root)))
    layers = {
        root: OpenLayer(
            id=row.id,
            upper=upper_dir(state, row.id),
            work=work_dir(state, row.id),
            mark=TimeMark(ctime_ns=row.mark_ns),
            run=run.id,
        )
        for root, row in by_root.items()
    }
    stacks = tuple(
        stack.replace(open=layers[stack.live], base=stack.base or left_base(project, layers[stack.live].id))
        for stack in stacks
    )
    return OpenRun(run=run, project=project.path, stacks=stacks)


def _hold_written(project: Project, under_way: OpenRun, limits: Limits) -> Run:
    """Seal the layers of a run whose processes are dead. Drop them if nothing was changed, or too much written."""
    ended = under_way.run.replace(ended_ns=time.time_ns(), outcome=excess_of(under_way, limits))
    changes: ChangeSet | None = None
    try:
        changes = scan_run(under_way) if ended.outcome is None else ChangeSet(roots=())
        ended = ended.replace(changed=sum(not change.is_mere_touch for change in changes), held=bool(changes))
    except (OSError, UnspillError):
        # What can't be read now is kept all the same
        ended = ended.replace(held=True)
    if ended.held:
        keep_bases(project, under_way, changes)
    (seal_run if ended.held else drop_run)(project.store, under_way, ended, fold=False)
    if ended.held:
        keep_base_objects(project, under_way)
    return ended


def hold_failed(
    project: Project, request: Request, under_way: OpenRun, after_cancel: After, error: BaseException
) -> tuple[Run, ...]:
    """Hold what a run has written that something ended without a result, and say so in a note of the error.

    Returns the run, if there is something to tell of it.
    """
    store, run = project.store, under_way.run
    found: tuple[Run, ...] = ()
    with DeferredSignals():
        if after_cancel == "discard" or is_unwritten(under_way):
            drop_run(store, under_way, run.replace(ended_ns=time.time_ns()), fold=False)
        elif end_processes(store, run.id):
            held = _hold_written(project, under_way, request.limits)
            if held.held or held.outcome is not None:
                error.add_note(interrupted_line(held))
                found = (held,)
        remove_tree(spill_dir(store.state, run.id))
        record_failure(project, request, run, error)
    return found


def tell_cancelled(project: Project, request: Request, result: RunResult, error: BaseException) -> None:
    """Say in a note of the error that cancelled a run what became of its changes: whoever catches it has no result."""
    record_run(project, request, result)
    # Whoever closed a pipe has read enough, and wants to hear only of what they would miss
    if result.changes or isinstance(error, KeyboardInterrupt):
        error.add_note(cancelled_line(result))


def cancelled_line(result: RunResult) -> str:
    """Say in one line what became of the changes of a run whose caller was interrupted."""
    if isinstance(result.outcome, LimitReached):
        return f"Cancelled. {_too_large(result.outcome)}"
    said = "Cancelled." if isinstance(result.outcome, Cancelled) else "Cancelled after the command had ended."
    operation = result.operation
    if operation is not None and operation.number:
        rest = " Some of them are on hold: see `unspill changes`." if result.held else ""
        return f"{said} Its changes were applied as op {operation.number}. Undo: `unspill undo`.{rest}"
    if result.held:
        return f"{said} Its changes are on hold ({count_changes(result.changes) or 'only timestamps'}). {_REVIEW}"
    return f"{said} {'Its changes were thrown away.' if result.changes else 'It had changed nothing.'}"


def interrupted_line(run: Run, sandbox: str = "default") -> str:
    """Say in one line what became of the changes of a run that was cut off: its process died, or something failed."""
    words = " ".join(map(quote, run.argv))
    command = words if len(words) <= _LONGEST_COMMAND else f"{words[:_LONGEST_COMMAND]}..."
    where = "" if sandbox == "default" else f" in sandbox {sandbox!r}"
    if isinstance(run.outcome, LimitReached):
        return f"Run {run.number}{where} was cut off: {command}. {_too_large(run.outcome)}"
    count = f" ({run.changed} {'path' if run.changed == 1 else 'paths'})" if run.changed else ""
    return f"Run {run.number}{where} was cut off: {command}. Its changes are on hold{count}. {_REVIEW}"


def _too_large(reached: LimitReached) -> str:
    return f"Its changes were dropped: they are more than `limits.{reached.limit}` allows ({reached.bound})."
