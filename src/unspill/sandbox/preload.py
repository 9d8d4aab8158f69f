# SPDX-License-Identifier: Apache-2.0
"""Load what an operation needs to its end, and what tells of it, before its first step changes anything.

A second line behind `host.installation`: should a command ever get at our own files, the operation that brings what it
wrote there does not run it.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Imported by functions, late, because most runs change nothing; tests/attack/test_late_imports.py finds what is missing
_TO_THE_END = (
    "_json",
    "json",
    "zlib",
    "unspill.changes.render",
    "unspill.changes.scan",
    "unspill.layers.trees",
    "unspill.sandbox.recording",
)
# Only where there is a repository
_OF_REPOSITORIES = ("hashlib", "mmap", "unspill.apply.git_move", "unspill.git.frozen")
# Who asks for an operation asks next what it changed; a run knows that already
_TO_TELL = ("unspill.sandbox.reading", "unspill.sandbox.retracing")


def preload(roots: Sequence[bytes], *, after_run: bool = False) -> None:
    """Load all that an operation on some roots needs after its first step; `after_run` if it is that of a run."""
    names = _TO_THE_END if after_run else (*_TO_THE_END, *_TO_TELL)
    if any(os.path.lexists(root + b"/.git") for root in roots):
        names = (*names, *_OF_REPOSITORIES)
    for name in names:
        __import__(name)
