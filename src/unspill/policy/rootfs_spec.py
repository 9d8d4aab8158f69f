# SPDX-License-Identifier: Apache-2.0
"""What a spec for a rootfs and the name of one must look like, whoever writes it: a file, a program, a command line.

Most of it becomes a part of an address, a path or a command, so only plain signs pass. Nothing here asks the disk.
"""

from __future__ import annotations

from unspill.model.rootfs import TIERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.rootfs import RootfsSpec

SOURCES = ("alpine", "debian", "archive", "oci")
# These have a name, versions and packages of their own; the others are what lies at a location
DISTRIBUTIONS = ("alpine", "debian")
SCHEMES = ("https://", "http://")

_LOWER = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_PLAIN = _LOWER | frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_HEX = frozenset("0123456789abcdef")
_ADDRESS = _PLAIN | frozenset("-._~:/[]%+,=")
_MOST_PACKAGES = 256
_LONGEST_NAME = 180
_LONGEST_LABEL = 32
_LONGEST_ADDRESS = 1024


def find_wrong(spec: RootfsSpec) -> tuple[str, str] | None:
    """Return the first field of a spec that can't be met as it is written, and why; None where all can."""
    if spec.source not in SOURCES:
        return "source", "must be one of " + ", ".join(f'"{source}"' for source in SOURCES)
    for field, is_right, reason in _demands(spec):
        if not is_right:
            return field, reason
    return _wrong_together(spec)


def _demands(spec: RootfsSpec) -> tuple[tuple[str, bool, str], ...]:
    plain = "must be letters, digits and `.`, `_`, `+`, `-`, beginning with a letter or digit"
    label = f"must be up to {_LONGEST_LABEL} small letters, digits, `.` and `_`, beginning with a letter"
    return (
        ("version", not spec.version or _is_word(spec.version, _version_signs(spec)), plain.replace(", `-`", "")),
        ("arch", not spec.arch or _is_word(spec.arch, "_"), "must be the name of an architecture"),
        ("tier", spec.tier in TIERS and not isinstance(spec.tier, bool), "must be 1 or 2"),
        ("packages", len(spec.packages) <= _MOST_PACKAGES, f"has more than {_MOST_PACKAGES} entries"),
        ("packages", all(_is_word(name, ".+_-") for name in spec.packages), f"each {plain}"),
        (
            "mirror",
            not spec.mirror or _is_mirror(spec),
            "must be an address that begins with https:// or http://",
        ),
        ("location", not spec.location or _is_location(spec.location), "must be an absolute path, or an address"),
        ("sha256", not spec.sha256 or is_digest(spec.sha256), "must be 64 hexadecimal digits in small letters"),
        ("label", not spec.label or _is_plain_label(spec.label), label),
    )


def _version_signs(spec: RootfsSpec) -> str:
    # A tag chooses in a layout and becomes no part of a name, whose parts are set apart by dashes
    return ".+_-" if spec.source == "oci" else ".+_"


def _wrong_together(spec: RootfsSpec) -> tuple[str, str] | None:
    if spec.source in DISTRIBUTIONS:
        if spec.location:
            return "location", "is only for archive and oci"
        return ("label", f"{spec.source} has a name of its own") if spec.label else None
    for field in ("mirror", "packages"):
        if getattr(spec, field):
            return field, f"is only for {' and '.join(DISTRIBUTIONS)}"
    if not spec.location:
        return "location", "must say where it is"
    if spec.source == "oci" and not spec.location.startswith("/"):
        return "location", "must be an absolute path: an OCI layout is read from disk"
    if spec.label and not is_label(spec.label):
        return "label", f"{spec.label} is the name of a source, or begins as if it were of one"
    return None if spec.label else ("label", "must say what it is called")


def is_name(text: str) -> bool:
    """Tell whether a text could be the name of a rootfs, or the beginning of one."""
    return _is_word(text, ".+_~-")


def is_label(text: str) -> bool:
    """Tell whether somebody may call a rootfs so: nobody who reads it may take it for one of a source."""
    first = text.replace("_", ".").partition(".")[0]
    return _is_plain_label(text) and first not in SOURCES


def _is_plain_label(text: str) -> bool:
    is_plain = _LOWER.union("._").issuperset(text) and len(text) <= _LONGEST_LABEL
    return bool(text) and is_plain and text[0].isalpha()


def is_address(text: str) -> bool:
    """Tell whether a text is the address of a server, or of something on it, without a password, query or fragment."""
    scheme = next((scheme for scheme in SCHEMES if text.startswith(scheme)), "")
    host = text[len(scheme) :].partition("/")[0]
    return bool(scheme) and bool(host) and _ADDRESS.issuperset(text) and len(text) <= _LONGEST_ADDRESS


def is_digest(text: str) -> bool:
    """Tell whether a text is a SHA-256 in the one way that we write it."""
    return len(text) == 64 and _HEX.issuperset(text)


def _is_mirror(spec: RootfsSpec) -> bool:
    """Tell whether a mirror is an address; Debian's may be a directory too, or several with their suites."""
    if spec.source != "debian":
        return is_address(spec.mirror)
    words = spec.mirror.split()
    are_right = (is_address(word) or _is_directory(word) or _is_word(word, ".-") for word in words)
    return bool(words) and ":" in words[0] and all(are_right)


def _is_directory(text: str) -> bool:
    return text.startswith(("file:/", "copy:/")) and _ADDRESS.issuperset(text) and len(text) <= _LONGEST_ADDRESS


def _is_location(text: str) -> bool:
    return is_address(text) or (text.startswith("/") and "\0" not in text)


def _is_word(text: str, more: str) -> bool:
    is_plain = _PLAIN.union(more).issuperset(text) and len(text) <= _LONGEST_NAME
    return bool(text) and is_plain and text[0] in _PLAIN
