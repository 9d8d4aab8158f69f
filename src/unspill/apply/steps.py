# SPDX-License-Identifier: Apache-2.0
"""Steps made, written and read by the ten thousand: as records, and as the plain lists that a journal consists of.

Records are made field by field here, because checking keyword arguments takes longer than the system calls of a step.

MERGED
[entries] What identifies an entry, and whether a status is still that entry.

A rename changes the ctime and nothing else, so the ctime is not compared. A write changes the mtime, a replacement
the inode, a chmod the mode. Directories are identified by their inode alone: what is in them is compared by itself.

[sites] Everything that an operation reaches into, opened and locked once: live roots, our operations, the layers.

A root is opened by its path once, checked to be the directory that is meant, and locked by flock on itself: by device
and inode, whatever path, process or state directory the others come from.

[moving] Move whole upper directories between the layers and an operation.

To move a directory is to write its "..", which needs the right to write it. The upper directory of a project that its
owner may not write has the project's mode: it is opened for the moment, with the mark that a scan knows as well.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from _operator import attrgetter

from unspill.errors import ProjectBusy, RootRefused
from unspill.host.dirfd import Beneath, is_one_mount
from unspill.host.overlay import FORMAT, KINDS, MODE_MARK
from unspill.layers.modes import close_again, open_to_owner
from unspill.model.operation import (
    Dress,
    Entry,
    GitMove,
    GitStep,
    RefMove,
    Step,
)
from unspill.record import setters

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from typing import Any, Self

    from unspill.model.operation import Action, Attributes


# The functions that `operator` has, without importing it


_new = object.__new__
(
    _set_root, _set_path, _set_action, _set_group, _set_place, _set_before, _set_after, _set_was, _set_becomes,
    _set_staged, _set_kept, _set_digest, _set_says,
) = setters(Step)  # fmt: skip
_set_kind, _set_mode, _set_inode, _set_size, _set_mtime, _set_ctime = setters(Entry)
_fields_of_entry = attrgetter("kind", "mode", "inode", "size", "mtime_ns", "ctime_ns")
_first_fields = attrgetter("root", "action", "group", "staged", "was", "before", "after")


def make_step(
    root: int, path: bytes, action: Action, group: int, place: bytes, before: Entry | None, after: Entry | None
) -> Step:
    """Return a put or a take in a root that entries can be renamed to."""
    step = _new(Step)
    _set_root(step, root)
    _set_path(step, path)
    _set_action(step, action)
    _set_group(step, group)
    _set_place(step, place)
    _set_before(step, before)
    _set_after(step, after)
    _set_was(step, None)
    _set_becomes(step, None)
    _set_staged(step, False)
    _set_kept(step, b"")
    _set_digest(step, b"")
    _set_says(step, b"")
    return step


def plain_step(step: Step) -> list[Any]:
    """Return a step as JSON can write it: the fields that each has, and the others only where there is one of them."""
    root, action, group, staged, was, before, after = _first_fields(step)
    plain = [
        root,
        step.path.decode("utf-8", "surrogateescape"),
        action,
        group,
        step.place.decode("utf-8", "surrogateescape"),
        before and _fields_of_entry(before),
        after and _fields_of_entry(after),
    ]
    if staged or was or step.becomes or step.kept or step.digest or step.says:
        kept = step.kept.decode("utf-8", "surrogateescape")
        plain += [_plain_dress(was), _plain_dress(step.becomes), int(staged), kept, step.digest.hex(), step.says.hex()]
    return plain


def step_from(plain: list[Any]) -> Step:
    """Return the step that was written so."""
    root, path, action, group, place, before, after, *rest = plain
    step = make_step(
        root,
        path.encode("utf-8", "surrogateescape"),
        action,
        group,
        place.encode("utf-8", "surrogateescape"),
        before and _entry_from(before),
        after and _entry_from(after),
    )
    if rest:
        was, becomes, staged, kept, digest, says = rest
        _set_was(step, _dress_from(was))
        _set_becomes(step, _dress_from(becomes))
        _set_staged(step, bool(staged))
        _set_kept(step, kept.encode("utf-8", "surrogateescape"))
        _set_digest(step, bytes.fromhex(digest))
        _set_says(step, bytes.fromhex(says))
    return step


def plain_git_step(step: GitStep) -> dict[str, Any]:
    """Return what is done to a repository as JSON can write it."""
    return {
        **step.as_dict(),
        "top": _text(step.top),
        "members": list(map(_text, step.members)),
        "objects": [[_text(path), _text(place)] for path, place in step.objects],
        "move": step.move and _plain_move(step.move),
        "arrival": [_plain_ref(ref) for ref in step.arrival],
        "lock": _text(step.lock),
    }


def git_step_from(plain: dict[str, Any]) -> GitStep:
    """Return what was written so."""
    return GitStep(
        **plain
        | {
            "top": _bytes(plain["top"]),
            "members": tuple(map(_bytes, plain["members"])),
            "objects": tuple((_bytes(path), _bytes(place)) for path, place in plain["objects"]),
            "move": plain["move"] and _move_from(plain["move"]),
            "arrival": tuple(_ref_from(ref) for ref in plain["arrival"]),
            "dependent": tuple(plain["dependent"]),
            "committed": tuple(plain.get("committed", ())),
            "lock": _bytes(plain["lock"]),
        }
    )


def _plain_move(move: GitMove) -> dict[str, Any]:
    return {
        "refs": [_plain_ref(ref) for ref in move.refs],
        "files": [plain_step(step) for step in move.files],
        "logs": [[_text(name), _text(lines)] for name, lines in move.logs],
        "before": [[_text(name), _optional_text(value)] for name, value in move.before],
        "after": [[_text(name), _optional_text(value)] for name, value in move.after],
        "known": [[_text(name), *numbers] for name, *numbers in move.known],
        "locks": list(map(_text, move.locks)),
    }


def _move_from(plain: dict[str, Any]) -> GitMove:
    return GitMove(
        refs=tuple(_ref_from(ref) for ref in plain["refs"]),
        files=tuple(map(step_from, plain["files"])),
        logs=tuple((_bytes(name), _bytes(lines)) for name, lines in plain["logs"]),
        before=tuple((_bytes(name), _optional_bytes(value)) for name, value in plain["before"]),
        after=tuple((_bytes(name), _optional_bytes(value)) for name, value in plain["after"]),
        known=tuple((_bytes(name), inode, size, ctime) for name, inode, size, ctime in plain["known"]),
        locks=tuple(map(_bytes, plain["locks"])),
    )


def _plain_ref(ref: RefMove) -> list[str | None]:
    return [_text(ref.name), _optional_text(ref.old), _optional_text(ref.new)]


def _ref_from(plain: list[Any]) -> RefMove:
    name, old, new = plain
    return RefMove(name=_bytes(name), old=_optional_bytes(old), new=_optional_bytes(new))


def _text(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def _bytes(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


def _optional_text(value: bytes | None) -> str | None:
    return None if value is None else _text(value)


def _optional_bytes(value: str | None) -> bytes | None:
    return None if value is None else _bytes(value)


def _entry_from(plain: list[Any]) -> Entry:
    kind, mode, inode, size, mtime_ns, ctime_ns = plain
    entry = _new(Entry)
    _set_kind(entry, kind)
    _set_mode(entry, mode)
    _set_inode(entry, inode)
    _set_size(entry, size)
    _set_mtime(entry, mtime_ns)
    _set_ctime(entry, ctime_ns)
    return entry


def _plain_dress(dress: Dress | None) -> list[Any] | None:
    return None if dress is None else [dress.mode, [[name, value.hex()] for name, value in dress.attributes]]


def _dress_from(plain: list[Any] | None) -> Dress | None:
    if plain is None:
        return None
    attributes: Attributes = tuple((name, bytes.fromhex(text)) for name, text in plain[1])
    return Dress(mode=plain[0], attributes=attributes)


# Called one by one, because checking keyword arguments takes longer than the system calls of a step


def entry_of(status: os.stat_result) -> Entry:
    """Return what identifies an entry from its lstat."""
    entry = _new(Entry)
    _set_kind(entry, KINDS.get(status.st_mode & FORMAT, "special"))
    _set_mode(entry, status.st_mode & 0o7777)
    _set_inode(entry, status.st_ino)
    _set_size(entry, status.st_size)
    _set_mtime(entry, status.st_mtime_ns)
    _set_ctime(entry, status.st_ctime_ns)
    return entry


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


PATIENCE_S = 60.0
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PAUSE_S = 0.002


class Sites:
    """The live roots, in order, and the directory of operations; `staged` roots are on another mount than it."""

    def __init__(self, state: bytes, staging: bytes = b"") -> None:
        self.state = state
        self.staging = staging
        self.operations = self._open_operations()
        self.roots: list[Beneath] = []
        self.staged: list[bool] = []

    def _open_operations(self) -> Beneath:
        return Beneath(os.open(self.state + b"/operations", _DIRECTORY), open_to_owner)

    def look_anew(self) -> None:
        """Forget which directories of operations were opened to their owner: a scan of them closes them again."""
        self.operations.close()
        self.operations = self._open_operations()

    def open_roots(self, roots: Sequence[bytes], *, patience_s: float = PATIENCE_S) -> None:
        """Open and lock live roots; those of one operation always in the same order, so that nobody waits in a ring.

        Raises:
            RootRefused: one is not a directory (any more).
            ProjectBusy: another operation is under way there.
        """
        deadline = time.monotonic() + patience_s
        opened = [open_root(root) for root in roots]
        self.roots = [Beneath(fd) for fd in opened]
        for fd in sorted(opened, key=_device_and_inode):
            _lock(fd, deadline)
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()


def open_root(root: bytes) -> int:
    """Open a live root. Its path is not used again.

    Raises:
        RootRefused: it is not a directory, or a link to one.
    """
    try:
        return os.open(root, _DIRECTORY)
    except OSError as error:
        raise RootRefused(f"{os.fsdecode(root)} can't be used as a root: {error.strerror}.") from error


def _device_and_inode(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


def _lock(fd: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ProjectBusy("another operation on this project is still under way") from None
            time.sleep(_PAUSE_S)


def move_upper(source: bytes, dest: bytes) -> None:
    """Move an upper directory; it keeps its mode.

    Raises:
        OSError: it is not there, or something else is.
    """
    try:
        os.rename(source, dest)
    except PermissionError:
        open_to_owner(source, stat.S_IMODE(os.lstat(source).st_mode))
        os.rename(source, dest)
        close_upper(dest)


def close_inside(upper: bytes, empty: bytes) -> None:
    """Give the directories of a layer their modes back that were opened to look into them.

    A scan does so, whoever left them open; over an empty directory it compares nothing.
    """
    from unspill.changes.scan import scan

    scan((upper,), (), empty)


def close_upper(upper: bytes) -> None:
    """Give an upper directory its mode back that was moved while it was open, or was about to be."""
    fd = os.open(upper, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if MODE_MARK in os.listxattr(fd):
            close_again(fd, int(os.getxattr(fd, MODE_MARK), 8))
    finally:
        os.close(fd)
