# SPDX-License-Identifier: Apache-2.0
"""Trees and files by descriptors: no path leads out, contents are compared, writers are noticed, streams stay free."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.host import dirfd
from unspill.host.dirfd import (
    CHUNK,
    OPEN_AT_MOST,
    Beneath,
    find_inside,
    has_writers,
    have_same_content,
    is_one_mount,
    open_beneath,
    open_stepwise,
    resolve_inside,
)
from unspill.host.libc import openat2

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


RESOLVE_IN_ROOT = 0x10
TREE_LINKS = {
    "sh": "/bin/busybox",
    "relative": "bin/busybox",
    "chain": "sh",
    "climbing": "../../../bin/busybox",
    "out": "/../../etc/../bin/busybox",
    "usr": "/opt",
    "gone": "/bin/nothing",
    "circle": "circle",
    "host": "/etc/passwd",
    "through": "/usr/deep/../deep/program",
}
TREE_CASES = {
    b"bin/busybox": b"bin/busybox",
    b"/bin/busybox": b"bin/busybox",
    b"//bin/./busybox": b"bin/busybox",
    b"sh": b"bin/busybox",
    b"relative": b"bin/busybox",
    b"chain": b"bin/busybox",
    b"climbing": b"bin/busybox",
    b"out": b"bin/busybox",
    b"usr/deep/program": b"opt/deep/program",
    b"through": b"opt/deep/program",
    b"../../bin": b"bin",
    b"/": b"",
    b"": b"",
    b"gone": None,
    b"circle": None,
    b"host": None,
    b"etc/passwd": None,
    b"bin/busybox/x": None,
    b"bin/busybox/..": None,
    b"missing/../bin": None,
}


@pytest.fixture
def linked_tree(tmp_path: Path) -> Iterator[int]:
    """An open tree with links of all kinds."""
    for name in ("bin/busybox", "opt/deep/program", "etc/release"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name, target in TREE_LINKS.items():
        (tmp_path / name).symlink_to(target)
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize("path", TREE_CASES)
def test_a_path_leads_where_it_would_if_the_tree_were_the_root(linked_tree: int, path: bytes) -> None:
    assert resolve_inside(linked_tree, path) == TREE_CASES[path]
    assert (find_inside(linked_tree, path) is None) == (TREE_CASES[path] is None)


def test_the_host_would_have_been_found_by_following_the_link(linked_tree: int) -> None:
    assert os.stat("host", dir_fd=linked_tree).st_size > 0
    assert find_inside(linked_tree, b"host") is None


def test_no_descriptor_is_left_open(linked_tree: int) -> None:
    before = os.listdir("/proc/self/fd")
    for path in TREE_CASES:
        resolve_inside(linked_tree, path)
    assert os.listdir("/proc/self/fd") == before


names = st.sampled_from(["a", "b", "c"])
targets = st.lists(st.sampled_from(["a", "b", "c", ".."]), min_size=1, max_size=5).map("/".join)
anywhere = st.tuples(st.sampled_from(["", "/"]), targets).map("".join)
entries = st.dictionaries(st.lists(names, min_size=1, max_size=3).map("/".join), st.none() | anywhere, max_size=10)


@given(entries=entries, path=anywhere)
def test_the_kernel_gives_the_same_answer(entries: dict[str, str | None], path: str) -> None:
    top = tempfile.mkdtemp()
    try:
        for name, target in sorted(entries.items()):
            place = os.path.join(top, name)
            os.makedirs(os.path.dirname(place), exist_ok=True) if _is_free(top, name) else None
            if not _is_free(top, name) or os.path.lexists(place):
                continue
            open(place, "x").close() if target is None else os.symlink(target, place)
        fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
        try:
            assert resolve_inside(fd, path.encode()) == _asked(fd, top, path)
        finally:
            os.close(fd)
    finally:
        shutil.rmtree(top)


def _is_free(top: str, name: str) -> bool:
    """Tell whether nothing but directories is on the way to a name."""
    parts = name.split("/")[:-1]
    above = [os.path.join(top, *parts[: index + 1]) for index in range(len(parts))]
    return not any(os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)) for path in above)


def _asked(fd: int, top: str, path: str) -> bytes | None:
    while True:
        try:
            found = openat2(fd, path.encode(), os.O_PATH, RESOLVE_IN_ROOT)
            break
        except BlockingIOError:
            continue  # something was renamed or mounted, wherever on this machine: the kernel wants to be asked again
        except OSError:
            return None
    try:
        real = os.readlink(f"/proc/self/fd/{found}")
    finally:
        os.close(found)
    return os.path.relpath(real, os.path.realpath(top)).encode().removeprefix(b".")


SIZES = [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK]


def compare(tmp_path: Path, one: bytes, other: bytes) -> bool:
    fds = []
    for name, written in (("one", one), ("other", other)):
        (tmp_path / name).write_bytes(written)
        fds.append(os.open(tmp_path / name, os.O_RDONLY))
    try:
        return have_same_content(fds[0], fds[1], len(one))
    finally:
        for fd in fds:
            os.close(fd)


@pytest.mark.parametrize("size", SIZES)
def test_equal_bytes_are_the_same(tmp_path: Path, size: int) -> None:
    assert compare(tmp_path, b"x" * size, b"x" * size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("at", [0, -1])
def test_one_other_byte_is_found(tmp_path: Path, size: int, at: int) -> None:
    other = bytearray(b"x" * size)
    other[at] = 0
    assert not compare(tmp_path, b"x" * size, bytes(other))


def test_a_file_that_was_shortened_meanwhile_is_another(tmp_path: Path) -> None:
    assert not compare(tmp_path, b"x" * 100, b"x" * 60)


def write_sparse(path: Path, size: int, written: dict[int, bytes]) -> int:
    with open(path, "wb") as file:
        file.truncate(size)
        for at, piece in written.items():
            file.seek(at)
            file.write(piece)
        file.truncate(size)
    return os.open(path, os.O_RDONLY)


PIECES = st.dictionaries(
    st.integers(0, 40).map(lambda step: step * 4096), st.sampled_from([b"\0" * 4096, b"a", b"b" * 5000]), max_size=4
)


@given(one=PIECES, other=PIECES)
def test_sparse_files_are_compared_like_whole_ones(
    tmp_path_factory: pytest.TempPathFactory, one: dict[int, bytes], other: dict[int, bytes]
) -> None:
    place = tmp_path_factory.mktemp("sparse", numbered=True)
    size = 160 * 4096
    fds = [write_sparse(place / "one", size, one), write_sparse(place / "other", size, other)]
    try:
        wanted = os.pread(fds[0], size, 0) == os.pread(fds[1], size, 0)
        assert have_same_content(fds[0], fds[1], size) == wanted
    finally:
        for fd in fds:
            os.close(fd)


def test_nothing_is_read_where_both_files_have_a_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fds = [write_sparse(tmp_path / name, 1 << 40, {1 << 39: b"x"}) for name in ("one", "other")]
    reads: list[int] = []
    pread = os.pread

    def counting(fd: int, size: int, at: int) -> bytes:
        reads.append(at)
        return pread(fd, size, at)

    monkeypatch.setattr("os.pread", counting)
    assert have_same_content(fds[0], fds[1], 1 << 40)
    assert len(reads) <= 8
    for fd in fds:
        os.close(fd)


def ask(path: Path) -> bool | None:
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return has_writers(fd, os.fsencode(path.name))
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [(os.O_RDONLY, False), (os.O_WRONLY, True), (os.O_RDWR, True), (os.O_WRONLY | os.O_APPEND, True)],
)
def test_those_who_write_are_told_from_those_who_read(tmp_path: Path, flags: int, expected: bool) -> None:
    file = tmp_path / "file"
    file.write_text("content\n")
    fd = os.open(file, flags)
    assert ask(file) is expected
    os.close(fd)
    assert ask(file) is False


def test_a_file_that_is_mapped_for_writing_has_a_writer(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content\n")
    with file.open("r+b") as opened:
        mapped = mmap.mmap(opened.fileno(), 0)
    assert ask(file)
    mapped.close()
    assert not ask(file)


def test_another_process_counts_too(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("content\n")
    program = "import sys; file = open(sys.argv[1], 'a'); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, os.fspath(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert ask(file)
        process.communicate()
    assert not ask(file)


def test_nothing_is_known_of_what_is_no_file_of_ours_to_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "closed").touch(mode=0o000)
    for name in ("link", "closed", "missing"):
        assert ask(tmp_path / name) is None
    assert ask(Path("/etc/passwd")) is None


def test_asking_while_others_open_it_hurts_neither(tmp_path: Path) -> None:
    """Who opens a file for writing breaks our lease; by default that would kill this process."""
    file = tmp_path / "file"
    file.write_text("content\n")
    program = "import sys\nfor _ in range(20000): open(sys.argv[1], 'a').close()"
    with subprocess.Popen([sys.executable, "-c", program, os.fspath(file)]) as process:
        answers = set()
        while process.poll() is None:
            answers.add(ask(file))
    assert process.returncode == 0
    assert answers == {True, False}


COMBINATIONS = [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)]
# ctypes is loaded first because libffi 3.8 opens a file as it is loaded, and keeps it: that is not ours
MAKE = """
import ctypes, os, sys
for number in {closed}:
    os.close(number)
from unspill.host.job import memory_file
from unspill.host.dirfd import above_standard, make_pair, make_pipe
from unspill.runner.watch import RunPipes
kept = [*make_pair(), *make_pair()]
pipes = RunPipes(has_stdin=False)
numbers = [sock.fileno() for sock in kept]
numbers += [*make_pipe(), memory_file(b"x"), above_standard(os.open("/dev/null", os.O_RDONLY))]
numbers += [pipes.stdout, pipes.stderr, *pipes.theirs]
left = []
for number in {closed}:
    try:
        os.fstat(number)
    except OSError:
        left.append(number)
kept[0].send(b"word")
is_right = min(numbers) > 2 and left == {closed} and kept[1].recv(8) == b"word"
is_right = is_right and not any(os.get_inheritable(number) for number in numbers)
os._exit(0 if is_right else 1)
"""
OCCUPY = """
import ctypes, os
for number in {closed}:
    os.close(number)
from unspill.host.dirfd import occupy_standard
before = {{n: os.fstat(n).st_ino for n in range(3) if n not in {closed}}}
occupy_standard()
null = os.stat("/dev/null").st_rdev
is_right = all(os.fstat(n).st_rdev == null for n in {closed})
is_right = is_right and before == {{n: os.fstat(n).st_ino for n in before}}
os._exit(0 if is_right else 1)
"""


@pytest.mark.parametrize("closed", COMBINATIONS)
@pytest.mark.parametrize("script", [MAKE, OCCUPY], ids=["made", "occupied"])
def test_no_descriptor_takes_the_number_of_a_closed_stream(script: str, closed: tuple[int, ...]) -> None:
    text = script.format(closed=list(closed))
    done = subprocess.run([sys.executable, "-c", text], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
