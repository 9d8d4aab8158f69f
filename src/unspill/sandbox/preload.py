# SPDX-License-Identifier: Apache-2.0
"""Load what an operation needs to its end, and what tells of it, before its first step changes anything.

A second line behind `host.installation`: should a command ever get at our own files, the operation that brings what it
wrote there does not run it.
"""

from __future__ import annotations

# Imported by functions, late, because most runs change nothing; tests/attack/test_late_imports.py finds what is missing
_TO_THE_END = (
    "_json",
    "json",
    "zlib",
    "unspill.changes.render",
    "unspill.changes.scan",
    "unspill.layers.duplicate",
    "unspill.permissions.audit",
    "unspill.sandbox.recording",
    "unspill.sandbox.tracked",
)
# Who asks for an operation asks next what it changed; a run knows that already
_TO_TELL = ("unspill.sandbox.retracing",)


def preload(*, after_run: bool = False) -> None:
    """Load all that an operation needs after its first step; `after_run` is the apply at the end of a run."""
    for name in _TO_THE_END if after_run else (*_TO_THE_END, *_TO_TELL):
        __import__(name)
