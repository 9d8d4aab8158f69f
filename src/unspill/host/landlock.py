# SPDX-License-Identifier: Apache-2.0
"""The system calls of Landlock: give up access to files, TCP, signals and abstract sockets, for good.

No run calls this: a fence can only be set from inside the sandbox, and a program that does it before each command costs
more than all the rest of a start. A live sandbox will set it once, for all its commands. `plan.argv` says what is
allowed. Imports nothing of unspill, so its text can run inside.
"""

from __future__ import annotations

import ctypes
import os

# The same on every architecture
_SYS_CREATE_RULESET, _SYS_ADD_RULE, _SYS_RESTRICT_SELF = 444, 445, 446
_RULE_PATH, _RULE_PORT = 1, 2
_CONNECT_TCP = 2
# EXECUTE, WRITE_FILE, READ_FILE, TRUNCATE, IOCTL_DEV: all that a rule for something else than a directory may have
_OF_FILES = 1 | 2 | 4 | 1 << 14 | 1 << 15

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class _Attributes(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathRule(ctypes.Structure):
    # The kernel's is packed: it reads these 12 bytes, and not the padding that ctypes puts behind them
    _fields_ = (("access", ctypes.c_uint64), ("fd", ctypes.c_int32))


class _PortRule(ctypes.Structure):
    _fields_ = (("access", ctypes.c_uint64), ("port", ctypes.c_uint64))


def abi_version() -> int:
    """Return the version of Landlock that the kernel has, by a call that changes nothing.

    Raises:
        OSError: it has none.
    """
    return _call("landlock", _SYS_CREATE_RULESET, None, 0, 1)


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

    Raises:
        OSError: the kernel refused, or a path does not exist; its `filename` says which call or path.
    """
    size = 24 if handled[2] else 16 if handled[1] else 8
    attributes = _Attributes(*handled)
    ruleset = _call("landlock_create_ruleset", _SYS_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0)
    try:
        for path, access in rules:
            _add_path(ruleset, path, access)
        for port in ports:
            allowed = _PortRule(_CONNECT_TCP, port)
            _call(f"port {port}", _SYS_ADD_RULE, ruleset, _RULE_PORT, ctypes.byref(allowed), 0)
        _call("landlock_restrict_self", _SYS_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _add_path(ruleset: int, path: bytes, access: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        is_directory = os.path.isdir(b"/proc/self/fd/%d" % fd)
        rule = _PathRule(access if is_directory else access & _OF_FILES, fd)
        # The kernel refuses a rule that allows nothing
        if rule.access:
            _call(os.fsdecode(path), _SYS_ADD_RULE, ruleset, _RULE_PATH, ctypes.byref(rule), 0)
    finally:
        os.close(fd)


def _call(what: str, number: int, *arguments: object) -> int:
    result = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result
