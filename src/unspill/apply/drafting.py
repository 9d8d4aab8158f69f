# SPDX-License-Identifier: Apache-2.0
"""From the changes below one root to steps: what has to move where, and what must not.

Looks at the live tree and at the layers, and writes to neither, but for what overlayfs noted on entries for itself.
Whatever can be told before the first step is told here: conflicts, kinds that are never applied, stale entries.
"""

from __future__ import annotations

import os

from unspill.apply.draft import MARKS_LEFT_OUT
from unspill.apply.dressing import is_dressed
from unspill.apply.entries import entry_of
from unspill.apply.expanding import expand
from unspill.apply.perform import explain_error
from unspill.apply.staging import SPECIAL_BITS, drop_marks, has_command_marks, is_copy_needed
from unspill.apply.steps import make_step
from unspill.changes.kinds import FORMAT, KINDS
from unspill.changes.quote import quote
from unspill.model.operation import Left
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unspill.apply.draft import Draft
    from unspill.apply.expanding import Found
    from unspill.apply.touched import Touched
    from unspill.host.beneath import Beneath
    from unspill.layers.marks import Marks
    from unspill.model.change import Change
    from unspill.model.operation import Action, Dress, Why

_DIR = 0o040000
_LINK = 0o120000
_WRITABLE_OR_SPECIAL = 0o7333

EDITED = "it was changed while the command ran or since"
STALE = "it is not what was reviewed any more"


class Upper(Record):
    """An upper directory: its path, its place relative to the directory of operations, and it as a tree."""

    path: bytes
    place: bytes
    tree: Beneath


class RootDraft:
    """Drafts the steps of one root. `layers` has, by the path they were scanned at, where upper directories are now."""

    def __init__(
        self,
        draft: Draft,
        root: int,
        live: Beneath,
        layers: Mapping[bytes, Upper],
        marks: Marks,
        *,
        contents: Mapping[bytes, bytes],
        overwrite: Sequence[bytes] = (),
        must_copy: bool = False,
        touched: Touched | None = None,
    ) -> None:
        self._draft = draft
        self._root = root
        self._live = live
        self._layers = layers
        self._marks = marks
        self._touched = touched
        self._contents = contents
        self._overwrite = frozenset(overwrite)
        self._is_staged = draft.is_staged(root)
        self._must_copy = must_copy or self._is_staged
        self._new: set[bytes] = set()
        self._blocked: dict[bytes, tuple[Why, str]] = {}
        self._uid = os.geteuid()
        self._group = 0
        self._is_quiet = False
        # Directories whose changes are done all or none, by their path
        self._together: dict[bytes, int] = {}
        self.groups: dict[bytes, int] = {}
        # The directory of the last step: the next one is mostly in the same
        self._ready: bytes | None = None

    def add(self, changes: Sequence[Change]) -> None:
        """Draft all changes of this root; they are sorted, a directory before what is in it."""
        for change in changes:
            self._group = self._group_of(change.path)
            self.groups[change.path] = self._group
            if self._is_quiet or change.is_mere_touch:
                self._draft.slight.add((self._root, change.path))
            blocking = self._blocking(change.path) if self._blocked else None
            if blocking is not None:
                self._leave(change.path, *blocking)
                continue
            try:
                self._add(change)
            except OSError as error:
                why, reason = explain_error(error)
                self._leave(change.path, why, reason)
                self._blocked[change.path] = why, reason

    def add_quietly(self, changes: Sequence[Change]) -> None:
        """Draft changes that matter to nobody: what stands in their way stays, without a word."""
        self._is_quiet = True
        self.add(changes)
        self._is_quiet = False

    def group_together(self, directory: bytes) -> None:
        """Have what follows at and below a directory done all or none."""
        self._together[directory] = self._draft.next_group()

    def write_instead(self, contents: Mapping[bytes, bytes]) -> None:
        """Have files written with other contents than the layers have."""
        self._contents = {**self._contents, **contents}

    def leave_incomplete(self) -> None:
        """Leave directories as a whole that something was left of which is done all or none."""
        for directory, group in self._together.items():
            below = directory + b"/"
            left = [one for one in self._draft.left if one.root == self._root and one.path.startswith(below)]
            if left:
                self._draft.drop_group(group)
                self._draft.left = [one for one in self._draft.left if one not in left]
                self._leave(directory, left[0].why, left[0].reason)

    def _group_of(self, path: bytes) -> int:
        for directory, group in self._together.items():
            if path == directory or path.startswith(directory + b"/"):
                return group
        return self._draft.next_group()

    def _add(self, change: Change) -> None:
        entry = change.entry
        if change.unreadable:
            self._leave(change.path, "refused", "it can't be read, so nobody knows what would be lost")
        elif entry is None:
            self._delete(change)
        elif entry.kind == "dir":
            self._directory(change)
        elif entry.kind == "special":
            self._leave(change.path, "refused", "devices, FIFOs and sockets are never applied")
        else:
            self._leaf(change)

    def _leaf(self, change: Change) -> None:
        """Put a file or a symlink."""
        path = change.path
        problem = self.problem_of(change)
        if problem is not None:
            self._leave(path, *problem)
            return
        found = self._find(path)
        if not self._may_displace(change, found):
            return
        before = found
        if found is not None and found.st_mode & FORMAT == _DIR:
            if not self._make_way(change, found):
                return
            before = None
        place, after = self.bring(change)
        self._step("put", path, place, before=before, after=after)

    def problem_of(self, change: Change) -> tuple[Why, str] | None:
        """Say why the file or symlink of a change can't be put, if it can't."""
        entry = change.entry
        assert entry is not None
        assert change.layer is not None
        fd, name = self._layers[change.layer].tree.parent(change.path)
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if (
            status.st_ino != entry.inode
            or status.st_ctime_ns != entry.ctime_ns
            or status.st_size != entry.size
            or KINDS.get(status.st_mode & FORMAT) != entry.kind
        ):
            return "stale", STALE
        return ("refused", "it belongs to another user") if status.st_uid != self._uid else None

    def bring_object(self, change: Change) -> bytes:
        """Return the place that an object of git can be linked from: as git makes them, and nothing else."""
        assert change.layer is not None
        upper = self._layers[change.layer]
        fd, name = upper.tree.parent(change.path)
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        is_plain = not status.st_mode & _WRITABLE_OR_SPECIAL and status.st_nlink == 1 and status.st_uid == self._uid
        if is_plain and not self._must_copy and not os.listxattr(b"/proc/self/fd/%d/%s" % (fd, name)):
            place = upper.place + b"/" + change.path
        else:
            place, _status = self._draft.stage(self._root, fd, name, status, None)
        self._draft.make_object(self._root, place)
        return place

    def bring(self, change: Change) -> tuple[bytes, os.stat_result]:
        """Return the place that the file or symlink of a change can be put from, and its lstat there."""
        path = change.path
        assert change.layer is not None
        upper = self._layers[change.layer]
        fd, name = upper.tree.parent(path)
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        place, after = upper.place + b"/" + path, status
        content = self._contents.get(path)
        must_copy = content is not None or self._must_copy or is_copy_needed(status)
        if must_copy or drop_marks(upper.path, path, fd, name, self._draft.loans):
            place, after = self._draft.stage(self._root, fd, name, status, content)
            if has_command_marks(fd, name):
                self._draft.note(path, MARKS_LEFT_OUT)
        if status.st_mode & SPECIAL_BITS and status.st_mode & FORMAT != _LINK:
            self._draft.note(path, "set-user-id, set-group-id and sticky bits are not applied")
        return place, after

    def _make_way(self, change: Change, found: os.stat_result) -> bool:
        """Take away a directory that something else replaces, all of it or nothing; tell whether it can be."""
        taken = expand(self._live, change.path, found)
        edited = self._edited(taken)
        if edited:
            self._leave(change.path, "conflict", f"{EDITED}: {quote(min(edited))}")
            return False
        self._take_all(taken)
        return True

    def _directory(self, change: Change) -> None:
        path, entry = change.path, change.entry
        assert entry is not None
        assert change.layer is not None
        found = self._find(path)
        if found is not None and found.st_mode & FORMAT == _DIR:
            if change.kind != "added":
                self._dress(change, found)
            return
        if not self._may_displace(change, found):
            self._blocked[path] = "conflict", EDITED
            return
        if found is not None:
            self._step("take", path, self._draft.next_place(self._root), before=found)
        place, made = self._draft.stage_directory(self._root)
        self._step("put", path, place, after=made)
        self._new.add(path)
        self._draft.dress_new(self._root, path, made, self._wanted_dress(change), self._group)

    def _dress(self, change: Change, found: os.stat_result) -> None:
        """Give a directory the bits and attributes that the command gave it."""
        fd = self._live.directory(b"" if change.path == b"." else change.path)
        wanted = self._wanted_dress(change)
        # Special bits of a live directory are the person's: they stay
        wanted = wanted.replace(mode=wanted.mode | found.st_mode & SPECIAL_BITS)
        if not self.is_edited(change.path, found):
            self._draft.dress(self._root, change.path, fd, wanted, self._group)
        elif not is_dressed(fd, wanted):
            # Another apply may have made the same directory, and been seen before it had dressed it
            self._leave(change.path, "conflict", EDITED)

    def _wanted_dress(self, change: Change) -> Dress:
        entry = change.entry
        assert entry is not None
        assert change.layer is not None
        if entry.mode & SPECIAL_BITS:
            self._draft.note(change.path, "set-group-id and sticky bits are not applied")
        return self._draft.dress_in_layer(self._layers[change.layer].tree, change.path, entry.mode)

    def _delete(self, change: Change) -> None:
        found = self._find(change.path)
        if found is None:
            return
        if found.st_mode & FORMAT != _DIR:
            if self._may_displace(change, found):
                self._step("take", change.path, self._draft.next_place(self._root), before=found)
            return
        kept: set[bytes] = set()
        taken = expand(self._live, change.path, found)
        edited = self._edited(taken)
        for inner in taken:
            # The youngest entries stay, and so do the directories above them
            self._group = self._draft.next_group()
            if inner.path in kept:
                kept.add(inner.path.rpartition(b"/")[0])
            elif inner.path in edited:
                self._leave(inner.path, "conflict", EDITED)
                kept.add(inner.path.rpartition(b"/")[0])
            else:
                self._take_all((inner,))

    def _take_all(self, taken: Sequence[Found]) -> None:
        for inner in taken:
            self._step("take", inner.path, self._draft.next_place(self._root), before=inner.status)

    def _may_displace(self, change: Change, found: os.stat_result | None) -> bool:
        """Tell whether the live entry is the one that the change was made from; record the conflict if it is not."""
        if self.is_overwritten(change.path):
            return True
        if found is None:
            if change.base_kind is None or change.kind == "replaced":
                return True
            self._leave(change.path, "conflict", "it was deleted meanwhile")
        elif change.base_kind is None:
            self._leave(change.path, "conflict", "something else was made there meanwhile")
        elif found.st_mode & FORMAT != _DIR and self.is_edited(change.path, found):
            self._leave(change.path, "conflict", EDITED)
        else:
            return True
        return False

    def _edited(self, found: Sequence[Found]) -> set[bytes]:
        """Return which entries of a live directory are not older; of directories only empty ones can be told."""
        filled = {inner.path.rpartition(b"/")[0] for inner in found}
        return {inner.path for inner in found if inner.path not in filled and self.is_edited(inner.path, inner.status)}

    def is_edited(self, path: bytes, status: os.stat_result) -> bool:
        """Tell whether somebody changed a live entry since the run began that first changed it."""
        mark = self._marks.of(path)
        if status.st_ctime_ns < mark or self.is_overwritten(path):
            return False
        return self._touched is None or not self._touched.explains(path, status, mark)

    def is_overwritten(self, path: bytes) -> bool:
        """Tell whether ours shall win at a path: as in a selection, a directory means what is below it."""
        return any(top in (b".", path) or path.startswith(top + b"/") for top in self._overwrite)

    def _find(self, path: bytes) -> os.stat_result | None:
        """Look at the live entry; below a directory that is yet to be made there is none."""
        above = path.rpartition(b"/")[0]
        if above in self._new:
            return None
        if path == b".":
            return os.fstat(self._live.root_fd)
        fd, name = self._live.parent(path)
        try:
            return os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _step(
        self,
        action: Action,
        path: bytes,
        place: bytes,
        before: os.stat_result | None = None,
        after: os.stat_result | None = None,
    ) -> None:
        above = path.rpartition(b"/")[0]
        if above != self._ready:
            if above not in self._new:
                self._draft.open_directory(self._root, above, self._live)
            self._ready = above
        if action == "take" and before is not None and before.st_mode & FORMAT == _DIR:
            # To move a directory is to write its "..", which needs the right to write it
            self._draft.open_directory(self._root, path, self._live)
        displaced = None if before is None else entry_of(before)
        coming = None if after is None else entry_of(after)
        step = make_step(self._root, path, action, self._group, place, displaced, coming)
        self._draft.add(step.replace(staged=True) if self._is_staged else step)

    def _blocking(self, path: bytes) -> tuple[Why, str] | None:
        above = path
        while above:
            above = above.rpartition(b"/")[0]
            if above in self._blocked:
                return self._blocked[above]
        return None

    def _leave(self, path: bytes, why: Why, reason: str) -> None:
        if self._is_quiet:
            return
        self._draft.leave(Left(root=self._root, path=path, why=why, reason=reason))
