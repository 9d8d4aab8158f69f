# SPDX-License-Identifier: Apache-2.0
"""What is read and written in the tree of an Alpine: its release, its repositories, its packages.

The tree is somebody else's work: names are looked up by descriptor, what is read is read as if the tree were the root,
and what is written is written where no link is on the way.
"""

from __future__ import annotations

import os
import stat

from unspill.errors import RootfsError, RootfsUnsafe, RootfsUnverified
from unspill.host.inside import find_inside, resolve_inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# What packages may want to write to: nothing can be made at the top while they are installed
TOP = b"bin etc home lib media mnt opt root sbin srv usr var".split()
_NEEDED = (b"/bin/sh", b"/bin/bash", b"/usr/bin/python3")
# The second is where Alpine keeps it since its /lib is a link
_DATABASES = (b"/lib/apk/db/installed", b"/usr/lib/apk/db/installed")
_MOST_RELEASE = 256
_MOST_DATABASE = 64 << 20
_MOST_PACKAGES = 20_000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# One that is a FIFO must not be waited for
_OLD_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def open_tree(tree: bytes) -> int:
    """Return the descriptor of a tree."""
    return os.open(tree, _DIRECTORY)


def check_release(fd: int, version: str) -> None:
    """Return if the tree says that it is this version.

    Raises:
        RootfsUnverified: it says something else; a mirror may have put another archive in the place of this one.
    """
    said = _read(fd, b"/etc/alpine-release", _MOST_RELEASE).decode("ascii", "replace").strip()
    if said != version:
        raise RootfsUnverified(f"The archive should be Alpine {version}, but it says that it is {said[:40]!a}.")


def make_top(fd: int) -> None:
    """Make the usual directories at the top that are missing; a link is as good.

    Raises:
        RootfsUnsafe: something else is there.
    """
    for name in TOP:
        _make_directory(fd, name, is_link_fine=True)


def write_repositories(fd: int, addresses: Iterable[str]) -> None:
    """Write the addresses that packages come from, in the place of those that the archive has.

    Raises:
        RootfsUnsafe: a link or something else is in the way.
    """
    etc = _open_made(fd, b"etc")
    try:
        apk = _open_made(etc, b"apk")
    finally:
        os.close(etc)
    try:
        _write_anew(apk, b"repositories", "".join(f"{address}\n" for address in addresses).encode("ascii"))
    finally:
        os.close(apk)


def read_packages(fd: int) -> tuple[tuple[str, str], ...]:
    """Return the packages that apk has recorded, with their versions.

    Raises:
        RootfsError: there is no such record, or it can't be understood.
    """
    text = next(filter(None, (_read(fd, path, _MOST_DATABASE) for path in _DATABASES)), b"")
    packages: dict[str, str] = {}
    name = ""
    for line in text.decode("utf-8", "replace").split("\n"):
        if not line:
            name = ""
        elif line.startswith("P:"):
            name = line[2:]
        elif line.startswith("V:") and is_plain(name) and is_plain(line[2:]):
            packages[name] = line[2:]
    if not packages or len(packages) > _MOST_PACKAGES:
        raise RootfsError("The packages that were installed can't be read from apk's records.")
    return tuple(sorted(packages.items()))


def is_plain(text: str) -> bool:
    """Tell whether a text from a record can be shown as it is."""
    return 0 < len(text) <= 128 and text.isascii() and text.isprintable() and " " not in text


def check_complete(fd: int) -> None:
    """Return if the programs are there that every run relies on.

    Raises:
        RootfsError: one is missing, although every package was installed.
    """
    for path in _NEEDED:
        found = find_inside(fd, path)
        if found is None or not stat.S_ISREG(found.st_mode) or not found.st_mode & 0o111:
            raise RootfsError(f"There is no {path.decode()} in it after all packages were installed.")


def _read(fd: int, path: bytes, most_bytes: int) -> bytes:
    """Return the beginning of a file of the tree, nothing where there is none."""
    real = resolve_inside(fd, path)
    if not real:
        return b""
    file = os.open(real, _OLD_FILE, dir_fd=fd)
    try:
        return _read_all(file, most_bytes) if stat.S_ISREG(os.fstat(file).st_mode) else b""
    finally:
        os.close(file)


def _read_all(file: int, most_bytes: int) -> bytes:
    content = b""
    while len(content) < most_bytes and (more := os.read(file, most_bytes - len(content))):
        content += more
    return content


def _make_directory(fd: int, name: bytes, *, is_link_fine: bool = False) -> None:
    try:
        os.mkdir(name, 0o755, dir_fd=fd)
    except FileExistsError:
        mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
        if not stat.S_ISDIR(mode) and not (is_link_fine and stat.S_ISLNK(mode)):
            raise RootfsUnsafe(f"/{os.fsdecode(name)} of the archive is no directory.") from None


def _open_made(fd: int, name: bytes) -> int:
    """Return the descriptor of a directory, made if it is missing; a link is refused."""
    _make_directory(fd, name)
    return os.open(name, _DIRECTORY, dir_fd=fd)


def _write_anew(fd: int, name: bytes, content: bytes) -> None:
    try:
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        pass
    except OSError:
        raise RootfsUnsafe(f"/etc/apk/{os.fsdecode(name)} of the archive is no file.") from None
    file = os.open(name, _NEW_FILE, 0o644, dir_fd=fd)
    try:
        os.write(file, content)
    finally:
        os.close(file)
