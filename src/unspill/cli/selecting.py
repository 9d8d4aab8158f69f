# SPDX-License-Identifier: Apache-2.0
"""Which paths are meant: what a person names as seen from where they stand, told as seen from the project."""

from __future__ import annotations

import os

from unspill.cli.options import Option
from unspill.errors import UsageError
from unspill.model.change import Hunks, Selection
from unspill.store.permissions import SHORTEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.cli.options import Arguments
    from unspill.model.change import ChangeSet
    from unspill.sandbox.sandbox import Sandbox

GLOB = Option(name="--glob", metavar="PATTERN", repeated=True, help="what it matches; ** crosses slashes (repeatable)")
HUNK = Option(
    name="--hunk", metavar="PATH:N[@TOKEN]", repeated=True, help="hunks as `diff` counts them: PATH:1,3 (repeatable)"
)
_MOST_HUNKS = 100_000
_DIGITS = "0123456789abcdef"
_LONGEST = 64


def path_from_project(word: str, project: bytes) -> bytes:
    """Return a path as seen from the project, absolute where it is not inside."""
    path = os.path.normpath(os.path.join(os.path.realpath(os.getcwdb()), os.fsencode(word)))
    return os.path.relpath(path, project) if (path + b"/").startswith(project + b"/") else path


def selection_of(arguments: Arguments, sandbox: Sandbox) -> Selection:
    """Return what the words, --glob and --hunk choose."""
    project = sandbox.project
    return Selection(
        paths=tuple(path_from_project(word, project) for word in arguments.words),
        globs=tuple(_glob_from_project(pattern, project) for pattern in arguments.values("--glob")),
        hunks=tuple(_hunks(text, project) for text in arguments.values("--hunk")),
    )


def with_named(selection: Selection, arguments: Arguments, sandbox: Sandbox) -> Selection:
    """Add what --include and --overwrite name: each means all changes at or below it.

    With nothing else chosen, only these are meant. What is included is only chosen here: consent is asked for apart.
    """
    words = [split_token(word)[0] for word in arguments.values("--include")]
    included = [path_from_project(word, sandbox.project) for word in words]
    overwrite = [path_from_project(word, sandbox.project) for word in arguments.values("--overwrite")]
    if not included and not overwrite:
        return selection
    changes = sandbox.changes()
    if selection.is_everything:
        wanted = [_change_that_hides(path, changes) for path in (*included, *overwrite)]
        selection = selection.replace(paths=tuple(dict.fromkeys(wanted)))
    known = [(part.root, change.path) for part in changes.roots for change in part.changes]
    return selection.replace(
        overwrite=tuple(dict.fromkeys((*overwrite, *_at_or_below(overwrite, known, sandbox.project)))),
    )


def split_token(word: str) -> tuple[str, str]:
    """Return a path and the token after it, none for none: what looks like a token is one."""
    path, _, token = word.rpartition("@")
    is_token = path and SHORTEST <= len(token) <= _LONGEST and not token.strip(_DIGITS)
    return (path, token) if is_token else (word, "")


def _change_that_hides(path: bytes, changes: ChangeSet) -> bytes:
    """Return the directory whose deletion takes a path with it, else the path itself."""
    for change in changes:
        if change.base_kind == "dir" and change.kind in ("deleted", "replaced") and path.startswith(change.path + b"/"):
            return bytes(change.path)
    return path


def _at_or_below(tops: Iterable[bytes], known: Iterable[tuple[bytes, bytes]], project: bytes) -> tuple[bytes, ...]:
    full = [os.path.normpath(os.path.join(project, top)) for top in tops]
    return tuple(
        path for root, path in known if any((root + b"/" + path + b"/").startswith(top + b"/") for top in full)
    )


def _glob_from_project(pattern: str, project: bytes) -> bytes:
    raw = os.fsencode(pattern)
    here = path_from_project(".", project)
    if raw.startswith(b"/") or here == b"." or here.startswith(b"/"):
        return raw
    # The name of the directory itself is no pattern
    return b"".join(b"[%c]" % byte if byte in b"*?[" else bytes([byte]) for byte in here) + b"/" + raw


def _hunks(text: str, project: bytes) -> Hunks:
    name, colon, numbers = text.rpartition(":")
    numbers, token = split_token(numbers)
    chosen: list[int] = []
    for part in numbers.split(","):
        first, dash, last = part.partition("-")
        if not (name and colon and first.isdecimal() and (last.isdecimal() if dash else not last)):
            raise UsageError(f"--hunk wants PATH:N, such as main.py:1,3: {text!r}", remedy="See `unspill diff PATH`.")
        if int(last or first) > _MOST_HUNKS:
            raise UsageError(f"there is no hunk {last or first}", remedy="See `unspill diff PATH`.")
        chosen += range(int(first), int(last or first) + 1)
    return Hunks(path=path_from_project(name, project), numbers=tuple(dict.fromkeys(chosen)), digest=token)
