# SPDX-License-Identifier: Apache-2.0
"""Which part of a ChangeSet is meant: paths, globs, hunks of text files, one run.

An empty selection means everything; what a selected path needs above it comes along.
"""

from __future__ import annotations

from unspill.model.record import Record


class Hunks(Record):
    """Some hunks of one text file, counted from 1 as `diff` shows them."""

    path: bytes
    numbers: tuple[int, ...]


class Selection(Record):
    """Paths relative to a root (a directory means what is below it), globs, and hunks.

    `included` are held paths that the person consents to; `overwrite` are conflicts in which ours shall win.
    """

    paths: tuple[bytes, ...] = ()
    globs: tuple[bytes, ...] = ()
    hunks: tuple[Hunks, ...] = ()
    included: tuple[bytes, ...] = ()
    overwrite: tuple[bytes, ...] = ()

    @property
    def is_everything(self) -> bool:
        """Tell whether nothing narrows it."""
        return not (self.paths or self.globs or self.hunks)
