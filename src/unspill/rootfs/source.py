# SPDX-License-Identifier: Apache-2.0
"""Where a rootfs comes from, behind one interface: first which one it would be, then its content.

`resolve` may ask a mirror but writes nothing outside `fetch`; `fill` writes nothing outside the staging directory.
"""

from __future__ import annotations

from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from unspill.model.rootfs import Installed, Progress, Proof, RootfsKey, RootfsWish
else:
    Protocol = object


class Resolved(Record):
    """Which rootfs a wish means: `fetch` is what has to be fetched (an address or a path), `sha256` what it must be.

    `proof` is what speaks for that digest.
    """

    key: RootfsKey
    wish: RootfsWish
    fetch: str = ""
    sha256: str = ""
    proof: Proof = "none"


class Filled(Record):
    """What a source put into the staging tree."""

    proof: Proof
    packages: tuple[tuple[str, str], ...] = ()
    fetched: tuple[tuple[str, str], ...] = ()
    left_out: tuple[tuple[str, int], ...] = ()


class Means(Record):
    """What a source may use. `downloads` is a directory that outlives an attempt; `scratch` ends with it.

    `install` runs a command as uid 0 of a sandbox in which the half-built tree is writable and only the given hosts
    (`name:port`) are reached, through a proxy; `report` is told how far things are.
    """

    downloads: bytes
    scratch: bytes
    install: Callable[[bytes, Sequence[bytes], Sequence[str]], Installed]
    report: Callable[[Progress], None]


class Source(Protocol):
    """One kind of source."""

    def resolve(self, wish: RootfsWish, means: Means) -> Resolved:
        """Return which rootfs a wish means.

        Raises:
            RootfsError: the mirror can't be asked, the wish can't be met, or its digest is not the pinned one.
        """

    def fill(self, resolved: Resolved, tree: bytes, means: Means) -> Filled:
        """Put the whole content into `tree`, an empty directory.

        Raises:
            RootfsError: it can't be fetched, is not what it should be, or can't be unpacked safely.
        """
