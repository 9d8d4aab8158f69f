# SPDX-License-Identifier: Apache-2.0
"""Tells whether this machine has what it takes to build a Debian rootfs: programs, and ids beside the caller's own.

Looks only; a machine that has them may still forbid their use, which the build then says.
"""

from __future__ import annotations

import os

from unspill.errors import RootfsError
from unspill.rootfs.debian_child import SEARCH

IDS = 65536


def check_host(search: str = SEARCH, etc: bytes = b"/etc") -> None:
    """Check that this machine has what a build needs.

    Raises:
        RootfsError: it has not; the remedy says what to install or to set.
    """
    from shutil import which

    for program, package in (
        ("apt-get", "apt"),
        ("mmdebstrap", "mmdebstrap"),
        ("newuidmap", "uidmap"),
        ("newgidmap", "uidmap"),
        ("unshare", "util-linux"),
    ):
        if which(program, path=search) is None:
            raise RootfsError(
                f"{program} is needed to build a Debian rootfs, and not installed",
                remedy=f"Install the package {package} (on Debian: apt install {package}), or use another source.",
            )
    for name in (b"subuid", b"subgid"):
        path = os.path.join(etc, name)
        if not has_ids(path, os.geteuid()):
            shown = os.fsdecode(path)
            raise RootfsError(
                f"{shown} gives this user fewer than {IDS} subordinate ids, which Debian's packages need",
                remedy="Have root add some, for instance: usermod --add-subuids 100000-165535"
                " --add-subgids 100000-165535 NAME; or use another source.",
            )


def has_ids(path: bytes, uid: int) -> bool:
    """Tell whether a file such as /etc/subuid gives a user enough ids in one block."""
    import pwd

    try:
        names = {str(uid), pwd.getpwuid(uid).pw_name}
    except KeyError:
        names = {str(uid)}
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            rows = [line.strip().split(":") for line in file]
    except OSError:
        return False
    return any(
        len(row) == 3 and row[0] in names and row[1].isdecimal() and row[2].isdecimal() and int(row[2]) >= IDS
        for row in rows
    )
