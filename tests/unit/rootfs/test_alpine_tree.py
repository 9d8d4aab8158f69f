# SPDX-License-Identifier: Apache-2.0
"""What is read and written in the tree of an Alpine, whose links may lead anywhere: never outside it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from unspill.errors import RootfsError, RootfsUnsafe, RootfsUnverified
from unspill.rootfs.alpine import (
    TOP,
    check_complete,
    check_release,
    make_top,
    open_tree,
    read_packages,
    write_repositories,
)

ADDRESSES = ("http://example.org/v3.99/main", "http://example.org/v3.99/community")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree, beside a directory of the host."""
    (tmp_path / "host").mkdir()
    made = tmp_path / "tree"
    for name in ("etc/apk", "bin", "usr/bin", "lib/apk/db"):
        (made / name).mkdir(parents=True)
    return made


@pytest.fixture
def fd(tree: Path) -> Iterator[int]:
    """The descriptor of the tree."""
    opened = open_tree(os.fsencode(tree))
    yield opened
    os.close(opened)


def test_the_tree_must_say_that_it_is_the_version(tree: Path, fd: int) -> None:
    with pytest.raises(RootfsUnverified, match="it says that it is ''"):
        check_release(fd, "3.99.1")
    (tree / "etc/alpine-release").write_text("3.99.1\n")
    check_release(fd, "3.99.1")
    with pytest.raises(RootfsUnverified, match=r"should be Alpine 3\.99\.2"):
        check_release(fd, "3.99.2")


def test_a_release_is_not_read_from_the_host(tree: Path, fd: int, tmp_path: Path) -> None:
    (tmp_path / "host/release").write_text("3.99.1\n")
    (tree / "etc/alpine-release").symlink_to(tmp_path / "host/release")
    with pytest.raises(RootfsUnverified):
        check_release(fd, "3.99.1")


def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(tree: Path, fd: int) -> None:
    os.mkfifo(tree / "etc/alpine-release")
    with pytest.raises(RootfsUnverified):
        check_release(fd, "3.99.1")


def test_repositories_are_written_anew(tree: Path, fd: int) -> None:
    (tree / "etc/apk/repositories").write_text("http://other.example.org\n")
    write_repositories(fd, ADDRESSES)
    assert (tree / "etc/apk/repositories").read_text() == "".join(f"{address}\n" for address in ADDRESSES)


def test_repositories_are_not_written_through_a_link(tree: Path, fd: int, tmp_path: Path) -> None:
    victim = tmp_path / "host/victim"
    victim.write_text("untouched")
    (tree / "etc/apk/repositories").symlink_to(victim)
    write_repositories(fd, ADDRESSES)
    assert victim.read_text() == "untouched"
    assert not (tree / "etc/apk/repositories").is_symlink()


@pytest.mark.parametrize("link", ["etc", "etc/apk"])
def test_a_directory_that_is_a_link_is_not_written_to(tree: Path, fd: int, tmp_path: Path, link: str) -> None:
    (tree / "etc/apk").rmdir()
    if link == "etc":
        (tree / "etc").rmdir()
    (tree / link).symlink_to(tmp_path / "host")
    with pytest.raises(RootfsUnsafe):
        write_repositories(fd, ADDRESSES)
    assert list((tmp_path / "host").iterdir()) == []


def test_a_directory_in_the_place_of_the_repositories_is_refused(tree: Path, fd: int) -> None:
    (tree / "etc/apk/repositories").mkdir()
    with pytest.raises(RootfsUnsafe):
        write_repositories(fd, ADDRESSES)


def test_the_usual_directories_are_made_and_links_among_them_are_kept(tree: Path, fd: int) -> None:
    (tree / "sbin").symlink_to("usr/bin")
    make_top(fd)
    assert set(map(os.fsencode, os.listdir(tree))) == set(TOP)
    assert (tree / "sbin").is_symlink()


def test_a_file_in_the_place_of_a_usual_directory_is_refused(tree: Path, fd: int) -> None:
    (tree / "var").write_text("")
    with pytest.raises(RootfsUnsafe, match="/var"):
        make_top(fd)


DATABASE = "C:Q1x\nP:bash\nV:5.2-r0\nF:bin\nR:bash\n\nP:a b\nV:1\n\nP:evil\nV:1\x1b[0m\n\nP:musl\nV:1.2-r0\n\n"


@pytest.mark.parametrize("place", ["lib/apk/db", "usr/lib/apk/db"])
def test_packages_are_read_from_apks_own_record(tree: Path, fd: int, place: str) -> None:
    (tree / place).mkdir(parents=True, exist_ok=True)
    (tree / place / "installed").write_text(DATABASE)
    assert read_packages(fd) == (("bash", "5.2-r0"), ("musl", "1.2-r0"))


def test_packages_are_not_read_from_the_host(tree: Path, fd: int, tmp_path: Path) -> None:
    (tmp_path / "host/installed").write_text(DATABASE)
    (tree / "lib/apk/db/installed").symlink_to(tmp_path / "host/installed")
    with pytest.raises(RootfsError, match="can't read the installed packages"):
        read_packages(fd)


def test_programs_are_found_behind_absolute_links_of_the_tree(tree: Path, fd: int) -> None:
    for name in ("bin/busybox", "bin/bash", "usr/bin/python3.99"):
        (tree / name).touch(0o755)
    (tree / "bin/sh").symlink_to("/bin/busybox")
    (tree / "usr/bin/python3").symlink_to("python3.99")
    check_complete(fd)
    (tree / "bin/busybox").unlink()
    with pytest.raises(RootfsError, match="There is no /bin/sh"):
        check_complete(fd)


def test_a_program_of_the_host_is_none_of_the_tree(tree: Path, fd: int, tmp_path: Path) -> None:
    host = tmp_path / "host/sh"
    host.touch(0o755)
    for name in ("bin/sh", "bin/bash", "usr/bin/python3"):
        (tree / name).symlink_to(host)
    assert (tree / "bin/sh").exists()
    with pytest.raises(RootfsError, match="There is no /bin/sh"):
        check_complete(fd)
