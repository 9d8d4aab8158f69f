# SPDX-License-Identifier: Apache-2.0
"""Steps made, written and read by the ten thousand: as records, and as the plain lists that a journal consists of.

Records are made field by field here, because checking keyword arguments takes longer than the system calls of a step.
"""

from __future__ import annotations

# The functions that `operator` has, without importing it
from _operator import attrgetter

from unspill.model.operation import Dress, Entry, GitMove, GitStep, RefMove, Step
from unspill.record import setters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.model.operation import Action, Attributes

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
