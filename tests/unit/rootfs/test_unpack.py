# SPDX-License-Identifier: Apache-2.0
"""What is unpacked, exactly: kinds, modes, times, links; what is left out; and what can't be unpacked at all."""

import os
import stat
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attack.tar_crafting import END, GNU, base256, entry, folder, hard, link, pax
from unspill.errors import RootfsError, RootfsUnsafe, RootfsUnverified
from unspill.rootfs import tar
from unspill.rootfs.tar import Unpacked, unpack

Unpack = Callable[..., Unpacked]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "tree"
    path.mkdir()
    return path


@pytest.fixture(name="unpack_blocks")
def unpack_blocks(tmp_path: Path, tree: Path) -> Unpack:
    """Unpack an archive of these blocks."""

    def run(*blocks: bytes) -> Unpacked:
        archive = tmp_path / "archive"
        archive.write_bytes(b"".join(blocks) + END)
        return unpack(os.fsencode(archive), os.fsencode(tree))

    return run


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_every_kind_is_counted_and_written(unpack_blocks: Unpack, tree: Path) -> None:
    unpacked = unpack_blocks(folder(b"d/"), entry(b"d/f", b"content"), link(b"l", b"/etc/x"), hard(b"h", b"d/f"))
    assert unpacked == Unpacked(entries=4, size_bytes=7)
    assert (tree / "d" / "f").read_bytes() == b"content"
    assert (tree / "h").samefile(tree / "d" / "f")
    assert os.readlink(tree / "l") == "/etc/x"


@pytest.mark.parametrize("umask", [0, 0o22, 0o77])
def test_modes_are_those_of_the_archive_whatever_the_umask(unpack_blocks: Unpack, tree: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        unpack_blocks(folder(b"d/", 0o1777), entry(b"d/f", b"x", mode=0o666), entry(b"d/x", mode=0o755))
    finally:
        os.umask(before)
    assert [mode_of(tree / name) for name in ("d", "d/f", "d/x")] == [0o1777, 0o666, 0o755]


def test_the_owner_can_always_read_and_remove(unpack_blocks: Unpack, tree: Path) -> None:
    unpack_blocks(folder(b"d/", 0), entry(b"d/f", b"x", mode=0), entry(b"d/g", b"x", mode=0o1060))
    assert [mode_of(tree / name) for name in ("d", "d/f", "d/g")] == [0o700, 0o400, 0o460]


def test_times_are_kept_also_of_directories_and_links(unpack_blocks: Unpack, tree: Path) -> None:
    unpack_blocks(
        entry(b"d/", kind=b"5", mtime=1000),
        entry(b"d/f", b"x", mtime=2000),
        entry(b"d/l", kind=b"2", target=b"f", mtime=3000),
        pax((b"mtime", b"4000.123456789123")),
        entry(b"p"),
        entry(b"./", kind=b"5", mtime=5000),
    )
    names = ("d", "d/f", "d/l", "p", ".")
    times = [(tree / name).lstat().st_mtime_ns for name in names]
    assert times == [1000 * 10**9, 2000 * 10**9, 3000 * 10**9, 4000_123456789, 5000 * 10**9]


@pytest.mark.parametrize(
    ("written", "seconds"),
    [(b"-1", 0), (b"-1.5", 0), (b"9" * 40, (1 << 33) - 1), (b"0", 0), (b"8589934591", (1 << 33) - 1)],
)
def test_times_are_bounded(unpack_blocks: Unpack, tree: Path, written: bytes, seconds: int) -> None:
    unpack_blocks(pax((b"mtime", written)), entry(b"f"))
    assert (tree / "f").stat().st_mtime_ns == seconds * 10**9


def test_a_time_for_all_entries_holds_unless_one_has_its_own(unpack_blocks: Unpack, tree: Path) -> None:
    common = pax((b"comment", b"0123abcd"), (b"mtime", b"7"), kind=b"g")
    unpack_blocks(common, entry(b"f", mtime=9), pax((b"mtime", b"8")), entry(b"g"))
    assert [(tree / name).stat().st_mtime for name in "fg"] == [7, 8]


def test_what_is_left_out_is_counted_by_kind(unpack_blocks: Unpack, tree: Path) -> None:
    unpacked = unpack_blocks(
        folder(b"dev/"),
        entry(b"dev/null", kind=b"3"),
        entry(b"dev/sda", kind=b"4"),
        entry(b"dev/pipe", kind=b"6"),
        entry(b"su", mode=0o4755),
        entry(b"both", mode=0o6755),
        folder(b"mail/", 0o2775),
        pax((b"SCHILY.xattr.security.capability", b"\1\0"), (b"SCHILY.acl.access", b"user::rwx")),
        entry(b"ping"),
    )
    assert dict(unpacked.left_out) == {"device": 2, "fifo": 1, "setgid": 2, "setuid": 2, "xattr": 2}
    assert os.listdir(tree / "dev") == []


def test_directories_that_are_not_in_the_archive_are_made(unpack_blocks: Unpack, tree: Path) -> None:
    unpack_blocks(entry(b"a/b/c/f", b"x"), entry(b"a/b/g", b"y"))
    assert (tree / "a/b/c/f").read_bytes() + (tree / "a/b/g").read_bytes() == b"xy"
    assert mode_of(tree / "a") == 0o755


@pytest.mark.parametrize("name", [b"./a/f", b"a//f", b"././a/./f", b"a/f"])
def test_what_means_nothing_in_a_name_is_passed_over(unpack_blocks: Unpack, tree: Path, name: bytes) -> None:
    unpack_blocks(folder(b"./"), folder(b"./a//"), entry(name, b"x"))
    assert (tree / "a" / "f").read_bytes() == b"x"


def test_far_more_directories_than_descriptors_are_written(unpack_blocks: Unpack, tree: Path) -> None:
    folders = [folder(b"d%d/sub/" % number) for number in range(1500)]
    files = [entry(b"d%d/sub/f" % number, b"%d" % number) for number in range(1500)]
    before = len(os.listdir("/proc/self/fd"))
    unpack_blocks(*folders, *files)
    assert all((tree / f"d{number}/sub/f").read_text() == str(number) for number in range(1500))
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_oldest_format_marks_directories_by_a_slash(unpack_blocks: Unpack, tree: Path) -> None:
    old = bytes(8)
    unpack_blocks(entry(b"d/", kind=b"\0", magic=old, mode=0o755), entry(b"d/f", b"x", kind=b"\0", magic=old))
    assert (tree / "d" / "f").read_bytes() == b"x"


def test_sizes_in_binary_are_read(unpack_blocks: Unpack, tree: Path) -> None:
    unpack_blocks(entry(b"f", b"12345", size=base256(5), magic=GNU))
    assert (tree / "f").read_bytes() == b"12345"


def test_a_later_entry_replaces_an_earlier_one_and_not_what_is_linked_to_it(unpack_blocks: Unpack, tree: Path) -> None:
    unpack_blocks(
        entry(b"f", b"first"),
        hard(b"h", b"f"),
        entry(b"f", b"last"),
        link(b"l", b"f"),
        entry(b"l", b"own"),
        link(b"h2", b"x"),
        hard(b"h2", b"f"),
        folder(b"d/", 0o700),
        folder(b"d/", 0o755),
    )
    assert [(tree / name).read_bytes() for name in ("f", "h", "l", "h2")] == [b"last", b"first", b"own", b"last"]
    assert mode_of(tree / "d") == 0o755


def test_names_of_whiteouts_are_plain_files_unless_it_is_a_layer(unpack_blocks: Unpack, tree: Path) -> None:
    unpack_blocks(entry(b"f", b"x"), entry(b".wh.f"), entry(b".wh..wh..opq"))
    assert sorted(os.listdir(tree)) == [".wh..wh..opq", ".wh.f", "f"]


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 1 << 20, (1 << 20) - 512, (1 << 20) + 1, 3_000_000])
def test_contents_of_every_size_are_whole(unpack_blocks: Unpack, tree: Path, size: int) -> None:
    content = os.urandom(size)
    unpack_blocks(entry(b"before", b"b"), entry(b"f", content), entry(b"after", b"a"))
    assert (tree / "f").read_bytes() == content
    assert (tree / "after").read_bytes() == b"a"


@pytest.mark.parametrize("content", [b"", b"no archive", bytes(100), b"x" * 5000])
def test_what_is_no_archive_is_refused(tmp_path: Path, tree: Path, content: bytes) -> None:
    (tmp_path / "archive").write_bytes(content)
    with pytest.raises(RootfsUnverified):
        unpack(os.fsencode(tmp_path / "archive"), os.fsencode(tree))


def test_an_archive_of_nothing_is_an_empty_tree(unpack_blocks: Unpack, tree: Path) -> None:
    assert unpack_blocks() == Unpacked(entries=0, size_bytes=0)
    assert os.listdir(tree) == []


def test_a_tree_that_is_not_empty_is_refused_unless_it_is_a_layer(unpack_blocks: Unpack, tree: Path) -> None:
    (tree / "other").touch()
    with pytest.raises(RootfsError, match="not empty"):
        unpack_blocks(entry(b"f"))


def test_a_tree_that_is_not_there_or_not_ours_to_write_is_said_so(unpack_blocks: Unpack, tree: Path) -> None:
    tree.chmod(0o555)
    with pytest.raises(RootfsError, match="Permission denied"):
        unpack_blocks(entry(b"f"))
    tree.rmdir()
    with pytest.raises(RootfsError, match="not a directory to unpack to"):
        unpack_blocks(entry(b"f"))


def test_an_archive_that_can_not_be_read_is_said_so(tmp_path: Path, tree: Path) -> None:
    with pytest.raises(RootfsError, match="can't be read: No such file"):
        unpack(os.fsencode(tmp_path / "none"), os.fsencode(tree))
    with pytest.raises(RootfsError, match="Is a directory"):
        unpack(os.fsencode(tmp_path), os.fsencode(tree))


def test_an_error_says_which_entry_it_was_and_no_control_character(unpack_blocks: Unpack) -> None:
    with pytest.raises(RootfsUnsafe) as refusal:
        unpack_blocks(entry(b"../\x1b[2J\n", b"x"))
    assert "'../\\x1b[2J\\n' points outside its directory" in refusal.value.message


def test_a_real_directory_comes_out_as_python_packed_it(tmp_path: Path, tree: Path) -> None:
    source = Path(os.__file__).parent / "email"
    with tarfile.open(tmp_path / "archive", "w:gz") as tar:
        tar.add(source, "email")
    unpack(os.fsencode(tmp_path / "archive"), os.fsencode(tree))
    for path in source.rglob("*"):
        made = tree / "email" / path.relative_to(source)
        if path.is_file():
            assert made.read_bytes() == path.read_bytes()
            assert made.stat().st_mtime_ns // 1000 == path.stat().st_mtime_ns // 1000


def test_directories_do_not_take_all_memory(unpack_blocks: Unpack, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [folder(b"%0100d" % number) for number in range(60)]
    # The same one again takes nothing
    monkeypatch.setattr(tar, "_MOST_TIME_BYTES", 60 * 400)
    unpack_blocks(*many, *many)
    for path in tree.iterdir():
        path.rmdir()
    monkeypatch.setattr(tar, "_MOST_TIME_BYTES", 60 * 400 - 1)
    with pytest.raises(RootfsUnsafe, match="paths of directories are too many"):
        unpack_blocks(*many)
