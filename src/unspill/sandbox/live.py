# SPDX-License-Identifier: Apache-2.0
"""A live sandbox: one that stays between commands, for whoever has many short ones.

    with Sandbox("/path/to/project") as sandbox, sandbox.live() as live:
        live.run("make test")
        live.run("git status")        # a fifth of the time

Each command has layers of its own and a result of its own, as with `Sandbox.run`. What stays is all else: `/tmp`, the
home directory, and what was read of the machine when the sandbox was built. Built anew it is where a command
needs another one: when the tools of the machine or the policy have changed.
"""

from __future__ import annotations

from _thread import allocate_lock

from unspill.errors import HostError, UsageError
from unspill.runner.live import LiveSandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from unspill.model.policy import After, Limits
    from unspill.model.run import Event
    from unspill.sandbox.planning import Command
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox


_PLAIN = "Use `Sandbox.run` for this one."


class Live:
    """A sandbox that stays alive. Its commands follow one another, from whichever threads they come."""

    def __init__(self, sandbox: Sandbox) -> None:
        project = sandbox._project
        project.means.check_sandbox()
        if project.means.engine != "mount" or not project.means.facts.own_namespace:
            raise HostError(
                "A live sandbox is not possible here: unspill needs namespaces of its own for it.",
                remedy="Use `Sandbox.run`; `unspill doctor` shows what is missing.",
            )
        if project.means.policy.rootfs_writable:
            raise HostError("A live sandbox can't have a rootfs that commands write to.", remedy="Use `Sandbox.run`.")
        self._sandbox = sandbox
        self._live = LiveSandbox(project.means.facts)
        self._lock = allocate_lock()
        self._is_closed = False

    def run(
        self,
        command: Command,
        *,
        working_dir: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str | bytes | int | None = None,
        timeout: float | None = None,
        limits: Limits | None = None,
        after: After | None = None,
        after_cancel: After | None = None,
        on_event: Callable[[Event], None] | None = None,
        cancel_fd: int | None = None,
    ) -> RunResult:
        """Run a command in this sandbox and return when every process that it started is dead.

        Arguments and result are those of `Sandbox.run`. What that may ask for beyond the policy needs a sandbox of its
        own.

        Raises:
            UsageError: the command or the directory is wrong, the limits are others than the sandbox was built with,
                or it is closed.
            SandboxUnavailable: we failed, not the command.
        """
        with self._lock:
            if self._is_closed:
                raise UsageError("this live sandbox is closed", remedy="Make another one with `Sandbox.live`.")
            return self._sandbox._run_live(
                self._live,
                command,
                working_dir=working_dir,
                env=env,
                stdin=stdin,
                bounds=self._bounds(timeout, limits),
                after=after,
                after_cancel=after_cancel,
                on_event=on_event,
                cancel_fd=cancel_fd,
            )

    def _bounds(self, timeout: float | None, limits: Limits | None) -> Limits:
        built = self._sandbox.policy.limits
        wanted = built if limits is None else limits
        # These two are the caller's to watch; the others are set when the sandbox is built
        if wanted.replace(wall_s=built.wall_s, output_bytes=built.output_bytes) != built:
            raise UsageError("a live sandbox keeps the limits that it was built with", remedy=_PLAIN)
        return wanted if timeout is None else wanted.replace(wall_s=timeout)

    def close(self) -> None:
        """End the sandbox; return when every process of it is dead."""
        with self._lock:
            self._is_closed = True
            self._live.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_rest: object) -> None:
        self.close()
