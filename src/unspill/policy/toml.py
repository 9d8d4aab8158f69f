# SPDX-License-Identifier: Apache-2.0
"""Reads the TOML of a configuration file strictly: whatever is not understood stops the run.

Gets text and gives Settings; finding and opening files is not its business.
"""

from __future__ import annotations

import posixpath

from unspill.errors import PolicyError
from unspill.model.policy import GIB, KIB, MIB, Limits, Network, Secrets
from unspill.model.rules import SCOPES, Rules
from unspill.policy.defaults import is_name, is_refused
from unspill.policy.paths import normalise, show
from unspill.policy.rootfs_toml import read_mounts, read_provision, read_rootfs, read_rootfs_dir
from unspill.policy.settings import (
    AFTER,
    APPROVERS,
    DROPPED,
    ENGINES,
    MODES,
    PROFILES,
    PROJECT_KEYS,
    STANCES,
    TMP,
    VIEWS,
    Settings,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from unspill.policy.settings import Bound

_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB}
_MOST = 1 << 62
_UNLIMITED = "unlimited"
# A grant that outlives its occasion by years is none that anybody remembers.
_MOST_DAYS = 3650
# Each run looks for them one by one.
_MOST_SECRETS = 256
# tomllib takes memory with the square of a key's parts: a project's file of 200 KB could take all there is.
_MOST_DOTS = 100
# Bounds that our own memory depends on.
_ALWAYS_BOUNDED = ("kept_bytes", "tmp_bytes")


def parse_policy(text: str, *, where: str, trusted: bool, home: bytes, base: bytes | None = None) -> Settings:
    """Return what a file says. `trusted`: it is the person's own, not a project's.

    `~` is `home`; other relative paths are relative to `base`, an error where there is none.

    Raises:
        PolicyError: with the file, the key and what is wrong.
    """
    import tomllib

    if any(line.count(".") > _MOST_DOTS for line in text.split("\n")):
        raise PolicyError(f"{where}: a line has more than {_MOST_DOTS} dots: write a long list over several lines")
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Not only TOMLDecodeError: a number of 5,000 digits or a thousand open brackets raise these
        reason = show(str(error).encode("utf-8", "surrogateescape"))
        raise PolicyError(f"{where}: not valid TOML: {reason}") from error
    reader = Reader(where, home, base)
    values: dict[str, Any] = {}
    for key, value in document.items():
        read = _READERS.get(key)
        if key in _DROPPED:
            raise PolicyError(f"{where}: {key}: this setting was removed", remedy=_DROPPED[key])
        if read is None:
            raise reader.wrong(key, "there is no such setting")
        if not trusted and key not in PROJECT_KEYS:
            raise reader.wrong(key, "only your own configuration may set this, not a project's file")
        values[key] = read(reader, key, value)
    return Settings(where=where, **values)


class Reader:
    """One method per type of value; each takes the key for its message."""

    def __init__(self, where: str, home: bytes, base: bytes | None) -> None:
        self.where = where
        self.home = home
        self.base = base

    def wrong(self, key: str, reason: str, remedy: str = "") -> PolicyError:
        # The key may come from a hostile project
        return PolicyError(f"{self.where}: {ascii(key)[1:-1]}: {reason}", remedy=remedy)

    def boolean(self, key: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise self.wrong(key, "must be true or false")
        return value

    def text(self, key: str, value: object) -> str:
        if not isinstance(value, str):
            raise self.wrong(key, "must be a string")
        return value

    def texts(self, key: str, value: object) -> list[str]:
        if not isinstance(value, list):
            raise self.wrong(key, "must be a list of strings")
        return [self.text(key, item) for item in value]

    def count(self, key: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MOST:
            raise self.wrong(key, "must be a whole number above 0")
        return value

    def size(self, key: str, value: object) -> int:
        if not isinstance(value, str):
            return self.count(key, value)
        number, _, unit = value.strip().partition(" ")
        if not (number.isascii() and number.isdigit()) or unit not in _UNITS:
            raise self.wrong(key, 'must be a number of bytes, or a string like "512 MiB"')
        return self.count(key, int(number[:20]) * _UNITS[unit])

    def seconds(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise self.wrong(key, "must be a number of seconds above 0")
        return float(value)

    def path(self, key: str, value: object) -> bytes:
        text = self.text(key, value)
        if any(char in text for char in "*?["):
            raise self.wrong(key, f"{text!a} has a wildcard, which is not supported")
        path = text.encode("utf-8", "surrogateescape")
        if path == b"~" or path.startswith(b"~/"):
            path = self.home + path[1:]
        elif path.startswith(b"~"):
            raise self.wrong(key, f"{text!a}: only `~` itself stands for a home directory")
        elif path and self.base is not None:
            path = posixpath.join(self.base, path)
        try:
            return normalise(path)
        except ValueError as error:
            raise self.wrong(key, f"{text!a} is {error}") from error

    def paths(self, key: str, value: object) -> tuple[bytes, ...]:
        if not isinstance(value, list):
            raise self.wrong(key, "must be a list of paths")
        return tuple(dict.fromkeys(self.path(key, item) for item in value))

    def names(self, key: str, value: object) -> tuple[str, ...]:
        names = self.texts(key, value)
        for name in names:
            if not is_name(name) or "*" in name[:-1] or not name.isprintable():
                raise self.wrong(key, f"{name!a} is no name of a variable")
            if is_refused(name):
                raise self.wrong(key, f"{name} never enters a sandbox")
        return tuple(dict.fromkeys(names))

    def network(self, key: str, value: object) -> tuple[tuple[str, Any], ...]:
        return tuple((name, self._network(f"{key}.{name}", name, item)) for name, item in self.table(key, value))

    def _network(self, key: str, name: str, value: object) -> object:
        if name not in Network.__match_args__:
            raise self.wrong(key, "there is no such setting")
        if name == "hosts":
            return self._hosts(key, value)
        if name == "ask":
            return self.boolean(key, value)
        if name == "mode":
            return _one_of(MODES)(self, key, value)
        return None if value == _UNLIMITED else self.size(key, value)

    def _hosts(self, key: str, value: object) -> tuple[str, ...]:
        from unspill.policy.hosts import parse_reachable

        try:
            return tuple(dict.fromkeys(parse_reachable(text).text for text in self.texts(key, value)))
        except PolicyError as error:
            if error.message.startswith(self.where):
                raise
            raise PolicyError(f"{self.where}: {key}: {error.message}", remedy=error.remedy) from None

    def permissions(self, key: str, value: object) -> tuple[tuple[str, Any], ...]:
        return tuple((name, self._permission(f"{key}.{name}", name, item)) for name, item in self.table(key, value))

    def _permission(self, key: str, name: str, value: object) -> object:
        if name not in Rules.__match_args__:
            raise self.wrong(key, "there is no such setting")
        if name == "grant_days":
            days = self.count(key, value)
            if days > _MOST_DAYS:
                raise self.wrong(key, f"can't be more than {_MOST_DAYS}")
            return days
        if name == "wait_s":
            return self.seconds(key, value)
        return _one_of({"longest": SCOPES, "approver": APPROVERS}.get(name, STANCES))(self, key, value)

    def secrets(self, key: str, value: object) -> tuple[tuple[str, Any], ...]:
        return tuple((name, self._secret(f"{key}.{name}", name, item)) for name, item in self.table(key, value))

    def _secret(self, key: str, name: str, value: object) -> object:
        if name not in Secrets.__match_args__:
            raise self.wrong(key, "there is no such setting")
        if name == "mask":
            return self.boolean(key, value)
        read = self._revealed if name == "reveal" else self._inner_path
        paths = tuple(dict.fromkeys(read(key, text) for text in self.texts(key, value)))
        if len(paths) > _MOST_SECRETS:
            raise self.wrong(key, f"has more than {_MOST_SECRETS} entries")
        if name == "names" and any(b"/" in path for path in paths):
            raise self.wrong(key, "a name has no slash: list its directory in `directories`")
        return paths

    def _revealed(self, key: str, text: str) -> bytes:
        return self.path(key, text) if text.startswith(("/", "~")) else self._inner_path(key, text)

    def _inner_path(self, key: str, text: str) -> bytes:
        path = text.encode("utf-8", "surrogateescape")
        is_plain = all(part not in (b"", b".", b"..") and len(part) <= 255 for part in path.split(b"/"))
        if not is_plain or any(char in text for char in "*?[\0"):
            raise self.wrong(key, f"{text!a} is not a plain name or path below a root")
        return path

    def table(self, key: str, value: object) -> Iterable[tuple[str, object]]:
        if not isinstance(value, dict):
            raise self.wrong(key, "must be a table")
        return tuple((str(name), item) for name, item in value.items())

    def limits(self, key: str, value: object) -> tuple[tuple[str, Bound], ...]:
        return tuple((name, self._limit(f"{key}.{name}", name, bound)) for name, bound in self.table(key, value))

    def _limit(self, key: str, name: str, bound: object) -> Bound:
        if name not in Limits.__match_args__:
            raise self.wrong(key, "there is no such limit")
        if bound == _UNLIMITED:
            if name in _ALWAYS_BOUNDED:
                raise self.wrong(key, "can't be unlimited")
            return None
        if name.endswith("_s"):
            return self.seconds(key, bound)
        return self.size(key, bound) if name.endswith("_bytes") else self.count(key, bound)


def _one_of(choices: tuple[str, ...]) -> Callable[[Reader, str, object], str]:
    def read(reader: Reader, key: str, value: object) -> str:
        if isinstance(value, str) and (key, value) in DROPPED:
            raise reader.wrong(key, f'"{value}" is no longer supported', DROPPED[key, value])
        if value not in choices:
            raise reader.wrong(key, "must be one of " + ", ".join(f'"{choice}"' for choice in choices))
        return str(value)

    return read


_READERS: dict[str, Callable[[Reader, str, object], object]] = {
    "view": _one_of(VIEWS),
    "rootfs": read_rootfs,
    "rootfs_writable": Reader.boolean,
    "rootfs_dir": read_rootfs_dir,
    "provision": read_provision,
    "mounts": read_mounts,
    "tmp": _one_of(TMP),
    "container": Reader.boolean,
    "roots": Reader.paths,
    "readable": Reader.paths,
    "hidden": Reader.paths,
    "toolchains": Reader.boolean,
    "caches": Reader.boolean,
    "environment": Reader.names,
    "limits": Reader.limits,
    "network": Reader.network,
    "permissions": Reader.permissions,
    "profile": _one_of(PROFILES),
    "secrets": Reader.secrets,
    "after": _one_of(AFTER),
    "after_timeout": _one_of(AFTER),
    "after_cancel": _one_of(AFTER),
    "engine": _one_of(ENGINES),
    "bwrap": Reader.path,
    "allow_root": Reader.boolean,
    "shown_lines": Reader.count,
    "shown_bytes": Reader.size,
    "keep_days": Reader.count,
    "keep_bytes": Reader.size,
}
# Settings of earlier versions, each with what to do instead
_DROPPED = {
    "explain": "Delete the line. When a command fails, unspill explains the paths that its output names.",
}
