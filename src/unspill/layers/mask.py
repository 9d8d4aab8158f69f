# SPDX-License-Identifier: Apache-2.0
"""Hide secrets by layers of nothing but deletions, laid right over a live directory: what they name is absent inside.

One such layer serves every run that masks the same names over directories that look the same, so most runs only look
whether it is there. None is ever changed; whoever removes old ones must be sure that no run stands on them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from _thread import allocate_lock  # every run loads this, and no run loads `threading`

from unspill.errors import SandboxUnavailable
from unspill.host.overlay import make_whiteout
from unspill.layers.lifecycle import own_attributes
from unspill.layers.trees import remove_tree
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Self

    Names = Mapping[bytes, tuple[bytes, ...]]

# A large prime: the name of a mask is the text about it modulo this, which needs no import. Somebody could make two
# texts with one name, so the text itself lies beside the layer and is compared.
_MODULUS = (1 << 127) - 1
_ABOUT, _LAYER = b"/about", b"/layer"
_MOST_ALIKE = 64
_LOCK = b".lock"
_NEW = b".new-"
# By state directory: the descriptor of the lock that the runs of this process share, and how many there are
_shared: dict[bytes, tuple[int, int]] = {}
_sharing = allocate_lock()  # protects _shared


def find_mask(state: bytes, live: bytes, names: Names) -> bytes | None:
    """Return the layer that hides `names`, by directory relative to `live`; made if there is none yet.

    A directory that is none, or a link to one, is passed over. One that does not exist is hidden itself: somebody may
    make it while a command runs. None where nothing would be hidden.

    Raises:
        SandboxUnavailable: it can't be made, so nothing may run.
    """
    try:
        masked = list(_masked_directories(live, names))
        if not any(directory.names for directory in masked):
            return None
        about = b"\n".join(directory.text() for directory in masked)
        return find_layer(state, about, lambda top: _fill(top, masked))
    except OSError as error:
        raise SandboxUnavailable(
            f"The secrets of {os.fsdecode(live)} can't be masked: {error.strerror}.",
            remedy="Check for free space and inodes in the state directory, or point UNSPILL_STATE_DIR elsewhere.",
        ) from error


def find_layer(state: bytes, about: bytes, fill: Callable[[bytes], None]) -> bytes:
    """Return the layer that a text is about; if there is none yet, `fill` makes it at the path that it is given.

    Raises:
        OSError: it can't be made.
    """
    masks = state + b"/masks"
    key = int.from_bytes(about, "big") % _MODULUS
    for number in range(_MOST_ALIKE):
        path = b"%b/%032x-%d" % (masks, key, number)
        try:
            is_it = _read(path + _ABOUT) == about
        except FileNotFoundError:
            _make(masks, path, about, fill)
            is_it = _read(path + _ABOUT) == about
        if is_it:
            return path + _LAYER
    raise OSError(errno.EEXIST, "too many masks are alike")


def hide(path: bytes, whiteout: bytes) -> bytes:
    """Make a deletion, another name of an earlier one where there is one; return it."""
    if whiteout:
        os.link(whiteout, path, follow_symlinks=False)
        return whiteout
    make_whiteout(path)
    return path


def remove_old_masks(state: bytes, before_ns: int) -> int:
    """Remove the masks that were made before a moment, unless a run is going on; return how many there were.

    One that is needed again is made again, in a millisecond.
    """
    removed = 0
    with MaskUse(state, alone=True) as use:
        if not use.is_alone:
            return 0
        for name in os.listdir(state + b"/masks"):
            path = b"%b/masks/%b" % (state, name)
            if name != _LOCK and os.lstat(path).st_ctime_ns < before_ns:
                # Under another name first: half a mask must never be found
                gone = b"%b/masks/%b%b" % (state, _NEW, os.urandom(8).hex().encode())
                os.rename(path, gone)
                remove_tree(gone)
                removed += 1
    return removed


class MaskUse:
    """Being one of those who stand on masks: none is removed meanwhile.

    The runs of a process share one descriptor of the lock: hundreds of them may be alive.
    """

    __slots__ = ("_fd", "_state", "is_alone")

    def __init__(self, state: bytes, *, alone: bool = False) -> None:
        """Join the others; with `alone` try to be the only one, and say in `is_alone` whether that succeeded."""
        self._state = state
        self._fd: int | None = None
        self.is_alone = False
        if alone:
            self._fd = _open_lock(state + b"/masks")
            self.is_alone = _take(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        with _sharing:
            if state not in _shared:
                fd = _open_lock(state + b"/masks")
                _take(fd, fcntl.LOCK_SH)
                _shared[state] = (fd, 0)
            fd, users = _shared[state]
            _shared[state] = (fd, users + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_rest: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
            return
        with _sharing:
            fd, users = _shared.pop(self._state, (None, 0))
            if fd is not None and users > 1:
                _shared[self._state] = (fd, users - 1)
            elif fd is not None:
                os.close(fd)


def _take(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how)
    except BlockingIOError:
        return False
    except BaseException:
        os.close(fd)
        raise
    return True


def _forget_shared() -> None:
    """Let go, in a fork, of what its parent's runs use, and of a lock that no thread here will release."""
    global _sharing  # noqa: PLW0603
    _sharing = allocate_lock()
    while _shared:
        os.close(_shared.popitem()[1][0])


os.register_at_fork(after_in_child=_forget_shared)


class _MaskedDirectory(Record):
    """One directory of a mask: what it looks like and the names that are absent in it."""

    path: bytes
    mode: int
    group: int
    mtime_ns: int
    attributes: tuple[tuple[str, bytes], ...]
    names: tuple[bytes, ...]

    def text(self) -> bytes:
        """Return all of it in one line, different for whatever differs; no name has a slash or a NUL in it."""
        metadata = b"%o %d %d %b" % (self.mode, self.group, self.mtime_ns, repr(self.attributes).encode())
        return b"\0".join((repr(self.path).encode(), metadata, b"/".join(self.names)))


def _masked_directories(live: bytes, names: Names) -> Iterator[_MaskedDirectory]:
    """Yield the directories with names to hide and those above them, a directory before those in it."""
    paths = {b""}
    for path in (path for path, hidden in names.items() if hidden):
        parts = path.split(b"/") if path else []
        paths.update(b"/".join(parts[:end]) for end in range(1, len(parts) + 1))
    found_in, absent = _find_directories(live, sorted(paths))
    for path, found in found_in.items():
        whole = _join(live, path)
        yield _MaskedDirectory(
            path=path,
            mode=stat.S_IMODE(found.st_mode),
            group=found.st_gid,
            # At the top the run's own upper directory is what shows
            mtime_ns=found.st_mtime_ns if path else 0,
            attributes=tuple(own_attributes(whole).items()),
            names=(*names.get(path, ()), *(name for name in absent.get(path, ()) if name not in names.get(path, ()))),
        )


def _find_directories(live: bytes, paths: list[bytes]) -> tuple[dict[bytes, os.stat_result], dict[bytes, list[bytes]]]:
    """Return those that are directories, and by directory the names in it that do not exist; both parents first."""
    found: dict[bytes, os.stat_result] = {}
    absent: dict[bytes, list[bytes]] = {}
    for path in paths:
        above, _, name = path.rpartition(b"/")
        if path and above not in found:
            continue
        try:
            status = os.lstat(_join(live, path))
        except FileNotFoundError:
            if path:
                absent.setdefault(above, []).append(name)
        except (NotADirectoryError, PermissionError):
            continue
        else:
            if stat.S_ISDIR(status.st_mode):
                found[path] = status
    return found, absent


def _read(path: bytes) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _make(masks: bytes, path: bytes, about: bytes, fill: Callable[[bytes], None]) -> None:
    """Make a layer under another name, then give it its own, unless somebody was faster."""
    os.makedirs(masks, 0o700, exist_ok=True)
    new = b"%b/%b%b" % (masks, _NEW, os.urandom(8).hex().encode())
    try:
        os.mkdir(new, 0o700)
        fill(new + _LAYER)
        with open(new + _ABOUT, "xb", buffering=0) as file:
            file.write(about)
        os.rename(new, path)
    except OSError as error:
        remove_tree(new)
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
    except BaseException:
        remove_tree(new)
        raise


def _fill(top: bytes, masked: list[_MaskedDirectory]) -> None:
    whiteout = b""
    for directory in masked:
        path = _join(top, directory.path)
        os.mkdir(path, 0o700)
        for name in directory.names:
            whiteout = hide(_join(path, name), whiteout)
    for directory in reversed(masked):
        _set_metadata(_join(top, directory.path), directory)


def _join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if name else directory


def _set_metadata(path: bytes, directory: _MaskedDirectory) -> None:
    for name, value in directory.attributes:
        os.setxattr(path, name, value)
    if os.lstat(path).st_gid != directory.group and directory.group in os.getgroups():
        os.chown(path, -1, directory.group)
    os.chmod(path, directory.mode)
    if directory.mtime_ns:
        os.utime(path, ns=(directory.mtime_ns, directory.mtime_ns))


def _open_lock(masks: bytes) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        try:
            return os.open(masks + b"/" + _LOCK, flags, 0o600)
        except FileNotFoundError:
            os.makedirs(masks, 0o700, exist_ok=True)
            return os.open(masks + b"/" + _LOCK, flags, 0o600)
    except OSError as error:
        raise SandboxUnavailable(
            f"The masks of secrets can't be locked: {error.strerror}.",
            remedy="Check for free space in the state directory.",
        ) from error
