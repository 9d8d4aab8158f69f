# SPDX-License-Identifier: Apache-2.0
"""A sandbox that stays alive between commands: `with sandbox.live() as live: live.run("make")`.

Commands that are alive at once share one set of layers, a span: from the first one's start to the quiet point at which
the last one has ended. Then it is known what they changed, and nobody can tell which of them did. Runs of `Live.run`
follow one another, so that each has a span of its own unless something goes on in the background: then a checkpoint
says at its end what all of them changed since the last one (`sandbox.checkpoints`).

A span that nothing was written to is kept for the next command. What that one would see is looked at again: the live
directories, the held layers, the secrets and the repositories. If any is another, the span is made anew.

The rows of open layers always belong to a run that has not ended, so a crash loses nothing: whoever comes next finds
that run and holds what lies in them. Those of a span that is kept belong to the last run that had it.
"""

from __future__ import annotations

import os
import time
from _thread import allocate_lock, start_new_thread

from unspill.errors import HostError, SandboxUnavailable, UnspillError, UsageError
from unspill.host.libc import DeferredSignals
from unspill.layers.lifecycle import begin_again, begin_beside, drop_kept, end_beside, find_hidden, is_empty, open_run
from unspill.layers.locks import GivenUp, RunUse, StackUse, end_going_on, lock_sandbox, wait_for_lock
from unspill.layers.mask import MaskUse
from unspill.lazy import lazy_module
from unspill.model.change import ChangeSet
from unspill.model.run import Ended, Hint, LimitReached
from unspill.plan.build import with_other_layers
from unspill.runner.live import LiveSandbox
from unspill.runner.perform import perform
from unspill.sandbox.planning import get_places, make_plan, make_spec
from unspill.sandbox.result import (
    Applied,
    hidden_notes,
    make_result,
    never_begun,
    record_failure,
    record_operation,
    record_run,
    with_hints,
)
from unspill.sandbox.running import (
    after_of,
    begin_use,
    close_run,
    ended_run,
    look_at_layers,
    make_control,
    open_gate,
    refuse_bad_directory,
    refuse_full_disk,
    tell_interrupted,
    tell_waiting,
    use_rootfs,
    with_remedy,
)
from unspill.sandbox.scan import (
    end_interrupted,
    find_bases,
    hold_failed,
    hold_of_sandbox,
    is_unwritten,
    tell_cancelled,
    when_settled,
)
from unspill.sandbox.secrets import KnownMasks, search_aside, with_covers
from unspill.sandbox.terminal import KeptSide, KeptTerminal, Terminal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from typing import Any, Self

    from unspill.layers.lifecycle import OpenRun
    from unspill.layers.locks import SandboxLock
    from unspill.model.change import Selection
    from unspill.model.plan import CacheLayer, Places, Plan
    from unspill.model.policy import After, Limits
    from unspill.model.run import Event, Run, RunId, Traffic
    from unspill.network.proxy import Gate
    from unspill.permissions.broker import Broker
    from unspill.runner import background
    from unspill.runner.perform import Performed
    from unspill.runner.watch import AttachedTerminal
    from unspill.sandbox import checkpoints, ports, review
    from unspill.sandbox.planning import Command, RunSpec
    from unspill.sandbox.project import PathLike, Project
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.secrets import Masks

    Bases = tuple[tuple[bytes, bytes], ...]
    # What is looked at again before layers are used a second time: masks, held layers, roots, repositories
    Seen = tuple[object, object, object, Bases]
else:
    background = lazy_module("unspill.runner.background")  # lazy: background runs
    checkpoints = lazy_module("unspill.sandbox.checkpoints")  # lazy: checkpoints
    ports = lazy_module("unspill.sandbox.ports")  # lazy: ports
    review = lazy_module("unspill.sandbox.review")  # lazy: diff


# How long a sandbox is kept for the next run of a connection
IDLE_S = 60.0
# So often in a row a run may fail to begin before there are plain runs only
_MOST_FAILED = 3
_PLAIN_RUN = "Use `Sandbox.run` for this one."
_CLOSED = "Make another one with `Sandbox.live`."
# Rows and columns
_SIZE = (24, 80)
# In view `rootfs` the home directory is the project, which is no place for what was typed and read
SHELL_ENVIRON = {"HISTFILE": "/tmp/.shell_history", "LESSHISTFILE": "-"}


class _Locks:
    """The sandbox's lock, and a share in the use of its stack, which a run that is to be alone waits for."""

    def __init__(self, use: StackUse) -> None:
        self._use = use
        self.lock: SandboxLock | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_rest: object) -> None:
        if self.lock is not None:
            self.lock.release()
        self._use.release()


class Span:
    """Layers that commands of a live sandbox share, and what they were made from.

    `lasting` is what keeps masks and a rootfs in place, and lasts until the span is over; `locks` are the sandbox's,
    and held only while commands are alive.
    """

    def __init__(self, spec: RunSpec, masks: Masks, places: Places, seen: Seen) -> None:
        self.spec = spec
        self.masks = masks
        self.places = places
        self.seen = seen
        self.environ = dict(os.environb)
        self.lasting: list[AbstractContextManager[object]] = []
        self.locks: AbstractContextManager[object] | None = None
        self.under_way: OpenRun
        self.plan: Plan
        self.gate: Gate | None = None
        # Of its checkpoints, if there were any
        self.copies: checkpoints.SpanCopies | None = None
        # Whether nothing was written to it, and no run has it; what lies below may be gone by then
        self.is_kept = False
        # Those that have not ended, the numbers of all that shared it, and those alive since the last checkpoint
        self.alive: list[Run] = []
        self.numbers: list[int] = []
        self.writers: list[RunId] = []

    def shared(self) -> OpenRun:
        """Return the run that has the layers, with those that may have written there too."""
        beside = tuple(run for run in self.writers if run != self.under_way.run.id)
        return self.under_way.replace(beside=beside)

    def plans_like(self, spec: RunSpec) -> bool:
        """Tell whether the plan of a command differs from that of this span in nothing but the command."""
        is_short = spec.script is None and self.spec.script is None
        return is_short and spec.environ == self.spec.environ and os.environb == self.environ

    def unlock(self) -> None:
        """Let others change the sandbox."""
        locks, self.locks = self.locks, None
        if locks is not None:
            locks.__exit__(None, None, None)

    def drop_copies(self) -> None:
        """Forget its checkpoints."""
        copies, self.copies = self.copies, None
        if copies is not None:
            copies.drop()

    def release(self) -> None:
        """Let go of everything."""
        self.drop_copies()
        self.unlock()
        while self.lasting:
            self.lasting.pop().__exit__(None, None, None)

    def is_unwritten(self) -> bool:
        """Tell whether nothing at all was written to its layers."""
        caches = (cache.stack.open for cache in self.under_way.caches)
        return is_unwritten(self.under_way) and all(layer is None or is_empty(layer.upper) for layer in caches)


def _for_all(spec: RunSpec) -> RunSpec:
    """Return a run that shares its layers with others: what they all changed is held if this one is cancelled."""
    return spec.replace(after_cancel="hold") if spec.after_cancel == "discard" != spec.after else spec


def _path_of(cache: CacheLayer) -> bytes:
    return cache.path


def shell_of(project: Project) -> bytes:
    """Return the person's shell as a run has it in its variables, or `sh` where that is not there."""
    shell = dict(review.plan_as_if(project, make_spec(project, ["true"], None, None, None)).environ)[b"SHELL"]
    is_missing = project.means.policy.view != "rootfs" and not os.access(shell, os.X_OK)
    return b"/bin/sh" if is_missing else shell


def run_attached(
    project: Project,
    terminal: AttachedTerminal | None,
    wanted: ports.WantedPorts | None,
    spec: RunSpec,
    run: Callable[[RunSpec], RunResult],
    *,
    has_network: bool,
) -> RunResult:
    """Run one command on a terminal or with ports, in a live sandbox that ends with it.

    Raises:
        HostError: there are no live sandboxes here.
        UsageError: the policy allows no ports, or one can't be opened.
    """
    if wanted is not None:
        ports.check_ports(project, has_network=has_network)
    project.means.check_live()
    live = LiveSandbox(project.means.facts)
    opened = None if wanted is None else ports.open_wanted(project, live, wanted)
    try:
        return run(spec.replace(live=live, terminal=terminal, ports=opened))
    finally:
        live.close()
        if opened is not None:
            opened.close()


class Live:
    """A sandbox that stays alive. Safe to use from several threads; its foreground commands follow one another."""

    def __init__(
        self,
        project: Project,
        options: Callable[..., dict[str, Any]],
        broker: Callable[[], Broker | None],
        *,
        is_isolated: bool = False,
    ) -> None:
        """Prepare one; it is built with its first command. `options` and `broker` are those of its `Sandbox`.

        `is_isolated`: its runs are like plain ones. They share the stack with others, and find nothing that was left.
        """
        project.means.check_live()
        self._is_isolated = is_isolated
        self._project = project
        self._options = options
        self._broker = broker
        self._live = LiveSandbox(project.means.facts, keeps_layers=True, is_isolated=is_isolated)
        if not is_isolated:
            self._live.watch(project.roots)
        self._masks = KnownMasks(project)
        # Whoever has it may begin or end a run; foreground runs also wait for their turn
        self._lock = allocate_lock()
        self._turn = allocate_lock()
        self._span: Span | None = None
        # The one whose plan the next may use
        self._last: Span | None = None
        self._background: list[background.BackgroundRun] = []
        self._terminals: list[Terminal] = []
        self._ports: ports.Ports | None = None
        self._is_closed = False

    def run(
        self,
        command: Command,
        *,
        working_dir: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | int | None = None,
        timeout: float | None = None,
        limits: Limits | None = None,
        after: After | None = None,
        after_cancel: After | None = None,
        on_event: Callable[[Event], None] | None = None,
        cancel_fd: int | None = None,
        attach: AttachedTerminal | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> RunResult:
        """Run a command in this sandbox and return when it has ended, and with it every process that it started.

        Arguments and result are those of `Sandbox.run`. What that may ask for beyond the policy needs a sandbox of its
        own. While something runs in the background, processes that the command leaves go on too, and a checkpoint tells
        what was changed since the last one; where none can be taken the result is `unsettled`, and says why.

        Raises:
            UsageError: the command or the directory is wrong, the limits are others than the sandbox was built with,
                or it is closed, or busy with runs whose changes are dealt with otherwise.
            SandboxUnavailable: we failed, not the command.
        """
        with self._turn:
            spec = self._spec(command, working_dir, env, stdin, timeout, limits, after, after_cancel)
            if on_event is not None or cancel_fd is not None:
                spec = spec.replace(on_event=on_event, cancel_fd=cancel_fd)
            if attach is not None or on_wait is not None:
                spec = spec.replace(terminal=attach, on_wait=on_wait)
            return self._run(spec)

    def run_spec(self, spec: RunSpec) -> RunResult:
        """Do what `run` does with what `Sandbox.run` has made of its arguments."""
        with self._turn:
            return self._run(spec.replace(live=self._live))

    def _run(self, spec: RunSpec) -> RunResult:
        entered = self._enter(spec)
        return never_begun(self._project) if entered is None else self._follow(*entered, is_awaited=lambda: True)

    def checkpoint(self, *, after: After | None = None, selection: Selection | None = None) -> checkpoints.Checkpoint:
        """Tell what was changed since the last checkpoint, though commands go on; they stand still for a moment.

        It is applied if that is what becomes of their changes, or if `after` says so; otherwise it stays held. With a
        `selection` that is applied which it chooses, of all that earlier checkpoints have left too. Where nothing is
        alive there is nothing to tell: each result has had its changes.

        Raises:
            UsageError: the selection chooses nothing.
        """
        with self._lock, DeferredSignals():
            span = self._span
            if span is None or not span.alive:
                return checkpoints.Checkpoint(changes=ChangeSet(roots=()))
            found = self._take(span, after or span.spec.after, selection)
            if found.operation is not None and found.operation.number:
                record_operation(self._project.store, found.operation, span.spec.on_change)
            return found.replace(shared_with=tuple(span.numbers))

    def _take(self, span: Span, after: After, selection: Selection | None = None) -> checkpoints.Checkpoint:
        """Take a checkpoint of a span; one that can't be taken says why."""
        if span.copies is None:
            span.copies = checkpoints.SpanCopies(self._project)
        try:
            is_applied = after == "apply"
            found = span.copies.take(self._live, span.shared(), span.plan, selection, is_applied=is_applied)
        except SandboxUnavailable as error:
            return checkpoints.Checkpoint(changes=ChangeSet(roots=()), unsettled=error.message)
        self._project.store.runs.share(self._project.row.id, span.numbers)
        span.writers = [run.id for run in span.alive]
        return found.replace(held=found.held and after != "discard")

    def start(
        self,
        command: Command,
        *,
        working_dir: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        after: After | None = None,
    ) -> background.BackgroundRun:
        """Start a command in the background. It ends with this sandbox at the latest.

        Arguments are those of `run`; there is no time limit unless one is given. What its input is, `write` says.

        Raises:
            UsageError: as of `run`.
        """
        spec = self._spec(command, working_dir, env, None, timeout, None, after, after)
        limits = spec.limits.replace(wall_s=timeout, output_bytes=None)
        run = background.BackgroundRun(self._project.store.state)
        try:
            entered = self._enter(spec.replace(limits=limits, stdin=run.stdin, on_event=run.take))
        except BaseException:
            run.close()
            raise
        assert entered is not None
        identity = entered[1].id

        def order(*words: object) -> None:
            self._live.order(identity, words)

        try:
            run.begin(entered[1], lambda: self._follow(*entered, is_background=True), order)
        except BaseException as error:
            self._fail(*entered[:3], error)
            run.close()
            raise
        with self._lock:
            self._background = [other for other in self._background if other.is_alive()] + [run]
        return run

    def runs(self) -> tuple[background.BackgroundRun, ...]:
        """Return the background runs that have not ended."""
        return tuple(run for run in self._background if run.is_alive())

    def terminal(
        self,
        command: Command,
        size: tuple[int, int] = _SIZE,
        *,
        working_dir: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        after: After | None = None,
        after_cancel: After | None = None,
    ) -> Terminal:
        """Start a command on a terminal of so many rows and columns.

        The caller reads what it prints, so the result has no output. It may take any time but a `timeout`, and others
        run beside it, as in the background. All else is as in `run`.

        Raises:
            UsageError: the command, the directory or the size is wrong, or this sandbox is closed.
            SandboxUnavailable: we failed, not the command.
        """
        spec = self._spec(command, working_dir, env, None, None, None, after, after_cancel)
        spec = spec.replace(limits=spec.limits.replace(wall_s=timeout))

        def run(attached: AttachedTerminal, cancel_fd: int) -> RunResult:
            entered = self._enter(spec.replace(terminal=attached, cancel_fd=cancel_fd))
            return never_begun(self._project) if entered is None else self._follow(*entered)

        terminal = Terminal(run, size)
        self._remember(terminal)
        return terminal

    def kept_terminal(
        self,
        command: Command,
        size: tuple[int, int] = _SIZE,
        *,
        working_dir: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        after: After | None = None,
    ) -> KeptTerminal:
        """Start a command on a terminal that somebody may leave and come back to. All else is as in `terminal`."""
        spec = self._spec(command, working_dir, env, None, None, None, after, None)
        spec = spec.replace(limits=spec.limits.replace(wall_s=timeout))
        side = KeptSide(self._project.store.state)

        def run(attached: AttachedTerminal, cancel_fd: int) -> RunResult:
            entered = self._enter(spec.replace(terminal=attached, cancel_fd=cancel_fd))
            # Whoever could give up has this object only when the run is begun
            assert entered is not None
            side.run = entered[1]
            side.order = lambda *words: self._live.order(side.run.id, words)
            return self._follow(*entered, is_awaited=side.is_awaited)

        terminal = KeptTerminal(side, run, size)
        self._remember(terminal)
        return terminal

    def _remember(self, terminal: Terminal) -> None:
        with self._lock:
            self._terminals = [other for other in self._terminals if other.is_alive()] + [terminal]

    def shell(
        self,
        size: tuple[int, int] = _SIZE,
        *,
        working_dir: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        after: After | None = None,
        after_cancel: After | None = None,
    ) -> Terminal:
        """Start the person's shell on a terminal, or `sh` where the sandbox does not have theirs."""
        return self.terminal(
            [shell_of(self._project)],
            size,
            working_dir=working_dir,
            env={**SHELL_ENVIRON, **(env or {})},
            after=after,
            after_cancel=after_cancel,
        )

    def publish(self, inside: int, host: int = 0) -> ports.Port:
        """Have a port of the host's loopback lead to a server inside, until it or this sandbox is closed.

        `host` is its number there; 0 for the same number, or where that is in use for a free one: `Port.number`.

        Raises:
            UsageError: there is no such port, it is in use, the policy allows none, or this sandbox is closed.
        """
        return self._open_ports().publish(inside, host)

    def expose(self, host: int) -> ports.Port:
        """Have commands reach a server on the host's loopback, at the same port of theirs.

        Raises:
            UsageError: as of `publish`.
        """
        return self._open_ports().expose(host)

    def listening(self) -> tuple[int, ...]:
        """Return the ports that servers inside listen on now, those that are published too."""
        return self._live.servers()

    def _open_ports(self) -> ports.Ports:
        with self._lock:
            if self._is_closed:
                raise UsageError("this live sandbox is closed", remedy=_CLOSED)
            if self._ports is None:
                self._ports = ports.Ports(self._project, self._live)
            return self._ports

    def _spec(
        self,
        command: Command,
        working_dir: PathLike | None,
        env: Mapping[str, str] | None,
        stdin: str | bytes | int | None,
        timeout: float | None,
        limits: Limits | None,
        after: After | None,
        after_cancel: After | None,
    ) -> RunSpec:
        if self._is_closed:
            raise UsageError("this live sandbox is closed", remedy=_CLOSED)
        bounds = self._bounds(timeout, limits)
        options = self._options(after, after_cancel, stdin, bounds)
        spec = make_spec(self._project, command, working_dir, env, bounds)
        broker = self._broker() if self._project.means.policy.network.ask else None
        return spec.replace(live=self._live, broker=broker, **options)

    def _bounds(self, timeout: float | None, limits: Limits | None) -> Limits:
        built = self._project.means.policy.limits
        wanted = built if limits is None else limits
        if limits is not None and limits.of_sandbox() != built.of_sandbox():
            raise UsageError("a live sandbox keeps the limits that it was built with", remedy=_PLAIN_RUN)
        return wanted if timeout is None else wanted.replace(wall_s=timeout)

    def _enter(self, spec: RunSpec) -> tuple[Span, Run, RunSpec, Plan] | None:
        """Begin a run: beside those that are alive, or over layers of its own. None if its caller gave up before."""
        with self._lock:
            if self._is_closed:
                raise UsageError("this live sandbox is closed", remedy=_CLOSED)
            span = self._span
            if span is not None and span.alive:
                return self._enter_beside(span, spec)
            refuse_full_disk(self._project)
            end_interrupted(self._project.store)
            locks = self._acquire(spec)
            if locks is None:
                return None
            try:
                span = self._again(span, spec) if span is not None else None
                span = span or self._open(spec)
            except BaseException:
                locks.__exit__(None, None, None)
                raise
            span.locks = locks
            run = span.under_way.run
            span.alive, span.numbers, span.writers, span.is_kept = [run], [run.number], [run.id], False
            self._span = span
            return span, run, spec, span.plan

    def _acquire(self, spec: RunSpec) -> AbstractContextManager[object] | None:
        state, sandbox = self._project.store.state, self._project.row.id
        if self._is_isolated:
            return begin_use(self._project, spec)
        try:
            # Not beside a run that is to be alone
            use = RunUse(state, sandbox, spec.cancel_fd, on_wait=lambda: tell_waiting(self._project, spec))
        except GivenUp:
            return None
        if spec.after == "discard":
            return use
        locks = _Locks(use)
        try:
            locks.lock = wait_for_lock(state, sandbox, spec.cancel_fd, lambda: tell_waiting(self._project, spec))
            unfinished = self._project.store.runs.unfinished()
            if locks.lock is not None and any(run.keeps and run.sandbox == sandbox for run in unfinished):
                tell_interrupted(spec, hold_of_sandbox(self._project))
        except BaseException:
            locks.__exit__()
            raise
        if locks.lock is None:
            locks.__exit__()
            return None
        return locks

    def _enter_beside(self, span: Span, spec: RunSpec) -> tuple[Span, Run, RunSpec, Plan]:
        if spec.after != span.spec.after:
            raise UsageError(
                f"other commands are alive in this sandbox, and what they change together is to be {span.spec.after}"
                f" (`after`), not {spec.after}",
                remedy="Wait for them, or use `Sandbox.run`.",
            )
        spec = _for_all(spec)
        plan = self._plan(span, spec)
        run = begin_beside(self._project.store, self._project.row, spec.argv, spec.cwd, spec.after_cancel, spec.limits)
        span.alive.append(run)
        span.numbers.append(run.number)
        span.writers.append(run.id)
        return span, run, spec, plan

    def _again(self, span: Span, spec: RunSpec) -> Span | None:
        """Return a span that was kept, for another command; None if that would see something else by now."""
        project = self._project
        masks, places = self._masks.find(), get_places(project)
        if span.seen != self._look(masks) or (places is not span.places and places != span.places):
            self._drop_span(span)
            return None
        # Compared with that of the command before; what can fail is done before the run begins
        plan = self._plan(span, spec)
        span.masks, span.plan, span.spec = masks, plan, spec
        span.under_way = begin_again(
            project.store, project.row, span.under_way, spec.argv, spec.cwd, spec.after_cancel, spec.limits
        )
        try:
            span.gate = open_gate(project, spec, span.under_way, span.plan)
        except BaseException as error:
            self._span = None
            self._live.withdraw()
            self._hold_failed(span, spec, error)
            raise
        return span

    def _look(self, masks: Masks) -> Seen:
        """Return what layers are made from: they are made anew when any of it is another."""
        project = self._project
        sealed = project.store.layers.sealed_ids(project.row.id)
        # Whatever is done to a directory itself changes this: entries, mode, attributes, or another in its place
        roots = tuple((found.st_dev, found.st_ino, found.st_ctime_ns) for found in map(os.lstat, project.roots))
        return masks.layers, sealed, roots, find_bases(project)

    def _plan(self, span: Span, spec: RunSpec) -> Plan:
        """Return the plan of a command over the layers of a span. All but the command is as it was, if nothing else is.

        Variables depend on what the sandbox shows, which only a whole plan knows.
        """
        if span.plans_like(spec):
            return span.plan.replace(argv=spec.argv, cwd=spec.cwd, limits=spec.limits)
        under_way = span.under_way
        return make_plan(self._project, spec, span.places, under_way.stacks, under_way.caches)

    def _plan_anew(self, span: Span, spec: RunSpec) -> Plan:
        """Return the plan of the first command of a span; like that of the last span if it is for the same."""
        last, stacks, caches = self._last, span.under_way.stacks, span.under_way.caches
        if last is not None and last.places == span.places and last.plans_like(spec):
            every = (*stacks, *(cache.stack for cache in caches))
            plan = with_other_layers(last.plan, every)
            if plan is not None and [*map(_path_of, caches)] == [*map(_path_of, last.under_way.caches)]:
                return plan.replace(argv=spec.argv, cwd=spec.cwd, limits=spec.limits)
        return make_plan(self._project, spec, span.places, stacks, caches)

    def _open(self, spec: RunSpec) -> Span:
        project = self._project
        lasting: list[AbstractContextManager[object]] = []
        try:
            places = None
            if project.means.policy.view == "rootfs":
                use = use_rootfs(project)
                places = use.__enter__()
                lasting.append(use)
            lasting.append(MaskUse(project.store.state).__enter__())
            masks = self._masks.find()
            span = Span(spec, masks, places or get_places(project), self._look(masks))

            def open_layers() -> OpenRun:
                return open_run(
                    project.store,
                    project.row,
                    argv=spec.argv,
                    cwd=spec.cwd,
                    roots=project.roots,
                    caches=span.places.home.caches,
                    masks=masks.layers,
                    bases=span.seen[-1],
                    after_cancel=spec.after_cancel,
                    limits=spec.limits,
                )

            # Who has the sandbox's lock need not look twice
            is_locked = not self._is_isolated and spec.after != "discard"
            span.under_way = open_layers() if is_locked else when_settled(project, open_layers)
        except BaseException:
            while lasting:
                lasting.pop().__exit__(None, None, None)
            raise
        span.lasting = lasting
        try:
            stacks = with_covers(project, span.under_way.stacks, ())
            span.under_way = span.under_way.replace(stacks=stacks)
            span.plan = self._plan_anew(span, spec)
            self._last = span
            self._live.prepare(span.plan)
            span.gate = open_gate(project, spec, span.under_way, span.plan)
        except BaseException as error:
            self._hold_failed(span, spec, error)
            raise
        return span

    def _follow(
        self,
        span: Span,
        run: Run,
        spec: RunSpec,
        plan: Plan,
        *,
        is_background: bool = False,
        is_awaited: Callable[[], bool] = lambda: False,
    ) -> RunResult:
        """Perform a run that was entered, and end it; beside others with a checkpoint, if somebody waits for it."""
        begun = time.monotonic()
        gate = span.gate if run.id == span.under_way.run.id else None
        result = None
        try:
            try:
                control = make_control(self._project, spec, run.id, gate)
                if is_background:
                    # Its output may have no end, and is kept in a ring
                    control = control.replace(spill_dir=b"")
                performed = perform(plan, self._project.means.facts, control, self._live)
            except BaseException as error:
                self._fail(span, run, spec, error)
                raise
            with DeferredSignals():
                result = self._leave(span, run, spec, plan, performed, begun, is_settled=is_awaited())
                if performed.raised is not None:
                    raise performed.raised
            if spec.on_event is not None:
                spec.on_event(Ended(run=run.id, outcome=performed.outcome))
        except BaseException as error:
            if result is not None:
                tell_cancelled(self._project, spec, result, error)
            raise
        result = record_run(self._project, spec, result)
        # Not before: what it costs is no part of any run
        if self._masks.is_search_due:
            search_aside(self._project)
        return result

    def _fail(self, span: Span, run: Run, spec: RunSpec, error: BaseException) -> None:
        """End a run that has no result. The last one of a span takes the sandbox with it."""
        with self._lock, DeferredSignals():
            span.alive = [other for other in span.alive if other.id != run.id]
            if span.alive:
                self._end_beside(span, run.replace(ended_ns=time.time_ns()))
                record_failure(self._project, spec, run, error)
                return
            self._live.close()
            self._span = None
            try:
                self._end_gate(span, spec)
                self._settle_copies(span)
            finally:
                self._hold_failed(span, spec, error)

    def _hold_failed(self, span: Span, spec: RunSpec, error: BaseException) -> None:
        """Hold what was written in a span that has no result."""
        project = self._project
        lock = lock_sandbox(project.store.state, project.row.id) if self._is_isolated else None
        span.under_way = span.under_way.replace(taken_away=self._live.taken_away())
        try:
            tell_interrupted(spec, hold_failed(project, spec, span.under_way, error))
        finally:
            if lock is not None:
                lock.release()
            span.release()

    def _leave_beside(
        self, span: Span, run: Run, spec: RunSpec, plan: Plan, performed: Performed, begun: float
    ) -> RunResult:
        """End a run while others go on, with what all of them changed since the last checkpoint."""
        found = self._take(span, after_of(self._project, spec, performed.outcome))
        changed = sum(not change.is_mere_touch for change in found.changes)
        self._end_beside(span, ended_run(run, performed).replace(changed=changed))
        result = self._result(span, run, plan, performed, begun)
        if found.unsettled:
            why = Hint(code="no-checkpoint", text=f"There is no checkpoint: {found.unsettled}.", remedy="")
            return result.replace(unsettled=True, hints=(*result.hints, why))
        operation = found.operation
        return result.replace(
            changes=found.changes,
            held=found.held,
            operation=operation,
            flagged=() if operation is None else operation.flagged,
            problem=found.problem,
            hints=(*result.hints, *found.hints),
            standstill_s=found.standstill_s,
        )

    def _settle_copies(self, span: Span) -> None:
        """Have in the layers all that checkpoints know of them, when nothing has them mounted any more."""
        if span.copies is not None:
            self._live.withdraw()
            span.copies.settle()

    def _leave(
        self,
        span: Span,
        run: Run,
        spec: RunSpec,
        plan: Plan,
        performed: Performed,
        begun: float,
        *,
        is_settled: bool,
    ) -> RunResult:
        """End a run. With the last one of a span, its layers are scanned and closed, or kept if nothing is in them."""
        with self._lock:
            span.alive = [other for other in span.alive if other.id != run.id]
            others = tuple(number for number in span.numbers if number != run.number)
            if span.alive:
                performed = with_hints(self._project, plan, performed, span.masks)
                if is_settled:
                    return self._leave_beside(span, run, spec, plan, performed, begun).replace(shared_with=others)
                self._end_beside(span, ended_run(run, performed))
                result = self._result(span, run, plan, performed, begun)
                return result.replace(shared_with=others, unsettled=True)
            if others:
                spec = _for_all(spec)
            try:
                traffic = self._end_gate(span, spec)
                self._settle_copies(span)
                if others:
                    self._project.store.runs.share(self._project.row.id, span.numbers)
                is_kept = span.is_unwritten() and not self._is_closed
                if is_kept:
                    result = self._keep(span, run, plan, performed, traffic, begun)
            except BaseException as error:
                self._span = None
                self._live.close()
                self._hold_failed(span, spec, error)
                raise
            if is_kept:
                refuse_bad_directory(performed.outcome, plan.cwd)
                return result.replace(shared_with=others) if others else result
            self._span = None
            try:
                # Nothing is scanned that anything could still write
                if not self._live.withdraw():
                    self._live.close()
                span.under_way = span.under_way.replace(taken_away=self._live.taken_away())
                performed, changes = look_at_layers(performed, plan, span.under_way)
                performed = with_hints(self._project, plan, performed, span.masks)
            except BaseException as error:
                self._hold_failed(span, spec, error)
                raise
            try:
                closing = (self._project, spec, span.masks, span.shared(), plan, performed, changes, traffic, begun)
                use = span.locks if isinstance(span.locks, StackUse) and self._is_isolated else None
                result = close_run(*closing, use, span.copies)
            finally:
                end_going_on(span.under_way.run.id)
                span.release()
            return result.replace(shared_with=others)

    def _keep(
        self, span: Span, run: Run, plan: Plan, performed: Performed, traffic: Traffic | None, begun: float
    ) -> RunResult:
        """End a run that has written nothing, and keep its layers for the next."""
        self._live.prepare(plan)
        performed = with_hints(self._project, plan, with_remedy(performed, plan), span.masks)
        self._project.store.runs.end(ended_run(run, performed))
        end_going_on(run.id)
        if traffic is not None:
            self._project.store.traffic.put(run.id, traffic)
        span.drop_copies()
        span.is_kept = True
        span.unlock()
        return self._result(span, run, plan, performed, begun, traffic)

    def _result(
        self, span: Span, run: Run, plan: Plan, performed: Performed, begun: float, traffic: Traffic | None = None
    ) -> RunResult:
        """Return the result of a run that has no changes of its own."""
        duration_s = time.monotonic() - begun
        notes = hidden_notes(find_hidden(span.under_way.stacks), self._project.path)
        nothing = ChangeSet(roots=())
        return make_result(
            self._project, run, plan, performed, nothing, Applied(), traffic, span.masks, duration_s, notes
        )

    def _end_beside(self, span: Span, ended: Run) -> None:
        """Record the end of a run while others go on; its layers, if they were its own, become another's."""
        span.under_way = end_beside(self._project.store, span.under_way, ended, span.alive[0])

    def _end_gate(self, span: Span, spec: RunSpec) -> Traffic | None:
        gate, span.gate = span.gate, None
        traffic = None if gate is None else gate.close()
        if spec.broker is not None:
            spec.broker.withdraw(span.under_way.run.id)
        return traffic if self._ports is None else self._ports.settle(traffic)

    def _drop_span(self, span: Span) -> None:
        """Remove layers that were kept for nothing."""
        self._span = None
        self._live.withdraw()
        try:
            drop_kept(self._project.store, span.under_way)
        finally:
            span.release()

    def close(self) -> None:
        """End the sandbox and all that runs in it; return when what it has changed is applied, held or discarded."""
        self._is_closed = True
        self._live.end()
        for run in self._background:
            run.join()
        for terminal in self._terminals:
            terminal.join()
        with self._turn, self._lock:
            span = self._span
            if span is not None and not span.alive:
                if span.is_kept:
                    self._drop_span(span)
                else:
                    self._span = None
                    self._hold_failed(span, span.spec, SandboxUnavailable("it was not closed as it should be"))
            if self._ports is not None:
                self._ports.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_rest: object) -> None:
        self.close()


class ReusedLive:
    """The live sandbox that the runs of one connection have one after another, each as isolated as a plain run.

    The first run opens it. It is closed when none came for a while, when one reached a limit, and by `close`.
    """

    def __init__(self, project: Project, open_one: Callable[[], Live]) -> None:
        """Prepare for it. `open_one` makes a live sandbox whose runs are isolated."""
        policy = project.means.policy
        # Whom to ask for a host is for each call to say, not for a sandbox
        self._is_refused = policy.network.ask or not project.means.has_live
        self._limits = policy.limits.of_sandbox()
        self._open_one = open_one
        # Free when the one is closed that is watched
        self._gone = allocate_lock()
        self._gone.acquire()
        self._lock = allocate_lock()  # protects the fields below
        self._live: Live | None = None
        self._is_used = self._is_watched = self._is_closed = False
        self._idle_since = 0.0
        # How often in a row a run could not begin
        self._failed = 0

    def run(self, spec: RunSpec) -> RunResult | None:
        """Run a command in it. None if nothing was begun: another run is in it, or this one needs a plain run.

        Raises:
            UnspillError: as by `Sandbox.run`.
        """
        live = self._take(spec)
        if live is None:
            return None
        heard = _Start(spec.on_event)
        is_kept = False
        try:
            result = live.run_spec(spec.replace(on_event=heard.take))
            is_kept = not isinstance(result.outcome, LimitReached)
            self._failed = 0
            return result
        except (HostError, SandboxUnavailable):
            if heard.is_begun:
                raise
            # What keeps a plain run from beginning as well, that one says
            self._failed += 1
            return None
        finally:
            self._give_back(live, is_kept=is_kept)

    def _take(self, spec: RunSpec) -> Live | None:
        is_other = self._is_refused or spec.limits.of_sandbox() != self._limits
        with self._lock:
            if is_other or self._is_used or self._is_closed or self._failed >= _MOST_FAILED:
                return None
            if self._live is None:
                self._live = self._open_one()
            if not self._is_watched:
                self._is_watched = True
                start_new_thread(self._close_when_idle, ())
            self._is_used = True
            return self._live

    def _give_back(self, live: Live, *, is_kept: bool) -> None:
        with self._lock:
            self._is_used = False
            self._idle_since = time.monotonic()
            if is_kept or self._live is not live:
                return
            self._live = None
        live.close()

    def _close_when_idle(self) -> None:
        left_s = IDLE_S
        while left_s > 0 and not self._gone.acquire(timeout=left_s):
            with self._lock:
                left_s = IDLE_S if self._is_used else self._idle_since + IDLE_S - time.monotonic()
                if left_s <= 0:
                    live, self._live = self._live, None
                    self._is_watched = False
        if left_s <= 0 and live is not None:
            try:
                live.close()
            except (OSError, UnspillError):
                # Nobody is there to be told: the state is gone, or fails. The next run finds what is left
                return

    def close(self) -> None:
        """End it, for good: from now on there are plain runs only."""
        with self._lock:
            self._is_closed = True
            live, self._live = self._live, None
            if self._gone.locked():
                self._gone.release()
        if live is not None:
            live.close()


class _Start:
    """Passes events on, and knows whether a command was started."""

    def __init__(self, on_event: Callable[[Event], None] | None) -> None:
        self._on_event = on_event
        self.is_begun = False

    def take(self, event: Event) -> None:
        self.is_begun = True
        if self._on_event is not None:
            self._on_event(event)
