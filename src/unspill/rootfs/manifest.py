# SPDX-License-Identifier: Apache-2.0
"""The manifest of a rootfs as a file: JSON with a version, read strictly.

A field that is missing, unknown, twice there or of another type makes the whole manifest none: a rootfs whose
manifest is none is not ready. Read on the path of each run in a rootfs, hence without `json`.
"""

from __future__ import annotations

import os
import stat

from unspill.errors import RootfsUnverified
from unspill.model.rootfs import RootfsKey, RootfsManifest, RootfsWish

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

VERSION = 1
LARGEST = 4 << 20

_KIND = frozenset("abcdefghijklmnopqrstuvwxyz-")
_LONGEST_KIND = 32
_HEX = frozenset("0123456789abcdef")
_PROOFS = ("pinned", "known", "signed", "same-server", "none")
_SOURCES = ("alpine", "debian", "archive", "oci", "kept")
_TEXT, _COUNT, _TEXTS, _PAIRS, _COUNTS = "text", "count", "texts", "pairs", "counts"
_KEY = {"source": _TEXT, "version": _TEXT, "arch": _TEXT, "tier": _COUNT, "variant": _TEXT}
_WISH = {
    "source": _TEXT,
    "version": _TEXT,
    "arch": _TEXT,
    "tier": _COUNT,
    "packages": _TEXTS,
    "mirror": _TEXT,
    "location": _TEXT,
    "sha256": _TEXT,
    "label": _TEXT,
}
_REST = {
    "proof": _TEXT,
    "packages": _PAIRS,
    "fetched": _PAIRS,
    "left_out": _COUNTS,
    "tree": _TEXT,
    "entries": _COUNT,
    "size_bytes": _COUNT,
    "created_ns": _COUNT,
}
_TOP = {"version", "key", "wish", *_REST}


class NoManifest(Exception):
    """Why a content is no manifest."""


def to_content(manifest: RootfsManifest) -> bytes:
    """Return the content of a manifest's file."""
    import json

    fields = manifest.as_dict() | {"key": manifest.key.as_dict(), "wish": manifest.wish.as_dict()}
    content = json.dumps({"version": VERSION, **fields}, indent=1).encode("ascii") + b"\n"
    if len(content) > LARGEST:
        raise RootfsUnverified(
            "The list of packages is larger than any that is believed", remedy="Ask for fewer packages."
        )
    return content


def parse(content: bytes) -> RootfsManifest:
    """Return what a manifest's file says.

    Raises:
        NoManifest: it is not whole, of another version, or says something that no manifest says.
    """
    if len(content) > LARGEST:
        raise NoManifest("it is too large")
    top = _scan(content)
    if not isinstance(top, dict):
        raise NoManifest("it is no object")
    if top.get("version") != VERSION or isinstance(top["version"], bool):
        raise NoManifest(f"it is of version {top.get('version')!r:.20}, not {VERSION}")
    if top.keys() != _TOP:
        raise NoManifest("its fields are others")
    key, wish, rest = _fields(top["key"], _KEY), _fields(top["wish"], _WISH), _fields(top, _REST)
    if rest["proof"] not in _PROOFS or wish["source"] not in _SOURCES:
        raise NoManifest("its source or proof is none")
    is_digest = len(rest["tree"]) == 64 and _HEX.issuperset(rest["tree"])
    if not is_digest or not all(map(_is_kind, dict(rest["left_out"]))):
        raise NoManifest("it says something that no manifest says")
    return RootfsManifest(key=RootfsKey(**key), wish=RootfsWish(**wish), **rest)


def _is_kind(text: str) -> bool:
    """Tell whether a text may be a kind of what was left out; it is shown to people."""
    return 0 < len(text) <= _LONGEST_KIND and _KIND.issuperset(text)


def read(dir_fd: int, name: bytes) -> RootfsManifest:
    """Return what the manifest in an open directory says.

    Raises:
        NoManifest: there is none, or none that is valid.
    """
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            content = _read_file(fd)
        finally:
            os.close(fd)
    except OSError as error:
        raise NoManifest(f"it can't be read: {error.strerror}") from error
    return parse(content)


def _read_file(fd: int) -> bytes:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST:
        raise NoManifest("it is no file, or too large")
    with open(fd, "rb", closefd=False) as file:
        return file.read(LARGEST + 1)


def _fields(value: object, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of an object, each of its kind."""
    if not isinstance(value, dict) or (value.keys() != kinds.keys() and kinds is not _REST):
        raise NoManifest("its fields are others")
    return {name: _value(name, value[name], kind) for name, kind in kinds.items()}


def _value(name: str, value: object, kind: str) -> object:
    match kind, value:
        case "text", str():
            return value
        case "count", int() if not isinstance(value, bool) and 0 <= value < 1 << 63:
            return value
        case "texts", list():
            return tuple(_value(name, each, _TEXT) for each in value)
        case "pairs" | "counts", list():
            return tuple(_pair(name, each, _TEXT if kind == "pairs" else _COUNT) for each in value)
        case _:
            raise NoManifest(f"its field {name} is of another type")


def _pair(name: str, value: object, second: str) -> tuple[object, object]:
    if not isinstance(value, list) or len(value) != 2:
        raise NoManifest(f"its field {name} is of another type")
    return _value(name, value[0], _TEXT), _value(name, value[1], second)


class _Reading:
    """How the scanner of JSON that is built into Python reads; `json` itself would cost each run 2 ms."""

    strict = True
    object_hook = None
    parse_int = int
    memo: dict[str, str]

    def __init__(self) -> None:
        self.memo = {}

    @staticmethod
    def object_pairs_hook(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise NoManifest("a field is there twice")
        return found

    @staticmethod
    def parse_float(text: str) -> float:
        raise NoManifest(f"{text[:20]} is no number of it")

    parse_constant = parse_float


def _scan(content: bytes) -> object:
    from _json import make_scanner

    reading: Any = _Reading()
    try:
        text = content.decode("utf-8")
        start = len(text) - len(text.lstrip(" \t\r\n"))
        value, end = make_scanner(reading)(text, start)
    except (ValueError, StopIteration, RecursionError, SystemError) as error:
        # SystemError: the scanner takes its own error from `json.decoder`, which nobody has loaded, and raises nothing
        raise NoManifest("it is no JSON, or not all of it") from error
    if text[end:].strip(" \t\r\n"):
        raise NoManifest("something comes after it")
    return value
