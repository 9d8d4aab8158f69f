# SPDX-License-Identifier: Apache-2.0
"""A tree by descriptors: what lies beneath its root is found however deep it is, and nothing else ever is.

The case table is asked of both ways to open, the kernel's openat2 and the one that goes name by name.
"""

import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from unspill.host import dirfd
from unspill.host.dirfd import OPEN_AT_MOST, Beneath, is_one_mount, open_beneath, open_stepwise

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
LONG = b"n" * 200
DEEP = 45

Open = Callable[[int, bytes, int], int]


def missing(*_arguments: object) -> int:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


@pytest.fixture(params=["openat2", "stepwise, openat2 taken away"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways, behind the same functions."""
    if request.param != "openat2":
        monkeypatch.setattr(dirfd, "openat2", missing)
    return str(request.param)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Beneath]:
    """A tree of a few entries, one of each kind, and something outside that links lead to."""
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (tmp_path / "outside" / "b").mkdir(parents=True)
    (root / "a" / "file").write_text("content\n")
    (root / "a" / "inner").symlink_to("b")
    (root / "a" / "outer").symlink_to(tmp_path / "outside")
    (root / "to-a").symlink_to("a")
    (root / "proc").symlink_to("/proc/self/root")
    os.mkfifo(root / "a" / "fifo")
    (root / "closed").mkdir(mode=0o000)
    with Beneath(os.open(root, DIRECTORY)) as made:
        yield made
    (root / "closed").chmod(0o700)


# What opening a directory by each path comes to: the inode of that directory, or an error
CASES: dict[bytes, str | int] = {
    b"a": "a",
    b"a/b": "a/b",
    b"missing": errno.ENOENT,
    b"a/missing": errno.ENOENT,
    b"missing/b": errno.ENOENT,
    b"a/file": errno.ENOTDIR,
    b"a/file/b": errno.ENOTDIR,
    b"a/fifo": errno.ENOTDIR,
    b"a/inner": errno.ELOOP,
    b"a/outer": errno.ELOOP,
    b"a/outer/b": errno.ELOOP,
    b"to-a/b": errno.ELOOP,
    b"proc/tmp": errno.ELOOP,
    b"closed": errno.EACCES,
    b"..": errno.EXDEV,
    b"/": errno.EXDEV,
    b"/tmp": errno.EXDEV,
    b"../outside": errno.EXDEV,
}
# A link at the end is refused by either way, in the word that the kernel has for the flags of that way
LINKS = frozenset((errno.ELOOP, errno.ENOTDIR))


@pytest.mark.parametrize("open_it", [open_beneath, open_stepwise])
@pytest.mark.parametrize("path", CASES)
def test_both_ways_to_open_agree(tree: Beneath, open_it: Open, path: bytes) -> None:
    expected = CASES[path]
    if isinstance(expected, int):
        with pytest.raises(OSError, match=r".") as raised:
            open_it(tree.root_fd, path, DIRECTORY)
        assert raised.value.errno == expected or {raised.value.errno, expected} <= LINKS
        return
    fd = open_it(tree.root_fd, path, DIRECTORY)
    found = os.fstat(fd).st_ino
    os.close(fd)
    assert found == os.stat(expected, dir_fd=tree.root_fd).st_ino


@pytest.mark.parametrize("path", [b"a/../a", b"a/./b", b"a//b", b"", b"a/", b"a/.."])
def test_going_name_by_name_takes_no_path_that_is_not_plain(tree: Beneath, path: bytes) -> None:
    """The kernel resolves some of these within the root; nobody asks for them."""
    with pytest.raises(OSError, match="not beneath the root"):
        open_stepwise(tree.root_fd, path, DIRECTORY)


@pytest.mark.parametrize("path", [b"a/../..", b"a/b/../../../outside", b"a/outer/..", b"/", b"//", b"proc"])
def test_no_path_leads_out(tree: Beneath, way: str, path: bytes) -> None:
    with pytest.raises(OSError, match=r".") as raised:
        tree.directory(path)
    assert raised.value.errno in (errno.EXDEV, errno.ELOOP, errno.ENOTDIR)


def test_opening_by_name_alone_leads_out(tree: Beneath) -> None:
    """The control arm."""
    for path in (b"a/outer/b", b"../outside/b", b"proc/tmp"):
        os.close(os.open(path, DIRECTORY, dir_fd=tree.root_fd))


def test_failed_openings_leave_no_descriptor_open(tree: Beneath, way: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path, expected in CASES.items():
        if isinstance(expected, int) and path != b"closed":
            with pytest.raises(OSError, match=r"."):
                tree.directory(path)
    assert len(os.listdir("/proc/self/fd")) == before


def dig(tree: Beneath) -> tuple[bytes, int]:
    """Make a chain of directories; return the path of the last one and its inode."""
    fd = os.dup(tree.root_fd)
    for _ in range(DEEP):
        os.mkdir(LONG, dir_fd=fd)
        below = os.open(LONG, DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    inode = os.fstat(fd).st_ino
    os.close(fd)
    return b"/".join([LONG] * DEEP), inode


def fill_up(tree: Beneath, path: bytes) -> None:
    """Remove the chain: it is too deep for those who remove temporary directories by their paths."""
    while path:
        tree.forget(path)
        parent, name = tree.parent(path)
        os.rmdir(name, dir_fd=parent)
        path = path.rpartition(b"/")[0]


def test_paths_longer_than_the_kernel_takes_are_opened(tree: Beneath, way: str) -> None:
    path, wanted = dig(tree)
    assert len(path) > 2 * os.pathconf("/", "PC_PATH_MAX")
    assert os.fstat(tree.directory(path)).st_ino == wanted
    assert tree.find(path + b"/missing") is None
    found = tree.find(path)
    assert found is not None
    assert found.st_ino == wanted
    fill_up(tree, path)


def test_no_descriptor_that_was_closed_is_handed_out(tree: Beneath, way: str) -> None:
    """More directories than stay open, asked for in every order, with failures in between."""
    names = [b"d%d" % number for number in range(OPEN_AT_MOST + 20)]
    inodes = {}
    for name in names:
        os.mkdir(name, dir_fd=tree.root_fd)
        inodes[name] = os.stat(name, dir_fd=tree.root_fd).st_ino
    for order in (names, names[::-1], [*names[::2], *names[::-3]], [names[0], *names[:5]] * 3):
        for name in order:
            assert os.fstat(tree.directory(name)).st_ino == inodes[name]
            with pytest.raises(FileNotFoundError):
                tree.directory(name + b"/missing")
            parent, last = tree.parent(name + b"/entry")
            assert (os.fstat(parent).st_ino, last) == (inodes[name], b"entry")


def test_deep_failures_do_not_close_the_directory_asked_for_last(tree: Beneath, way: str) -> None:
    """The upper parts of a path that is too long stay open even where its end is missing."""
    path, _ = dig(tree)
    wanted = os.stat("a/b", dir_fd=tree.root_fd).st_ino
    for number in range(OPEN_AT_MOST + 2):
        os.mkdir(b"d%d" % number, dir_fd=tree.root_fd)
        assert os.fstat(tree.directory(b"a/b")).st_ino == wanted
        tree.directory(b"d%d" % number)
        with pytest.raises(FileNotFoundError):
            tree.directory(path + b"/missing%d" % number)
        assert os.fstat(tree.parent(b"a/b/c")[0]).st_ino == wanted
    fill_up(tree, path)


def test_what_was_forgotten_is_looked_up_again(tree: Beneath, way: str) -> None:
    old = os.fstat(tree.directory(b"a/b")).st_ino
    os.rename("a", "moved", src_dir_fd=tree.root_fd, dst_dir_fd=tree.root_fd)
    os.mkdir("a", dir_fd=tree.root_fd)
    assert os.fstat(tree.directory(b"a/b")).st_ino == old
    tree.forget(b"a")
    with pytest.raises(FileNotFoundError):
        tree.directory(b"a/b")
    assert tree.find(b"a/b") is None
    assert tree.find(b"moved/b") is not None


def test_closing_closes_everything_and_may_be_repeated(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    (tmp_path / "a").mkdir()
    tree = Beneath(os.open(tmp_path, DIRECTORY))
    tree.directory(b"a")
    tree.close()
    tree.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(OSError, match="Bad file descriptor"):
        tree.directory(b"a")


def test_a_closed_directory_can_still_be_searched_by_its_entries_where_it_may(tree: Beneath, way: str) -> None:
    """Without the right to read it, a directory is opened for look-ups only."""
    os.chmod("closed", 0o700, dir_fd=tree.root_fd)
    os.mkdir("closed/in", dir_fd=tree.root_fd)
    os.chmod("closed", 0o300, dir_fd=tree.root_fd)
    fd = tree.directory(b"closed")
    assert os.stat("in", dir_fd=fd).st_ino
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.listdir(fd)


def test_one_mount_is_told_from_another(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    here, below, elsewhere = (os.open(path, DIRECTORY) for path in (tmp_path, tmp_path / "a", "/proc"))
    assert is_one_mount(here, below)
    assert not is_one_mount(here, elsewhere)
    for fd in (here, below, elsewhere):
        os.close(fd)


MOUNTED = """
import errno, os, sys
from unspill.host import dirfd
from unspill.host.libc import CLONE_NEWNS, CLONE_NEWUSER, MS_PRIVATE, MS_REC, mount, unshare
root, uid, gid = os.fsencode(sys.argv[1]), os.geteuid(), os.getegid()
unshare(CLONE_NEWUSER | CLONE_NEWNS)
for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
    open(f"/proc/self/{name}", "w").write(text)
mount(None, b"/", None, MS_REC | MS_PRIVATE, None)
mount(b"none", root + b"/a/b", b"tmpfs", 0, None)
mount(root + b"/bound", root + b"/c", None, 0x1000, None)
fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
os.mkdir(root + b"/a/b/in")
for open_it in (dirfd.open_beneath, dirfd.open_stepwise):
    for path in (b"a/b", b"a/b/in", b"c", b"c/in"):
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd))
        try:
            open_it(fd, path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            print(errno.errorcode[error.errno], end=" ")
        else:
            print("opened", end=" ")
    os.close(open_it(fd, b"a", os.O_RDONLY | os.O_DIRECTORY))
"""


@pytest.mark.kernel
def test_neither_way_enters_a_mount_of_another_filesystem_or_of_a_directory_of_the_same(tmp_path: Path) -> None:
    """Each is opened by name first: the control arm."""
    for name in ("a/b", "bound/in", "c"):
        (tmp_path / name).mkdir(parents=True)
    command = [sys.executable, "-c", MOUNTED, os.fspath(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.stdout.split() == ["EXDEV"] * 8, done.stderr
