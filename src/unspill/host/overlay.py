# SPDX-License-Identifier: Apache-2.0
"""Overlayfs: the form of a layer on a mount with `userxattr`, and the mounts of one run in its own mount namespace.

In a layer a character device 0:0 is a deletion, and `user.overlay.*` are marks. Marks are recognised by their exact
names. A command that sets `user.overlay.opaque` itself gets it stored as `user.overlay.overlay.opaque`: that is the
command's data, and matching by prefix would let it delete live files.

A mount names every directory by an open descriptor: no character of a path can be taken for an overlay option, and the
option page holds some two hundred layers even without the new mount API.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.errors import SandboxUnavailable
from unspill.host import libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unspill.model.change import EntryKind


USER = "user."
OWN = "user.overlay."
# On what was copied from a lower layer, which was there then
ORIGIN = OWN + "origin"
# On what was copied by one of several names: a rename below the overlay leaves the old one in it
ALIAS = OWN + "nlink"
ESCAPED = "user.overlay.overlay."
OPAQUE = "user.overlay.opaque"

# What a volatile mount leaves in its work directory, the outermost first, and the file in the last of them.
VOLATILE_DIRECTORIES = (b"work", b"work/incompat", b"work/incompat/volatile")
VOLATILE_FILE = b"work/incompat/volatile/dirty"

# Ours: the mode that a command gave a directory which is open to its owner for a while.
MODE_MARK = "user.overlay.unspill.mode"

# Kernels write these only for mount options that unspill never uses, or for layers composed by something else.
FOREIGN = frozenset({"user.overlay.redirect", "user.overlay.metacopy", "user.overlay.whiteout"})

FORMAT = 0o170000
KINDS: dict[int, EntryKind] = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink"}

# A directory of ours that its owner can't write must be written before an attribute can keep its mode. For that moment
# the mode itself says what it was: the owner's three bits stand in the place of the special ones.
_WRITE_ONLY = 0o200
_SPECIAL = 0o7000

_NO_ATTRIBUTE = frozenset({errno.ENOTSUP, errno.ENODATA})

_OPEN_DIR = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_ATTRIBUTES = libc.MOUNT_ATTR_NOSUID | libc.MOUNT_ATTR_NODEV
_PAGE = 4096


def kind_of(status: os.stat_result) -> EntryKind:
    """Return the kind of an entry from its lstat."""
    return KINDS.get(status.st_mode & FORMAT, "special")


def is_whiteout(status: os.stat_result) -> bool:
    """Tell whether this is overlayfs's mark of a deletion: a character device 0:0."""
    return status.st_mode & FORMAT == stat.S_IFCHR and status.st_rdev == 0


def make_whiteout(name: bytes, directory: int | None = None) -> None:
    """Mark an entry of the layers below as deleted; its name counts from `directory`, or is a path."""
    os.mknod(name, stat.S_IFCHR, 0, dir_fd=directory)


def is_opaque(entry: bytes | int) -> bool:
    """Tell whether a directory of a layer hides what lies below it."""
    try:
        return os.getxattr(entry, OPAQUE, follow_symlinks=not isinstance(entry, bytes)) == b"y"
    except OSError as error:
        if error.errno in _NO_ATTRIBUTE:
            return False
        raise


def hides_below(entry: bytes) -> bool:
    """Tell whether an entry of a layer hides what lies below it; where nobody can look, it may."""
    try:
        return not stat.S_ISDIR(os.lstat(entry).st_mode) or is_opaque(entry)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def is_user_attribute(name: str) -> bool:
    """Tell whether a stored attribute is one that the command sees and can set."""
    return name.startswith(USER) and (not name.startswith(OWN) or name.startswith(ESCAPED))


def is_plain_attribute(name: str) -> bool:
    """Tell whether an attribute is one that no overlay takes for a mark of its own, in a layer or in a live tree."""
    return name.startswith(USER) and not name.startswith(OWN)


def shown_name(stored: str) -> str | None:
    """Return the name by which a command knows an attribute of a layer, None for what it does not see."""
    if not is_user_attribute(stored):
        return None
    return OWN + stored[len(ESCAPED) :] if stored.startswith(ESCAPED) else stored


def list_attributes(entry: bytes | int) -> list[str]:
    """Return every attribute name of an entry, given by descriptor or by a path whose last part is not followed."""
    try:
        return os.listxattr(entry, follow_symlinks=not isinstance(entry, bytes))
    except OSError as error:
        if error.errno == errno.ENOTSUP:
            return []
        raise


def was_copied_up(uppers: Iterable[bytes], path: bytes) -> bool:
    """Tell whether overlayfs made the entry of some layers, oldest first, from one of its kind in the live tree.

    That was at the same path, unless it is a file that was moved: directories of the live tree can't be.
    """
    kinds: set[int] = set()
    for upper in uppers:
        place = upper + b"/" + path
        try:
            found = os.lstat(place)
            kind = stat.S_IFMT(found.st_mode)
            # A second name of a file has the origin of the first
            is_linked = not stat.S_ISDIR(found.st_mode) and found.st_nlink > 1
            if not kinds and (is_linked or ORIGIN not in list_attributes(place)):
                return False
        except FileNotFoundError:
            continue
        except OSError:
            return False
        kinds.add(kind)
    return len(kinds) == 1


def user_attributes(entry: bytes | int, names: list[str]) -> dict[str, bytes]:
    """Return the values of those of the `names` that are the command's own, by their names as stored.

    Raises:
        OSError: A value can't be read.
    """
    values: dict[str, bytes] = {}
    for name in names:
        if is_user_attribute(name):
            try:
                values[name] = os.getxattr(entry, name, follow_symlinks=not isinstance(entry, bytes))
            except OSError as error:
                if error.errno not in _NO_ATTRIBUTE:
                    raise
    return values


def refuse_foreign(names: list[str], path: bytes) -> None:
    """Stop at marks whose meaning unspill does not read.

    Raises:
        SandboxUnavailable: The layer was not made by a mount of ours.
    """
    if names and not FOREIGN.isdisjoint(names):
        marks = ", ".join(sorted(FOREIGN.intersection(names)))
        raise foreign_layer(f"{marks} at {path!r}")


def foreign_layer(found: str) -> SandboxUnavailable:
    """Return the error for a layer with something in it that no mount of unspill writes."""
    return SandboxUnavailable(
        f"the layer has {found}, which unspill never writes",
        remedy="Something else wrote to the layer. Discard this sandbox.",
    )


def half_open(mode: int) -> int:
    """Return a mode that lets the owner write a directory and nothing else, and that `before_opening` understands.

    What had special bits itself can't be written so: it loses the owner's bits if this process dies now.
    """
    others, owner = mode & 0o077, (mode & 0o700) >> 6
    if mode & _SPECIAL:
        return mode & ~0o700 | _WRITE_ONLY
    # A directory that can really only be written keeps its mode, so the code for that stands for none of the bits
    shown = {0o2: 0, 0: 0o2}.get(owner, owner)
    return others | _WRITE_ONLY | shown << 9


def before_opening(mode: int) -> int:
    """Return the mode that a directory had; that of one which nobody was about to open is what it is."""
    shown = (mode & _SPECIAL) >> 9
    if mode & 0o700 != _WRITE_ONLY or not shown:
        return mode
    return mode & 0o077 | (0 if shown == 0o2 else shown << 6)


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


def make_overlays(
    overlays: Sequence[tuple[tuple[bytes, ...], bytes, bytes | None, bytes | None]],
) -> list[tuple[int, int]]:
    """Return a detached mount of each (lowers, dest, upper, work), to be attached wherever its dest is.

    With each comes what `refresh` takes. It keeps no mount busy, but the filesystem does not end before it is closed.

    Raises:
        MountRefused: one of them can't be made.
    """
    made: list[tuple[int, int]] = []
    try:
        for overlay in overlays:
            made.append(_Opened(*overlay).make())
    except MountRefused:
        for pair in made:
            for fd in pair:
                os.close(fd)
        raise
    return made


def refresh(filesystem: int) -> bool:
    """Have a mounted overlay look everything up anew that nothing uses: what is renamed below it would stay unseen.

    Return whether the kernel lets us.
    """
    try:
        libc.fsconfig_reconfigure(filesystem)
    except OSError:
        return False
    return True


def make_mountable(work: bytes) -> None:
    """Let an overlay that was detached be mounted again: what says that it may not have been synchronised goes.

    That is for after a crash of the host. Here the same kernel still has all of it.
    """
    try:
        os.unlink(os.path.join(work, VOLATILE_FILE))
        for part in reversed(VOLATILE_DIRECTORIES[1:]):
            os.rmdir(os.path.join(work, part))
    except FileNotFoundError:
        return


def attach(mount_fd: int, dest: bytes) -> None:
    """Put a detached mount in its place.

    Raises:
        MountRefused: there is no such place, or the kernel does not let us.
    """
    dest_fd = _open_dest(dest)
    try:
        libc.move_mount(mount_fd, dest_fd)
    except OSError as error:
        raise MountRefused(dest, error) from None
    finally:
        os.close(dest_fd)


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

    def make(self) -> tuple[int, int]:
        """Return the overlay as a detached mount, and its filesystem; its directories are let go of."""
        try:
            return self._make_mount()
        except OSError as error:
            raise MountRefused(self.dest, error) from None
        finally:
            self._close()

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
            os.close(dest_fd)
            self._close()

    def _close(self) -> None:
        for fd in (*self.lowers, self.upper, self.work):
            if fd is not None:
                os.close(fd)

    def _mount_by_descriptor(self, dest_fd: int) -> None:
        mount_fd, fs_fd = self._make_mount()
        os.close(fs_fd)
        try:
            libc.move_mount(mount_fd, dest_fd)
        finally:
            os.close(mount_fd)

    def _make_mount(self) -> tuple[int, int]:
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
            return libc.fsmount(fs_fd, _ATTRIBUTES), fs_fd
        except OSError:
            os.close(fs_fd)
            raise

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
