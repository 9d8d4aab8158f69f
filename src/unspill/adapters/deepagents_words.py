# SPDX-License-Identifier: Apache-2.0
"""What a model reads of a command or of an error, in the places that deep agents have for it.

Our own lines are marked, and come before all that the command printed: nothing in there can pass for one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deepagents.backends.protocol import ExecuteResponse

from unspill.adapters.advising import for_user
from unspill.adapters.answering import changes_told, our_notes
from unspill.errors import FileError
from unspill.model.run import Exited, Signalled
from unspill.sandbox.result import became, describe_end, stream_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.errors import UnspillError
    from unspill.model.policy import Policy
    from unspill.sandbox.result import RunResult

MARK = "[unspill]"
_REST = "Write it to a file, and read the part that you need, to see the rest."
_USUAL = {"apply": "applied", "hold": "held"}
# The framework's tools look for some of these
_WORDS = {"not_found": "file_not_found", "not_found_in_file": "string not found", "ambiguous": "multiple occurrences"}


def tell_error(error: UnspillError) -> str:
    """Return what is wrong: the framework's word for it if there is one, ours, and what would help."""
    word = _WORDS.get(error.kind, error.kind) if isinstance(error, FileError) else error.code
    return f"{word}: {error.message}. {for_user(error.remedy)}".rstrip()


def tell_output(result: RunResult) -> ExecuteResponse:
    """Return what a command printed, and nothing else."""
    stdout, stderr = stream_text(result.stdout), stream_text(result.stderr)
    between = "\n" if stdout and stderr and not stdout.endswith("\n") else ""
    is_cut = bool(result.stdout.left_out or result.stderr.left_out)
    return ExecuteResponse(output=stdout + between + stderr, exit_code=result.exit_code, truncated=is_cut)


def tell_run(result: RunResult, policy: Policy) -> ExecuteResponse:
    """Return what a command printed, after what its exit code does not say."""
    response = tell_output(result)
    said = [f"{MARK} {line}" for line in _notes(result, policy)]
    if said or MARK in response.output:
        said.append(f"{MARK} Output:" if response.output else f"{MARK} The command printed nothing.")
        response.output = "\n".join([*said, response.output])
    return response


def _notes(result: RunResult, policy: Policy) -> Iterator[str]:
    """Yield why it was ended, what was refused, what became of changes if not what usually does, what is left out."""
    if not isinstance(result.outcome, Exited | Signalled):
        yield describe_end(result.outcome).partition("\n")[0]
    # The framework's tool has no argument to ask for the network
    yield from our_notes(result, policy.replace(permissions=policy.permissions.replace(network="deny")))
    if any(state != _USUAL.get(policy.after) for state, _lines in became(result)):
        yield from changes_told(result)
    if left_out := result.stdout.left_out + result.stderr.left_out:
        yield f"Note: {left_out} bytes are left out where the output says so. {_REST}"
