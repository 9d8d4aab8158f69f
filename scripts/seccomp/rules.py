# SPDX-License-Identifier: Apache-2.0
"""Which system calls a command may make, by profile, why not the others, and the filter that says so to the kernel.

A list of what is refused, because the command is any developer's tool, with three properties of a list of what is
allowed: no foreign architecture, no number that is not known, no family of sockets and no ioctl but a few. An ioctl can
do anything a driver or a filesystem thought of: delete a subvolume, lock an encrypted directory, freeze a disk. So the
requests are a list of what programs need, found by tracing them; their numbers are the same on every machine we know.

The filter is a classic BPF program, as bwrap's `--seccomp` reads it: a search tree over ranges of numbers, since
compares in a row cost a fifth more where a kernel runs the program for every call. Pure; a run takes the finished
program from `unspill.host.seccomp_tables`.
"""

from __future__ import annotations

from errno import (
    EAFNOSUPPORT,
    ENOSYS,
    ENOTTY,
    EOPNOTSUPP,
    EPERM,
)

from scripts.seccomp.numbers import STRETCHES
from unspill.errors import HostError
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Literal

    from unspill.model.policy import Profile

    Test = Literal["has-a-bit-of", "is-none-of"]


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


class AllowCall(Record):
    """The call is made."""


class Refuse(Record):
    """The call fails with an error, whatever its arguments."""

    error: int
    why: str


class RefuseIf(Record):
    """The call fails if a test of one argument holds.

    The lower 32 bits alone are looked at: every kernel function tested here takes no more of that argument, and a
    comparison of all 64 is passed by with a bit set above them (CVE-2019-10063). musl sets all of them for an ioctl
    whose number has bit 31.
    """

    argument: int
    test: Test
    values: tuple[int, ...]
    error: int
    why: str


# ENOSYS where programs have an older call to fall back on, EPERM where they would take a missing call for an old kernel
_REFUSED = (
    (EPERM, "the keys of the person's session are not in any namespace", "add_key keyctl request_key"),
    (EPERM, "in a new namespace read-only mounts could be undone", "unshare setns"),
    (EPERM, "mounts are what the sandbox is made of", "mount umount2 pivot_root chroot"),
    (ENOSYS, "as mount, by the newer calls", "open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick"),
    (ENOSYS, "as mount, by the newer calls", "mount_setattr"),
    (ENOSYS, "tell of mounts and namespaces outside", "statmount listmount listns"),
    (ENOSYS, "its flags lie in memory, where no filter can look; the C library falls back on clone", "clone3"),
    (ENOSYS, "makes calls that no filter sees", "io_uring_setup io_uring_enter io_uring_register"),
    (ENOSYS, "holds the kernel up in the middle of a copy, which makes races in it winnable", "userfaultfd"),
    (ENOSYS, "its pages are neither swapped nor shown to a debugger", "memfd_secret"),
    # The answer of a filesystem that can't: the C library and databases then write zeros, which takes time
    (EOPNOTSUPP, "takes a whole disk at once, faster than any limit can be watched", "fallocate"),
    (ENOSYS, "its requests are counted for the whole machine; databases fall back on threads", "io_setup"),
    (EPERM, "programs in the kernel", "bpf"),
    (EPERM, "large, often broken, and it watches other processes", "perf_event_open"),
    (EPERM, "a handle passes by every directory above the file", "open_by_handle_at name_to_handle_at"),
    (EPERM, "sees accesses of a whole filesystem", "fanotify_init"),
    (EPERM, "tells the addresses that kernel objects have, relative to each other", "kcmp"),
    (EPERM, "the kernel's log tells of the host", "syslog lookup_dcookie"),
    (EPERM, "placement of memory: often broken, no developer's tool needs it", "mbind set_mempolicy migrate_pages"),
    (EPERM, "placement of memory: often broken, no developer's tool needs it", "move_pages set_mempolicy_home_node"),
    (EPERM, "16-bit segments and ports: broken before, for emulators only", "modify_ldt iopl ioperm"),
    (EPERM, "obsolete", "uselib ustat"),
    (ENOSYS, "sets attributes of a file that no change set shows; FS_IOC_FSSETXATTR is refused too", "file_setattr"),
    (EPERM, "concerns the whole machine", "kexec_load kexec_file_load reboot swapon swapoff acct quotactl quotactl_fd"),
    (EPERM, "concerns the whole machine", "init_module finit_module delete_module create_module query_module"),
    (
        EPERM,
        "concerns the whole machine",
        "settimeofday clock_settime clock_adjtime adjtimex sethostname setdomainname",
    ),
    (ENOSYS, "no kernel has it any more; one that does is not known", "_sysctl get_kernel_syms nfsservctl vserver"),
    (ENOSYS, "no kernel has it any more; one that does is not known", "getpmsg putpmsg afs_syscall tuxcall security"),
    (ENOSYS, "no kernel has it any more; one that does is not known", "epoll_ctl_old epoll_wait_old"),
    (ENOSYS, "no kernel has it any more; one that does is not known", "set_thread_area get_thread_area"),
)
# In the default profile a debugger works: the process namespace leaves it nothing but the command's own processes,
# and since 4.8 what a tracer makes of a call is filtered once more
_REFUSED_IF_STRICT = (
    (EPERM, "reaches into other processes of the command", "ptrace process_vm_readv process_vm_writev pidfd_getfd"),
)

_UNKNOWN = Refuse(error=ENOSYS, why="nobody has judged this number: it is newer than unspill, or unassigned")
_ALLOWED = AllowCall()

# NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET; clone has no NEWTIME, that bit is part of a signal's number
_CLONE_NEW = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_PER_LINUX, _PER_QUERY = 0, 0xFFFFFFFF

_FAMILY = "vsock and others know no network namespace, and rare families are rarely audited"
_CHECKED = {
    "clone": RefuseIf(
        argument=0, test="has-a-bit-of", values=(_CLONE_NEW,), error=EPERM, why="as unshare: a new namespace"
    ),
    "ioctl": RefuseIf(
        argument=1,
        test="is-none-of",
        values=tuple(sorted(number for _, group in IOCTLS for number in group.values())),
        # The kernel's own answer where a file does not know a request: programs then do without it
        error=ENOTTY,
        why="some types on a terminal, some deletes or locks what is outside: only what programs need is allowed",
    ),
    "socket": RefuseIf(
        argument=0,
        test="is-none-of",
        values=(_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK),
        error=EAFNOSUPPORT,
        why=_FAMILY,
    ),
    "socketpair": RefuseIf(
        argument=0,
        test="is-none-of",
        values=(_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK),
        error=EAFNOSUPPORT,
        why=_FAMILY,
    ),
}
_CHECKED_IF_STRICT = {
    "socket": RefuseIf(
        argument=0,
        test="is-none-of",
        values=(_AF_INET, _AF_INET6),
        error=EAFNOSUPPORT,
        why="a socket that lies in the filesystem may lead out, and " + _FAMILY,
    ),
    "personality": RefuseIf(
        argument=0,
        test="is-none-of",
        values=(_PER_LINUX, _PER_QUERY),
        error=EPERM,
        why="takes randomised addresses or non-executable memory away",
    ),
}


def numbers_of(machine: str) -> dict[str, int]:
    """Return the numbers of a machine's system calls by name.

    Raises:
        HostError: no table for this machine.
    """
    if machine not in STRETCHES:
        raise HostError(
            f"unspill does not know the system calls of {machine}.",
            remedy=f"Use a 64-bit machine of one of these types: {', '.join(STRETCHES)}.",
        )
    return {
        name: number for first, names in STRETCHES[machine] for number, name in enumerate(names.split(" "), start=first)
    }


def verdicts(machine: str, profile: Profile) -> tuple[Verdict, ...]:
    """Return what happens to each call, from number 0 to the newest known.

    Raises:
        HostError: no table for this machine.
    """
    numbers = numbers_of(machine)
    found: list[Verdict] = [_UNKNOWN] * (max(numbers.values()) + 1)
    for number in numbers.values():
        found[number] = _ALLOWED
    for name, verdict in _judged(profile):
        if name in numbers:
            found[numbers[name]] = verdict
    return tuple(found)


def _judged(profile: Profile) -> Iterator[tuple[str, Verdict]]:
    for error, why, names in _REFUSED + (_REFUSED_IF_STRICT if profile == "strict" else ()):
        verdict = Refuse(error=error, why=why)
        for name in names.split(" "):
            yield name, verdict
    yield from (_CHECKED | (_CHECKED_IF_STRICT if profile == "strict" else {})).items()


def classify(machine: str, profile: Profile, number: int) -> Verdict:
    """Return what happens to the call with a number, as the kernel has it: an unsigned 32-bit value.

    Raises:
        HostError: no table for this machine.
    """
    known = verdicts(machine, profile)
    return known[number] if 0 <= number < len(known) else _UNKNOWN


AUDIT_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Only what kernels since 5.11 can follow ahead of time: they keep a bitmap of the numbers that are always allowed
_LOAD, _JUMP, _IF_EQUAL, _IF_ABOVE, _IF_AT_LEAST, _IF_BITS, _RETURN = 0x20, 0x05, 0x15, 0x25, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_RET_ALLOW, _RET_ERRNO = 0x7FFF0000, 0x00050000
# How far a conditional jump reaches, and what may still be put in between
_REACH, _SPARE = 255, 2


def program_for(machine: str, profile: Profile) -> bytes:
    """Return the program for a machine, as uname names it, and a profile.

    Raises:
        HostError: unspill does not know this machine's system calls.
    """
    known = verdicts(machine, profile)
    return assemble(AUDIT_ARCHES[machine], known)


def assemble(arch: int, known: Sequence[Verdict]) -> bytes:
    """Return a program that gives call n the n-th verdict; other numbers and architectures do not exist."""
    program = _Program()
    start = program.tree(_merged(enumerate(known)))
    absent = program.give(_RET_ERRNO | ENOSYS)
    # x32 calls are those of x86_64 with bit 30 set, so they are above as well
    start = program.branch(_IF_ABOVE, len(known) - 1, absent, start)
    start = program.add(_LOAD, _NUMBER)
    absent = program.give(_RET_ERRNO | ENOSYS)
    program.branch(_IF_EQUAL, arch, start, absent)
    program.add(_LOAD, _ARCH)
    return program.to_bytes()


def _merged(ranges: Iterable[Range]) -> list[Range]:
    """Return ranges without those that the one before them covers as well."""
    found: list[Range] = []
    for first, verdict in ranges:
        if not found or (verdict is not found[-1][1] and _target(verdict) != _target(found[-1][1])):
            found.append((first, verdict))
    return found


def _target(verdict: Verdict) -> object:
    """Return what the program does for a verdict, the same for two that differ only in their reason."""
    match verdict:
        case AllowCall():
            return _RET_ALLOW
        case Refuse():
            return _RET_ERRNO | verdict.error
        case RefuseIf():
            return verdict.argument, verdict.test, verdict.values, verdict.error


def _values(verdict: RefuseIf) -> list[Range]:
    """Return the ranges of an argument's values, of which only a few are allowed."""
    allowed = set(verdict.values)
    starts = sorted({0, *allowed, *(value + 1 for value in allowed)} - {1 << 32})
    refused = Refuse(error=verdict.error, why=verdict.why)
    return _merged((start, AllowCall() if start in allowed else refused) for start in starts)


def _weight(verdict: Verdict) -> int:
    """Return how many plain verdicts one weighs: the longer its own check, the nearer to the root it has to be."""
    match verdict:
        case RefuseIf(test="is-none-of"):
            return len(_values(verdict))
        case RefuseIf():
            return 2
    return 1


def _middle(ranges: Sequence[Range]) -> int:
    """Return where to split, so that the deeper half is no deeper than it must be."""
    weights = [_weight(verdict) for _, verdict in ranges]
    total, left, best = sum(weights), 0, (sum(weights), 0, 0)
    for index, weight in enumerate(weights[:-1], start=1):
        left += weight
        heavier = max(left, total - left)
        best = min(best, ((heavier - 1).bit_length(), heavier, index))
    return best[2]


class _Program:
    """Written from its end: jumps only go forwards, so every target exists before what jumps there.

    An instruction's place is the number of instructions from it to the end, itself included.
    """

    def __init__(self) -> None:
        self._backwards: list[bytes] = []
        self._checks: dict[object, int] = {}
        self._returns: dict[int, int] = {}

    def to_bytes(self) -> bytes:
        """Return the whole program."""
        return b"".join(reversed(self._backwards))

    def add(self, code: int, operand: int, yes: int = 0, no: int = 0) -> int:
        """Put one `struct sock_filter` before all others and return its place."""
        self._backwards.append(code.to_bytes(2, "little") + bytes((yes, no)) + operand.to_bytes(4, "little"))
        return len(self._backwards)

    def branch(self, code: int, operand: int, yes: int, no: int) -> int:
        """Add a conditional jump to two places, however far away."""
        yes, no = self._near(yes), self._near(no)
        here = len(self._backwards)
        return self.add(code, operand, here - yes, here - no)

    def _near(self, place: int) -> int:
        distance = len(self._backwards) - place
        return place if distance <= _REACH - _SPARE else self.add(_JUMP, distance)

    def give(self, value: int) -> int:
        """Return the place of an instruction that returns a value; a new one where all others are far away."""
        place = self._returns.get(value, 0)
        if not place or len(self._backwards) - place > _REACH // 2:
            place = self._returns[value] = self.add(_RETURN, value)
        return place

    def tree(self, ranges: Sequence[Range]) -> int:
        """Add the search among ranges of numbers and return its place; the number is loaded."""
        if len(ranges) == 1:
            return self._leaf(ranges[0][1])
        middle = _middle(ranges)
        right = self.tree(ranges[middle:])
        left = self.tree(ranges[:middle])
        return self.branch(_IF_AT_LEAST, ranges[middle][0], right, left)

    def _leaf(self, verdict: Verdict) -> int:
        match verdict:
            case AllowCall():
                return self.give(_RET_ALLOW)
            case Refuse():
                return self.give(_RET_ERRNO | verdict.error)
            case RefuseIf():
                target = _target(verdict)
                if target not in self._checks:
                    self._checks[target] = self._check(verdict)
                return self._checks[target]

    def _check(self, verdict: RefuseIf) -> int:
        if verdict.test == "is-none-of":
            self.tree(_values(verdict))
        else:
            refused, allowed = self.give(_RET_ERRNO | verdict.error), self.give(_RET_ALLOW)
            for value in verdict.values:
                allowed = self.branch(_IF_BITS, value, refused, allowed)
        return self.add(_LOAD, _ARGUMENTS + 8 * verdict.argument)


if TYPE_CHECKING:
    Verdict = AllowCall | Refuse | RefuseIf
    # What is laid out from a number on, up to the next one's
    Range = tuple[int, Verdict]
