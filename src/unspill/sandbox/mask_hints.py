# SPDX-License-Identifier: Apache-2.0
"""Why a program does not find a file that its person sees: it is a secret of the project, and masked.

Only words in an output, so a hint and no more.
"""

from __future__ import annotations

import os

from unspill.model.run import Exited, Hint
from unspill.policy.paths import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.run import Outcome, Output

_TAIL = 16 * 1024
_MOST = 3
# Names such as `credentials` and `identity` are words too
_MISSING = (b"no such file", b"not found", b"not exist", b"enoent", b"missing")
_MARKS = b"\xe2\x80\x98 \xe2\x80\x99 ' \" ` ( ) [ ] < > , = : ;".split()


def mask_hints(hidden: Sequence[bytes], project: bytes, outcome: Outcome, *outputs: Output) -> tuple[Hint, ...]:
    """Return a hint for each masked secret, given by its path, that a failed command named."""
    if not isinstance(outcome, Exited) or not outcome.code:
        return ()
    texts = [(output.tail or output.head)[-_TAIL:] for output in outputs]
    lines = [line for text in texts for line in text.splitlines()]
    found = [path for path in hidden if any(_names(line, path, project) for line in lines)]
    return tuple(_hint(path, project) for path in found[:_MOST])


def _hint(path: bytes, project: bytes) -> Hint:
    name = show(os.path.relpath(path, project))
    return Hint(
        code="masked-secret",
        text=f"{name} is masked as a secret.",
        remedy=f"`--reveal {name}` asks for it, for one run.",
    )


def _names(line: bytes, path: bytes, project: bytes) -> bool:
    name = os.path.basename(path)
    if name not in line or not any(word in line.lower() for word in _MISSING):
        return False
    for mark in _MARKS:
        line = line.replace(mark, b" ")
    # The working directory may be the secret's own
    ways = (path, os.path.relpath(path, project), name)
    return any(os.path.normpath(word) in ways or os.path.normpath(word.rstrip(b".")) in ways for word in line.split())
