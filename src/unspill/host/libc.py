# SPDX-License-Identifier: Apache-2.0
"""The system calls that Python has no function for, the spawner's namespaces by them, and signals that wait.

Numbers of 424 and above are the same on every architecture. Each function raises OSError with the errno. In Python it
is the handler of a signal that raises KeyboardInterrupt, between any two instructions of the main thread.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import Any, NoReturn, Self
else:
    # The module around it makes enums of all its numbers, which costs more than all of this
    import _signal as signal


CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MS_SLAVE = 0x80000
UMOUNT_NOFOLLOW = 0x8
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
PR_SET_CHILD_SUBREAPER = 36
SIGHUP = 1
SIGKILL = 9

FSCONFIG_SET_FLAG = 0
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6
FSCONFIG_CMD_RECONFIGURE = 7
MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4
MOVE_MOUNT_F_EMPTY_PATH = 0x4
MOVE_MOUNT_T_EMPTY_PATH = 0x40

RENAME_NOREPLACE = 0x1
RENAME_EXCHANGE = 0x2

RESOLVE_NO_XDEV = 0x01
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08

IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x40, 0x80, 0x100, 0x200
IN_Q_OVERFLOW, IN_IGNORED, IN_ISDIR = 0x4000, 0x8000, 0x40000000
_IN_ONLYDIR, _IN_DONT_FOLLOW, _IN_EXCL_UNLINK = 0x01000000, 0x02000000, 0x04000000
_EVENT_BYTES = 16

_PR_SET_NAME = 15
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_PR_CAPBSET_DROP = 24
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_INSTRUCTION_BYTES = 8

_SYS_PIDFD_SEND_SIGNAL = 424
_SYS_MOVE_MOUNT = 429
_SYS_FSOPEN = 430
_SYS_FSCONFIG = 431
_SYS_FSMOUNT = 432
_SYS_OPENAT2 = 437
_AT_FDCWD = -100
# sched_getattr and ioprio_get, where there are live sandboxes
_SCHEDULING = {"x86_64": (315, 252), "aarch64": (275, 31)}
_SCHEDULING_BYTES = 56
_IOPRIO_WHO_PROCESS = 1

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
# Declared once: an apply makes these calls by the ten thousand
_renameat2 = _libc.renameat2
_renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)

_NO_FOLLOW = 0x100
_IMMUTABLE, _APPEND_ONLY = 0x10, 0x20
_BORN = 0x800
# struct statx: where its fields are
_MASK, _ATTRIBUTES, _BIRTH_S, _BIRTH_NS = slice(0, 4), slice(8, 16), slice(80, 88), slice(88, 92)
_COUNTED_BY_USER = (b"/proc/sys/user/max_inotify_instances", b"/proc/sys/user/max_inotify_watches")
_LIMITS_BY_USER = (resource.RLIMIT_SIGPENDING, resource.RLIMIT_MSGQUEUE, resource.RLIMIT_MEMLOCK)

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _syscall(what: str, number: int, *arguments: object) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *arguments), what)


def unshare(flags: int) -> None:
    """Leave the given namespaces for new ones."""
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace behind a descriptor."""
    _check(_libc.setns(fd, kind), "setns")


def prctl(option: int, value: int) -> None:
    """Set one attribute of this process."""
    _check(_libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0), "prctl")


def read_scheduling() -> tuple[bytes, int]:
    """Return how this thread is scheduled, with its priorities, and what priority its reads and writes have."""
    attributes, priority = _SCHEDULING[os.uname().machine]
    raw = ctypes.create_string_buffer(_SCHEDULING_BYTES)
    _syscall("sched_getattr", attributes, 0, raw, _SCHEDULING_BYTES, 0)
    # Without its slice of time, which the kernel changes with the number of processors
    return raw.raw[4:24] + raw.raw[48:], _libc.syscall(ctypes.c_long(priority), _IOPRIO_WHO_PROCESS, 0)


def mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int, options: bytes | None) -> None:
    """Mount the old way; the options end at one page."""
    _check(_libc.mount(source, target, kind, ctypes.c_ulong(flags), options), "mount")


def umount(target: bytes) -> None:
    """Unmount what is mounted last at a place, unless anything uses it: then the errno is EBUSY."""
    _check(_libc.umount2(target, UMOUNT_NOFOLLOW), "umount2")


def drop_capabilities() -> None:
    """Give up every capability of this process, for good."""
    number = 0
    while _libc.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0) == 0:
        number += 1
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def set_filter(program: bytes) -> None:
    """Have each system call of this process and of all that it starts judged by a program, for good."""
    given = _FilterProgram(len(program) // _INSTRUCTION_BYTES, program)
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(given), 0, 0), "seccomp")


def set_name(name: bytes) -> None:
    """Give this thread a name, of at most 15 bytes."""
    _check(_libc.prctl(_PR_SET_NAME, name, 0, 0, 0), "prctl")


def overwrite(address: int, content: bytes) -> None:
    """Write to this process's memory, where its command line lies."""
    ctypes.memmove(address, content, len(content))


def kill_pidfd(pidfd: int) -> None:
    """Kill the process behind a descriptor; one that is dead already is fine."""
    try:
        _syscall("pidfd_send_signal", _SYS_PIDFD_SEND_SIGNAL, pidfd, SIGKILL, None, 0)
    except ProcessLookupError:
        return


def fsopen(kind: bytes) -> int:
    """Return the descriptor of a new, unconfigured filesystem."""
    return _syscall("fsopen", _SYS_FSOPEN, kind, 1)


def fsconfig_string(fs_fd: int, key: bytes, value: bytes) -> None:
    """Give a filesystem one parameter."""
    _syscall(f"fsconfig {key.decode()}", _SYS_FSCONFIG, fs_fd, FSCONFIG_SET_STRING, key, value, 0)


def fsconfig_flag(fs_fd: int, key: bytes) -> None:
    """Give a filesystem one parameter that has no value."""
    _syscall(f"fsconfig {key.decode()}", _SYS_FSCONFIG, fs_fd, FSCONFIG_SET_FLAG, key, None, 0)


def fsconfig_create(fs_fd: int) -> None:
    """Make the filesystem from its parameters."""
    _syscall("fsconfig create", _SYS_FSCONFIG, fs_fd, FSCONFIG_CMD_CREATE, None, None, 0)


def fsconfig_reconfigure(fs_fd: int) -> None:
    """Have a mounted filesystem take its parameters again; it forgets every name that nothing uses."""
    _syscall("fsconfig reconfigure", _SYS_FSCONFIG, fs_fd, FSCONFIG_CMD_RECONFIGURE, None, None, 0)


def fsmount(fs_fd: int, attributes: int) -> int:
    """Return the descriptor of a detached mount of a filesystem."""
    return _syscall("fsmount", _SYS_FSMOUNT, fs_fd, 1, attributes)


def mount_detached(kind: bytes) -> int:
    """Return the descriptor of a filesystem that needs no parameters, mounted read-only and nowhere."""
    fs_fd = fsopen(kind)
    try:
        fsconfig_create(fs_fd)
        mount_fd = fsmount(fs_fd, MOUNT_ATTR_RDONLY)
    finally:
        os.close(fs_fd)
    try:
        # What a mount is returned by can't be listed
        return os.open(b".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount_fd)
    finally:
        os.close(mount_fd)


def move_mount(mount_fd: int, dest_fd: int) -> None:
    """Attach a detached mount on an open directory."""
    flags = MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH
    _syscall("move_mount", _SYS_MOVE_MOUNT, mount_fd, b"", dest_fd, b"", flags)


def inotify_init() -> int:
    """Return a new inotify descriptor; reading it does not wait."""
    return _check(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK), "inotify_init1")


def inotify_add_watch(fd: int, directory: bytes) -> int:
    """Watch a directory for names that come and go; return the number that its events have."""
    mask = IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | _IN_ONLYDIR | _IN_DONT_FOLLOW | _IN_EXCL_UNLINK
    return _check(_libc.inotify_add_watch(fd, directory, mask), "inotify_add_watch")


def inotify_rm_watch(fd: int, number: int) -> None:
    """Stop watching a directory, which may be gone already."""
    _libc.inotify_rm_watch(fd, number)


def inotify_read(fd: int) -> list[tuple[int, int, bytes]]:
    """Return the events that wait to be read: of each the number of its directory, its kind and the name."""
    found = []
    try:
        while raw := os.read(fd, 1 << 16):
            at = 0
            while at < len(raw):
                number, what, _cookie, length = (_number(raw[at + part : at + part + 4]) for part in (0, 4, 8, 12))
                at += _EVENT_BYTES + length
                found.append((number, what, raw[at - length : at].rstrip(b"\0")))
    except BlockingIOError:
        pass
    return found


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def openat2(dir_fd: int | None, path: bytes, flags: int, resolve: int, mode: int = 0) -> int:
    """Open a path with restrictions on how it may be resolved."""
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    base = _AT_FDCWD if dir_fd is None else dir_fd
    return _syscall("openat2", _SYS_OPENAT2, base, path, ctypes.byref(how), ctypes.c_size_t(24))


def renameat2(source_fd: int, source: bytes, dest_fd: int, dest: bytes, flags: int) -> None:
    """Rename without replacing anything, or exchange two entries."""
    if _renameat2(source_fd, source, dest_fd, dest, flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), dest)


def syncfs(fd: int) -> None:
    """Make everything durable that the filesystem behind a descriptor has."""
    _check(_libc.syncfs(fd), "syncfs")


class Statx:
    """Asks about entries of open directories, and follows no link. One thread at a time."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(256)
        self._call = getattr(ctypes.CDLL(None), "statx", None)
        if self._call is not None:
            self._call.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p]

    def is_immutable(self, dir_fd: int, name: bytes) -> bool:
        """Tell whether an entry is immutable or can only be appended to."""
        found = self._ask(dir_fd, name, 0)
        return found is not None and bool(_number(found[_ATTRIBUTES]) & (_IMMUTABLE | _APPEND_ONLY))

    def born_ns(self, dir_fd: int, name: bytes) -> int | None:
        """Return when an entry was made, which nobody can set; None where the filesystem does not know."""
        found = self._ask(dir_fd, name, _BORN)
        if found is None or not _number(found[_MASK]) & _BORN:
            return None
        return _number(found[_BIRTH_S]) * 1_000_000_000 + _number(found[_BIRTH_NS])

    def _ask(self, dir_fd: int, name: bytes, wanted: int) -> bytes | None:
        if self._call is None or self._call(dir_fd, name, _NO_FOLLOW, wanted, self._buffer):
            return None
        return self._buffer.raw


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, sys.byteorder)


def enter_own_namespaces() -> None:
    """Take a user namespace in which this uid and gid are mapped to themselves, and a pid namespace for children."""
    uid, gid = os.getuid(), os.getgid()
    counted = [(path, _read_number(path)) for path in _COUNTED_BY_USER]
    _halve_limits()
    unshare(CLONE_NEWUSER | CLONE_NEWPID)
    write_setting(b"/proc/self/setgroups", b"deny")
    write_setting(b"/proc/self/uid_map", b"%d %d 1" % (uid, uid))
    write_setting(b"/proc/self/gid_map", b"%d %d 1" % (gid, gid))
    for path, most in counted:
        if most:
            # Half of it is left to the person's own programs, whatever the sandboxes do
            _try_set(path, b"%d" % (most // 2))


def _halve_limits() -> None:
    """Leave half of what the kernel counts by user to the person's own programs.

    What holds where a user namespace is made holds for all in it together, since Linux 5.14.
    """
    for kind in _LIMITS_BY_USER:
        hard = resource.getrlimit(kind)[1]
        if hard != resource.RLIM_INFINITY:
            resource.setrlimit(kind, (hard // 2, hard // 2))


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
    unshare(CLONE_NEWNS)
    mount(None, b"/", None, MS_REC | MS_SLAVE, None)
    mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, None)


def write_setting(path: bytes, content: bytes) -> None:
    """Write one of the kernel's files, which takes its content whole or not at all."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)


def ignore_interrupts() -> None:
    """Let another Ctrl-C do nothing: this process says its last words."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C asked this program to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


_AGAIN_S = 0.01


def repeat_swallowed_signals() -> None:
    """From now on, let a signal come again whose exception Python only prints.

    Python does so in callbacks of its own, at the end of an import for one.
    """
    usual = sys.unraisablehook

    def hear(swallowed: Any) -> None:
        error = swallowed.exc_value
        if not isinstance(error, KeyboardInterrupt):
            usual(swallowed)
            return
        before = signal.getsignal(signal.SIGALRM)

        def again(_number: int, _frame: object) -> None:
            signal.signal(signal.SIGALRM, before)
            # By its own handler, which may wait for the end of something
            signal.raise_signal(error.number if isinstance(error, Terminated) else signal.SIGINT)

        signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)

    sys.unraisablehook = hear


class RaisingSignals:
    """A block in which SIGTERM and SIGHUP raise `Terminated`, as Ctrl-C raises, instead of killing this program."""

    __slots__ = ("_numbers",)

    def __enter__(self) -> None:
        # Whoever started this program may have had one ignored, as nohup does
        self._numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]
        for number in self._numbers:
            signal.signal(number, _raise)

    def __exit__(self, *_rest: object) -> None:
        for number in self._numbers:
            signal.signal(number, signal.SIG_DFL)


def _raise(number: int, _frame: object) -> NoReturn:
    raise Terminated(number)


class TerminalSignals:
    """What the signals of a terminal do while a command has it, until `restore`.

    A window that got another size calls `resize`; who suspends this program calls `suspend` first, and `resume` when it
    goes on. SIGQUIT raises, as `RaisingSignals` has it for others.
    """

    __slots__ = ("_before", "_suspend")

    def __init__(self, resize: Callable[[], None], suspend: Callable[[], None], resume: Callable[[], None]) -> None:
        self._suspend = suspend
        wanted: dict[int, Callable[[int, object], None]] = {
            signal.SIGWINCH: lambda _number, _frame: resize(),
            signal.SIGCONT: lambda _number, _frame: resume(),
            signal.SIGTSTP: self._stop,
            signal.SIGQUIT: _raise,
        }
        self._before = {number: signal.signal(number, handler) for number, handler in wanted.items()}

    def restore(self) -> None:
        """Give the signals back what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _stop(self, _number: int, _frame: object) -> None:
        self._suspend()
        os.kill(os.getpid(), signal.SIGSTOP)


class DeferredSignals:
    """A block that no handler of these signals interrupts: `with DeferredSignals(): ...`. They are called after it.

    Without effect in other threads than the main one, where none is called, and for a signal whose handler is not one
    of Python's: that one kills the process, or does nothing.
    """

    __slots__ = ("_handlers", "_seen")

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._seen: dict[int, None] = {}

    def __enter__(self) -> Self:
        try:
            for number in _ENDING:
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        except ValueError:
            self._handlers.clear()
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(self, *_rest: object) -> None:
        handlers = dict(self._handlers)
        self._restore()
        for number in self._seen:
            handlers[number](number, None)

    def _note(self, number: int, _frame: object) -> None:
        self._seen[number] = None

    def _restore(self) -> None:
        """Give each signal its handler back, whichever of them is called already meanwhile."""
        try:
            if self._handlers:
                signal.signal(*self._handlers.popitem())
        finally:
            if self._handlers:
                self._restore()
