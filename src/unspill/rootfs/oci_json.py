# SPDX-License-Identifier: Apache-2.0
"""The documents of an OCI layout, read as what anybody may have written: bounded, and each field checked for its type.

A document that two readers could understand differently is refused. Nothing here opens a file.
"""

from __future__ import annotations

import json

from unspill.errors import RootfsUnsafe
from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Document = dict[str, Any]

MOST_DOCUMENT_BYTES = 4 << 20
MOST_ENTRIES = 512
_MOST_DEPTH = 32
_LONGEST_TEXT = 1024
_MOST_BLOB_BYTES = 1 << 40
_LENGTHS = {"sha256": 64, "sha512": 128}
_HEX = frozenset("0123456789abcdef")


class Digest(Record):
    """What a blob is known by."""

    algorithm: str
    value: str

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.value}"


class Descriptor(Record):
    """What one document says of another one, or of a layer. `platform` is empty where nothing is said of it."""

    kind: str
    digest: Digest
    size: int
    platform: tuple[str, str, str] | None = None
    ref: str = ""


def parse_document(content: bytes, what: str) -> Document:
    """Return a JSON object.

    Raises:
        RootfsUnsafe: it is none, or one that goes beyond all measure or says something twice.
    """
    document = parse_json(content, what)
    if not isinstance(document, dict):
        raise wrong(what, "it is no JSON object")
    return document


def parse_json(content: bytes, what: str) -> object:
    """Return what a JSON text says, with the same care."""
    try:
        document = json.loads(content.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)[:200]
        raise wrong(what, f"it can't be read: {reason}") from None
    _check_depth(document, what)
    return document


def parse_descriptor(found: object, what: str) -> Descriptor:
    """Return what a document says of a blob.

    Raises:
        RootfsUnsafe: a field is missing or of the wrong type.
    """
    if not isinstance(found, dict):
        raise wrong(what, "a descriptor is no object")
    size = found.get("size")
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= _MOST_BLOB_BYTES:
        raise wrong(what, "a descriptor has no size")
    annotations = get_object(found, "annotations", what)
    return Descriptor(
        kind=get_text(found, "mediaType", what),
        digest=parse_digest(found.get("digest"), what),
        size=size,
        platform=parse_platform(found["platform"], what) if "platform" in found else None,
        ref=get_text(annotations, "org.opencontainers.image.ref.name", what),
    )


def parse_digest(found: object, what: str) -> Digest:
    """Return a digest; it becomes a path, so nothing but its hexadecimal digits passes.

    Raises:
        RootfsUnsafe: it is none, or of an algorithm that is not accepted.
    """
    algorithm, _, value = found.partition(":") if isinstance(found, str) else ("", "", "")
    if len(value) != _LENGTHS.get(algorithm) or not _HEX.issuperset(value):
        raise wrong(what, f"{str(found)[:150]!r} is no SHA-256 or SHA-512 digest")
    return Digest(algorithm=algorithm, value=value)


def parse_platform(found: object, what: str) -> tuple[str, str, str]:
    """Return the system, architecture and variant of a platform, or of a config, which has the same fields."""
    if not isinstance(found, dict):
        raise wrong(what, "a platform is no object")
    system, arch, variant = (get_text(found, field, what) for field in ("os", "architecture", "variant"))
    return system, arch, variant


def get_text(document: Document, field: str, what: str) -> str:
    """Return a text, the empty one where there is none; it can be printed, and be a path."""
    found = document.get(field, "")
    if not is_text(found):
        raise wrong(what, f"{field} is no plain text, or too long")
    return str(found)


def is_text(found: object) -> bool:
    """Tell whether something is a text without signs that steer a terminal or are not Unicode."""
    return isinstance(found, str) and len(found) <= _LONGEST_TEXT and found.isprintable()


def get_list(document: Document, field: str, what: str) -> list[Any]:
    """Return a list, which must be there."""
    found = document.get(field)
    if not isinstance(found, list) or len(found) > MOST_ENTRIES:
        raise wrong(what, f"{field} is no list, or has more than {MOST_ENTRIES} entries")
    return found


def get_object(document: Document, field: str, what: str) -> Document:
    """Return an object, the empty one where there is none."""
    found = document.get(field)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise wrong(what, f"{field} is no object")
    return found


def wrong(what: str, why: str) -> RootfsUnsafe:
    """Return the refusal of a document."""
    return RootfsUnsafe(f"{what}: {why}", remedy="Make the OCI layout anew, for instance with `skopeo copy`.")


def _unique(pairs: list[tuple[str, Any]]) -> Document:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("an object has one field twice")
    return document


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _check_depth(document: object, what: str) -> None:
    level: list[Any] = [document]
    for _ in range(_MOST_DEPTH):
        level = [found for found in level if isinstance(found, dict | list)]
        if not level:
            return
        inner: list[Any] = []
        for found in level:
            inner += found.values() if isinstance(found, dict) else found
        level = inner
    raise wrong(what, "it is nested too deeply")
