# SPDX-License-Identifier: Apache-2.0
"""Where a rootfs comes from, behind one interface: first which one it would be, then its content.

`resolve` may ask a mirror, but writes only below `downloads` and `scratch` of its BuildContext; `fill` writes to the
staging tree besides. Architectures have their names here too: ours are Alpine's; Debian and OCI layouts have others.
"""

from __future__ import annotations

import hashlib
import os

from unspill.errors import RootfsError
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from unspill.model.rootfs import Installed, Progress, Proof, RootfsKey, RootfsSpec
else:
    Protocol = object


# What the kernel calls a machine, and what we do
ARCH_MAP = {
    "x86_64": "x86_64",
    "aarch64": "aarch64",
    "arm64": "aarch64",  # as it is called on Apple's machines
    "armv7l": "armv7",
    "i686": "x86",
    "i386": "x86",
}
DEBIAN_NAMES = {"x86_64": "amd64", "aarch64": "arm64", "armv7": "armhf", "x86": "i386"}
OCI_PLATFORMS = {"x86_64": "amd64", "aarch64": "arm64", "armv7": "arm/v7", "x86": "386"}


def detect_arch(machine: str | None = None) -> str:
    """Return our name of an architecture: of this machine, unless another machine's is given.

    Raises:
        RootfsError: there is no rootfs for it.
    """
    machine = machine or os.uname().machine
    if machine not in ARCH_MAP:
        raise _unsupported(machine)
    return ARCH_MAP[machine]


def arch_of(spec: str) -> str:
    """Return the architecture that a spec means, by whichever of its names it is called.

    Raises:
        RootfsError: nothing is called so.
    """
    if not spec:
        return detect_arch()
    names = {theirs: ours for known in (OCI_PLATFORMS, DEBIAN_NAMES) for ours, theirs in known.items()}
    names |= ARCH_MAP | {ours: ours for ours in DEBIAN_NAMES}
    if spec not in names:
        raise _unsupported(spec)
    return names[spec]


def variant_of(packages: tuple[str, ...]) -> str:
    """Return what is short for packages beyond the tier's, whatever their order; nothing for none."""
    if not packages:
        return ""
    return "p" + hashlib.sha256("\n".join(sorted(set(packages))).encode()).hexdigest()[:10]


def _unsupported(machine: str) -> RootfsError:
    return RootfsError(
        f"the architecture {machine} is not supported",
        remedy=f"Use one of these, or name one with `arch`: {', '.join(sorted(ARCH_MAP))}.",
    )


class Resolved(Record):
    """Which rootfs a spec means: `fetch` is what has to be fetched (an address or a path), `sha256` what it must be.

    `proof` is what speaks for that digest.
    """

    key: RootfsKey
    spec: RootfsSpec
    fetch: str = ""
    sha256: str = ""
    proof: Proof = "none"


class Filled(Record):
    """What a source put into the staging tree."""

    proof: Proof
    packages: tuple[tuple[str, str], ...] = ()
    fetched: tuple[tuple[str, str], ...] = ()
    left_out: tuple[tuple[str, int], ...] = ()


class BuildContext(Record):
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

    def resolve(self, spec: RootfsSpec, means: BuildContext) -> Resolved:
        """Return which rootfs a spec means.

        Raises:
            RootfsError: the mirror can't be asked, the spec can't be met, or its digest is not the pinned one.
        """

    def fill(self, resolved: Resolved, tree: bytes, means: BuildContext) -> Filled:
        """Put the whole content into `tree`, an empty directory.

        Raises:
            RootfsError: it can't be fetched, is not what it should be, or can't be unpacked safely.
        """
