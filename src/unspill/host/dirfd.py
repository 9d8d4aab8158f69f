# SPDX-License-Identifier: Apache-2.0
"""Directories, files and pipes by their descriptors: the one way in which live trees are reached, and our own ones too.

The root of a tree is opened once. Every other directory is opened beneath it without following a link or entering a
mount, so whatever a command or a person swaps meanwhile, nothing outside is ever touched. A path string is never
resolved twice. `resolve_inside` alone follows links, in a tree that nobody changes meanwhile, and never out of it.

Copies and comparisons never read holes: a sparse file of a terabyte with one byte in it takes no time. Our own
descriptors have numbers above the standard streams, which a caller may have closed: what is printed next would go to
our sockets.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

# The C modules themselves: to import `signal` or `socket` takes as long as a thousand steps of an apply
from _signal import SIGURG  # type: ignore[import-not-found]
from _socket import (
    AF_UNIX,
    SOCK_SEQPACKET,
    socket,
    socketpair,
)

from unspill.host.libc import (
    RESOLVE_BENEATH,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    RESOLVE_NO_XDEV,
    openat2,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket
    from collections.abc import Callable, Sequence
    from typing import Self


OPEN_AT_MOST = 128

_STRICT = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LOOKUP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_LONGEST = 3000
_RETRIES = 16
_LINKS_AT_MOST = 40
_DEEPEST = 256
# openat2 is newer than Linux 5.6, and some filters of system calls answer for it with EPERM
_MISSING = (errno.ENOSYS, errno.EPERM)
_WATCH_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

CHUNK = 256 * 1024
# From linux/fs.h; fcntl has it from Python 3.12 on.
FICLONE = 0x40049409
_NEVER_CLONES = frozenset({errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.ENOSYS})
_USE_MEMORY = frozenset(
    {errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF, errno.EPERM, errno.ETXTBSY}
)
_BLOCK = 512
# The first number above the standard streams
FIRST = 3
DESCRIPTORS_REMEDY = (
    "Raise the limit of open files of this program (`ulimit -n`, at most `ulimit -Hn`), or run fewer commands at once."
    " A run needs 5 descriptors, and about 15 more for a moment when it starts."
)


def read_unchanged(dir_fd: int, name: bytes, status: os.stat_result, most: int) -> bytes | None:
    """Return the content of a file; None if it is another than was looked at, changes meanwhile, or is too large."""
    if not stat.S_ISREG(status.st_mode) or status.st_size > most:
        return None
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError:
        return None
    with open(fd, "rb", buffering=0) as file:
        content = file.read(most + 1) or b""
        while len(content) <= most and (more := file.read(most + 1 - len(content))):
            content += more
        found = os.fstat(fd)
    is_same = (found.st_dev, found.st_ino, found.st_size) == (status.st_dev, status.st_ino, len(content))
    return content if is_same and found.st_ctime_ns == status.st_ctime_ns else None


class Beneath:
    """Directories beneath one root, at most `OPEN_AT_MOST` of them open at a time.

    `open_closed` is called with a path in /proc and the mode of a directory that its owner may not read or change; it
    is for trees of our own only.
    """

    def __init__(self, root_fd: int, open_closed: Callable[[bytes, int], None] | None = None) -> None:
        self.root_fd = root_fd
        self._open_closed = open_closed
        self._opened: dict[bytes, int] = {}
        # The directory asked for last, which the next entry is mostly in as well: the youngest of those that are open
        self._last = b""
        self._last_fd = root_fd

    def directory(self, path: bytes) -> int:
        """Return the descriptor of a directory, b"" being the root. The last ones asked for stay open.

        Raises:
            OSError: it is missing, no directory, behind a link or on another mount.
        """
        if path == self._last:
            return self._last_fd
        fd = self._find_or_open(path) if path else self.root_fd
        self._last, self._last_fd = path, fd
        return fd

    def parent(self, path: bytes) -> tuple[int, bytes]:
        """Return the descriptor of the directory that an entry is in, and the entry's name there."""
        above, _, name = path.rpartition(b"/")
        return self._last_fd if above == self._last else self.directory(above), name

    def find(self, path: bytes) -> os.stat_result | None:
        """Return the lstat of an entry, None where there is nothing.

        Raises:
            OSError: its directory is not one any more, or can't be searched.
        """
        try:
            fd, name = self.parent(path)
            return os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def forget(self, path: bytes) -> None:
        """Close what is open at or below a path, because something else is there now."""
        self._last, self._last_fd = b"", self.root_fd
        below = path + b"/"
        for known in [known for known in self._opened if known == path or known.startswith(below)]:
            os.close(self._opened.pop(known))

    def close(self) -> None:
        """Close all directories, and the root."""
        while self._opened:
            os.close(self._opened.popitem()[1])
        if self.root_fd >= 0:
            os.close(self.root_fd)
        self.root_fd = self._last_fd = -1
        self._last = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()

    def _find_or_open(self, path: bytes) -> int:
        fd = self._opened.pop(path, None)
        if fd is not None:
            self._opened[path] = fd
            return fd
        above, rest = self._nearest(path)
        fd = self._opened[above] if above else self.root_fd
        while rest:
            part, rest = _split(rest)
            try:
                fd = self._open(fd, above + b"/" + part if above else part, part)
            except PermissionError:
                # A directory in between is closed: it has to be opened by itself
                first, slash, others = part.partition(b"/")
                if self._open_closed is None or not slash:
                    raise
                part, rest = first, others + b"/" + rest if rest else others
                fd = self._open(fd, above + b"/" + part if above else part, part)
            above = above + b"/" + part if above else part
        return fd

    def _nearest(self, path: bytes) -> tuple[bytes, bytes]:
        """Split a path into the longest part that is open and the rest."""
        above = path
        while above:
            above = above.rpartition(b"/")[0]
            if above in self._opened:
                return above, path[len(above) + 1 :]
        return b"", path

    def _open(self, start: int, path: bytes, part: bytes) -> int:
        try:
            fd = open_beneath(start, part, _FLAGS)
        except PermissionError:
            fd = self._open_unreadable(start, part)
        if self._open_closed is not None:
            mode = stat.S_IMODE(os.fstat(fd).st_mode)
            if mode & 0o700 != 0o700:
                self._open_closed(b"/proc/self/fd/%d" % fd, mode)
        self._opened[path] = self._last_fd = fd
        self._last = path
        if len(self._opened) > OPEN_AT_MOST:
            os.close(self._opened.pop(next(iter(self._opened))))
        return fd

    def _open_unreadable(self, start: int, part: bytes) -> int:
        fd = open_beneath(start, part, _LOOKUP)
        if self._open_closed is None:
            return fd
        try:
            path = b"/proc/self/fd/%d" % fd
            self._open_closed(path, stat.S_IMODE(os.fstat(fd).st_mode))
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        finally:
            os.close(fd)


def open_beneath(dir_fd: int, path: bytes, flags: int) -> int:
    """Open an entry beneath a directory, without following a link or entering a mount."""
    for _ in range(_RETRIES):
        try:
            return openat2(dir_fd, path, flags, _STRICT)
        except OSError as error:
            if error.errno in _MISSING:
                return open_stepwise(dir_fd, path, flags)
            # The kernel gives up when the tree is being renamed; it says so with EAGAIN
            if error.errno != errno.EAGAIN:
                raise
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)


def open_stepwise(dir_fd: int, path: bytes, flags: int) -> int:
    """Do what openat2 does, one name at a time; for kernels that have no openat2."""
    names = path.split(b"/")
    if any(name in (b"", b".", b"..") for name in names):
        raise OSError(errno.EXDEV, "not beneath the root", path)
    mount = _mount_of(dir_fd)
    here = os.dup(dir_fd)
    try:
        for index, name in enumerate(names):
            last = index == len(names) - 1
            below = os.open(name, flags | os.O_NOFOLLOW if last else _LOOKUP, dir_fd=here)
            os.close(here)
            here = below
            if _mount_of(here) != mount:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    except BaseException:
        os.close(here)
        raise
    return here


def _mount_of(fd: int) -> tuple[int, bytes]:
    """Return the device and mount of a descriptor: a bind mount has the device of what it shows."""
    with open(b"/proc/self/fdinfo/%d" % fd, "rb") as file:
        lines = dict(line.split(b":\t", 1) for line in file.read().splitlines() if b":\t" in line)
    return os.fstat(fd).st_dev, lines.get(b"mnt_id", b"")


def is_one_mount(first: int, second: int) -> bool:
    """Tell whether entries can be renamed between two open directories."""
    return _mount_of(first) == _mount_of(second)


def _split(path: bytes) -> tuple[bytes, bytes]:
    """Cut a long path where the kernel still takes it in one call."""
    if len(path) <= _LONGEST:
        return path, b""
    cut = path.rfind(b"/", 0, _LONGEST)
    return path[:cut], path[cut + 1 :]


def has_writers(dir_fd: int, name: bytes) -> bool | None:
    """Tell whether a regular file is open for writing; None where that can't be told: another user's, or no leases.

    The kernel grants a read lease only while nobody has the file open for writing. It is given back at once.
    """
    try:
        fd = os.open(name, _WATCH_FLAGS, dir_fd=dir_fd)
    except OSError as error:
        # Somebody else has a lease, so it is open there
        return True if error.errno == errno.EWOULDBLOCK else None
    try:
        # Whoever opens it just now breaks the lease, which would kill this process by the signal that is the default
        fcntl.fcntl(fd, fcntl.F_SETSIG, SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        return True if error.errno == errno.EAGAIN else None
    finally:
        os.close(fd)
    return False


def resolve_inside(tree_fd: int, path: bytes, elsewhere: Sequence[bytes] = ()) -> bytes | None:
    """Return where a path of the tree really leads, relative to its top and without links; b"" is the top itself.

    A process whose `/` is the tree resolves it so: absolute links lead to its top, `..` never above it. Every name is
    looked up by descriptor: the host's kernel follows no link of the tree.

    None where there is nothing, something in between is no directory or may not be entered, or links go in circles.
    Nor is there an answer where the way leads to one of `elsewhere`: absolute paths at which a process sees something
    that is not of the tree. The answer has no leading slash, so that it is safe to use with `dir_fd=tree_fd`.
    """
    walk = _Resolution(tree_fd, elsewhere)
    try:
        return walk.follow(path)
    except OSError:
        return None
    finally:
        walk.close()


def find_inside(tree_fd: int, path: bytes) -> os.stat_result | None:
    """Return what is at the end of all links of a path of the tree, None where there is nothing."""
    real = resolve_inside(tree_fd, path)
    if real is None:
        return None
    try:
        return os.stat(real, dir_fd=tree_fd, follow_symlinks=False) if real else os.fstat(tree_fd)
    except FileNotFoundError:
        # Somebody removes the tree right now
        return None


class _Resolution:
    """The directories between the top and where a resolution stands."""

    def __init__(self, tree_fd: int, elsewhere: Sequence[bytes]) -> None:
        self._top = tree_fd
        self._elsewhere = frozenset(place.lstrip(b"/") for place in elsewhere)
        self._names: list[bytes] = []
        self._fds: list[int] = []

    def follow(self, path: bytes) -> bytes | None:
        """Go along a path, whose names may be links, which may be the last one's as well."""
        rest = _names_of(path)
        links = 0
        while rest:
            name = rest.pop()
            if name == b"..":
                self._up()
                continue
            if self._elsewhere and b"/".join([*self._names, name]) in self._elsewhere:
                return None
            here = self._fds[-1] if self._fds else self._top
            found = os.stat(name, dir_fd=here, follow_symlinks=False)
            if stat.S_ISLNK(found.st_mode):
                links += 1
                target = os.readlink(name, dir_fd=here)
                if links > _LINKS_AT_MOST or len(rest) > _DEEPEST:
                    return None
                if target.startswith(b"/"):
                    self.close()
                rest += _names_of(target)
            elif stat.S_ISDIR(found.st_mode):
                self._down(name, here)
            else:
                return None if rest else b"/".join([*self._names, name])
        return b"/".join(self._names)

    def _down(self, name: bytes, here: int) -> None:
        if len(self._fds) >= _DEEPEST:
            raise OSError("too deep")
        self._fds.append(os.open(name, _LOOKUP, dir_fd=here))
        self._names.append(name)

    def _up(self) -> None:
        if self._fds:
            os.close(self._fds.pop())
            self._names.pop()

    def close(self) -> None:
        """Stand at the top again."""
        while self._fds:
            self._up()


def _names_of(path: bytes) -> list[bytes]:
    """Return the names of a path, the first one last."""
    return [name for name in reversed(path.split(b"/")) if name not in (b"", b".")]


class Copier:
    """Copies files, and remembers from which filesystems blocks can't be shared."""

    def __init__(self) -> None:
        self._never_clone: set[int] = set()

    def copy(self, source: int, dest: int, status: os.stat_result) -> None:
        """Fill an empty file with the content of another, as long as `status` says that is."""
        size = status.st_size
        if size == 0:
            return
        if status.st_dev not in self._never_clone and self._clone(source, dest, status.st_dev):
            # A file that grows meanwhile is cloned with more than its status said.
            os.ftruncate(dest, size)
        elif size <= CHUNK and status.st_blocks * _BLOCK >= size:
            _copy_through_memory(source, dest, 0, size)
        else:
            _copy_ranges(source, dest, size)

    def _clone(self, source: int, dest: int, device: int) -> bool:
        try:
            fcntl.ioctl(dest, FICLONE, source)
        except OSError as error:
            if error.errno in _NEVER_CLONES:
                self._never_clone.add(device)
            return False
        return True


def digest_of(fd: int, size: int) -> bytes:
    """Return a digest of the content; two files of one size have the same if they hold the same bytes."""
    import hashlib  # lazy: digests

    digest = hashlib.blake2b(digest_size=16)
    at = 0
    while at < size and (start := next_written(fd, at, size)) < size:
        at = start // CHUNK * CHUNK
        chunk = os.pread(fd, CHUNK, at)
        # Zeros may be a hole at one time and written at another.
        if chunk.count(0) != len(chunk):
            digest.update(at.to_bytes(8, "big"))
            digest.update(chunk)
        at += CHUNK
    return digest.digest()


def next_written(fd: int, at: int, size: int) -> int:
    """Return where the next written part begins, at or after `at`."""
    try:
        return min(os.lseek(fd, at, os.SEEK_DATA), size)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        if error.errno == errno.EINVAL:
            return at  # this filesystem knows no holes
        raise


def _next_hole(fd: int, at: int, size: int) -> int:
    try:
        return min(os.lseek(fd, at, os.SEEK_HOLE), size)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EINVAL):
            return size
        raise


def _copy_ranges(source: int, dest: int, size: int) -> None:
    at = 0
    while at < size and (start := next_written(source, at, size)) < size:
        at = max(_next_hole(source, start, size), start + 1)
        _copy_range(source, dest, start, at)
    os.ftruncate(dest, size)


def _copy_range(source: int, dest: int, start: int, end: int) -> None:
    while start < end:
        try:
            done = os.copy_file_range(source, dest, end - start, start, start)
        except OSError as error:
            if error.errno not in _USE_MEMORY:
                raise
            done = 0
        if done == 0:
            # The end of the file, or a filesystem that can't: reading tells.
            _copy_through_memory(source, dest, start, end)
            return
        start += done


def _copy_through_memory(source: int, dest: int, start: int, end: int) -> None:
    while start < end and (chunk := os.pread(source, min(CHUNK, end - start), start)):
        rest = memoryview(chunk)
        while rest:
            done = os.pwrite(dest, rest, start)
            start += done
            rest = rest[done:]


def have_same_content(one: int, other: int, size: int) -> bool:
    """Compare two open files of the same size."""
    at = 0
    while at < size:
        if size > CHUNK:
            at = min(next_written(one, at, size), next_written(other, at, size))
            if at >= size:
                break
        length = min(CHUNK, size - at)
        ours, theirs = _read_at(one, at, length), _read_at(other, at, length)
        if ours != theirs:
            return False
        if not ours:
            # Both ended before their size: shortened meanwhile, and alike as far as anyone can tell.
            break
        at += len(ours)
    return True


def _read_at(fd: int, at: int, length: int) -> bytes:
    """Read that many bytes, or up to the end of the file."""
    chunk = os.pread(fd, length, at)
    while chunk and len(chunk) < length and (more := os.pread(fd, length - len(chunk), at + len(chunk))):
        chunk += more
    return chunk


def copy_of(sock: Socket) -> Socket:
    """Return another socket object for the same socket of a pair, with a descriptor of its own."""
    return socket(AF_UNIX, SOCK_SEQPACKET, 0, fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST))


def above_standard(fd: int) -> int:
    """Return the descriptor, or another one of the same in its place if it has the number of a standard stream."""
    if fd >= FIRST:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST)
    finally:
        os.close(fd)


def make_pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a pipe."""
    ends = os.pipe()
    return ends if min(ends) >= FIRST else _raised(*ends)


def make_pair() -> tuple[Socket, Socket]:
    """Return two sockets that are connected with each other and keep messages apart."""
    ours, theirs = socketpair(AF_UNIX, SOCK_SEQPACKET)
    if min(ours.fileno(), theirs.fileno()) >= FIRST:
        return ours, theirs
    first, second = _raised(ours.detach(), theirs.detach())
    return socket(fileno=first), socket(fileno=second)


def occupy_standard() -> None:
    """Open nothing on each of the standard streams that is closed: for a program that owns its process."""
    for number in range(FIRST):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one
            os.open(os.devnull, os.O_RDWR)


def _raised(first: int, second: int) -> tuple[int, int]:
    try:
        first = above_standard(first)
    except OSError:
        os.close(second)
        raise
    try:
        return first, above_standard(second)
    except OSError:
        os.close(first)
        raise


def write_whole(fd: int, content: bytes | memoryview) -> None:
    """Write all of the content to a descriptor that blocks."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def sync_directory(path: bytes) -> None:
    """Make the names in a directory of ours durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
