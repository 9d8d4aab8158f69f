# SPDX-License-Identifier: Apache-2.0
"""Where Debian's packages come from: a directory of them, archives that were tampered with, and none at all.

The directory is laid out from packages that were fetched, with Debian's own signed lists; apt checks it for real.
"""

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kernel.debian_roots import SPEC, Workshop, means_below
from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnverified
from unspill.model.rootfs import RootfsSpec
from unspill.rootfs.debian import Build, DebianSource, packages_of
from unspill.rootfs.source import DEBIAN_NAMES, detect_arch
from unspill.rootfs.tar import unpack

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(600)]

ARCH = DEBIAN_NAMES[detect_arch()]
PACKAGES = packages_of(SPEC.tier, SPEC.packages)
SUITES = ("bookworm", "bookworm-updates", "bookworm-security")


@dataclass(frozen=True)
class Directory:
    """An archive in a directory."""

    top: Path

    @property
    def mirror(self) -> str:
        return f"file:{self.top} {' '.join(SUITES)}"

    @property
    def main(self) -> Path:
        return self.top / "dists/bookworm"

    def replace(self, path: Path, content: bytes) -> None:
        """Write a file anew: its old content has other names elsewhere."""
        path.unlink()
        path.write_bytes(content)

    def build(self, top: Path) -> Build:
        return Build(RootfsSpec(source="debian", mirror=self.mirror), ARCH, means_below(top))


@pytest.fixture(scope="module")
def laid_out(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What was fetched for the workshop, as an archive of its own with all suites at one address."""
    top = tmp_path_factory.mktemp("archive")
    kept = top / "kept"
    for ending in ("lists", "packages"):
        (kept / ending).mkdir(parents=True)
        (path,) = workshop.downloads.glob(f"debian-*.{ending}")
        unpack(bytes(path), bytes(kept / ending))
    mirror = top / "mirror"
    for path in (kept / "lists/lists").glob("*_dists_*"):
        if path.is_file():
            to = mirror / "dists" / path.name.rpartition("_dists_")[2].replace("_", "/")
            to.parent.mkdir(parents=True, exist_ok=True)
            path.rename(to)
    lists = "".join(path.read_text() for path in mirror.glob(f"dists/*/main/binary-{ARCH}/Packages"))
    places = {Path(name).name: name for name in re.findall("^Filename: (.*)$", lists, re.MULTILINE)}
    for path in (kept / "packages/archives").glob("*.deb"):
        # In a file's name apt writes the colon of a version so, and an archive leaves that part out
        name = re.sub("_[^_]*%3a", "_", path.name)
        to = mirror / places[name]
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)
    return mirror


@pytest.fixture
def directory(laid_out: Path, tmp_path: Path) -> Directory:
    """An archive for one test, of hard links."""
    shutil.copytree(laid_out, tmp_path / "mirror", copy_function=os.link)
    return Directory(tmp_path / "mirror")


@pytest.fixture
def offline(directory: Directory, monkeypatch: pytest.MonkeyPatch) -> Directory:
    """An archive in a directory; whatever would go to the network is led to where nobody listens."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    return directory


def test_a_directory_of_packages_is_enough_without_a_network(offline: Directory, tmp_path: Path) -> None:
    build = offline.build(tmp_path / "build")
    build.fetch_lists()
    build.fetch_packages(PACKAGES)
    fetched = tmp_path / "fetched"
    fetched.mkdir()
    (path,) = (tmp_path / "build/downloads").glob("debian-*.packages")
    unpack(bytes(path), bytes(fetched))
    assert {"gcc", "git", "python3", "dpkg"} <= {path.name.partition("_")[0] for path in fetched.rglob("*.deb")}


def test_a_rootfs_is_built_from_a_directory_alone(offline: Directory, tmp_path: Path, full: bool) -> None:
    source, means = DebianSource(), means_below(tmp_path / "means")
    spec = RootfsSpec(source="debian", mirror=offline.mirror, packages=SPEC.packages)
    resolved = source.resolve(spec, means)
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
    build = directory.build(tmp_path / "build")
    build.fetch_lists()
    with pytest.raises(RootfsUnverified):
        build.fetch_packages(("bash",))


def test_what_was_fetched_before_something_failed_is_used(directory: Directory, tmp_path: Path) -> None:
    build = directory.build(tmp_path / "build")
    build.fetch_lists()
    (missing,) = directory.top.rglob("git_*.deb")
    missing.rename(tmp_path / "git.deb")
    with pytest.raises(RootfsUnreachable):
        build.fetch_packages(("git",))
    # The others are not there any more
    for package in directory.top.rglob("*.deb"):
        package.unlink()
    (tmp_path / "git.deb").rename(missing)
    build.fetch_packages(("git",))


@pytest.mark.parametrize("name", ["InRelease", "main/binary-{arch}/Packages"])
def test_a_list_with_one_changed_word_is_refused(directory: Directory, tmp_path: Path, name: str) -> None:
    path = directory.main / name.format(arch=ARCH)
    directory.replace(path, path.read_bytes().replace(b"Debian", b"debian", 1))
    with pytest.raises(RootfsUnverified):
        directory.build(tmp_path / "build").fetch_lists()


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
    with pytest.raises(RootfsUnverified, match="not signed"):
        directory.build(tmp_path / "build").fetch_lists()
    argv = ["mmdebstrap", "--mode=unshare", "--variant=extract", "--format=null", f"--architectures={ARCH}"]
    argv += ['--aptopt=APT::Sandbox::User "root"', "--skip=check/signed-by", "bookworm", "-"]
    enter = ["unshare", "--user", "--map-root-user", "--map-auto", "--"]
    argv = [*enter, *argv, f"deb [trusted=yes] copy:{directory.top} bookworm main"]
    environ = {"PATH": "/usr/sbin:/usr/bin:/bin", "TMPDIR": os.fspath(tmp_path), "LANG": "C.UTF-8"}
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_package_that_does_not_exist_is_told(directory: Directory, tmp_path: Path) -> None:
    build = directory.build(tmp_path / "build")
    build.fetch_lists()
    # apt would take the second for a pattern that many packages match
    for name in ("no-such-package", "bas.h"):
        with pytest.raises(RootfsError, match="not in this suite"):
            build.fetch_packages(("bash", name))


def test_a_suite_that_does_not_exist_is_told(directory: Directory, tmp_path: Path) -> None:
    shutil.rmtree(directory.main)
    with pytest.raises(RootfsUnreachable, match="does not have this suite"):
        directory.build(tmp_path / "build").fetch_lists()


def test_an_archive_that_nobody_serves_is_unreachable(tmp_path: Path) -> None:
    spec = RootfsSpec(source="debian", mirror="http://127.0.0.1:9/debian")
    with pytest.raises(RootfsUnreachable, match="can't be reached") as error:
        DebianSource().resolve(spec, means_below(tmp_path))
    assert "file:/" in error.value.remedy
