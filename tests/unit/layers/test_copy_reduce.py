# SPDX-License-Identifier: Apache-2.0
"""A copy that a command changed becomes the layer that overlayfs would have written, and no mark is believed."""

import mmap
import os
import resource
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.layers.copy_trees import FILESYSTEMS, WHITEOUT, build, form
from unspill.errors import SandboxUnavailable
from unspill.layers.copy_clock import times_mapped_writes
from unspill.layers.copy_fill import fill
from unspill.layers.copy_manifest import Manifest
from unspill.layers.copy_reduce import reduce
from unspill.layers.remove import remove_tree

LIVE: dict[str, str | None] = {"f": "live", "g": "live", "d/x": "live", "d/e/y": "live", "empty": None}


class Stand:
    """A live tree and a copy of it, in which a test does what a command would do."""

    def __init__(self, base: Path, entries: dict[str, str | None]) -> None:
        self.live = base / "live"
        self.copy = base / "copy"
        for path in (self.live, self.copy):
            path.mkdir(parents=True)
        build(self.live, entries)
        os.symlink("f", self.live / "link")
        self.manifest: Manifest = fill(bytes(self.live), [], bytes(self.copy))

    def reduce(self) -> tuple[str, ...]:
        return reduce(bytes(self.copy), self.manifest)


@pytest.fixture(params=FILESYSTEMS)
def filesystem(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    top = FILESYSTEMS[request.param] or tmp_path
    yield top / f"copy-reduce-{os.getpid()}"
    remove_tree(bytes(top / f"copy-reduce-{os.getpid()}"))


@pytest.fixture
def stand(filesystem: Path) -> Stand:
    return Stand(filesystem, LIVE)


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Stand]:
    """The same on the filesystem of pytest alone."""
    yield Stand(tmp_path / "stand", LIVE)
    remove_tree(bytes(tmp_path / "stand"))


def rewrite_in_secret(copy: Path) -> None:
    """Change a byte, then put back what can be put back."""
    before = (copy / "f").stat()
    (copy / "f").write_text("LIVE")
    os.utime(copy / "f", ns=(before.st_atime_ns, before.st_mtime_ns))
    after = (copy / "f").stat()
    # Whoever looks at these sees no difference.
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


def swap(copy: Path) -> None:
    os.rename(copy / "f", copy / "t")
    os.rename(copy / "g", copy / "f")
    os.rename(copy / "t", copy / "g")


def write_mapped(copy: Path) -> None:
    with open(copy / "f", "r+b") as file, mmap.mmap(file.fileno(), 0) as page:
        page[0] = page[0] ^ 1


def make_again(copy: Path) -> None:
    shutil.rmtree(copy / "d")
    (copy / "d").mkdir()


def replace_directory(copy: Path) -> None:
    os.rename(copy / "d", copy / "old")
    (copy / "d").mkdir()
    (copy / "d/n").write_text("new")
    shutil.rmtree(copy / "old")


def move_away_and_back(copy: Path) -> None:
    os.rename(copy / "d", copy / "t")
    os.rename(copy / "t", copy / "d")


def become_directory(copy: Path) -> None:
    (copy / "f").unlink()
    (copy / "f").mkdir()


def become_file(copy: Path) -> None:
    shutil.rmtree(copy / "d")
    (copy / "d").write_text("file")


def relink(copy: Path) -> None:
    (copy / "link").unlink()
    os.symlink("/etc/passwd", copy / "link")


def create_and_delete(copy: Path) -> None:
    (copy / "d/new").write_text("")
    (copy / "d/new").unlink()


MOVED = {"t": "dir", "t/x": "live", "t/e": "dir", "t/e/y": "live", "d": WHITEOUT}
CASES: dict[str, tuple[Callable[[Path], object], dict[str, str]]] = {
    "nothing": (lambda _copy: None, {}),
    "reading": (lambda copy: (copy / "f").read_text(), {}),
    "a rewrite": (lambda copy: (copy / "d/x").write_text("new"), {"d": "dir", "d/x": "new"}),
    "a rewrite in secret": (rewrite_in_secret, {"f": "LIVE"}),
    "a write through memory": (write_mapped, {"f": "mive"}),
    "a touch": (lambda copy: os.utime(copy / "f", ns=(1, 1)), {"f": "live"}),
    "another mode": (lambda copy: (copy / "f").chmod(0o600), {"f": "live"}),
    "an attribute": (lambda copy: os.setxattr(copy / "f", "user.a", b"1"), {"f": "live"}),
    "a new file": (lambda copy: (copy / "d/e/n").write_text("n"), {"d": "dir", "d/e": "dir", "d/e/n": "n"}),
    "a deleted file": (lambda copy: (copy / "d/e/y").unlink(), {"d": "dir", "d/e": "dir", "d/e/y": WHITEOUT}),
    "a deleted tree": (lambda copy: shutil.rmtree(copy / "d"), {"d": WHITEOUT}),
    "a new directory": (lambda copy: (copy / "n").mkdir(), {"n": "dir"}),
    "a moved file": (lambda copy: os.rename(copy / "f", copy / "n"), {"f": WHITEOUT, "n": "live"}),
    "files that changed places": (swap, {"f": "live", "g": "live"}),
    "a moved directory": (lambda copy: os.rename(copy / "d", copy / "t"), MOVED),
    "a directory moved into another": (
        lambda copy: os.rename(copy / "d/e", copy / "empty/e"),
        {"d": "dir", "d/e": WHITEOUT, "empty": "dir", "empty/e": "dir", "empty/e/y": "live"},
    ),
    "a directory moved away and back": (move_away_and_back, {}),
    "another directory": (replace_directory, {"d": "opaque", "d/n": "new"}),
    "a file that became a directory": (become_directory, {"f": "opaque"}),
    "a directory that became a file": (become_file, {"d": "file"}),
    "another link": (relink, {"link": "-> /etc/passwd"}),
    "a directory's mode": (lambda copy: (copy / "empty").chmod(0o700), {"empty": "dir"}),
    "a directory's attribute": (lambda copy: os.setxattr(copy / "d", "user.a", b"1"), {"d": "dir"}),
    "a directory's time": (lambda copy: os.utime(copy / "d", ns=(1, 1)), {}),
    "a file that came and went": (create_and_delete, {}),
    "a link to a file": (lambda copy: os.link(copy / "f", copy / "d/l"), {"f": "live", "d": "dir", "d/l": "live"}),
}


@pytest.mark.parametrize(("change", "layer"), CASES.values(), ids=CASES)
def test_what_was_done_is_in_the_layer_and_nothing_else(
    change: Callable[[Path], object], layer: dict[str, str], stand: Stand
) -> None:
    change(stand.copy)
    assert stand.reduce() == ()
    assert form(stand.copy) == layer


def test_a_directory_made_again_shows_nothing_of_the_old_one(stand: Stand) -> None:
    make_again(stand.copy)
    stand.reduce()
    # ext4 gives the new directory the number of the old one, so it is seen as the same, and emptied.
    assert form(stand.copy) in (
        {"d": "opaque"},
        {"d": "dir", "d/x": WHITEOUT, "d/e": WHITEOUT},
    )


def test_linked_names_stay_linked(here: Stand) -> None:
    os.link(here.copy / "f", here.copy / "l")
    here.reduce()
    assert os.path.samefile(here.copy / "f", here.copy / "l")


def test_what_is_younger_than_the_clock_was_is_not_believed_to_be_untouched(here: Stand) -> None:
    # As after a fill during which the clock was set back.
    here.manifest = here.manifest.replace(settled_ns=0)
    here.reduce()
    assert form(here.copy).keys() == form(here.live).keys() - {"empty"}


def test_modes_of_kept_directories_are_kept(here: Stand) -> None:
    (here.copy / "d/e/y").write_text("new")
    (here.copy / "d/e").chmod(0o000)
    (here.copy / "d").chmod(0o100)
    here.copy.chmod(0o300)
    assert here.reduce() == ()
    assert stat.S_IMODE(here.copy.stat().st_mode) == 0o300
    here.copy.chmod(0o700)
    assert stat.S_IMODE((here.copy / "d").stat().st_mode) == 0o100
    (here.copy / "d").chmod(0o700)
    assert stat.S_IMODE((here.copy / "d/e").stat().st_mode) == 0o000
    (here.copy / "d/e").chmod(0o700)
    assert form(here.copy) == {"d": "dir", "d/e": "dir", "d/e/y": "new"}


def test_a_device_of_the_command_is_dropped_and_reported(here: Stand) -> None:
    os.mknod(here.copy / "d/device", stat.S_IFCHR, 0)
    (here.copy / "f").unlink()
    os.mknod(here.copy / "f", stat.S_IFCHR, 0)
    (text,) = here.reduce()
    assert text.startswith("device nodes made by the command")
    assert set(text.partition(": ")[2].split(", ")) == {"d/device", "f"}
    # Where it stood in for something, that is gone, as the command saw it.
    assert form(here.copy) == {"f": WHITEOUT}


def marks(path: Path) -> dict[str, bytes]:
    return {name: os.getxattr(path, name) for name in os.listxattr(path)}


def test_attributes_that_look_like_marks_are_escaped_once(here: Stand) -> None:
    forged = {
        "user.overlay.opaque": b"y",
        "user.overlay.overlay.opaque": b"2",
        "user.overlay.whiteout": b"",
        "user.plain": b"p",
    }
    escaped = {
        "user.overlay.overlay.opaque": b"y",
        "user.overlay.overlay.overlay.opaque": b"2",
        "user.overlay.overlay.whiteout": b"",
        "user.plain": b"p",
    }
    (here.copy / "new").write_text("")
    for path in (here.copy / "f", here.copy / "d", here.copy / "new", here.copy):
        for name, value in forged.items():
            os.setxattr(path, name, value)
    (here.copy / "f").chmod(0o040)
    mtime_ns = (here.copy / "f").stat().st_mtime_ns
    os.link(here.copy / "f", here.copy / "second")
    assert here.reduce() == ()
    for path in (here.copy / "f", here.copy / "second", here.copy / "d", here.copy / "new", here.copy):
        mode = path.stat().st_mode
        path.chmod(0o700)
        assert marks(path) == escaped
        path.chmod(stat.S_IMODE(mode))
    assert stat.S_IMODE((here.copy / "f").stat().st_mode) == 0o040
    assert (here.copy / "f").stat().st_mtime_ns == mtime_ns


def test_a_forged_mark_on_an_untouched_directory_is_no_mark(here: Stand) -> None:
    os.setxattr(here.copy / "d", "user.overlay.opaque", b"y")
    here.reduce()
    assert marks(here.copy / "d") == {"user.overlay.overlay.opaque": b"y"}


def fill_attributes(path: Path) -> None:
    """Set attributes until not even an empty one fits any more."""
    size, number = 4096, 0
    while size >= 0:
        try:
            os.setxattr(path, f"user.{number}", bytes(size))
            number += 1
        except OSError:
            size = size // 2 if size else -1


def test_attributes_that_fill_all_room_give_way_to_the_mark(here: Stand) -> None:
    replace_directory(here.copy)
    fill_attributes(here.copy / "d")
    (text,) = here.reduce()
    assert text.startswith("extended attributes of the command for which the layer has no room")
    assert form(here.copy) == {"d": "opaque", "d/n": "new"}


def test_an_attribute_whose_escaped_name_is_too_long_is_dropped_and_reported(here: Stand) -> None:
    os.setxattr(here.copy / "f", "user.overlay." + "x" * (255 - len("user.overlay.")), b"")
    assert here.reduce() == ("extended attributes of the command for which the layer has no room; dropped: f",)
    assert marks(here.copy / "f") == {}


def test_what_could_not_be_read_is_reported_when_it_is_deleted(tmp_path: Path) -> None:
    live = tmp_path / "stand" / "live"
    build(live, {"closed/file": "secret", "secret": "secret"})
    (live / "closed").chmod(0)
    (live / "secret").chmod(0)
    copy = tmp_path / "stand" / "copy"
    copy.mkdir()
    manifest = fill(bytes(live), [], bytes(copy))
    (copy / "closed").rmdir()
    findings = reduce(bytes(copy), manifest)
    (live / "closed").chmod(0o700)
    assert findings == ("deleted by the command, although what is in it could not be copied: closed",)
    assert form(copy) == {"closed": WHITEOUT}


def test_depth_is_bound_by_neither_paths_nor_descriptors_nor_recursion(here: Stand) -> None:
    fd = os.open(here.copy, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("directory", dir_fd=fd)
        child = os.open("directory", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = child
    os.mknod("forged", stat.S_IFCHR, 0, dir_fd=fd)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        (text,) = here.reduce()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert text.endswith("directory/forged")
    assert len(text) < 400
    assert os.listdir(fd) == []
    os.close(fd)


def test_a_sparse_terabyte_costs_nothing(here: Stand) -> None:
    with open(here.copy / "f", "r+b") as file:
        file.truncate(1 << 40)
    here.reduce()
    assert (here.copy / "f").stat().st_size == 1 << 40
    assert (here.copy / "f").stat().st_blocks < 64


def test_another_directory_is_not_taken_for_the_copy(here: Stand, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(SandboxUnavailable):
        reduce(bytes(tmp_path / "other"), here.manifest)


@pytest.fixture
def memory() -> Iterator[Stand]:
    """A copy on tmpfs, where a page that was read before is then written without a trace in the times."""
    base = Path(f"/dev/shm/copy-reduce-{os.getpid()}")
    yield Stand(base, {"f": "live", "g": "live", "h": "live"})
    remove_tree(bytes(base))


def write_after_reading(copy: Path) -> None:
    with open(copy / "f", "r+b") as file, mmap.mmap(file.fileno(), 0) as page:
        assert page[1] == ord("i")
        page[0] = ord("m")


def test_a_write_that_tmpfs_does_not_time_is_found_by_content(memory: Stand) -> None:
    directory = os.open(memory.copy, os.O_RDONLY)
    assert not times_mapped_writes(directory)
    os.close(directory)
    before = (memory.copy / "f").stat().st_ctime_ns
    write_after_reading(memory.copy)
    assert (memory.copy / "f").stat().st_ctime_ns == before
    memory.reduce()
    assert form(memory.copy) == {"f": "mive"}


def test_without_digests_that_write_would_be_missed(memory: Stand) -> None:
    write_after_reading(memory.copy)
    blind = {inode: made.replace(digests=None) for inode, made in memory.manifest.directories.items()}
    memory.manifest = memory.manifest.replace(directories=blind)
    memory.reduce()
    assert form(memory.copy) == {}


def test_other_filesystems_time_every_write(filesystem: Path) -> None:
    filesystem.mkdir()
    directory = os.open(filesystem, os.O_RDONLY)
    assert times_mapped_writes(directory)
    assert os.listdir(directory) == []
    os.close(directory)
