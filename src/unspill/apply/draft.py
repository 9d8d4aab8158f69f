# SPDX-License-Identifier: Apache-2.0
"""The steps of one operation while they are collected: from the changes below a root, or one by one for a reversal.

Looks at the live tree and at the layers, and writes to neither, but for what overlayfs noted on entries for itself.
Whatever can be told before the first step is told here: conflicts, kinds that are never applied, stale entries. What
has to be staged lies in the operation's own directory, or for a root on another mount in a hidden directory of it.

Which time mark counts for a path of a stack is found in its upper directories: live entries that are not older were
changed meanwhile. Where that can't be seen the older mark counts: a conflict too many is asked about, one too few would
overwrite somebody's work.
"""

from __future__ import annotations

import errno
import os
import stat

from unspill.apply.bases import (
    LARGEST_DIGESTED,
    MOST_TEXTS,
    KeptTexts,
    Moves,
    has_moved,
    has_other_names,
    read_live,
    upwards,
)
from unspill.apply.perform import explain_error
from unspill.apply.staging import (
    SPECIAL_BITS,
    OperationModes,
    copy_access_lists,
    copy_entry,
    digest_entry,
    drop_marks,
    has_access_list,
    has_command_marks,
    has_metadata,
    is_copy_needed,
    metadata_of,
)
from unspill.apply.steps import entry_of, make_step, matches
from unspill.changes.merge import LARGEST_TEXT, merge_texts
from unspill.git.files import is_index, says_at
from unspill.host.dirfd import Beneath, read_unchanged, write_whole
from unspill.host.overlay import (
    ALIAS,
    ESCAPED,
    FORMAT,
    KINDS,
    is_opaque,
    is_plain_attribute,
    list_attributes,
    was_copied_up,
)
from unspill.model.operation import SAME_LINES, Metadata, Skipped, Step
from unspill.policy.paths import quote
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Container,
        Mapping,
        Sequence,
    )

    from unspill.apply.bases import Base, Bases
    from unspill.apply.recover import RolledBackEntries
    from unspill.apply.steps import OpenDirs
    from unspill.model.change import Change, Side
    from unspill.model.operation import (
        Action,
        Entry,
        GitStep,
        OperationId,
        Why,
    )


_MOST_NOTES = 200
_OBJECT_MODE = 0o444
_DIR, _LINK = stat.S_IFDIR, stat.S_IFLNK
_WRITABLE_OR_SPECIAL = 0o7333
_MARKS_LEFT_OUT = "attributes named user.overlay.* are not applied: under another sandbox they would hide your files"
_EDITED = "it changed in the project during or after the run"
_DELETED = "it was deleted in the meantime"
_MOVED = "its directory was exchanged for another one during or after the run"
# How lines were resolved that both changed
_RESOLVED: dict[Side, str] = {
    "ours": "; your lines were kept where both changed them",
    "theirs": "; the run's lines were taken where both changed them",
    "markers": "; both versions of a line are between <<<<<<< and >>>>>>>",
}
_CHOSEN = "; where both changed a line, you chose"
_STALE = "it changed after the review"
_ALIASED = "the run wrote to it by another name, which it had before you renamed it during the run"
_NO_BACKUP = "the backup no longer has the old version"
_DAMAGED = "the backup was changed"
_SHARED = "its old version was changed through another hard link"

# What a layer says about a path by the directories above it: nothing, look further, or it hides what is beneath.
_ABSENT, _THROUGH, _HIDES = range(3)


class Draft:
    """Collects the steps of an operation, what is skipped, notes, and what of a repository is flagged.

    The order of steps: directories that must be opened, what goes away (children first), what comes (parents first),
    and last the bits and attributes of directories (the deepest first).
    """

    def __init__(self, operation: OperationId, dirs: OpenDirs, next_number: Callable[[], int]) -> None:
        self.skipped: list[Skipped] = []
        self.git: list[GitStep] = []
        # By root and repository the paths that only its commit brings
        self.arriving: dict[tuple[int, bytes], list[bytes]] = {}
        # Paths that nobody would undo anything for: only their times differ, or they go along with something else
        self.slight: set[tuple[int, bytes]] = set()
        # It is done without a step, because somebody else has done the same
        self.is_settled = False
        self.notes: list[str] = []
        self.flagged: list[tuple[bytes, str]] = []
        self.name = operation
        self.modes = OperationModes(dirs.state, operation)
        self._name = operation.encode()
        self._dirs = dirs
        self._groups = 0
        self._places = 0
        self._opens: dict[tuple[int, bytes], Step] = {}
        self._takes: list[Step] = []
        self._puts: list[Step] = []
        self._metadata_steps: dict[tuple[int, bytes], Step] = {}
        self._ordered: list[Step] = []
        self._seen: set[tuple[int, bytes]] = set()
        self._made: set[tuple[int, bytes]] = set()
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
        return self._dirs.staged[root]

    def skip(self, skipped: Skipped) -> None:
        """Record a path that is not changed, and why."""
        self.skipped.append(skipped)

    def note(self, path: bytes, text: str) -> None:
        """Record something about an applied path that a person should know."""
        if len(self.notes) < _MOST_NOTES:
            self.notes.append(f"{quote(path)}: {text}")

    def add(self, step: Step) -> None:
        """Add a put or a take; where the displaced inode can't be kept, its copy is made now."""
        step = self.complete(step)
        (self._takes if step.action == "take" else self._puts).append(step)

    def drop_group(self, group: int) -> None:
        """Forget the steps of a group that can't all be done."""
        self._takes = [step for step in self._takes if step.group != group]
        self._puts = [step for step in self._puts if step.group != group]
        self._metadata_steps = {key: step for key, step in self._metadata_steps.items() if step.group != group}

    def add_in_order(self, step: Step) -> None:
        """Add a step whose place among the others is known: the reverse of one that was done."""
        self._ordered.append(self.complete(step))

    def next_place(self, root: int) -> bytes:
        """Return a free place for an entry that goes away."""
        self._places += 1
        if self._dirs.staged[root]:
            self._make_staging(root)
            return b"%d" % self._places
        return self._place_in(b"old", self._places)

    def stage(
        self,
        root: int,
        source_fd: int,
        source: bytes,
        status: os.stat_result,
        content: bytes | None,
        mode: int | None = None,
    ) -> tuple[bytes, os.stat_result]:
        """Copy an entry to where it can be put from, with other content or bits; return its place and its lstat."""
        place, dest_fd, name = self._new_place(root)
        made = copy_entry(source_fd, source, status, dest_fd, name, self.modes, content)
        if mode is not None and mode != stat.S_IMODE(made.st_mode):
            os.chmod(b"/proc/self/fd/%d/%s" % (dest_fd, name), mode)
            made = os.stat(name, dir_fd=dest_fd, follow_symlinks=False)
        return place, made

    def stage_backup(self, root: int, source_fd: int, source: bytes) -> tuple[bytes, os.stat_result]:
        """Copy what was displaced with its access lists, an empty directory too; return its place and its lstat."""
        status = os.stat(source, dir_fd=source_fd, follow_symlinks=False)
        is_dir = stat.S_ISDIR(status.st_mode)
        place, _ = self.stage_directory(root) if is_dir else self.stage(root, source_fd, source, status, None)
        return place, self.give_access_lists(root, place, source_fd, source)

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

    def give_access_lists(self, root: int, place: bytes, source_fd: int, name: bytes) -> os.stat_result:
        """Give what lies at a place the access lists of what it displaces, or is a copy of; return its lstat."""
        return copy_access_lists(source_fd, name, *self._dirs.place_of(root, place, staged=self._dirs.staged[root]))

    def make_object(self, root: int, place: bytes) -> None:
        """Give what lies at a place the mode of an object of git, and the time of now."""
        fd, name = self._dirs.place_of(root, place, staged=self._dirs.staged[root])
        # Git takes an object for an old one by its time, and removes old ones that nothing leads to
        os.utime(name, dir_fd=fd, follow_symlinks=False)
        path = b"/proc/self/fd/%d/%s" % (fd, name)
        if stat.S_IMODE(os.lstat(path).st_mode) != _OBJECT_MODE:
            os.chmod(path, _OBJECT_MODE)

    def inode_of(self, root: int, place: bytes) -> int:
        """Return the inode of what lies at a place."""
        fd, name = self._dirs.place_of(root, place, staged=self._dirs.staged[root])
        return os.stat(name, dir_fd=fd, follow_symlinks=False).st_ino

    def stage_directory(self, root: int) -> tuple[bytes, os.stat_result]:
        """Make a directory that can be put."""
        place, dest_fd, name = self._new_place(root)
        os.mkdir(name, 0o700, dir_fd=dest_fd)
        return place, os.stat(name, dir_fd=dest_fd, follow_symlinks=False)

    def set_metadata(self, root: int, path: bytes, fd: int, becomes: Metadata, group: int) -> None:
        """Change the bits and attributes of a live directory when everything else is done."""
        was = metadata_of(fd)
        opened = self._opens.get((root, path))
        if opened is not None and opened.becomes is not None:
            was = opened.becomes
        before = entry_of(os.fstat(fd))
        self._metadata_steps[root, path] = Step(
            root=root, path=path, action="set_metadata", group=group, before=before, was=was, becomes=becomes
        )

    def set_metadata_of_new(self, root: int, path: bytes, made: os.stat_result, becomes: Metadata, group: int) -> None:
        """Give a directory that a step of this operation puts its bits and attributes."""
        was = Metadata(mode=made.st_mode & 0o7777)
        # Even where they are the same: a reversal tells by this step whether somebody changed them since
        self._metadata_steps[root, path] = Step(
            root=root, path=path, action="set_metadata", group=group, before=entry_of(made), was=was, becomes=becomes
        )

    def metadata_in_layer(self, tree: Beneath, path: bytes, mode: int) -> Metadata:
        """Return the metadata of a directory of a layer, without special bits and without marks of overlays."""
        fd = tree.directory(b"" if path == b"." else path)
        names = os.listxattr(fd)
        if any(name.startswith(ESCAPED) for name in names):
            self.note(path, _MARKS_LEFT_OUT)
        attributes = [(name, os.getxattr(fd, name)) for name in sorted(names) if is_plain_attribute(name)]
        return Metadata(mode=mode & 0o777, attributes=tuple(attributes))

    def open_directory(self, root: int, path: bytes, live: Beneath) -> None:
        """Let the owner change a live directory for as long as the operation lasts."""
        if (root, path) in self._seen:
            return
        self._seen.add((root, path))
        fd = live.directory(path)
        found = os.fstat(fd)
        if found.st_mode & 0o300 == 0o300 or found.st_uid != os.geteuid():
            return
        was = metadata_of(fd)
        becomes = was.replace(mode=was.mode | 0o700)
        name = path or b"."
        step = Step(root=root, path=name, action="set_metadata", group=self.next_group(), was=was, becomes=becomes)
        self._opens[root, name] = step.replace(before=entry_of(found))
        final = self._metadata_steps.get((root, name))
        if final is not None:
            self._metadata_steps[root, name] = final.replace(was=becomes)

    def steps(self) -> tuple[Step, ...]:
        """Return all steps in the order of doing them."""
        gone = {(step.root, step.path): step.group for step in self._takes}
        for key in self._opens.keys() & gone.keys():
            # A directory that can't be taken after all must not stay open
            self._opens[key] = self._opens[key].replace(group=gone[key])
        for key, step in self._opens.items():
            if key not in self._metadata_steps and key not in gone:
                self._metadata_steps[key] = step.replace(was=step.becomes, becomes=step.was, group=self.next_group())
        opens = [self._opens[key] for key in sorted(self._opens)]
        last = [self._metadata_steps[key] for key in sorted(self._metadata_steps, key=_depth, reverse=True)]
        return (*opens, *self._takes, *self._puts, *last, *self._ordered)

    def texts(self, steps: Sequence[Step]) -> KeptTexts:
        """Return the texts or digests of files that steps put, for reversals after later edits; none of very many."""
        files = [
            step for step in steps if step.action == "put" and step.after is not None and step.after.kind == "file"
        ]
        files = files if len(files) <= MOST_TEXTS else [step for step in files if step.before is not None]
        kept = KeptTexts()
        for step in files if len(files) <= MOST_TEXTS else ():
            if b".git/" not in step.path:
                kept.add_file(self._dirs.paths[step.root], step.path, *self._dirs.place(step))
        return kept

    def complete(self, step: Step) -> Step:
        """Return a step with what only few have: the copy of what they displace, or what an index of git says."""
        if step.staged and step.before is not None:
            step = self._with_copy(step)
        if step.action == "put" and step.path.endswith(b"/index") and is_index(step.path):
            step = step.replace(says=says_at(*self._dirs.place(step)))
        return step

    def _with_copy(self, step: Step) -> Step:
        """Keep a copy of what a step displaces, because its inode can't come to us."""
        before = step.before
        assert before is not None
        live_fd, name = self._dirs.live(step)
        status = os.stat(name, dir_fd=live_fd, follow_symlinks=False)
        self._places += 1
        kept = self._place_in(b"old", self._places)
        dest_fd, dest = self._dirs.operations.parent(kept)
        if before.kind == "dir":
            os.mkdir(dest, 0o700, dir_fd=dest_fd)
            step = step.replace(was=metadata_of(self._dirs.roots[step.root].directory(step.path)))
        else:
            copy_entry(live_fd, name, status, dest_fd, dest, self.modes)
            step = step.replace(digest=digest_entry(dest_fd, dest, status, self.modes))
        copy_access_lists(live_fd, name, dest_fd, dest)
        return step.replace(kept=kept)

    def _new_place(self, root: int) -> tuple[bytes, int, bytes]:
        self._places += 1
        if self._dirs.staged[root]:
            self._make_staging(root)
            place = b"%d" % self._places
            return place, self._dirs.roots[root].directory(self._dirs.staging), place
        place = self._place_in(b"stage", self._places)
        return place, *self._dirs.operations.parent(place)

    def _place_in(self, part: bytes, number: int) -> bytes:
        """Return a place in a part of the operation's directory, which is made when it is first needed."""
        # Thousands in one directory would make each rename there slower
        directory = b"%b/%b/%x" % (self._name, part, number >> 12)
        if (-1, directory) not in self._made:
            os.makedirs(b"%b/operations/%b" % (self._dirs.state, directory), 0o700, exist_ok=True)
            self._made.add((-1, directory))
        return b"%b/%d" % (directory, number)

    def _make_staging(self, root: int) -> None:
        if (root, b"") not in self._made:
            os.mkdir(self._dirs.staging, 0o700, dir_fd=self._dirs.roots[root].root_fd)
            self._made.add((root, b""))


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
        rolled_back: RolledBackEntries | None = None,
        moved: Container[bytes] = (),
        bases: Bases | None = None,
    ) -> None:
        self._draft = draft
        self._root = root
        self._live = live
        self._layers = layers
        self._marks = marks
        self._rolled_back = rolled_back
        self._moved = moved
        self._contents = dict(contents)
        self._bases = bases
        # The bits that files get which the person and the run changed in part each
        self._modes: dict[bytes, int] = {}
        self._overwrite = frozenset(overwrite)
        self._is_staged = draft.is_staged(root)
        self._must_copy = must_copy or self._is_staged
        self._new: set[bytes] = set()
        # Directories that the person has deleted, made again only if something new goes into them
        self._deleted: dict[bytes, Change] = {}
        # Directories that the person has deleted
        self._gone: set[bytes] = set()
        # Live directories, and whether something came or went in them since a moment
        self._emptied: dict[tuple[bytes, int], bool] = {}
        self._moves = Moves(())
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
        live = b"/proc/self/fd/%d" % self._live.root_fd
        self._moves = Moves(changes, live, *(upper.path for upper in self._layers.values()))
        for change in changes:
            self._group = self._group_of(change.path)
            self.groups[change.path] = self._group
            if self._is_quiet or change.is_mere_touch:
                self._draft.slight.add((self._root, change.path))
            blocking = self._blocking(change.path) if self._blocked else None
            if blocking is not None:
                self._skip(change.path, *blocking)
                continue
            try:
                self._add(change)
            except OSError as error:
                why, reason = explain_error(error)
                self._skip(change.path, why, reason)
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
        self._contents.update(contents)

    def skip_incomplete(self) -> None:
        """Skip directories as a whole of which something was skipped that is done all or none."""
        for directory, group in self._together.items():
            below = directory + b"/"
            inside = [one for one in self._draft.skipped if one.root == self._root and one.path.startswith(below)]
            if inside:
                self._draft.drop_group(group)
                self._draft.skipped = [one for one in self._draft.skipped if one not in inside]
                self._skip(directory, inside[0].why, inside[0].reason)

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

    def bring(self, change: Change, *, must_copy: bool = False) -> tuple[bytes, os.stat_result]:
        """Return the place that the file or symlink of a change can be put from, and its lstat there."""
        path = change.path
        assert change.layer is not None
        upper = self._layers[change.layer]
        fd, name = upper.tree.parent(path)
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        place, after = upper.place + b"/" + path, status
        content, mode = self._contents.get(path), self._modes.get(path)
        is_merged = content is not None or mode is not None
        must_copy = must_copy or is_merged or self._must_copy or is_copy_needed(status)
        if must_copy or drop_marks(upper.path, path, fd, name, self._draft.modes):
            place, after = self._draft.stage(self._root, fd, name, status, content, mode)
            if has_command_marks(fd, name):
                self._draft.note(path, _MARKS_LEFT_OUT)
        if status.st_mode & SPECIAL_BITS and status.st_mode & FORMAT != _LINK:
            self._draft.note(path, "set-user-id, set-group-id and sticky bits are not applied")
        return place, after

    def is_edited(self, path: bytes, status: os.stat_result) -> bool:
        """Tell whether somebody changed a live entry since the run began that first changed it.

        Times may prove that nobody did; where they don't, the content decides.
        """
        return self._is_newer(path, status) and not self._is_base(path, status)

    def _is_newer(self, path: bytes, status: os.stat_result) -> bool:
        mark = self._marks.of(path)
        if status.st_ctime_ns < mark or self.is_overwritten(path):
            return False
        return self._rolled_back is None or not self._rolled_back.explains(path, status, mark)

    def _base_of(self, path: bytes) -> Base | None:
        return None if self._bases is None else self._bases.of(path)

    def _is_base(self, path: bytes, status: os.stat_result) -> bool:
        """Tell whether a live entry is byte for byte what the run saw, whoever wrote it."""
        base = self._base_of(path)
        if base is None or base.digest or self._bases is None or base.mode != stat.S_IMODE(status.st_mode):
            return base is not None and base.is_at(self._live, path, status)
        text = self._bases.text(path)
        return text is not None and read_live(self._live, path) == text

    def is_overwritten(self, path: bytes) -> bool:
        """Tell whether ours shall win at a path: as in a selection, a directory means what is below it."""
        return any(top in (b".", path) or path.startswith(top + b"/") for top in self._overwrite)

    def _problem_of(self, change: Change) -> tuple[Why, str] | None:
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
            return "stale", _STALE
        return ("refused", "it belongs to another user") if status.st_uid != self._uid else None

    def _group_of(self, path: bytes) -> int:
        for directory, group in self._together.items():
            if path == directory or path.startswith(directory + b"/"):
                return group
        return self._draft.next_group()

    def _add(self, change: Change) -> None:
        entry = change.entry
        if change.unreadable:
            self._skip(change.path, "refused", "unspill can't read it, so it can't tell what would be lost")
        elif entry is None:
            self._delete(change)
        elif entry.kind == "dir":
            self._directory(change)
        elif entry.kind == "special":
            self._skip(change.path, "refused", "devices, FIFOs and sockets are never applied")
        else:
            self._leaf(change)

    def _leaf(self, change: Change) -> None:
        """Put a file or a symlink."""
        path = change.path
        problem = self._problem_of(change)
        if problem is not None:
            self._skip(path, *problem)
            return
        if self._is_aliased(change):
            self._skip(path, "conflict", _ALIASED)
            return
        found = self._find(path)
        if not self._may_displace(change, found):
            return
        before = found
        if found is not None and found.st_mode & FORMAT == _DIR:
            if not self._make_way(change, found):
                return
            before = None
        fd, name = self._live.parent(path) if before is not None else (-1, b"")
        is_listed = before is not None and stat.S_ISREG(before.st_mode) and has_access_list(fd, name)
        place, after = self.bring(change, must_copy=is_listed)
        if is_listed and stat.S_ISREG(after.st_mode):
            after = self._draft.give_access_lists(self._root, place, *self._live.parent(path))
        self._step("put", path, place, before=before, after=after)

    def _make_way(self, change: Change, found: os.stat_result) -> bool:
        """Take away a directory that something else replaces, all of it or nothing; tell whether it can be."""
        taken = _expand(self._live, change.path, found)
        edited = self._edited(change.path, taken)
        if edited is None:
            self._skip(change.path, "conflict", _MOVED)
            return False
        if edited:
            self._skip(change.path, "conflict", f"{_EDITED}: {quote(min(edited))}")
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
                self._set_metadata(change, found)
            return
        base = self._base_of(path)
        # A base without mode bits: the run only wrote into the directory
        is_on_the_way = self._was_there(change) if base is None else base.kind == "dir" and not base.mode
        if found is None and is_on_the_way:
            self._deleted[path] = change
            self._gone.add(path)
            self._new.add(path)
            return
        if not self._may_displace(change, found):
            self._blocked[path] = "conflict", _EDITED if found is not None else _DELETED
            return
        if found is not None:
            self._step("take", path, self._draft.next_place(self._root), before=found)
        self._make_directory(change)

    def _make_directory(self, change: Change) -> None:
        path = change.path
        place, made = self._draft.stage_directory(self._root)
        self._step("put", path, place, after=made)
        self._new.add(path)
        self._draft.set_metadata_of_new(self._root, path, made, self._wanted_metadata(change), self._group)

    def _set_metadata(self, change: Change, found: os.stat_result) -> None:
        """Give a directory the bits and attributes that the command gave it."""
        fd = self._live.directory(b"" if change.path == b"." else change.path)
        wanted = self._wanted_metadata(change)
        # Special bits of a live directory are the person's: they stay
        wanted = wanted.replace(mode=wanted.mode | found.st_mode & SPECIAL_BITS)
        is_base = self._is_base(change.path, found)
        if is_base or not (self.is_edited(change.path, found) or self._is_moved(change.path)):
            self._draft.set_metadata(self._root, change.path, fd, wanted, self._group)
        elif not has_metadata(fd, wanted):
            # Another apply may have made the same directory, and been seen before it had set its metadata
            self._skip(change.path, "conflict", _EDITED)

    def _wanted_metadata(self, change: Change) -> Metadata:
        entry = change.entry
        assert entry is not None
        assert change.layer is not None
        if entry.mode & SPECIAL_BITS:
            self._draft.note(change.path, "set-group-id and sticky bits are not applied")
        return self._draft.metadata_in_layer(self._layers[change.layer].tree, change.path, entry.mode)

    def _delete(self, change: Change) -> None:
        found = self._find(change.path)
        if found is None:
            return
        if found.st_mode & FORMAT != _DIR:
            if self._may_displace(change, found):
                self._step("take", change.path, self._draft.next_place(self._root), before=found)
            return
        kept: set[bytes] = set()
        taken = _expand(self._live, change.path, found)
        edited = self._edited(change.path, taken)
        if edited is None:
            self._skip(change.path, "conflict", _MOVED)
            return
        for inner in taken:
            # The youngest entries stay, and so do the directories above them
            self._group = self._draft.next_group()
            if inner.path in kept:
                kept.add(inner.path.rpartition(b"/")[0])
            elif inner.path in edited:
                self._skip(inner.path, "conflict", _EDITED)
                kept.add(inner.path.rpartition(b"/")[0])
            else:
                self._take_all((inner,))

    def _take_all(self, taken: Sequence[_LiveEntry]) -> None:
        for inner in taken:
            self._step("take", inner.path, self._draft.next_place(self._root), before=inner.status)

    def _may_displace(self, change: Change, found: os.stat_result | None) -> bool:
        """Tell whether the live entry is the one that the change was made from; record the conflict if it is not."""
        path = change.path
        if self.is_overwritten(path):
            return True
        base = self._base_of(path)
        was_there = self._was_there(change) if base is None else base.kind is not None
        if found is None:
            # A directory in place of a file: the run has taken away the old one as well
            is_dir = change.entry is not None and change.entry.kind == "dir"
            is_replaced = is_dir and (change.kind == "replaced" if base is None else base.kind != "dir")
            if not was_there or is_replaced or self._takes_theirs(change):
                return True
            self._skip(path, "conflict", _MOVED if self._is_moved(path) else _DELETED)
        elif not was_there:
            if self._takes_theirs(change):
                return True
            self._skip(path, "conflict", "something else was created there in the meantime")
        elif self._is_another_kind(base, found) or (found.st_mode & FORMAT != _DIR and self.is_edited(path, found)):
            return self._merge(change, found)
        elif self._is_moved(path) and not self._is_base(path, found):
            self._skip(path, "conflict", _MOVED)
        else:
            return True
        return False

    def _was_there(self, change: Change) -> bool:
        """Tell whether a run saw something at a path of which no base is known: also if it was deleted meanwhile."""
        if change.base_kind is not None or change.layer is None:
            return change.base_kind is not None
        is_dir = change.entry is not None and change.entry.kind == "dir"
        if not is_dir and (not self._is_emptied(change) or self._moves.may_bring(self._place_of(change))):
            return False
        return was_copied_up((upper.path for upper in self._layers.values()), change.path)

    def _place_of(self, change: Change) -> bytes:
        assert change.layer is not None
        return self._layers[change.layer].path + b"/" + change.path

    def _is_aliased(self, change: Change) -> bool:
        """Tell whether a run may have written a file by a name that meant another one outside.

        What is renamed below an overlay has two names in it until it forgets the old one; the kernel marks such a file.
        """
        if self.is_overwritten(change.path):
            return False
        assert change.layer is not None
        fd, name = self._layers[change.layer].tree.parent(change.path)
        return ALIAS in list_attributes(b"/proc/self/fd/%d/%b" % (fd, name))

    def _is_emptied(self, change: Change) -> bool:
        """Tell whether something came or went in a live directory above since the run began."""
        mark = self._marks.of(change.path)
        return any(self._has_other_names(above, mark) for above in upwards(change.path.rpartition(b"/")[0]))

    def _has_other_names(self, directory: bytes, mark: int) -> bool:
        if directory in self._new:
            return directory in self._gone
        if (directory, mark) not in self._emptied:
            explains = None if self._rolled_back is None else self._rolled_back.explains
            self._emptied[directory, mark] = has_other_names(self._live, directory, mark, explains)
        return self._emptied[directory, mark]

    @staticmethod
    def _is_another_kind(base: Base | None, found: os.stat_result) -> bool:
        return base is not None and KINDS.get(found.st_mode & FORMAT) != base.kind

    def _takes_theirs(self, change: Change) -> bool:
        """Tell whether the person wants the run's version of a file that can't be merged; say that they get it."""
        is_wanted = self._bases is not None and self._bases.side_of(change.path) == "theirs"
        if is_wanted and change.entry is not None:
            self._draft.note(change.path, "can't be merged, so the run's version has replaced yours")
            return True
        return False

    def _merge(self, change: Change, found: os.stat_result) -> bool:
        """Have a file get what both the person and the run made of it; record the conflict where that can't be."""
        path, entry = change.path, change.entry
        content, reason, how = self._merged_content(change, found)
        mode = None if entry is None else self._merged_mode(path, stat.S_IMODE(found.st_mode), entry.mode)
        if entry is None or content is None or mode is None:
            if self._takes_theirs(change):
                return True
            self._skip(path, "conflict", reason or _EDITED)
            return False
        ours = read_unchanged(*self._live.parent(path), found, LARGEST_DIGESTED)
        if content == ours and mode == stat.S_IMODE(found.st_mode) and not how:
            # The person has done the same, so it need not be held any more
            self._draft.is_settled = True
            return False
        # Asked before the content is set, which would count as the run's own
        if how or content != self._theirs(change) or mode != entry.mode & 0o777:
            self._draft.note(path, "merged with your edits" + how)
        self._contents[path] = content
        self._modes[path] = mode
        return True

    def _merged_mode(self, path: bytes, ours: int, theirs: int) -> int | None:
        """Return the bits that a file gets if each side may have changed them; None where both did, and differ."""
        base, theirs = self._base_of(path), theirs & 0o777
        if base is None or ours == theirs:
            return ours if ours == theirs else None
        return theirs if ours == base.mode else ours if theirs == base.mode & 0o777 else None

    def _merged_content(self, change: Change, found: os.stat_result) -> tuple[bytes | None, str, str]:
        """Return the content that a file gets of both sides; else None and why. Last, how conflicts were resolved."""
        entry, path = change.entry, change.path
        is_file = entry is not None and entry.kind == "file" and stat.S_ISREG(found.st_mode)
        if not is_file or "xattrs" in change.aspects or self._bases is None:
            return None, "", ""
        ours, theirs = read_unchanged(*self._live.parent(path), found, LARGEST_DIGESTED), self._theirs(change)
        base, text = self._bases.of(path), self._bases.text(path)
        if ours is None or theirs is None:
            return None, "", ""
        if ours == theirs:
            return ours, "", ""
        if base is None and (text is None or path in self._moved):
            return None, "", ""
        if ours == text or (text is None and base is not None and base.has_content_of(self._live, path, found)):
            return theirs, "", ""
        if theirs == text or (text is None and base is not None and self._is_content_of_base(change, base)):
            return ours, "", ""
        if text is None or max(len(ours), len(theirs)) > LARGEST_TEXT:
            return None, "", ""
        merge = merge_texts(text, ours, theirs)
        side = None if merge is None else self._bases.resolve(path, (text, ours, theirs), len(merge.clashes))
        if merge is None or (merge.clashes and side is None):
            return None, "" if merge is None else f"{SAME_LINES}: {merge.where()}", ""
        how = "" if not merge.clashes or side is None else _RESOLVED[side] if isinstance(side, str) else _CHOSEN
        return merge.text(side or "ours"), "", how

    def _theirs(self, change: Change) -> bytes | None:
        """Return what the run made of a file, or what is chosen of it."""
        chosen = self._contents.get(change.path)
        if chosen is not None or change.layer is None:
            return chosen
        fd, name = self._layers[change.layer].tree.parent(change.path)
        return read_unchanged(fd, name, os.stat(name, dir_fd=fd, follow_symlinks=False), LARGEST_DIGESTED)

    def _is_content_of_base(self, change: Change, base: Base) -> bool:
        """Tell whether a run changed the bits of a file, and left its content as it was."""
        assert change.layer is not None
        tree = self._layers[change.layer].tree
        status = tree.find(change.path)
        return status is not None and base.has_content_of(tree, change.path, status)

    def _is_moved(self, path: bytes) -> bool:
        """Tell whether a live directory above a path, or it itself, may not be the one that the run saw."""
        return path in self._moved and not self.is_overwritten(path)

    def _edited(self, top: bytes, found: Sequence[_LiveEntry]) -> set[bytes] | None:
        """Return which entries of a live directory are not those that the run saw; None if the directory is another.

        Where the bases of all that was in it are known, they decide.
        """
        base, is_moved = self._base_of(top), self._is_moved(top)
        is_listed = base is not None and base.is_listed
        if is_moved and not is_listed:
            return None
        # What is in another directory may be as old as it was, and nobody has seen it
        others = {top} if is_moved else {inner.path for inner in found if inner.path != top and self._is_other(inner)}
        unseen = {inner.path for inner in found if others and _lies_in_any(inner.path, others)}
        if is_listed:
            return {inner.path for inner in found if self._is_unlisted(inner, is_moved=inner.path in unseen)}
        filled = {inner.path.rpartition(b"/")[0] for inner in found}
        newer = {inner.path for inner in found if self.is_edited(inner.path, inner.status)}
        return newer - filled | unseen

    def _is_other(self, inner: _LiveEntry) -> bool:
        """Tell whether an entry is a directory that may have been exchanged for another one since the run."""
        path, mark = inner.path, self._marks.of(inner.path)
        if not inner.is_dir or not self._is_newer(path, inner.status):
            return False
        if has_moved(self._live, path, inner.status, mark):
            return True
        # In a repository names come and go all the time
        return b".git" not in path.split(b"/") and self._has_other_names(path.rpartition(b"/")[0], mark)

    def _is_unlisted(self, inner: _LiveEntry, *, is_moved: bool) -> bool:
        """Tell whether a run did not see an entry of a directory as it is."""
        base = self._base_of(inner.path)
        if base is None or base.kind is None or self._is_another_kind(base, inner.status):
            return not self.is_overwritten(inner.path)
        if not is_moved and not self.is_edited(inner.path, inner.status):
            return False
        return not base.is_at(self._live, inner.path, inner.status) and not self.is_overwritten(inner.path)

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
        for directory in [one for one in self._deleted if path.startswith(one + b"/")]:
            # Of its own: an undo that must leave it takes away what is in it all the same
            group, self._group = self._group, self._group_of(directory)
            self._make_directory(self._deleted.pop(directory))
            self._group = group
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

    def _skip(self, path: bytes, why: Why, reason: str) -> None:
        if self._is_quiet:
            return
        self._draft.skip(Skipped(root=self._root, path=path, why=why, reason=reason))


def _lies_in_any(path: bytes, directories: Container[bytes]) -> bool:
    """Tell whether a path is one of some directories, or in one."""
    while path:
        if path in directories:
            return True
        path = path.rpartition(b"/")[0]
    return False


def invert(draft: Draft, dirs: OpenDirs, step: Step, there: Entry | None) -> Step:
    """Return the inverse of a put or a take; `there` is what is live now."""
    action: Action = "take" if step.action == "put" and step.before is None else "put"
    inverse = make_step(step.root, step.path, action, step.group, step.place, there, step.before)
    if not step.staged:
        return inverse
    # In a root on another mount it has a place there: a copy of the backup, or a free one
    if action == "take":
        return inverse.replace(staged=True, place=draft.next_place(step.root))
    assert step.before is not None
    place, made = draft.stage_backup(step.root, *dirs.operations.parent(step.kept))
    return inverse.replace(staged=True, place=place, after=step.before.replace(inode=made.st_ino))


def backup_problem(dirs: OpenDirs, step: Step, before: Entry | None, modes: OperationModes) -> tuple[Why, str] | None:
    """Look at a backup before it is used: it must be what was displaced."""
    assert before is not None
    status = dirs.operations.find(step.backup)
    if status is None:
        return "refused", _NO_BACKUP
    if not step.staged:
        is_shared = status.st_ino == before.inode and status.st_nlink > 1
        return None if matches(status, before) else ("refused", _SHARED if is_shared else _DAMAGED)
    if before.kind == "dir":
        return None
    digest = digest_entry(*dirs.operations.parent(step.backup), status, modes)
    return None if (status.st_size, digest) == (before.size, step.digest) else ("refused", _DAMAGED)


def _depth(key: tuple[int, bytes]) -> tuple[int, int, bytes]:
    root, path = key
    return root, path.count(b"/") + (path != b"."), path


class _LiveEntry(Record):
    """An entry of the live tree."""

    path: bytes
    status: os.stat_result

    @property
    def is_dir(self) -> bool:
        return self.status.st_mode & FORMAT == _DIR


def _expand(live: Beneath, path: bytes, status: os.stat_result) -> list[_LiveEntry]:
    """Return a live directory and all that is in it.

    Raises:
        OSError: a directory in it can't be read, or is a mount point.
    """
    found: list[_LiveEntry] = []
    waiting = [_LiveEntry(path=path, status=status)]
    while waiting:
        here = waiting.pop()
        found.append(here)
        if not here.is_dir:
            continue
        fd = live.directory(here.path)
        with os.scandir(fd) as entries:
            names = [os.fsencode(entry.name) for entry in entries]
        for name in names:
            inner = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if inner.st_dev != status.st_dev:
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)
            waiting.append(_LiveEntry(path=here.path + b"/" + name, status=inner))
    # A parent is found before what is in it
    return found[::-1]


class Marks:
    """The marks of one stack: of each layer, oldest first, the upper directory, the mark, and marks of single paths."""

    __slots__ = ("_layers", "_only")

    def __init__(self, layers: Sequence[tuple[bytes, int, Mapping[bytes, int]]]) -> None:
        self._layers = [_Layer(*layer) for layer in layers]
        self._only = layers[0][1] if len(layers) == 1 and not layers[0][2] else None

    def of(self, path: bytes) -> int:
        """Return the mark of the oldest layer that says anything about a path: newer ones were made on top of it."""
        if self._only is not None:
            return self._only
        return self._layers[self.first(path)].mark_of(path)

    def of_change(self, change: Change) -> int:
        """Return the mark of a change.

        If earlier runs changed only the permissions of a directory, it is that of the run that took the directory away.
        """
        for layer in self._layers if change.takes_directory else ():
            if layer.hides(change.path):
                return layer.mark_of(change.path)
            if layer.is_filled(change.path):
                break
        return self.of(change.path)

    def first(self, path: bytes) -> int:
        """Return the number of the oldest layer that says anything about a path."""
        if len(self._layers) == 1:
            return 0
        return next((at for at, layer in enumerate(self._layers) if layer.has_a_say(path)), 0)


class _Layer:
    __slots__ = ("_directories", "_mark", "_overrides", "_upper")

    def __init__(self, upper: bytes, mark_ns: int, overrides: Mapping[bytes, int]) -> None:
        self._upper = upper
        self._mark = mark_ns
        self._overrides = overrides
        self._directories = {b"": _THROUGH}

    def mark_of(self, path: bytes) -> int:
        """Return the mark of this layer, or an older one of the path or of something above that hides it."""
        if not self._overrides:
            return self._mark
        mark = min(self._mark, self._overrides.get(path, self._mark))
        above = path.rpartition(b"/")[0]
        while above:
            own = self._overrides.get(above, self._mark)
            if own < mark and self._look(above) != _THROUGH:
                mark = own
            above = above.rpartition(b"/")[0]
        return mark

    def has_a_say(self, path: bytes) -> bool:
        """Tell whether there is an entry at the path, or something above it that hides what is beneath."""
        if path == b".":
            return True
        found = self._look(path.rpartition(b"/")[0])
        if found != _THROUGH:
            return found == _HIDES
        try:
            os.lstat(self._upper + b"/" + path)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def hides(self, path: bytes) -> bool:
        """Tell whether what is beneath does not show at a path."""
        return self._look(path) == _HIDES

    def is_filled(self, path: bytes) -> bool:
        """Tell whether there is a directory with something in it."""
        return self._look(path) == _THROUGH and bool(os.listdir(self._upper + b"/" + path))

    def _look(self, path: bytes) -> int:
        """Go down to a directory step by step, as far as it is not known yet."""
        unknown = []
        while (found := self._directories.get(path)) is None:
            unknown.append(path)
            path = path.rpartition(b"/")[0]
        for step in reversed(unknown):
            if found == _THROUGH:
                found = _look_at(self._upper + b"/" + step)
            self._directories[step] = found
        return found


def _look_at(path: bytes) -> int:
    try:
        return _THROUGH if stat.S_ISDIR(os.lstat(path).st_mode) and not is_opaque(path) else _HIDES
    except FileNotFoundError:
        return _ABSENT
    except OSError:
        # Too long a path, or a directory that is closed to its owner: it may hide something.
        return _HIDES
