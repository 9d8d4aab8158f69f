# SPDX-License-Identifier: Apache-2.0
"""A copy shows what an overlay would show, and making it changes nothing else."""

import os
import resource
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.layers.copy_trees import FILESYSTEMS, HOSTILE, WHITEOUT, build, form, traces
from unspill.errors import RootRefused, SandboxUnavailable
from unspill.layers.copy_fill import fill
from unspill.layers.copy_manifest import UNSEEN, Manifest
from unspill.layers.remove import remove_tree


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

    def fill(self) -> Manifest:
        return fill(bytes(self.live), [bytes(layer) for layer in self.sealed], bytes(self.copy))


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    yield Stand(tmp_path / "stand")
    # What is nested deeper than the interpreter can recurse, or closed to it, is too much for pytest to remove.
    remove_tree(bytes(tmp_path / "stand"))


@pytest.fixture
def stands() -> Iterator[Callable[[Path], Stand]]:
    made: list[Path] = []

    def make(top: Path) -> Stand:
        made.append(top / f"copy-fill-{os.getpid()}")
        return Stand(made[-1])

    yield make
    for path in made:
        remove_tree(bytes(path))


def prints(manifest: Manifest, directory: Path) -> dict[bytes, tuple[int, int, int, int]]:
    return manifest.directories[directory.stat().st_ino].entries()


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
    stand.fill()
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
    stand.fill()
    assert traces(stand.live) == before


def test_hostile_names_and_targets_are_copied_as_they_are(stand: Stand) -> None:
    for name in HOSTILE:
        directory = os.path.join(bytes(stand.live), name)
        os.mkdir(directory)
        for inner in HOSTILE:
            os.symlink(b"/etc/" + inner[:100], os.path.join(directory, inner))
    stand.fill()
    for name in HOSTILE:
        directory = os.path.join(bytes(stand.copy), name)
        assert sorted(os.listdir(directory)) == sorted(HOSTILE)
        assert {os.readlink(os.path.join(directory, inner)) for inner in HOSTILE} == {
            b"/etc/" + inner[:100] for inner in HOSTILE
        }


def test_hard_links_become_files_of_their_own(stand: Stand) -> None:
    build(stand.live, {"one": "text"})
    os.link(stand.live / "one", stand.live / "two")
    stand.fill()
    assert [(stand.copy / name).stat().st_nlink for name in ("one", "two")] == [1, 1]
    assert (stand.copy / "two").read_text() == "text"


def test_fifos_and_sockets_are_nodes_without_content(stand: Stand) -> None:
    os.mkfifo(stand.live / "fifo")
    (stand.live / "fifo").chmod(0o622)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(stand.live / "socket"))
    stand.fill()
    assert stat.S_ISSOCK((stand.copy / "socket").stat().st_mode)
    fifo = (stand.copy / "fifo").stat().st_mode
    assert stat.S_ISFIFO(fifo)
    assert stat.S_IMODE(fifo) == 0o622


def test_a_device_is_left_out_and_reported(stand: Stand) -> None:
    # The one device that an ordinary user can make; an overlay does not show it either.
    os.mknod(stand.live / "device", stat.S_IFCHR, 0)
    assert stand.fill().findings == ("devices, which are not copied: device",)
    assert os.listdir(stand.copy) == []


def test_what_can_not_be_read_has_an_empty_stand_in_and_is_reported(stand: Stand) -> None:
    build(stand.live, {"file": "secret", "closed/file": "secret", "listed/file": "secret", "listed/dir/x": "secret"})
    (stand.live / "file").chmod(0o200)
    (stand.live / "closed").chmod(0o300)
    (stand.live / "listed").chmod(0o400)
    manifest = stand.fill()
    (stand.live / "closed").chmod(0o700)
    (stand.live / "listed").chmod(0o700)
    (text,) = manifest.findings
    assert text.startswith("not readable, so the command saw an empty stand-in: ")
    assert set(text.partition(": ")[2].split(", ")) == {"file", "closed", "listed/file", "listed/dir"}
    assert stat.S_IMODE((stand.copy / "file").stat().st_mode) == 0
    assert stat.S_IMODE((stand.copy / "closed").stat().st_mode) == 0
    assert stat.S_IMODE((stand.copy / "listed").stat().st_mode) == 0o400
    assert prints(manifest, stand.copy)[b"closed"][0] == stat.S_IFDIR | UNSEEN
    assert prints(manifest, stand.copy)[b"file"][0] == stat.S_IFREG | UNSEEN
    assert prints(manifest, stand.copy)[b"file"][3] == 0


def test_a_sparse_terabyte_stays_sparse(stand: Stand) -> None:
    with open(stand.live / "sparse", "wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 39)
        file.write(b"in the middle")
    stand.fill()
    copy = stand.copy / "sparse"
    assert copy.stat().st_size == 1 << 40
    assert copy.stat().st_blocks < 2048
    with copy.open("rb") as file:
        file.seek(1 << 39)
        assert file.read(13) == b"in the middle"


@pytest.mark.parametrize(("filesystem", "shares"), [("ext4", False), ("xfs", True), ("btrfs", True)])
def test_blocks_are_shared_where_the_filesystem_can(
    filesystem: str, shares: bool, tmp_path: Path, stands: Callable[[Path], Stand]
) -> None:
    stand = stands(FILESYSTEMS[filesystem] or tmp_path)
    build(stand.live, {"small": "x", "large": "y" * 1_000_000, "empty": ""})
    manifest = stand.fill()
    assert manifest.cloned == (2 if shares else 0)
    assert form(stand.copy) == form(stand.live)


def test_a_tree_on_another_filesystem_is_copied_through_memory(stand: Stand, stands: Callable[[Path], Stand]) -> None:
    elsewhere = stands(Path("/opt/unspill-ci/fs/xfs/work"))
    build(elsewhere.live, {"small": "x", "large": "y" * 1_000_000})
    fill(bytes(elsewhere.live), [], bytes(stand.copy))
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
        manifest = stand.fill()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert manifest.entries == 2602
    fd = os.open(stand.copy, os.O_RDONLY)
    for _ in range(2500):
        child = os.open("directory", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = child
    assert sorted(os.listdir(fd)) == ["bottom", "directory"]
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
    stand.fill()
    assert form(stand.copy) == shown


def test_marks_of_a_layer_are_dropped_and_escaped_attributes_become_plain(stand: Stand) -> None:
    layer = stand.seal({"d/file": "text"})
    for path in (layer / "d/file", layer / "d", layer):
        os.setxattr(path, "user.overlay.origin", b"")
        os.setxattr(path, "user.overlay.overlay.opaque", b"y")
        os.setxattr(path, "user.note", b"n")
    os.setxattr(layer, "user.overlay.impure", b"y")
    build(stand.live, {"d/seen": "because nothing is opaque"})
    stand.fill()
    for path in (stand.copy / "d/file", stand.copy / "d", stand.copy):
        assert sorted(os.listxattr(path)) == ["user.note", "user.overlay.opaque"]
    assert (stand.copy / "d/seen").exists()


def test_closed_entries_of_a_layer_are_read_and_closed_again(stand: Stand) -> None:
    layer = stand.seal({"d/e/file": "text", "d/g": None})
    os.setxattr(layer / "d/e/file", "user.note", b"n")
    closed = [layer / "d/e/file", layer / "d/e", layer / "d"]
    for path in closed:
        path.chmod(0o000)
    assert stand.fill().findings == ()
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
    with pytest.raises(SandboxUnavailable, match="no layer of unspill"):
        stand.fill()
    assert stat.S_IMODE((layer / "d").stat().st_mode) == 0
    (layer / "d").chmod(0o700)
    assert stat.S_IMODE((layer / "d/e").stat().st_mode) == 0


def test_all_is_older_than_the_clock_when_the_copy_is_done(stand: Stand) -> None:
    build(stand.live, {f"{number}": "" for number in range(50)})
    manifest = stand.fill()
    youngest = max(path.stat().st_ctime_ns for path in stand.copy.iterdir())
    assert youngest < manifest.settled_ns
    file = stand.copy / "0"
    file.write_text("")
    assert file.stat().st_ctime_ns >= manifest.settled_ns


def test_a_copy_is_not_made_into_itself(stand: Stand) -> None:
    upper = stand.live / "state" / "upper"
    upper.mkdir(parents=True)
    with pytest.raises(RootRefused):
        fill(bytes(stand.live), [], bytes(upper))


def test_a_full_filesystem_is_an_error_with_a_remedy_not_a_finding(stand: Stand) -> None:
    build(stand.live, {"large": "x" * 1_000_000})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(SandboxUnavailable) as caught:
            stand.fill()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "free space" in caught.value.remedy


def test_no_descriptor_is_left_open(stand: Stand) -> None:
    build(stand.live, {"a/b/c/d": "text"})
    stand.seal({"a/b/c/e": "text"})
    before = os.listdir("/proc/self/fd")
    stand.fill()
    assert os.listdir("/proc/self/fd") == before
