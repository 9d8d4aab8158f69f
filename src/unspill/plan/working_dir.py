# SPDX-License-Identifier: Apache-2.0
"""Where a command starts: what a caller may write, and what it means.

There is no restriction on the path; the sandbox decides what is there. Whether it exists is checked elsewhere.
"""

from __future__ import annotations

import posixpath

from unspill.errors import UsageError
from unspill.policy.paths import normalise, show

PLAYGROUND = "playground"


def resolve_working_dir(working_dir: str | None, project: bytes, playground: bytes) -> bytes:
    """Return the absolute working directory.

    None or an empty string is the project, the word `playground` is that one, anything else that is not absolute is
    relative to the project.

    Raises:
        UsageError: no path can be like that.
    """
    if not working_dir:
        return project
    if working_dir == PLAYGROUND:
        return playground
    path = working_dir.encode("utf-8", "surrogateescape")
    try:
        return normalise(posixpath.join(project, path))
    except ValueError as error:
        raise UsageError(f"Not a working directory: {show(path)} ({error}).") from error


def missing_text(working_dir: bytes) -> str:
    """Return what a model is told if the directory is not there."""
    return f"ERROR: Working directory does not exist: {show(working_dir)}"


def not_a_directory_text(working_dir: bytes) -> str:
    """Return what a model is told if it is something else."""
    return f"ERROR: Working directory is not a directory: {show(working_dir)}"
