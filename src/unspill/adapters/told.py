# SPDX-License-Identifier: Apache-2.0
"""A command for a framework: what it printed, what we say of it, and how it ended, each apart from the others.

An adapter puts that into the places that its framework has. Our lines are marked by `[unspill]` where they must share a
text with the command's. Our failure is an exception, never a text.
"""

from __future__ import annotations

from unspill.adapters.advising import for_user
from unspill.adapters.answering import (
    REST,
    answer_error,
    changes_told,
    interrupted_notes,
    our_notes,
    own_failure,
)
from unspill.adapters.calling import read_arguments, shorter
from unspill.adapters.seen import seen_in
from unspill.errors import FileError, SandboxUnavailable, UsageError
from unspill.model.run import Exited, LimitReached, NeverStarted, Signalled, TimedOut
from unspill.record import Record
from unspill.sandbox.result import became, describe_end, stream_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from unspill.errors import UnspillError
    from unspill.model.policy import Policy
    from unspill.model.run import Output
    from unspill.sandbox.requesting import Command
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.sandbox import Sandbox

MARK = "[unspill]"
_USUAL = {"apply": "applied", "hold": "held"}


class Told(Record):
    """How a command ended. `printed` is what it wrote to stdout and to stderr, `notes` are our lines about it.

    `is_cut`: it printed more than is told. `late_s`: the time that was over, if it was. Not `was_started`: there is no
    such program (127) or it can't be run (126).
    """

    exit_code: int
    printed: tuple[bytes, bytes]
    notes: tuple[str, ...]
    is_cut: bool
    late_s: float | None
    was_started: bool

    @property
    def is_late(self) -> bool:
        return self.late_s is not None

    @property
    def stdout(self) -> str:
        """What it wrote there; what is not UTF-8 is U+FFFD."""
        return self.printed[0].decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """What it wrote there, and after that our notes."""
        return self.noted_stderr().decode("utf-8", "replace")

    def noted_stderr(self) -> bytes:
        """Return what it wrote to stderr, and after that our notes; where that looks like ours, the last says so."""
        stderr, lines = self.printed[1], self._marked()
        if MARK.encode() in stderr:
            own = f"the last {len(lines) + 1} are" if lines else "this last one is"
            lines.append(f"{MARK} Of the lines that are marked like this, only {own} not from the command.")
        between = b"\n" if lines and stderr and not stderr.endswith(b"\n") else b""
        return stderr + between + b"".join(f"{line}\n".encode("utf-8", "backslashreplace") for line in lines)

    def output(self) -> str:
        """Return what it wrote to stdout, and after that what it wrote to stderr."""
        stdout, stderr = (stream.decode("utf-8", "backslashreplace") for stream in self.printed)
        return stdout + ("\n" if stdout and stderr and not stdout.endswith("\n") else "") + stderr

    def noted_output(self) -> str:
        """Return our notes, and after a line that ends them what it printed: nothing in there can pass for a note."""
        output = self.output()
        if not self.notes and MARK not in output:
            return output
        end = f"{MARK} Output:" if output else f"{MARK} The command printed nothing."
        return "\n".join([*self._marked(), end, output])

    def _marked(self) -> list[str]:
        return [f"{MARK} {note}" for note in self.notes]


def run_told(sandbox: Sandbox, command: Command, most: int | None = None, **options: Any) -> Told:
    """Run a command and tell at most `most` bytes of each stream, by default what the policy keeps.

    The options are those of `Sandbox.run`.

    Raises:
        UsageError: the command or the directory is wrong.
        DeniedError: nothing was run, because the policy or the person said no.
        SandboxUnavailable: we failed, not the command.
    """
    result = run_or_raise(sandbox, command, most, **options)
    streams = (result.stdout, result.stderr)
    notes = [*interrupted_notes(sandbox), *notes_of(result, seen_in(sandbox).policy)]
    if most is None and (left_out := sum(stream.left_out for stream in streams)):
        notes.append(f"Note: {left_out} bytes are left out where the output says so. {REST}")
    is_over = isinstance(result.outcome, LimitReached) and result.outcome.limit == "output"
    return Told(
        exit_code=result.exit_code,
        printed=(_shown(result.stdout, most), _shown(result.stderr, most)),
        notes=tuple(notes),
        is_cut=is_over or any(stream.left_out or (most is not None and stream.total > most) for stream in streams),
        late_s=result.outcome.after_s if isinstance(result.outcome, TimedOut) else None,
        was_started=not isinstance(result.outcome, NeverStarted),
    )


def call_told(sandbox: Sandbox, command: str, timeout_s: float | None, cancel_fd: int | None) -> Told:
    """Run what a model asks for, within the time of the policy, and tell it.

    Raises:
        UsageError: such a command or such a time can't be.
        SandboxUnavailable: we failed, not the command.
    """
    options = read_arguments(sandbox, {"command": command, "timeout_s": timeout_s})
    return run_told(sandbox, **options, cancel_fd=cancel_fd)


def run_words(
    sandbox: Sandbox, words: list[str], *, env: dict[str, str], timeout: float | None, cancel_fd: int | None
) -> Told:
    """Run a program for a framework that has nothing but an exit code for what the caller did wrong: that is 2.

    Raises:
        FileError: it lists a directory, and has more to say than is kept: part of it would be taken for all.
        SandboxUnavailable: we failed, not the command.
    """
    try:
        told = run_told(sandbox, words, env=env, timeout=shorter(sandbox, timeout), cancel_fd=cancel_fd)
    except UsageError as error:
        notes = (failure_text(error),)
        return Told(exit_code=2, printed=(b"", b""), notes=notes, is_cut=False, late_s=None, was_started=False)
    if told.is_cut and words[0] == "ls":
        raise FileError("the listing is too long", kind="too_large", remedy="List directories in it.")
    return told


def run_or_raise(sandbox: Sandbox, command: Command, most: int | None = None, **options: Any) -> RunResult:
    """Run a command; that we failed is raised, whatever it was, and without a path of the host."""
    if options.get("timeout") == float("inf"):
        raise UsageError("the timeout must be a finite number of seconds")
    if most is not None:
        options["limits"] = seen_in(sandbox).policy.limits.replace(kept_bytes=most)
    try:
        result = sandbox.run(command, **options)
    except OSError as error:
        raise own_failure(error) from error
    outcome = result.outcome
    if isinstance(outcome, NeverStarted) and outcome.exit_code == 125:
        raise SandboxUnavailable(f"the sandbox could not be started: {outcome.reason}", remedy=outcome.remedy)
    return result


def failure_text(error: UnspillError) -> str:
    """Return what is said where nothing was done: why, and what would help."""
    if isinstance(error, FileError):
        # The tool's own advice names tools of ours
        return f"{error.message}. {for_user(error.remedy)}".rstrip()
    return answer_error(error).text.removeprefix("ERROR: ").rstrip()


def notes_of(result: RunResult, policy: Policy, *, tells_changes: bool = False) -> Iterator[str]:
    """Yield what the exit code and the output do not say of a run: why it was ended, and what was refused.

    What became of changes is among it if that is not what usually does, or with `tells_changes`.
    """
    outcome = result.outcome
    if isinstance(outcome, NeverStarted):
        yield f"The command could not be started: {outcome.reason}."
    elif not isinstance(outcome, Exited | Signalled):
        yield describe_end(outcome).partition("\n")[0]
    if not result.sandboxed:
        yield from (f"Note: {warning}" for warning in result.warnings)
    # Nothing more can be asked for where only a command is given
    yield from our_notes(result, policy.replace(permissions=policy.permissions.replace(network="deny")))
    if tells_changes or any(state != _USUAL.get(policy.after) for state, _lines in became(result)):
        yield from changes_told(result)


def _shown(stream: Output, most: int | None) -> bytes:
    """Return what is told of a stream, with a mark where something is left out."""
    if most is not None:
        return stream.kept()[:most]
    return stream_bytes(stream)
