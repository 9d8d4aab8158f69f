# SPDX-License-Identifier: Apache-2.0
"""Runs one probe as a process with a bound on its time and output, and reads what it answered.

Knows nothing of what is asked. Nothing of the caller's is given to the process but a few variables.
"""

from __future__ import annotations

import os
import sys

from unspill.host.job import is_dead
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Answers = dict[str, tuple[int, str]]

TIMEOUT_S = 15.0
_SHOWN = 300
_MOST = 1 << 20
_SIGKILL = 9
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from unspill.host.probe_child import main; main(sys.argv[1:])"
)


class Ended(Record):
    """How a process ended: `reason` is empty if it exited with 0."""

    reason: str
    stdout: bytes


def run_bounded(argv: Sequence[bytes], *, cwd: bytes = b"/", timeout_s: float = TIMEOUT_S) -> Ended:
    """Run a program to its end, or kill it, and all that it started; never raises for what the program does."""
    import subprocess

    # Files and not pipes: a pipe has no end while anything that the program started is alive
    stdout, stderr = (os.memfd_create("probe", os.MFD_CLOEXEC) for _ in range(2))
    try:
        with subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            env={b"PATH": b"/usr/bin:/bin", b"LC_ALL": b"C"},
            process_group=0,
        ) as program:
            is_in_time = _end_group(program.pid, timeout_s)
        if not is_in_time:
            return Ended(reason=f"no answer in {timeout_s:g} seconds", stdout=b"")
        reason = _reason(program.returncode, os.pread(stderr, _MOST, 0))
        return Ended(reason=reason, stdout=os.pread(stdout, _MOST, 0))
    except OSError as error:
        return Ended(reason=f"{os.fsdecode(argv[0])}: {error.strerror}", stdout=b"")
    finally:
        os.close(stdout)
        os.close(stderr)


def _end_group(leader: int, timeout_s: float) -> bool:
    """Wait for a program, kill its group while nobody has reaped it, and tell whether it ended in time by itself.

    A bwrap that is killed while it starts up leaves a child that waits for it for ever.
    """
    try:
        pidfd = os.pidfd_open(leader)
    except ProcessLookupError:
        return True  # the caller ignores SIGCHLD, so the kernel has reaped it already
    try:
        return is_dead(pidfd, int(timeout_s * 1000))
    finally:
        os.close(pidfd)
        _try_kill_group(leader)


def _try_kill_group(leader: int) -> None:
    try:
        os.killpg(leader, _SIGKILL)
    except ProcessLookupError:
        return


def _reason(code: int, stderr: bytes) -> str:
    if code == 0:
        return ""
    said = stderr.decode("utf-8", "replace").strip()[-_SHOWN:]
    return said or (f"exit code {code}" if code > 0 else f"killed by signal {-code}")


def child_argv(kind: str, *arguments: bytes) -> list[bytes]:
    """Return the command that asks `probe_child` one kind of question, without site-packages."""
    above = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    start = (sys.executable, "-I", "-S", "-c", _START, above, kind)
    return [*map(os.fsencode, start), *arguments]


def ask(argv: Sequence[bytes], *, cwd: bytes = b"/") -> tuple[Answers, str]:
    """Run a `probe_child` and return its answers by name, and why it did not come to its end."""
    ended = run_bounded(argv, cwd=cwd)
    return parse_answers(ended.stdout), ended.reason


def parse_answers(text: bytes) -> Answers:
    """Read lines of name, number and reason; a line cut short is no answer."""
    answers: Answers = {}
    for line in text.decode("utf-8", "replace").splitlines(keepends=True):
        name, _, rest = line.partition("\t")
        number, _, reason = rest.partition("\t")
        if line.endswith("\n") and number.isdecimal():
            answers[name] = (int(number), reason.rstrip("\n"))
    return answers
