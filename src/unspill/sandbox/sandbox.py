# SPDX-License-Identifier: Apache-2.0
"""The facade: a project, a policy and a stack of layers behind one object.

    with Sandbox("/path/to/project") as sandbox:
        result = sandbox.run("make test")          # a shell text, or a list of words
        result.exit_code, result.stdout.head       # what the command did and said
        result.changes, result.operation           # what it changed, and how that was applied
        sandbox.undo()                             # take it back, whatever the command was

        sandbox.run("make install", after="hold")  # the project is not touched
        sandbox.changes(); sandbox.diff()          # what is held
        sandbox.apply(["src"]); sandbox.discard()

        with sandbox.live() as live:               # stays alive, for many short commands
            live.run("git status")

There is one sandbox named `default` per project, reopened wherever it is asked for; other names are others. What is
held is seen by the next run of that sandbox. Runs of one sandbox follow one another.

`Sandbox(None)` has no project: commands start in a playground, and nothing is ever applied. `open_temporary` is for
whoever has no project, only something to try: a sandbox over an empty directory of its own, which goes with all that
was ever written in it. Nothing of the person's lies there, so nothing is masked.
"""

from __future__ import annotations

import os
import time

from unspill.errors import SandboxUnavailable, UsageError
from unspill.layers.lifecycle import (
    discard_stacks,
    find_hidden,
    load_stacks,
    playground_dir,
    tmp_dir,
    wait_until_clean,
)
from unspill.layers.locks import has_keeper, lock_sandbox, refuse_given_up
from unspill.layers.trees import remove_tree
from unspill.lazy import lazy_module
from unspill.model.policy import DAY_NS, Policy, Secrets
from unspill.model.run import SandboxId
from unspill.policy.paths import contains
from unspill.sandbox.planning import make_spec
from unspill.sandbox.project import (
    check_approver,
    check_name,
    check_run,
    check_session,
    check_stdin,
    open_project,
    read_policy,
    with_held_roots,
)
from unspill.sandbox.result import record_operation, record_run
from unspill.sandbox.scan import has_news, hold_interrupted, interrupted_line, sweep_once
from unspill.sandbox.secrets import search_aside
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import (
        AsyncIterator,
        Callable,
        Mapping,
        Sequence,
    )
    from typing import Any, NoReturn, Self, TypedDict, Unpack

    from unspill.model.change import ChangeSet, Selection
    from unspill.model.operation import Operation, Step
    from unspill.model.plan import Facts, Plan
    from unspill.model.policy import (
        After,
        EngineName,
        Limits,
        View,
    )
    from unspill.model.run import Event, Run, Traffic
    from unspill.permissions.broker import Broker
    from unspill.runner import aio
    from unspill.runner.watch import AttachedTerminal
    from unspill.sandbox import apply, history, live, permits, review, running, sessions, upkeep
    from unspill.sandbox.history import Backup, Changers
    from unspill.sandbox.planning import Command, RunSpec
    from unspill.sandbox.ports import WantedPorts
    from unspill.sandbox.project import Locations, PathLike, Project, Who
    from unspill.sandbox.result import OnChange, RunResult
    from unspill.sandbox.sessions import Session
    from unspill.sandbox.upkeep import Playground, SandboxUsage
    from unspill.store.operations import FileRow

    class RunOptions(TypedDict, total=False):
        """The options of `run` that `arun` and `stream` take as well."""

        working_dir: PathLike | None
        env: Mapping[str, str] | None
        stdin: str | bytes | int | None
        timeout: float | None
        limits: Limits | None
        after: After | None
        after_cancel: After | None
        network: bool
        hosts: Sequence[str]
        readable: Sequence[PathLike]
        reveal: Sequence[PathLike]
        roots: Sequence[PathLike]
        registries: Sequence[str]
        unsandboxed: bool
        approver: Who
        alone: bool
        on_wait: Callable[[str], None] | None
        ports: WantedPorts | None
        reuse: bool

    class RunOptionsWithEvents(RunOptions, total=False):
        """Those that `arun` takes."""

        on_event: Callable[[Event], None] | None

    # What one run is to have beyond the policy: the network, hosts, readable paths, secrets, roots, registries
    More = tuple[bool, Sequence[str], Sequence[PathLike], Sequence[PathLike], Sequence[PathLike], Sequence[str]]
else:
    apply = lazy_module("unspill.sandbox.apply")  # lazy: apply
    history = lazy_module("unspill.sandbox.history")  # lazy: history
    live = lazy_module("unspill.sandbox.live")  # lazy: live sandboxes
    permits = lazy_module("unspill.sandbox.permits")  # lazy: approvals
    review = lazy_module("unspill.sandbox.review")  # lazy: diff
    running = lazy_module("unspill.sandbox.running")  # lazy: run
    sessions = lazy_module("unspill.sandbox.sessions")  # lazy: history
    upkeep = lazy_module("unspill.sandbox.upkeep")  # lazy: upkeep
    aio = lazy_module("unspill.runner.aio")  # lazy: async


_PRUNED = "pruned"

TEMPORARY = "temporary"


def do_daily(store: Store, policy: Policy, now_ns: int | None = None) -> None:
    """Copy the database and forget what is outside the window, if that was not done for a day.

    A failure is no reason not to run.

    Raises:
        StoreDamaged: the database is not whole.
    """
    now = time.time_ns() if now_ns is None else now_ns
    stamp = store.facts.find(_PRUNED)
    if stamp is None:
        # Nothing can be old in a store that was never looked at
        store.facts.put(_PRUNED, str(now))
        return
    if stamp.isdecimal() and 0 <= now - int(stamp) < DAY_NS:
        return
    upkeep.copy_daily(store, now, policy.keep_days)
    try:
        is_complete = upkeep.prune_in_time(store, now, days=policy.keep_days, budget=policy.keep_bytes)
    except OSError:
        return
    store.grants.remove_expired(now)
    store.requests.remove_before(now - policy.keep_days * DAY_NS)
    if is_complete:
        store.facts.put(_PRUNED, str(now))


class _Closed:
    """Stands for the store of a sandbox that is closed: whatever needs it says so."""

    __slots__ = ()

    def __getattr__(self, _name: str) -> NoReturn:
        raise UsageError("this sandbox is closed", remedy="Use it inside its `with` block, or open another Sandbox.")


class Looking:
    """The part of a Sandbox that looks."""

    _project: Project
    _recovered: tuple[Operation, ...]
    _interrupted: list[Run]

    @property
    def project(self) -> bytes:
        """The real path of the project; without one, the home directory, of which nothing is changed."""
        return self._project.path

    @property
    def directory(self) -> str:
        """The same as `project`, as text."""
        return os.fsdecode(self._project.path)

    @property
    def id(self) -> SandboxId:
        """What it is known by in the store, whatever becomes of its name."""
        return self._project.row.id

    @property
    def policy(self) -> Policy:
        """What its commands may see and use."""
        return self._project.means.policy

    @property
    def facts(self) -> Facts:
        """What this host can do."""
        return self._project.means.facts

    @property
    def view(self) -> View:
        """What it shows instead of the host's root, or of it."""
        return self._project.means.policy.view

    @property
    def engine(self) -> EngineName | None:
        """How layers are put over the project here; None in container mode, and where no sandbox can be made."""
        return self._project.means.engine

    @property
    def shell(self) -> tuple[bytes, Mapping[str, str]]:
        """The person's shell as its commands have it, `sh` where they do not have theirs, and variables for it."""
        return live.shell_of(self._project), live.SHELL_ENVIRON

    @property
    def has_keeper(self) -> bool:
        """Whether a process of this user keeps it alive for background runs: `unspill ps` lists them."""
        return has_keeper(self._project.store.state, self._project.row.id)

    @property
    def former_path(self) -> bytes | None:
        """The path that the project's directory had before, where it is new at this one; see `unspill adopt`."""
        return self._project.former_path

    @property
    def recovered(self) -> tuple[Operation, ...]:
        """Operations that were interrupted, and that this opening has taken back (`rolled back`) or finished."""
        return self._recovered

    @property
    def interrupted_runs(self) -> tuple[Run, ...]:
        """Runs of the project that lost their process, or were cut off otherwise, and that this object has found.

        Their changes are held now, unless they were too large: such a run has `LimitReached` for its outcome.
        """
        return tuple(self._interrupted)

    def describe_interrupted(self, run: Run) -> str:
        """Return in one line what became of the changes of such a run, for the person."""
        row = self._project.store.sandboxes.find_id(SandboxId(run.sandbox))
        return interrupted_line(run, "" if row is None else row.name)

    def changes(self, *, run: str | int | None = None) -> ChangeSet:
        """Return what is held against the live project, or what one held run changed."""
        return review.changes_of(self._look(), run)

    def _look(self) -> Project:
        """Return the project with all roots of which something is held, fit to be looked at."""
        _let_go(self._project)
        return with_held_roots(self._project)

    def held_of(self, operation: Operation) -> ChangeSet:
        """Return what is held of the runs that an operation came from."""
        return review.changes_of_runs(self._look(), operation.runs)

    def hidden_by_held(self) -> tuple[bytes, ...]:
        """Return what is in the top directory of a root but not seen by a run, because its deletion is held."""
        project = self._project
        return find_hidden(load_stacks(project.store, project.row.id, project.roots))

    def summary(self, *, run: str | int | None = None, colour: bool = False, here: bytes = b"") -> list[str]:
        """Return what is held as lines for a person: counts, one line a path, renames recognised.

        Paths are named as seen from the project, or from `here` if that is a directory of it.
        """
        return review.summary_of(self._look(), run, colour=colour, here=here)

    def diff(
        self,
        paths: PathLike | Sequence[PathLike] = (),
        *,
        run: str | int | None = None,
        operation: str | int | None = None,
        colour: bool = False,
        skip: Callable[[bytes], bool] = lambda _path: False,
        here: bytes = b"",
    ) -> str:
        """Return what is held, or what a run or an operation changed, as text: unified diffs, safe to print.

        Nothing is shown of paths, absolute ones, that `skip` is true of. Headings are as seen from `here`.
        """
        if operation is not None:
            wanted = review.paths_given(paths)
            return history.operation_diff(self._project, operation, wanted, colour=colour, skip=skip, here=here)

        wanted_names = [os.fsdecode(path) for path in review.paths_given(paths)]
        return review.diff_of(self._look(), wanted_names, run, colour=colour, skip=skip, here=here)

    @property
    def reviews(self) -> review.Reviews:
        """What is held as a person reviews it on a terminal, and the tokens that name it."""
        return review.Reviews(self._look())

    def operations(self, *, limit: int = 20) -> tuple[Operation, ...]:
        """Return the project's latest operations, the youngest first."""
        return self._project.store.operations.latest(self._project.path, limit)

    def operations_since(self, at_ns: int) -> tuple[Operation, ...]:
        """Return the project's operations from a moment on, the youngest first."""
        return self._project.store.operations.since(self._project.path, at_ns)

    def find_operation(self, operation: str | int) -> tuple[Operation, tuple[Step, ...]]:
        """Return one operation by number or id, with the steps that were done; a UsageError if there is none."""
        found = history.get_operation(self._project, operation)
        return history.with_steps(self._project, found)

    def tell_flagged(self, operation: Operation, *, on_terminal: bool) -> tuple[tuple[bytes, str], ...]:
        """Return what is flagged in an operation that was just done and has to be told; remember that it is told.

        No content of a file is told twice on terminals, nor twice elsewhere; see docs/held.md.
        """
        flags = apply.Flags(self._project.store, self._project.path)
        return flags.tell(operation, "terminal" if on_terminal else "elsewhere")

    def operation_changes(self, operation: str | int) -> ChangeSet:
        """Return what an operation changed in the project.

        Raises:
            UsageError: there is none, or that is not kept any more.
        """
        return history.operation_changes(self._project, operation)

    def blame(self, path: PathLike) -> tuple[tuple[Operation | str, bytes], ...]:
        """Return the lines of a file, each with the operation that wrote it.

        `you` wrote what no operation did; of what is older than the operations that are kept, `?` did.

        Raises:
            UsageError: there is no such file, or it is no text.
        """
        return history.blame_file(self._project, os.fsencode(path))

    def find_changers(self, path: PathLike) -> Changers:
        """Return the runs that changed what is at an absolute path, or below it, as far as operations are kept."""
        return history.find_changers(self._project, os.fsencode(path))

    def files(self, *, with_deleted: bool = False) -> tuple[FileRow, ...]:
        """Look which files that operations have touched are still there, and return their records by root and path."""
        history.rescan(self._project.store, self._project.path)
        return history.files_of(self._project.store, self._project.path, with_deleted=with_deleted)

    def trees(self, files: Sequence[FileRow]) -> dict[int, bytes]:
        """Return, by the id of a file, the tree that it is in: git's own directory, or one that git ignores."""
        found: dict[int, bytes] = {}
        for root in {file.root for file in files if os.path.isdir(file.root)}:
            own = {file.path: file.id for file in files if file.root == root}
            found |= {own[path]: os.path.join(root, tree) for path, tree in review.find_trees(root, own).items()}
        return found

    def backups(self, file: FileRow) -> tuple[Backup, ...]:
        """Return the named backups of a file, the newest first."""
        return history.backups_of(self._project.store, file)

    def sessions(self) -> tuple[Session, ...]:
        """Return the sessions of agents in this project, the newest last."""
        return sessions.list_sessions(self._project)

    def find_session(self, session: str | None = None) -> Session:
        """Return one of them by its name or the beginning of it.

        By default it is the last one that changed something.

        Raises:
            UsageError: there is none, or more than one begins so.
        """
        return sessions.find_session(self._project, session)

    def sandboxes(self) -> tuple[SandboxUsage, ...]:
        """Return the sandboxes of the project by name, with what each one holds and whether something runs in it."""
        for row in self._project.store.sandboxes.of_project(self._project.path):
            _let_go(self._project.replace(row=row))
        return upkeep.list_sandboxes(self._project)

    def runs(self, *, limit: int = 20) -> tuple[Run, ...]:
        """Return the latest runs, the youngest first."""
        return self._project.store.runs.latest(self._project.row.id, limit)

    def find_run(self, run: str | int) -> Run:
        """Return one run by number or id; it is a UsageError if there is none."""
        return review.get_run(self._project, run)

    def traffic(self, run: str | int) -> Traffic:
        """Return what one run reached and what it was refused."""
        return review.traffic_of(self._project, run)

    def playground(self) -> Playground:
        """Return where the project's scratch directory is, and what is in it.

        Raises:
            StoreError: it can't be read.
        """
        return upkeep.look_at_playground(self._project.locations.data, self._project.path)

    def plan(
        self,
        command: Command,
        *,
        working_dir: PathLike | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Plan:
        """Return the sandbox that `run` would make, as data; its layer's directories are only named, not made."""
        return review.plan_as_if(self._project, make_spec(self._project, command, working_dir, env, None))

    def explain(
        self,
        command: Command,
        *,
        working_dir: PathLike | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Return the plan as text, with the reason for each line and one command that makes the same sandbox."""
        from unspill.plan.explain import explain  # lazy: explain

        return explain(self.plan(command, working_dir=working_dir, env=env), self._project.means.facts)


class Sandbox(Looking):
    """A place to run commands in. Safe to use from several threads; see the module for a recipe."""

    _reused: live.ReusedLive | None = None

    def __init__(
        self,
        project: PathLike | None,
        *,
        name: str = "default",
        policy: Policy | None = None,
        approver: Who = None,
        may_fork: bool = False,
        on_change: OnChange | None = None,
        session: str = "",
    ) -> None:
        """Open a sandbox; nothing runs yet.

        Args:
            project: The directory that commands may change, in a layer. None for no project: nothing is applied, and
                commands start in a playground that all such sandboxes share.
            name: Which sandbox of the project.
            policy: What it may see and use; by default the person's configuration file.
            approver: Who answers when more is wanted: an Approver, or the name of one: `terminal`, `queue`. By default
                nobody, and what would be asked is denied.
            may_fork: This process is small and has one thread, so the spawner may be a fork of it.
            on_change: Called once with each operation of this object that changed the project, when it has ended. Its
                `kind` is `apply`, `undo`, `redo` or `restore`; its `paths` are what it changed. What the callback
                raises becomes a warning of the run, or a note of the operation. It must not use this sandbox.
            session: What all that is done by this object belongs to, so that it can be undone at once.

        Raises:
            UsageError: an argument or a setting is wrong.
            HostError: this machine can't; the remedy says what to do. Where the policy lets the person be asked to run
                a command without a sandbox, `run` raises it instead, unless that is what is wanted.
            DeniedError: the caller is root, and the approver said no to that.
            StoreError: the state directory can't be used.
        """
        check_name(name)
        self.name = name
        self._may_fork = may_fork
        self._approver = approver
        self._on_change = on_change
        self._broker: Broker | None = None
        check_approver(approver)
        permit_root = None if approver is None else self._permit_root
        self._project = open_project(project, name, policy, permit_root)
        self._project.store.session = check_session(session)
        self._recovered = sweep_once(self._project.store, self._project.means.facts)
        if self._recovered:
            for operation in self._recovered:
                record_operation(self._project.store, operation, on_change)
        self._interrupted = list(hold_interrupted(self._project))
        do_daily(self._project.store, self._project.means.policy)

    def _permit_root(self, path: bytes, policy: Policy, locations: Locations) -> Policy:
        with Store.open(locations.state) as store:
            return permits.permit_root(path, policy, locations, store, self._approver)

    @property
    def broker(self) -> Broker:
        """Where what is wanted beyond the policy is obtained."""
        if self._broker is None:
            self._broker = self._broker_of(self._approver or "deny")
        return self._broker

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
        network: bool = False,
        hosts: Sequence[str] = (),
        readable: Sequence[PathLike] = (),
        reveal: Sequence[PathLike] = (),
        roots: Sequence[PathLike] = (),
        registries: Sequence[str] = (),
        unsandboxed: bool = False,
        approver: Who = None,
        attach: AttachedTerminal | None = None,
        alone: bool = False,
        on_wait: Callable[[str], None] | None = None,
        ports: WantedPorts | None = None,
        reuse: bool = False,
    ) -> RunResult:
        """Run a command and return when every process of it is dead.

        A command that fails is a result, not an exception. `on_event` is called in this thread while it runs. From
        `network` on it is more than the policy gives: each is asked for, unless a grant covers it; if one is denied,
        nothing runs. A Ctrl-C or an exception of `on_event` is raised once the changes are safe; a note tells of them.

        Args:
            command: A text for /bin/sh, or a list of words. `env`: variables on top of this process's allowed ones.
            working_dir: Absolute, relative to the project (the default), or `playground`.
            stdin: A text, bytes, or a descriptor. `timeout`: seconds; `limits`: bounds; by default the policy's.
            after: `apply`, `hold` or `discard`; by default the policy's. `after_cancel`: the same, if it is cancelled.
            on_event: Called with Started, OutputChunk and Ended. `cancel_fd`: becomes readable to cancel.
            network: Any public host, for this time; `hosts`: those named; `registries`: those of pip, npm and so on.
            readable: Paths that it sees; `reveal`: secrets of the project that it sees; `roots`: what it may change.
            unsandboxed: As if the person had typed it. `approver`: who answers. `attach`: whose terminal it has.
            ports: Open meanwhile. `alone`: no other goes on. `on_wait`: told why it waits. `reuse`: for the next, too.

        Raises:
            UsageError: the command or the directory is wrong.
            DeniedError: the policy or the approver said no to something that is wanted; nothing was run.
            SandboxUnavailable: we failed, not the command.
        """
        bounds = self._bounds(timeout, limits)
        options = self._options(after, after_cancel, stdin, bounds)
        spec = make_spec(self._project, command, working_dir, env, bounds, is_plain=unsandboxed)
        spec = spec.replace(on_event=on_event, cancel_fd=cancel_fd, alone=alone, on_wait=on_wait, **options)
        more = (network, hosts, readable, reveal, roots, registries)
        if unsandboxed or (attach is None and ports is None):
            return self._run(spec, more, approver, unsandboxed=unsandboxed, reuse=reuse)
        return live.run_attached(
            self._project, attach, ports, spec, lambda made: self._run(made, more, approver), has_network=network
        )

    def _run(
        self, spec: RunSpec, more: More, approver: Who, *, unsandboxed: bool = False, reuse: bool = False
    ) -> RunResult:
        if reuse and not unsandboxed and not any(more) and (reused := self._reusable().run(spec)) is not None:
            return reused
        result = self._run_permitted(spec, more, approver, unsandboxed=unsandboxed)
        # Not before: what it costs is no part of any run
        search_aside(self._project)
        return result

    def _run_permitted(self, spec: RunSpec, more: More, approver: Who, *, unsandboxed: bool) -> RunResult:
        if self._project.means.policy.network.ask:
            spec = spec.replace(broker=self._broker_of(approver))
        if unsandboxed or any(more):
            broker = self._broker_of(approver)
            return permits.run_with_more(self._project, spec, broker, *more, unsandboxed=unsandboxed)
        result = running.run_command(self._project, spec)
        # Not before: the command line loads it while the command begins
        return record_run(self._project, spec, result)

    def _bounds(self, timeout: float | None, limits: Limits | None) -> Limits:
        bounds = self._project.means.policy.limits if limits is None else limits
        return bounds if timeout is None else bounds.replace(wall_s=timeout)

    def _options(
        self, after: After | None, after_cancel: After | None, stdin: object, bounds: Limits
    ) -> dict[str, Any]:
        """Return how a run is begun and ended, checked; cheap, so before its working directory is looked for."""
        policy = self._project.means.policy
        if not self._project.roots and not self._project.means.container:
            if after not in (None, "discard"):
                raise UsageError(f"without a project there is nothing to {after}", remedy="Leave out `after`.")
            # So that such runs do not wait for each other
            after = "discard"
        after = policy.after if after is None else after
        if after_cancel is None:
            after_cancel = policy.after_cancel if after == "apply" else after
        check_run(after, after_cancel, bounds.wall_s)
        _let_go(self._project)
        return {
            "after": after,
            "after_cancel": after_cancel,
            "stdin": check_stdin(stdin),
            "may_fork": self._may_fork,
            "on_interrupted": self._interrupted.extend,
            "on_change": self._on_change,
        }

    def _broker_of(self, approver: Who) -> Broker:
        if approver is None:
            return self.broker
        return permits.make_broker(self._project.store, self._project.means.policy, self._project.locations, approver)

    def _reusable(self) -> live.ReusedLive:
        if self._reused is None:
            made = live.ReusedLive(self._project, lambda: self._make_live(is_isolated=True))
            # In one step: two threads may come at once
            self.__dict__.setdefault("_reused", made)
        assert self._reused is not None
        return self._reused

    def end_reuse(self) -> None:
        """End the sandbox that is kept for runs with `reuse`, for good: from now on each has one of its own."""
        self._reusable().close()

    def _make_live(self, *, is_isolated: bool) -> live.Live:
        return live.Live(self._project, self._options, lambda: self.broker, is_isolated=is_isolated)

    def live_for(
        self,
        command: Command,
        *,
        working_dir: PathLike | None = None,
        env: Mapping[str, str] | None = None,
        hosts: Sequence[str] = (),
        readable: Sequence[str] = (),
        approver: Who = None,
    ) -> live.Live:
        """Return a live sandbox that has what one command wants beyond the policy, as `run` would ask for it.

        Raises:
            DeniedError: the policy or the approver said no to something.
            UsageError: something of it is malformed.
            HostError: as of `live`.
        """
        project = self._project
        project.means.check_live()
        if hosts or readable:
            spec = make_spec(project, command, working_dir, env, None)
            access = permits.check_access(project, network=False, hosts=hosts, readable=readable, reveal=(), roots=())
            project, _spec = permits.permitted(project, spec, access, self._broker_of(approver))
        return live.Live(project, self._options, lambda: self._broker_of(approver))

    def live(self) -> live.Live:
        """Return a sandbox that stays alive between commands, which saves making one for each.

        Use it in a `with` block: at its end all processes are ended, and `/tmp` and the home directory go. What a
        command changes is applied, held or discarded as by `run`.

        Raises:
            HostError: this machine can't, or the policy has no sandbox, or a rootfs that commands write to.
        """
        return self._make_live(is_isolated=False)

    async def arun(self, command: Command, **options: Unpack[RunOptionsWithEvents]) -> RunResult:
        """Do what `run` does without blocking the event loop; cancelling the task kills the run."""
        return await aio.run_in_thread(self.run, command, options)

    def stream(self, command: Command, **options: Unpack[RunOptions]) -> AsyncIterator[Event | RunResult]:
        """Yield events while a command runs, and its RunResult last."""
        return aio.stream_from_thread(self.run, command, options)

    def apply(
        self,
        selection: Selection | PathLike | Sequence[PathLike] = (),
        *,
        reviewed: ChangeSet | None = None,
        run: str | int | None = None,
        asked_by: str = "person",
        approver: Who = None,
        cancel_fd: int | None = None,
    ) -> Operation:
        """Apply what is held, or a part of it, to the project; what is not applied stays held.

        Args:
            selection: A path, several, or a Selection; empty for everything.
            reviewed: The changes that were looked at; anything else is left alone.
            run: Only what this run changed.
            asked_by: Who wants it, for the record. For anybody but `person` the approver is asked about held files.
            approver: Who is asked, instead of the sandbox's.
            cancel_fd: A descriptor that becomes readable to cancel; what was not begun then does not happen.

        Returns:
            What was done. `left` names every path that was not applied, and why; its number is 0 if none was.

        Raises:
            UsageError: the selection chooses nothing.
            ApplyFailed: the filesystem failed; nothing was changed.
            ProjectBusy: another operation on this project is under way.
            SandboxUnavailable: it was cancelled; nothing was changed.
        """
        request = review.make_apply_request(
            selection, reviewed=reviewed, run=run, asked_by=asked_by, cancel_fd=cancel_fd
        )
        is_asked = asked_by != "person" and (approver or self._approver) is not None
        broker = self._broker_of(approver) if is_asked else None
        return self._operate(lambda: apply.apply_in_turn(self._look(), request, broker))

    def undo(
        self,
        operation: str | int | None = None,
        *,
        asked_by: str = "person",
        cancel_fd: int | None = None,
        dry_run: bool = False,
    ) -> Operation:
        """Take an operation back, by default the last; what was changed since is left alone and named in `left`.

        With `dry_run` nothing is changed: `paths` and `left` of what is returned say what would be.

        Raises:
            UsageError: there is nothing to take back, or its backup is not kept any more.
            SandboxUnavailable: `cancel_fd` became readable before it was begun; nothing was changed.
        """
        if dry_run:
            return history.undo_operation(self._project, operation, asked_by, cancel_fd, is_dry=True)
        return self._operate(lambda: history.undo_operation(self._project, operation, asked_by, cancel_fd))

    def undo_session(
        self, session: str | None = None, *, to: int | None = None, asked_by: str = "person", dry_run: bool = False
    ) -> tuple[Operation, ...]:
        """Undo what a session changed, by default the last one; with `to`, what it changed after that operation.

        With `dry_run` nothing is changed: `paths` and `left` of what is returned say what would be.

        Returns:
            What was done, the newest first; what others have changed since is left, and named in `left`.

        Raises:
            UsageError: there is no such session, or nothing to undo.
        """
        apply.preload(self._project.roots)
        if dry_run:
            return sessions.undo_session(self._project, session, to, asked_by, is_dry=True)
        done = sessions.undo_session(self._project, session, to, asked_by)
        return tuple(record_operation(self._project.store, one, self._on_change) for one in done)

    def redo_session(self, session: str | None = None, *, asked_by: str = "person") -> tuple[Operation, ...]:
        """Redo what was undone of a session, by default of the last one; return what was done, the oldest first.

        Raises:
            UsageError: there is no such session, or nothing of it is undone.
        """
        apply.preload(self._project.roots)
        done = sessions.redo_session(self._project, session, asked_by)
        return tuple(record_operation(self._project.store, one, self._on_change) for one in done)

    def note_edit(self, call: str, paths: Sequence[PathLike]) -> None:
        """Remember what is at some paths before another program changes them; `call` names that change.

        Raises:
            UsageError: something can't be read.
        """
        sessions.note_files(self._project, call, [os.fsencode(path) for path in paths])

    def record_edit(self, call: str, *, asked_by: str) -> Operation | None:
        """Record as an operation what that program has changed there; None where that is nothing.

        Raises:
            ApplyFailed: it can't be recorded.
        """
        operation = sessions.record_files(self._project, call, asked_by)
        return None if operation is None else record_operation(self._project.store, operation, self._on_change)

    def add_prompt(self, text: str) -> None:
        """Remember what the person asked for in this session: a point to go back to."""
        self._project.store.sessions.add_prompt(self._project.path, text)

    def redo(self, operation: str | int | None = None, *, asked_by: str = "person") -> Operation:
        """Do again what an undo took back.

        Raises:
            UsageError: there is nothing to do again.
        """
        return self._operate(lambda: history.redo_operation(self._project, operation, asked_by))

    def restore(self, path: PathLike, backup: str | None = None, *, asked_by: str = "person") -> Operation:
        """Put a displaced version of a file back, by default the newest; as an operation, so it can be undone.

        Raises:
            UsageError: there is no such backup.
        """
        return self._operate(lambda: history.restore_path(self._project, os.fsencode(path), backup, asked_by))

    def discard(
        self, selection: Selection | PathLike | Sequence[PathLike] = (), *, asked_by: str = "person"
    ) -> Operation:
        """Discard what is held, or a part of it; as an operation, so it can be undone.

        Returns:
            What was done; its number is 0 if nothing was held.

        Raises:
            UsageError: the selection chooses nothing.
            SandboxUnavailable: a run that does not hold its changes still stands on what is held.
        """
        chosen = review.to_selection(selection)
        return self._operate(lambda: apply.discard_held(self._look(), chosen, asked_by))

    def empty_playground(self) -> Playground:
        """Delete everything in the project's scratch directory, for good; return what was there.

        Raises:
            SandboxUnavailable: a run of the project is going on.
            StoreError: something in it can't be deleted.
        """
        return upkeep.empty_playground(self._project.store, self._project.locations.data, self._project.path)

    def _operate(self, do: Callable[[], Operation]) -> Operation:
        apply.preload(self._project.roots)
        return record_operation(self._project.store, do(), self._on_change)

    def close(self) -> None:
        """Let go of the store. What is held stays held; what was dropped is removed when this returns."""
        if isinstance(self._project.store, _Closed):
            return
        if self._reused is not None:
            self._reused.close()
        wait_until_clean()
        self._project.store.close()
        self._project = self._project.replace(store=_Closed())

    def __enter__(self) -> Self:
        return self

    def __repr__(self) -> str:
        return f"Sandbox({self.directory!r}, name={self.name!r})"

    def __exit__(self, *_rest: object) -> None:
        self.close()


def open_temporary(policy_file: str | None = None, *, cancel_fd: int | None = None) -> Sandbox:
    """Make a directory and open a sandbox over it; its `/tmp` is kept from run to run.

    Args:
        policy_file: The policy as TOML; by default the person's configuration.
        cancel_fd: A descriptor that is readable where the caller does not want it any more.

    Raises:
        SandboxUnavailable: the caller gave up; nothing is left.
        UsageError: the file is not there, or says what can't be.
        HostError: this machine can't; the remedy says what to do.
        StoreError: the state directory can't be used.
    """
    import tempfile  # lazy: temporary sandboxes

    place = os.path.realpath(tempfile.gettempdir())
    # Not in /tmp: that is kept for the runs, and nothing that is mounted may lie in what they write
    usable = "/var/tmp" if contains(b"/tmp", os.fsencode(place)) else place
    directory = tempfile.mkdtemp(prefix="unspill-", dir=usable)
    try:
        with Sandbox(directory, name=TEMPORARY) as usual:
            project = usual._project
        policy = project.means.policy
        if policy_file is not None:
            policy = read_policy(os.fsencode(policy_file), project.home.path)
        policy = policy.replace(tmp="persistent", after="hold", secrets=Secrets(mask=False))
        sandbox = Sandbox(directory, name=TEMPORARY, policy=policy)
    except BaseException:
        remove_tree(os.fsencode(directory))
        raise
    try:
        refuse_given_up(cancel_fd)
    except SandboxUnavailable:
        remove_temporary(sandbox)
        raise
    return sandbox


def remove_temporary(sandbox: Sandbox) -> None:
    """Close such a sandbox and remove everything: its directory, what is held, /tmp and playground.

    Raises:
        SandboxUnavailable: a run of it still goes on.
    """
    data, project = sandbox._project.locations.data, sandbox.project
    sandbox.end_reuse()
    with lock_sandbox(sandbox._project.store.state, sandbox.id):
        # For good: nobody can want it back where the project itself goes
        discard_stacks(sandbox._project.store, sandbox.id)
    sandbox.close()
    for path in (project, playground_dir(data, project), tmp_dir(data, project, sandbox.name)):
        remove_tree(path)


def _let_go(project: Project) -> None:
    if has_news(project):
        apply.let_go(project)
