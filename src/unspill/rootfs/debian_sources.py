# SPDX-License-Identifier: Apache-2.0
"""Where this machine's own apt gets Debian from: the archives that a rootfs is built from unless others are named.

Whoever runs the machine has chosen them, so they are near and reachable. Only addresses are taken over: what counts as
signed is decided elsewhere. Reads files of /etc/apt, which are root's.
"""

from __future__ import annotations

import os

from unspill.errors import RootfsError
from unspill.rootfs.debian_names import Archive, archives_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_ETC = "/etc/apt"
_LARGEST = 256 * 1024
_MOST_FILES = 64
# As Debian's archives are called, wherever they are mirrored
_CALLED = ("debian", "debian-security")
_SCHEMES = ("http://", "https://")


def default_archives(suite: str, directory: str = _ETC) -> tuple[Archive, ...]:
    """Return this machine's own archives of a suite, or Debian's where it has none."""
    found: dict[str, list[str]] = {}
    wanted = (suite, f"{suite}-updates", f"{suite}-security")
    for address, named in _read_all(directory):
        suites = [one for one in wanted if one in named]
        if suites and _is_debians(address):
            found.setdefault(address.rstrip("/"), []).extend(suites)
    archives = tuple(Archive(address=at, suites=tuple(dict.fromkeys(suites))) for at, suites in found.items())
    return archives if any(suite in archive.suites for archive in archives) else archives_of("", suite)


def _is_debians(address: str) -> bool:
    if not address.startswith(_SCHEMES) or address.rstrip("/").rpartition("/")[2] not in _CALLED:
        return False
    try:
        archives_of(address, "stable")
    except RootfsError:
        return False  # a password in it, say
    return True


def _read_all(directory: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each address with its suites, as apt's files name them."""
    parts = os.path.join(directory, "sources.list.d")
    try:
        names = sorted(os.listdir(parts))[:_MOST_FILES]
    except OSError:
        names = []
    paths = [os.path.join(directory, "sources.list"), *(os.path.join(parts, name) for name in names)]
    for path in paths:
        if path.endswith((".list", ".sources")):
            text = _read(path)
            yield from _read_stanzas(text) if path.endswith(".sources") else _read_lines(text)


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_LARGEST).decode("utf-8", "replace")
    except OSError:
        return ""


def _read_lines(text: str) -> Iterator[tuple[str, list[str]]]:
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words[:1] != ["deb"]:
            continue
        if len(words) > 1 and words[1].startswith("["):
            end = next((index for index, word in enumerate(words) if word.endswith("]")), len(words))
            words = ["deb", *words[end + 1 :]]
        if "main" in words[3:]:
            yield words[1], [words[2]]


def _read_stanzas(text: str) -> Iterator[tuple[str, list[str]]]:
    for stanza in text.split("\n\n"):
        fields: dict[str, list[str]] = {}
        name = ""
        for line in stanza.splitlines():
            if line.startswith("#"):
                continue
            value = line
            if not line[:1].isspace():
                name, _colon, value = line.partition(":")
            fields.setdefault(name.strip().lower(), []).extend(value.split())
        is_on = fields.get("enabled", ["yes"]) != ["no"]
        if is_on and "deb" in fields.get("types", []) and "main" in fields.get("components", []):
            yield from ((address, fields.get("suites", [])) for address in fields.get("uris", []))
