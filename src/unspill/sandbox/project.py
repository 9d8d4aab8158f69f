# SPDX-License-Identifier: Apache-2.0
"""Finds and checks the project directory. It comes from the person, never from what is inside a sandbox."""

from __future__ import annotations

import os

from unspill.errors import UsageError

_MARKS = (b".git", b".unspill.toml", b".hg", b".jj")


def find_project(start: bytes) -> bytes:
    """Return the nearest directory at or above `start` that looks like the top of a project, else `start` itself.

    What a sandboxed command leaves can't move it upwards: it can't write above its own project.
    """
    home = os.path.realpath(os.path.expanduser(b"~"))
    directory = os.path.realpath(start)
    while directory not in (b"/", home):
        if any(os.path.lexists(os.path.join(directory, mark)) for mark in _MARKS):
            return directory
        directory = os.path.dirname(directory)
    return os.path.realpath(start)


def resolve_project(given: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> bytes:
    """Return the real path of a project directory.

    Raises:
        UsageError: it does not exist or is no directory.
    """
    path = os.path.realpath(os.fsencode(given))
    if not os.path.isdir(path):
        shown = path.decode("utf-8", "backslashreplace")
        raise UsageError(f"no such project directory: {shown!r}", remedy="Give a directory that exists.")
    return path
