# SPDX-License-Identifier: Apache-2.0
"""Recorded changes of the live tree or of what is held: apply, discard, undo, redo, restore, edit; and their steps.

A step is complete in itself: what must be there before, what is there afterwards, where the displaced entry lies.
So whether it was done can be told from the tree alone, at any moment, and each step has an exact inverse.
"""

from __future__ import annotations

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal, NewType

    from unspill.model.change import EntryKind
    from unspill.model.run import RunId

    OperationId = NewType("OperationId", str)
    OperationKind = Literal["apply", "discard", "undo", "redo", "restore", "edit"]
    Ending = Literal["done", "rolled back"]
    Action = Literal["put", "take", "set_metadata"]
    Why = Literal["conflict", "held", "refused", "stale", "earlier"]
    # It moved; what came is beside it under names of its own; nothing happened. Journals have these words
    GitEnding = Literal["moved", "arrived", "left"]
    Attributes = tuple[tuple[str, bytes], ...]
else:
    OperationId = str


# Why a text that both have edited could not be merged; then come their places
SAME_LINES = "you and the run changed the same lines"
# Of a repository that waits for something that is held in it
AS_A_WHOLE = "git's own files are applied together"
# Of a repository with a pack about which git could not be asked; then comes why
UNCHECKED = "git could not check one of its packs"


class Entry(Record):
    """What identifies an entry of a live tree. A rename changes none of it, but for the ctime.

    `ctime_ns` is what the ctime was when the entry was looked at, 0 where nobody wrote it down.
    """

    kind: EntryKind
    mode: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int = 0


class Metadata(Record):
    """The permission bits and `user.*` attributes of a directory."""

    mode: int
    attributes: Attributes = ()


class Step(Record):
    """One entry of a live tree that changes hands.

    put: the entry at `place` goes to `path`; what was there (`before`) is at `place` afterwards.
    take: the entry at `path` goes to `place`.
    set_metadata: the directory at `path` gets other bits and attributes; `was` and `becomes` say which.

    `place` is relative to the directory of operations, or to the staging directory in the root where `staged` (then
    `kept` is where the copy of what was displaced lies for good, and `digest` that of its content). `says` is a digest
    of what a put index of git says. Steps of one `group` are done all or none. Where another program made the change,
    what lies at `place` is a copy, and `copied` is the inode of what it is a copy of.
    """

    root: int
    path: bytes
    action: Action
    group: int
    place: bytes = b""
    before: Entry | None = None
    after: Entry | None = None
    was: Metadata | None = None
    becomes: Metadata | None = None
    staged: bool = False
    kept: bytes = b""
    digest: bytes = b""
    says: bytes = b""
    copied: int = 0

    @property
    def backup(self) -> bytes:
        """Where the displaced entry is found when the operation is over, relative to the directory of operations."""
        return self.kept if self.staged else self.place


class RefMove(Record):
    """A reference that gets another value: an object's name or `ref: NAME`; None where there is no such reference."""

    name: bytes
    old: bytes | None
    new: bytes | None


class GitMove(Record):
    """What an operation does to where a repository stands: all of it under git's own locks, or nothing.

    Names are paths in the git directory. `before` is what must be true under the locks, `after` what is true then, each
    by name: references as they are, files as a digest of what they say. `known` has inode, size and ctime of an index
    whose digest need not be made again. `files` are steps for the index and the state of a merge; `logs` are lines to
    append, by log.
    """

    refs: tuple[RefMove, ...] = ()
    files: tuple[Step, ...] = ()
    logs: tuple[tuple[bytes, bytes], ...] = ()
    before: tuple[tuple[bytes, bytes | None], ...] = ()
    after: tuple[tuple[bytes, bytes | None], ...] = ()
    known: tuple[tuple[bytes, int, int, int], ...] = ()
    locks: tuple[bytes, ...] = ()


class GitStep(Record):
    """What an operation does to one repository: objects are added, then it moves, or what came arrives apart from it.

    `top` is the git directory, `members` the prefixes of the ones that belong to it. `objects` are paths and the places
    that they come from. `move` is None where somebody else moved it since; then, or if that shows under the locks, the
    references of `arrival` are made instead. Groups of steps that are `dependent` are done only if it moves, and
    `committed` ones unless the work arrives, where the reference has them. `lock` is the file that stands for all its
    locks, with its inode.
    """

    root: int
    top: bytes
    members: tuple[bytes, ...] = (b"",)
    hash_size: int = 20
    objects: tuple[tuple[bytes, bytes], ...] = ()
    staged: bool = False
    move: GitMove | None = None
    arrival: tuple[RefMove, ...] = ()
    dependent: tuple[int, ...] = ()
    committed: tuple[int, ...] = ()
    lock: bytes = b""
    lock_inode: int = 0


class Skipped(Record):
    """A path that an operation did not change, and why.

    conflict: the live entry is not what the change was made from. held: needs the person's consent for this path.
    refused: of a kind that is never applied, or the filesystem said no. stale: not what was reviewed.
    earlier: an earlier held run touches it as well.

    Of what is held, `digest` stands for all that would go there, and `token` names it. `is_there`: the person has an
    entry there of which the change knows nothing. Told to whoever asked, not kept.
    """

    root: int
    path: bytes
    why: Why
    reason: str
    digest: str = ""
    token: str = ""
    is_there: bool = False

    @property
    def name(self) -> str:
        """The path as text."""
        return self.path.decode("utf-8", "surrogateescape")


class Operation(Record):
    """One change of live trees, or of what is held, as the store keeps it; its steps are in its journal.

    `of` is the operation that an undo or redo reverses. `origin` is the operation in whose directory the displaced
    entries lie: itself, or for undo and redo the one that was first. `marks` has one moment per root that all of its
    own changes precede. `changed` counts paths, but for those of which only the times changed; `paths` names them,
    absolute, and `flagged` are applied paths that run when somebody builds, tests or pushes, and why. Both are told to
    whoever asked; the journal keeps the second. `session` is that of the agent that asked for it, empty for none.
    """

    id: OperationId
    number: int
    kind: OperationKind
    sandbox: str
    project: bytes
    roots: tuple[bytes, ...]
    at_ns: int
    asked_by: str
    ending: Ending = "done"
    of: OperationId | None = None
    origin: OperationId | None = None
    runs: tuple[RunId, ...] = ()
    marks: tuple[int, ...] = ()
    changed: int = 0
    left: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    flagged: tuple[tuple[bytes, str], ...] = ()
    paths: tuple[bytes, ...] = ()
    session: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The same as `paths`, as text."""
        return tuple(path.decode("utf-8", "surrogateescape") for path in self.paths)


def reversals_of(done: Sequence[Operation]) -> dict[OperationId, Operation]:
    """Return, by operation, what took it back and was not itself taken back."""
    found: dict[OperationId, Operation] = {}
    gone: set[OperationId] = set()
    for one in done:
        if one.of is not None and one.id not in gone:
            found.setdefault(one.of, one)
            gone.add(one.of)
    return found
