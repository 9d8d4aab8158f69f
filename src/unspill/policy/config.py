# SPDX-License-Identifier: Apache-2.0
"""Configuration files: what each setting may be, who may set it, and the strict reader of their TOML.

    key                       your own file      a project's .unspill.toml
    view                      any                one that shows no more than yours
    rootfs, rootfs_dir        any                -
    rootfs_writable           any                only false
    tmp                       any                only "fresh"
    [mounts], [provision]     any                -
    container                 any                -
    roots, readable           any                -
    hidden                    replaces           adds
    toolchains, caches        any                only false
    environment               any                a part of your own list
    after, after_timeout, after_cancel  any      "apply" only where it is yours
    [limits], shown_*         any                only lower
    [network] hosts           any                a part of your own list
    [network] *_bytes         any                only lower
    [network] ask             any                only false
    [network] mode            any                -
    [permissions]             any                "ask" only where it is yours; shorter; fewer denials
    [secrets] names, directories  any            adds
    [secrets] mask, reveal    any                only `mask = true`
    profile                   any                only "strict"
    engine, bwrap, allow_root any                -
    keep_days, keep_bytes     any                -

Anything else is an error, never ignored in silence. What the library's caller passes to one run is the person's own.
Takes text and returns Settings: others find and open the files, and `merge` lays settings over a policy.
"""

from __future__ import annotations

import posixpath

from unspill.errors import PolicyError
from unspill.model.policy import (
    GIB,
    KIB,
    MIB,
    SCOPES,
    Limits,
    Network,
    Rules,
    Secrets,
)
from unspill.model.rootfs import TIERS, RootfsSpec
from unspill.policy.defaults import (
    is_refused_variable,
    is_variable_name,
    mount_place_problem,
    mount_places_problem,
)
from unspill.policy.paths import closest, normalise, show
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from unspill.model.policy import (
        After,
        EngineName,
        Profile,
        Tmp,
        View,
    )

    Bound = int | float | None


VIEWS = ("sealed", "host", "rootfs")
# Each shows less of the host than the one before it
EVER_LESS = ("host", "sealed", "rootfs")
TMP = ("fresh", "persistent")
AFTER = ("apply", "hold", "discard")
ENGINES = ("mount", "native")
PROFILES = ("default", "strict")
MODES = ("proxy", "host")
STANCES = ("ask", "deny")
APPROVERS = ("terminal", "queue", "deny")
# Of a rootfs
SOURCES = ("alpine", "debian", "archive", "oci")
# These have a name, versions and packages of their own; the others are what lies at a location
DISTRIBUTIONS = ("alpine", "debian")
SCHEMES = ("https://", "http://")
# Settings of earlier versions, whole (None) or one value of them, each with what to do instead
DROPPED: dict[tuple[str, str | None], str] = {
    ("explain", None): "Delete the line. When a command fails, unspill explains the paths that its output names.",
    ("engine", "copy"): (
        "Remove the setting `engine`: unspill then uses `mount` or `native`, whichever works. `unspill doctor` says "
        "which, and what to do where neither does."
    ),
    ("network.mode", "pasta"): (
        'Write `mode = "proxy"`: commands reach any public host by HTTP, HTTPS or SOCKS. For other protocols write '
        '`mode = "host"`: commands get the network of this machine, and nothing that listens on it is protected.'
    ),
}

# What a project's file may set at all; `merge` decides whether the value is tighter.
PROJECT_KEYS = (
    "view",
    "rootfs_writable",
    "tmp",
    "hidden",
    "toolchains",
    "caches",
    "environment",
    "after",
    "after_timeout",
    "after_cancel",
    "limits",
    "network",
    "permissions",
    "profile",
    "secrets",
    "shown_lines",
    "shown_bytes",
)


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
_MOST_MOUNTS = 64
_LOWER = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_PLAIN = _LOWER | frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_HEX = frozenset("0123456789abcdef")
_ADDRESS = _PLAIN | frozenset("-._~:/[]%+,=")
_MOST_PACKAGES = 256
_LONGEST_NAME = 180
_LONGEST_LABEL = 32
_LONGEST_ADDRESS = 1024


class Settings(Record):
    """The content of one file. `where` names it in messages; of a table there is only what it sets."""

    where: str
    view: View | None = None
    rootfs: str | None = None
    rootfs_writable: bool | None = None
    rootfs_dir: bytes | None = None
    provision: RootfsSpec | None = None
    mounts: tuple[tuple[bytes, bytes], ...] | None = None
    tmp: Tmp | None = None
    container: bool | None = None
    roots: tuple[bytes, ...] | None = None
    readable: tuple[bytes, ...] | None = None
    hidden: tuple[bytes, ...] | None = None
    toolchains: bool | None = None
    caches: bool | None = None
    environment: tuple[str, ...] | None = None
    limits: tuple[tuple[str, Bound], ...] = ()
    network: tuple[tuple[str, Any], ...] = ()
    permissions: tuple[tuple[str, Any], ...] = ()
    secrets: tuple[tuple[str, Any], ...] = ()
    profile: Profile | None = None
    after: After | None = None
    after_timeout: After | None = None
    after_cancel: After | None = None
    engine: EngineName | None = None
    bwrap: bytes | None = None
    allow_root: bool | None = None
    shown_lines: int | None = None
    shown_bytes: int | None = None
    keep_days: int | None = None
    keep_bytes: int | None = None


def parse_policy(text: str, *, where: str, trusted: bool, home: bytes, base: bytes | None = None) -> Settings:
    """Return what a file says. `trusted`: it is the person's own, not a project's.

    `~` is `home`; other relative paths are relative to `base`, an error where there is none.

    Raises:
        PolicyError: with the file, the key and what is wrong.
    """
    import tomllib  # lazy: configuration files

    if any(line.count(".") > _MOST_DOTS for line in text.split("\n")):
        raise PolicyError(f"{where}: a line has more than {_MOST_DOTS} dots: split a long list into several lines")
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Not only TOMLDecodeError: a number of 5,000 digits or a thousand open brackets raise these
        reason = show(str(error).encode("utf-8", "surrogateescape"))
        raise PolicyError(f"{where}: not valid TOML: {reason}") from error
    reader = SettingReader(where, home, base)
    values: dict[str, Any] = {}
    for key, value in document.items():
        read = _READERS.get(key)
        if (key, None) in DROPPED:
            raise reader.wrong(key, "this setting was removed", DROPPED[key, None])
        if read is None:
            meant = closest(key, _READERS)
            raise reader.wrong(key, "there is no such setting", f"Did you mean `{meant}`?" if meant else "")
        if not trusted and key not in PROJECT_KEYS:
            raise reader.wrong(key, "only your own configuration may set this, not a project's file")
        values[key] = read(reader, key, value)
    return Settings(where=where, **values)


def find_wrong_field(spec: RootfsSpec) -> tuple[str, str] | None:
    """Return the first field of a spec that can't be met as it is written, and why; None where all can."""
    if spec.source not in SOURCES:
        return "source", "must be one of " + ", ".join(f'"{source}"' for source in SOURCES)
    for field, is_right, reason in _demands(spec):
        if not is_right:
            return field, reason
    return _wrong_together(spec)


def _demands(spec: RootfsSpec) -> tuple[tuple[str, bool, str], ...]:
    plain = "must be letters, digits and `.`, `_`, `+`, `-`, beginning with a letter or digit"
    label = f"must be up to {_LONGEST_LABEL} small letters, digits, `.` and `_`, beginning with a letter"
    return (
        ("version", not spec.version or _is_word(spec.version, _version_signs(spec)), plain.replace(", `-`", "")),
        ("arch", not spec.arch or _is_word(spec.arch, "_"), "must be the name of an architecture"),
        ("tier", spec.tier in TIERS and not isinstance(spec.tier, bool), "must be 1 or 2"),
        ("packages", len(spec.packages) <= _MOST_PACKAGES, f"has more than {_MOST_PACKAGES} entries"),
        ("packages", all(_is_word(name, ".+_-") for name in spec.packages), f"each {plain}"),
        (
            "mirror",
            not spec.mirror or _is_mirror(spec),
            "must be an address that begins with https:// or http://",
        ),
        ("location", not spec.location or _is_location(spec.location), "must be an absolute path, or an address"),
        ("sha256", not spec.sha256 or _is_digest(spec.sha256), "must be 64 hexadecimal digits in small letters"),
        ("label", not spec.label or _is_plain_label(spec.label), label),
    )


def _version_signs(spec: RootfsSpec) -> str:
    # A tag chooses in a layout and becomes no part of a name, whose parts are set apart by dashes
    return ".+_-" if spec.source == "oci" else ".+_"


def _wrong_together(spec: RootfsSpec) -> tuple[str, str] | None:
    if spec.source in DISTRIBUTIONS:
        if spec.location:
            return "location", "is only for archive and oci"
        return ("label", f"can't be set: {spec.source} has its own name") if spec.label else None
    for field in ("mirror", "packages"):
        if getattr(spec, field):
            return field, f"is only for {' and '.join(DISTRIBUTIONS)}"
    if not spec.location:
        return "location", "must be a path or an address"
    if spec.source == "oci" and not spec.location.startswith("/"):
        return "location", "must be an absolute path: an OCI layout is read from disk"
    if spec.label and not is_rootfs_label(spec.label):
        return "label", f"{spec.label} is the name of a source, or starts like one"
    return None if spec.label else ("label", "must be a name")


def is_rootfs_name(text: str) -> bool:
    """Tell whether a text could be the name of a rootfs, or the beginning of one."""
    return _is_word(text, ".+_~-")


def is_rootfs_label(text: str) -> bool:
    """Tell whether somebody may call a rootfs so: nobody who reads it may take it for one of a source."""
    first = text.replace("_", ".").partition(".")[0]
    return _is_plain_label(text) and first not in SOURCES


def _is_plain_label(text: str) -> bool:
    is_plain = _LOWER.union("._").issuperset(text) and len(text) <= _LONGEST_LABEL
    return bool(text) and is_plain and text[0].isalpha()


def is_web_address(text: str) -> bool:
    """Tell whether a text is the address of a server, or of something on it, without a password, query or fragment."""
    scheme = next((scheme for scheme in SCHEMES if text.startswith(scheme)), "")
    host = text[len(scheme) :].partition("/")[0]
    return bool(scheme) and bool(host) and _ADDRESS.issuperset(text) and len(text) <= _LONGEST_ADDRESS


def _is_digest(text: str) -> bool:
    return len(text) == 64 and _HEX.issuperset(text)


def _is_mirror(spec: RootfsSpec) -> bool:
    """Tell whether a mirror is an address; Debian's may be a directory too, or several with their suites."""
    if spec.source != "debian":
        return is_web_address(spec.mirror)
    words = spec.mirror.split()
    are_right = (is_web_address(word) or _is_directory(word) or _is_word(word, ".-") for word in words)
    return bool(words) and ":" in words[0] and all(are_right)


def _is_directory(text: str) -> bool:
    return text.startswith(("file:/", "copy:/")) and _ADDRESS.issuperset(text) and len(text) <= _LONGEST_ADDRESS


def _is_location(text: str) -> bool:
    return is_web_address(text) or (text.startswith("/") and "\0" not in text)


def _is_word(text: str, more: str) -> bool:
    is_plain = _PLAIN.union(more).issuperset(text) and len(text) <= _LONGEST_NAME
    return bool(text) and is_plain and text[0] in _PLAIN


class SettingReader:
    """Reads the values of one file, one method per type of value; each takes the key for its message."""

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
            if not is_variable_name(name) or "*" in name[:-1] or not name.isprintable():
                raise self.wrong(key, f"{name!a} is not a variable name")
            if is_refused_variable(name):
                raise self.wrong(key, f"{name} never enters a sandbox")
        return tuple(dict.fromkeys(names))

    def network(self, key: str, value: object) -> tuple[tuple[str, Any], ...]:
        return self._fields(key, value, Network.__match_args__, self._network)

    def _network(self, key: str, name: str, value: object) -> object:
        if name == "hosts":
            return self._hosts(key, value)
        if name == "ask":
            return self.boolean(key, value)
        if name == "mode":
            return _one_of(MODES)(self, key, value)
        return None if value == _UNLIMITED else self.size(key, value)

    def _hosts(self, key: str, value: object) -> tuple[str, ...]:
        from unspill.policy.hosts import parse_reachable  # lazy: proxy

        try:
            return tuple(dict.fromkeys(parse_reachable(text).text for text in self.texts(key, value)))
        except PolicyError as error:
            if error.message.startswith(self.where):
                raise
            raise PolicyError(f"{self.where}: {key}: {error.message}", remedy=error.remedy) from None

    def permissions(self, key: str, value: object) -> tuple[tuple[str, Any], ...]:
        return self._fields(key, value, Rules.__match_args__, self._permission)

    def _permission(self, key: str, name: str, value: object) -> object:
        if name == "grant_days":
            days = self.count(key, value)
            if days > _MOST_DAYS:
                raise self.wrong(key, f"can't be more than {_MOST_DAYS}")
            return days
        if name in ("wait_s", "denial_window_s"):
            return self.seconds(key, value)
        if name in ("max_denials", "max_same_denials"):
            return self.count(key, value)
        return _one_of({"longest": SCOPES, "approver": APPROVERS}.get(name, STANCES))(self, key, value)

    def secrets(self, key: str, value: object) -> tuple[tuple[str, Any], ...]:
        return self._fields(key, value, Secrets.__match_args__, self._secret)

    def _secret(self, key: str, name: str, value: object) -> object:
        if name == "mask":
            return self.boolean(key, value)
        read = self._revealed if name == "reveal" else self._inner_path
        paths = tuple(dict.fromkeys(read(key, text) for text in self.texts(key, value)))
        if len(paths) > _MOST_SECRETS:
            raise self.wrong(key, f"has more than {_MOST_SECRETS} entries")
        if name == "names" and any(b"/" in path for path in paths):
            raise self.wrong(key, "a name must not contain a slash: list its directory in `directories`")
        return paths

    def _revealed(self, key: str, text: str) -> bytes:
        return self.path(key, text) if text.startswith(("/", "~")) else self._inner_path(key, text)

    def _inner_path(self, key: str, text: str) -> bytes:
        path = text.encode("utf-8", "surrogateescape")
        is_plain = all(part not in (b"", b".", b"..") and len(part) <= 255 for part in path.split(b"/"))
        if not is_plain or any(char in text for char in "*?[\0"):
            raise self.wrong(key, f"{text!a} is not a plain name or path below a root")
        return path

    def limits(self, key: str, value: object) -> tuple[tuple[str, Bound], ...]:
        return self._fields(key, value, Limits.__match_args__, self._limit, "limit")

    def _limit(self, key: str, name: str, bound: object) -> Bound:
        if bound == _UNLIMITED:
            if name in _ALWAYS_BOUNDED:
                raise self.wrong(key, "can't be unlimited")
            return None
        if name.endswith("_s"):
            return self.seconds(key, bound)
        return self.size(key, bound) if name.endswith("_bytes") else self.count(key, bound)

    def rootfs(self, key: str, value: object) -> str:
        """Return a name, the path of a directory, or nothing: the one in use."""
        text = self._path_or_text(key, value)
        if text and not text.startswith("/") and not is_rootfs_name(text):
            raise self.wrong(key, "must be a name that `unspill rootfs list` shows, or an absolute path")
        return text

    def rootfs_dir(self, key: str, value: object) -> bytes:
        """Return the directory of all that are ready, or nothing: the usual one."""
        return b"" if value == "" else self.path(key, value)

    def mounts(self, key: str, value: object) -> tuple[tuple[bytes, bytes], ...]:
        """Return what is mounted: places inside, and directories of the host."""
        mounts: dict[bytes, bytes] = {}
        for name, directory in self._table(key, value):
            place = name.encode("utf-8", "surrogateescape")
            shown = f"{key}.{name}"
            problem = mount_place_problem(normalise(place) if place.startswith(b"/") and b"\0" not in place else place)
            if problem:
                raise self.wrong(shown, problem)
            if normalise(place) in mounts:
                raise self.wrong(shown, "appears twice")
            mounts[normalise(place)] = self.path(shown, directory)
        if len(mounts) > _MOST_MOUNTS:
            raise self.wrong(key, f"has more than {_MOST_MOUNTS} entries")
        problem = mount_places_problem(mounts)
        if problem:
            raise self.wrong(key, problem)
        return tuple(mounts.items())

    def provision(self, key: str, value: object) -> RootfsSpec:
        """Return how a rootfs is made where it is missing."""
        said = dict(self._fields(key, value, RootfsSpec.__match_args__, self._provision))
        if "source" not in said:
            raise self.wrong(f"{key}.source", "must name the directory to show")
        spec = RootfsSpec(**said)
        found = find_wrong_field(spec)
        if found is not None:
            raise self.wrong(f"{key}.{found[0]}", found[1])
        return spec

    def _provision(self, key: str, name: str, value: object) -> object:
        if name == "tier":
            return self.count(key, value)
        if name == "packages":
            return tuple(dict.fromkeys(self.texts(key, value)))
        return self._path_or_text(key, value) if name == "location" else self.text(key, value)

    def _path_or_text(self, key: str, value: object) -> str:
        text = self.text(key, value)
        return self.path(key, text).decode("utf-8", "surrogateescape") if text.startswith(("/", "~")) else text

    def _table(self, key: str, value: object) -> tuple[tuple[str, object], ...]:
        if not isinstance(value, dict):
            raise self.wrong(key, "must be a table")
        return tuple((str(name), item) for name, item in value.items())

    def _fields(
        self,
        key: str,
        value: object,
        known: tuple[str, ...],
        read: Callable[[str, str, object], Any],
        called: str = "setting",
    ) -> tuple[tuple[str, Any], ...]:
        """Return what a table says of the fields of a record; `read` takes the whole key, the name and the value."""
        said = []
        for name, item in self._table(key, value):
            if name not in known:
                raise self.wrong(f"{key}.{name}", f"there is no such {called}")
            said.append((name, read(f"{key}.{name}", name, item)))
        return tuple(said)


def _one_of(choices: tuple[str, ...]) -> Callable[[SettingReader, str, object], str]:
    def read(reader: SettingReader, key: str, value: object) -> str:
        if isinstance(value, str) and (key, value) in DROPPED:
            raise reader.wrong(key, f'"{value}" is no longer supported', DROPPED[key, value])
        if value not in choices:
            raise reader.wrong(key, "must be one of " + ", ".join(f'"{choice}"' for choice in choices))
        return str(value)

    return read


_READERS: dict[str, Callable[[SettingReader, str, object], object]] = {
    "view": _one_of(VIEWS),
    "rootfs": SettingReader.rootfs,
    "rootfs_writable": SettingReader.boolean,
    "rootfs_dir": SettingReader.rootfs_dir,
    "provision": SettingReader.provision,
    "mounts": SettingReader.mounts,
    "tmp": _one_of(TMP),
    "container": SettingReader.boolean,
    "roots": SettingReader.paths,
    "readable": SettingReader.paths,
    "hidden": SettingReader.paths,
    "toolchains": SettingReader.boolean,
    "caches": SettingReader.boolean,
    "environment": SettingReader.names,
    "limits": SettingReader.limits,
    "network": SettingReader.network,
    "permissions": SettingReader.permissions,
    "profile": _one_of(PROFILES),
    "secrets": SettingReader.secrets,
    "after": _one_of(AFTER),
    "after_timeout": _one_of(AFTER),
    "after_cancel": _one_of(AFTER),
    "engine": _one_of(ENGINES),
    "bwrap": SettingReader.path,
    "allow_root": SettingReader.boolean,
    "shown_lines": SettingReader.count,
    "shown_bytes": SettingReader.size,
    "keep_days": SettingReader.count,
    "keep_bytes": SettingReader.size,
}
