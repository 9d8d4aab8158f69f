# SPDX-License-Identifier: Apache-2.0
"""The program that runs inside a sandbox before the command, where the kernel wants to be asked from inside.

It fences itself in (Landlock), lets the caller hear of file accesses (seccomp), and becomes the command. Only the
profile `strict` and runs that explain refusals have it. Its text is put into the sandbox with a call of `main` at
its end and run there by whatever Python the sandbox shows, from 3.7 on: it imports nothing of unspill.
"""

from __future__ import annotations

import ctypes
import os
import sys

# All that is imported is imported here: once accesses are told, to open a module would wait for an answer, and who
# answers is not told yet where to listen
from _socket import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import NoReturn
else:
    import _signal as signal

_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SYS_CREATE_RULESET, _SYS_ADD_RULE, _SYS_RESTRICT_SELF = 444, 445, 446
_RULE_PATH, _RULE_PORT = 1, 2
_CONNECT_TCP = 2
# EXECUTE, WRITE_FILE, READ_FILE, TRUNCATE, IOCTL_DEV: all that a rule for something else than a directory may have
_OF_FILES = 1 | 2 | 4 | 1 << 14 | 1 << 15
_SECCOMP_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5
_INSTRUCTION = 8
_SOL_SOCKET, _SCM_RIGHTS = 1, 1
_NOT_FOUND, _NOT_EXECUTABLE, _OUR_FAILURE = 127, 126, 125

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _Attributes(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("fd", ctypes.c_int32))


class _PortRule(ctypes.Structure):
    _fields_ = (("access", ctypes.c_uint64), ("port", ctypes.c_uint64))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def _call(what: str, number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result


def fence_in(
    handled: tuple[int, int, int],
    rules: tuple[tuple[bytes, int], ...],
    ports: tuple[int, ...],
) -> None:
    """Give up, for good and for every process to come, all access that no rule has.

    Args:
        handled: The rights that exist here: of files, of TCP, and what ends at the fence. A kernel takes a shorter
            structure than it knows, and no longer one.
        rules: Paths, and what is allowed there and below.
        ports: Where TCP connections may lead.
    """
    size = 24 if handled[2] else 16 if handled[1] else 8
    attributes = _Attributes(*handled)
    ruleset = _call("landlock_create_ruleset", _SYS_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0)
    for path, access in rules:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        is_directory = os.path.isdir(b"/proc/self/fd/%d" % fd)
        rule = _PathRule(access if is_directory else access & _OF_FILES, fd)
        _call(os.fsdecode(path), _SYS_ADD_RULE, ruleset, _RULE_PATH, ctypes.byref(rule), 0)
        os.close(fd)
    for port in ports:
        allowed = _PortRule(_CONNECT_TCP, port)
        _call(f"port {port}", _SYS_ADD_RULE, ruleset, _RULE_PORT, ctypes.byref(allowed), 0)
    _call("landlock_restrict_self", _SYS_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def listen_for(notices: bytes) -> int:
    """Install a filter that has the kernel tell of some calls, and return the descriptor that it tells them by."""
    number = _SYS_SECCOMP[os.uname().machine]
    program = _Program(len(notices) // _INSTRUCTION, notices)
    try:
        # Else a signal interrupts a call that was told, which is made and told again, perhaps for ever
        flags = _NEW_LISTENER | _WAIT_KILLABLE
        return _call("seccomp", number, _SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(program))
    except OSError:
        return _call("seccomp", number, _SECCOMP_SET_MODE_FILTER, _NEW_LISTENER, ctypes.byref(program))


def tell(channel: int, words: bytes, descriptor: int | None = None) -> None:
    """Send a message to the caller; by hand there is none, and stderr is where failures go."""
    if channel < 0:
        if words.startswith(b"failed"):
            os.write(2, b"unspill: " + words + b"\n")
        return
    other = socket(fileno=os.dup(channel))
    rights = [] if descriptor is None else [(_SOL_SOCKET, _SCM_RIGHTS, descriptor.to_bytes(4, sys.byteorder))]
    other.sendmsg([words], rights)
    other.close()


def become(channel: int, cwd: bytes, argv: list[bytes]) -> NoReturn:
    """Be the command, with the variables and signals that this program was given; say why not, if it can't be."""
    # Python ignores these two, and a program that is started keeps that
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    # The variables of this process itself may have been changed by Python for its own use
    with open("/proc/self/environ", "rb") as file:
        variables = [word for word in file.read().split(b"\0")[:-1] if not word.startswith(b"PWD=")]
    variables.append(b"PWD=" + cwd)
    words = (ctypes.c_char_p * (len(argv) + 1))(*argv)
    environ = (ctypes.c_char_p * (len(variables) + 1))(*variables)
    tell(channel, b"ready")
    # The C library's own search, as bwrap itself does it: a text without #! is run by a shell
    _libc.execvpe(argv[0], words, environ)
    code = ctypes.get_errno()
    tell(channel, b"failed command %d" % code)
    os._exit(_NOT_FOUND if code == 2 else _NOT_EXECUTABLE)


def _enter(channel: int, cwd: bytes) -> None:
    """Go to the working directory, which bwrap must not do while it has the host's /proc open."""
    try:
        os.chdir(cwd)
    except OSError as error:
        tell(channel, b"failed directory %d" % (error.errno or 0))
        os._exit(_OUR_FAILURE)


def _given_words() -> list[bytes]:
    """Return the arguments as bytes; those of Python went through the encoding of some locale."""
    with open("/proc/self/cmdline", "rb") as file:
        return file.read().split(b"\0")[:-1][-len(sys.argv) :]


def main(
    handled: tuple[int, int, int] | None = None,
    rules: tuple[tuple[bytes, int], ...] = (),
    ports: tuple[int, ...] = (),
    notices: bytes = b"",
) -> NoReturn:
    """Do what the plan says, then be the command. Arguments: the channel, the directory, the command."""
    channel, (cwd, *argv) = int(sys.argv[1]), _given_words()[2:]
    try:
        if channel >= 0:
            os.set_inheritable(channel, False)
        if handled is not None:
            fence_in(handled, rules, ports)
        if notices and channel >= 0:
            listener = listen_for(notices)
            tell(channel, b"listening", listener)
            os.close(listener)
    except OSError as error:
        where = os.fsencode(error.filename or "")
        tell(channel, b"failed %d %s" % (error.errno or 0, where))
        os._exit(_OUR_FAILURE)
    _enter(channel, cwd)
    become(channel, cwd, argv)
