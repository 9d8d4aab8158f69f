# SPDX-License-Identifier: Apache-2.0
"""A project, what its runs are made with, and where unspill keeps what it keeps.

The project's directory comes from the person, never from inside a sandbox. What is kept lies in the XDG directories of
the caller's own environment; nothing is ever kept in the project.
"""

from __future__ import annotations

import os

from unspill.errors import UsageError
from unspill.host.places import find_home
from unspill.record import Record
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from unspill.model.plan import Facts, Home
    from unspill.model.policy import EngineName, Policy
    from unspill.store.layers import SandboxRow

_NAME_LENGTH = 64
_MARKS = (b".git", b".unspill.toml", b".hg", b".jj")


class Locations(Record):
    """`state` holds store and layers, `config` the person's policy, `data` the playgrounds, `rootfs` every rootfs.

    `rootfs_way` is how the last one was named, where links lead there.
    """

    home: bytes
    state: bytes
    config: bytes
    data: bytes
    rootfs: bytes = b""
    rootfs_way: bytes = b""


def own_directories(locations: Locations, policy: Policy) -> tuple[bytes, ...]:
    """Return the directories that are ours alone: no command may ever write there, what lies there is trusted."""
    rootfs = os.path.realpath(policy.rootfs_dir) if policy.rootfs_dir else locations.rootfs
    own = (locations.state, locations.config, locations.data)
    return own if not rootfs or rootfs.startswith(locations.data + b"/") else (*own, rootfs)


def find_locations(home: bytes, environ: Mapping[bytes, bytes]) -> Locations:
    """Return the directories of this person.

    Raises:
        UsageError: one of the variables is set to a relative path.
    """
    state = _given(environ, b"UNSPILL_STATE_DIR") or _base(environ, b"XDG_STATE_HOME", home, b".local/state")
    data = os.path.realpath(_base(environ, b"XDG_DATA_HOME", home, b".local/share"))
    rootfs, way = rootfs_dir(environ, data), _given(environ, b"ROOTFS_DIR")
    return Locations(
        home=home,
        state=os.path.realpath(state),
        config=os.path.realpath(_base(environ, b"XDG_CONFIG_HOME", home, b".config")),
        data=data,
        rootfs=rootfs,
        rootfs_way=way if way != rootfs else b"",
    )


def find_own_locations() -> Locations:
    """Return the directories of whoever runs this process."""
    return find_locations(find_home(os.getuid(), os.environb.get(b"HOME")).path, os.environb)


def rootfs_dir(environ: Mapping[bytes, bytes], data: bytes, configured: bytes = b"") -> bytes:
    """Return where every rootfs lies: as ROOTFS_DIR says, or as the person configured, or among their own files.

    Raises:
        UsageError: the variable is set to a relative path.
    """
    return os.path.realpath(_given(environ, b"ROOTFS_DIR") or configured or os.path.join(data, b"rootfs"))


def _base(environ: Mapping[bytes, bytes], name: bytes, home: bytes, default: bytes) -> bytes:
    return os.path.join(_given(environ, name) or os.path.join(home, default), b"unspill")


def _given(environ: Mapping[bytes, bytes], name: bytes) -> bytes:
    value = environ.get(name, b"")
    if value and not value.startswith(b"/"):
        shown = value.decode("utf-8", "backslashreplace")
        raise UsageError(f"{name.decode()} is not an absolute path: {shown!r}", remedy="Set it to one.")
    return value


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
