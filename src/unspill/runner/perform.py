# SPDX-License-Identifier: Apache-2.0
"""Performs a Plan: starts it, streams its output, bounds it, and returns when every process of it is dead.

Knows no policy: what may be seen or written is decided in the Plan. One implementation for sync and async callers:
the async side calls this in a thread and cancels through a descriptor.
"""

from __future__ import annotations

import errno
import os

from unspill.errors import SandboxUnavailable, UnspillError
from unspill.host.dirfd import make_pipe
from unspill.host.job import (
    ARGS_FD,
    BLOCK_FD,
    FIRST_FILE_FD,
    STATUS_FD,
    Job,
    memory_files,
    run_name,
)
from unspill.layers.locks import is_given_up
from unspill.model.plan import (
    PROXY_PORT,
    Bind,
    File,
    Overlay,
    ProxyNetwork,
    Tmpfs,
)
from unspill.model.run import Cancelled, Exited, NeverStarted, Output, Remains
from unspill.plan.argv import bwrap_options
from unspill.plan.view import command_words
from unspill.record import Record
from unspill.runner.launcher import get_launcher
from unspill.runner.watch import (
    MemoryWatch,
    RunPipes,
    UsageWatch,
    Watch,
    make_collectors,
    name_limit,
    not_entered,
    not_executed,
    outcome_from,
    rlimits,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.host.cgroup import Group
    from unspill.host.job import Temporary
    from unspill.model.plan import Facts, Plan
    from unspill.model.run import Hint, Outcome
    from unspill.runner.launcher import Launched
    from unspill.runner.watch import RunControl


_WITH_PARENT = b"--die-with-parent"
# What the shell says, and which error that is
_DIRECTORIES = {b"none": errno.ENOENT, b"file": errno.ENOTDIR, b"closed": errno.EACCES}
_PROGRAMS = {b"program": errno.ENOENT, b"mode": errno.EACCES}
_LONGEST = 64


class Performed(Record):
    """How a plan ended. `raised` is the exception that cancelled it, for callers that want it returned."""

    outcome: Outcome
    stdout: Output
    stderr: Output
    hints: tuple[Hint, ...] = ()
    remains: Remains = Remains()
    raised: BaseException | None = None


def perform(plan: Plan, facts: Facts, control: RunControl) -> Performed:
    """Run a plan to its end.

    Raises:
        SandboxUnavailable: the spawner could not be reached or died; nothing of the run is alive.
    """
    pipes = RunPipes(control.stdin is not None)
    group = _group(plan, facts, control)
    report = _StartReport(plan) if plan.staged else None
    launched: Launched | None = None
    try:
        launched = _launch(plan, facts, control, pipes, group, report)
    finally:
        if launched is None:
            pipes.close()
            if report is not None:
                report.end()
            if group is not None:
                group.remove()
    if launched is None:
        return Performed(outcome=Cancelled(), stdout=Output(), stderr=Output())
    memory = MemoryWatch() if group is None else None
    usage = UsageWatch(plan.limits, _uppers(plan), _kept(plan), _fresh(plan), memory)
    collectors = make_collectors(control.spill_dir, plan.limits)
    raised: BaseException | None = None
    try:
        watch = Watch(launched, pipes, collectors, usage, plan.limits, control)
        try:
            stopped = watch.until_dead()
        except BaseException as error:
            if not control.returns_raised or isinstance(error, UnspillError):
                raise
            stopped, raised = Cancelled(), error
        reached = None if group is None else group.reached()
    finally:
        launched.close()
        pipes.close()
        stdout, stderr = (collector.finish() for collector in collectors)
        if group is not None:
            group.remove()
        if report is not None:
            report.end()
    outcome = outcome_from(watch.status, stderr.kept()) if stopped is None else stopped
    outcome = outcome if report is None else report.outcome(outcome)
    if raised is None and not isinstance(outcome, NeverStarted):
        watch.release()
    performed = _performed(plan, name_limit(outcome, reached, plan.limits), stdout, stderr)
    return performed.replace(remains=watch.remains, raised=raised)


def _group(plan: Plan, facts: Facts, control: RunControl) -> Group | None:
    if facts.cgroup == "none":
        return None
    from unspill.host.cgroup import make_group  # lazy: control groups

    return make_group(facts.cgroup, control.run, plan.limits)


def _performed(plan: Plan, outcome: Outcome, stdout: Output, stderr: Output) -> Performed:
    if isinstance(outcome, NeverStarted):
        # What is on stderr is bwrap's: our failure is never shown as the command's output
        return Performed(outcome=outcome, stdout=Output(), stderr=Output())
    if outcome == Exited(code=0):
        return Performed(outcome=outcome, stdout=stdout, stderr=stderr)
    from unspill.runner.hints import find_hints  # lazy: hints

    hints = find_hints(plan, outcome, stdout, stderr)
    return Performed(outcome=outcome, stdout=stdout, stderr=stderr, hints=hints)


def _launch(
    plan: Plan, facts: Facts, control: RunControl, pipes: RunPipes, group: Group | None, report: _StartReport | None
) -> Launched | None:
    """Start a run; None where its caller gave up before."""
    # The shell that becomes the command has its descriptor before the files: it can't name one above 9
    told = () if report is None else (report.theirs(),)
    options, contents = bwrap_options(plan, facts, first_fd=FIRST_FILE_FD + len(told))
    umask = _umask()
    # Not every engine needs it, but only in a pid namespace does nothing outlive a spawner that is killed
    own_namespace = plan.engine == "mount" or facts.own_namespace
    if own_namespace:
        options = _without_parent(options)
    given = memory_files((b"\0".join(options) + b"\0", *contents))
    job = Job(
        overlays=_overlays(plan),
        program=plan.bwrap,
        argv=(
            run_name(control.run),
            *(b"--args", b"%d" % ARGS_FD, b"--json-status-fd", b"%d" % STATUS_FD),
            *(b"--block-fd", b"%d" % BLOCK_FD, b"--"),
            *command_words(plan, FIRST_FILE_FD),
        ),
        limits=rlimits(plan.limits, has_group=group is not None),
        cgroups=() if group is None else group.member_files(),
        umask=umask,
        kept=_kept_below(plan),
        port=PROXY_PORT if isinstance(plan.network, ProxyNetwork) else 0,
        temporary=_temporary(plan) if own_namespace else (),
    )
    try:
        descriptors = (*pipes.theirs, given[0], *told, *given[1:])
        launcher = get_launcher(own_namespace=own_namespace, may_fork=control.may_fork)
        # The last moment: what is sent now may be at work before anybody hears that it was given up
        if is_given_up(control.cancel_fd):
            return None
        try:
            return launcher.launch(job, descriptors)
        except SandboxUnavailable:
            # The spawner was killed since the last run: the next one is as good
            return get_launcher(own_namespace=own_namespace, may_fork=control.may_fork).launch(job, descriptors)
    finally:
        for fd in given:
            os.close(fd)
        pipes.close_theirs()
        if report is not None:
            report.launched()


def _without_parent(options: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Leave out that the sandbox dies with bwrap: the spawner kills it, when it has seen what is still running.

    The spawner is the pid 1 of all of it, so nothing outlives that one either. Elsewhere the option stays.
    """
    if _WITH_PARENT not in options:
        return options
    # No word of a person's comes before it, so this is the option and not a value
    at = options.index(_WITH_PARENT)
    return (*options[:at], *options[at + 1 :])


def _temporary(plan: Plan) -> tuple[Temporary, ...]:
    """Return the directories in memory in which something may be lost, and what the plan has made in each."""
    places = (dict(plan.environ).get(b"HOME", b""), b"/var/tmp", b"/run")
    fresh = _fresh(plan)
    tops = [place for place in places if place in fresh]
    made = {op.dest: op.content if isinstance(op, File) and not op.over else None for op in plan.mounts}
    return tuple((top, {dest: made[dest] for dest in made if dest.startswith(top + b"/")}) for top in tops)


def _overlays(plan: Plan) -> tuple[tuple[tuple[bytes, ...], bytes, bytes | None, bytes | None], ...]:
    if plan.engine != "mount":
        return ()
    found = [(op.lowers, op.lowers[-1], op.upper, op.work) for op in plan.mounts if isinstance(op, Overlay)]
    # Each is mounted on its own lower directory: one that holds another must not come after it and cover it
    return tuple(sorted(found, key=lambda overlay: overlay[1].count(b"/")))


def _kept_below(plan: Plan) -> tuple[bytes, ...]:
    """Return the directories that bwrap would find behind a read-only overlay, as in view `host` the home is."""
    shown = [op.lowers[-1] + b"/" for op in plan.mounts if isinstance(op, Overlay) and op.upper is None]
    return tuple(source for source in _kept(plan) if plan.engine == "mount" and source.startswith(tuple(shown)))


def _kept(plan: Plan) -> tuple[bytes, ...]:
    return tuple(op.source for op in plan.mounts if isinstance(op, Bind) and op.writable)


def _fresh(plan: Plan) -> tuple[bytes, ...]:
    return tuple(op.dest for op in plan.mounts if isinstance(op, Tmpfs))


def _uppers(plan: Plan) -> tuple[bytes, ...]:
    uppers = (op.upper for op in plan.mounts if isinstance(op, Overlay) and op.upper is not None)
    return (*uppers, *plan.measured)


def _umask() -> int:
    """Return this process's umask without the moment in which another thread would see a changed one."""
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return 0o022


class _StartReport:
    """Why a command was not started, from the shell that goes to its working directory for bwrap (`plan.view`).

    A pipe, from before the run is launched until every process of it is dead. The shell closes its end before it
    becomes the command, so the command can't forge anything here.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._ours, self._theirs = make_pipe()
        self._said = b""

    def theirs(self) -> int:
        """Return the descriptor that the run gets."""
        return self._theirs

    def launched(self) -> None:
        """Let go of the run's end."""
        self._close_theirs()

    def end(self) -> None:
        """Hear what there is to be heard. Every process of the run is dead, or was never made."""
        self._close_theirs()
        if self._ours >= 0:
            self._said = os.read(self._ours, _LONGEST).strip()
            os.close(self._ours)
            self._ours = -1

    def outcome(self, outcome: Outcome) -> Outcome:
        """Return how the command ended, from how the shell did that should have become it."""
        if isinstance(outcome, NeverStarted):
            # What could not be started then was the shell
            return outcome.replace(exit_code=125)
        if not isinstance(outcome, Exited) or not self._said:
            return outcome
        if self._said in _DIRECTORIES:
            return not_entered(_DIRECTORIES[self._said])
        return not_executed(self._plan.argv[0], _PROGRAMS.get(self._said, errno.EACCES))

    def _close_theirs(self) -> None:
        if self._theirs >= 0:
            os.close(self._theirs)
            self._theirs = -1
