# SPDX-License-Identifier: Apache-2.0
"""The mode that a closed directory of ours has between two steps of being opened or closed again.

Its owner must be able to write it before an attribute can keep its own mode, so for a moment the mode itself must say
what it was: the owner's three bits are in the place of the special ones. Such a mode stays only after a kill.
"""

from __future__ import annotations

_WRITE_ONLY = 0o200
_SPECIAL = 0o7000


def half_open(mode: int) -> int:
    """Return a mode that lets the owner write a directory and nothing else, and that `before_opening` understands.

    What had special bits itself can't be written so: it loses the owner's bits if this process dies now.
    """
    others, owner = mode & 0o077, (mode & 0o700) >> 6
    if mode & _SPECIAL:
        return mode & ~0o700 | _WRITE_ONLY
    # A directory that can really only be written keeps its mode, so the code for that stands for none of the bits
    shown = {0o2: 0, 0: 0o2}.get(owner, owner)
    return others | _WRITE_ONLY | shown << 9


def before_opening(mode: int) -> int:
    """Return the mode that a directory had; that of one which nobody was about to open is what it is."""
    shown = (mode & _SPECIAL) >> 9
    if mode & 0o700 != _WRITE_ONLY or not shown:
        return mode
    return mode & 0o077 | (0 if shown == 0o2 else shown << 6)
