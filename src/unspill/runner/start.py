# SPDX-License-Identifier: Apache-2.0
"""Starts the bwrap of a plan: the plan as a job for the spawner, with the files and descriptors that go with it."""

from __future__ import annotations

import errno
import os

from unspill.errors import SandboxUnavailable
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
from unspill.model.run import Exited, NeverStarted
from unspill.plan.argv import bwrap_options
from unspill.plan.view import command_words
from unspill.runner.launcher import get_launcher
from unspill.runner.watch import not_entered, not_executed, rlimits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.host.cgroup import Group
    from unspill.host.job import Temporary
    from unspill.model.plan import Facts, Plan
    from unspill.model.run import Outcome, RunId
    from unspill.runner.launcher import Launched
    from unspill.runner.watch import RunControl, RunPipes


_WITH_PARENT = b"--die-with-parent"
# What the shell says, and which error that is
_DIRECTORIES = {b"none": errno.ENOENT, b"file": errno.ENOTDIR, b"closed": errno.EACCES}
_PROGRAMS = {b"program": errno.ENOENT, b"mode": errno.EACCES}
_LONGEST = 64


def make_group_of(plan: Plan, facts: Facts, run: RunId) -> Group | None:
    """Return a control group that bounds a plan, None where there is none to be had."""
    if facts.cgroup == "none":
        return None
    from unspill.host.cgroup import make_group  # lazy: control groups

    return make_group(facts.cgroup, run, plan.limits)


def launch(
    plan: Plan,
    facts: Facts,
    control: RunControl,
    pipes: RunPipes,
    group: Group | None,
    report: StartReport | None,
    *,
    is_live: bool = False,
) -> Launched | None:
    """Start the bwrap of a plan; None where its caller gave up before.

    Of one that `is_live`, the command is pid 1 inside, and outlives all others.
    """
    # The shell that becomes the command has its descriptor before the files: it can't name one above 9
    told = () if report is None else (report.theirs(),)
    options, contents = bwrap_options(plan, facts, first_fd=FIRST_FILE_FD + len(told))
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
            *(b"--block-fd", b"%d" % BLOCK_FD),
            *((b"--as-pid-1", b"--") if is_live else (b"--",)),
            *command_words(plan, FIRST_FILE_FD),
        ),
        limits=rlimits(plan.limits, has_group=group is not None),
        cgroups=() if group is None else group.member_files(),
        umask=umask_of_caller(),
        kept=_kept_below(plan),
        port=PROXY_PORT if isinstance(plan.network, ProxyNetwork) else 0,
        temporary=_temporary(plan) if own_namespace and not is_live else (),
        live=is_live,
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
    fresh = fresh_directories(plan)
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
    return tuple(
        source for source in kept_directories(plan) if plan.engine == "mount" and source.startswith(tuple(shown))
    )


def kept_directories(plan: Plan) -> tuple[bytes, ...]:
    """Return what a plan lets its command write to that outlives it."""
    return tuple(op.source for op in plan.mounts if isinstance(op, Bind) and op.writable)


def fresh_directories(plan: Plan) -> tuple[bytes, ...]:
    """Return the places of its directories in memory."""
    return tuple(op.dest for op in plan.mounts if isinstance(op, Tmpfs))


def umask_of_caller() -> int:
    """Return this process's umask without the moment in which another thread would see a changed one."""
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return 0o022


class StartReport:
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
