# SPDX-License-Identifier: Apache-2.0
"""A flat copy shows what an overlay would show, and making it changes nothing else."""

import fcntl
import os
import resource
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support import MOUNTS
from unspill.errors import SandboxUnavailable, UsageError
from unspill.layers.trees import flatten, remove_tree

# Where each filesystem of the tests is; None stands for pytest's temporary directory.
FILESYSTEMS: Final = {
    "ext4": None,
    "xfs": MOUNTS / "xfs/work",
    "btrfs": MOUNTS / "btrfs/work",
}
HOSTILE: Final = [b"line\nbreak", b"\xff\xfe", b"-rf", b" spaces ", b"a:b,c\\d", b"x" * 255, b"\x1b[2J", b"..."]

WHITEOUT: Final = "whiteout"


def build(root: Path, entries: dict[str, str | None]) -> None:
    """Make files with a text, and directories, which have None or end with a slash. Parents come by themselves."""
    for path, text in entries.items():
        at = root / path
        if text is None:
            at.mkdir(parents=True, exist_ok=True)
        elif text == WHITEOUT:
            at.parent.mkdir(parents=True, exist_ok=True)
            os.mknod(at, stat.S_IFCHR, 0)
        else:
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_text(text)


def form(layer: Path) -> dict[str, str]:
    """Say what each entry of a layer is: a whiteout, an opaque or plain directory, a link, a file and its text."""
    found: dict[str, str] = {}
    for here, names, others in os.walk(layer):
        for name in (*names, *others):
            path = Path(here, name)
            found[str(path.relative_to(layer))] = _word(path)
    return found


def _word(path: Path) -> str:
    status = path.lstat()
    match stat.S_IFMT(status.st_mode):
        case stat.S_IFCHR:
            return WHITEOUT if status.st_rdev == 0 and stat.S_IMODE(status.st_mode) == 0 else "device"
        case stat.S_IFDIR:
            is_opaque = "user.overlay.opaque" in os.listxattr(path)
            return "opaque" if is_opaque else "dir"
        case stat.S_IFLNK:
            return f"-> {os.readlink(path)}"
        case stat.S_IFREG:
            return path.read_text()
        case _:
            return "special"


def traces(root: Path) -> dict[bytes, tuple[int, ...]]:
    """Return all about a tree that any write, even one that changes nothing, would leave a trace in."""
    found: dict[bytes, tuple[int, ...]] = {}
    for here, names, others in os.walk(bytes(root)):
        for name in (b".", *names, *others):
            status = os.lstat(os.path.join(here, name))
            found[os.path.join(here, name)] = (
                status.st_ino, status.st_mode, status.st_nlink, status.st_size, status.st_mtime_ns, status.st_ctime_ns,
            )  # fmt: skip
    return found


class Stand:
    """A live tree, sealed layers and a place for the copy."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.live = base / "live"
        self.copy = base / "copy"
        self.sealed: list[Path] = []
        for path in (self.live, self.copy):
            path.mkdir(parents=True)

    def seal(self, entries: dict[str, str | None], *, opaque: tuple[str, ...] = ()) -> Path:
        layer = self.base / f"sealed{len(self.sealed)}"
        layer.mkdir()
        build(layer, entries)
        for path in opaque:
            os.setxattr(layer / path, "user.overlay.opaque", b"y")
        self.sealed.append(layer)
        return layer

    def flatten(self) -> int:
        return flatten(bytes(self.live), [bytes(layer) for layer in self.sealed], bytes(self.copy))


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    yield Stand(tmp_path / "stand")
    # What is nested deeper than the interpreter can recurse, or closed to it, is too much for pytest to remove.
    remove_tree(bytes(tmp_path / "stand"))


@pytest.fixture
def stands() -> Iterator[Callable[[Path], Stand]]:
    made: list[Path] = []

    def make(top: Path) -> Stand:
        made.append(top / f"flatten-{os.getpid()}")
        return Stand(made[-1])

    yield make
    for path in made:
        remove_tree(bytes(path))


def test_every_field_that_counts_is_copied(stand: Stand) -> None:
    build(stand.live, {"dir/file": "text"})
    file = stand.live / "dir/file"
    os.setxattr(file, "user.note", b"\x00\xff")
    os.setxattr(file.parent, "user.note", b"dir")
    os.setxattr(stand.live, "user.note", b"root")
    file.chmod(0o6511)
    os.utime(file, ns=(1, 1_500_000_000_123_456_789))
    file.parent.chmod(0o3751)
    stand.live.chmod(0o750)
    stand.flatten()
    copy = stand.copy / "dir/file"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (copy, copy.parent, stand.copy)] == [0o6511, 0o3751, 0o750]
    assert copy.stat().st_mtime_ns == 1_500_000_000_123_456_789
    assert os.getxattr(copy, "user.note") == b"\x00\xff"
    assert os.getxattr(copy.parent, "user.note") == b"dir"
    assert os.getxattr(stand.copy, "user.note") == b"root"
    assert copy.read_text() == "text"


def test_the_live_tree_is_not_touched(stand: Stand) -> None:
    build(stand.live, {"a/b/c": "text", "d": "more", "empty": None})
    (stand.live / "d").chmod(0o000)
    (stand.live / "empty").chmod(0o000)
    (stand.live / "a").chmod(0o500)
    before = traces(stand.live)
    stand.flatten()
    assert traces(stand.live) == before


def test_hostile_names_and_targets_are_copied_as_they_are(stand: Stand) -> None:
    for name in HOSTILE:
        directory = os.path.join(bytes(stand.live), name)
        os.mkdir(directory)
        for inner in HOSTILE:
            os.symlink(b"/etc/" + inner[:100], os.path.join(directory, inner))
    stand.flatten()
    for name in HOSTILE:
        directory = os.path.join(bytes(stand.copy), name)
        assert sorted(os.listdir(directory)) == sorted(HOSTILE)
        assert {os.readlink(os.path.join(directory, inner)) for inner in HOSTILE} == {
            b"/etc/" + inner[:100] for inner in HOSTILE
        }


def test_hard_links_become_files_of_their_own(stand: Stand) -> None:
    build(stand.live, {"one": "text"})
    os.link(stand.live / "one", stand.live / "two")
    stand.flatten()
    assert [(stand.copy / name).stat().st_nlink for name in ("one", "two")] == [1, 1]
    assert (stand.copy / "two").read_text() == "text"


def test_fifos_and_sockets_are_nodes_without_content(stand: Stand) -> None:
    os.mkfifo(stand.live / "fifo")
    (stand.live / "fifo").chmod(0o622)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(stand.live / "socket"))
    stand.flatten()
    assert stat.S_ISSOCK((stand.copy / "socket").stat().st_mode)
    fifo = (stand.copy / "fifo").stat().st_mode
    assert stat.S_ISFIFO(fifo)
    assert stat.S_IMODE(fifo) == 0o622


def test_a_device_is_left_out(stand: Stand) -> None:
    # The one device that an ordinary user can make; an overlay does not show it either.
    os.mknod(stand.live / "device", stat.S_IFCHR, 0)
    assert stand.flatten() == 0
    assert os.listdir(stand.copy) == []


def test_what_can_not_be_read_has_an_empty_stand_in_and_is_counted(stand: Stand) -> None:
    build(stand.live, {"file": "secret", "closed/file": "secret", "listed/file": "secret", "listed/dir/x": "secret"})
    (stand.live / "file").chmod(0o200)
    (stand.live / "closed").chmod(0o300)
    (stand.live / "listed").chmod(0o400)
    assert stand.flatten() == len(("file", "closed", "listed/file", "listed/dir"))
    (stand.live / "closed").chmod(0o700)
    (stand.live / "listed").chmod(0o700)
    assert stat.S_IMODE((stand.copy / "file").stat().st_mode) == 0
    assert stat.S_IMODE((stand.copy / "closed").stat().st_mode) == 0
    assert stat.S_IMODE((stand.copy / "listed").stat().st_mode) == 0o400
    assert (stand.copy / "file").stat().st_size == 0
    (stand.copy / "listed").chmod(0o700)
    assert {name: (stand.copy / "listed" / name).stat().st_mode for name in os.listdir(stand.copy / "listed")} == {
        "file": stat.S_IFREG,
        "dir": stat.S_IFDIR,
    }


def test_a_sparse_terabyte_stays_sparse(stand: Stand) -> None:
    with open(stand.live / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"in the middle")
    stand.flatten()
    copy = stand.copy / "sparse"
    assert copy.stat().st_size == 1 << 40
    assert copy.stat().st_blocks < 2048
    with copy.open("rb") as file:
        file.seek(1 << 39)
        assert file.read(13) == b"in the middle"


@pytest.mark.parametrize(("filesystem", "shares"), [("ext4", False), ("xfs", True), ("btrfs", True)])
def test_blocks_are_shared_where_the_filesystem_can(
    filesystem: str, shares: bool, tmp_path: Path, stands: Callable[[Path], Stand], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloned: list[int] = []
    ioctl = fcntl.ioctl
    # What the kernel refuses raises before it is counted
    monkeypatch.setattr(fcntl, "ioctl", lambda *arguments: cloned.append(ioctl(*arguments)))
    stand = stands(FILESYSTEMS[filesystem] or tmp_path)
    build(stand.live, {"small": "x", "large": "y" * 1_000_000, "empty": ""})
    stand.flatten()
    assert len(cloned) == (2 if shares else 0)
    assert form(stand.copy) == form(stand.live)


def test_a_tree_on_another_filesystem_is_copied_through_memory(stand: Stand, stands: Callable[[Path], Stand]) -> None:
    elsewhere = stands(MOUNTS / "xfs/work")
    build(elsewhere.live, {"small": "x", "large": "y" * 1_000_000})
    flatten(bytes(elsewhere.live), [], bytes(stand.copy))
    assert form(stand.copy) == form(elsewhere.live)


def deepen(root: Path, levels: int) -> None:
    fd = os.open(root, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("directory", dir_fd=fd)
        child = os.open("directory", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = child
    os.close(os.open("bottom", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)


def test_depth_is_bound_by_neither_paths_nor_descriptors_nor_recursion(stand: Stand) -> None:
    sealed = stand.seal({})
    deepen(stand.live, 2500)
    deepen(sealed, 2600)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        stand.flatten()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    fd = os.open(stand.copy, os.O_RDONLY)
    for depth in range(2601):
        bottom = {2500: ["bottom", "directory"], 2600: ["bottom"]}.get(depth, ["directory"])
        assert sorted(os.listdir(fd)) == bottom
        child = os.open(bottom[-1], os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = child
    os.close(fd)


LAYERS: list[tuple[str, list[tuple[dict[str, str | None], tuple[str, ...]]], dict[str, str]]] = [
    ("a file of a layer wins", [({"f": "1"}, ()), ({"f": "2"}, ())], {"d": "dir", "d/x": "live", "f": "2"}),
    ("a whiteout deletes a file", [({"f": WHITEOUT}, ())], {"d": "dir", "d/x": "live"}),
    ("a whiteout deletes a tree", [({"d": WHITEOUT}, ())], {"f": "live"}),
    ("a whiteout over nothing", [({"n": WHITEOUT}, ())], {"d": "dir", "d/x": "live", "f": "live"}),
    ("directories are merged", [({"d/y": "1"}, ())], {"d": "dir", "d/x": "live", "d/y": "1", "f": "live"}),
    ("an opaque one hides", [({"d/y": "1"}, ("d",))], {"d": "dir", "d/y": "1", "f": "live"}),
    (
        "what is added over an opaque one is seen",
        [({"d/y": "1"}, ("d",)), ({"d/z": "2"}, ())],
        {"d": "dir", "d/y": "1", "d/z": "2", "f": "live"},
    ),
    ("a file replaces a directory", [({"d": "1"}, ())], {"d": "1", "f": "live"}),
    ("a directory replaces a file", [({"f/a": "1"}, ())], {"d": "dir", "d/x": "live", "f": "dir", "f/a": "1"}),
    (
        "a directory over a whiteout over a directory",
        [({"d": WHITEOUT}, ()), ({"d/y": "2"}, ())],
        {"d": "dir", "d/y": "2", "f": "live"},
    ),
    (
        "a directory over a file over a directory",
        [({"d": "1"}, ()), ({"d/y": "2"}, ())],
        {"d": "dir", "d/y": "2", "f": "live"},
    ),
]


@pytest.mark.parametrize(("layers", "shown"), [case[1:] for case in LAYERS], ids=[case[0] for case in LAYERS])
def test_layers_are_laid_over_each_other(
    layers: list[tuple[dict[str, str | None], tuple[str, ...]]], shown: dict[str, str], stand: Stand
) -> None:
    build(stand.live, {"d/x": "live", "f": "live"})
    for entries, opaque in layers:
        stand.seal(entries, opaque=opaque)
    stand.flatten()
    assert form(stand.copy) == shown


def test_marks_of_a_layer_are_dropped_and_escaped_attributes_become_plain(stand: Stand) -> None:
    layer = stand.seal({"d/file": "text"})
    for path in (layer / "d/file", layer / "d", layer):
        os.setxattr(path, "user.overlay.origin", b"")
        os.setxattr(path, "user.overlay.overlay.opaque", b"y")
        os.setxattr(path, "user.note", b"n")
    os.setxattr(layer, "user.overlay.impure", b"y")
    build(stand.live, {"d/seen": "because nothing is opaque"})
    stand.flatten()
    for path in (stand.copy / "d/file", stand.copy / "d", stand.copy):
        assert sorted(os.listxattr(path)) == ["user.note", "user.overlay.opaque"]
    assert (stand.copy / "d/seen").exists()


def test_closed_entries_of_a_layer_are_read_and_closed_again(stand: Stand) -> None:
    layer = stand.seal({"d/e/file": "text", "d/g": None})
    os.setxattr(layer / "d/e/file", "user.note", b"n")
    closed = [layer / "d/e/file", layer / "d/e", layer / "d"]
    for path in closed:
        path.chmod(0o000)
    assert stand.flatten() == 0
    for path in (layer, stand.copy):
        for name in ("d", "d/e", "d/e/file"):
            assert stat.S_IMODE((path / name).stat().st_mode) == 0
            (path / name).chmod(0o700)
    assert (stand.copy / "d/e/file").read_text() == "text"
    assert os.getxattr(stand.copy / "d/e/file", "user.note") == b"n"


def test_closed_directories_of_a_layer_are_closed_again_when_the_copy_fails(stand: Stand) -> None:
    layer = stand.seal({"d/e/file": "text"})
    os.setxattr(layer / "d/e/file", "user.overlay.metacopy", b"")
    for name in ("d/e", "d"):
        (layer / name).chmod(0o000)
    with pytest.raises(SandboxUnavailable, match="unspill never writes"):
        stand.flatten()
    assert stat.S_IMODE((layer / "d").stat().st_mode) == 0
    (layer / "d").chmod(0o700)
    assert stat.S_IMODE((layer / "d/e").stat().st_mode) == 0


def test_a_copy_is_not_made_into_itself(stand: Stand) -> None:
    upper = stand.live / "state" / "upper"
    upper.mkdir(parents=True)
    with pytest.raises(UsageError, match="is inside the directory") as refused:
        flatten(bytes(stand.live), [], bytes(upper))
    assert "rootfs_dir" in refused.value.remedy


def test_a_full_filesystem_is_an_error_and_no_stand_in(stand: Stand) -> None:
    build(stand.live, {"large": "x" * 1_000_000})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            stand.flatten()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_no_descriptor_is_left_open(stand: Stand) -> None:
    build(stand.live, {"a/b/c/d": "text"})
    stand.seal({"a/b/c/e": "text"})
    before = os.listdir("/proc/self/fd")
    stand.flatten()
    assert os.listdir("/proc/self/fd") == before
