# SPDX-License-Identifier: Apache-2.0
"""Which names an index may have: git checks them when it stages a path, but believes an index that it reads.

A checkout from an index with `.git/hooks/post-checkout` in it writes a hook and runs it; `../x` leaves the project.
"""

from __future__ import annotations

from unspill.policy.paths import fold

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# In the third of the four bytes of a mode
_TREE, _LINK = 0x40, 0xA0
_ENDS = (b"", b"/", b".")
# Short names that some filesystems give to `.git` and `.gitmodules`
_ALIASES = {"git": ".git", "gitmod": ".gitmodules", "gi7eba": ".gitmodules"}
_BEGINNINGS = (b".git", b"git~", b"gitmod~", b"gi7eba~")
_NOT_ASCII = bytes(range(0x80, 0x100))


def is_link(mode: bytes) -> bool:
    """Tell whether an entry of this mode is a symbolic link."""
    return mode[2] & 0xF0 == _LINK


def is_refused(name: bytes, mode: bytes) -> bool:
    """Tell whether git would refuse to stage a path of this name."""
    if mode[2] & 0xF0 == _TREE:
        # A directory of a sparse index
        name = name.removesuffix(b"/")
    # Nearly all names are told at a glance
    is_plain = name.isascii() and not (b"/." in name or b"~" in name or b"//" in name or b"\\" in name)
    if is_plain and name[:1] not in _ENDS and name[-1:] != b"/":
        return False
    return any(_is_refused_part(part, mode) for part in name.split(b"/"))


def lie_in_links(directories: Iterable[bytes], links: set[bytes]) -> bool:
    """Tell whether one of the directories is, or is in, one of the links."""
    if not links:
        return False
    known: set[bytes] = set()
    for directory in directories:
        here = directory
        while here and here not in known:
            known.add(here)
            here = here.rpartition(b"/")[0]
    return not links.isdisjoint(known)


def _is_refused_part(part: bytes, mode: bytes) -> bool:
    if part in (b"", b"."):
        return True
    # A backslash divides names, too, where such a project may be checked out
    return any(piece == b".." or _is_own(piece, mode) for piece in part.split(b"\\"))


def _is_own(piece: bytes, mode: bytes) -> bool:
    """Tell whether some filesystem takes a name for `.git`; a link is not let be `.gitmodules` either."""
    if not piece.translate(None, _NOT_ASCII).lower().startswith(_BEGINNINGS):
        return False
    folded = fold(piece, _ALIASES)
    return folded == b".git" or (is_link(mode) and folded == b".gitmodules")
