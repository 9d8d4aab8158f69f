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

There is one sandbox named `default` per project, reopened wherever it is asked for; other names are others. What is
held is seen by the next run of that sandbox. Runs of one sandbox follow one another.
"""

from __future__ import annotations

from unspill.sandbox.daily import do_daily
from unspill.sandbox.looking import Looking
from unspill.sandbox.opening import open_project, with_held_roots
from unspill.sandbox.project import check_name
from unspill.sandbox.requesting import make_request
from unspill.sandbox.running import RunWishes, run_request
from unspill.sandbox.settings import check_run, check_stdin
from unspill.sandbox.sweeping import hold_interrupted, sweep_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from typing import Any, Self

    from unspill.model.change import ChangeSet, Selection
    from unspill.model.operation import Operation
    from unspill.model.policy import After, Limits, Policy
    from unspill.model.run import Event
    from unspill.permissions.broker import Broker
    from unspill.sandbox.asking import Who
    from unspill.sandbox.requesting import Command, Request
    from unspill.sandbox.result import RunResult


class Sandbox(Looking):
    """A place to run commands in. Safe to use from several threads; see the module for a recipe."""

    def __init__(
        self,
        project: str | bytes | os.PathLike[str] | os.PathLike[bytes],
        *,
        name: str = "default",
        policy: Policy | None = None,
        approver: Who = None,
        may_fork: bool = False,
    ) -> None:
        """Open a sandbox; nothing runs yet.

        Args:
            project: The directory that commands may change, in a layer.
            name: Which sandbox of the project.
            policy: What it may see and use; by default the person's configuration file.
            approver: Who answers when more is wanted: an Approver, or the name of one: `terminal`, `queue`. By default
                nobody, and what would be asked is denied.
            may_fork: This process is small and has one thread, so the spawner may be a fork of it.

        Raises:
            UsageError: an argument or a setting is wrong.
            HostError: this machine can't; the remedy says what to do.
            DeniedError: the caller is root, and the approver said no to that.
            StoreError: the state directory can't be used.
        """
        check_name(name)
        self.name = name
        self._may_fork = may_fork
        self._approver = approver
        self._broker: Broker | None = None
        self._opened = open_project(project, name, policy, approver)
        self._recovered = sweep_once(self._opened.store, self._opened.facts)
        if self._recovered:
            from unspill.sandbox.recording import record_operation

            for operation in self._recovered:
                record_operation(self._opened.store, operation)
        self._interrupted = list(hold_interrupted(self._opened))
        do_daily(self._opened.store, self._opened.policy)

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
        cwd: str | None = None,
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
        readable: Sequence[str] = (),
        reveal: Sequence[str] = (),
        roots: Sequence[str] = (),
        unsandboxed: bool = False,
        approver: Who = None,
    ) -> RunResult:
        """Run a command and return when every process of it is dead.

        A command that fails is a result, not an exception. `on_event` is called in this thread while it runs. From
        `network` on it is more than the policy gives: each is asked for, unless a grant covers it; if one is denied,
        nothing runs. A Ctrl-C, or an exception of `on_event`, is raised when the changes are safe, with a note of what
        became of them.

        Args:
            command: A text for /bin/sh, or a list of words.
            cwd: Absolute, relative to the project, or `playground`; by default the project.
            env: Variables to set inside, on top of the allowed ones of this process.
            stdin: A text, bytes, or a descriptor to read from; by default /dev/null.
            timeout: Seconds; by default the policy's. `limits`: bounds instead of the policy's.
            after: `apply`, `hold` or `discard`; by default the policy's. `after_cancel`: the same, if it is cancelled;
                by default the policy's where `after` is `apply`, else as `after`.
            on_event: Called with Started, OutputChunk and Ended.
            cancel_fd: A descriptor that becomes readable to cancel.
            network: Any public host, for this command and this time; `hosts`: those named, besides the policy's.
            readable: Paths that it sees besides the policy's; `reveal`: secrets of the project that it sees.
            roots: Directories that it may change besides the policy's, each in a layer.
            unsandboxed: Run it as if the person had typed it: nothing is held, nothing can be undone.
            approver: Who answers for this run, instead of the sandbox's.

        Raises:
            UsageError: the command or the directory is wrong.
            DeniedError: the policy or the approver said no to something that is wanted; nothing was run.
            SandboxUnavailable: we failed, not the command.
        """
        bounds = self._opened.policy.limits if limits is None else limits
        bounds = bounds if timeout is None else bounds.replace(wall_s=timeout)
        wishes = self._wishes(stdin, after, after_cancel, bounds.wall_s)
        request = make_request(self._opened, command, cwd, env, bounds).replace(stdin=wishes.stdin)
        wishes = wishes.replace(on_event=on_event, cancel_fd=cancel_fd)
        more = {"network": network, "hosts": hosts, "readable": readable, "reveal": reveal, "roots": roots}
        return self._run(request, wishes, approver, {**more, "plain": unsandboxed})

    def _wishes(
        self, stdin: object, after: After | None, after_cancel: After | None, wall_s: float | None
    ) -> RunWishes:
        policy = self._opened.policy
        after = policy.after if after is None else after
        if after_cancel is None:
            after_cancel = policy.after_cancel if after == "apply" else after
        check_run(after, after_cancel, wall_s)
        return RunWishes(
            stdin=check_stdin(stdin),
            after=after,
            after_cancel=after_cancel,
            may_fork=self._may_fork,
            on_interrupted=self._interrupted.extend,
        )

    def _broker_of(self, approver: Who) -> Broker:
        if approver is None:
            return self.broker
        from unspill.sandbox.asking import make_broker

        return make_broker(self._opened.store, self._opened.policy, self._opened.locations, approver)

    def _run(self, request: Request, wishes: RunWishes, approver: Who, more: dict[str, Any]) -> RunResult:
        if self._opened.policy.network.ask:
            wishes = wishes.replace(broker=self._broker_of(approver))
        if any(more.values()):
            from unspill.sandbox.asking import run_with_more
            from unspill.sandbox.wanting import Wanted

            return run_with_more(self._opened, request, wishes, self._broker_of(approver), Wanted(**more))
        result = run_request(self._opened, request, wishes)
        # Not before: the command line loads it while the command begins
        from unspill.sandbox.recording import record_run

        return record_run(self._opened, request, result)

    async def arun(self, command: Command, **options: object) -> RunResult:
        """Do what `run` does without blocking the event loop; cancelling the task kills the run."""
        from unspill.sandbox.asynchronous import run_in_thread

        return await run_in_thread(self, command, options)

    def stream(self, command: Command, **options: object) -> AsyncIterator[Event | RunResult]:
        """Yield events while a command runs, and its RunResult last."""
        from unspill.sandbox.asynchronous import stream_from_thread

        return stream_from_thread(self, command, options)

    def apply(
        self,
        selection: Selection | Sequence[str | bytes] = (),
        *,
        reviewed: ChangeSet | None = None,
        run: str | int | None = None,
        asked_by: str = "person",
        approver: Who = None,
        cancel_fd: int | None = None,
    ) -> Operation:
        """Apply what is held, or a part of it, to the project; what is not applied stays held.

        Args:
            selection: Paths, or a Selection; empty for everything.
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
        from unspill.sandbox.choosing import make_wish
        from unspill.sandbox.held_asking import apply_in_turn

        wish = make_wish(selection, reviewed=reviewed, run=run, asked_by=asked_by, cancel_fd=cancel_fd)
        is_asked = asked_by != "person" and (approver or self._approver) is not None
        broker = self._broker_of(approver) if is_asked else None
        return self._operate(lambda: apply_in_turn(with_held_roots(self._opened), wish, broker))

    def undo(
        self, operation: str | int | None = None, *, asked_by: str = "person", cancel_fd: int | None = None
    ) -> Operation:
        """Take an operation back, by default the last; what was changed since is left alone and named in `left`.

        Raises:
            UsageError: there is nothing to take back, or its backup is not kept any more.
            SandboxUnavailable: `cancel_fd` became readable before it was begun; nothing was changed.
        """
        from unspill.sandbox.operations import undo_operation

        return self._operate(lambda: undo_operation(self._opened, operation, asked_by, cancel_fd))

    def redo(self, operation: str | int | None = None, *, asked_by: str = "person") -> Operation:
        """Do again what an undo took back.

        Raises:
            UsageError: there is nothing to do again.
        """
        from unspill.sandbox.operations import redo_operation

        return self._operate(lambda: redo_operation(self._opened, operation, asked_by))

    def restore(self, path: str | bytes, backup: str | None = None, *, asked_by: str = "person") -> Operation:
        """Put a displaced version of a file back, by default the newest; as an operation, so it can be undone.

        Raises:
            UsageError: there is no such backup.
        """
        from unspill.sandbox.restoring import restore_path

        raw = path if isinstance(path, bytes) else path.encode("utf-8", "surrogateescape")
        return self._operate(lambda: restore_path(self._opened, raw, backup, asked_by))

    def discard(self, selection: Selection | Sequence[str | bytes] = (), *, asked_by: str = "person") -> Operation:
        """Discard what is held, or a part of it; as an operation, so it can be undone.

        Returns:
            What was done; its number is 0 if nothing was held.

        Raises:
            UsageError: the selection chooses nothing.
            SandboxUnavailable: a run that does not hold its changes still stands on what is held.
        """
        from unspill.sandbox.discarding import discard_held
        from unspill.sandbox.selecting import to_selection

        chosen = to_selection(selection)
        return self._operate(lambda: discard_held(with_held_roots(self._opened), chosen, asked_by))

    def _operate(self, do: Callable[[], Operation]) -> Operation:
        from unspill.sandbox.preload import preload
        from unspill.sandbox.recording import record_operation

        preload(self._opened.roots)
        return record_operation(self._opened.store, do())

    def close(self) -> None:
        """Let go of the store. What is held stays held."""
        self._opened.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_rest: object) -> None:
        self.close()
