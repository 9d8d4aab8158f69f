# SPDX-License-Identifier: Apache-2.0
"""Sandboxes for evaluations of inspect-ai: `sandbox="unspill"`, or `("unspill", "unspill.toml")` for another policy.

Each sample has a sandbox over a directory of its own, with nothing of the person's: samples run side by side, and what
they leave goes with them. There is nobody to ask, so what the policy does not give is not to be had.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar

from inspect_ai import util

from unspill.adapters.aio import do_in_thread
from unspill.adapters.files import Workspace, places_of
from unspill.sandbox.files import MOST_BYTES
from unspill.sandbox.sandbox import open_temporary, remove_temporary

if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.sandbox.sandbox import Sandbox

Found = TypeVar("Found")
LIMITS = util.SandboxEnvironmentLimits


class CommandTimedOut(TimeoutError):
    """The time was over; inspect-ai shows a model what it finds in `truncated_output`."""

    def __init__(self, printed: str) -> None:
        super().__init__("the command was ended: its time was over")
        self.truncated_output = printed


@util.sandboxenv(name="unspill")
class UnspillEnvironment(util.SandboxEnvironment):
    """The place of one sample. What commands change is held in `sandbox`; they run one after another."""

    def __init__(self, sandbox: Sandbox) -> None:
        super().__init__()
        self.sandbox = sandbox
        self._files = Workspace(sandbox)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> util.ExecResult[str]:
        own, most = places_of(self.sandbox).user, LIMITS.MAX_EXEC_OUTPUT_SIZE
        if user not in (None, own, "0" if own == "root" else str(os.getuid())):
            raise util.SandboxUserUnsupportedError(f"commands run as {own}, never as {user!r}")
        if any("\0" in word for word in cmd):
            raise ValueError("embedded null byte in the command")
        options: Any = {"working_dir": cwd, "env": env, "timeout": timeout}
        options["stdin"] = input.encode() if isinstance(input, str) else input
        output = await _do(lambda fd: self._files.run(cmd, most, cancel_fd=fd, **options))
        if output.is_late:
            raise CommandTimedOut(output.stdout + output.stderr)
        if output.is_cut:
            raise util.OutputLimitExceededError(LIMITS.MAX_EXEC_OUTPUT_SIZE_STR, output.stdout)
        if output.exit_code == 126 and not output.was_started:
            raise PermissionError(output.stderr)
        return util.ExecResult(output.exit_code == 0, output.exit_code, output.stdout, output.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        await _do(lambda fd: self._files.write(file, contents, cancel_fd=fd))

    async def read_file(self, file: str, text: bool = True) -> Any:
        most = min(LIMITS.MAX_READ_FILE_SIZE, MOST_BYTES)
        content = await _do(lambda fd: self._files.read(file, most, cancel_fd=fd))
        return content.decode() if text else content

    @classmethod
    def config_files(cls) -> list[str]:
        return ["unspill.toml"]

    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        # What is missing on this machine, or wrong in the policy, is said before the first sample
        await cls.sample_cleanup(task_name, config, await cls.sample_init(task_name, config, {}), interrupted=False)

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, Any]:
        sandbox = await _do(lambda fd: open_temporary(config, cancel_fd=fd), util.SandboxUnavailableError)
        return {"default": cls(sandbox)}

    @classmethod
    async def sample_cleanup(cls, task_name: str, config: Any, environments: dict[str, Any], interrupted: bool) -> None:
        await _do(lambda _fd: remove_temporary(environments["default"].as_type(cls).sandbox))


async def _do(work: Callable[[int], Found], usage: type[Exception] = FileNotFoundError) -> Found:
    """Do something in a thread; what goes wrong is raised as inspect-ai has it, what a caller did wrong as `usage`."""
    failed, kinds = util.SandboxUnavailableError, {"too_large": _too_large}
    return await do_in_thread(work, failed=failed, usage=usage, kinds=kinds)


def _too_large(_text: str) -> Exception:
    return util.OutputLimitExceededError(LIMITS.MAX_READ_FILE_SIZE_STR, None)
