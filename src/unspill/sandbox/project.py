# SPDX-License-Identifier: Apache-2.0
"""A project, and what its runs are made with. Its directory comes from the person, never from inside a sandbox."""

from __future__ import annotations

import os

from unspill.errors import UsageError
from unspill.host.places import find_home
from unspill.record import Record
from unspill.sandbox.locations import find_locations
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from unspill.model.plan import Facts, Home
    from unspill.model.policy import EngineName, Policy
    from unspill.sandbox.locations import Locations
    from unspill.store.layers import SandboxRow

_NAME_LENGTH = 64
_MARKS = (b".git", b".unspill.toml", b".hg", b".jj")


class Means(Record):
    """What runs are made with: the policy, what this host can do, and the engine.

    In container mode `engine` is None, and `container` names what takes the place of a sandbox.
    """

    policy: Policy
    facts: Facts
    engine: EngineName | None
    container: str = ""


class Project(Record):
    """A project that is open, with one of its sandboxes.

    `warning` is about the calling program, where that imports from a root.
    """

    path: bytes
    home: Home
    locations: Locations
    roots: tuple[bytes, ...]
    store: Store
    row: SandboxRow
    means: Means
    warning: str = ""

    def with_means(self, **changed: Any) -> Project:
        """Return the project with some of its means changed."""
        return self.replace(means=self.means.replace(**changed))


def find_project(start: bytes) -> bytes:
    """Return the nearest directory at or above `start` that looks like the top of a project, else `start` itself.

    What a sandboxed command leaves can't move it upwards: it can't write above its own project, and a project that lost
    its mark stays one, as long as the store knows it.
    """
    home = os.path.realpath(os.path.expanduser(b"~"))
    directory = own = os.path.realpath(start)
    unmarked: list[bytes] = []
    while directory not in (b"/", home):
        if has_mark(directory):
            return next(_once_marked(unmarked), directory) if unmarked else directory
        unmarked.append(directory)
        directory = os.path.dirname(directory)
    return own


def has_mark(directory: bytes) -> bool:
    """Tell whether something in a directory says that it is the top of a project."""
    return any(os.path.lexists(os.path.join(directory, mark)) for mark in _MARKS)


def _once_marked(directories: list[bytes]) -> Iterator[bytes]:
    """Yield those directories that were projects with a mark when they were used."""
    state = find_locations(find_home(os.getuid(), os.environb.get(b"HOME")).path, os.environb).state
    if not os.path.exists(os.path.join(state, b"store.db")):
        return
    with Store.open(state) as store:
        for directory in directories:
            if store.sandboxes.is_marked(directory, os.stat(directory).st_ino):
                yield directory


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


def check_name(name: str) -> None:
    """Refuse what can't be the name of a sandbox.

    Raises:
        UsageError: with what can.
    """
    if not name or len(name) > _NAME_LENGTH or not name.isprintable() or "/" in name:
        raise UsageError(f"not a name for a sandbox: {name!r}", remedy="Use up to 64 printable characters, no slash.")
