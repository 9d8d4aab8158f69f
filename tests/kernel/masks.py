# SPDX-License-Identifier: Apache-2.0
"""A program that takes features of the kernel away from the command it then becomes, for real.

    python masks.py MASK... -- COMMAND...

Needs no root: it filters system calls, or lives in a user namespace in which its uid is mapped to itself.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

UNSHARE = {"x86_64": 272, "aarch64": 97}[platform.machine()]
CLONE = {"x86_64": 56, "aarch64": 220}[platform.machine()]
CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000
LOAD, EQUAL, ANY_BIT, GIVE = 0x20, 0x15, 0x45, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x50000
NUMBER, FIRST_ARGUMENT = 0, 16

# Mask: the system call, the errno it shall give, and the bits of its first argument it is about (0: always).
CALLS = {
    "landlock": (444, errno.EOPNOTSUPP, 0),
    "openat2": (437, errno.ENOSYS, 0),
    "fsopen": (430, errno.ENOSYS, 0),
    "own-namespace": (UNSHARE, errno.EPERM, CLONE_NEWPID),
    "forbidden-namespaces": (CLONE, errno.EPERM, CLONE_NEWUSER),
    # As where a container has all the processes, or all the memory, that it may have
    "no-more-processes": (CLONE, errno.EAGAIN, CLONE_NEWUSER),
    "no-more-memory": (CLONE, errno.ENOMEM, CLONE_NEWUSER),
}

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)


def filter_call(number: int, code: int, bits: int) -> None:
    """Let one system call fail from now on, in this process and all after it."""
    steps = [(LOAD, 0, 0, NUMBER), (EQUAL, 0, 3 if bits else 1, number)]
    steps += [(LOAD, 0, 0, FIRST_ARGUMENT), (ANY_BIT, 0, 1, bits)] if bits else []
    steps += [(GIVE, 0, 0, ERRNO | code), (GIVE, 0, 0, ALLOW)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(program)))
    check(libc.prctl(38, ctypes.c_ulong(1), 0, 0, 0), "no_new_privs")
    check(libc.prctl(22, ctypes.c_ulong(2), header, 0, 0), "seccomp")


def enter_namespace() -> None:
    """Take a user and a mount namespace, as the same uid and with all capabilities until the next execve."""
    uid, gid = os.getuid(), os.getgid()
    check(libc.unshare(0x10000000 | 0x00020000), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    mount("none", "/", "none", 0x4000 | 0x40000)


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    check(
        libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode() or None),
        f"mount {target}",
    )


def apply_mask(mask: str) -> None:
    name, _, argument = mask.partition("=")
    match name:
        case "no-more-namespaces":
            enter_namespace()
            with open("/proc/sys/user/max_user_namespaces", "w", encoding="ascii") as file:
                file.write("0")
        case "covered-proc":
            enter_namespace()
            mount("none", "/proc/fs", "tmpfs")
        case "overlay-state":
            enter_namespace()
            # Without an upper it would be read-only; volatile is what a run has too
            options = ",".join(f"{part}dir={argument}/{part}" for part in ("lower", "upper", "work"))
            mount("overlay", f"{argument}/merged", "overlay", 0, f"{options},userxattr")
        case _:
            filter_call(*CALLS[name])


def main() -> None:
    end = sys.argv.index("--")
    for mask in sys.argv[1:end]:
        apply_mask(mask)
    os.execv(sys.argv[end + 1], sys.argv[end + 1 :])


if __name__ == "__main__":
    main()
