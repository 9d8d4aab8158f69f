# SPDX-License-Identifier: Apache-2.0
"""System calls with which known attacks on kernels and sandboxes begin, by their numbers. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.attack.requests import EXT4_IOC_MOVE_EXT, REQUESTS, XFS_IOC_ALLOCSP, XFS_IOC_SWAPEXT
from tests.kernel.seccomp_box import MACHINE

NEWUSER, NEWNET = 0x10000000, 0x40000000
SEGMENTS: Final = ("modify_ldt",) if MACHINE == "x86_64" else ()
VSOCK, PACKET, ALG, TIPC, RDS = 40, 17, 38, 30, 21


@dataclass(frozen=True)
class Entry:
    """The first call of an attack: all have to be refused for it to be closed."""

    cve: str
    what: str
    calls: tuple[tuple[str, tuple[int, ...]], ...]

    def __str__(self) -> str:
        return self.cve


def plain(*names: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, ()) for name in names)


ENTRIES: Final = (
    Entry(
        "CVE-2023-28100", "Flatpak: copy and paste on a console by TIOCLINUX", (("ioctl", (0, REQUESTS["TIOCLINUX"])),)
    ),
    Entry(
        "CVE-2021-41133",
        "Flatpak: mounts by calls that its list did not know",
        plain("clone3", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"),
    ),
    Entry("CVE-2022-0185", "an overflow in the parameters of a mount", plain("fsopen", "fsconfig")),
    Entry("CVE-2016-0728", "an overflow of a keyring's counter", plain("keyctl", "add_key", "request_key")),
    Entry("CVE-2021-3490", "a verifier that believed a program", plain("bpf")),
    Entry("CVE-2013-2094", "an index of perf events", plain("perf_event_open")),
    Entry("CVE-2022-29582", "a race of io_uring's timeouts", plain("io_uring_setup", "io_uring_enter")),
    Entry("CVE-2021-26708", "a race in vsock", (("socket", (VSOCK,)), ("socketpair", (VSOCK,)))),
    Entry("CVE-2020-14386", "an overflow in packet sockets", (("socket", (PACKET,)),)),
    Entry("CVE-2019-8912", "a use after free in AF_ALG", (("socket", (ALG,)),)),
    Entry("CVE-2021-43267", "an overflow in TIPC", (("socket", (TIPC,)), ("socketpair", (TIPC,)))),
    Entry("CVE-2010-3904", "RDS wrote where it was told", (("socket", (RDS,)),)),
    Entry(
        "CVE-2017-2636",
        "a race in a line discipline that anybody may load",
        (("ioctl", (0, REQUESTS["TIOCSETD"])),),
    ),
    Entry(
        "CVE-2009-4131",
        "EXT4_IOC_MOVE_EXT overwrote files of others",
        (("ioctl", (0, EXT4_IOC_MOVE_EXT)),),
    ),
    Entry("CVE-2010-2226", "XFS_IOC_SWAPEXT showed files that can't be read", (("ioctl", (0, XFS_IOC_SWAPEXT)),)),
    Entry("CVE-2021-4155", "XFS_IOC_ALLOCSP showed what was on the disk", (("ioctl", (0, XFS_IOC_ALLOCSP)),)),
    Entry(
        "CVE-2022-0492",
        "a control group's release agent, from a user namespace",
        (("unshare", (NEWUSER,)), ("clone", (NEWUSER,)), ("mount", ())),
    ),
    Entry(
        "CVE-2023-0386",
        "an overlay that is mounted in a user namespace",
        (("unshare", (NEWUSER,)), ("clone", (NEWUSER,)), ("mount", ()), ("fsopen", ())),
    ),
    Entry(
        "CVE-2024-1086",
        "netfilter, from a network namespace of one's own",
        (("unshare", (NEWUSER | NEWNET,)), ("clone", (NEWNET,)), ("clone3", ())),
    ),
    Entry("CVE-2015-3290", "a nested interrupt on a 16-bit stack of one's own", plain(*SEGMENTS)),
)
