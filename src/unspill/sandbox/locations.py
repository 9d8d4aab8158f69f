# SPDX-License-Identifier: Apache-2.0
"""Where unspill keeps what it keeps: the XDG directories, from the caller's own environment.

Nothing is ever kept in the project.
"""

from __future__ import annotations

import os

from unspill.errors import UsageError
from unspill.host.places import find_home
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from unspill.model.policy import Policy


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
