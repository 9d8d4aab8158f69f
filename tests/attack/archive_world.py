# SPDX-License-Identifier: Apache-2.0
"""The ground on which hostile archives are unpacked: a tree, a victim beside it, and extractors that trust them.

The extractors are the control arm: what they do to the victim is what the archive was made for.
"""

import hashlib
import io
import os
import shutil
import stat
import subprocess
import tarfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.attack.tar_crafting import END, entry
from unspill.errors import RootfsError
from unspill.rootfs.tar import USUAL, Bounds

PRECIOUS = "precious"
EVIL: Final = b"evil"
UP: Final = b"../../outside"
PLAIN: Final = entry(b"plain", b"x")
SMUGGLED: Final = entry(b"smuggled", EVIL)


@dataclass(frozen=True)
class World:
    """A staging directory with the tree in it, and a directory outside that must stay as it is."""

    top: Path

    @property
    def tree(self) -> Path:
        return self.top / "stage" / "tree"

    @property
    def outside(self) -> Path:
        return self.top / "outside"

    @property
    def victim(self) -> Path:
        return self.outside / "victim"

    @property
    def planted(self) -> Path:
        return self.outside / "planted"

    def surroundings(self) -> str:
        """Return a digest of everything but the tree."""
        digest = hashlib.sha256()
        for directory, folders, files in os.walk(self.top):
            if Path(directory) == self.tree:
                folders.clear()
                continue
            folders.sort()
            for name in sorted([*folders, *files]):
                path = Path(directory, name)
                if path != self.tree:
                    digest.update(repr((path, describe(path))).encode())
        return digest.hexdigest()


def make_world(top: Path) -> World:
    world = World(top)
    world.tree.mkdir(parents=True)
    (world.outside / "folder").mkdir(parents=True)
    (world.outside / "folder" / "file").write_text(PRECIOUS)
    world.victim.write_text(PRECIOUS)
    world.outside.chmod(0o750)
    return world


def describe(path: Path) -> tuple[object, ...]:
    """Return what could be changed of one entry."""
    found = path.lstat()
    content = path.read_bytes() if stat.S_ISREG(found.st_mode) else b""
    times = found.st_mtime_ns if stat.S_ISREG(found.st_mode) else 0
    return found.st_mode, found.st_nlink, found.st_ino, times, content


@dataclass(frozen=True)
class Naive:
    """Somebody who trusts the archive."""

    archive: bytes
    world: World

    def extract(self) -> World:
        """Let Python's own module extract it without any filter, as far as it comes."""
        trusting: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
        with suppress(tarfile.TarError, OSError, EOFError), tarfile.open(fileobj=io.BytesIO(self.archive)) as tar:
            for member in tar:
                with suppress(tarfile.TarError, OSError):
                    tar.extract(member, self.world.tree, **trusting)
        return self.world

    def extract_at_once(self) -> World:
        """The same in one go, which gives directories their modes and times at the very end."""
        trusting: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
        with suppress(tarfile.TarError, OSError), tarfile.open(fileobj=io.BytesIO(self.archive)) as tar:
            tar.extractall(self.world.tree, **trusting)
        return self.world

    def extract_checked(self) -> World:
        """Extract only what `realpath` finds in the tree, as the filter `data` of Python's module did until 2025.

        `realpath` takes a link for a name where its path is longer than the kernel allows. Python has corrected its
        filter, not `realpath`; and Python 3.11 of Debian 12 has no filter at all.
        """
        trusting: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
        tree = os.path.realpath(self.world.tree)
        with tarfile.open(fileobj=io.BytesIO(self.archive)) as tar:
            for member in tar:
                place = os.path.join(tree, os.path.dirname(member.name) if member.issym() else "")
                targets = [os.path.join(place, member.linkname)] if member.issym() or member.islnk() else []
                ways = map(os.path.realpath, (os.path.join(tree, member.name), *targets))
                if all(os.path.commonpath([tree, way]) == tree for way in ways):
                    with suppress(OSError):
                        tar.extract(member, tree, **trusting)
        return self.world

    def extract_layer(self) -> World:
        """Obey whiteouts by joining names, as a simple program would."""
        with tarfile.open(fileobj=io.BytesIO(self.archive)) as tar:
            for member in tar:
                directory, name = os.path.split(os.path.join(self.world.tree, member.name))
                if name == ".wh..wh..opq":
                    for child in os.listdir(directory):
                        remove(os.path.join(directory, child))
                elif name.startswith(".wh."):
                    remove(os.path.join(directory, name.removeprefix(".wh.")))
                else:
                    tar.extract(member, self.world.tree)
        return self.world

    def members(self) -> list[tarfile.TarInfo]:
        """Return what the archive has, read by Python as far as it comes."""
        found = []
        with suppress(tarfile.TarError, OverflowError), tarfile.open(fileobj=io.BytesIO(self.archive)) as tar:
            while (member := tar.next()) is not None:
                found.append(member)
        return found

    def first(self) -> tarfile.TarInfo:
        """Return the first entry, without reading on."""
        with tarfile.open(fileobj=io.BytesIO(self.archive)) as tar:
            member = tar.next()
        assert member is not None
        return member

    def names(self) -> list[str]:
        """Return the names in the archive, read by Python."""
        return [member.name for member in self.members()]

    def names_by_tar(self) -> list[str]:
        """Return the names in the archive, read by GNU tar."""
        command = ["tar", "--quoting-style=literal", "-tf", "-"]
        listed = subprocess.run(command, input=self.archive, capture_output=True, check=False)
        return listed.stdout.decode().splitlines()


def remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


@dataclass(frozen=True)
class Hostile:
    """One archive: what it does to somebody who trusts it, and what becomes of it here.

    `refused` is the error, or None where the archive is unpacked and `harmless` says how the tree must then be.
    """

    name: str
    make: Callable[[World], bytes]
    harm: Callable[[Naive], bool]
    refused: type[RootfsError] | None
    harmless: Callable[[Path], bool] = lambda tree: True
    whiteouts: bool = False
    bounds: Bounds = USUAL


def fixed(*parts: bytes) -> Callable[[World], bytes]:
    """Return what makes an archive of these blocks, wherever it is unpacked."""
    return lambda world: b"".join(parts) + END


def plants(naive: Naive) -> bool:
    """Whether something was written outside."""
    return naive.extract().planted.exists()


def overwrites(naive: Naive) -> bool:
    """Whether the victim was written to."""
    return naive.extract().victim.read_text() != PRECIOUS


def is_in_tree(check: Callable[[Path], bool]) -> Callable[[Naive], bool]:
    """Whether the tree has what no tree should have."""
    return lambda naive: check(naive.extract().tree)


def has(check: Callable[[tarfile.TarInfo], bool]) -> Callable[[Naive], bool]:
    """Whether the archive really has such an entry."""
    return lambda naive: any(map(check, naive.members()))


def readers_disagree(naive: Naive) -> bool:
    """Whether two readers find different names in it, so that what one checks the other does not write."""
    return naive.names() != naive.names_by_tar()


def smuggles(naive: Naive) -> bool:
    """Whether what is the content of a file for one reader is an entry for another."""
    return "smuggled" in naive.names()


def removes_outside(naive: Naive) -> bool:
    """Whether a whiteout removed what is not in the tree, or the tree itself."""
    world = naive.world
    before = world.surroundings()
    naive.extract_layer()
    return world.surroundings() != before or not world.tree.exists()
