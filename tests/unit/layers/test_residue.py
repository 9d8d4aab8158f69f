# SPDX-License-Identifier: Apache-2.0
"""What remains of a stack as one upper directory: linked, in its plainest form, however deep and however closed."""

import os
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from unspill.host.overlay import MODE_MARK, ORIGIN, half_open
from unspill.layers.residue import build_residue
from unspill.layers.trees import remove_tree
from unspill.model.change import Change, Identity

if TYPE_CHECKING:
    from unspill.model.change import ChangeKind, EntryKind

STAMP = 1_600_000_000_123_456_789


class Place:
    """A live tree, two layers with the topmost first, and where the residue goes."""

    def __init__(self, top: Path) -> None:
        self.live, self.upper, self.older, self.dest = (top / name for name in ("live", "upper", "older", "dest"))
        for path in (self.live, self.upper, self.older):
            path.mkdir()

    def build(self, *changes: Change) -> bool:
        sources: Sequence[Path] = (self.upper, self.older)
        return build_residue(os.fsencode(self.dest), [*map(os.fsencode, sources)], changes, self.locate, self.root)

    @property
    def root(self) -> bytes:
        return os.fsencode(self.live)

    def locate(self, change: Change) -> bytes:
        assert change.layer is not None
        return change.layer + b"/" + change.path

    def change(
        self,
        path: str,
        kind: "ChangeKind",
        entry: "EntryKind" = "file",
        base: "EntryKind | None" = None,
        older: bool = False,
    ) -> Change:
        """Return a change whose entry is in a layer."""
        identity = Identity(kind=entry, mode=0, inode=1, size=1, ctime_ns=1)
        layer = os.fsencode(self.older if older else self.upper)
        return Change(path=path.encode(), kind=kind, entry=identity, base_kind=base, layer=layer)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    top = tmp_path / "place"
    top.mkdir()
    yield Place(top)
    assert remove_tree(os.fsencode(top))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def attributes(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path)}


def gone(path: str, base: "EntryKind" = "file") -> Change:
    return Change(path=path.encode(), kind="deleted", base_kind=base)


def test_where_nothing_remains_nothing_is_made(place: Place) -> None:
    assert not place.build()
    assert not place.dest.exists()


def test_files_links_and_special_files_are_the_same_inodes(place: Place) -> None:
    (place.upper / "file").write_text("new")
    (place.older / "link").symlink_to("/nowhere")
    os.mkfifo(place.upper / "fifo")
    assert place.build(
        place.change("fifo", "added", "special"),
        place.change("file", "modified"),
        place.change("link", "added", "symlink", older=True),
    )
    for name, layer in (("file", place.upper), ("link", place.older), ("fifo", place.upper)):
        assert (place.dest / name).lstat().st_ino == (layer / name).lstat().st_ino


def test_a_deletion_is_a_whiteout(place: Place) -> None:
    (place.live / "d").mkdir()
    assert place.build(gone("d/x"), gone("e", "dir"))
    for path in (place.dest / "d" / "x", place.dest / "e"):
        assert (stat.S_ISCHR(path.lstat().st_mode), path.lstat().st_rdev) == (True, 0)


def test_a_new_directory_looks_like_the_one_in_the_layer_without_the_marks_of_overlayfs(place: Place) -> None:
    made = place.upper / "d"
    for directory in (place.older / "d", made):
        directory.mkdir()
    (made / "x").touch()
    kept = {"user.mine": b"1", "user.overlay.overlay.opaque": b"y"}
    own = {"user.overlay.opaque": b"y", "user.overlay.origin": b"", "user.overlay.impure": b"y"}
    for name, value in {**kept, **own}.items():
        os.setxattr(made, name, value)
    made.chmod(0o2750)
    os.utime(made, ns=(STAMP, STAMP))
    place.build(place.change("d", "added", "dir"), place.change("d/x", "added"))
    assert (mode(place.dest / "d"), attributes(place.dest / "d")) == (0o2750, kept)
    assert (place.dest / "d").stat().st_mtime_ns == STAMP


def test_a_directory_that_was_copied_up_still_says_so_in_the_residue(place: Place) -> None:
    (place.upper / "d").mkdir()
    os.setxattr(place.upper / "d", ORIGIN, b"a handle of the live one")
    place.build(place.change("d", "metadata", "dir", "dir"))
    assert attributes(place.dest / "d") == {ORIGIN: b""}


def test_a_directory_on_the_way_looks_like_the_live_one_that_was_copied_up(place: Place) -> None:
    for tree, bits in ((place.live, 0o750), (place.upper, 0o777)):
        (tree / "d").mkdir()
        (tree / "d").chmod(bits)
        tree.chmod(bits)
    os.setxattr(place.live / "d", "user.mine", b"live")
    (place.upper / "d" / "x").touch()
    place.build(place.change("d/x", "added"))
    assert (mode(place.dest), mode(place.dest / "d")) == (0o750, 0o750)
    assert attributes(place.dest / "d") == {"user.mine": b"live", ORIGIN: b""}


def test_a_mode_mark_in_the_live_tree_means_nothing(place: Place) -> None:
    (place.live / "d").mkdir(mode=0o755)
    os.setxattr(place.live / "d", MODE_MARK, b"777")
    place.build(gone("d/x"))
    assert mode(place.dest / "d") == 0o755


def test_a_directory_on_the_way_that_is_not_live_looks_like_the_topmost_one(place: Place) -> None:
    for tree, bits in ((place.upper, 0o711), (place.older, 0o777)):
        (tree / "d").mkdir()
        (tree / "d").chmod(bits)
    (place.older / "d" / "x").touch()
    place.build(place.change("d/x", "added", older=True))
    assert mode(place.dest / "d") == 0o711


def test_other_bits_of_directories_and_of_the_root_stay(place: Place) -> None:
    for tree, bits in ((place.live, 0o755), (place.upper, 0o700)):
        (tree / "d").mkdir()
        (tree / "d").chmod(bits)
        tree.chmod(bits)
    os.setxattr(place.upper, "user.root", b"1")
    place.build(place.change(".", "metadata", "dir", "dir"), place.change("d", "metadata", "dir", "dir"))
    assert (mode(place.dest), attributes(place.dest)) == (0o700, {"user.root": b"1"})
    assert mode(place.dest / "d") == 0o700


def test_only_over_a_directory_that_can_not_be_listed_a_new_one_hides_everything(place: Place) -> None:
    for name in ("new", "replaced", "over"):
        (place.upper / name).mkdir()
    place.build(
        place.change("new", "added", "dir"),
        place.change("over", "replaced", "dir", "dir").replace(unreadable=True),
        place.change("replaced", "replaced", "dir", "file"),
    )
    marked = [name for name in ("new", "over", "replaced") if attributes(place.dest / name)]
    assert marked == ["over"]
    assert attributes(place.dest / "over") == {"user.overlay.opaque": b"y"}


CLOSED = [0o000, 0o200, 0o100, 0o400, 0o444]


@pytest.mark.parametrize("bits", CLOSED, ids=oct)
def test_closed_directories_are_filled_and_stay_closed(place: Place, bits: int) -> None:
    inner = place.upper / "a" / "b" / "c"
    inner.mkdir(parents=True)
    (inner / "x").write_text("x")
    os.setxattr(place.upper / "a", "user.mine", b"1")
    for path in (inner, inner.parent, inner.parent.parent):
        path.chmod(bits)
    place.build(
        place.change("a", "added", "dir"),
        place.change("a/b", "added", "dir"),
        place.change("a/b/c", "added", "dir"),
        place.change("a/b/c/x", "added"),
    )
    found = []
    path = place.dest
    for name in "abc":
        path = path / name
        found.append(mode(path))
        names = os.listxattr(path)
        path.chmod(0o700)
        assert names == ["user.mine"] * (name == "a")
    assert (found, (path / "x").read_text()) == ([bits] * 3, "x")


def test_a_directory_that_a_scan_left_open_gets_the_mode_of_the_command(place: Place) -> None:
    (place.upper / "d").mkdir(mode=0o700)
    os.setxattr(place.upper / "d", MODE_MARK, b"20")
    place.build(place.change("d", "added", "dir"))
    assert mode(place.dest / "d") == 0o020


@pytest.mark.parametrize("bits", [0o050, 0o1050, 0o2000])
def test_a_directory_that_a_killed_process_was_about_to_open_gets_the_mode_of_the_command(
    place: Place, bits: int
) -> None:
    (place.upper / "d").mkdir()
    (place.upper / "d" / "x").touch()
    os.setxattr(place.upper / "d", MODE_MARK, b"%o" % bits)
    (place.upper / "d").chmod(half_open(bits))
    place.build(place.change("d", "added", "dir"), place.change("d/x", "added"))
    assert mode(place.dest / "d") == bits
    assert attributes(place.upper / "d") == {MODE_MARK: b"%o" % bits}


def test_a_layer_that_stays_after_all_still_knows_the_modes_of_its_directories(place: Place) -> None:
    (place.upper / "d").mkdir()
    (place.upper / "d" / "x").touch()
    (place.upper / "d").chmod(0o050)
    place.build(place.change("d", "added", "dir"), place.change("d/x", "added"))
    (place.upper / "d").chmod(0o700)
    assert attributes(place.upper / "d") == {MODE_MARK: b"50"}


def dig(top: Path, name: bytes, depth: int, *, every: bool) -> None:
    """Make a chain of directories with a file at its end, or one on every level."""
    fd = os.open(top, os.O_RDONLY)
    for level in range(depth):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
        if every or level == depth - 1:
            os.close(os.open(b"z", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
    os.close(fd)


@pytest.mark.parametrize(
    ("name", "depth", "every"), [(b"n" * 250, 40, True), (b"d", 3000, False), (b"d", 400, True)], ids=repr
)
def test_paths_longer_than_the_kernel_takes_are_folded(place: Place, name: bytes, depth: int, every: bool) -> None:
    dig(place.upper, name, depth, every=every)
    prefixes = [name.decode() + f"/{name.decode()}" * level for level in range(depth)]
    directories = [place.change(prefix, "added", "dir") for prefix in prefixes]
    files = [place.change(f"{prefix}/z", "added") for prefix in reversed(prefixes if every else prefixes[-1:])]
    place.build(*directories, *files)
    fd = os.open(place.dest, os.O_RDONLY)
    for _ in range(depth):
        below = os.open(name, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    assert os.listdir(fd) == ["z"]
    os.close(fd)


@pytest.mark.slow
def test_ten_thousand_levels_take_seconds_not_minutes(place: Place) -> None:
    """The time buys a tree of 10,000 levels, for which a walk from the root each time would take minutes."""
    dig(place.upper, b"d", 10_000, every=False)
    changes = [place.change("d" + "/d" * level, "added", "dir") for level in range(10_000)]
    started = time.process_time()
    place.build(*changes, place.change("d/" * 10_000 + "z", "added"))
    assert time.process_time() - started < 30


def test_no_more_than_so_many_directories_are_open_at_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    depth = 600
    dig(place.upper, b"d", depth, every=False)
    (place.live / "d").mkdir()
    most = 0
    mkdir = os.mkdir

    def counting(path: bytes, bits: int = 0o777, *, dir_fd: int | None = None) -> None:
        nonlocal most
        most = max(most, len(os.listdir("/proc/self/fd")))
        mkdir(path, bits, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", counting)
    before = len(os.listdir("/proc/self/fd"))
    place.build(*(place.change("d" + "/d" * level, "added", "dir") for level in range(depth)))
    assert most < before + 300


def test_nothing_is_read_through_a_link_in_the_live_tree(place: Place, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    outside.chmod(0o711)
    (place.live / "d").symlink_to(outside)
    (place.upper / "d").mkdir(mode=0o755)
    (place.upper / "d" / "x").touch()
    place.build(place.change("d/x", "added"))
    assert mode(place.dest / "d") == 0o755


def test_where_an_inode_has_too_many_links_a_copy_is_made(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Filling 65,000 names for real is left to the filesystem; the error is the one it gives."""
    file = place.upper / "file"
    file.write_bytes(b"content" * 1000)
    kept = {"user.mine": b"1", "user.overlay.overlay.x": b"2"}
    for name, value in {**kept, "user.overlay.origin": b""}.items():
        os.setxattr(file, name, value)
    os.utime(file, ns=(STAMP, STAMP))
    (place.upper / "link").symlink_to("target")
    os.mkfifo(place.upper / "fifo")
    (place.upper / "fifo").chmod(0o622)
    file.chmod(0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", _too_many_links)
        place.build(
            place.change("fifo", "added", "special"),
            place.change("file", "added"),
            place.change("link", "added", "symlink"),
        )
    copied = place.dest / "file"
    assert (mode(file), mode(copied), copied.stat().st_mtime_ns) == (0, 0, STAMP)
    for path in (file, copied):
        path.chmod(0o600)
    assert (copied.read_bytes(), attributes(copied)) == (file.read_bytes(), kept)
    assert copied.stat().st_ino != file.stat().st_ino
    assert os.readlink(place.dest / "link") == "target"
    assert (stat.S_ISFIFO((place.dest / "fifo").stat().st_mode), mode(place.dest / "fifo")) == (True, 0o622)


def _too_many_links(*_names: object, **_options: object) -> None:
    raise OSError(31, os.strerror(31))


def test_another_error_is_not_hidden(place: Place) -> None:
    with pytest.raises(FileNotFoundError):
        place.build(place.change("missing", "added"))
