# SPDX-License-Identifier: Apache-2.0
"""What Alpine's mirrors say of their releases: where things lie, which version is the newest, which digest it has.

Read line by line, without a library for YAML: the index has one simple form, and what has another is refused, not
guessed at. Everything that is read here comes from the mirror, so it is no proof of anything.
"""

from __future__ import annotations

from unspill.errors import RootfsError, RootfsUnverified
from unspill.model.record import Record
from unspill.rootfs.download import read_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MIRROR = "https://dl-cdn.alpinelinux.org/alpine"
ALPINE_BRANCH = "latest-stable"
FLAVOR = "alpine-minirootfs"

_INDEX_BYTES = 1 << 20
_CHECKSUM_BYTES = 4096
_LONGEST_VERSION = 32
_DIGITS = "0123456789"
_KEY = "abcdefghijklmnopqrstuvwxyz_" + _DIGITS
_READ = ("arch", "flavor", "version", "file", "sha256")


class Release(Record):
    """One mini root file system on a mirror, as the mirror describes it."""

    version: str
    file: str
    sha256: str


def is_version(text: str) -> bool:
    """Tell whether a text is a version of Alpine: two numbers or more, between dots."""
    numbers = text.split(".")
    return len(text) <= _LONGEST_VERSION and len(numbers) >= 2 and all(map(_is_number, numbers))


def branch_of(version: str) -> str:
    """Return the branch that a version belongs to: v3.23 of 3.23.3."""
    return "v" + ".".join(version.split(".")[:2])


def file_name(version: str, arch: str) -> str:
    """Return what the archive of a version is called."""
    return f"{FLAVOR}-{version}-{arch}.tar.gz"


def releases_address(mirror: str, branch: str, arch: str) -> str:
    """Return the address of the directory in which a branch's archives lie."""
    return f"{mirror}/{branch}/releases/{arch}"


def get_latest_version(mirror: str, arch: str) -> Release:
    """Ask a mirror for the newest release.

    Raises:
        RootfsUnreachable: it does not answer.
        RootfsError: it has no mini root file system for this architecture.
        RootfsUnverified: what it says can't be understood.
    """
    address = f"{releases_address(mirror, ALPINE_BRANCH, arch)}/latest-releases.yaml"
    return find_release(read_text(address, most_bytes=_INDEX_BYTES), arch, address)


def get_checksum(mirror: str, version: str, arch: str) -> str:
    """Ask a mirror for the digest that it has beside an archive.

    Raises:
        RootfsUnreachable: it does not answer, or has no such version.
        RootfsUnverified: what it says can't be understood.
    """
    name = file_name(version, arch)
    address = f"{releases_address(mirror, branch_of(version), arch)}/{name}.sha256"
    words = read_text(address, most_bytes=_CHECKSUM_BYTES).split()
    if len(words) not in (1, 2) or not is_digest(words[0]) or words[1:] not in ([], [name], [f"*{name}"]):
        raise RootfsUnverified(f"{address} is not the checksum of {name}.")
    return words[0]


def find_release(text: str, arch: str, address: str) -> Release:
    """Return the mini root file system that an index names.

    Raises:
        RootfsError: it names none.
        RootfsUnverified: the index, or what it says of it, has another form than it should.
    """
    found: list[Release] = []
    try:
        for entry in _entries(text):
            if entry.get("flavor") == FLAVOR and entry.get("arch", arch) == arch:
                found.append(_checked(entry, arch))
    except ValueError as error:
        raise RootfsUnverified(f"{address} is not an index of releases: {error}.") from None
    if not found:
        raise RootfsError(
            f"There is no {FLAVOR} for {arch} in {address}.",
            remedy="Check the mirror's address, or name a version (`version`).",
        )
    if len(set(found)) > 1:
        raise RootfsUnverified(f"{address} names more than one {FLAVOR} for {arch}.")
    return found[0]


def _checked(entry: dict[str, str], arch: str) -> Release:
    release = Release(version=entry.get("version", ""), file=entry.get("file", ""), sha256=entry.get("sha256", ""))
    if not is_version(release.version):
        raise ValueError(f"{release.version!a} is no version")
    if release.file != file_name(release.version, arch):
        raise ValueError(f"{release.file!a} is no name for {file_name(release.version, arch)}")
    if not is_digest(release.sha256):
        raise ValueError(f"{release.sha256!a} is no SHA-256")
    return release


def is_digest(text: str) -> bool:
    """Tell whether a text is a SHA-256 in the form in which mirrors write it."""
    return len(text) == 64 and not text.strip("0123456789abcdef")


def _entries(text: str) -> Iterator[dict[str, str]]:
    """Yield the entries of an index; a line that is no part of one ends it with a ValueError."""
    entry: dict[str, str] | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.rstrip()
        # Deeper lines are the text of a description
        if not line or line == "---" or line.startswith(("#", "   ")):
            continue
        if line.startswith("-"):
            if entry is not None:
                yield entry
            entry = {}
            line = " " + line[1:]
        if entry is None or (line.strip() and not line.startswith("  ")):
            raise ValueError(f"line {number} has an unknown form")
        if line.strip():
            key, value = _pair(line.strip(), number)
            if key in entry and key in _READ:
                raise ValueError(f"line {number} says {key} again")
            entry[key] = value
    if entry is not None:
        yield entry


def _pair(line: str, number: int) -> tuple[str, str]:
    key, colon, value = line.partition(":")
    if not key or not colon or key.strip(_KEY) or (value and not value.startswith(" ")):
        raise ValueError(f"line {number} has an unknown form")
    value = value.strip()
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return key, value


def _is_number(text: str) -> bool:
    return bool(text) and not text.strip(_DIGITS)
