# SPDX-License-Identifier: Apache-2.0
"""Looks for paths in the output of a command that failed, and explains those that its plan keeps from it.

Costs nothing where nothing fails. Output is words of a stranger and may not name what was refused: these are hints,
and `explain` is what knows. Never asks the host what it has there, so a model that reads a hint does not learn it.
"""

from __future__ import annotations

import errno
import os

from unspill.model.run import Exited, Hint
from unspill.plan.denied import Judge, remedy_of
from unspill.policy.paths import contains, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.model.plan import Plan
    from unspill.model.run import Outcome
    from unspill.plan.denied import Refusal

_TAIL = 16 * 1024
_MOST = 3
_LONGEST_PATH = 4096
_QUOTES = (b"\xe2\x80\x98", b"\xe2\x80\x99", b"'", b'"', b"`", b"(", b")", b",", b"=")


def hints_about(plan: Plan, outcome: Outcome, *outputs: bytes) -> tuple[Hint, ...]:
    """Return a hint for each path that was named with an error and that a rule of the plan refuses."""
    if not isinstance(outcome, Exited) or not outcome.code:
        return ()
    judge, home = Judge(plan.mounts), dict(plan.environ).get(b"HOME", b"/")
    found: dict[bytes, Hint] = {}
    for path, is_write in _named(outputs):
        refusal = judge.refusal(path, is_write=is_write)
        if refusal is not None and _is_telling(refusal, home) and len(found) < _MOST:
            found[refusal.path] = Hint(
                code="denied-path",
                text=f"{show(refusal.path)}: {refusal.rule}.",
                remedy=remedy_of(refusal, is_write=is_write, home=home),
            )
    return tuple(found.values())


def _named(outputs: tuple[bytes, ...]) -> Iterator[tuple[bytes, bool]]:
    """Yield the absolute paths in lines that speak of a missing or read-only file, and whether it was to be written."""
    read_only, missing = (os.strerror(code).encode() for code in (errno.EROFS, errno.ENOENT))
    for output in outputs:
        for line in output[-_TAIL:].splitlines():
            if read_only not in line and missing not in line:
                continue
            for word in _words(line):
                path = word.rstrip(b":;.")
                if path.startswith(b"/") and len(path) <= _LONGEST_PATH and b"\0" not in path:
                    yield path, read_only in line


def _words(line: bytes) -> list[bytes]:
    for mark in _QUOTES:
        line = line.replace(mark, b" ")
    return line.split()


def _is_telling(refusal: Refusal, home: bytes) -> bool:
    """Tell whether a rule is likely the reason: what a temporary directory does not have, nobody else has either."""
    return refusal.kind != "hidden" or contains(home, refusal.path)
