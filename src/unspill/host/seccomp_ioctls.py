# SPDX-License-Identifier: Apache-2.0
"""The ioctl requests that a command may make, by group; every other request is refused.

An ioctl can do anything a driver or a filesystem thought of: delete a subvolume, lock an encrypted directory, freeze a
disk. So this is a list of what programs need, found by tracing them. The numbers are the same on every machine we know.
"""

from __future__ import annotations

# Why the requests of a group are allowed, and their numbers. Left out on purpose:
# TIOCSTI, TIOCLINUX, TIOCSETD, TIOCCONS: type on a terminal, select on a console, load a line discipline, take output
# FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR: no change set shows the attributes that they set
# FIDEDUPERANGE, FIBMAP, BLK*, NS_*, PIDFD_*, SECCOMP_*: for administrators' tools, such as duperemove and lsns
IOCTLS: tuple[tuple[str, dict[str, int]], ...] = (
    (
        "a terminal: its modes, flow and size",
        {
            "TCGETS": 0x5401,
            "TCSETS": 0x5402,
            "TCSETSW": 0x5403,
            "TCSETSF": 0x5404,
            "TCGETS2": 0x802C542A,
            "TCSETS2": 0x402C542B,
            "TCSETSW2": 0x402C542C,
            "TCSETSF2": 0x402C542D,
            "TCSBRK": 0x5409,
            "TCSBRKP": 0x5425,
            "TCXONC": 0x540A,
            "TCFLSH": 0x540B,
            "TIOCOUTQ": 0x5411,
            "TIOCGWINSZ": 0x5413,
            "TIOCSWINSZ": 0x5414,
        },
    ),
    (
        "job control in a shell",
        {
            "TIOCSCTTY": 0x540E,
            "TIOCNOTTY": 0x5422,
            "TIOCGPGRP": 0x540F,
            "TIOCSPGRP": 0x5410,
            "TIOCGSID": 0x5429,
        },
    ),
    (
        "a terminal of the command's own, as tmux, script and pexpect make one",
        {"TIOCGPTN": 0x80045430, "TIOCSPTLCK": 0x40045431, "TIOCGPTPEER": 0x5441},
    ),
    (
        "any descriptor: what fcntl does too, and how much can be read",
        {"FIONREAD": 0x541B, "FIONBIO": 0x5421, "FIONCLEX": 0x5450, "FIOCLEX": 0x5451, "FIOASYNC": 0x5452},
    ),
    (
        "copies that share their blocks: cp --reflink, uv, pnpm",
        {"FICLONE": 0x40049409, "FICLONERANGE": 0x4020940D},
    ),
    (
        "reads about a file: lsattr, filefrag, RocksDB",
        {
            "FIGETBSZ": 0x2,
            "FS_IOC_FIEMAP": 0xC020660B,
            "FS_IOC_GETFLAGS": 0x80086601,
            "FS_IOC_GETVERSION": 0x80087601,
            "FS_IOC_FSGETXATTR": 0x801C581F,
        },
    ),
    ("the mark of urgent data", {"SIOCATMARK": 0x8905}),
    (
        "reads about network interfaces: ifconfig, Java, if_nametoindex",
        {
            "SIOCGIFNAME": 0x8910,
            "SIOCGIFCONF": 0x8912,
            "SIOCGIFFLAGS": 0x8913,
            "SIOCGIFADDR": 0x8915,
            "SIOCGIFDSTADDR": 0x8917,
            "SIOCGIFBRDADDR": 0x8919,
            "SIOCGIFNETMASK": 0x891B,
            "SIOCGIFMETRIC": 0x891D,
            "SIOCGIFMTU": 0x8921,
            "SIOCGIFHWADDR": 0x8927,
            "SIOCGIFINDEX": 0x8933,
            "SIOCGIFTXQLEN": 0x8942,
            "SIOCGIFMAP": 0x8970,
        },
    ),
    # Without the capability CAP_NET_ADMIN, which no command has, all it can do is read
    ("psutil fails as a whole where this is answered with ENOTTY", {"SIOCETHTOOL": 0x8946}),
    ("how much randomness the kernel has", {"RNDGETENTCNT": 0x80045200}),
)
