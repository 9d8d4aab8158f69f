# SPDX-License-Identifier: Apache-2.0
"""Which system calls a command may make, by profile, and why not the others.

A list of what is refused, because the command is any developer's tool, with three properties of a list of what is
allowed: no foreign architecture, no number that is not known, no family of sockets and no ioctl but a few.
Pure; how a kernel is told is for `seccomp_layout`.
"""

from __future__ import annotations

from errno import EAFNOSUPPORT, ENOSYS, ENOTTY, EPERM

from unspill.errors import HostError
from unspill.host.seccomp_ioctls import IOCTLS
from unspill.host.seccomp_numbers import STRETCHES
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    from unspill.model.policy import Profile

    Test = Literal["has-a-bit-of", "is-none-of"]


class Allow(Record):
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


if TYPE_CHECKING:
    Verdict = Allow | Refuse | RefuseIf

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
_ALLOWED = Allow()

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
            remedy=f"Use a machine with a 64-bit system of one of these kinds: {', '.join(STRETCHES)}.",
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
