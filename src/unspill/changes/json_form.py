# SPDX-License-Identifier: Apache-2.0
"""A ChangeSet as plain values for JSON, and back.

Names are bytes and JSON has none, so each path comes twice: to be read (`path`) and exactly (`path_b64`). Only the
exact one is read back, and nothing that could point outside of its root is accepted.
"""

from __future__ import annotations

import binascii

from unspill.changes.quote import quote
from unspill.errors import UsageError
from unspill.model.change import Change, ChangeSet, Identity, RootChanges

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Never

SCHEMA = 1

_ENTRY_KINDS = frozenset({"file", "dir", "symlink", "special"})
_CHANGE_KINDS = frozenset({"added", "modified", "deleted", "replaced", "metadata"})
_ASPECTS = frozenset({"content", "mode", "mtime", "xattrs", "target"})
_BYTES = ("target", "base_target", "layer")
_NUMBERS = ("base_size", "base_mode")
_FLAGS = ("leads_out", "broke_link", "unreadable")
_IDENTITY = ("mode", "inode", "size", "ctime_ns")


def to_plain(changes: ChangeSet) -> dict[str, Any]:
    """Return a ChangeSet as dictionaries, lists, strings and numbers; fields at their default are left out."""
    return {
        "schema": SCHEMA,
        "roots": [
            {**named("root", part.root), "changes": [_change_to_plain(change) for change in part.changes]}
            for part in changes.roots
        ],
        "findings": list(changes.findings),
    }


def from_plain(plain: object) -> ChangeSet:
    """Return the ChangeSet that `to_plain` was given.

    Raises:
        UsageError: It is not one, or one of a newer unspill.
    """
    try:
        return _read(plain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"this is not a change set of unspill: {error}") from None


def _change_to_plain(change: Change) -> dict[str, Any]:
    plain: dict[str, Any] = {**named("path", change.path), "kind": change.kind}
    if change.entry is not None:
        plain["entry"] = change.entry.as_dict()
    if change.base_kind is not None:
        plain["base_kind"] = change.base_kind
    if change.aspects:
        plain["aspects"] = list(change.aspects)
    for field in (*_NUMBERS, *_FLAGS):
        if value := getattr(change, field):
            plain[field] = value
    for field in _BYTES:
        if (raw := getattr(change, field)) is not None:
            plain |= named(field, raw)
    return plain


def named(field: str, raw: bytes) -> dict[str, str]:
    """Return a name twice: to be read, and exactly."""
    return {field: quote(raw), f"{field}_b64": binascii.b2a_base64(raw, newline=False).decode("ascii")}


def _read(plain: Any) -> ChangeSet:
    if plain["schema"] != SCHEMA:
        _refuse(f"schema {plain['schema']!r} is not {SCHEMA}")
    roots = tuple(
        RootChanges(root=_raw(part, "root"), changes=tuple(_read_change(change) for change in part["changes"]))
        for part in plain["roots"]
    )
    return ChangeSet(roots=roots, findings=tuple(_checked(text, str) for text in plain["findings"]))


def _read_change(plain: Any) -> Change:
    path = _raw(plain, "path")
    if path != b"." and not {b"", b".", b".."}.isdisjoint(path.split(b"/")):
        _refuse(f"the path {quote(path)} is not one below a root")
    entry = plain.get("entry")
    base_kind = plain.get("base_kind")
    others: dict[str, Any] = {field: _raw(plain, field) for field in _BYTES if f"{field}_b64" in plain}
    others |= {field: _checked(plain[field], int) for field in _NUMBERS if field in plain}
    others |= {field: _checked(plain[field], bool) for field in _FLAGS if field in plain}
    return Change(
        path=path,
        kind=_one_of(plain["kind"], _CHANGE_KINDS),
        entry=None if entry is None else _read_identity(entry),
        base_kind=None if base_kind is None else _one_of(base_kind, _ENTRY_KINDS),
        aspects=tuple(_one_of(aspect, _ASPECTS) for aspect in plain.get("aspects", ())),
        **others,
    )


def _read_identity(plain: Any) -> Identity:
    numbers = {field: _checked(plain[field], int) for field in _IDENTITY}
    return Identity(kind=_one_of(plain["kind"], _ENTRY_KINDS), **numbers)


def _raw(plain: Any, field: str) -> bytes:
    raw = binascii.a2b_base64(_checked(plain[f"{field}_b64"], str), strict_mode=True)
    if b"\0" in raw:
        _refuse(f"{field} holds a zero byte")
    return raw


def _one_of(value: Any, allowed: frozenset[str]) -> Any:
    return value if value in allowed else _refuse(f"{value!r} is unknown")


def _checked(value: Any, kind: type) -> Any:
    return value if type(value) is kind else _refuse(f"{value!r} is no {kind.__name__}")


def _refuse(why: str) -> Never:
    raise ValueError(why)
