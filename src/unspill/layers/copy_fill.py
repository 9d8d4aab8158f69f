# SPDX-License-Identifier: Apache-2.0
"""Fill an upper directory with a copy of the merged view: the engine for hosts on which no overlay works.

Each directory is visited once, in all trees that make it up, and only what is seen in the end is copied. The live
tree is only read. Its cost grows with the project; blocks are shared with the originals where the filesystem can.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.errors import RootRefused, SandboxUnavailable
from unspill.layers.copy_chain import OPEN_AT_MOST, Chain
from unspill.layers.copy_clock import settle, times_mapped_writes
from unspill.layers.copy_content import Copier, digest_of
from unspill.layers.copy_findings import Findings
from unspill.layers.copy_form import (
    is_opaque,
    is_whiteout,
    list_attributes,
    prove_marks,
    refuse_foreign,
    set_attributes,
    shown_attributes,
)
from unspill.layers.copy_manifest import Listing, Manifest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.layers.copy_manifest import MadeDirectory

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# Failures that are not about the file being read: a stand-in in its place would only hide them.
_OURS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EROFS})


def fill(live: bytes, sealed: Sequence[bytes], upper: bytes, mask: bytes | None = None) -> Manifest:
    """Copy what an overlay of `live` and the `sealed` uppers, the oldest first, would show into an empty `upper`.

    `mask` is a layer of deletions right over `live`. What it hides is not copied, so it can't be missed later either.

    Fields are those that count as changes: type, permissions, content, target, `user.*` attributes, mtime. Hard
    links become files of their own, devices are left out, unreadable entries have an empty stand-in of mode 000.

    Raises:
        OverlayUnsupported: Changes could not be recorded in `upper`, so nothing was copied.
        RootRefused: `upper` lies in `live`.
        SandboxUnavailable: The copy can't be made; `upper` is to be thrown away.
    """
    filling = _Filling()
    try:
        filling.open(live, sealed, upper, mask)
        filling.walk()
        return filling.finish()
    except OSError as error:
        raise SandboxUnavailable(
            f"The project can't be copied: {error}.",
            remedy="Look for free space and free inodes in the state directory, or point UNSPILL_STATE_DIR elsewhere.",
        ) from error
    finally:
        filling.close()


class _Frame:
    """A directory that is being filled. `trees` are the walks that are in it, the topmost first."""

    __slots__ = ("attributes", "listing", "mtime_ns", "name", "todo", "trees")

    def __init__(self, name: bytes, trees: list[Chain]) -> None:
        self.name = name
        self.trees = trees
        self.attributes: dict[str, bytes] = {}
        self.mtime_ns: int | None = None
        self.listing = Listing()
        self.todo: list[tuple[bytes, list[Chain]]] = []


class _Filling:
    """One copy in the making."""

    def __init__(self) -> None:
        self.trees: list[Chain] = []
        self.mask: Chain | None = None
        self.copy: Chain  # set last by `open`
        self.top_id = (0, 0)
        self.copier = Copier()
        self.findings = Findings()
        self.directories: dict[int, MadeDirectory] = {}
        self.entries = 0
        self.youngest_ns = 0
        self.needs_digests = False

    def open(self, live: bytes, sealed: Sequence[bytes], upper: bytes, mask: bytes | None) -> None:
        # The live tree needs two: in a directory that can be listed but not searched ".." can't be looked up.
        window = max(1, OPEN_AT_MOST // (len(sealed) + 1))
        for path in reversed(sealed):
            self.trees.append(Chain(path, rights=0o500, window=window))
        if mask is not None:
            self.mask = Chain(mask, window=window)
            self.trees.append(self.mask)
        self.trees.append(Chain(live))
        self.copy = Chain(upper, rights=0o700)
        self.top_id = self.copy.id
        prove_marks(self.copy.fd)
        self.needs_digests = not times_mapped_writes(self.copy.fd)

    def close(self) -> None:
        for tree in (*self.trees, *([self.copy] if hasattr(self, "copy") else [])):
            tree.close()

    def walk(self) -> None:
        frames = [_Frame(b"", self.trees)]
        self._arrive(frames[0])
        while frames:
            frame = frames[-1]
            if frame.todo:
                child = self._descend(frame, *frame.todo.pop())
                if child is not None:
                    frames.append(child)
            else:
                frames.pop()
                self._depart(frame, is_top=not frames)

    def finish(self) -> Manifest:
        return Manifest(
            device=self.top_id[0],
            settled_ns=settle(self.copy.fd, self.youngest_ns),
            directories=self.directories,
            entries=self.entries,
            cloned=self.copier.cloned,
            findings=self.findings.texts(),
        )

    def _descend(self, frame: _Frame, name: bytes, trees: list[Chain]) -> _Frame | None:
        """Go into a subdirectory in those trees that show through, and make its copy."""
        entered: list[Chain] = []
        is_closed = False
        for tree in trees:
            try:
                tree.enter(name)
            except PermissionError:
                self.findings.add("unreadable", tree.path(name))
                is_closed = not entered
                break
            except (FileNotFoundError, NotADirectoryError):
                self.findings.add("moving", tree.path(name))
                break
            entered.append(tree)
            self._refuse_own_copy(tree)
            if tree.rights and is_opaque(tree.fd, list_attributes(tree.fd)):
                break
        if not entered and not is_closed:
            return None
        os.mkdir(name, 0o700, dir_fd=self.copy.fd)
        self.copy.enter(name)
        frame.listing.add_directory(name, self.copy.id[1], unseen=is_closed)
        child = _Frame(name, entered)
        self._arrive(child)
        return child

    def _refuse_own_copy(self, tree: Chain) -> None:
        if tree.id == self.top_id:
            raise RootRefused("The state directory lies in the project, so a copy would have to contain itself.")

    def _arrive(self, frame: _Frame) -> None:
        """Give the copy of a directory its looks, and copy all in it that is no directory."""
        if not frame.trees:
            self.copy.give_mode(0)
            return
        top = next((tree for tree in frame.trees if tree is not self.mask), frame.trees[0])
        frame.mtime_ns = os.fstat(top.fd).st_mtime_ns
        self.copy.give_mode(top.found_mode)
        frame.attributes = self._copy_attributes(top, top.fd, self.copy.fd, b"")
        leaves, directories = _look(frame.trees, self.mask)
        frame.todo = list(directories.items())
        for tree, name, is_file in leaves:
            if is_file:
                self._copy_file(frame.listing, tree, name)
            else:
                self._copy_other(frame.listing, tree, name)

    def _depart(self, frame: _Frame, *, is_top: bool) -> None:
        if frame.mtime_ns is not None:
            os.utime(self.copy.fd, ns=(frame.mtime_ns, frame.mtime_ns))
        inode = self.copy.id[1]
        # The top stays open, for the last look at the clock; its mode is given to it in the end.
        mode = 0 if is_top else self.copy.leave()
        self.directories[inode] = frame.listing.finish(mode, frame.attributes)
        self.entries += len(frame.listing)
        self.youngest_ns = max(self.youngest_ns, frame.listing.youngest_ns)
        if not is_top:
            for tree in frame.trees:
                tree.leave()

    def _copy_file(self, listing: Listing, tree: Chain, name: bytes) -> None:
        try:
            source, found = tree.open_file(name)
        except PermissionError:
            self._make_stand_in(listing, tree, name)
            return
        except OSError as error:
            if error.errno in _OURS:
                raise
            self.findings.add("moving", tree.path(name))
            return
        try:
            dest = os.open(name, _NEW, 0o600, dir_fd=self.copy.fd)
            try:
                is_whole = self._copy_open_file(tree, name, source, dest, found)
                if self.needs_digests:
                    listing.digests[name] = digest_of(dest, os.fstat(dest).st_size)
                listing.add(name, os.fstat(dest), unseen=not is_whole)
            finally:
                os.close(dest)
        finally:
            tree.close_file(source, found)

    def _copy_open_file(self, tree: Chain, name: bytes, source: int, dest: int, found: os.stat_result) -> bool:
        """Copy all that counts about a file; leave a stand-in where its content can't be read."""
        try:
            self.copier.copy(source, dest, found)
        except OSError as error:
            if error.errno in _OURS:
                raise
            self.findings.add("unreadable", tree.path(name))
            os.ftruncate(dest, 0)
            os.fchmod(dest, 0)
            return False
        self._copy_attributes(tree, source, dest, name)
        os.fchmod(dest, stat.S_IMODE(found.st_mode))
        os.utime(dest, ns=(found.st_atime_ns, found.st_mtime_ns))
        return True

    def _make_stand_in(self, listing: Listing, tree: Chain, name: bytes) -> None:
        self.findings.add("unreadable", tree.path(name))
        dest = os.open(name, _NEW, 0, dir_fd=self.copy.fd)
        try:
            listing.add(name, os.fstat(dest), unseen=True)
            if self.needs_digests:
                listing.digests[name] = digest_of(dest, 0)
        finally:
            os.close(dest)

    def _copy_attributes(self, tree: Chain, source: int, dest: int, name: bytes) -> dict[str, bytes]:
        names = list_attributes(source)
        if not names:
            return {}
        if tree.rights:
            refuse_foreign(names, tree.path(name))
        values = shown_attributes(source, names)
        lost = set_attributes(dest, values)
        if lost:
            self.findings.add("attribute", tree.path(name))
        return {key: value for key, value in values.items() if key not in lost}

    def _copy_other(self, listing: Listing, tree: Chain, name: bytes) -> None:
        """Copy a symlink, a FIFO or a socket; a deletion is nothing to copy."""
        try:
            status = os.stat(name, dir_fd=tree.fd, follow_symlinks=False)
            target = os.readlink(name, dir_fd=tree.fd) if stat.S_ISLNK(status.st_mode) else b""
        except PermissionError:
            self._make_stand_in(listing, tree, name)
            return
        except OSError:
            self.findings.add("moving", tree.path(name))
            return
        match stat.S_IFMT(status.st_mode):
            case stat.S_IFLNK:
                os.symlink(target, name, dir_fd=self.copy.fd)
            case stat.S_IFIFO | stat.S_IFSOCK:
                self._make_node(name, status.st_mode)
            case stat.S_IFCHR | stat.S_IFBLK:
                if not (tree.rights and is_whiteout(status)):
                    self.findings.add("device", tree.path(name))
                return
            case _:
                self.findings.add("moving", tree.path(name))
                return
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=self.copy.fd, follow_symlinks=False)
        listing.add(name, os.stat(name, dir_fd=self.copy.fd, follow_symlinks=False), unseen=False)

    def _make_node(self, name: bytes, mode: int) -> None:
        os.mknod(name, mode, dir_fd=self.copy.fd)
        # What the umask took away. Nobody else can write here yet, and no link has this name.
        os.chmod(name, stat.S_IMODE(mode), dir_fd=self.copy.fd)


def _look(trees: list[Chain], mask: Chain | None) -> tuple[list[tuple[Chain, bytes, bool]], dict[bytes, list[Chain]]]:
    """Find what a directory shows that several trees make up, the topmost first.

    Return the entries that are no directories, each with its tree and whether it is a file; and by name of each
    subdirectory the trees that have it, down to the first one in which that name is something else.
    """
    leaves: list[tuple[Chain, bytes, bool]] = []
    directories: dict[bytes, list[Chain]] = {}
    settled: set[bytes] = set()
    hidden: set[bytes] = set()
    for tree in trees:
        with os.scandir(tree.fd) as entries:
            for entry in entries:
                # Names come as str from a descriptor; bytes would need a path.
                name = os.fsencode(entry.name)
                # The live filesystem may know a masked name in other letters, too
                if name in settled or (hidden and name.lower() in hidden and not entry.is_dir(follow_symlinks=False)):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    directories.setdefault(name, []).append(tree)
                    continue
                settled.add(name)
                if tree is mask:
                    hidden.add(name.lower())
                elif name not in directories:
                    leaves.append((tree, name, entry.is_file(follow_symlinks=False)))
    return leaves, {name: having for name, having in directories.items() if having != [mask]}
