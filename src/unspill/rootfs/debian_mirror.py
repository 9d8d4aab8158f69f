# SPDX-License-Identifier: Apache-2.0
"""Lays out packages that apt has fetched as their archives do, with the archives' own signed lists.

So whoever builds from them needs no network, and apt checks every signature and digest there once more. Packages are
hard links; lists are copies, because the next apt here takes others' right to read its lists away while it works.
"""

from __future__ import annotations

import os

from unspill.errors import RootfsUnverified
from unspill.model.record import Record
from unspill.rootfs.debian_names import KEYRING, Archive, archives_of, sources_list
from unspill.rootfs.debian_status import paragraphs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.rootfs.debian_apt import Apt, Deb

RELEASE = "InRelease"
# Inside there is one user: apt could not become the one that it fetches as
APT_CONFIG = 'APT::Sandbox::User "root";\n'


class Releases(Record):
    """The signed lists of some archives: their digests by name, and the seconds at which the youngest was made."""

    digests: tuple[tuple[str, str], ...]
    epoch: int


def read_releases(apt: Apt) -> Releases:
    """Return what the signed lists are that apt has fetched and checked.

    Raises:
        RootfsUnverified: one is missing.
    """
    digests: list[tuple[str, str]] = []
    epochs = [0]
    for archive in apt.archives:
        for suite in archive.suites:
            digest, epoch = _read_release(os.path.join(apt.top, b"lists", list_name(archive, suite, RELEASE)))
            digests.append((f"{suite}/{RELEASE}", digest))
            epochs.append(epoch)
    return Releases(digests=tuple(digests), epoch=max(epochs))


def lay_mirror(mirror: bytes, apt: Apt, arch: str, debs: Iterable[Deb]) -> None:
    """Lay the archives out below `mirror`, each in a directory of its number, with keys and a list of sources.

    The list is for the finished tree: it names the archives themselves, or Debian's where one is a directory here. So
    is what apt is told there.

    Raises:
        RootfsUnverified: something that apt should have fetched is missing.
    """
    numbers = {archive.address: b"%d" % number for number, archive in enumerate(apt.archives)}
    for archive in apt.archives:
        top = os.path.join(mirror, numbers[archive.address])
        for suite in archive.suites:
            for name in (RELEASE, f"main/binary-{arch}/Packages"):
                kept = os.path.join(apt.top, b"lists", list_name(archive, suite, name))
                _copy(kept, os.path.join(top, f"dists/{suite}/{name}".encode()))
    for deb in debs:
        top = os.path.join(mirror, numbers[deb.archive.address])
        _link(os.path.join(apt.top, b"archives", deb.file.encode()), os.path.join(top, deb.path.encode()))
    for key in os.listdir(apt.keys):
        _copy(os.path.join(apt.keys, key), os.path.join(mirror, b"keys", key))
    is_local = any(archive.is_local for archive in apt.archives)
    sources = sources_list(archives_of("", apt.suite) if is_local else apt.archives, KEYRING)
    for path, text in ((mirror + b"/sources.list", sources), (mirror + b"/apt.conf", APT_CONFIG)):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o644)


def list_name(archive: Archive, suite: str, name: str) -> bytes:
    """Return what apt calls a list that it has fetched: its address without the scheme, with _ for each slash."""
    _scheme, _colon, rest = archive.address.partition(":")
    return f"{rest.removeprefix('//')}/dists/{suite}/{name}".replace("_", "%5f").replace("/", "_").encode()


def _link(kept: bytes, path: bytes) -> None:
    _make_open(os.path.dirname(path))
    try:
        os.link(kept, path)
    except FileExistsError:
        return
    except FileNotFoundError as error:
        raise _missing(kept) from error
    os.chmod(path, 0o644)


def _copy(kept: bytes, path: bytes) -> None:
    from shutil import copyfile

    _make_open(os.path.dirname(path))
    try:
        copyfile(kept, path)
    except FileNotFoundError as error:
        raise _missing(kept) from error
    os.chmod(path, 0o644)


def _make_open(path: bytes) -> None:
    """Make a directory that subordinate ids can enter, whatever the umask is, and those above it that are missing."""
    if not os.path.isdir(path):
        _make_open(os.path.dirname(path))
        os.mkdir(path)
        os.chmod(path, 0o755)


def _read_release(path: bytes) -> tuple[str, int]:
    from email.utils import parsedate_to_datetime
    from hashlib import sha256

    try:
        with open(path, "rb") as file:
            content = file.read()
    except FileNotFoundError as error:
        raise _missing(path) from error
    dates = [fields["date"] for fields in paragraphs(content.decode("utf-8", "replace")) if "date" in fields]
    try:
        epoch = int(parsedate_to_datetime(dates[0]).timestamp())
    except (ValueError, IndexError):
        epoch = 0
    return sha256(content).hexdigest(), epoch


def _missing(path: bytes) -> RootfsUnverified:
    return RootfsUnverified(
        f"apt has not kept {os.fsdecode(os.path.basename(path))!a}",
        remedy="Each archive must have a signed InRelease and the lists of its component main.",
    )
