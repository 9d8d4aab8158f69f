# SPDX-License-Identifier: Apache-2.0
"""The steps of an operation, and the directories that they are done in, opened and locked once.

A step names entries by what a rename does not change. A write changes the mtime, a replacement the inode, a chmod the
mode. Directories are known by their inode alone: what is in them is compared by itself. A live root is opened by its
path once and locked by device and inode (`RootLocks`), whatever path, process or state directory the others come from.
"""

from __future__ import annotations

import os
import stat
import time

from unspill.errors import RootRefused
from unspill.host.dirfd import Beneath, is_one_mount
from unspill.host.overlay import FORMAT, KINDS, MODE_MARK
from unspill.layers.locks import RootLocks
from unspill.layers.trees import close_again, open_to_owner
from unspill.model.operation import Entry, Step
from unspill.record import setters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from unspill.model.change import EntryKind
    from unspill.model.operation import Action, Metadata

_ROOT_PATIENCE_S = 60.0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# Records are made field by field here: there may be ten thousands of them, and to check keyword arguments takes longer
# than the system calls of a step
_new = object.__new__
(
    _set_root, _set_path, _set_action, _set_group, _set_place, _set_before, _set_after, _set_was, _set_becomes,
    _set_staged, _set_kept, _set_digest, _set_says, _set_copied,
) = setters(Step)  # fmt: skip
_set_kind, _set_mode, _set_inode, _set_size, _set_mtime, _set_ctime = setters(Entry)


def make_step(
    root: int,
    path: bytes,
    action: Action,
    group: int,
    place: bytes,
    before: Entry | None,
    after: Entry | None,
    was: Metadata | None = None,
    becomes: Metadata | None = None,
    staged: bool = False,
    kept: bytes = b"",
    digest: bytes = b"",
    says: bytes = b"",
    copied: int = 0,
) -> Step:
    """Return a step; without the last seven fields a put or a take in a root that entries can be renamed to."""
    step = _new(Step)
    _set_root(step, root)
    _set_path(step, path)
    _set_action(step, action)
    _set_group(step, group)
    _set_place(step, place)
    _set_before(step, before)
    _set_after(step, after)
    _set_was(step, was)
    _set_becomes(step, becomes)
    _set_staged(step, staged)
    _set_kept(step, kept)
    _set_digest(step, digest)
    _set_says(step, says)
    _set_copied(step, copied)
    return step


def make_entry(kind: EntryKind, mode: int, inode: int, size: int, mtime_ns: int, ctime_ns: int) -> Entry:
    """Return what identifies an entry."""
    entry = _new(Entry)
    _set_kind(entry, kind)
    _set_mode(entry, mode)
    _set_inode(entry, inode)
    _set_size(entry, size)
    _set_mtime(entry, mtime_ns)
    _set_ctime(entry, ctime_ns)
    return entry


def entry_of(status: os.stat_result) -> Entry:
    """Return what identifies an entry from its lstat."""
    return make_entry(
        KINDS.get(status.st_mode & FORMAT, "special"),
        status.st_mode & 0o7777,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def matches(status: os.stat_result, entry: Entry) -> bool:
    """Tell whether this is still that entry, with the same content as far as the filesystem tells."""
    if status.st_ino != entry.inode:
        return False
    kind = KINDS.get(status.st_mode & FORMAT, "special")
    if kind != entry.kind:
        return False
    if kind == "dir":
        return True
    return (
        status.st_mtime_ns == entry.mtime_ns and status.st_size == entry.size and status.st_mode & 0o7777 == entry.mode
    )


class OpenDirs:
    """The directories that an operation works in: the live roots, in order, and the directory of operations.

    `staged` roots are on another mount than the operations, so nothing can be renamed between them.
    """

    def __init__(self, state: bytes, staging: bytes = b"") -> None:
        self.state = state
        self.staging = staging
        self.operations = self._open_operations()
        self.roots: list[Beneath] = []
        self.paths: tuple[bytes, ...] = ()
        self._locks: RootLocks | None = None
        self.staged: list[bool] = []

    def look_anew(self) -> None:
        """Forget which directories of operations were opened to their owner: a scan of them closes them again."""
        self.operations.close()
        self.operations = self._open_operations()

    def open_roots(
        self,
        roots: Sequence[bytes],
        *,
        patience_s: float = _ROOT_PATIENCE_S,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Open and lock live roots; those of one operation always in the same order, so that nobody waits in a ring.

        `check` raises where nobody waits for the operation any more.

        Raises:
            RootRefused: one is not a directory (any more).
            ProjectBusy: another operation is under way there.
        """
        deadline = time.monotonic() + patience_s
        opened = [open_root(root) for root in roots]
        self.roots = [Beneath(fd) for fd in opened]
        self.paths = tuple(roots)
        self._locks = RootLocks(self.state)
        # One descriptor of each directory: a second one would wait for the first
        directories = {_device_and_inode(fd): fd for fd in opened}
        for _, fd in sorted(directories.items()):
            self._locks.acquire(fd, deadline, check)
        self.staged = [not is_one_mount(fd, self.operations.root_fd) for fd in opened]

    def place(self, step: Step) -> tuple[int, bytes]:
        """Return the directory and name of a step's other side."""
        return self.place_of(step.root, step.place, staged=step.staged)

    def place_of(self, root: int, place: bytes, *, staged: bool) -> tuple[int, bytes]:
        """Return the directory and name of a place, in the staging directory of a root or among our operations."""
        if staged:
            return self.roots[root].parent(self.staging + b"/" + place)
        return self.operations.parent(place)

    def live(self, step: Step) -> tuple[int, bytes]:
        """Return the directory and name of a step's live side."""
        return self.roots[step.root].parent(step.path)

    def close(self) -> None:
        """Close everything, which also unlocks the roots."""
        self.operations.close()
        while self.roots:
            self.roots.pop().close()
        if self._locks is not None:
            self._locks.close()
            self._locks = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()

    def _open_operations(self) -> Beneath:
        return Beneath(os.open(self.state + b"/operations", _DIRECTORY), open_to_owner)


def open_root(root: bytes) -> int:
    """Open a live root. Its path is not used again.

    Raises:
        RootRefused: it is not a directory, or a link to one.
    """
    try:
        return os.open(root, _DIRECTORY)
    except OSError as error:
        raise RootRefused(f"{os.fsdecode(root)} can't be used as a root: {error.strerror}.") from error


def move_upper(source: bytes, dest: bytes) -> None:
    """Move an upper directory; it keeps its mode.

    Raises:
        OSError: it is not there, or something else is.
    """
    try:
        os.rename(source, dest)
    except PermissionError:
        # To move a directory is to write its "..", which needs the right to write it; the upper directory of a project
        # that its owner may not write has the project's mode
        open_to_owner(source, stat.S_IMODE(os.lstat(source).st_mode))
        os.rename(source, dest)
        _close_upper(dest)


def _device_and_inode(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _close_upper(upper: bytes) -> None:
    """Give an upper directory its mode back that was moved while it was open, or was about to be."""
    fd = os.open(upper, _DIRECTORY)
    try:
        if MODE_MARK in os.listxattr(fd):
            close_again(fd, int(os.getxattr(fd, MODE_MARK), 8))
    finally:
        os.close(fd)
