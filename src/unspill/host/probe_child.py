# SPDX-License-Identifier: Apache-2.0
"""The program that `probe` starts for each try that can't be undone: namespaces, mounts, filters, joining a group.

It writes one line per question to stdout: name, answer (0 or a positive number) and reason, separated by tabs. If the
process is killed or crashes, that is an answer too.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct

from unspill.host import libc
from unspill.host.landlock import abi_version
from unspill.host.libc import enter_own_namespaces
from unspill.host.overlay import MountRefused, mount_overlays

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PARTS = (b"lower", b"upper", b"work", b"merged")


def main(arguments: Sequence[str]) -> None:
    """Answer the questions of one kind in the current directory."""
    match arguments:
        case ["kernel"]:
            ask_kernel()
        case ["overlay"]:
            ask_overlay()
        case ["write"]:
            answer("write", lambda: write_through(b"merged"))
        case ["join", *groups]:
            answer("join", lambda: join_groups(groups))


def answer(name: str, question: Callable[[], int]) -> int:
    """Write the answer to one question; an OSError is the reason for a no."""
    try:
        value, reason = question(), ""
    except OSError as error:
        value, reason = 0, error.strerror or str(error)
    os.write(1, f"{name}\t{value}\t{' '.join(reason.split())}\n".encode("utf-8", "replace"))
    return value


def ask_kernel() -> None:
    """Ask for system calls that need no privilege, the one that can't be undone last."""
    answer("landlock_abi", abi_version)
    answer("openat2", can_openat2)
    answer("seccomp", can_filter)


def ask_overlay() -> None:
    """Ask whether this process can mount overlays by itself in the current directory."""
    if not answer("own_namespace", can_own_namespace):
        return
    answer("mount", can_mount_overlay)
    answer("lowerdir_plus", can_add_lowers)


def can_own_namespace() -> int:
    """Take a user namespace as the spawner does, and use a capability of it.

    Ubuntu's AppArmor lets anybody make one and then refuses every use of it.
    """
    enter_own_namespaces()
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount(None, b"/", None, libc.MS_REC | libc.MS_PRIVATE, None)
    return 1


def can_mount_overlay() -> int:
    """Mount an overlay exactly as a run does, change things through it and look at what lands in the upper."""
    prepare(b".")
    lower, upper, work, merged = (os.path.join(os.getcwdb(), part) for part in PARTS)
    try:
        mount_overlays([((lower,), merged, upper, work)])
    except MountRefused as refused:
        raise OSError(refused.errno, refused.text) from None
    write_through(b"merged")
    check(b".")
    return 1


def can_add_lowers() -> int:
    """Mount with `lowerdir+`, which a stack of many layers needs; mounted nowhere, seen through a descriptor."""
    for name, content in ((b"plus1", b"upper one"), (b"plus2", b"lower one")):
        os.mkdir(name)
        _write_file(name + b"/same", content)
    fs_fd = libc.fsopen(b"overlay")
    for name in (b"plus1", b"plus2"):
        libc.fsconfig_string(fs_fd, b"lowerdir+", name)
    libc.fsconfig_flag(fs_fd, b"userxattr")
    libc.fsconfig_create(fs_fd)
    mount_fd = libc.fsmount(fs_fd, libc.MOUNT_ATTR_RDONLY)
    with open(os.open(b"same", os.O_RDONLY, dir_fd=mount_fd), "rb") as file:
        _expect(file.read() == b"upper one", "the topmost lower directory does not win")
    return 1


def prepare(top: bytes) -> None:
    """Make the directories of an overlay below `top`, with a lower tree that `write_through` changes."""
    for part in PARTS:
        os.mkdir(os.path.join(top, part))
    lower = os.path.join(top, b"lower")
    for name in (b"copied", b"removed", b"emptied/old"):
        os.makedirs(os.path.join(lower, os.path.dirname(name)), exist_ok=True)
        _write_file(os.path.join(lower, name), b"before")


def write_through(merged: bytes) -> int:
    """Change one file, delete one and replace a directory by an empty one of the same name."""
    with open(os.path.join(merged, b"copied"), "ab") as file:
        file.write(b" and after")
    os.unlink(os.path.join(merged, b"removed"))
    emptied = os.path.join(merged, b"emptied")
    os.unlink(os.path.join(emptied, b"old"))
    os.rmdir(emptied)
    os.mkdir(emptied)
    _expect(sorted(os.listdir(merged)) == [b"copied", b"emptied"], "the merged view has other names")
    _expect(os.listdir(emptied) == [], "a replaced directory shows its old entries")
    return 1


def check(top: bytes) -> None:
    """Look whether the upper holds a copy, a whiteout and an opaque directory, and the lower nothing new.

    Raises:
        OSError: it does not, so changes could not be read from it.
    """
    upper, lower = os.path.join(top, b"upper"), os.path.join(top, b"lower")
    _expect(_read_file(os.path.join(upper, b"copied")) == b"before and after", "no copy in the upper")
    _expect(_read_file(os.path.join(lower, b"copied")) == b"before", "the lower directory was written")
    removed = os.lstat(os.path.join(upper, b"removed"))
    _expect(stat.S_ISCHR(removed.st_mode) and removed.st_rdev == 0, "a deletion leaves no whiteout")
    opaque = os.getxattr(os.path.join(upper, b"emptied"), "user.overlay.opaque", follow_symlinks=False)
    _expect(opaque == b"y", "a replaced directory is not opaque")


def can_openat2() -> int:
    """Open this directory by openat2, and see it refuse a symlink."""
    os.close(libc.openat2(None, b".", os.O_PATH | os.O_DIRECTORY, libc.RESOLVE_BENEATH))
    try:
        os.close(libc.openat2(None, b"/proc/self", os.O_PATH, libc.RESOLVE_NO_SYMLINKS))
    except OSError:
        return 1
    raise OSError("openat2 followed a symlink")


def can_filter() -> int:
    """Install a filter that gives a system call which does not exist an errno of its own."""
    # load nr; equal to 0xfff0: return that errno, else allow
    unused, load, jump, give = 0xFFF0, 0x20, 0x15, 0x06
    steps = ((load, 0, 0, 0), (jump, 0, 1, unused), (give, 0, 0, 0x50000 | errno.EBADE), (give, 0, 0, 0x7FFF0000))
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(program)))
    set_no_new_privs, set_seccomp, filter_mode = 38, 22, 2
    calls = ctypes.CDLL(None, use_errno=True)
    for setting in ((set_no_new_privs, ctypes.c_ulong(1), 0), (set_seccomp, ctypes.c_ulong(filter_mode), header)):
        if calls.prctl(*setting, 0, 0) < 0:
            raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")
    calls.syscall(ctypes.c_long(unused))
    _expect(ctypes.get_errno() == errno.EBADE, f"the filter was not asked: {os.strerror(ctypes.get_errno())}")
    return 1


def join_groups(groups: Sequence[str]) -> int:
    """Move this process into each group; it leaves them by ending."""
    for group in groups:
        with open(os.path.join(group, "cgroup.procs"), "w", encoding="ascii") as file:
            file.write(str(os.getpid()))
    return 1


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise OSError(0, otherwise)


def _write_file(path: bytes, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)


def _read_file(path: bytes) -> bytes:
    with open(path, "rb") as file:
        return file.read()
