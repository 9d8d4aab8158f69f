# SPDX-License-Identifier: Apache-2.0
"""Absolute paths as bytes: one spelling for each, and which of two contains the other.

Knows names only. Nothing here asks the disk what a path is.
"""

from __future__ import annotations

import posixpath


def normalise(path: bytes) -> bytes:
    """Return the one spelling of an absolute path: no `.`, no `..`, single slashes, none at the end.

    Raises:
        ValueError: the path is not absolute, or a byte of it is NUL.
    """
    if not path.startswith(b"/"):
        raise ValueError("not an absolute path")
    if b"\0" in path:
        raise ValueError("a path can't contain NUL")
    # POSIX leaves exactly two leading slashes alone; Linux knows no such thing
    return b"/" + posixpath.normpath(path).lstrip(b"/")


def contains(outer: bytes, inner: bytes) -> bool:
    """Tell whether `inner` is `outer` or lies beneath it. Both are normalised."""
    return inner == outer or outer == b"/" or inner.startswith(outer + b"/")


def lies_beneath(inner: bytes, outer: bytes) -> bool:
    """Tell whether `inner` lies strictly beneath `outer`."""
    return inner != outer and contains(outer, inner)


def show(path: bytes) -> str:
    """Return a path for messages: invalid UTF-8 and whatever does not print is escaped."""
    text = path.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
