# SPDX-License-Identifier: Apache-2.0
"""Runs one probe as a process with a bound on its time and output, and reads what it answered.

Knows nothing of what is asked. Nothing of the caller's is given to the process but a few variables.
"""

from __future__ import annotations

import os
import sys

from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Answers = dict[str, tuple[int, str]]

TIMEOUT_S = 15.0
_SHOWN = 300
_START = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from unspill.host.probe_child import main; main(sys.argv[1:])"
)


class Ended(Record):
    """How a process ended: `reason` is empty if it exited with 0."""

    reason: str
    stdout: bytes


def run_bounded(argv: Sequence[bytes], *, cwd: bytes = b"/", timeout_s: float = TIMEOUT_S) -> Ended:
    """Run a program to its end, or kill it; never raises for what the program does."""
    import subprocess

    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            cwd=cwd,
            env={b"PATH": b"/usr/bin:/bin", b"LC_ALL": b"C"},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Ended(reason=f"no answer in {timeout_s:g} seconds", stdout=b"")
    except OSError as error:
        return Ended(reason=f"{os.fsdecode(argv[0])}: {error.strerror}", stdout=b"")
    if done.returncode == 0:
        return Ended(reason="", stdout=done.stdout)
    said = done.stderr.decode("utf-8", "replace").strip()[-_SHOWN:]
    how = f"exit code {done.returncode}" if done.returncode > 0 else f"killed by signal {-done.returncode}"
    return Ended(reason=said or how, stdout=done.stdout)


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
