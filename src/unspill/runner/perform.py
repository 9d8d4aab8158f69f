# SPDX-License-Identifier: Apache-2.0
"""Performs a Plan: starts it, streams its output, bounds it, and returns when every process of it is dead.

Knows no policy: what may be seen or written is decided in the Plan. One implementation for sync and async callers:
the async side calls this in a thread and cancels through a descriptor.
"""

from __future__ import annotations

from unspill.errors import UnspillError
from unspill.lazy import lazy_module
from unspill.model.plan import HostNetwork, Overlay
from unspill.model.run import Cancelled, Exited, NeverStarted, Output, Remains, Signalled
from unspill.record import Record
from unspill.runner.launcher import StartReport, fresh_directories, kept_directories, launch, make_group_of
from unspill.runner.watch import (
    MemoryWatch,
    RunPipes,
    UsageWatch,
    Watch,
    make_collectors,
    name_limit,
    outcome_from,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.host.cgroup import Group
    from unspill.model.plan import Facts, Plan
    from unspill.model.run import Hint, Outcome
    from unspill.runner import hints as explained
    from unspill.runner.launcher import Launched
    from unspill.runner.live import Joined, LiveSandbox
    from unspill.runner.watch import Collector, RunControl
else:
    explained = lazy_module("unspill.runner.hints")  # lazy: hints


class Performed(Record):
    """How a plan ended. `raised` is the exception that cancelled it, for callers that want it returned."""

    outcome: Outcome
    stdout: Output
    stderr: Output
    hints: tuple[Hint, ...] = ()
    remains: Remains = Remains()
    raised: BaseException | None = None


def perform(plan: Plan, facts: Facts, control: RunControl, live: LiveSandbox | None = None) -> Performed:
    """Run a plan to its end; in a live sandbox, where one is given, which stays.

    Raises:
        SandboxUnavailable: the spawner could not be reached or died; nothing of the run is alive.
    """
    pipes = RunPipes(control.stdin is not None)
    group = make_group_of(plan, facts, control.run) if live is None else None
    report = StartReport(plan) if plan.staged and live is None else None
    launched = _start(plan, facts, control, pipes, group, report, live)
    if launched is None:
        return Performed(outcome=Cancelled(), stdout=Output(), stderr=Output())
    raised: BaseException | None = None
    collectors: list[Collector] = []
    outputs: list[Output] = []
    # Whatever goes wrong from here on, the command must not live on unseen
    try:
        memory = None if group is not None or (live is not None and live.has_group) else MemoryWatch()
        usage = UsageWatch(plan.limits, _uppers(plan), kept_directories(plan), fresh_directories(plan), memory)
        collectors = make_collectors(control.spill_dir, plan.limits, has_terminal=control.terminal is not None)
        own_network = plan.profile != "strict" and not isinstance(plan.network, HostNetwork)
        watch = Watch(launched, pipes, collectors, usage, plan.limits, control, own_network=own_network)
        try:
            stopped = watch.until_dead()
        except BaseException as error:
            if not control.returns_raised or isinstance(error, UnspillError):
                raise
            stopped, raised = Cancelled(), error
        reached = None if group is None else group.reached()
        if live is not None and (reached := live.reached()):
            # Its counters only rise
            live.close()
    finally:
        launched.close()
        pipes.close()
        if control.terminal is not None:
            control.terminal.end()
        outputs += [collector.finish() for collector in collectors]
        if group is not None:
            group.remove()
        if report is not None:
            report.end()
    stdout, stderr = outputs
    outcome = outcome_from(watch.status, stderr.kept()) if stopped is None else stopped
    outcome = outcome if report is None else report.outcome(outcome)
    if stopped is None and isinstance(launched.failure, NeverStarted):
        outcome = launched.failure
    outcome = _with_keys(outcome, control)
    if raised is None and not isinstance(outcome, NeverStarted):
        watch.release()
    performed = _performed(plan, name_limit(outcome, reached, plan.limits), stdout, stderr)
    return _with_servers(performed, watch.servers, live).replace(remains=watch.remains, raised=raised)


def _start(
    plan: Plan,
    facts: Facts,
    control: RunControl,
    pipes: RunPipes,
    group: Group | None,
    report: StartReport | None,
    live: LiveSandbox | None,
) -> Launched | Joined | None:
    """Start the command of a plan. None if its caller gave up before; then, or after an error, nothing is left."""
    launched: Launched | Joined | None = None
    try:
        if live is None:
            launched = launch(plan, facts, control, pipes, group, report)
        else:
            launched = live.join(plan, control, pipes)
    finally:
        if launched is None:
            pipes.close()
            if report is not None:
                report.end()
            if group is not None:
                group.remove()
    return launched


def _with_servers(performed: Performed, found: set[int], live: LiveSandbox | None) -> Performed:
    """Say once how to reach servers inside; what is open is known."""
    if not found:
        return performed
    if live is not None and not live.is_isolated:
        known = live.told_servers | (live.ports.known() if live.ports is not None else frozenset())
        found = found - known
        live.told_servers |= found
    return performed.replace(hints=(*performed.hints, *explained.server_hints(sorted(found))))


def _with_keys(outcome: Outcome, control: RunControl) -> Outcome:
    """Take what ended with a failure after a Ctrl-C on its terminal for cancelled, as without a terminal."""
    is_failure = isinstance(outcome, Exited | Signalled) and outcome != Exited(code=0)
    if is_failure and control.terminal is not None and control.terminal.was_interrupted():
        return Cancelled()
    return outcome


def _performed(plan: Plan, outcome: Outcome, stdout: Output, stderr: Output) -> Performed:
    if isinstance(outcome, NeverStarted):
        # What is on stderr is bwrap's: our failure is never shown as the command's output
        return Performed(outcome=outcome, stdout=Output(), stderr=Output())
    if outcome == Exited(code=0):
        return Performed(outcome=outcome, stdout=stdout, stderr=stderr)
    hints = explained.find_hints(plan, outcome, stdout, stderr)
    return Performed(outcome=outcome, stdout=stdout, stderr=stderr, hints=hints)


def _uppers(plan: Plan) -> tuple[bytes, ...]:
    uppers = (op.upper for op in plan.mounts if isinstance(op, Overlay) and op.upper is not None)
    return (*uppers, *plan.measured)
