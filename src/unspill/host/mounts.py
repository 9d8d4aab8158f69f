# SPDX-License-Identifier: Apache-2.0
"""Mounts one run's overlays in that run's own mount namespace.

Every directory is opened before it is used and named by its descriptor from then on: no character of a path can
be taken for an overlay option, and the option page holds some two hundred layers even without the new mount API.
"""

from __future__ import annotations

import errno
import os

from unspill.host import libc

_OPEN_DIR = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_ATTRIBUTES = libc.MOUNT_ATTR_NOSUID | libc.MOUNT_ATTR_NODEV
_PAGE = 4096

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


class MountRefused(Exception):
    """An overlay could not be mounted: which one, and the errno."""

    def __init__(self, dest: bytes, error: OSError) -> None:
        super().__init__(f"{error.strerror}")
        self.dest = dest
        self.errno = error.errno or 0
        self.text = str(error)


def mount_overlays(
    overlays: Sequence[tuple[tuple[bytes, ...], bytes, bytes | None, bytes | None]], kept: Sequence[bytes] = ()
) -> None:
    """Mount each (lowers, dest, upper, work) on its dest, in the given order; directories of `kept` stay as they are.

    All lower directories are opened before the first mount, so that no overlay becomes the lower of another. What is
    in `kept` lies below a read-only overlay but is written by the command: it is bound on top of itself. The caller's
    mount namespace is its own and private.

    Raises:
        MountRefused: one of them can't be mounted.
    """
    _set_empty_apart(overlays)
    opened = [_Opened(*overlay) for overlay in overlays]
    binds = [(path, _open_lower(path, path)) for path in kept]
    for overlay in opened:
        overlay.mount()
    for path, fd in binds:
        _bind(fd, path)


def _set_empty_apart(overlays: Sequence[tuple[tuple[bytes, ...], bytes, bytes | None, bytes | None]]) -> None:
    """Cover a topmost lower directory of ours with a filesystem of its own where it lies inside the other lower one.

    The kernel refuses layers that overlap (ELOOP); a home directory has our state directory, and so that one, in it.
    The empty directories that it has, for mounts, are made in the other as well.
    """
    apart: set[bytes] = set()
    for (first, *rest), dest, upper, _work in overlays:
        if upper is not None or first in apart or not any(first.startswith(lower + b"/") for lower in rest):
            continue
        apart.add(first)
        try:
            points = os.listdir(first)
            options = b"mode=0755,size=4096,nr_inodes=%d" % (2 + len(points))
            libc.mount(b"tmpfs", first, b"tmpfs", libc.MS_NOSUID | libc.MS_NODEV, options)
            for name in points:
                os.mkdir(os.path.join(first, name), 0o755)
        except OSError as error:
            raise MountRefused(dest, error) from None


def _open_lower(path: bytes, dest: bytes) -> int:
    try:
        return os.open(path, _OPEN_DIR)
    except OSError as error:
        raise MountRefused(dest, error) from None


def _open_dest(path: bytes) -> int:
    """Open what is to be mounted on; below an earlier overlay a path is made of what earlier runs left there."""
    try:
        return libc.openat2(None, path, _OPEN_DIR, libc.RESOLVE_NO_SYMLINKS)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise MountRefused(path, error) from None
        return os.open(path, _OPEN_DIR | os.O_NOFOLLOW)


def _bind(fd: int, path: bytes) -> None:
    dest_fd = _open_dest(path)
    try:
        libc.mount(_path_of(fd), _path_of(dest_fd), None, libc.MS_BIND, None)
    except OSError as error:
        raise MountRefused(path, error) from None
    finally:
        os.close(dest_fd)
        os.close(fd)


class _Opened:
    """One overlay whose directories are all open."""

    def __init__(self, lowers: tuple[bytes, ...], dest: bytes, upper: bytes | None, work: bytes | None) -> None:
        self.dest = dest
        self.lowers = [_open_lower(path, dest) for path in lowers]
        # Whoever has this in its table of mounts can write the layer: see `strays`
        self.name = b"overlay" if upper is None else os.path.basename(upper)
        try:
            self.upper = None if upper is None else os.open(upper, _OPEN_DIR | os.O_NOFOLLOW)
            self.work = None if work is None else os.open(work, _OPEN_DIR | os.O_NOFOLLOW)
        except OSError as error:
            raise MountRefused(dest, error) from None

    def mount(self) -> None:
        dest_fd = _open_dest(self.dest)
        try:
            try:
                self._mount_by_descriptor(dest_fd)
            except OSError as error:
                if error.errno not in (errno.ENOSYS, errno.EINVAL):
                    raise
                self._mount_by_options(dest_fd)
        except OSError as error:
            raise MountRefused(self.dest, error) from None
        finally:
            for fd in (dest_fd, *self.lowers, self.upper, self.work):
                if fd is not None:
                    os.close(fd)

    def _mount_by_descriptor(self, dest_fd: int) -> None:
        fs_fd = libc.fsopen(b"overlay")
        try:
            libc.fsconfig_string(fs_fd, b"source", self.name)
            for fd in self.lowers:
                libc.fsconfig_string(fs_fd, b"lowerdir+", _path_of(fd))
            if self.upper is not None and self.work is not None:
                libc.fsconfig_string(fs_fd, b"upperdir", _path_of(self.upper))
                libc.fsconfig_string(fs_fd, b"workdir", _path_of(self.work))
                libc.fsconfig_string(fs_fd, b"index", b"off")
                # A layer is worth nothing until the run has ended: no fsync at each copy-up
                libc.fsconfig_flag(fs_fd, b"volatile")
            libc.fsconfig_string(fs_fd, b"metacopy", b"off")
            libc.fsconfig_flag(fs_fd, b"userxattr")
            libc.fsconfig_create(fs_fd)
            mount_fd = libc.fsmount(fs_fd, _ATTRIBUTES)
        finally:
            os.close(fs_fd)
        try:
            libc.move_mount(mount_fd, dest_fd)
        finally:
            os.close(mount_fd)

    def _mount_by_options(self, dest_fd: int) -> None:
        options = [b"lowerdir=" + b":".join(map(_path_of, self.lowers)), b"metacopy=off", b"userxattr"]
        if self.upper is not None and self.work is not None:
            options += [b"upperdir=" + _path_of(self.upper), b"workdir=" + _path_of(self.work)]
            options += [b"index=off", b"volatile"]
        joined = b",".join(options)
        if len(joined) >= _PAGE:
            raise OSError(errno.E2BIG, "more layers than this kernel's mount options hold")
        flags = libc.MS_NOSUID | libc.MS_NODEV
        libc.mount(self.name, _path_of(dest_fd), b"overlay", flags, joined)


def _path_of(fd: int) -> bytes:
    return b"/proc/self/fd/%d" % fd
