# SPDX-License-Identifier: Apache-2.0
"""The steps of one operation while they are collected, and the entries that have to be staged for them.

Order: directories that must be opened, what goes away (children first), what comes (parents first), and last the
bits and attributes of directories (the deepest first). Everything staged lies in the operation's own directory, or
for a root on another mount in a hidden directory of that root.
"""

from __future__ import annotations

import os
import stat

from unspill.apply.dressing import dress_of
from unspill.apply.entries import entry_of
from unspill.apply.loans import Loans
from unspill.apply.staging import copy_entry, digest_entry
from unspill.git.index import is_index, says_at
from unspill.host.overlay import ESCAPED, is_plain_attribute
from unspill.host.writing import write_whole
from unspill.model.operation import Dress, Step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.apply.sites import Sites
    from unspill.host.beneath import Beneath
    from unspill.model.operation import GitStep, Left, OperationId

NOTES_AT_MOST = 200
_OBJECT_MODE = 0o444
MARKS_LEFT_OUT = "attributes named user.overlay.* are not applied: below another sandbox they would hide live files"


class Draft:
    """Collects steps, what is left, and notes."""

    def __init__(self, operation: OperationId, sites: Sites, next_number: Callable[[], int]) -> None:
        self.left: list[Left] = []
        self.git: list[GitStep] = []
        # By root and repository the paths that only its commit brings
        self.arriving: dict[tuple[int, bytes], list[bytes]] = {}
        # Paths that nobody would undo anything for: only their times differ, or they go along with something else
        self.slight: set[tuple[int, bytes]] = set()
        self.notes: list[str] = []
        self.name = operation
        self.loans = Loans(sites.state, operation)
        self._name = operation.encode()
        self._sites = sites
        self._groups = 0
        self._places = 0
        self._opens: dict[tuple[int, bytes], Step] = {}
        self._takes: list[Step] = []
        self._puts: list[Step] = []
        self._dresses: dict[tuple[int, bytes], Step] = {}
        self._ordered: list[Step] = []
        self._seen: set[tuple[int, bytes]] = set()
        self._parts: set[tuple[int, bytes]] = set()
        self._next_number = next_number
        self._number = 0

    def number(self) -> int:
        """Return the number that the operation will have."""
        if not self._number:
            self._number = self._next_number()
        return self._number

    def add_git(self, step: GitStep) -> None:
        """Add what is to be done to a repository."""
        self.git.append(step)

    def next_group(self) -> int:
        """Return a number for steps that are done all or none."""
        self._groups += 1
        return self._groups

    def is_staged(self, root: int) -> bool:
        """Tell whether nothing can be renamed between this root and our own state."""
        return self._sites.staged[root]

    def leave(self, left: Left) -> None:
        self.left.append(left)

    def note(self, path: bytes, text: str) -> None:
        """Record something about an applied path that a person should know."""
        if len(self.notes) < NOTES_AT_MOST:
            from unspill.changes.quote import quote

            self.notes.append(f"{quote(path)}: {text}")

    def add(self, step: Step) -> None:
        """Add a put or a take; where the displaced inode can't be kept, its copy is made now."""
        step = self.complete(step)
        (self._takes if step.action == "take" else self._puts).append(step)

    def drop_group(self, group: int) -> None:
        """Forget the steps of a group that can't all be done."""
        self._takes = [step for step in self._takes if step.group != group]
        self._puts = [step for step in self._puts if step.group != group]
        self._dresses = {key: step for key, step in self._dresses.items() if step.group != group}

    def add_in_order(self, step: Step) -> None:
        """Add a step whose place among the others is known: the reverse of one that was done."""
        self._ordered.append(self.complete(step))

    def next_place(self, root: int) -> bytes:
        """Return a free place for an entry that goes away."""
        self._places += 1
        if self._sites.staged[root]:
            self._make_staging(root)
            return b"%d" % self._places
        return self._place_in(b"old", self._places)

    def stage(
        self, root: int, source_fd: int, source: bytes, status: os.stat_result, content: bytes | None
    ) -> tuple[bytes, os.stat_result]:
        """Copy an entry to where it can be put from; return its place and its lstat there."""
        place, dest_fd, name = self._new_place(root)
        return place, copy_entry(source_fd, source, status, dest_fd, name, self.loans, content)

    def stage_content(self, root: int, content: bytes, mode: int) -> bytes:
        """Make a file that can be put or linked; return its place."""
        place, dest_fd, name = self._new_place(root)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=dest_fd)
        try:
            write_whole(fd, content)
            os.fchmod(fd, mode)
        finally:
            os.close(fd)
        return place

    def make_object(self, root: int, place: bytes) -> None:
        """Give what lies at a place the mode of an object of git, and the time of now."""
        fd, name = self._sites.place_of(root, place, staged=self._sites.staged[root])
        # Git takes an object for an old one by its time, and removes old ones that nothing leads to
        os.utime(name, dir_fd=fd, follow_symlinks=False)
        path = b"/proc/self/fd/%d/%s" % (fd, name)
        if stat.S_IMODE(os.lstat(path).st_mode) != _OBJECT_MODE:
            os.chmod(path, _OBJECT_MODE)

    def inode_of(self, root: int, place: bytes) -> int:
        """Return the inode of what lies at a place."""
        fd, name = self._sites.place_of(root, place, staged=self._sites.staged[root])
        return os.stat(name, dir_fd=fd, follow_symlinks=False).st_ino

    def stage_directory(self, root: int) -> tuple[bytes, os.stat_result]:
        """Make a directory that can be put."""
        place, dest_fd, name = self._new_place(root)
        os.mkdir(name, 0o700, dir_fd=dest_fd)
        return place, os.stat(name, dir_fd=dest_fd, follow_symlinks=False)

    def dress(self, root: int, path: bytes, fd: int, becomes: Dress, group: int) -> None:
        """Change the bits and attributes of a live directory when everything else is done."""
        was = dress_of(fd)
        opened = self._opens.get((root, path))
        if opened is not None and opened.becomes is not None:
            was = opened.becomes
        before = entry_of(os.fstat(fd))
        self._dresses[root, path] = Step(
            root=root, path=path, action="dress", group=group, before=before, was=was, becomes=becomes
        )

    def dress_new(self, root: int, path: bytes, made: os.stat_result, becomes: Dress, group: int) -> None:
        """Give a directory that a step of this operation puts its bits and attributes."""
        was = Dress(mode=made.st_mode & 0o7777)
        # Even where they are the same: a reversal tells by this step whether somebody changed them since
        self._dresses[root, path] = Step(
            root=root, path=path, action="dress", group=group, before=entry_of(made), was=was, becomes=becomes
        )

    def dress_in_layer(self, tree: Beneath, path: bytes, mode: int) -> Dress:
        """Return what a directory of a layer wears, without special bits and without marks of overlays."""
        fd = tree.directory(b"" if path == b"." else path)
        names = os.listxattr(fd)
        if any(name.startswith(ESCAPED) for name in names):
            self.note(path, MARKS_LEFT_OUT)
        attributes = [(name, os.getxattr(fd, name)) for name in sorted(names) if is_plain_attribute(name)]
        return Dress(mode=mode & 0o777, attributes=tuple(attributes))

    def open_directory(self, root: int, path: bytes, live: Beneath) -> None:
        """Let the owner change a live directory for as long as the operation lasts."""
        if (root, path) in self._seen:
            return
        self._seen.add((root, path))
        fd = live.directory(path)
        found = os.fstat(fd)
        if found.st_mode & 0o300 == 0o300 or found.st_uid != os.geteuid():
            return
        was = dress_of(fd)
        becomes = was.replace(mode=was.mode | 0o700)
        name = path or b"."
        step = Step(root=root, path=name, action="dress", group=self.next_group(), was=was, becomes=becomes)
        self._opens[root, name] = step.replace(before=entry_of(found))
        final = self._dresses.get((root, name))
        if final is not None:
            self._dresses[root, name] = final.replace(was=becomes)

    def steps(self) -> tuple[Step, ...]:
        """Return all steps in the order of doing them."""
        gone = {(step.root, step.path): step.group for step in self._takes}
        for key in self._opens.keys() & gone.keys():
            # A directory that can't be taken after all must not stay open
            self._opens[key] = self._opens[key].replace(group=gone[key])
        for key, step in self._opens.items():
            if key not in self._dresses and key not in gone:
                self._dresses[key] = step.replace(was=step.becomes, becomes=step.was, group=self.next_group())
        opens = [self._opens[key] for key in sorted(self._opens)]
        dresses = [self._dresses[key] for key in sorted(self._dresses, key=_depth, reverse=True)]
        return (*opens, *self._takes, *self._puts, *dresses, *self._ordered)

    def complete(self, step: Step) -> Step:
        """Return a step with what only few have: the copy of what they displace, or what an index of git says."""
        if step.staged and step.before is not None:
            step = self._with_copy(step)
        if step.action == "put" and step.path.endswith(b"/index") and is_index(step.path):
            step = step.replace(says=says_at(*self._sites.place(step)))
        return step

    def _with_copy(self, step: Step) -> Step:
        """Keep a copy of what a step displaces, because its inode can't come to us."""
        before = step.before
        assert before is not None
        live_fd, name = self._sites.live(step)
        status = os.stat(name, dir_fd=live_fd, follow_symlinks=False)
        self._places += 1
        kept = self._place_in(b"old", self._places)
        dest_fd, dest = self._sites.operations.parent(kept)
        if before.kind == "dir":
            os.mkdir(dest, 0o700, dir_fd=dest_fd)
            return step.replace(kept=kept, was=dress_of(self._sites.roots[step.root].directory(step.path)))
        copy_entry(live_fd, name, status, dest_fd, dest, self.loans)
        return step.replace(kept=kept, digest=digest_entry(dest_fd, dest, status, self.loans))

    def _new_place(self, root: int) -> tuple[bytes, int, bytes]:
        self._places += 1
        if self._sites.staged[root]:
            self._make_staging(root)
            place = b"%d" % self._places
            return place, self._sites.roots[root].directory(self._sites.staging), place
        place = self._place_in(b"stage", self._places)
        return place, *self._sites.operations.parent(place)

    def _place_in(self, part: bytes, number: int) -> bytes:
        """Return a place in a part of the operation's directory, which is made when it is first needed."""
        # Thousands in one directory would make each rename there slower
        shelf = b"%b/%b/%x" % (self._name, part, number >> 12)
        if (-1, shelf) not in self._parts:
            os.makedirs(b"%b/operations/%b" % (self._sites.state, shelf), 0o700, exist_ok=True)
            self._parts.add((-1, shelf))
        return b"%b/%d" % (shelf, number)

    def _make_staging(self, root: int) -> None:
        if (root, b"") not in self._parts:
            os.mkdir(self._sites.staging, 0o700, dir_fd=self._sites.roots[root].root_fd)
            self._parts.add((root, b""))


def _depth(key: tuple[int, bytes]) -> tuple[int, int, bytes]:
    root, path = key
    return root, path.count(b"/") + (path != b"."), path
