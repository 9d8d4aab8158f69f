# SPDX-License-Identifier: Apache-2.0
"""The facade: a project, a policy and a stack of layers behind one object.

    with Sandbox("/path/to/project") as sandbox:
        result = sandbox.run("make test")          # a shell text, or a list of words
        result.exit_code, result.stdout.head       # what the command did and said
        sandbox.changes(); sandbox.diff()          # what is held; the project is not touched
        sandbox.discard()

There is one sandbox named `default` per project, reopened wherever it is asked for; other names are others. What a
run leaves is held and seen by the next run of that sandbox. Runs of one sandbox follow one another.
"""

from __future__ import annotations

from unspill.errors import UsageError
from unspill.sandbox.opening import open_project
from unspill.sandbox.planning import get_places, make_plan, make_request
from unspill.sandbox.running import RunWishes, discard_held, run_request, sweep_once

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from typing import Self

    from unspill.model.change import ChangeSet
    from unspill.model.event import Event
    from unspill.model.facts import Facts
    from unspill.model.plan import Plan
    from unspill.model.policy import After, EngineName, Limits, Policy
    from unspill.model.run import Run
    from unspill.sandbox.result import RunResult

    Command = str | bytes | Sequence[str | bytes]

_NAME_LENGTH = 64


class Sandbox:
    """A place to run commands in. Safe to use from several threads; see the module for a recipe."""

    def __init__(
        self,
        project: str | bytes | os.PathLike[str] | os.PathLike[bytes],
        *,
        name: str = "default",
        policy: Policy | None = None,
        may_fork: bool = False,
    ) -> None:
        """Open a sandbox; nothing runs yet.

        Args:
            project: The directory that commands may change, in a layer.
            name: Which sandbox of the project.
            policy: What it may see and use; by default the person's configuration file.
            may_fork: This process is small and has one thread, so the spawner may be a fork of it.

        Raises:
            UsageError: an argument or a setting is wrong.
            HostError: this machine can't; the remedy says what to do.
            StoreError: the state directory can't be used.
        """
        if not name or len(name) > _NAME_LENGTH or not name.isprintable() or "/" in name:
            raise UsageError(
                f"not a name for a sandbox: {name!r}", remedy="Use up to 64 printable characters, no slash."
            )
        self.name = name
        self._may_fork = may_fork
        self._opened = open_project(project, name, policy)
        sweep_once(self._opened.store, self._opened.facts)

    @property
    def project(self) -> bytes:
        """The real path of the project."""
        return self._opened.project

    @property
    def facts(self) -> Facts:
        """What this host can do."""
        return self._opened.facts

    @property
    def engine(self) -> EngineName:
        """How layers are put over the project here."""
        return self._opened.engine

    def run(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | int | None = None,
        timeout: float | None = None,
        limits: Limits | None = None,
        after: After | None = None,
        on_event: Callable[[Event], None] | None = None,
        cancel_fd: int | None = None,
    ) -> RunResult:
        """Run a command and return when every process of it is dead.

        A command that fails is a result, not an exception. `on_event` is called in this thread while it runs.

        Args:
            command: A text for /bin/sh, or a list of words.
            cwd: Absolute, relative to the project, or `playground`; by default the project.
            env: Variables to set inside, on top of the allowed ones of this process.
            stdin: Bytes, or a descriptor to read from; by default /dev/null.
            timeout: Seconds; by default the policy's.
            limits: Bounds instead of the policy's.
            after: `hold` or `discard`; by default the policy's.
            on_event: Called with Started, OutputChunk and Ended.
            cancel_fd: A descriptor that becomes readable to cancel.

        Raises:
            UsageError: the command or the directory is wrong.
            SandboxUnavailable: we failed, not the command.
        """
        bounds = self._opened.policy.limits if limits is None else limits
        if timeout is not None:
            bounds = bounds.replace(wall_s=timeout)
        request = make_request(self._opened, command, cwd, env, bounds)
        wishes = RunWishes(
            stdin=stdin,
            after=self._opened.policy.after if after is None else after,
            on_event=on_event,
            cancel_fd=cancel_fd,
            may_fork=self._may_fork,
        )
        return run_request(self._opened, request, wishes)

    async def arun(self, command: Command, **options: object) -> RunResult:
        """Do what `run` does without blocking the event loop; cancelling the task kills the run."""
        from unspill.sandbox.asynchronous import run_in_thread

        return await run_in_thread(self, command, options)

    def stream(self, command: Command, **options: object) -> AsyncIterator[Event | RunResult]:
        """Yield events while a command runs, and its RunResult last."""
        from unspill.sandbox.asynchronous import stream_from_thread

        return stream_from_thread(self, command, options)

    def changes(self, *, run: str | int | None = None) -> ChangeSet:
        """Return what is held against the live project, or what one held run changed."""
        from unspill.sandbox.reading import changes_of

        return changes_of(self._opened, run)

    def summary(self, *, run: str | int | None = None, colour: bool = False) -> list[str]:
        """Return what is held as lines for a person: counts, one line a path, renames recognised."""
        from unspill.sandbox.reading import summary_of

        return summary_of(self._opened, run, colour=colour)

    def diff(self, paths: Sequence[str] = (), *, run: str | int | None = None, colour: bool = False) -> str:
        """Return what is held as text: unified diffs, safe to print."""
        from unspill.sandbox.reading import diff_of

        return diff_of(self._opened, paths, run, colour=colour)

    def discard(self) -> int:
        """Throw away all that is held; return how many layers that were."""
        return discard_held(self._opened)

    def runs(self, *, limit: int = 20) -> tuple[Run, ...]:
        """Return the latest runs, the youngest first."""
        return self._opened.store.runs.latest(self._opened.row.id, limit)

    def find_run(self, run: str | int) -> Run:
        """Return one run by number or id.

        Raises:
            UsageError: there is none.
        """
        from unspill.sandbox.reading import get_run

        return get_run(self._opened, run)

    def plan(self, command: Command, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> Plan:
        """Return the sandbox that `run` would make, as data; its layer's directories are only named, not made."""
        from unspill.sandbox.reading import stacks_as_if

        request = make_request(self._opened, command, cwd, env, None)
        places = get_places(self._opened)
        return make_plan(self._opened, request, places, *stacks_as_if(self._opened, places))

    def explain(self, command: Command, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> str:
        """Return the plan as text, with the reason for each line and one command that makes the same sandbox."""
        from unspill.plan.explain import explain

        return explain(self.plan(command, cwd=cwd, env=env), self._opened.facts)

    def close(self) -> None:
        """Let go of the store. What is held stays held."""
        self._opened.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_rest: object) -> None:
        self.close()
