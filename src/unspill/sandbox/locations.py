# SPDX-License-Identifier: Apache-2.0
"""Where unspill keeps what it keeps: the XDG directories, from the caller's own environment.

Nothing is ever kept in the project.
"""

from __future__ import annotations

import os

from unspill.errors import UsageError
from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class Locations(Record):
    """`state` holds store and layers, `config` the person's policy, `data` the playgrounds."""

    home: bytes
    state: bytes
    config: bytes
    data: bytes


def find_locations(home: bytes, environ: Mapping[bytes, bytes]) -> Locations:
    """Return the directories of this person.

    Raises:
        UsageError: one of the variables is set to a relative path.
    """
    state = _given(environ, b"UNSPILL_STATE_DIR") or _base(environ, b"XDG_STATE_HOME", home, b".local/state")
    return Locations(
        home=home,
        state=os.path.realpath(state),
        config=os.path.realpath(_base(environ, b"XDG_CONFIG_HOME", home, b".config")),
        data=os.path.realpath(_base(environ, b"XDG_DATA_HOME", home, b".local/share")),
    )


def _base(environ: Mapping[bytes, bytes], name: bytes, home: bytes, default: bytes) -> bytes:
    return os.path.join(_given(environ, name) or os.path.join(home, default), b"unspill")


def _given(environ: Mapping[bytes, bytes], name: bytes) -> bytes:
    value = environ.get(name, b"")
    if value and not value.startswith(b"/"):
        shown = value.decode("utf-8", "backslashreplace")
        raise UsageError(f"{name.decode()} is not an absolute path: {shown!r}", remedy="Set it to one.")
    return value
