# SPDX-License-Identifier: Apache-2.0
"""What this kernel, this bwrap and this caller can do, found out by running it.

`host.probe` makes Facts; `plan` and `doctor` only read them.
"""

from __future__ import annotations

from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from unspill.model.policy import EngineName

    Level = Literal["A", "B", "C", "D"]
    CgroupKind = Literal["v2", "v1", "none"]


class Bwrap(Record):
    """One bubblewrap binary. `symlink_flaw`: it follows symlinks at set-up (CVE-2026-87766)."""

    path: bytes
    version: str
    device: int
    inode: int
    has_overlay: bool
    symlink_flaw: bool


class Facts(Record):
    """The host as a sandbox sees it. `problems` holds the reason for each thing that does not work."""

    uid: int
    gid: int
    kernel: str
    boot_id: str
    bwrap: Bwrap | None
    namespaces: bool
    disable_userns: bool
    proc_mount: bool
    own_namespace: bool
    engines: tuple[EngineName, ...]
    lowerdir_plus: bool
    seccomp: bool
    landlock_abi: int
    openat2: bool
    cgroup: CgroupKind
    flatpak: bool
    container: str
    merged_usr: bool
    state_filesystem: str = ""
    problems: tuple[tuple[str, str], ...] = ()
