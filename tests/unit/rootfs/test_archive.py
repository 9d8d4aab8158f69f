# SPDX-License-Identifier: Apache-2.0
"""Archives as a source: what they are called, what speaks for them, and that the bytes checked are the bytes used."""

import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.rootfs.layouts import (
    COMPRESS,
    SHELL,
    Workshop,
    device,
    directory,
    file,
    hard_link,
    sha256,
    symlink,
    tar_of,
    without_shell,
)
from tests.unit.rootfs.serving import Page, Web
from unspill.errors import RootfsError, RootfsUnreachable, RootfsUnsafe, RootfsUnverified
from unspill.model.rootfs import RootfsKey, RootfsSpec
from unspill.rootfs.archive import ArchiveSource, copy_given, label_of, open_given
from unspill.rootfs.download import digest_of
from unspill.rootfs.source import Filled, Resolved, detect_arch
from unspill.rootfs.tar import unpack

ARCHIVE = tar_of(*SHELL, directory("etc"), file("etc/motd", b"hello"), hard_link("etc/again", "etc/motd"))


@pytest.fixture
def shop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path / "shop")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "My Root.tar"
    path.write_bytes(ARCHIVE)
    return path


def wish_for(location: Path | str, **fields: Any) -> RootfsSpec:
    return RootfsSpec(source="archive", location=os.fspath(location), **fields)


def fill(spec: RootfsSpec, shop: Workshop) -> tuple[Resolved, Filled]:
    resolved = ArchiveSource().resolve(spec, shop.means)
    return resolved, ArchiveSource().fill(resolved, os.fsencode(shop.tree), shop.means)


def test_an_archive_on_disk_becomes_a_tree(archive: Path, shop: Workshop) -> None:
    resolved, filled = fill(wish_for(archive, label="mine"), shop)
    assert resolved.key == RootfsKey(source="mine", version=sha256(ARCHIVE)[:12], arch=detect_arch())
    assert without_shell(shop.found()) == {"etc": "/", "etc/motd": "hello", "etc/again": "hello"}
    assert filled.fetched == (("My Root.tar", sha256(ARCHIVE)),)
    assert os.listdir(shop.top / "scratch") == []
    assert shop.reported


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {**COMPRESS, "xz": lzma.compress}


@pytest.mark.parametrize("compress", COMPRESSIONS.values(), ids=COMPRESSIONS)
def test_the_archive_may_be_compressed(compress: Callable[[bytes], bytes], archive: Path, shop: Workshop) -> None:
    archive.write_bytes(compress(ARCHIVE))
    fill(wish_for(archive), shop)
    assert shop.found()["etc/motd"] == "hello"


def test_only_a_pinned_digest_is_a_proof(archive: Path, shop: Workshop, tmp_path: Path) -> None:
    _, filled = fill(wish_for(archive), shop)
    assert filled.proof == "none"
    _, filled = fill(wish_for(archive, sha256=sha256(ARCHIVE)), Workshop(tmp_path / "second"))
    assert filled.proof == "pinned"


def test_an_archive_by_https_is_not_proven_by_that(safe_web: Web, shop: Workshop, tmp_path: Path) -> None:
    safe_web.pages["/a.tar"] = Page(ARCHIVE)
    resolved, filled = fill(wish_for(safe_web.address("/a.tar")), shop)
    assert (resolved.key.source, filled.proof) == ("a", "none")
    assert safe_web.count("/a.tar") == 1
    pinned = wish_for(safe_web.address("/a.tar"), sha256=sha256(ARCHIVE))
    assert fill(pinned, Workshop(tmp_path / "second"))[1].proof == "pinned"


@pytest.mark.parametrize("where", ["disk", "web"])
def test_an_archive_that_is_not_the_pinned_one_is_refused(
    where: str, archive: Path, web: Web, shop: Workshop, tmp_path: Path
) -> None:
    flipped = ARCHIVE.replace(b"hello", b"jello")
    archive.write_bytes(flipped)
    web.pages["/a.tar"] = Page(flipped)
    location = archive if where == "disk" else web.address("/a.tar")
    with pytest.raises(RootfsUnverified) as caught:
        fill(wish_for(location, sha256=sha256(ARCHIVE)), shop)
    assert sha256(ARCHIVE) in caught.value.message
    assert sha256(flipped) in caught.value.message
    assert shop.found() == {}
    # Control: without a pin the same archive is taken
    fill(wish_for(location), Workshop(tmp_path / "second"))


def test_an_archive_that_is_swapped_after_it_was_resolved_is_refused(archive: Path, shop: Workshop) -> None:
    resolved = ArchiveSource().resolve(wish_for(archive), shop.means)
    archive.write_bytes(ARCHIVE.replace(b"hello", b"jello"))
    with pytest.raises(RootfsUnverified):
        ArchiveSource().fill(resolved, os.fsencode(shop.tree), shop.means)
    assert shop.found() == {}


def test_an_archive_that_is_rewritten_after_it_was_hashed_changes_nothing(archive: Path, shop: Workshop) -> None:
    fd = open_given(os.fsencode(archive))
    copy = copy_given(fd, shop.means.scratch, shop.means.report)
    assert copy.digest == digest_of(fd) == sha256(ARCHIVE)
    with archive.open("r+b") as opened:
        opened.write(ARCHIVE.replace(b"hello", b"jello"))
    unpack(copy.fd, os.fsencode(shop.tree))
    assert shop.found()["etc/motd"] == "hello"
    # Control: the very file that had the digest a moment ago
    second = Workshop(shop.top / "second")
    unpack(fd, os.fsencode(second.tree))
    assert second.found()["etc/motd"] == "jello"
    for used in (fd, copy.fd):
        os.close(used)


NO_ROOTFS = {
    "nothing": tar_of(),
    "no shell": tar_of(directory("bin"), file("bin/bash", mode=0o755)),
    "a single directory around it": tar_of(
        directory("rootfs"), directory("rootfs/bin"), file("rootfs/bin/sh", mode=0o755)
    ),
    "a link to nothing": tar_of(directory("bin"), symlink("bin/sh", "/bin/missing")),
    "a link to the host's shell": tar_of(directory("usr"), symlink("sh", "/bin/sh"), symlink("bin", "/usr/bin")),
    "links in a circle": tar_of(directory("bin"), symlink("bin/sh", "dash"), symlink("bin/dash", "sh")),
    "a directory": tar_of(directory("bin"), directory("bin/sh")),
    "not executable": tar_of(directory("bin"), file("bin/sh")),
}


@pytest.mark.parametrize("content", NO_ROOTFS.values(), ids=NO_ROOTFS)
def test_what_has_no_shell_is_no_root_file_system(content: bytes, archive: Path, shop: Workshop) -> None:
    archive.write_bytes(content)
    with pytest.raises(RootfsError, match="not a root file system"):
        fill(wish_for(archive), shop)


def test_what_could_do_harm_is_left_out_and_counted(archive: Path, shop: Workshop) -> None:
    archive.write_bytes(tar_of(*SHELL, file("su", mode=0o4755), directory("dev"), device("dev/null")))
    _, filled = fill(wish_for(archive), shop)
    assert filled.left_out == (("device", 1), ("setuid", 1))


def test_an_archive_that_leads_out_is_refused(archive: Path, shop: Workshop) -> None:
    archive.write_bytes(tar_of(*SHELL, file("../../out", b"x")))
    with pytest.raises(RootfsUnsafe):
        fill(wish_for(archive), shop)
    assert not (shop.top / "out").exists()


ZIP = b"PK\x03\x04" + b"zip" * 1000
NO_TAR = {"text": b"root:x:0:0\n" * 100, "zip": ZIP, "compressed text": gzip.compress(b"no tar" * 1000, mtime=0)}


@pytest.mark.parametrize("content", NO_TAR.values(), ids=NO_TAR)
def test_what_is_no_tar_is_called_so(content: bytes, archive: Path, shop: Workshop) -> None:
    archive.write_bytes(content)
    with pytest.raises(RootfsUnverified, match="the archive is not a tar") as caught:
        fill(wish_for(archive), shop)
    assert caught.value.remedy.startswith("Use a tar file, plain or compressed")


def test_a_damaged_header_further_on_is_damage(archive: Path, shop: Workshop) -> None:
    flipped = ARCHIVE.replace(b"etc/motd", b"etc/mutd", 1)
    assert flipped != ARCHIVE
    archive.write_bytes(flipped)
    with pytest.raises(RootfsUnverified, match="checksum of a header is wrong"):
        fill(wish_for(archive), shop)


@pytest.mark.parametrize("mark", ["oci-layout", "manifest.json"])
def test_an_oci_layout_is_recognised_and_the_remedy_names_its_option(mark: str, archive: Path, shop: Workshop) -> None:
    archive.write_bytes(tar_of(directory("blobs"), file(mark, b"{}")))
    with pytest.raises(RootfsError, match="not a root file system") as caught:
        fill(wish_for(archive), shop)
    assert "--oci" in caught.value.remedy


DAMAGED = {
    "cut short": gzip.compress(ARCHIVE, mtime=0)[:-20],
    "flipped": gzip.compress(ARCHIVE, mtime=0)[:-6] + b"\0\0\0\0\0\0",
    "no archive": b"hello" * 1000,
    "empty": b"",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_archive_is_refused(content: bytes, archive: Path, shop: Workshop) -> None:
    archive.write_bytes(content)
    with pytest.raises(RootfsUnverified):
        fill(wish_for(archive), shop)


@pytest.mark.parametrize("kind", ["missing", "directory", "pipe", "device", "forbidden"])
def test_what_is_no_readable_file_is_told_at_once(kind: str, tmp_path: Path, shop: Workshop) -> None:
    path = tmp_path / "thing"
    match kind:
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = Path("/dev/zero")
        case "forbidden":
            path.write_bytes(ARCHIVE)
            path.chmod(0)
    with pytest.raises(RootfsUnreachable, match="can't be read"):
        fill(wish_for(path), shop)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://example.org/a.tar", "https://a:b@example.org/a.tar"])
def test_an_address_that_is_not_allowed_is_refused(location: str, shop: Workshop) -> None:
    with pytest.raises(RootfsError):
        fill(wish_for(location), shop)


def test_an_architecture_can_be_named(archive: Path, shop: Workshop) -> None:
    assert ArchiveSource().resolve(wish_for(archive, arch="arm64"), shop.means).key.arch == "aarch64"
    with pytest.raises(RootfsError, match="not supported"):
        ArchiveSource().resolve(wish_for(archive, arch="vax"), shop.means)


@pytest.mark.parametrize(
    ("location", "label"),
    [
        ("/a/debian-12.tar.gz", "a_debian_12"),
        ("/a/My Root.tar", "my_root"),
        ("https://example.org/dir/alpine.tgz", "a_alpine"),
        ("/a/../x/..", "a_"),
        ("/a/layout/", "layout"),
        ("/a/9front.tar.zst", "a_9front"),
        ("/a/ä.tar", "a_"),
        ("/a/box.oci.tar", "box"),
        ("/a/" + "x" * 300, "x" * 32),
    ],
)
def test_what_has_no_label_is_called_by_its_file(location: str, label: str) -> None:
    assert label_of(wish_for(location)) == label.rstrip("_")


@pytest.mark.parametrize("label", ["../x", "A", "a-b", "a/b", ".a", "x" * 33])
def test_a_label_that_is_no_plain_name_is_refused(label: str) -> None:
    with pytest.raises(RootfsError, match="can't be the name of a rootfs"):
        label_of(wish_for("/a.tar", label=label))
