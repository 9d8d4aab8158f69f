# SPDX-License-Identifier: Apache-2.0
"""What a pair of entries means: the one in the layers and the one beneath them.

A pure table. Every pair is listed, so that a kind added later fails a test instead of being guessed.
An entry that is missing in a directory which hides everything beneath it counts as a whiteout.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    UpperKind = Literal["none", "whiteout", "file", "dir", "opaque", "symlink", "special"]
    BaseKind = Literal["none", "file", "dir", "symlink", "special"]
    Verdict = Literal[
        "nothing",
        "added",
        "deleted",
        "replaced",
        "compare files",
        "compare directories",
        "compare hidden directory",
        "compare symlinks",
        "compare specials",
    ]

UPPER_KINDS: tuple[UpperKind, ...] = ("none", "whiteout", "file", "dir", "opaque", "symlink", "special")
BASE_KINDS: tuple[BaseKind, ...] = ("none", "file", "dir", "symlink", "special")

TABLE: dict[tuple[UpperKind, BaseKind], Verdict] = {
    ("none", "none"): "nothing",
    ("none", "file"): "nothing",
    ("none", "dir"): "nothing",
    ("none", "symlink"): "nothing",
    ("none", "special"): "nothing",
    # A file that one run made and a later one deleted leaves a whiteout over nothing.
    ("whiteout", "none"): "nothing",
    ("whiteout", "file"): "deleted",
    ("whiteout", "dir"): "deleted",
    ("whiteout", "symlink"): "deleted",
    ("whiteout", "special"): "deleted",
    ("file", "none"): "added",
    ("file", "file"): "compare files",
    ("file", "dir"): "replaced",
    ("file", "symlink"): "replaced",
    ("file", "special"): "replaced",
    ("dir", "none"): "added",
    ("dir", "file"): "replaced",
    ("dir", "dir"): "compare directories",
    ("dir", "symlink"): "replaced",
    ("dir", "special"): "replaced",
    ("opaque", "none"): "added",
    ("opaque", "file"): "replaced",
    ("opaque", "dir"): "compare hidden directory",
    ("opaque", "symlink"): "replaced",
    ("opaque", "special"): "replaced",
    ("symlink", "none"): "added",
    ("symlink", "file"): "replaced",
    ("symlink", "dir"): "replaced",
    ("symlink", "symlink"): "compare symlinks",
    ("symlink", "special"): "replaced",
    ("special", "none"): "added",
    ("special", "file"): "replaced",
    ("special", "dir"): "replaced",
    ("special", "symlink"): "replaced",
    ("special", "special"): "compare specials",
}
