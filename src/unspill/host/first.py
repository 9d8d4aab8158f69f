# SPDX-License-Identifier: Apache-2.0
"""What a plan needs of this host to have a first program inside: its text, and who could run it.

Asked only for a run that has one.
"""

from __future__ import annotations

import os
import sys

_SYSTEM_PYTHON = b"/usr/bin/python3"


def read_first_program() -> bytes:
    """Return the text of the first program."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "first_program.py"), "rb") as file:
        return file.read()


def find_interpreters() -> tuple[bytes, ...]:
    """Return the interpreters of this host that a sandbox may show: the system's, then the one that runs this."""
    own = os.fsencode(os.path.realpath(sys.executable)) if sys.executable else b""
    return tuple(path for path in (_SYSTEM_PYTHON, own) if path and os.access(path, os.X_OK))
