# SPDX-License-Identifier: Apache-2.0
"""The rootfs directory: which ones are ready, which one is in use, and how one goes.

Reading works where the directory can only be read. A rootfs never changes here: it appears whole (`build.py`), and
it goes whole, when no run uses it.
"""

from __future__ import annotations

import fcntl
import os

from unspill.errors import RootfsError
from unspill.layers.remove import remove_tree
from unspill.rootfs import ready
from unspill.rootfs.ages import line_of, newest
from unspill.rootfs.hold import Hold, NameLock, take
from unspill.rootfs.layout import (
    CURRENT,
    ROOTS,
    STAGING,
    check_all_trusted,
    check_trusted,
    failed,
    is_directory,
    make_layout,
    shown,
)
from unspill.rootfs.staging import staging_path, sweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from unspill.model.rootfs import Rootfs

# No rootfs is called so: their names begin with a letter or digit
CURRENT_LOCK = "_current"


class _Gone:
    """A rootfs that was taken away, locked: so whoever waits for it finds that it is not at its place."""

    def __init__(self, fd: int, path: bytes) -> None:
        self._fd = fd
        self.path = path

    def delete(self) -> None:
        """Delete it; what resists is left to the next sweep."""
        try:
            remove_tree(self.path)
        finally:
            self.release()

    def release(self) -> None:
        """Give its lock back."""
        if self._fd >= 0:
            os.close(self._fd)


class Shelf:
    """All rootfs below one directory, which need not be there."""

    def __init__(self, directory: bytes) -> None:
        self.directory = directory
        self.roots = os.path.join(directory, ROOTS)

    def list(self) -> tuple[Rootfs, ...]:
        """Return those that are ready, by name.

        Raises:
            RootfsUnsafe: the directory is another person's, or others can write in it.
        """
        return tuple(found for found in map(self.get, self._names()) if found is not None)

    def damaged(self) -> tuple[tuple[str, str], ...]:
        """Return the names of those that are there but can't be used, and why; they are made anew when asked for."""
        found: list[tuple[str, str]] = []
        for name in self._names():
            try:
                ready.load(self.roots, name)
            except ready.NotReady as error:
                found.append((name, str(error)))
        return tuple(found)

    def get(self, name: str) -> Rootfs | None:
        """Return the one of exactly this name if it is ready.

        Raises:
            RootfsUnsafe: the directory is another person's, or others can write in it.
        """
        if not self._is_there():
            return None
        try:
            return ready.load(self.roots, name)
        except ready.NotReady:
            return None

    def find(self, name: str, *, cut_anywhere: bool = False) -> Rootfs | None:
        """Return the one of this name, or whose name begins so: `alpine`, `alpine-3.23`.

        Of several the one in use counts, or else the newest, if they only differ in their version. With `cut_anywhere`
        (a person types) a part may be cut short, `alp`, where no name begins with it as a whole.

        Raises:
            RootfsError: it could be several.
            RootfsUnsafe: the directory is another person's, or others can write in it.
        """
        exact = self.get(name)
        if exact is not None or not name:
            return exact
        ready = self.list()
        # No label has a dash, so the first one ends it: `alpine` is never `alpine.mine`, but `alpine-3` may be 3.23
        cuts = (f"{name}-", f"{name}.") if "-" in name else (f"{name}-",)
        several = [found for found in ready if found.name.startswith(cuts)]
        if cut_anywhere and not several:
            several = [found for found in ready if found.name.startswith(name)]
        current = self.current()
        if current in several:
            return current
        if len({line_of(found) for found in several}) > 1:
            names = ", ".join(found.name for found in several)
            raise RootfsError(f"{name!r} could be {names}", remedy="Write more of its name.")
        return newest(several) if several else None

    def current(self) -> Rootfs | None:
        """Return the one in use where a policy names none; None if there is none that is ready."""
        if not self._is_there():
            return None
        name = self._current_name()
        return self.get(name) if name else None

    def use(self, name: str) -> Rootfs:
        """Make one the current one.

        Raises:
            RootfsError: there is no such rootfs, or the directory can only be read.
        """
        self._known(name)
        with self._changing(CURRENT_LOCK):
            # Not before: it could be removed meanwhile
            found = self._known(name)
            self._point_to(found.name)
        return found

    def use_first(self, name: str) -> None:
        """Make one the current one if there is none."""
        with self._changing(CURRENT_LOCK):
            if self.current() is None:
                self._point_to(name)

    def use_instead(self, old: str, new: str) -> bool:
        """Make `new` the current one if `old` is; tell whether it was."""
        with self._changing(CURRENT_LOCK):
            is_old = self._current_name() == old
            if is_old:
                self._point_to(new)
            return is_old

    def hold(self, rootfs: Rootfs) -> Hold:
        """Return the right to use it: `with shelf.hold(rootfs): ...`. Nobody can remove it as long as it is held.

        Raises:
            RootfsError: it has gone.
        """
        return Hold(rootfs)

    def remove(self, name: str, *, force: bool = False) -> str:
        """Remove one that no run uses, ready or damaged; return its whole name.

        The current one goes only with `force`; then there is none. One that runs use never goes.

        Raises:
            RootfsError: there is no such rootfs, runs use it, it is the current one, or it can only be read.
        """
        name = name if name in self._names() else self._known(name).name
        with self._changing(name), self._changing(CURRENT_LOCK):
            is_current = self._current_name() == name
            if is_current and not force:
                raise RootfsError(
                    f"{name} is the rootfs in use",
                    remedy="Choose another one before, by `unspill rootfs use NAME`, or remove it with --force.",
                )
            gone = self._take_away(name)
            if gone is None:
                raise RootfsError(f"Runs use {name} right now", remedy="Remove it when they have ended.")
            if is_current:
                self._point_nowhere()
        gone.delete()
        sweep(self.directory, name)
        return name

    def remove_unused(self, wanted: Collection[str] = ()) -> tuple[str, ...]:
        """Remove those that a newer one has replaced, are not the current one and no run uses; return their names.

        What was kept of a sandbox never goes this way: nobody could make it again; nor do those that are `wanted`.
        What dead processes left half-built goes as well.

        Raises:
            RootfsError: the directory can only be read.
        """
        if not self._is_there():
            return ()
        make_layout(self.directory)
        lines: dict[object, list[Rootfs]] = {}
        for found in self.list():
            if found.manifest is not None and found.manifest.wish.source != "kept":
                lines.setdefault(line_of(found), []).append(found)
        kept = {newest(line).name for line in lines.values()}.union(wanted)
        old = [found.name for line in lines.values() for found in line if found.name not in kept]
        removed = tuple(name for name in sorted(old) if self._try_remove(name))
        sweep(self.directory)
        return removed

    def set_aside(self, name: str) -> None:
        """Remove one that is damaged, to make room; the caller has the lock of its name.

        Raises:
            RootfsError: runs that began before it was damaged still use it.
        """
        if name not in self._names():
            return
        gone = self._take_away(name)
        if gone is None:
            raise RootfsError(f"{name} is damaged, and runs still use it", remedy="Try again when they have ended.")
        gone.delete()

    def _try_remove(self, name: str) -> bool:
        lock = NameLock(self.directory, name)
        if not lock.try_acquire():
            return False
        with lock:
            with NameLock(self.directory, CURRENT_LOCK):
                gone = self._take_away(name) if self._current_name() != name else None
            if gone is not None:
                gone.delete()
        return gone is not None

    def _take_away(self, name: str) -> _Gone | None:
        """Move one to the staging directories, to be deleted; None if others have a lock on it."""
        path = os.path.join(self.roots, os.fsencode(name))
        # Where it is no directory at all, it never was a rootfs that somebody could hold
        fd = take(path, fcntl.LOCK_EX) if is_directory(path) else -1
        if fd is None:
            return None
        gone = _Gone(fd, staging_path(os.path.join(self.directory, STAGING), os.fsencode(name)))
        try:
            os.rename(path, gone.path)
        except OSError as error:
            gone.release()
            raise failed(error, self.directory) from error
        return gone

    def _changing(self, name: str) -> NameLock:
        make_layout(self.directory)
        return NameLock(self.directory, name)

    def _point_to(self, name: str) -> None:
        draft = os.path.join(self.directory, STAGING, CURRENT_LOCK.encode())
        try:
            # One that a dead process left; nobody else is here now
            remove_tree(draft)
            os.symlink(os.path.join(ROOTS, os.fsencode(name)), draft)
            os.rename(draft, os.path.join(self.directory, CURRENT))
        except OSError as error:
            raise failed(error, self.directory) from error

    def _point_nowhere(self) -> None:
        try:
            os.unlink(os.path.join(self.directory, CURRENT))
        except OSError:
            # A link that leads to nothing is no current one either
            return

    def _current_name(self) -> str:
        try:
            target = os.readlink(os.path.join(self.directory, CURRENT))
        except OSError:
            return ""
        parent, _, name = target.rpartition(b"/")
        return name.decode("ascii", "replace") if parent == ROOTS else ""

    def _known(self, name: str) -> Rootfs:
        found = self.find(name, cut_anywhere=True)
        if found is None:
            raise RootfsError(f"There is no rootfs {name!r} in {shown(self.directory)}")
        return found

    def _is_there(self) -> bool:
        return check_all_trusted(self.directory) and check_trusted(self.roots)

    def _names(self) -> tuple[str, ...]:
        if not self._is_there():
            return ()
        try:
            return tuple(sorted(map(os.fsdecode, os.listdir(self.roots))))
        except OSError as error:
            raise failed(error, self.directory) from error
