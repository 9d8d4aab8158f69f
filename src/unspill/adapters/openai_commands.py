# SPDX-License-Identifier: Apache-2.0
"""How commands of a SandboxAgent (OpenAI agents SDK) become runs of a sandbox.

What we have to say of a command stands at the end of its standard error, marked by `[unspill]`: the SDK has no other
place for it. How it ended is told by the SDK, before anything that it printed. Our failure is an exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from agents.sandbox.errors import ExecTimeoutError, ExecTransportError
from agents.sandbox.session import BaseSandboxSession, SandboxSessionState
from agents.sandbox.types import ExecResult

from unspill.adapters.openai_words import failure_of, is_our_failure, words_of
from unspill.errors import UnspillError, UsageError
from unspill.model.change import ChangeSet
from unspill.model.run import TimedOut

if TYPE_CHECKING:
    from pathlib import Path

    from agents.sandbox.types import User

    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox


class UnspillState(SandboxSessionState):
    """What a later run of an agent needs to find the sandbox again."""

    type: Literal["unspill"] = "unspill"
    sandbox_id: str


class UnspillCommands(BaseSandboxSession):
    """Runs commands in a sandbox. There is nothing to start or to end: each is a run of its own."""

    def __init__(self, sandbox: Sandbox, state: UnspillState) -> None:
        self.state = state
        self._sandbox = sandbox
        self._is_open = False

    async def running(self) -> bool:
        return self._is_open

    async def _after_start(self) -> None:
        self._is_open = True

    async def _after_shutdown(self) -> None:
        self._is_open = False

    def _prepare_exec_command(
        self, *command: str | Path, shell: bool | list[str], user: str | User | None
    ) -> list[str]:
        check_user(user)
        return super()._prepare_exec_command(*command, shell=shell, user=None)

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        words = [str(word) for word in command]
        bound = self._sandbox._opened.policy.limits.wall_s
        # A bound of the policy that comes first is told as that
        own = timeout if timeout is not None and (bound is None or timeout < bound) else None
        if own is not None and own <= 0:
            raise ExecTimeoutError(command=words, timeout_s=own)
        try:
            result = await self._run(words, timeout=own)
        except UsageError as error:
            return ExecResult(stdout=b"", stderr=_marked([failure_of(self._sandbox, error)]), exit_code=2)
        except UnspillError as error:
            raise ExecTransportError(command=words, message=failure_of(self._sandbox, error), cause=error) from error
        if is_our_failure(result):
            raise ExecTransportError(command=words, message=failure_of(self._sandbox, result))
        if isinstance(result.outcome, TimedOut) and own is not None:
            raise ExecTimeoutError(command=words, timeout_s=own)
        if result.stdout.left_out and words[0] == "ls":
            # The SDK would take what meets in the middle for a name
            raise ExecTransportError(command=words, message="the listing is too long. List directories in it.")
        return ExecResult(stdout=result.stdout.kept(), stderr=self._stderr(result), exit_code=result.exit_code)

    async def _run(self, words: list[str], **options: Any) -> RunResult:
        """Run a command in the project, with the variables of the manifest."""
        return await self._sandbox.arun(words, env=await self.state.manifest.environment.resolve(), **options)

    def _stderr(self, result: RunResult) -> bytes:
        """Return what the command said there, and after it what we say, changes only if not all are applied or held."""
        is_usual = not result.problem and (result.operation is None or not result.operation.left)
        quiet = result.replace(changes=ChangeSet(roots=()), operation=None) if is_usual else result
        said = [line for line in words_of(self._sandbox, quiet) if not line.startswith("Exit code: ")]
        for name, stream in (("stdout", result.stdout), ("stderr", result.stderr)):
            if stream.left_out:
                said.append(f"Of {name}, {stream.left_out} bytes after the first {len(stream.head)} are left out.")
        raw = result.stderr.kept()
        return raw + (b"\n" if said and raw and not raw.endswith(b"\n") else b"") + _marked(said)


def check_user(user: str | User | None) -> None:
    """Refuse to act as somebody else.

    Raises:
        UsageError: a user is named.
    """
    if user is not None:
        remedy = "Leave `run_as` and `user` out."
        raise UsageError(f"there is one user in the sandbox. {remedy}", remedy=remedy)


def _marked(lines: list[str]) -> bytes:
    return "".join(f"[unspill] {line}\n" for line in lines).encode("utf-8", "backslashreplace")
