# SPDX-License-Identifier: Apache-2.0
"""The namespaces that the spawner lives in: user, pid and mount, taken by an ordinary user.

Each function is called once, in a process that has one thread and nothing to lose.
"""

from __future__ import annotations

import os

from unspill.host import libc

_COUNTED_BY_USER = (b"/proc/sys/user/max_inotify_instances", b"/proc/sys/user/max_inotify_watches")


def enter_own_namespaces() -> None:
    """Take a user namespace in which this uid and gid are mapped to themselves, and a pid namespace for children."""
    uid, gid = os.getuid(), os.getgid()
    counted = [(path, _read_number(path)) for path in _COUNTED_BY_USER]
    libc.unshare(libc.CLONE_NEWUSER | libc.CLONE_NEWPID)
    write_setting(b"/proc/self/setgroups", b"deny")
    write_setting(b"/proc/self/uid_map", b"%d %d 1" % (uid, uid))
    write_setting(b"/proc/self/gid_map", b"%d %d 1" % (gid, gid))
    for path, most in counted:
        if most:
            # Half of it is left to the person's own programs, whatever the sandboxes do
            _try_set(path, b"%d" % (most // 2))


def _read_number(path: bytes) -> int:
    try:
        with open(path, "rb") as file:
            return int(file.read())
    except OSError:
        return 0


def _try_set(path: bytes, content: bytes) -> None:
    try:
        write_setting(path, content)
    except OSError:
        return  # this kernel does not count it by namespace, or /proc/sys can't be written here


def show_own_processes() -> None:
    """Mount a /proc of this pid namespace: bwrap looks its child up there by the pid that it sees.

    The mount namespace stays a slave of the host's, so that each run starts from what is mounted there now.
    """
    libc.unshare(libc.CLONE_NEWNS)
    libc.mount(None, b"/", None, libc.MS_REC | libc.MS_SLAVE, None)
    libc.mount(b"proc", b"/proc", b"proc", libc.MS_NOSUID | libc.MS_NODEV | libc.MS_NOEXEC, None)


def write_setting(path: bytes, content: bytes) -> None:
    """Write one of the kernel's files, which takes its content whole or not at all."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)
