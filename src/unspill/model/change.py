# SPDX-License-Identifier: Apache-2.0
"""What a run or a whole stack of layers changed, and which part of that somebody means.

Changes are sorted, exact, and can be applied in order. Paths are bytes relative to their root. A deleted or replaced
directory stands for everything below it.
"""

from __future__ import annotations

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Literal

    EntryKind = Literal["file", "dir", "symlink", "special"]
    ChangeKind = Literal["added", "modified", "deleted", "replaced", "metadata"]
    Aspect = Literal["content", "mode", "mtime", "xattrs", "target"]
    # Whose lines a text gets where both sides changed the same ones: the person's, the run's, or both, between marks
    Side = Literal["ours", "theirs", "markers"]


class Identity(Record):
    """The upper entry as it was when it was scanned: an apply refuses anything else."""

    kind: EntryKind
    mode: int
    inode: int
    size: int
    ctime_ns: int


class Change(Record):
    """One path that differs. `entry` is None for deletions; `base_kind` is None for additions.

    `aspects` says in which fields a modified or metadata entry differs. A file whose content is the same but whose
    mode, mtime or attributes are not is `metadata`. `layer` is the upper directory that holds the entry.
    """

    path: bytes
    kind: ChangeKind
    entry: Identity | None = None
    base_kind: EntryKind | None = None
    base_size: int = 0
    base_mode: int = 0
    aspects: tuple[Aspect, ...] = ()
    target: bytes | None = None
    base_target: bytes | None = None
    leads_out: bool = False
    broke_link: bool = False
    unreadable: bool = False
    layer: bytes | None = None

    @property
    def name(self) -> str:
        """The path as text; `os.fsencode` gives the bytes back, whatever they are."""
        return self.path.decode("utf-8", "surrogateescape")

    @property
    def takes_directory(self) -> bool:
        """Whether a directory that was there goes, with what was in it."""
        return self.base_kind == "dir" and self.kind in ("deleted", "replaced")

    @property
    def is_mere_touch(self) -> bool:
        """Return whether only the time of a file changed: it is applied, but not held and not listed."""
        return self.kind == "metadata" and self.aspects == ("mtime",)


class RootChanges(Record):
    """The changes below one root."""

    root: bytes
    changes: tuple[Change, ...]


class ChangeSet(Record):
    """All that differs, root by root in the order of the sandbox's roots. `findings` are things not shown otherwise.

    `layers` are the upper directories that were read, oldest first, where the set is all that a sandbox holds.
    `is_cut` if there was more than could be listed: such a set can be shown, but not taken apart.
    """

    roots: tuple[RootChanges, ...]
    findings: tuple[str, ...] = ()
    layers: tuple[bytes, ...] = ()
    is_cut: bool = False

    def __iter__(self) -> Iterator[Change]:
        for part in self.roots:
            yield from part.changes

    def of_root(self, root: bytes) -> tuple[Change, ...]:
        """Return the changes below one of the roots."""
        return next((part.changes for part in self.roots if part.root == root), ())

    def names(self) -> Iterator[str]:
        """Yield the same as `paths`, as text."""
        return (path.decode("utf-8", "surrogateescape") for path in self.paths())

    def paths(self) -> Iterator[bytes]:
        """Yield the absolute paths of what differs in more than its time."""
        for part in self.roots:
            yield from (part.root + b"/" + change.path for change in part.changes if not change.is_mere_touch)

    def __len__(self) -> int:
        return sum(len(part.changes) for part in self.roots)

    def __bool__(self) -> bool:
        return any(part.changes for part in self.roots)


class Hunks(Record):
    """Some hunks of one text file, counted from 1 as `diff` shows them, and some `lines` of others.

    Lines that are removed or added are counted from 1 through the whole file, as `diff` shows them.
    With a `digest`, those of the very texts that it was made of: where either side is another one now, none is applied.
    """

    path: bytes
    numbers: tuple[int, ...]
    digest: str = ""
    lines: tuple[int, ...] = ()


class Resolution(Record):
    """What becomes of one file that both the person and a run have changed: a side for each conflict, in their order.

    `digest` is that of the three texts that it was chosen for (`changes.merge`): for others it does not count.
    """

    path: bytes
    sides: tuple[Side, ...]
    digest: str


class Consent(Record):
    """A yes to what is held at or below a path of a root, as it was: `digest` is that of all of it, in full.

    `token` is the beginning of the digest by which a person names it. `is_there`: the person has an entry there of
    which the change knows nothing, so that it would be a conflict.
    """

    root: bytes
    path: bytes
    digest: str
    token: str = ""
    is_there: bool = False


class Selection(Record):
    """Paths relative to a root (a directory means what is below it), globs, and hunks; an empty one means everything.

    What a selected path needs above it comes along.
    `included` are held paths that the caller consents to, whatever they have; `consents` are for one content each, and
    void where another is held now. `overwrite` are conflicts in which the run's entry shall win. `sides` say by path
    what becomes of lines that both the person and a run have changed; without a word such a file is a conflict.
    `resolutions` say it for each of them. With no paths, globs or hunks, what these name is chosen and nothing else,
    but for what `sides` say of everything, by the path `.`.
    `here` is where the person stands, for what is told about paths.
    """

    paths: tuple[bytes, ...] = ()
    globs: tuple[bytes, ...] = ()
    hunks: tuple[Hunks, ...] = ()
    included: tuple[bytes, ...] = ()
    consents: tuple[Consent, ...] = ()
    overwrite: tuple[bytes, ...] = ()
    sides: tuple[tuple[bytes, Side], ...] = ()
    resolutions: tuple[Resolution, ...] = ()
    here: bytes = b""

    @property
    def is_everything(self) -> bool:
        """Tell whether nothing narrows it."""
        return not (self.chosen_paths or self.globs or self.hunks)

    @property
    def chosen_paths(self) -> tuple[bytes, ...]:
        """The paths that are chosen: with nothing else chosen, those of which it says what becomes of conflicts."""
        if self.paths or self.globs or self.hunks:
            return self.paths
        sides = (path for path, _side in self.sides if path != b".")
        named = (*self.overwrite, *sides, *(one.path for one in self.resolutions))
        return (*dict.fromkeys((*named, *self.included)),) if named else ()
