# SPDX-License-Identifier: Apache-2.0
"""The rootfs directory on disk: what lies where, who may own it, staging directories, locks, and a look at one rootfs.

Whoever can write there decides what every sandbox runs, so a directory of another person is never used; one of root
is (a rootfs that was baked into a machine), though an ordinary user can build nothing in it. Locks are the kernel's
(flock): shared by whoever uses a rootfs, alone by whoever removes one, one per name for its builder, and one on each
staging directory. The kernel gives each back when its holder dies, however it dies.

A plan has to know what is at the top of a rootfs, its shell and its mount points. Nothing is read through a link of the
tree but as if the tree were the root, and nothing is changed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from unspill.errors import RootfsError, RootfsUnsafe
from unspill.host.bwrap import find_changeable
from unspill.host.dirfd import find_inside
from unspill.layers.trees import remove_tree
from unspill.model.rootfs import RootfsBase
from unspill.policy.config import is_rootfs_name
from unspill.policy.paths import show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from unspill.model.rootfs import Rootfs


ROOTS = b"roots"
STAGING = b"staging"
DOWNLOADS = b"downloads"
LOCKS = b"locks"
CURRENT = b"current"
MANIFEST = b"manifest.json"
TREE = b"tree"
SCRATCH = b"scratch"
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_ATTEMPTS = 100
_PAUSE_S = 0.005
_LONGEST_S = 30.0

MOST_AT_TOP = 256
_OWN_DIRECTORY = "choose a directory of your own: set ROOTFS_DIR, or `rootfs_dir` in the configuration."
TOP_REMEDY = "This is not a root file system: those have about twenty directories at the top."
FREE_SPACE_REMEDY = "Free some space with `unspill rootfs remove --unused`, or choose another rootfs directory."
SHELLS = (b"/bin/bash", b"/usr/bin/bash", b"/bin/sh")
_POINTS = (b"/var/tmp", b"/etc/resolv.conf", b"/etc/passwd")
_MOST_PASSWD = 64 * 1024
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def checked_name(text: str) -> str:
    """Return a name that may be one; parts of it can come from a server.

    Raises:
        RootfsUnsafe: it may not.
    """
    if not is_rootfs_name(text):
        raise RootfsUnsafe(
            f"{text[:80]!r} can't be the name of a rootfs",
            remedy="Use at most 180 letters, digits and . - _ + ~, with a letter or digit first.",
        )
    return text


def is_trusted(found: os.stat_result) -> bool:
    """Tell whether only the caller and root can change an entry."""
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def is_directory(path: bytes) -> bool:
    """Tell whether there is a directory, not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def check_trusted(path: bytes) -> bool:
    """Tell whether there is a directory, which then is one that only the caller and root can change.

    Raises:
        RootfsUnsafe: it is another person's, others can write in it, or it is no directory.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise failed(error, path) from error
    if not stat.S_ISDIR(found.st_mode):
        raise RootfsUnsafe(
            f"{show(path)} is not a directory", remedy="Move it elsewhere, or choose another rootfs directory."
        )
    if not is_trusted(found):
        whose = "can be written by others" if found.st_uid in (0, os.geteuid()) else "belongs to another user"
        raise _others(path, whose)
    return True


def check_all_trusted(directory: bytes) -> bool:
    """Tell whether there is a rootfs directory: neither it nor one above it can be changed or replaced by others.

    Raises:
        RootfsUnsafe: others could.
    """
    if not check_trusted(directory):
        return False
    found = find_changeable(directory)
    if found is not None:
        raise _others(found.path, found.reason)
    return True


def _others(path: bytes, whose: str) -> RootfsUnsafe:
    return RootfsUnsafe(
        f"{show(path)} {whose}, who could put their own rootfs there",
        remedy=f"chmod go-w {show(path)}, have it owned by yourself or root, or choose another rootfs directory.",
    )


def make_layout(directory: bytes) -> None:
    """Make the rootfs directory and what lies in it.

    Raises:
        RootfsUnsafe: a part of it is not the caller's or root's alone.
        RootfsError: it can't be made, or only be read.
    """
    try:
        if not check_all_trusted(directory):
            os.makedirs(os.path.dirname(directory), _own_mode(), exist_ok=True)
            _make(directory, _own_mode())
            check_all_trusted(directory)
        for name, mode in ((ROOTS, 0o755), (STAGING, 0o700), (DOWNLOADS, 0o700), (LOCKS, 0o700)):
            path = os.path.join(directory, name)
            if not check_trusted(path):
                _make(path, mode)
    except OSError as error:
        if error.errno in _READ_ONLY and not os.path.lexists(directory):
            raise RootfsError(
                f"{show(directory)} does not exist and can't be created: {error.strerror}",
                remedy=f"Create it, or {_OWN_DIRECTORY}",
            ) from error
        raise failed(error, directory) from error
    if not os.access(os.path.join(directory, LOCKS), os.W_OK):
        raise read_only(directory)


def _own_mode() -> int:
    # What root bakes is for the users of the machine; a person's own is nobody else's business
    return 0o755 if os.geteuid() == 0 else 0o700


def _make(path: bytes, mode: int) -> None:
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        check_trusted(path)
        return
    # The umask may have taken more
    os.chmod(path, mode)


def read_only(directory: bytes) -> RootfsError:
    """Return the error that nothing can be made here."""
    return RootfsError(
        f"{show(directory)} is read-only: you can use the rootfs in it, but not make or remove any",
        remedy=f"Do it as its owner, or {_OWN_DIRECTORY}",
    )


def failed(error: OSError, directory: bytes) -> RootfsError:
    """Return our error for one of the system's."""
    if error.errno in _FULL:
        return RootfsError(
            f"The disk is full where unspill keeps rootfs ({show(directory)})",
            remedy=FREE_SPACE_REMEDY,
        )
    if error.errno in _READ_ONLY:
        return read_only(directory)
    name = error.filename
    where = show(os.fsencode(name)) if isinstance(name, (str, bytes)) else show(directory)
    return RootfsError(
        f"{where}: {error.strerror or error}", remedy="Fix that, then try again. unspill uses nothing half-built."
    )


class Staging:
    """A new staging directory of this process; leaving the block removes it, wherever it is still at its place."""

    def __init__(self, directory: bytes, name: str) -> None:
        self._parent = os.path.join(directory, STAGING)
        self._name = os.fsencode(name)
        self.path = b""
        self.fd = -1

    @property
    def tree(self) -> bytes:
        """Where the content goes."""
        return os.path.join(self.path, TREE)

    @property
    def scratch(self) -> bytes:
        """What ends with the attempt."""
        return os.path.join(self.path, SCRATCH)

    def __enter__(self) -> Self:
        for _ in range(_ATTEMPTS):
            self.path = staging_path(self._parent, self._name)
            try:
                if self._make():
                    return self
            except BaseException:
                self.remove()
                raise
        raise OSError("something removes new staging directories")

    def _make(self) -> bool:
        """Make it and take its flock; tell whether it is still there then: somebody may have swept it in between."""
        os.mkdir(self.path, 0o700)
        try:
            self.fd = os.open(self.path, DIRECTORY)
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_at(self.fd, self.path):
                raise FileNotFoundError
            os.mkdir(self.scratch, 0o700)
            # Not the umask's choice: it is the `/` of everybody who may use the rootfs
            os.mkdir(self.tree)
            os.chmod(self.tree, 0o755)
        except (FileNotFoundError, BlockingIOError):
            self._close()
            return False
        return True

    def __exit__(self, *_details: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove it, if it has not become a rootfs by then, and give its flock back."""
        if self.fd < 0 or is_at(self.fd, self.path):
            remove_tree(self.path)
        self._close()

    def _close(self) -> None:
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            let_go(fd)


def staging_path(parent: bytes, name: bytes) -> bytes:
    """Return a new name for a staging directory of a rootfs."""
    return os.path.join(parent, name + b"." + os.urandom(8).hex().encode())


def let_go(fd: int) -> None:
    """Give the lock of a descriptor back, and close it."""
    try:
        # By itself: a child that was forked meanwhile may have the descriptor as well
        fcntl.flock(fd, fcntl.LOCK_UN)
    except OSError:
        # Closing it gives the lock back, too, where nobody else has it
        pass
    finally:
        os.close(fd)


def is_at(fd: int, path: bytes) -> bool:
    """Tell whether an open directory is the one at a path."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    here = os.fstat(fd)
    return (here.st_dev, here.st_ino) == (found.st_dev, found.st_ino)


def sweep(directory: bytes, name: str | None = None) -> int:
    """Remove staging directories whose maker is dead, of one rootfs or of all; return how many there were."""
    parent = os.path.join(directory, STAGING)
    swept = 0
    try:
        names = os.listdir(parent)
    except FileNotFoundError:
        return 0
    for entry in names:
        of, dot, _random = entry.rpartition(b".")
        if dot and (name is None or of == os.fsencode(name)):
            swept += _sweep_one(os.path.join(parent, entry))
    return swept


def _sweep_one(path: bytes) -> bool:
    try:
        fd = os.open(path, DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return is_at(fd, path) and remove_tree(path)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


class Hold:
    """The right to use a rootfs: as long as it is held, nobody removes that rootfs. `fd` is its open directory."""

    def __init__(self, rootfs: Rootfs) -> None:
        """Take it.

        Raises:
            RootfsError: the rootfs has gone, or somebody keeps it for themselves.
        """
        self.rootfs = rootfs
        # One that the person made by hand has nothing around its tree
        self._path = os.path.dirname(rootfs.tree) if rootfs.manifest is not None else rootfs.tree
        self.fd = self._take()

    def _take(self) -> int:
        """Open, lock and look again: between opening and locking it may have been removed."""
        deadline = time.monotonic() + _LONGEST_S
        while time.monotonic() < deadline:
            fd = take(self._path, fcntl.LOCK_SH)
            if fd is not None:
                return fd
            time.sleep(_PAUSE_S)
        raise RootfsError(f"another process keeps {self.rootfs.name} locked", remedy="Try again when it has finished.")

    def release(self) -> None:
        """Give it back; one that is not held stays so."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            let_go(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.release()


def take(path: bytes, how: int) -> int | None:
    """Return the descriptor of a directory, locked, or None if others have a lock that forbids it.

    Raises:
        RootfsError: there is no such directory, or it can't be locked.
    """
    try:
        fd = os.open(path, DIRECTORY)
    except OSError as error:
        raise RootfsError(f"The rootfs {os.path.basename(path).decode('utf-8', 'replace')} no longer exists") from error
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
        if is_at(fd, path):
            return fd
    except OSError as error:
        if not isinstance(error, BlockingIOError):
            os.close(fd)
            raise failed(error, path) from error
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


class NameLock:
    """The right to make or remove what has a name. Its file stays: to remove it would let two hold it at once."""

    def __init__(self, directory: bytes, name: str) -> None:
        self._path = os.path.join(directory, LOCKS, os.fsencode(name) + b".lock")
        self._directory = directory
        self._fd = -1

    def acquire(self, waiting: Callable[[], None] = lambda: None) -> None:
        """Wait for it; say so before, if somebody has it.

        Raises:
            RootfsError: its file can't be made.
        """
        if not self.try_acquire():
            waiting()
            self._take(fcntl.LOCK_EX)

    def try_acquire(self) -> bool:
        """Take it if nobody has it; tell whether that was so."""
        return self._take(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _take(self, how: int) -> bool:
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise failed(error, self._directory) from error
        try:
            fcntl.flock(fd, how)
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                return False
            raise failed(error, self._directory) from error
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def release(self) -> None:
        """Give it back."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            let_go(fd)

    def __enter__(self) -> Self:
        if self._fd < 0:
            self.acquire()
        return self

    def __exit__(self, *_details: object) -> None:
        self.release()


def look_at_rootfs(tree: bytes, name: str, uid: int, *, is_own: bool) -> RootfsBase:
    """Return what a plan has to know of the tree. `is_own`: it was unpacked by us.

    Raises:
        RootfsError: it is no directory, or has no shell.
    """
    try:
        fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise RootfsError(f"The rootfs {name} can't be used: {error.strerror}.") from None
    try:
        directories, links = look_at_top(fd, name)
        empty = tuple(top for top in directories if _is_empty(fd, top[1:]))
        shell = next((path for path in SHELLS if _is_program(fd, path)), None)
        # Whatever runs texts, it is this one that goes to a working directory
        if shell is None or not _is_program(fd, b"/bin/sh"):
            raise RootfsError(
                f"The rootfs {name} has no /bin/sh.", remedy="Choose another one with `unspill rootfs use`."
            )
        points = tuple(point for point in _POINTS if _is_point(fd, point))
        return RootfsBase(
            name=name,
            tree=tree,
            directories=directories,
            empty=empty,
            links=links,
            shell=shell,
            points=points,
            passwd=_passwd_without(fd, uid) if b"/etc/passwd" in points else b"",
            is_own=is_own,
        )
    finally:
        os.close(fd)


def look_at_top(fd: int, name: str) -> tuple[tuple[bytes, ...], tuple[tuple[bytes, bytes], ...]]:
    """Return the directories and the links at the top of a tree, as paths inside it.

    Raises:
        RootfsError: it has too many entries there, or is being removed.
    """
    directories: list[bytes] = []
    links: list[tuple[bytes, bytes]] = []
    entries = sorted(os.listdir(fd))
    if len(entries) > MOST_AT_TOP:
        raise RootfsError(
            f"The rootfs {name} has more than {MOST_AT_TOP} entries at its top.",
            remedy=TOP_REMEDY,
        )
    for entry in entries:
        raw = os.fsencode(entry)
        try:
            mode = os.stat(raw, dir_fd=fd, follow_symlinks=False).st_mode
        except FileNotFoundError:
            raise RootfsError(f"The rootfs {name} is being removed.") from None
        if stat.S_ISDIR(mode):
            directories.append(b"/" + raw)
        elif stat.S_ISLNK(mode):
            links.append((b"/" + raw, os.readlink(raw, dir_fd=fd)))
    return tuple(directories), tuple(links)


def _is_empty(fd: int, name: bytes) -> bool:
    try:
        directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
    except OSError:
        return False
    try:
        with os.scandir(directory) as entries:
            return next(entries, None) is None
    finally:
        os.close(directory)


def _is_program(fd: int, path: bytes) -> bool:
    found = find_inside(fd, path)
    return found is not None and stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)


def _is_point(fd: int, path: bytes) -> bool:
    """Tell whether something can be mounted there: a directory, or a plain file in /etc, and no link on the way."""
    _root, top, name = path.split(b"/")
    try:
        above = os.open(top, _DIRECTORY, dir_fd=fd)
    except OSError:
        return False
    try:
        mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
    except OSError:
        return False
    finally:
        os.close(above)
    return stat.S_ISREG(mode) if top == b"etc" else stat.S_ISDIR(mode)


def _passwd_without(fd: int, uid: int) -> bytes:
    """Return the tree's /etc/passwd if a line for the caller can be added to it, nothing if there is one already."""
    above = os.open(b"etc", _DIRECTORY, dir_fd=fd)
    try:
        file = os.open(b"passwd", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
    finally:
        os.close(above)
    try:
        text = os.read(file, _MOST_PASSWD)
    finally:
        os.close(file)
    if not text or len(text) == _MOST_PASSWD:
        return b""
    known = any(line.split(b":")[2:3] == [b"%d" % uid] for line in text.splitlines())
    return b"" if known else text.rstrip(b"\n") + b"\n"
