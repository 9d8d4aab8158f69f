# SPDX-License-Identifier: Apache-2.0
"""Which part of a ChangeSet is meant: paths, globs, hunks of text files, one run.

An empty selection means everything; what a selected path needs above it comes along.
"""

from __future__ import annotations

from unspill.model.record import Record


class Hunks(Record):
    """Some hunks of one text file, counted from 1 as `diff` shows them.

    With a `digest`, those of the very texts that it was made of: where either side is another one now, none is applied.
    """

    path: bytes
    numbers: tuple[int, ...]
    digest: str = ""


class Consent(Record):
    """A yes to what is held at or below a path of a root, as it was: `digest` is that of all of it, in full.

    `token` is the beginning of the digest by which a person names it.
    """

    root: bytes
    path: bytes
    digest: str
    token: str = ""


class Selection(Record):
    """Paths relative to a root (a directory means what is below it), globs, and hunks.

    `included` are held paths that the caller consents to, whatever they have; `consents` are for one content each, and
    void where another is held now. `overwrite` are conflicts in which ours shall win.
    """

    paths: tuple[bytes, ...] = ()
    globs: tuple[bytes, ...] = ()
    hunks: tuple[Hunks, ...] = ()
    included: tuple[bytes, ...] = ()
    consents: tuple[Consent, ...] = ()
    overwrite: tuple[bytes, ...] = ()

    @property
    def is_everything(self) -> bool:
        """Tell whether nothing narrows it."""
        return not (self.paths or self.globs or self.hunks)
