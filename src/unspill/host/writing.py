# SPDX-License-Identifier: Apache-2.0
"""write(2) until everything is written: it may take less than it is given."""

from __future__ import annotations

import os


def write_whole(fd: int, content: bytes) -> None:
    """Write all of the content to a descriptor that blocks."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
