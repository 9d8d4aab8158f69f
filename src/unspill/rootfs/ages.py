# SPDX-License-Identifier: Apache-2.0
"""Which of several rootfs is newer, and which of them one replaces.

By version where all versions are numbers, after the same word if there is one (a suite and its day); elsewhere (a
digest) by when they were made.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.rootfs import Rootfs


def line_of(rootfs: Rootfs) -> tuple[str, str, int, str]:
    """Return what a rootfs has in common with those that it replaces: all of its key but the version."""
    if rootfs.manifest is None:
        return rootfs.name, "", 0, ""
    key = rootfs.manifest.key
    return key.source, key.arch, key.tier, key.variant


def newest(several: Sequence[Rootfs]) -> Rootfs:
    """Return the newest of some rootfs of one line; there must be one."""
    versions = {found.name: _numbers(found.manifest.key.version if found.manifest else "") for found in several}
    is_numbered = len({word for word, _ in versions.values()}) == 1 and all(numbers for _, numbers in versions.values())
    return max(several, key=lambda found: (versions[found.name][1] if is_numbered else (), _made(found), found.name))


def is_older(version: str, than: str) -> bool:
    """Tell whether a version is surely older than another one: both are numbers, after the same word if any."""
    (word, numbers), (other, others) = _numbers(version), _numbers(than)
    return word == other and bool(numbers) and numbers < others


def _numbers(version: str) -> tuple[str, tuple[int, ...]]:
    """Return the word that a version begins with, and its numbers; none where it is not of numbers and dots then."""
    first, _, rest = version.partition(".")
    word = "" if _is_number(first) else first
    parts = rest.split(".") if word else version.split(".")
    return word, tuple(map(int, parts)) if all(map(_is_number, parts)) else ()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 9


def _made(rootfs: Rootfs) -> int:
    return rootfs.manifest.created_ns if rootfs.manifest is not None else 0
