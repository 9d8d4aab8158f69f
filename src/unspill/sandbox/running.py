# SPDX-License-Identifier: Apache-2.0
"""One run from the lock to the record of its end: layers, plan, perform, scan; apply, hold or drop.

Whatever happens in between, what the command has written is kept as `after_cancel` says; if this process is killed,
the next one that opens the project holds it.
"""

from __future__ import annotations

import errno
import select
import time

from unspill.errors import SandboxUnavailable, UsageError
from unspill.host.descriptors import DESCRIPTORS_REMEDY
from unspill.host.signals import DeferredSignals
from unspill.layers.lifecycle import drop_run, find_hidden, open_run, seal_run
from unspill.layers.locks import SandboxLock, StackUse, spill_dir
from unspill.layers.mask import MaskUse
from unspill.model.change import ChangeSet
from unspill.model.plan import NoNetwork, ProxyNetwork
from unspill.model.run import Cancelled, Ended, LimitReached, NeverStarted, TimedOut
from unspill.plan.view import missing_text, not_a_directory_text
from unspill.runner.outcome import NO_DIRECTORY, NOT_A_DIRECTORY
from unspill.runner.perform import perform
from unspill.runner.watch import FREE_SPACE_KEPT, Wishes, free_bytes
from unspill.sandbox.planning import get_places, make_plan
from unspill.sandbox.result import Applied, hidden_notes, make_result, never_begun, with_hints
from unspill.sandbox.scan import find_bases, is_unwritten, keep_base_objects, keep_bases, scan_run, with_last_look
from unspill.sandbox.secrets import find_masks, remember_revealed, with_covers
from unspill.sandbox.sweep import end_interrupted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.layers.lifecycle import OpenRun
    from unspill.model.plan import Places, Plan
    from unspill.model.policy import After
    from unspill.model.run import Outcome, Run
    from unspill.model.traffic import Traffic
    from unspill.runner.perform import Performed
    from unspill.sandbox.gate import Gate
    from unspill.sandbox.planning import Request, RunWishes
    from unspill.sandbox.project import Project
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.secrets import Masks

_TOO_LARGE = ("layer_bytes", "layer_entries", "free_space", "free_inodes")
_LONGEST_PAUSE_MS = 20
_NOT_EXECUTED = (126, 127)
_NOT_IN_ROOTFS = "Is it in the rootfs? `unspill rootfs info --tools` says what is; `pull --package NAME` adds to it."


def run_request(project: Project, request: Request, wishes: RunWishes) -> RunResult:
    """Run one command in a sandbox; or, in container mode, without one.

    Raises:
        UsageError: the working directory does not exist in the sandbox.
        DeniedError: another program is in the place of the one that something was allowed to.
        SandboxUnavailable: we failed; what the command may have written is kept as that of a cancelled run.
    """
    if project.means.container:
        from unspill.sandbox.unsandboxed import run_contained  # lazy: unsandboxed runs

        return run_contained(project, request, wishes)
    try:
        return _run_in_turn(project, request, wishes)
    except (OSError, SandboxUnavailable) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or cause.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise SandboxUnavailable(f"no descriptors are left: {cause.strerror}", remedy=DESCRIPTORS_REMEDY) from error


def _run_in_turn(project: Project, request: Request, wishes: RunWishes) -> RunResult:
    if free_bytes(project.store.state) < FREE_SPACE_KEPT:
        raise SandboxUnavailable(
            "the disk that holds the layers is nearly full", remedy="Free some space, or `unspill discard`."
        )
    end_interrupted(project.store)
    # A run that throws its changes away leaves the stack alone, so it need not wait for others
    if wishes.after == "discard":
        with StackUse(project.store.state, project.row.id, alone=False):
            return _run(project, request, wishes)
    lock = _wait_for_turn(project, wishes.cancel_fd)
    if lock is None:
        return never_begun(project)
    with lock:
        _hold_left(project, wishes)
        return _run(project, request, wishes)


def _hold_left(project: Project, wishes: RunWishes) -> None:
    """Hold what an earlier run left that has no end, so that this one sees it."""
    if any(run.keeps and run.sandbox == project.row.id for run in project.store.runs.unfinished()):
        from unspill.sandbox.interrupted import hold_of_sandbox  # lazy: upkeep

        _tell_interrupted(wishes, hold_of_sandbox(project))


def _tell_interrupted(wishes: RunWishes, runs: tuple[Run, ...]) -> None:
    if wishes.on_interrupted is not None:
        wishes.on_interrupted(runs)


def _wait_for_turn(project: Project, cancel_fd: int | None) -> SandboxLock | None:
    """Return the sandbox's lock, held, or None if the caller gave up before it was free."""
    lock = SandboxLock(project.store.state, project.row.id)
    if cancel_fd is None:
        lock.acquire()
        return lock
    given_up = select.poll()
    given_up.register(cancel_fd, select.POLLIN)
    pause_ms = 1
    while not lock.try_acquire():
        if given_up.poll(pause_ms):
            return None
        pause_ms = min(2 * pause_ms, _LONGEST_PAUSE_MS)
    return lock


def _run(project: Project, request: Request, wishes: RunWishes) -> RunResult:
    if project.means.policy.view == "rootfs":
        from unspill.sandbox.rootfs_use import RootfsUse  # lazy: rootfs

        with RootfsUse(lambda afresh: get_places(project, afresh=afresh)) as places:
            return _run_with_masks(project, request, wishes, places)
    return _run_with_masks(project, request, wishes)


def _run_with_masks(project: Project, request: Request, wishes: RunWishes, places: Places | None = None) -> RunResult:
    with MaskUse(project.store.state):
        masks = find_masks(project, request.revealed)
        return _run_masked(project, request, wishes, masks, places or get_places(project))


def _run_masked(project: Project, request: Request, wishes: RunWishes, masks: Masks, places: Places) -> RunResult:
    begun = time.monotonic()
    under_way = open_run(
        project.store,
        project.row,
        argv=request.argv,
        cwd=request.cwd,
        roots=project.roots,
        caches=places.home.caches,
        masks=masks.layers,
        bases=find_bases(project),
        rootfs=_writable_rootfs(project, places),
        after_cancel=wishes.after_cancel,
        limits=request.limits,
    )
    try:
        if request.revealed:
            remember_revealed(project, under_way.run.id, request.revealed)
        under_way = under_way.replace(stacks=with_covers(project, under_way.stacks, request.revealed))
        plan = _checked_plan(project, request, places, under_way)
        gate = _make_gate(project, request, under_way, plan, wishes)
        performed, changes, traffic = _perform_and_scan(project, under_way, plan, wishes, gate)
        performed = with_hints(project, plan, performed, masks)
    except BaseException as error:
        from unspill.sandbox.interrupted import hold_failed  # lazy: upkeep

        _tell_interrupted(wishes, hold_failed(project, request, under_way, wishes.after_cancel, error))
        raise
    result = None
    try:
        with DeferredSignals():
            result = _close(project, request, wishes, masks, under_way, plan, performed, changes, traffic, begun)
            if performed.raised is not None:
                raise performed.raised
        if wishes.on_event is not None:
            wishes.on_event(Ended(run=under_way.run.id, outcome=performed.outcome))
        return result
    except BaseException as error:
        if result is not None:
            from unspill.sandbox.interrupted import tell_cancelled  # lazy: upkeep

            tell_cancelled(project, request, result, error)
        raise


def _close(
    project: Project,
    request: Request,
    wishes: RunWishes,
    masks: Masks,
    under_way: OpenRun,
    plan: Plan,
    performed: Performed,
    changes: ChangeSet,
    traffic: Traffic | None,
    begun: float,
) -> RunResult:
    """Apply, hold or drop what a run has changed, and record its end."""
    is_dropped = _is_dropped(performed.outcome)
    after = _after(project, wishes, performed.outcome)
    changed = sum(not change.is_mere_touch for change in changes)
    ended = _ended(under_way.run, performed).replace(changed=changed)
    if traffic is not None:
        project.store.traffic.put(under_way.run.id, traffic)
    notes = hidden_notes(find_hidden(under_way.stacks), project.path)
    if under_way.rootfs and not is_dropped and after != "discard":
        from unspill.sandbox.rootfs_use import notes_of  # lazy: rootfs

        notes += notes_of(under_way.rootfs)
    if not changes or after == "discard" or is_dropped:
        drop_run(project.store, under_way, ended, fold=not is_dropped, rootfs=after != "discard")
        applied = Applied()
    else:
        applied = _seal_and_apply(project, under_way, ended, changes, after)
        if isinstance(performed.outcome, NeverStarted) and applied.is_held:
            _tell_interrupted(wishes, (ended.replace(held=True),))
    _refuse_bad_directory(performed.outcome, request.cwd)
    duration_s = time.monotonic() - begun
    return make_result(project, under_way.run, plan, performed, changes, applied, traffic, masks, duration_s, notes)


def _writable_rootfs(project: Project, places: Places) -> tuple[bytes, ...]:
    if not project.means.policy.rootfs_writable:
        return ()
    from unspill.sandbox.rootfs_use import writable_directories  # lazy: rootfs

    return writable_directories(project, places.rootfs)


def _checked_plan(project: Project, request: Request, places: Places, under_way: OpenRun) -> Plan:
    """Return the plan of a run. What was allowed to one program is not for another that is in its place by now."""
    plan = make_plan(project, request, places, under_way.stacks, under_way.caches, under_way.rootfs)
    if request.program is not None:
        from unspill.sandbox.program import check_program  # lazy: approvals

        check_program(project, plan, request.program)
    return plan


def _seal_and_apply(project: Project, under_way: OpenRun, ended: Run, changes: ChangeSet, after: After) -> Applied:
    keep_bases(project, under_way, changes)
    closed = seal_run(project.store, under_way, ended)
    applied = Applied(is_held=True)
    if after == "apply":
        from unspill.sandbox.apply import apply_run  # lazy: apply

        applied = apply_run(project, under_way.run.id, changes, closed.stacks)
    if applied.is_held:
        keep_base_objects(project, under_way)
    return applied


def _refuse_bad_directory(outcome: Outcome, cwd: bytes) -> None:
    """Raise what would have been raised before, had the host known what only the sandbox has."""
    if isinstance(outcome, NeverStarted) and outcome.reason in (NO_DIRECTORY, NOT_A_DIRECTORY):
        text = missing_text if outcome.reason == NO_DIRECTORY else not_a_directory_text
        raise UsageError(text(cwd))


def _make_gate(project: Project, request: Request, under_way: OpenRun, plan: Plan, wishes: RunWishes) -> Gate | None:
    """Return the way out of a run, None where it has none of ours."""
    if isinstance(plan.network, NoNetwork):
        return None
    from unspill.sandbox.gate import make_gate  # lazy: proxy

    ask = None
    if isinstance(plan.network, ProxyNetwork) and plan.network.ask and wishes.broker is not None:
        from unspill.sandbox.program import make_asker  # lazy: approvals

        ask = make_asker(project, request, plan, wishes.broker, under_way.run.id)
    return make_gate(plan.network, is_own_process=wishes.may_fork, ask=ask)


def _perform_and_scan(
    project: Project, under_way: OpenRun, plan: Plan, wishes: RunWishes, gate: Gate | None
) -> tuple[Performed, ChangeSet, Traffic | None]:
    asked = Wishes(
        run=under_way.run.id,
        spill_dir=spill_dir(project.store.state, under_way.run.id),
        stdin=wishes.stdin,
        on_event=wishes.on_event,
        cancel_fd=wishes.cancel_fd,
        may_fork=wishes.may_fork,
        on_listener=None if gate is None else gate.serve,
        waited_s=None if gate is None else gate.waited_s,
        # Whoever gives up is told so when what the command has written is safe
        returns_raised=True,
    )
    try:
        performed = perform(plan, project.means.facts, asked)
    finally:
        traffic = None if gate is None else gate.close()
        if wishes.broker is not None:
            wishes.broker.withdraw(under_way.run.id)
    if isinstance(performed.outcome, NeverStarted):
        outcome = performed.outcome
        if plan.rootfs and outcome.exit_code in _NOT_EXECUTED:
            performed = performed.replace(outcome=outcome.replace(remedy=_NOT_IN_ROOTFS))
        # If bwrap itself is killed, nobody says that the command was started, but it may have written something
        if is_unwritten(under_way):
            return performed, ChangeSet(roots=()), traffic
    performed = with_last_look(performed, under_way, plan.limits)
    return performed, scan_run(under_way), traffic


def _is_dropped(outcome: Outcome) -> bool:
    """A layer over its bound is not kept because of that bound."""
    return isinstance(outcome, LimitReached) and outcome.limit in _TOO_LARGE


def _after(project: Project, wishes: RunWishes, outcome: Outcome) -> After:
    """What was cut short is applied only where the person says so."""
    if isinstance(outcome, Cancelled | NeverStarted):
        return wishes.after_cancel
    if wishes.after == "apply" and isinstance(outcome, TimedOut | LimitReached):
        return project.means.policy.after_timeout
    return wishes.after


def _ended(run: Run, performed: Performed) -> Run:
    return run.replace(
        ended_ns=time.time_ns(), outcome=performed.outcome, stdout=performed.stdout, stderr=performed.stderr
    )
