# SPDX-License-Identifier: Apache-2.0
"""Runs inside, under a filter or without one: makes system calls and prints as JSON what came of them.

seccomp_inside.py attempts NAME=NUMBER ...   the attacks below, by name: "done", or the name of the error
seccomp_inside.py numbers NUMBER ...         each call with arguments that no call can take: the error
"""

import ctypes
import errno
import json
import os
import socket
import struct
import sys
from collections.abc import Callable
from functools import partial
from typing import Final

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
NUMBERS: Final[dict[str, int]] = {}
NEWUSER, SIGCHLD, AT_FDCWD = 0x10000000, 17, -100
TIOCSCTTY, TIOCSTI, TIOCGWINSZ, TIOCLINUX, TIOCSETD = 0x540E, 0x5412, 0x5413, 0x541C, 0x5423
ABOVE_32_BITS = 1 << 32


def raw(number: int, *arguments: object) -> int:
    """Make a system call.

    Raises:
        OSError: it failed.
    """
    ctypes.set_errno(0)
    words = [ctypes.c_ulong(one & 2**64 - 1) if isinstance(one, int) else one for one in arguments]
    result = int(libc.syscall(ctypes.c_long(number), *words))
    if result == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def call(name: str, *arguments: object) -> int:
    """Make a system call by its name."""
    return raw(NUMBERS[name], *arguments)


def on_a_terminal(request: int, value: bytes) -> None:
    """Ask something of a terminal of one's own, in a new process that it controls."""
    _, terminal = os.openpty()
    argument = ctypes.create_string_buffer(value)

    def ask() -> None:
        os.setsid()
        call("ioctl", terminal, TIOCSCTTY, 0)
        call("ioctl", terminal, request, argument)

    in_a_child(ask)


def clone_with(flags: int) -> None:
    child = call("clone", flags | SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def in_a_child(attempt: Callable[[], object]) -> None:
    """Make an attempt that would change this process in another one."""
    child = os.fork()
    if child == 0:
        try:
            attempt()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 255)
    _, status = os.waitpid(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise OSError(code, os.strerror(code))


def family(number: int) -> None:
    """Open a socket of a family, of whichever type it has."""
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET, socket.SOCK_RAW):
        try:
            os.close(call("socket", number, kind, 0))
            return
        except OSError as error:
            last = error
    raise last


def pair(number: int) -> None:
    both = (ctypes.c_int * 2)()
    call("socketpair", number, socket.SOCK_STREAM, 0, both)


def read_own_memory(name: str) -> None:
    """Copy between two buffers of this process by process_vm_readv or process_vm_writev."""
    one, other = ctypes.create_string_buffer(b"a", 8), ctypes.create_string_buffer(8)
    vectors = [struct.pack("QQ", ctypes.addressof(buffer), 1) for buffer in (one, other)]
    call(name, os.getpid(), vectors[0], 1, vectors[1], 1, 0)


PERF = struct.pack("IIQQQQQ", 1, 64, 0, 0, 0, 0, 0x61)
HANDLE = ctypes.create_string_buffer(struct.pack("Ii", 120, 0), 128)
ATTEMPTS: Final[dict[str, Callable[[], object]]] = {
    "add_key": lambda: call("add_key", b"user", b"unspill", b"secret", 6, -3),
    "keyctl": lambda: call("keyctl", 0, -3, 0, 0, 0),
    "request_key": lambda: call("request_key", b"user", b"unspill", 0, -3),
    "unshare": lambda: in_a_child(lambda: call("unshare", NEWUSER)),
    "setns": lambda: in_a_child(lambda: call("setns", os.open("/proc/self/ns/uts", os.O_RDONLY), 0)),
    "clone with NEWUSER": lambda: clone_with(NEWUSER),
    "clone with NEWUSER and a bit above": lambda: clone_with(NEWUSER | ABOVE_32_BITS),
    "clone": lambda: clone_with(0),
    "clone3": lambda: call("clone3", 0, 0),
    "open_tree": lambda: call("open_tree", AT_FDCWD, b"/", 0),
    "fsopen": lambda: call("fsopen", b"tmpfs", 0),
    "move_mount": lambda: call("move_mount", AT_FDCWD, b"/", AT_FDCWD, b"/tmp", 0),
    "io_uring_setup": lambda: call("io_uring_setup", 4, ctypes.create_string_buffer(128)),
    "userfaultfd": lambda: call("userfaultfd", 1),
    "fallocate": lambda: call("fallocate", os.memfd_create("x"), 0, 0, 4096),
    "io_setup": lambda: call("io_setup", 1, ctypes.byref(ctypes.c_ulong())),
    "memfd_secret": lambda: call("memfd_secret", 0),
    "perf_event_open": lambda: call("perf_event_open", PERF + bytes(16), 0, -1, -1, 0),
    "bpf": lambda: call("bpf", 0, ctypes.create_string_buffer(struct.pack("IIIII", 2, 4, 8, 1, 0), 128), 128),
    "kcmp": lambda: call("kcmp", os.getpid(), os.getpid(), 1, 0, 0),
    "name_to_handle_at": lambda: call("name_to_handle_at", AT_FDCWD, b"/tmp", HANDLE, ctypes.byref(ctypes.c_int()), 0),
    "fanotify_init": lambda: call("fanotify_init", 0x200, 0),
    "set_mempolicy": lambda: call("set_mempolicy", 0, 0, 0),
    "mbind": lambda: call("mbind", 0, 0, 0, 0, 0, 0),
    "TIOCSTI": lambda: on_a_terminal(TIOCSTI, b"x"),
    "TIOCSTI with a bit above": lambda: on_a_terminal(TIOCSTI | ABOVE_32_BITS, b"x"),
    "TIOCLINUX": lambda: on_a_terminal(TIOCLINUX, b"\3"),
    "TIOCSETD": lambda: on_a_terminal(TIOCSETD, bytes(4)),
    "TIOCGWINSZ": lambda: on_a_terminal(TIOCGWINSZ, bytes(8)),
    "ptrace": lambda: in_a_child(lambda: call("ptrace", 0, 0, 0, 0)),
    "process_vm_readv": lambda: read_own_memory("process_vm_readv"),
    "process_vm_writev": lambda: read_own_memory("process_vm_writev"),
    "pidfd_getfd": lambda: call("pidfd_getfd", os.pidfd_open(os.getpid()), 1, 0),
    "personality without randomisation": lambda: in_a_child(lambda: call("personality", 0x0040000)),
    "personality as it is": lambda: call("personality", 0xFFFFFFFF),
    **{f"socket {number}": partial(family, number) for number in range(46)},
    **{f"socketpair {number}": partial(pair, number) for number in (1, 30, 40)},
}


def outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error.errno))
    return "done"


def error_of(number: int) -> int:
    try:
        raw(number, -1, -1, -1, -1, -1, -1)
    except OSError as error:
        return error.errno or 0
    return 0


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "attempts":
        NUMBERS.update((name, int(number)) for name, number in (word.split("=") for word in words))
        print(json.dumps({name: outcome(attempt) for name, attempt in ATTEMPTS.items()}))
    else:
        print(json.dumps({number: error_of(int(number)) for number in words}))
