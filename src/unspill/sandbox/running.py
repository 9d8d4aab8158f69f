# SPDX-License-Identifier: Apache-2.0
"""One run from the lock to the record of its end: layers, plan, perform, scan; apply, hold or drop.

Whatever happens in between, the layers of a run that did not end well are dropped; if this process is killed, the
next start sweeps them.
"""

from __future__ import annotations

import errno
import os
import select
import time

from unspill.changes.measure import is_empty
from unspill.errors import SandboxUnavailable, UsageError
from unspill.layers.create import open_run
from unspill.layers.locks import SandboxLock, StackUse
from unspill.layers.mask import MaskUse
from unspill.layers.places import spill_dir
from unspill.layers.remove import remove_tree
from unspill.layers.seal import drop_run, seal_run
from unspill.layers.sweep import sweep
from unspill.model.change import ChangeSet
from unspill.model.event import Ended
from unspill.model.layer import RunId
from unspill.model.plan import NoNetwork
from unspill.model.record import Record
from unspill.model.run import Cancelled, Exited, LimitReached, NeverStarted, Output, TimedOut
from unspill.plan.working_dir import missing_text, not_a_directory_text
from unspill.runner.limits import FREE_SPACE_KEPT, find_excess, free_bytes
from unspill.runner.outcome import NO_DIRECTORY, NOT_A_DIRECTORY
from unspill.runner.perform import perform
from unspill.runner.wishes import Wishes
from unspill.sandbox.masking import find_masks, news_of, remember_changed, with_covers
from unspill.sandbox.planning import get_places, make_plan
from unspill.sandbox.result import RunResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.layers.create import OpenRun
    from unspill.model.egress import Traffic
    from unspill.model.event import Event
    from unspill.model.facts import Facts
    from unspill.model.operation import Operation
    from unspill.model.plan import Places, Plan
    from unspill.model.policy import After, Limits
    from unspill.model.run import Hint, Outcome, Run
    from unspill.runner.perform import Performed
    from unspill.sandbox.masking import Masks
    from unspill.sandbox.opening import Opened
    from unspill.sandbox.planning import Request
    from unspill.store.db import Store

ROOT_NOTE = "level C: run for root (`allow_root`), which is weaker than for an ordinary user; see `unspill doctor`"
_TOO_LARGE = ("layer_bytes", "layer_entries", "free_space", "free_inodes")
_LONGEST_PAUSE_MS = 20
_DESCRIPTORS = "Close some files of the calling program, or raise its bound (`ulimit -n`): a run needs about 15."
_swept: set[tuple[int, bytes]] = set()


class RunWishes(Record):
    """What a caller wants of one run besides the command."""

    stdin: bytes | int | None = None
    after: After = "apply"
    on_event: Callable[[Event], None] | None = None
    cancel_fd: int | None = None
    may_fork: bool = False


class Applied(Record):
    """What became of a run's changes: the operation that applied them, and whether any of them is held."""

    operation: Operation | None = None
    is_held: bool = False
    flagged: tuple[tuple[bytes, str], ...] = ()
    problem: str = ""


def sweep_once(store: Store, facts: Facts) -> tuple[Operation, ...]:
    """Remove what dead processes left, once per process and state directory; return what they had under way.

    Raises:
        SandboxUnavailable: the state directory's filesystem fails.
    """
    recovered = end_interrupted(store)
    key = (os.getpid(), store.state)
    if key in _swept:
        return recovered
    try:
        swept = sweep(store)
    except OSError as error:
        raise SandboxUnavailable(
            f"{os.fsdecode(store.state)} can't be put in order: {error.strerror}",
            remedy="Mend the disk or free some space.",
        ) from error
    if swept.runs and facts.cgroup != "none":
        from unspill.host.cgroup import sweep_groups

        sweep_groups(facts.cgroup, swept.runs)
    _swept.add(key)
    return recovered


def end_interrupted(store: Store) -> tuple[Operation, ...]:
    """Finish or take back operations that somebody could not end, this process perhaps; return them.

    Raises:
        SandboxUnavailable: the filesystem fails; the next call tries again.
    """
    if not os.listdir(store.state + b"/pending"):
        return ()
    from unspill.apply.recover import recover_operations

    return recover_operations(store)


def run_request(opened: Opened, request: Request, wishes: RunWishes) -> RunResult:
    """Run one command in a sandbox.

    Raises:
        UsageError: the working directory does not exist in the sandbox.
        DeniedError: another program is in the place of the one that something was allowed to.
        SandboxUnavailable: we failed; nothing of the run is left.
    """
    try:
        return _run_in_turn(opened, request, wishes)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise SandboxUnavailable(f"no descriptors are left: {error.strerror}", remedy=_DESCRIPTORS) from error


def _run_in_turn(opened: Opened, request: Request, wishes: RunWishes) -> RunResult:
    if free_bytes(opened.store.state) < FREE_SPACE_KEPT:
        raise SandboxUnavailable(
            "the disk that holds the layers is nearly full", remedy="Free some space, or `unspill discard`."
        )
    end_interrupted(opened.store)
    # A run that throws its changes away leaves the stack alone, so it need not wait for others
    if wishes.after == "discard":
        with StackUse(opened.store.state, opened.row.id, alone=False):
            return _run(opened, request, wishes)
    lock = _wait_for_turn(opened, wishes.cancel_fd)
    if lock is None:
        return never_begun(opened)
    with lock:
        return _run(opened, request, wishes)


def _wait_for_turn(opened: Opened, cancel_fd: int | None) -> SandboxLock | None:
    """Return the sandbox's lock, held, or None if the caller gave up before it was free."""
    lock = SandboxLock(opened.store.state, opened.row.id)
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


def never_begun(opened: Opened) -> RunResult:
    """Return the result of a run that its caller gave up before there was one."""
    return RunResult(
        run=RunId(""),
        number=0,
        outcome=Cancelled(),
        stdout=Output(),
        stderr=Output(),
        changes=ChangeSet(roots=()),
        held=False,
        duration_s=0.0,
        shown_lines=opened.policy.shown_lines,
        shown_bytes=opened.policy.shown_bytes,
    )


def _run(opened: Opened, request: Request, wishes: RunWishes) -> RunResult:
    with MaskUse(opened.store.state):
        return _run_masked(opened, request, wishes, find_masks(opened, request.revealed))


def _run_masked(opened: Opened, request: Request, wishes: RunWishes, masks: Masks) -> RunResult:
    places = get_places(opened)
    begun = time.monotonic()
    under_way = open_run(
        opened.store,
        opened.row,
        argv=request.argv,
        cwd=request.cwd,
        roots=opened.roots,
        caches=places.home.caches if opened.engine != "copy" else (),
        masks=masks.layers,
    )
    try:
        under_way = under_way.replace(stacks=with_covers(opened, under_way.stacks, request.revealed))
        plan = _checked_plan(opened, request, places, under_way)
        performed, changes, traffic = _perform_and_scan(opened, under_way, plan, wishes)
    except BaseException as error:
        drop_run(opened.store, under_way, _ended(under_way.run, None), fold=False)
        remove_tree(spill_dir(opened.store.state, under_way.run.id))
        _record_failure(opened, request, under_way.run, error)
        raise
    if request.revealed:
        remember_changed(opened, under_way.run.id, request.revealed, changes)
    is_dropped = _is_dropped(performed.outcome)
    after = _after(opened, wishes.after, performed.outcome)
    changed = sum(not change.is_mere_touch for change in changes)
    ended = _ended(under_way.run, performed).replace(changed=changed)
    if traffic is not None:
        opened.store.traffic.put(under_way.run.id, traffic)
    if not changes or after == "discard" or is_dropped:
        drop_run(opened.store, under_way, ended, fold=not is_dropped)
        applied = Applied()
    else:
        applied = _seal_and_apply(opened, under_way, ended, changes, after)
    if wishes.on_event is not None:
        wishes.on_event(Ended(run=under_way.run.id, outcome=performed.outcome))
    _refuse_bad_directory(performed.outcome, request.cwd)
    return RunResult(
        run=under_way.run.id,
        number=under_way.run.number,
        outcome=performed.outcome,
        stdout=performed.stdout,
        stderr=performed.stderr,
        changes=changes,
        held=applied.is_held,
        operation=applied.operation,
        flagged=applied.flagged,
        problem=applied.problem,
        duration_s=time.monotonic() - begun,
        hints=(*performed.hints, *_network_hints(plan, performed), *_mask_hints(opened, masks, performed)),
        denied_paths=performed.denied_paths,
        warnings=(*_warnings(opened, plan, traffic), *news_of(opened, masks)),
        shown_lines=opened.policy.shown_lines,
        shown_bytes=opened.policy.shown_bytes,
        connections=() if traffic is None else traffic.connections,
        denials=() if traffic is None else traffic.denials,
    )


def _record_failure(opened: Opened, request: Request, run: Run, error: BaseException) -> None:
    """Put a run without a result into the audit: the command may have done something before we failed."""
    from unspill.sandbox.recording import record_failure

    record_failure(opened, request, run, error)


def _checked_plan(opened: Opened, request: Request, places: Places, under_way: OpenRun) -> Plan:
    """Return the plan of a run. What was allowed to one program is not for another that is in its place by now."""
    plan = make_plan(opened, request, places, under_way.stacks, under_way.caches)
    if request.program is not None:
        from unspill.sandbox.program import check_program

        check_program(opened, plan, request.program)
    return plan


def _seal_and_apply(opened: Opened, under_way: OpenRun, ended: Run, changes: ChangeSet, after: After) -> Applied:
    closed = seal_run(opened.store, under_way, ended)
    if after != "apply":
        return Applied(is_held=True)
    from unspill.sandbox.after_run import apply_run

    return apply_run(opened, under_way.run.id, changes, closed.stacks)


def _warnings(opened: Opened, plan: Plan, traffic: Traffic | None) -> tuple[str, ...]:
    faults = () if traffic is None else traffic.faults
    return (*(() if opened.facts.uid else (ROOT_NOTE,)), *plan.warnings, *faults)


def _network_hints(plan: Plan, performed: Performed) -> tuple[Hint, ...]:
    if performed.outcome == Exited(code=0):
        return ()
    from unspill.sandbox.network_hints import network_hints

    return network_hints(plan.network, performed.outcome, performed.stdout, performed.stderr)


def _mask_hints(opened: Opened, masks: Masks, performed: Performed) -> tuple[Hint, ...]:
    if not masks.hidden or performed.outcome == Exited(code=0):
        return ()
    from unspill.sandbox.mask_hints import mask_hints

    return mask_hints(masks.hidden, opened.project, performed.outcome, performed.stdout, performed.stderr)


def _refuse_bad_directory(outcome: Outcome, cwd: bytes) -> None:
    """Raise what would have been raised before, had the host known what only the sandbox has."""
    if isinstance(outcome, NeverStarted) and outcome.reason in (NO_DIRECTORY, NOT_A_DIRECTORY):
        text = missing_text if outcome.reason == NO_DIRECTORY else not_a_directory_text
        raise UsageError(text(cwd))


def _perform_and_scan(
    opened: Opened, under_way: OpenRun, plan: Plan, wishes: RunWishes
) -> tuple[Performed, ChangeSet, Traffic | None]:
    gate = None
    if not isinstance(plan.network, NoNetwork):
        from unspill.sandbox.gate import make_gate

        gate = make_gate(plan.network, is_own_process=wishes.may_fork)
    asked = Wishes(
        run=under_way.run.id,
        spill_dir=spill_dir(opened.store.state, under_way.run.id),
        stdin=wishes.stdin,
        on_event=wishes.on_event,
        cancel_fd=wishes.cancel_fd,
        may_fork=wishes.may_fork,
        on_listener=None if gate is None else gate.serve,
    )
    try:
        if opened.engine == "copy":
            from unspill.sandbox.copying import perform_on_copy

            performed, findings = perform_on_copy(plan, opened.facts, asked, under_way.stacks)
        else:
            performed, findings = perform(plan, opened.facts, asked), ()
    finally:
        traffic = None if gate is None else gate.close()
    if isinstance(performed.outcome, NeverStarted):
        return performed, ChangeSet(roots=()), traffic
    performed = _with_last_look(performed, under_way, plan.limits)
    changes = scan_run(under_way)
    if findings:
        changes = changes.replace(findings=(*changes.findings, *findings))
    return performed, changes, traffic


def _with_last_look(performed: Performed, under_way: OpenRun, limits: Limits) -> Performed:
    """Name the bound that a run outgrew after it was last measured, or where nobody could look while it ran."""
    if isinstance(performed.outcome, Cancelled | LimitReached):
        return performed
    stacks = (*under_way.stacks, *(cache.stack for cache in under_way.caches))
    uppers = tuple(stack.open.upper for stack in stacks if stack.open is not None and not is_empty(stack.open.upper))
    excess = find_excess(limits, uppers, is_over=True) if uppers else None
    return performed if excess is None else performed.replace(outcome=excess)


def scan_run(under_way: OpenRun) -> ChangeSet:
    """Return what a run changed against what it saw. Every process of it is dead."""
    parts = []
    for stack in under_way.stacks:
        assert stack.open is not None
        lowers = stack.lowers()
        if is_empty(stack.open.upper, lowers[0]):
            continue
        from unspill.changes.scan import scan

        parts.append(scan((stack.open.upper,), lowers[:-1], stack.live))
    if not parts:
        return ChangeSet(roots=())
    from unspill.changes.scan import join

    return join(parts)


def _is_dropped(outcome: Outcome) -> bool:
    """A cancelled run leaves nothing, and a layer over its bound is not kept because of that bound."""
    match outcome:
        case Cancelled() | NeverStarted():
            return True
        case LimitReached():
            return outcome.limit in _TOO_LARGE
    return False


def _after(opened: Opened, after: After, outcome: Outcome) -> After:
    """What was cut short is applied only where the person says so."""
    if after == "apply" and isinstance(outcome, TimedOut | LimitReached):
        return opened.policy.after_timeout
    return after


def _ended(run: Run, performed: Performed | None) -> Run:
    if performed is None:
        return run.replace(ended_ns=time.time_ns())
    return run.replace(
        ended_ns=time.time_ns(), outcome=performed.outcome, stdout=performed.stdout, stderr=performed.stderr
    )
