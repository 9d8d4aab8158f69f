# SPDX-License-Identifier: Apache-2.0
"""What is unpacked, exactly: kinds, modes, times and links, headers, layers over layers, and whole round trips."""

import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.attack.tar_crafting import END, GNU, base256, entry, folder, hard, link, long_name, pax, record
from unspill.errors import RootfsError, RootfsUnsafe, RootfsUnverified
from unspill.rootfs import tar
from unspill.rootfs.tar import Header, Unpacked, apply_pax, parse_header, parse_pax, unpack

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


DIGITS = st.text("01234567 \0", min_size=11, max_size=11).map(lambda text: text.encode() + b"\0")
FIELDS = st.one_of(
    DIGITS,
    st.binary(min_size=12, max_size=12),
    st.integers(0, 1 << 80).map(base256),
    st.integers(-(1 << 80), -1).map(base256),
)


def size_by_python(field: bytes) -> int | None:
    try:
        # It takes any first byte of a binary number, signs, underscores and `0o`; where it is stricter we have to be
        return int(tarfile.nti(field))  # type: ignore[attr-defined]
    except tarfile.TarError:
        return None


@given(FIELDS)
@example(b"-0000000001\0")
@example(b"+0000000001\0")
@example(b"0_000000001\0")
@example(b"0o000000001\0")
@example(b"00000000008\0")
@example(b"   1234  \0\0\0")
@example(bytes(12))
def test_a_number_is_what_others_read_or_none(field: bytes) -> None:
    try:
        size = parse_header(entry(b"f", size=field)[:512]).size
    except RootfsUnverified:
        return
    assert size == size_by_python(field)
    assert size >= 0


@pytest.mark.parametrize(
    "field", [b"-0000000001\0", b"+0000000001\0", b"0_000000001\0", b"0o000000001\0", b"0x1\0" * 3]
)
def test_a_number_that_readers_disagree_about_is_refused(field: bytes) -> None:
    with pytest.raises(RootfsUnverified):
        parse_header(entry(b"f", size=field)[:512])


@given(st.binary(min_size=512, max_size=512))
@example(b"\xff" * 512)
@example(b"\x01" * 512)
def test_a_block_is_a_header_only_with_the_right_checksum(noise: bytes) -> None:
    numbers = entry(b"f")[100:148]
    block = noise[:100] + numbers + bytes(8) + noise[156:]
    right = tarfile.calc_chksums(block)[0]  # type: ignore[attr-defined]
    parse_header(block[:148] + b"%06o\0 " % right + block[156:])
    parse_header(block[:148] + b"%07o\0" % right + block[156:])
    for wrong in (right + 1, right - 1, 0, (right + 65521) % (1 << 18)):
        with pytest.raises(RootfsUnverified):
            parse_header(block[:148] + b"%06o\0 " % wrong + block[156:])


def test_a_prefix_belongs_to_the_name_only_where_the_format_has_one() -> None:
    def name_with(magic: bytes) -> bytes:
        block = bytearray(entry(b"name", magic=magic)[:512])
        block[345:351] = b"prefix"
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        return parse_header(bytes(block)).name

    names = [name_with(magic) for magic in (b"ustar\x0000", b"ustar\0\0\0", b"ustar  \0", bytes(8))]
    assert names == [b"prefix/name", b"prefix/name", b"name", b"name"]


@given(st.dictionaries(st.binary(min_size=1).filter(lambda key: b"=" not in key), st.binary(), max_size=5))
def test_extended_headers_hold_any_bytes(records: dict[bytes, bytes]) -> None:
    assert parse_pax(b"".join(record(key, value) for key, value in records.items())) == records


def test_of_two_records_with_one_key_the_later_holds() -> None:
    assert parse_pax(record(b"path", b"a") + record(b"path", b"b")) == {b"path": b"b"}


@pytest.mark.parametrize(
    "body",
    [
        b"\0",
        b"x",
        b"5",
        b"0 a=b\n",
        b"6 a=b\n6 a=b",
        b"7 a=b\n",
        b"5 ab\n",
        b"5 =b\n",
        b"-6 a=b\n",
        b"99 a=b\n",
        b"3 \n",
    ],
)
def test_what_is_no_record_is_refused(body: bytes) -> None:
    with pytest.raises(RootfsUnverified):
        parse_pax(body)


def plain_header(size: int = 0) -> Header:
    return Header(b"f", b"0", 0o644, size, 0, b"")


def test_a_size_beyond_what_a_plain_header_holds_is_taken_from_the_record() -> None:
    header = plain_header(0o77777777777)
    apply_pax(header, {b"size": b"%d" % (9 << 30)})
    assert header.size == 9 << 30


@pytest.mark.parametrize(("size", "written"), [(512, b"0"), (1, b"2"), (0o77777777777, b"5")])
def test_two_sizes_are_refused(size: int, written: bytes) -> None:
    with pytest.raises(RootfsUnsafe, match="two sizes"):
        apply_pax(plain_header(size), {b"size": written})


@pytest.mark.parametrize("value", [b"", b"-1", b"1.5", b"0x10", b" 1", b"1" * 21])
def test_a_size_that_is_no_number_is_refused(value: bytes) -> None:
    with pytest.raises(RootfsUnverified):
        apply_pax(plain_header(), {b"size": value})


@pytest.mark.parametrize("value", [b"", b"x", b"1.5.5", b"1e9", b"--1", b"1.-5", b".5"])
def test_a_time_that_is_no_number_is_refused(value: bytes) -> None:
    with pytest.raises(RootfsUnverified):
        apply_pax(plain_header(), {b"mtime": value})


OPAQUE = b".wh..wh..opq"


def stack(tree: Path, *layers: list[bytes]) -> None:
    for number, layer in enumerate(layers):
        archive = tree.parent / f"layer-{number}"
        archive.write_bytes(b"".join(layer) + END)
        unpack(os.fsencode(archive), os.fsencode(tree), whiteouts=True)


def listed(tree: Path) -> list[str]:
    return sorted(os.fspath(path.relative_to(tree)) for path in tree.rglob("*"))


LOWER = [
    folder(b"d/"),
    entry(b"d/a", b"1"),
    folder(b"d/s/"),
    entry(b"d/s/x", b"2"),
    entry(b"f", b"3"),
    link(b"l", b"d"),
]

CASES = [
    ("a whiteout of a file", [entry(b".wh.f")], ["d", "d/a", "d/s", "d/s/x", "l"]),
    ("a whiteout of a directory", [entry(b".wh.d")], ["f", "l"]),
    ("a whiteout of a link", [entry(b".wh.l")], ["d", "d/a", "d/s", "d/s/x", "f"]),
    ("a whiteout of nothing", [entry(b".wh.none")], ["d", "d/a", "d/s", "d/s/x", "f", "l"]),
    ("a whiteout below nothing", [entry(b"none/.wh.x")], ["d", "d/a", "d/s", "d/s/x", "f", "l"]),
    ("a whiteout further down", [entry(b"d/s/.wh.x")], ["d", "d/a", "d/s", "f", "l"]),
    ("an opaque directory", [entry(b"d/" + OPAQUE)], ["d", "f", "l"]),
    ("opaque first", [entry(b"d/" + OPAQUE), entry(b"d/n")], ["d", "d/n", "f", "l"]),
    ("opaque last", [entry(b"d/n"), entry(b"d/" + OPAQUE)], ["d", "d/n", "f", "l"]),
    ("opaque last, deeper", [entry(b"d/s/n"), entry(b"d/" + OPAQUE)], ["d", "d/s", "d/s/n", "f", "l"]),
    ("the tree itself is opaque", [entry(b"n"), entry(OPAQUE)], ["n"]),
    ("a whiteout and the same anew", [entry(b".wh.d"), entry(b"d/n")], ["d", "d/n", "f", "l"]),
    ("the same anew and a whiteout", [entry(b"d/n"), entry(b".wh.d")], ["d", "d/n", "f", "l"]),
    ("a file over a directory", [entry(b"d", b"x")], ["d", "f", "l"]),
    ("a link over a directory", [link(b"d", b"/")], ["d", "f", "l"]),
    ("a hard link over a directory", [hard(b"d", b"f")], ["d", "f", "l"]),
    ("a directory over a file", [folder(b"f/"), entry(b"f/n")], ["d", "d/a", "d/s", "d/s/x", "f", "f/n", "l"]),
    ("a directory over a link", [folder(b"l/"), entry(b"l/n")], ["d", "d/a", "d/s", "d/s/x", "f", "l", "l/n"]),
    ("a directory again", [folder(b"d/", 0o700)], ["d", "d/a", "d/s", "d/s/x", "f", "l"]),
    ("a hard link to what is below", [hard(b"h", b"d/s/x")], ["d", "d/a", "d/s", "d/s/x", "f", "h", "l"]),
]


@pytest.mark.parametrize(("layer", "left"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_layer_removes_what_it_says_of_those_below(tree: Path, layer: list[bytes], left: list[str]) -> None:
    stack(tree, LOWER, layer)
    assert listed(tree) == left


REFUSED = [
    ("below a link of a lower layer", [entry(b"l/n")]),
    ("below a file of a lower layer", [entry(b"f/n")]),
    ("a whiteout below a link", [entry(b"l/.wh.a")]),
    ("a whiteout with a content", [entry(b".wh.f", b"x")]),
    ("a directory that is a whiteout", [folder(b".wh.f/")]),
    ("a hard link that is a whiteout", [hard(b".wh.x", b"f")]),
    ("a hard link over the directory of its target", [hard(b"d", b"d/s/x")]),
    ("a file over its own directory", [entry(b"d/n"), entry(b"d")]),
    ("a directory over its own file", [entry(b"n"), folder(b"n/")]),
]


@pytest.mark.parametrize("layer", [case[1] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_a_layer_that_contradicts_itself_or_goes_through_a_link_is_refused(tree: Path, layer: list[bytes]) -> None:
    stack(tree, LOWER)
    with pytest.raises(RootfsUnsafe):
        stack(tree, layer)


def test_a_file_of_a_lower_layer_is_replaced_not_written_to(tree: Path) -> None:
    stack(tree, [entry(b"f", b"old"), hard(b"h", b"f")], [entry(b"f", b"new")])
    assert [(tree / name).read_bytes() for name in "fh"] == [b"new", b"old"]


def deep_whiteouts(count: int) -> list[bytes]:
    """Return whiteouts far below directories that are not there: each path above one of them is another one."""
    below = b"/".join([b"p" * 30] * 120)
    return [long_name(b"%d/%s/.wh.x" % (number, below)) + entry(b"x") for number in range(count)]


def test_paths_of_a_layer_do_not_take_all_memory(tree: Path) -> None:
    with pytest.raises(RootfsUnsafe, match="paths of one layer"):
        stack(tree, deep_whiteouts(600))
    assert listed(tree) == []


def test_without_the_bound_they_would(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = deep_whiteouts(10)
    stack(tree, layer)
    monkeypatch.setattr(tar, "_MOST_LAYER_BYTES", 1 << 20)
    with pytest.raises(RootfsUnsafe, match="paths of one layer"):
        stack(tree, layer)


@dataclass(frozen=True)
class Layer:
    """Entries by path (None is a directory), whiteouts, opaque directories, and an order."""

    entries: dict[str, bytes | None]
    whiteouts: list[str] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)
    order: list[int] = field(default_factory=list)

    def blocks(self) -> list[bytes]:
        """Return what the archive has: whatever the order, a directory comes before what is in it."""
        parts: list[tuple[str, bytes]] = []
        for path, content in self.entries.items():
            made = folder(path.encode() + b"/") if content is None else entry(path.encode(), content)
            parts.append((path, made))
        parts += [whiteout(path) for path in self.whiteouts]
        parts += [
            (f"{path}/{OPAQUE.decode()}".lstrip("/"), entry((path.encode() + b"/" if path else b"") + OPAQUE))
            for path in self.opaque
        ]
        ranked = sorted(zip(self.order, parts, strict=False), key=lambda pair: pair[0])
        return [made for _, made in place([part for _, part in ranked])]


def whiteout(path: str) -> tuple[str, bytes]:
    above, slash, name = path.rpartition("/")
    where = f"{above}{slash}.wh.{name}"
    return where, entry(where.encode())


def place(parts: list[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """Yield the parts in their order, but none before the directory it is in."""
    waiting = list(parts)
    names = {path for path, _ in parts}
    done: set[str] = set()
    while waiting:
        ready = next(
            part
            for part in waiting
            if part[0].rpartition("/")[0] in done | {""} or part[0].rpartition("/")[0] not in names
        )
        waiting.remove(ready)
        done.add(ready[0])
        yield ready


def apply(below: dict[str, bytes | None], layer: Layer) -> dict[str, bytes | None]:
    """Return what is there after a layer: the oracle."""

    def is_gone(path: str) -> bool:
        hidden = any(path == gone or path.startswith(f"{gone}/") for gone in layer.whiteouts)
        hidden |= any(not top or path.startswith(f"{top}/") for top in layer.opaque)
        files = [name for name, content in layer.entries.items() if content is not None]
        return hidden or any(path == name or path.startswith(f"{name}/") for name in files)

    kept = {path: content for path, content in below.items() if not is_gone(path)}
    return kept | layer.entries


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    entries: dict[str, bytes | None] = {}
    for path in draw(st.lists(st.sampled_from(PATHS), max_size=6, unique=True)):
        above = path
        while "/" in above:
            above = above.rpartition("/")[0]
            entries[above] = None
        if path not in entries:
            entries[path] = draw(st.none() | st.sampled_from([b"1", b"2"]))
    entries = {path: entries[path] for path in entries if all(entries.get(top) is None for top in above_of(path))}
    folders = [path for path, content in entries.items() if content is None]
    hidden = [path for path in PATHS if "/" not in path or path.rpartition("/")[0] in folders]
    whiteouts = draw(st.lists(st.sampled_from(hidden), max_size=2, unique=True))
    opaque = draw(st.lists(st.sampled_from([*folders, ""]), max_size=1))
    count = len(entries) + len(whiteouts) + len(opaque)
    return Layer(entries, whiteouts, opaque, draw(st.permutations(range(count))))


def above_of(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


TOPS = ("a", "b")
PATHS = [
    *TOPS,
    *(f"{top}/{name}" for top in TOPS for name in "xy"),
    *(f"{top}/x/{name}" for top in TOPS for name in "pq"),
]


@given(st.lists(layers(), min_size=1, max_size=4))
def test_layers_add_up_as_they_should_in_any_order_of_their_entries(pile: list[Layer]) -> None:
    wanted: dict[str, bytes | None] = {}
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        tree.mkdir()
        for layer in pile:
            stack(tree, layer.blocks())
            wanted = apply(wanted, layer)
        found = {
            os.fspath(path.relative_to(tree)): path.read_bytes() if path.is_file() else None for path in tree.rglob("*")
        }
    assert found == wanted


LONG = st.integers(90, 255).map(lambda length: b"n" * length)
NAMES = st.one_of(
    st.sampled_from([b"a", b"b", b"c", b".wh.a", b" ", b"-rf", b"\xff\xfe", b"\xc3\xa4", b"new\nline", b"a b", b"..."]),
    LONG,
    st.binary(min_size=1, max_size=20).filter(lambda name: not set(name) & {0, 0x2F} and name not in (b".", b"..")),
)
MODES = st.integers(0, 0o777)
TIMES = st.integers(0, 1 << 33).map(float) | st.sampled_from([0.5, 1234567890.25])


@dataclass(frozen=True)
class File:
    content: bytes
    mode: int
    mtime: float


@dataclass(frozen=True)
class Folder:
    children: dict[bytes, "Node"]
    mode: int
    mtime: float


@dataclass(frozen=True)
class Link:
    target: bytes
    mtime: float


Node = File | Folder | Link

CONTENTS = st.binary(max_size=40) | st.integers(0, 3000).map(lambda size: b"x" * size)
TARGETS = st.one_of(NAMES, st.sampled_from([b"/etc/passwd", b"../../../x", b"a/b/" + b"t" * 300]))
LEAVES = st.builds(File, CONTENTS, MODES, TIMES) | st.builds(Link, TARGETS, TIMES)
NODES = st.recursive(
    LEAVES, lambda inner: st.builds(Folder, st.dictionaries(NAMES, inner, max_size=4), MODES, TIMES), max_leaves=12
)
TREES = st.dictionaries(NAMES, NODES, max_size=5)
FORMATS = st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
COMPRESSIONS = st.sampled_from(["", "", "gz", "bz2", "xz"])


def pack(tree: dict[bytes, Node], form: int, compression: str) -> tuple[bytes, bool]:
    """Return the archive, and whether its format could hold everything."""
    made = io.BytesIO()
    whole = True
    with tarfile.open(
        fileobj=made, mode=f"w:{compression}", format=form, encoding="utf-8", errors="surrogateescape"
    ) as tar:  # type: ignore[call-overload]
        for path, node in walk(tree):
            try:
                add(tar, path, node)
            except ValueError:
                whole = False
    return made.getvalue(), whole


def walk(tree: dict[bytes, Node], above: bytes = b"") -> list[tuple[bytes, Node]]:
    found = []
    for name, node in tree.items():
        found.append((above + name, node))
        if isinstance(node, Folder):
            found += walk(node.children, above + name + b"/")
    return found


def add(tar: tarfile.TarFile, path: bytes, node: Node) -> None:
    entry = tarfile.TarInfo(os.fsdecode(path))
    entry.mtime = node.mtime if tar.format == tarfile.PAX_FORMAT else int(node.mtime)
    match node:
        case File():
            entry.size, entry.mode = len(node.content), node.mode
            tar.addfile(entry, io.BytesIO(node.content))
            return
        case Folder():
            entry.type, entry.mode = tarfile.DIRTYPE, node.mode
        case Link():
            entry.type, entry.linkname = tarfile.SYMTYPE, os.fsdecode(node.target)
    tar.addfile(entry)


def expected(tree: dict[bytes, Node], form: int) -> dict[bytes, tuple[object, ...]]:
    """Return how each path must be after unpacking."""
    found: dict[bytes, tuple[object, ...]] = {}
    for path, node in walk(tree):
        seconds = node.mtime if form == tarfile.PAX_FORMAT else int(node.mtime)
        mtime = int(Fraction(min(seconds, (1 << 33) - 1)) * 10**9)
        match node:
            case File():
                found[path] = (stat.S_IFREG, node.mode | 0o400, mtime, node.content)
            case Folder():
                found[path] = (stat.S_IFDIR, node.mode | 0o700, mtime, b"")
            case Link():
                found[path] = (stat.S_IFLNK, 0o777, mtime, node.target)
    return found


def found_in(top: bytes) -> dict[bytes, tuple[object, ...]]:
    found: dict[bytes, tuple[object, ...]] = {}
    for directory, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            content = b""
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    content = file.read()
            described = (stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode), status.st_mtime_ns, content)
            found[os.path.relpath(path, top)] = described
    return found


@given(tree=TREES, form=FORMATS, compression=COMPRESSIONS)
def test_what_was_packed_comes_out_as_it_was(tree: dict[bytes, Node], form: int, compression: str) -> None:
    archive, whole = pack(tree, form, compression)
    if not whole:
        return
    with tempfile.TemporaryDirectory() as scratch:
        top = os.fsencode(scratch)
        path, made = top + b"/archive", top + b"/tree"
        os.mkdir(made)
        with open(path, "wb") as file:
            file.write(archive)
        unpacked = unpack(path, made)
        wanted = expected(tree, form)
        assert found_in(made) == wanted
        assert unpacked.entries == len(wanted)
