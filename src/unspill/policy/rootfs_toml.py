# SPDX-License-Identifier: Apache-2.0
"""Reads what a configuration file says about a rootfs: which one, how it is made, what is mounted into it.

A part of `policy.toml`, which hands in its reader: the messages are the same. `policy.rootfs_spec` says what is right.
"""

from __future__ import annotations

from unspill.model.rootfs import RootfsSpec
from unspill.policy.defaults import place_problem, together_problem
from unspill.policy.paths import normalise
from unspill.policy.rootfs_spec import find_wrong, is_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.policy.toml import Reader

_MOST_MOUNTS = 64


def read_rootfs(reader: Reader, key: str, value: object) -> str:
    """Return a name, the path of a directory, or nothing: the one in use."""
    text = reader.text(key, value)
    if text.startswith(("/", "~")):
        return _as_text(reader.path(key, text))
    if text and not is_name(text):
        raise reader.wrong(key, "must be a name that `unspill rootfs list` shows, or an absolute path")
    return text


def read_rootfs_dir(reader: Reader, key: str, value: object) -> bytes:
    """Return the directory of all that are ready, or nothing: the usual one."""
    return b"" if value == "" else reader.path(key, value)


def read_mounts(reader: Reader, key: str, value: object) -> tuple[tuple[bytes, bytes], ...]:
    """Return what is mounted: places inside, and directories of the host."""
    mounts: dict[bytes, bytes] = {}
    for name, directory in reader.table(key, value):
        place = name.encode("utf-8", "surrogateescape")
        shown = f"{key}.{name}"
        problem = place_problem(normalise(place) if place.startswith(b"/") and b"\0" not in place else place)
        if problem:
            raise reader.wrong(shown, problem)
        if normalise(place) in mounts:
            raise reader.wrong(shown, "is there twice")
        mounts[normalise(place)] = reader.path(shown, directory)
    if len(mounts) > _MOST_MOUNTS:
        raise reader.wrong(key, f"has more than {_MOST_MOUNTS} entries")
    problem = together_problem(mounts)
    if problem:
        raise reader.wrong(key, problem)
    return tuple(mounts.items())


def read_provision(reader: Reader, key: str, value: object) -> RootfsSpec:
    """Return how a rootfs is made where it is missing."""
    said: dict[str, Any] = {}
    for name, item in reader.table(key, value):
        if name not in RootfsSpec.__match_args__:
            raise reader.wrong(f"{key}.{name}", "there is no such setting")
        said[name] = _field(reader, f"{key}.{name}", name, item)
    if "source" not in said:
        raise reader.wrong(f"{key}.source", "must say where it comes from")
    spec = RootfsSpec(**said)
    found = find_wrong(spec)
    if found is not None:
        raise reader.wrong(f"{key}.{found[0]}", found[1])
    return spec


def _field(reader: Reader, key: str, name: str, value: object) -> object:
    if name == "tier":
        return reader.count(key, value)
    if name == "packages":
        return tuple(dict.fromkeys(reader.texts(key, value)))
    text = reader.text(key, value)
    if name == "location" and text.startswith(("/", "~")):
        return _as_text(reader.path(key, text))
    return text


def _as_text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
