# SPDX-License-Identifier: Apache-2.0
"""A sandbox as the backend of LangChain deep agents: `create_deep_agent(..., backend=make_backend(sandbox))`.

What we say of a command comes before what it printed, each line marked, and nothing that it prints can pass for that.
Where nothing was run, a model is shown an error of the tool.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, TypeVar

from deepagents.backends import CompositeBackend
from deepagents.backends.protocol import DeleteResult, ExecuteResponse
from deepagents.backends.sandbox import BaseSandbox

from unspill.adapters.answering import answer_error, answer_run
from unspill.adapters.calling import read_arguments
from unspill.adapters.deepagents_files import FilesOfSandbox, cancellable
from unspill.adapters.deepagents_words import tell_output, tell_run
from unspill.adapters.tool import places_inside
from unspill.errors import SandboxUnavailable, UnspillError, UsageError
from unspill.model.run import NeverStarted

if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.adapters.answering import Answer
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox

Found = TypeVar("Found")
_NO_SUCH_FILE = 66


def make_backend(sandbox: Sandbox) -> CompositeBackend:
    """Return a backend that puts what is too long for a model into the playground, where commands can read it too."""
    return CompositeBackend(UnspillSandbox(sandbox), {}, artifacts_root=f"{places_inside(sandbox)[1]}/.deepagents")


class NotRun(SandboxUnavailable, NotImplementedError):
    """Nothing was run. Of this kind deep agents make an error of the tool; most others would end the agent."""


def _by_script(method: Callable[..., Found]) -> Callable[..., Found]:
    """Return a method of the framework's that runs a script of its own, async or not."""
    return lambda self, *words, **options: method(_Scripts(self.sandbox), *words, **options)


class UnspillSandbox(FilesOfSandbox):
    """Runs the commands of an agent in a sandbox, and reads and writes its files."""

    @property
    def id(self) -> str:
        return self.sandbox.name

    @property
    def working_dir(self) -> str:
        """Where commands see the project."""
        return places_inside(self.sandbox)[0]

    def execute(self, command: str, *, timeout: int | None = None, cancel_fd: int | None = None) -> ExecuteResponse:
        """Run a command; `timeout` only makes the policy's time shorter.

        Raises:
            NotRun: the sandbox failed.
            ValueError: such a command or such a time can't be.
        """
        return tell_run(self._run(command, timeout, cancel_fd), self.sandbox._opened.policy)

    aexecute = cancellable(execute)

    def _run(self, command: str, timeout: int | None, cancel_fd: int | None) -> RunResult:
        try:
            options = read_arguments(self.sandbox, {"command": command, "timeout_s": timeout or None})
            result = self.sandbox.run(**options, cancel_fd=cancel_fd)
        except UsageError as error:
            raise ValueError(_bare(answer_error(error))) from error
        except UnspillError as error:
            raise NotRun(_bare(answer_error(error))) from error
        if isinstance(result.outcome, NeverStarted) and result.outcome.exit_code == 125:
            raise NotRun(_bare(answer_run(result)))
        return result

    def delete(self, file_path: str, *, cancel_fd: int | None = None) -> DeleteResult:
        name = quote(file_path)
        script = f"[ -e {name} ] || [ -L {name} ] || exit {_NO_SUCH_FILE}; rm -rf -- {name}"
        done = _Scripts(self.sandbox).execute(script, cancel_fd=cancel_fd)
        if done.exit_code == 0:
            return DeleteResult(path=file_path)
        why = "not found" if done.exit_code == _NO_SUCH_FILE else done.output.strip()
        return DeleteResult(error=f"Error: '{file_path}': {why}")

    adelete = cancellable(delete)
    grep, agrep = _by_script(BaseSandbox.grep), _by_script(BaseSandbox.agrep)
    glob, aglob = _by_script(BaseSandbox.glob), _by_script(BaseSandbox.aglob)


class _Scripts(UnspillSandbox):
    """For the framework's own scripts: a program reads what they print, so nothing of ours stands before it."""

    def execute(self, command: str, *, timeout: int | None = None, cancel_fd: int | None = None) -> ExecuteResponse:
        try:
            return tell_output(self._run(command, timeout, cancel_fd))
        except (NotRun, ValueError) as error:
            # Without an exit code, which would be read as that of the script
            return ExecuteResponse(output=f"ERROR: {error}")

    aexecute = cancellable(execute)


def _bare(answer: Answer) -> str:
    return answer.text.removeprefix("ERROR: ").strip()
