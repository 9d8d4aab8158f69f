# SPDX-License-Identifier: Apache-2.0
"""A2 to A4, A13, A16 to A21: what a command might ask of the kernel, one call at a time."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Final

from tests.attack.arena import Arena, drop, replaced
from tests.attack.requests import REQUESTS
from tests.attack.techniques.record import FILTER, NO_NAMESPACES, Defence, Listed, inside
from tests.attack.test_kernel_surface import with_host_devices
from tests.attack.test_system_calls import NUMBERS, key_of_the_person
from tests.kernel.seccomp_box import FOREIGN, INSIDE

if TYPE_CHECKING:
    from collections.abc import Callable

LIST: Final = Listed()


def with_capabilities(options: list[bytes]) -> list[bytes]:
    left = drop(options, b"--disable-userns", b"--assert-userns-disabled", b"--cap-drop ALL")
    return [*left, b"--cap-add", b"ALL", b"--uid", b"0", b"--gid", b"0"]


CAPABILITIES: Final = Defence(
    "the dropped capabilities, `--disable-userns`", lambda arena: arena.options_changed(with_capabilities)
)

MOUNTS: Final = {
    # That it is nosuid and nodev can't be changed everywhere
    "Remount the system read-write": "call('remount', libc.mount(b'none', b'/etc', None, 32 | 4096 | 6, None))",
    "Unmount what covers the kernel's settings": "call('umount', libc.umount2(b'/proc/sys', 2))",
    "Unmount the home directory of the sandbox": "call('umount', libc.umount2(os.path.expanduser('~').encode(), 2))",
    "Mount a file system over a directory": "call('tmpfs', libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None))",
    "Mount another /proc": "call('proc', libc.mount(b'proc', b'/tmp', b'proc', 0, None))",
    "Bind a directory over another": "call('bind', libc.mount(b'/usr', b'/tmp', None, 4096, None))",
    "Move a mount to another place": "call('move', libc.mount(b'/dev/shm', b'/tmp', None, 8192, None))",
    "Change how mounts propagate": "call('shared', libc.mount(None, b'/', None, 1 << 20, None))",
    "Take a copy of a mount by open_tree": "call('open_tree', libc.syscall(428, -100, b'/usr', 1))",
    "Attach a copy of a mount by move_mount": (
        "tree = libc.syscall(428, -100, b'/usr', 1)\ncall('move_mount', libc.syscall(429, tree, b'', -100, b'/tmp', 4))"
    ),
    "Make a file system by fsopen": "call('fsopen', libc.syscall(430, b'tmpfs', 0))",
    "Pick a mounted file system by fspick, to configure it anew": "call('fspick', libc.syscall(433, -100, b'/tmp', 0))",
    "Clear the read-only flag by mount_setattr": (
        "call('mount_setattr', libc.syscall(442, -100, b'/etc', 0, struct.pack('QQQQ', 0, 1, 0, 0), 32))"
    ),
    "Take another root by chroot": "call('chroot', libc.chroot(b'/tmp'))",
    "Change the host name": "call('sethostname', libc.sethostname(b'pwned', 5))",
}
for _tries, _script in MOUNTS.items():
    LIST.add("A2", _tries, inside(_script), FILTER & CAPABILITIES)
LIST.add(
    "A2",
    "Look for a capability in any set of any process",
    inside("""
for pid in ("self", "1"):
    for line in open(f"/proc/{pid}/status"):
        name, _, value = line.partition(":")
        if name.startswith("Cap") and int(value, 16): won(pid, name)
"""),
    CAPABILITIES,
)

SETTINGS: Final = Defence(
    "the read-only /proc/sys", lambda arena: arena.plan_changed(lambda mounts: replaced(mounts, b"/proc/sys"))
)
LIST.add(
    "A3",
    "Open a setting of the kernel for writing",
    inside("""
for here, _, names in os.walk("/proc/sys"):
    for name in names:
        try: os.close(os.open(os.path.join(here, name), os.O_WRONLY | os.O_NONBLOCK))
        except OSError: continue
        won(os.path.join(here, name))
"""),
    SETTINGS,
)
LIST.add(
    "A3",
    "Raise the bound of message queues by a setting",
    inside("""
def raise_it():
    with open("/proc/sys/fs/mqueue/msg_max", "r+") as file: file.write("11")
attempt("msg_max", raise_it)
"""),
    SETTINGS,
)

NAMESPACES: Final = {
    "Make a user namespace by unshare": "call('unshare', libc.unshare(0x10000000))",
    "Make a user namespace by clone": (
        "child = libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)\nif not child: os._exit(0)\ncall('clone', child)"
    ),
    "Make a user namespace by clone3": (
        "child = libc.syscall(435, struct.pack('11Q', 0x10000000, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88)\n"
        "if not child: os._exit(0)\n"
        "call('clone3', child)"
    ),
    "Make a user namespace and a mount in it": (
        "if libc.unshare(0x10000000 | 0x20000) == 0: call('mount', libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None))"
    ),
    "Make a user namespace with all capabilities by the program unshare": (
        "if not subprocess.run(['unshare', '-Ur', 'true'], capture_output=True).returncode: won('unshare')"
    ),
    "Start a sandbox inside, by bwrap": (
        "words = ['bwrap', '--unshare-user', '--ro-bind', '/', '/', 'true']\n"
        "if not subprocess.run(words, capture_output=True).returncode: won('bwrap')"
    ),
}
for _tries, _script in NAMESPACES.items():
    LIST.add("A4", _tries, inside(_script), FILTER & NO_NAMESPACES)


KEY: Final = b"unspill-canary"
KEYS: Final = {
    "Read a key of the person": (
        "key = libc.syscall(n['keyctl'], 10, -3, b'user', name, 0)\n"
        "space = ctypes.create_string_buffer(64)\n"
        "call('read', libc.syscall(n['keyctl'], 11, key, space, 64))"
    ),
    "Have a key of the person by request_key": (
        "call('request', libc.syscall(n['request_key'], b'user', name, None, 0))"
    ),
    "Leave a key for the next run": (
        "call('leave', libc.syscall(n['add_key'], b'user', b'left', b'by the command', 14, -3))"
    ),
    "Look at the person's keyring by its number": "call('id', libc.syscall(n['keyctl'], 0, -3, 0))",
    "Give all rights over a key of the person away": (
        "key = libc.syscall(n['keyctl'], 10, -3, b'user', name, 0)\n"
        "call('rights', libc.syscall(n['keyctl'], 5, key, 0x3f3f3f3f))"
    ),
}


def with_key(script: str) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        numbers = {name: NUMBERS[name] for name in ("keyctl", "add_key", "request_key")}
        with key_of_the_person(KEY):
            return arena.attack(f"n, name = {numbers!r}, {KEY!r}\n{script}").won

    return attack


for _tries, _script in KEYS.items():
    LIST.add("A13", _tries, with_key(_script), FILTER)


def attempts(*names: str, profile: str = "default") -> Callable[[Arena], object]:
    """Return the attack of some of the attempts that the filter's own tests make."""

    def attack(arena: Arena) -> object:
        words = [f"{name}={number}" for name, number in NUMBERS.items()]
        command = ["/usr/bin/python3", "-I", "-c", INSIDE.read_text(), "attempts", *words]
        result = arena.ground.sandbox(profile=profile).run(command)
        assert result.ok, result
        told: dict[str, str] = json.loads(result.stdout.head + result.stdout.tail)
        return [name for name in names if told[name] == "done"]

    return attack


LIST.add("A16", "Open a socket to the virtual machine's host (AF_VSOCK)", attempts("socket 40"), FILTER)
LIST.add(
    "A16",
    "Ask the virtual machine's host for a connection by vsock, which knows no network namespace",
    inside("""
try: knocking = socket.socket(40, socket.SOCK_STREAM)
except OSError as error: lost(error.strerror)
else:
    # Nobody listens there: that it is asked at all is too much
    try: knocking.bind((0xffffffff, 0xffffffff))
    except OSError as error: lost(error.strerror)
    else: won("bound")
"""),
    FILTER,
)

TERMINAL: Final = {
    "TIOCSTI": "Type on a terminal by TIOCSTI",
    "TIOCSTI with a bit above": "Type on a terminal by TIOCSTI with a bit that the kernel does not read",
    "TIOCSETD": "Load a line discipline into a terminal",
}
for _name, _tries in TERMINAL.items():
    LIST.add("A17", _tries, attempts(_name), FILTER)

CALLS: Final = {
    "io_uring_setup": "Make a ring of requests by io_uring, past the filter of single calls",
    "userfaultfd": "Hold the kernel at a page fault by userfaultfd",
    "memfd_secret": "Have memory that nobody else can read by memfd_secret",
    "perf_event_open": "Watch the processor by perf_event_open",
    "name_to_handle_at": "Get a handle of a file by name_to_handle_at",
    "fanotify_init": "Watch other people's file accesses by fanotify",
    "kcmp": "Compare objects of the kernel by kcmp",
    "set_mempolicy": "Choose the memory's place by set_mempolicy",
    "mbind": "Choose the memory's place by mbind",
    "open_tree": "Open a mount as a tree without a copy",
}
for _name, _tries in CALLS.items():
    LIST.add("A18", _tries, attempts(_name), FILTER)


REACH: Final = {
    "ptrace": "Trace another process in the profile `strict`",
    "process_vm_readv": "Read the memory of another process in the profile `strict`",
    "process_vm_writev": "Write the memory of another process in the profile `strict`",
    "pidfd_getfd": "Take a descriptor out of another process in the profile `strict`",
    "socket 1": "Open a Unix socket in the profile `strict`",
    "socket 16": "Talk to the kernel by netlink in the profile `strict`",
}
for _name, _tries in REACH.items():
    LIST.add_pair("A18", _tries, attempts(_name, profile="strict"), "in the profile `default`", attempts(_name))


NO_BACKUP: Final = """
file = os.open(os.path.join(place, "file"), os.O_RDWR | os.O_CREAT)
attempt("mark", fcntl.ioctl, file, request, struct.pack("Q", 0x40))
"""
PLACES: Final[dict[str, Callable[[Arena], str]]] = {
    "the project": lambda arena: arena.ground.inside(),
    "the playground": lambda arena: arena.ground.playground_inside,
}


def in_place(place: Callable[[Arena], str]) -> Callable[[Arena], dict[str, object]]:
    return lambda arena: {"place": place(arena), "request": REQUESTS["FS_IOC_SETFLAGS"]}


for _name, _place in PLACES.items():
    _tries = f"Mark a file of {_name} so that backups leave it out, which no change set shows"
    LIST.add("A18", _tries, inside(NO_BACKUP, given=in_place(_place)), FILTER)


def by_int80(arena: Arena) -> object:
    program = arena.ground.project / "foreign"
    if not program.exists():
        subprocess.run(["gcc", "-O1", "-o", program, "-x", "c", "-"], input=FOREIGN, text=True, check=True)
    pid, same_pid, *_rest = json.loads(arena.ground.sandbox().run([os.fspath(program)]).stdout.head)
    return pid == same_pid


def unshare_by_int80(arena: Arena) -> object:
    by_int80(arena)
    told = json.loads(arena.ground.sandbox().run([os.fspath(arena.ground.project / "foreign")]).stdout.head)
    return told[2] == 0


LIST.add("A19", "Make calls by the entry for 32-bit programs", by_int80, FILTER)
LIST.add("A19", "Make a user namespace by the entry for 32-bit programs", unshare_by_int80, FILTER & NO_NAMESPACES)

HOST_DEVICES: Final = Defence("the own /dev", lambda arena: arena.options_changed(with_host_devices))
LIST.add(
    "A21",
    "Open a device of the host that anybody may open",
    inside("""
harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx"}
for name in set(os.listdir("/dev")) - harmless - {"fd", "stdin", "stdout", "stderr", "core"}:
    path = f"/dev/{name}"
    if stat.S_ISDIR(os.stat(path).st_mode): continue
    try: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError: continue
    won(name)
"""),
    HOST_DEVICES,
)
LIST.add(
    "A21",
    "See the names of the host's disks and terminals",
    inside("""
for name in os.listdir("/dev"):
    if name.startswith(("vd", "sd", "nvme", "loop", "tty0", "tty1", "kmsg", "mem")): won(name)
"""),
    HOST_DEVICES,
)
