# SPDX-License-Identifier: Apache-2.0
"""What is said of a run, and what is shown of its output, for the OpenAI agents SDK, which keeps both apart.

The words are those of the tool: nothing here says it in others.
"""

from __future__ import annotations

from unspill.adapters.answering import answer_error, answer_run
from unspill.errors import UnspillError
from unspill.model.run import NeverStarted, Output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox

REST = "Write it to a file, and read the part that you need, to see the rest."


def words_of(sandbox: Sandbox, result: RunResult) -> list[str]:
    """Return the lines that a model is told of a run: how it ended, what was refused, what it changed."""
    silent = result.replace(stdout=Output(), stderr=Output())
    # The last one says that nothing was printed
    return answer_run(silent, policy=sandbox._opened.policy).text.splitlines()[:-1]


def failure_of(sandbox: Sandbox, failed: UnspillError | RunResult) -> str:
    """Return what a model is told where nothing was run."""
    policy = sandbox._opened.policy
    answer = answer_error(failed, policy=policy) if isinstance(failed, UnspillError) else answer_run(failed)
    return answer.text.strip()


def is_our_failure(result: RunResult) -> bool:
    """Tell whether a command was not run because of us."""
    return isinstance(result.outcome, NeverStarted) and result.outcome.exit_code == 125


def shown_of(result: RunResult) -> tuple[list[str], list[str]]:
    """Return stdout and stderr as far as the policy shows them, and what to say of the rest."""
    shown, left_out = [], 0
    for stream in (result.stdout, result.stderr):
        raw = (stream.head if stream.left_out else stream.kept()).rstrip(b"\n")
        cut = b"\n".join(raw.split(b"\n")[: result.shown_lines])[: result.shown_bytes]
        shown.append(cut.decode("utf-8", "backslashreplace"))
        left_out += stream.total - len(cut) if stream.left_out or cut != raw else 0
    return shown, [f"Note: the output is cut: {left_out} bytes are left out. {REST}"] if left_out else []
