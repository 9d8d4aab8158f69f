# SPDX-License-Identifier: Apache-2.0
"""What a command might ask of the kernel: mounts, capabilities, settings, namespaces, setuid programs, devices."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.attack.arena import Arena, drop, outside, python, replaced
from unspill.model.plan import Bind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.plan import MountOp

pytestmark = [pytest.mark.attack, pytest.mark.kernel]

REMOUNT = """
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_MOVE, MNT_DETACH = 1, 32, 4096, 8192, 2
for line in open("/proc/self/mountinfo"):
    point = line.split()[4].encode().decode("unicode_escape").encode()
    call(f"remount {point}", libc.mount(b"none", point, None, MS_REMOUNT | MS_BIND, None))
    call(f"umount {point}", libc.umount2(point, MNT_DETACH))
call("mount tmpfs", libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None))
call("bind", libc.mount(b"/usr", b"/tmp", None, MS_BIND, None))
call("move", libc.mount(b"/tmp", b"/var/tmp", None, MS_MOVE, None))
call("open_tree", libc.syscall(428, -100, b"/usr", 1))
call("move_mount", libc.syscall(429, -100, b"/tmp", -100, b"/var/tmp", 0))
call("fsopen", libc.syscall(430, b"tmpfs", 0))
call("fspick", libc.syscall(433, -100, b"/usr", 0))
call("mount_setattr", libc.syscall(442, -100, b"/usr", 0, struct.pack("QQQQ", 0, 1, 0, 0), 32))
call("pivot_root", libc.syscall(155, b"/tmp", b"/tmp"))
call("chroot", libc.chroot(b"/tmp"))
call("sethostname", libc.sethostname(b"pwned", 5))
"""

CAPABILITIES = """
for pid in ("self", "1"):
    for line in open(f"/proc/{pid}/status"):
        name, _, value = line.partition(":")
        if name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") and int(value, 16): won(pid, name, value.strip())
        if name == "NoNewPrivs" and value.strip() != "1": won(pid, "may gain privileges")
"""

WRITABLE_SETTINGS = """
import itertools
for top, directories, names in itertools.chain(os.walk("/proc"), os.walk("/sys")):
    if top == "/proc":
        directories[:] = [name for name in directories if not name.isdecimal() and name not in ("self", "thread-self")]
    for name in names:
        path = os.path.join(top, name)
        try: os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        except OSError: continue
        won(path)
"""

# Every open file has its own trigger there; nothing is kept and nobody else sees it
PRESSURE = {"/proc/pressure/cpu", "/proc/pressure/io", "/proc/pressure/memory"}

NESTED = """
NEWUSER, NEWNS, NEWPID, NEWNET = 0x10000000, 0x20000, 0x20000000, 0x40000000
uid = os.getuid()
directory = os.open(os.path.expanduser("~/playground"), os.O_RDONLY)
for name, flags in (("pid", NEWPID), ("net", NEWNET), ("mount", NEWNS)):
    child = os.fork()
    if not child:
        call(f"unshare {name} alone", libc.unshare(flags))
        os._exit(0)
    os.waitpid(child, 0)
if call("unshare", libc.unshare(NEWUSER | NEWNS)) == 0:
    open("/proc/self/uid_map", "w").write(f"0 {uid} 1")
    os.mkdir("/tmp/new")
    call("tmpfs in it", libc.mount(b"tmpfs", b"/tmp/new", b"tmpfs", 0, None))
    os.mkdir("/tmp/new/old")
    os.chdir("/tmp/new")
    call("pivot_root", libc.syscall(155, b".", b"old"))
    call("detach", libc.umount2(b"/old", 2))
    # The mount point is gone in this namespace, so the name that it protected can be moved away
    attempt("rename", lambda: os.rename("guarded", "moved", src_dir_fd=directory, dst_dir_fd=directory))
    with open(os.open("guarded", os.O_WRONLY | os.O_CREAT, dir_fd=directory), "w") as file: file.write("forged")
"""


def test_a2_no_mount_can_be_changed_and_no_capability_is_left(arena: Arena) -> None:
    """Remount, umount, move_mount, open_tree, fsopen, pivot_root on every mount; read all capability sets.
    Control: with `--cap-add ALL` and without the second user namespace the same script mounts."""
    assert not arena.attack(REMOUNT).won
    assert not arena.attack(CAPABILITIES).won

    def with_capabilities(options: list[bytes]) -> list[bytes]:
        left = drop(options, b"--disable-userns", b"--assert-userns-disabled", b"--cap-drop ALL")
        return [*left, b"--cap-add", b"ALL"]

    with arena.options_changed(with_capabilities):
        assert {"open_tree", "fsopen", "mount tmpfs"} <= set(arena.attack(REMOUNT).won)
        assert len(arena.attack(CAPABILITIES).won) >= 3


def test_a2_the_second_user_namespace_alone_already_stops_mounts(arena: Arena) -> None:
    """The same with every capability, but inside the namespace that bwrap makes to forbid others.
    Control: that of the test before."""
    with arena.options_changed(lambda options: [*drop(options, b"--cap-drop ALL"), b"--cap-add", b"ALL"]):
        won = set(arena.attack(REMOUNT).won)
    assert not {what for what in won if what.startswith(("remount", "umount", "mount", "move", "fsopen", "bind"))}


def test_a3_nothing_in_proc_or_sys_can_be_written(arena: Arena) -> None:
    """Open every file of /proc (but for processes) and /sys for writing.
    Control: the same script finds files where /proc/sys is that of a namespace of the caller's."""
    assert set(arena.attack(WRITABLE_SETTINGS).won) <= PRESSURE
    seen = arena.attack(
        "won('there is a /sys') if os.path.exists('/sys/kernel') else None\n"
        "won('/proc/sys is writable') if not os.statvfs('/proc/sys').f_flag & os.ST_RDONLY else None"
    )
    assert not seen.won


def test_a4_a_user_namespace_inside_can_not_undo_a_read_only_mount(arena: Arena) -> None:
    """The whole chain: unshare, map, pivot_root, detach, rename the guarded name through an open directory.
    Control: without `--disable-userns` the guarded file on the host is replaced."""
    arena.attack("")
    [playground] = (arena.ground.home / ".local/share/unspill/playground").iterdir()
    guarded = playground / "guarded"
    guarded.write_text("original")

    def guard(mounts: Sequence[MountOp]) -> list[MountOp]:
        dest = os.fsencode(arena.ground.home / "playground" / "guarded")
        return [*mounts[:-1], Bind(source=os.fsencode(guarded), dest=dest, why="guarded"), mounts[-1]]

    with arena.plan_changed(guard):
        assert not arena.attack(NESTED).won
        assert guarded.read_text() == "original"
        with arena.without(b"--disable-userns", b"--assert-userns-disabled"):
            assert {"unshare", "pivot_root", "detach", "rename"} <= set(arena.attack(NESTED).won)
        assert guarded.read_text() == "forged"
