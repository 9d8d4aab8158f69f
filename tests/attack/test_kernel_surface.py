# SPDX-License-Identifier: Apache-2.0
"""What a command might ask of the kernel: mounts, capabilities, settings, namespaces, setuid programs, devices."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from tests.attack.arena import Arena, drop, key_of_the_user, outside, replaced
from tests.support import chosen_views
from unspill.model.plan import Bind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.plan import MountOp

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

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
uid, gid = os.getuid(), os.getgid()
directory = os.open(os.path.expanduser("~/playground"), os.O_RDONLY)
for name, flags in (("pid", NEWPID), ("net", NEWNET), ("mount", NEWNS)):
    child = os.fork()
    if not child:
        call(f"unshare {name} alone", libc.unshare(flags))
        os._exit(0)
    os.waitpid(child, 0)
if call("unshare", libc.unshare(NEWUSER | NEWNS)) == 0:
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file: file.write(text)
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


def test_a2_no_mount_can_be_changed_and_no_capability_is_left(arena: Arena, engine: str) -> None:
    """Remount, umount, move_mount, open_tree, fsopen, pivot_root on every mount; read all capability sets.
    Control: as uid 0 of one user namespace, with its capabilities and no filter, the same script mounts and
    unmounts."""
    assert not arena.attack(REMOUNT).won
    assert not arena.attack(CAPABILITIES).won

    def with_capabilities(options: list[bytes]) -> list[bytes]:
        left = drop(options, b"--disable-userns", b"--assert-userns-disabled", b"--cap-drop ALL")
        return [*left, b"--cap-add", b"ALL", b"--uid", b"0", b"--gid", b"0"]

    with arena.without_filter(), arena.options_changed(with_capabilities):
        assert {"open_tree", "fsopen", "mount tmpfs"} <= set(arena.attack(REMOUNT).won)
        assert len(arena.attack(CAPABILITIES).won) >= 3


def test_a2_the_second_user_namespace_alone_already_stops_mounts(arena: Arena) -> None:
    """The same with every capability and no filter, but inside the namespace that bwrap makes to forbid others.
    Control: that of the test before."""
    with (
        arena.without_filter(),
        arena.options_changed(lambda options: [*drop(options, b"--cap-drop ALL"), b"--cap-add", b"ALL"]),
    ):
        won = set(arena.attack(REMOUNT).won)
    assert not {what for what in won if what.startswith(("remount", "umount", "mount", "move", "fsopen", "bind"))}


def test_a3_no_setting_in_proc_or_sys_can_be_written(arena: Arena) -> None:
    """Open every file of /proc (but for processes) and /sys for writing.
    Control: without the read-only /proc/sys the same script opens settings of the sandbox's namespaces; for a root
    caller those of the host (see the cases of root)."""
    assert set(arena.attack(WRITABLE_SETTINGS).won) == PRESSURE
    assert not arena.attack("won('there is a /sys') if os.path.exists('/sys/kernel') else None").won
    with arena.plan_changed(lambda mounts: replaced(mounts, b"/proc/sys")):
        assert len(arena.attack(WRITABLE_SETTINGS).won) > len(PRESSURE)


OF_OTHERS = """
for path in ("/proc/keys", "/proc/key-users"):
    if text := open(path).read(): won(path, "names the key" if %r in text else "names users")
"""


@pytest.mark.parametrize("view", chosen_views())
def test_a3_proc_does_not_name_what_others_have(arena: Arena, view: str) -> None:
    """Read which keys the user has, and which users have any: no namespace divides them.
    Control: without the masks the name of a key of the user is read, and the users."""

    def unmasked(mounts: Sequence[MountOp]) -> list[MountOp]:
        return [one for one in mounts if not one.dest.startswith(b"/proc/key")]

    with key_of_the_user() as name:
        assert not arena.attack(OF_OTHERS % name, view=view).won
        with arena.plan_changed(unmasked):
            won = arena.attack(OF_OTHERS % name, view=view).won
    assert won == ("/proc/keys names the key", "/proc/key-users names users")


def test_a4_a_user_namespace_inside_can_not_undo_a_read_only_mount(arena: Arena) -> None:
    """The whole chain: unshare, map, pivot_root, detach, rename the guarded name through an open directory.
    Control: without `--disable-userns` and without the filter, which stops it too, the guarded file is replaced."""
    arena.attack("")
    [playground] = (arena.ground.home / ".local/share/unspill/playground").iterdir()
    guarded = playground / "guarded"
    guarded.write_text("original")

    def guard(mounts: Sequence[MountOp]) -> list[MountOp]:
        dest = os.fsencode(arena.ground.playground_inside + "/guarded")
        return [*mounts[:-1], Bind(source=os.fsencode(guarded), dest=dest, why="guarded"), mounts[-1]]

    with arena.plan_changed(guard):
        assert not arena.attack(NESTED).won
        assert guarded.read_text() == "original"
        with arena.without(b"--disable-userns", b"--assert-userns-disabled"):
            assert not arena.attack(NESTED).won
            with arena.without_filter():
                assert {"unshare", "pivot_root", "detach", "rename"} <= set(arena.attack(NESTED).won)
        assert guarded.read_text() == "forged"


SETUID = """
def effective_ids(pid):
    return [line.split()[2] for line in open(f"/proc/{pid}/status") if line.startswith(("Uid:", "Gid:"))]
mine, started = effective_ids("self"), {}
for program in ("su", "passwd", "chsh", "chfn", "newgrp", "gpasswd", "mount", "umount"):
    path = f"/usr/bin/{program}"
    if os.path.exists(path) and os.stat(path).st_mode & 0o6000:
        # Most of them wait for a password or for input
        words = [path, "-c", "true"] if program == "su" else [path]
        pipe, null = subprocess.PIPE, subprocess.DEVNULL
        started[program] = subprocess.Popen(words, stdin=pipe, stdout=null, stderr=null)
time.sleep(0.3)
for program, process in started.items():
    if process.poll() is None and effective_ids(process.pid) != mine: won(program)
    process.kill()
if "su" not in started or started["su"].wait() == 0: sys.exit("there is no su to try")
"""


def test_a20_setuid_programs_are_ordinary_programs(arena: Arena) -> None:
    """Start the setuid programs of the system and look at their effective ids.
    Control: every set of flags stops this, so the same script on the host itself: `su` runs as root there."""
    assert not arena.attack(SETUID).won
    assert "WON su" in outside(SETUID).stdout


def test_a20_a_setuid_file_of_the_commands_own_gains_nothing(arena: Arena) -> None:
    """Make setuid and setgid copies of a program in every writable place and run them.
    Control: they are setuid files indeed, as their mode shows; no set of flags gives the ids of others."""
    script = """
    for place in (".", "/tmp", "/dev/shm", os.path.expanduser("~/playground")):
        path = os.path.join(place, "copy")
        with open("/usr/bin/id", "rb") as source, open(path, "wb") as copy: copy.write(source.read())
        os.chmod(path, 0o6755)
        print("MODE", oct(os.stat(path).st_mode & 0o7777))
        for wanted in (0, 65534, os.getuid() + 1):
            attempt(f"give {path} to {wanted}", os.chown, path, wanted, -1)
        if subprocess.run([path, "-u"], capture_output=True).stdout.decode().strip() != str(os.getuid()): won(path)
    """
    tried = arena.attack(script)
    assert not tried.won
    assert tried.lines.count("MODE 0o6755") == 4


DEVICES = """
harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx"}
names = %r
for name in names:
    for flags in (os.O_RDONLY, os.O_WRONLY):
        try: os.close(os.open(f"/dev/{name}", flags | os.O_NONBLOCK | os.O_NOCTTY))
        except OSError: continue
        if name not in harmless: won(name)
for place in (".", "/tmp", "/dev/shm", "/dev", os.path.expanduser("~/playground")):
    character, block = stat.S_IFCHR, stat.S_IFBLK
    for kind, major, minor in ((character, 1, 3), (character, 1, 1), (block, 254, 0), (character, 10, 200)):
        path = f"{place}/made-{major}-{minor}"
        attempt(path, os.mknod, path, kind | 0o666, os.makedev(major, minor))
if os.listdir("/dev/pts") not in ([], ["ptmx"]): won("terminals", os.listdir("/dev/pts"))
try: os.close(os.open("/dev/tty", os.O_RDWR))
except OSError: pass
else: won("a controlling terminal")
"""


def host_devices() -> list[str]:
    """Return the devices of the host, and those that other hosts have."""
    known = [
        "kvm",
        "vda",
        "sda",
        "nvme0n1",
        "mem",
        "kmem",
        "port",
        "fuse",
        "tty0",
        "kmsg",
        "net/tun",
        "snapshot",
        "loop0",
    ]
    found = [name for name in os.listdir("/dev") if not stat.S_ISDIR(os.stat(f"/dev/{name}").st_mode)]
    return sorted({*known, *found} - {"fd", "stdin", "stdout", "stderr", "core"})


def test_a21_only_harmless_devices_can_be_opened_and_none_made(arena: Arena) -> None:
    """Open every device of the host, make device nodes, look for terminals.
    Control: with the host's /dev the same script opens some."""
    script = DEVICES % host_devices()
    assert not arena.attack(script).won
    with arena.options_changed(with_host_devices):
        assert "autofs" in arena.attack(script).won


def with_host_devices(options: list[bytes]) -> list[bytes]:
    left = drop(options, b"--remount-ro /dev")
    at, last = left.index(b"--dev"), left.index(b"/dev/shm")
    return [*left[:at], b"--dev-bind", b"/dev", b"/dev", *left[at + 2 : last - 5], *left[last + 1 :]]
