# SPDX-License-Identifier: Apache-2.0
"""What this machine's architecture is called: by us and Alpine, by Debian, and in OCI layouts.

Ours are Alpine's names; the others are derived from them.
"""

from __future__ import annotations

import os

from unspill.errors import RootfsError

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


def wished_arch(wish: str) -> str:
    """Return the architecture that a wish means, by whichever of its names it is called.

    Raises:
        RootfsError: nothing is called so.
    """
    if not wish:
        return detect_arch()
    names = {theirs: ours for known in (OCI_PLATFORMS, DEBIAN_NAMES) for ours, theirs in known.items()}
    names |= ARCH_MAP | {ours: ours for ours in DEBIAN_NAMES}
    if wish not in names:
        raise _unsupported(wish)
    return names[wish]


def _unsupported(machine: str) -> RootfsError:
    return RootfsError(
        f"the architecture {machine} is not supported",
        remedy=f"Use a machine of one of these, or name one: {', '.join(sorted(ARCH_MAP))}.",
    )
