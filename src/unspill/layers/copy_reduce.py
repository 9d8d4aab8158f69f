# SPDX-License-Identifier: Apache-2.0
"""Turn a copy that a command has changed into a layer as overlayfs would have written it, in place.

The command could make any mark of a layer in its copy, so none is believed: every one becomes plain content or goes.
Writes nothing outside the copy. One that is interrupted leaves neither a copy nor a layer: never seal that.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.errors import SandboxUnavailable
from unspill.layers.copy_chain import Chain
from unspill.layers.copy_content import digest_of
from unspill.layers.copy_findings import Findings
from unspill.layers.copy_form import (
    OPAQUE,
    OWN,
    list_attributes,
    make_whiteout,
    own_attributes,
    set_attributes,
    stored_name,
)
from unspill.layers.copy_manifest import UNSEEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.layers.copy_manifest import MadeDirectory, Manifest, Print


def reduce(upper: bytes, manifest: Manifest) -> tuple[str, ...]:
    """Remove what the command did not touch, and mark what it deleted or replaced. Returns the findings.

    Every process that could write into `upper` must be dead. The view of the old layers with this one on top then
    equals the copy as the command left it.

    Raises:
        SandboxUnavailable: The layer is not complete and must not be sealed.
    """
    try:
        chain = Chain(upper, rights=0o700)
        try:
            reduction = _Reduction(chain, manifest)
            reduction.walk()
            return reduction.findings.texts()
        finally:
            chain.close()
    except OSError as error:
        raise SandboxUnavailable(
            f"What the command changed can't be recorded: {error}.",
            remedy="Look for free space and free inodes in the state directory, then run the command again.",
        ) from error


class _Frame:
    """A directory that is being reduced. `made` is None for one that the command made or moved here.

    `is_kept` tells whether something below it is. `hides` tells whether its name was something else before.
    """

    __slots__ = ("hides", "is_kept", "made", "name", "todo")

    def __init__(self, name: bytes, made: MadeDirectory | None, *, hides: bool) -> None:
        self.name = name
        self.made = made
        self.hides = hides
        self.is_kept = made is None
        self.todo: list[tuple[bytes, Print | None]] = []


class _Reduction:
    """One copy on its way to a layer."""

    def __init__(self, chain: Chain, manifest: Manifest) -> None:
        self.chain = chain
        self.manifest = manifest
        self.findings = Findings()
        self.escaped: set[tuple[int, int]] = set()

    def walk(self) -> None:
        frames = [self._top()]
        self._arrive(frames[0])
        while frames:
            frame = frames[-1]
            if frame.todo:
                frames.append(self._descend(*frame.todo.pop()))
                self._arrive(frames[-1])
                continue
            frames.pop()
            if not frames:
                self._store_attributes(self.chain.fd, b"", opaque=False)
            elif self._depart(frame):
                frames[-1].is_kept = True

    def _top(self) -> _Frame:
        device, inode = self.chain.id
        made = self.manifest.directories.get(inode)
        if device != self.manifest.device or made is None:
            raise SandboxUnavailable("This copy is not the one that the command ran in.")
        return _Frame(b"", made, hides=False)

    def _descend(self, name: bytes, made: Print | None) -> _Frame:
        self.chain.enter(name)
        same = self.manifest.find_directory(made, self.chain.id) if made else None
        # An inode number may have been used again for a new directory. Nothing comes of it: entries are compared
        # one by one, and none of the new ones is as old as those that were made.
        return _Frame(name, same, hides=made is not None and same is None)

    def _arrive(self, frame: _Frame) -> None:
        """Deal with all in a directory that is no directory, and with what is no longer in it."""
        made = frame.made.entries() if frame.made else {}
        digests = frame.made.digests if frame.made else None
        for name, is_dir in _names(self.chain.fd):
            if is_dir:
                frame.todo.append((name, made.pop(name, None)))
                continue
            status = os.stat(name, dir_fd=self.chain.fd, follow_symlinks=False)
            if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                # Its name stays in `made`: what was there before is gone, whatever the device was to be.
                self.findings.add("made device", self.chain.path(name))
                os.unlink(name, dir_fd=self.chain.fd)
                continue
            before = made.pop(name, None)
            if before and self._is_untouched(name, before, status, digests):
                os.unlink(name, dir_fd=self.chain.fd)
                continue
            frame.is_kept = True
            if stat.S_ISREG(status.st_mode):
                self._escape_file(name, status)
        for name, before in made.items():
            frame.is_kept = True
            make_whiteout(name, self.chain.fd)
            if before[0] & UNSEEN:
                self.findings.add("deleted unseen", self.chain.path(name))

    def _is_untouched(
        self, name: bytes, before: Print, status: os.stat_result, digests: dict[bytes, bytes] | None
    ) -> bool:
        if not self.manifest.is_untouched(before, status):
            return False
        if digests is None or not stat.S_ISREG(status.st_mode):
            return True
        fd, found = self.chain.open_file(name)
        try:
            return digest_of(fd, found.st_size) == digests[name]
        finally:
            self.chain.close_file(fd, found)

    def _depart(self, frame: _Frame) -> bool:
        """Leave a directory, and remove it if it is as it was; tell whether it is kept."""
        if frame.is_kept or self._looks_different(frame.made):
            self._store_attributes(self.chain.fd, b"", opaque=frame.hides)
            self.chain.leave()
            return True
        self.chain.leave()
        os.rmdir(frame.name, dir_fd=self.chain.fd)
        return False

    def _looks_different(self, made: MadeDirectory | None) -> bool:
        if made is None:
            return True
        return self.chain.found_mode != made.mode or own_attributes(self.chain.fd) != made.attributes

    def _escape_file(self, name: bytes, status: os.stat_result) -> None:
        """Store attributes of a file that look like marks as overlayfs would; once, if it has several names."""
        fd_path = b"/proc/self/fd/%d" % self.chain.fd
        names = list_attributes(b"%b/%b" % (fd_path, name))
        if not any(one.startswith(OWN) for one in names):
            return
        identity = (status.st_dev, status.st_ino)
        if status.st_nlink > 1 and identity in self.escaped:
            return
        self.escaped.add(identity)
        fd, found = self.chain.open_file(name)
        mode = stat.S_IMODE(found.st_mode)
        try:
            # To set an attribute needs the right to write.
            os.fchmod(fd, mode | 0o600)
            try:
                self._store_attributes(fd, name, opaque=False)
            finally:
                os.fchmod(fd, mode)
        finally:
            self.chain.close_file(fd, found)

    def _store_attributes(self, fd: int, name: bytes, *, opaque: bool) -> None:
        """Give attributes the names that a layer has for them, and set the mark of an opaque directory."""
        values = own_attributes(fd)
        marks = {key: value for key, value in values.items() if key.startswith(OWN)}
        for key in marks:
            os.removexattr(fd, key)
        lost = {}
        if opaque:
            lost = self._make_opaque(fd, values.keys() - marks.keys())
        lost |= set_attributes(fd, {stored_name(key): value for key, value in marks.items()})
        if lost:
            self.findings.add("lost attribute", self.chain.path(name))

    def _make_opaque(self, fd: int, others: set[str]) -> dict[str, bytes]:
        """Set the mark. A command may have filled all the room for attributes: then its own give way."""
        try:
            os.setxattr(fd, OPAQUE, b"y")
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            for key in others:
                os.removexattr(fd, key)
            os.setxattr(fd, OPAQUE, b"y")
            return dict.fromkeys(others, b"")
        return {}


def _names(directory: int) -> list[tuple[bytes, bool]]:
    with os.scandir(directory) as entries:
        return [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in entries]
