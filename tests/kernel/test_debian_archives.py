# SPDX-License-Identifier: Apache-2.0
"""Where Debian's packages come from: a directory of them, archives that were tampered with, and none at all.

The directory is laid out from packages that were fetched, with Debian's own signed lists; apt checks it for real.
"""

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kernel.debian_roots import TOP, WISH, Workshop, ignore, means_below
from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnverified
from unspill.model.rootfs import RootfsWish
from unspill.rootfs.arch import DEBIAN_NAMES, detect_arch
from unspill.rootfs.debian import DebianSource
from unspill.rootfs.debian_apt import Apt
from unspill.rootfs.debian_mirror import lay_mirror
from unspill.rootfs.debian_names import archives_of, packages_of
from unspill.rootfs.debian_sources import default_archives

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(600)]

ARCH = DEBIAN_NAMES[detect_arch()]
PACKAGES = packages_of(WISH.tier, WISH.packages)


@dataclass(frozen=True)
class Directory:
    """An archive in a directory."""

    top: Path

    @property
    def mirror(self) -> str:
        return f"file:{self.top}/0 bookworm bookworm-updates file:{self.top}/1 bookworm-security"

    @property
    def main(self) -> Path:
        return self.top / "0/dists/bookworm"

    def replace(self, path: Path, content: bytes) -> None:
        """Write a file anew: its old content has other names elsewhere."""
        path.unlink()
        path.write_bytes(content)


@pytest.fixture(scope="module")
def laid_out(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was fetched for the workshop, as an archive of its own."""
    top = tmp_path_factory.mktemp("archive") / "mirror"
    kept = next(path for path in workshop.downloads.iterdir() if path.name.startswith("debian-"))
    with Apt(bytes(kept), "bookworm", ARCH, default_archives("bookworm"), ignore) as apt:
        apt.update()
        lay_mirror(bytes(top), apt, ARCH, apt.fetch(PACKAGES))
    return top


@pytest.fixture
def directory(laid_out: Path, tmp_path: Path) -> Directory:
    """An archive for one test, of hard links."""
    shutil.copytree(laid_out, tmp_path / "mirror", copy_function=os.link)
    return Directory(tmp_path / "mirror")


def apt_for(directory: Directory, top: Path) -> Apt:
    top.mkdir()
    return Apt(bytes(top), "bookworm", ARCH, archives_of(directory.mirror, "bookworm"), ignore)


@pytest.fixture
def offline(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> Directory:
    """An archive in a directory; whatever would go to the network is led to where nobody listens."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    return directory


def test_a_directory_of_packages_is_enough_without_a_network(offline: Directory, tmp_path: Path) -> None:
    with apt_for(offline, tmp_path / "apt") as apt:
        apt.update()
        names = {deb.name for deb in apt.fetch(PACKAGES)}
    assert {"gcc", "git", "python3", "dpkg"} <= names


def test_a_rootfs_is_built_from_a_directory_alone(offline: Directory, tmp_path: Path, full: bool) -> None:
    source, means = DebianSource(), means_below(tmp_path / "means")
    wish = RootfsWish(source="debian", mirror=offline.mirror, packages=WISH.packages)
    resolved = source.resolve(wish, means)
    assert resolved.proof == "signed"
    assert resolved.key.name.startswith("debian-bookworm.2")
    if full:
        tree = tmp_path / "tree"
        tree.mkdir()
        filled = source.fill(resolved, bytes(tree), means)
        assert dict(filled.packages)["git"]
        assert os.fspath(offline.top) not in (tree / "etc/apt/sources.list").read_text()


def test_a_package_with_one_flipped_byte_is_refused(directory: Directory, tmp_path: Path) -> None:
    (package,) = directory.top.rglob("bash_*.deb")
    content = bytearray(package.read_bytes())
    content[len(content) // 2] ^= 1
    directory.replace(package, bytes(content))
    with apt_for(directory, tmp_path / "apt") as apt:
        apt.update()
        with pytest.raises(RootfsUnverified):
            apt.fetch(("bash",))


@pytest.mark.parametrize("name", ["InRelease", "main/binary-{arch}/Packages"])
def test_a_list_with_one_changed_word_is_refused(directory: Directory, tmp_path: Path, name: str) -> None:
    path = directory.main / name.format(arch=ARCH)
    directory.replace(path, path.read_bytes().replace(b"Debian", b"debian", 1))
    with apt_for(directory, tmp_path / "apt") as apt, pytest.raises(RootfsUnverified):
        apt.update()


def test_an_archive_without_a_signature_is_refused_though_all_its_digests_are_right(
    directory: Directory, tmp_path: Path
) -> None:
    """The control arm is apt that was told to trust it."""
    index = directory.main / f"main/binary-{ARCH}/Packages"
    content = index.read_bytes().replace(b"Maintainer: ", b"Maintainer: nobody ", 1)
    directory.replace(index, content)
    (directory.main / "InRelease").unlink()
    digest = hashlib.sha256(content).hexdigest()
    release = (
        f"Suite: stable\nCodename: bookworm\nArchitectures: {ARCH}\nComponents: main\n"
        f"Date: Sat, 14 Nov 2026 00:00:00 UTC\nSHA256:\n {digest} {len(content)} main/binary-{ARCH}/Packages\n"
    )
    (directory.main / "Release").write_text(release)
    with apt_for(directory, tmp_path / "apt") as apt:
        with pytest.raises(RootfsUnverified, match="not signed"):
            apt.update()
        trusting = tmp_path / "apt/etc/sources.list"
        trusting.write_text(f"deb [trusted=yes] copy:{directory.top}/0 bookworm main\n")
        environ = {"PATH": "/usr/bin:/bin", "APT_CONFIG": os.fspath(tmp_path / "apt/etc/apt.conf"), "LANG": "C.UTF-8"}
        options = ["-o", "Acquire::AllowInsecureRepositories=true", "-o", "Acquire::AllowWeakRepositories=true"]
        done = subprocess.run(["apt-get", *options, "update"], env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_a_package_that_does_not_exist_is_told(directory: Directory, tmp_path: Path) -> None:
    with apt_for(directory, tmp_path / "apt") as apt:
        apt.update()
        with pytest.raises(RootfsError, match="not in this suite"):
            apt.fetch(("bash", "no-such-package"))
        # apt would take this one for a pattern that many packages match
        with pytest.raises(RootfsError, match="not in this suite"):
            apt.fetch(("bas.h",))


def test_a_suite_that_does_not_exist_is_told(directory: Directory, tmp_path: Path) -> None:
    shutil.rmtree(directory.main)
    with (
        apt_for(directory, tmp_path / "apt") as apt,
        pytest.raises(RootfsUnreachable, match="does not have this suite"),
    ):
        apt.update()


def test_what_apt_does_to_its_lists_does_not_reach_a_build_under_way(directory: Directory) -> None:
    """While it works, apt takes others' right to read its lists away: from that very file, whatever its names are."""
    for path in directory.top.glob("*/dists/*/InRelease"):
        assert path.stat().st_mode & 0o444 == 0o444
    lists = next(TOP.glob("rootfs/downloads/debian-*/lists"))
    kept = {(path.stat().st_dev, path.stat().st_ino) for path in lists.iterdir()}
    laid = {(path.stat().st_dev, path.stat().st_ino) for path in directory.top.rglob("*") if "dists" in path.parts}
    assert not kept & laid


def test_an_archive_that_nobody_serves_is_unreachable(tmp_path: Path) -> None:
    wish = RootfsWish(source="debian", mirror="http://127.0.0.1:9/debian")
    with pytest.raises(RootfsUnreachable, match="can't be reached") as error:
        DebianSource().resolve(wish, means_below(tmp_path))
    assert "file:/" in error.value.remedy
