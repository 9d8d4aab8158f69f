# SPDX-License-Identifier: Apache-2.0
"""Two trees have one digest exactly if they are the same in all that a sandbox can see."""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.errors import RootfsUnsafe
from unspill.rootfs.build import DEEPEST, tree_digest

Entry = tuple[str, int, bytes]
Spec = dict[tuple[bytes, ...], Entry]

names = st.sampled_from([b"a", b"b", b"c", b"ab", b"\xff", b"e", b"1:a"])
contents = st.sampled_from([b"", b"x", b"xy", b"f1:a644:0:", b"e", b"long" * 50_000])
kinds = st.one_of(
    st.tuples(st.just("file"), st.sampled_from([0o644, 0o755, 0o400, 0o4755]), contents),
    st.tuples(st.just("link"), st.just(0), st.sampled_from([b"a", b"/a", b"a/b", b"x1:y"])),
    st.tuples(st.just("directory"), st.sampled_from([0o755, 0o700, 0o1777]), st.just(b"")),
)
specs = st.dictionaries(st.lists(names, min_size=1, max_size=3).map(tuple), kinds, max_size=8)


def usable(spec: Spec) -> Spec:
    """Return those entries whose parents are directories, with the directories that are missing."""
    whole: Spec = {}
    for path, entry in sorted(spec.items()):
        above = [path[:end] for end in range(1, len(path))]
        if all(whole.get(parent, ("directory", 0o755, b""))[0] == "directory" for parent in above):
            whole |= {parent: ("directory", 0o755, b"") for parent in above if parent not in whole}
            whole[path] = entry
    return whole


@contextmanager
def trees(*wanted: tuple[Spec, bool]) -> Iterator[list[Path]]:
    """Make trees on the disk, each in the order of names or in the opposite one."""
    top = Path(tempfile.mkdtemp())
    try:
        yield [laid(top / str(index), spec, backwards) for index, (spec, backwards) in enumerate(wanted)]
    finally:
        shutil.rmtree(top)


def laid(top: Path, spec: Spec, backwards: bool) -> Path:
    """Make one tree."""
    top.mkdir()
    order = sorted(spec, key=lambda path: path[::-1] if backwards else path, reverse=backwards)
    for path in sorted(order, key=len):
        kind, mode, content = spec[path]
        place = os.path.join(os.fsencode(top), *path)
        if kind == "link":
            os.symlink(content, place)
            continue
        if kind == "directory":
            os.mkdir(place)
        else:
            Path(os.fsdecode(place)).write_bytes(content)
        os.chmod(place, mode)
    return top


def naive(top: bytes) -> dict[bytes, tuple[int, bytes]]:
    """Return all there is to see of a tree."""
    found: dict[bytes, tuple[int, bytes]] = {b"": (os.lstat(top).st_mode, b"")}
    for parent, directories, files in os.walk(top):
        for name in [*directories, *files]:
            path = os.path.join(parent, name)
            mode = os.lstat(path).st_mode
            content = b""
            if stat.S_ISLNK(mode):
                content = os.readlink(path)
            elif stat.S_ISREG(mode):
                content = Path(os.fsdecode(path)).read_bytes()
            found[os.path.relpath(path, top)] = (mode, content)
    return found


@given(first=specs.map(usable), second=specs.map(usable), same=st.booleans(), data=st.data())
def test_digests_are_equal_if_and_only_if_the_trees_are(
    first: Spec, second: Spec, same: bool, data: st.DataObject
) -> None:
    if same:
        second = dict(first)
    elif first:
        # Close relatives are what a weak encoding would take for one
        second = usable(first | {data.draw(st.sampled_from(sorted(first))): data.draw(kinds)})
    with trees((first, False), (second, True)) as (one, other):
        one_digest, other_digest = tree_digest(os.fsencode(one)), tree_digest(os.fsencode(other))
        seen = naive(os.fsencode(one))
        assert (one_digest[0] == other_digest[0]) == (seen == naive(os.fsencode(other)))
        assert one_digest[1] == len(seen) - 1
        assert one_digest[2] == sum(len(content) for mode, content in seen.values() if stat.S_ISREG(mode))


def base(top: Path) -> None:
    """Make a tree with one of each."""
    (top / "d").mkdir()
    (top / "d" / "f").write_bytes(b"content")
    (top / "l").symlink_to("d/f")
    (top / "big").write_bytes(b"\0" * (1 << 20))


def flip(path: Path, at: int) -> None:
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def relink(place: Path, target: str) -> None:
    """Have a link lead elsewhere."""
    place.unlink()
    place.symlink_to(target)


CHANGES: dict[str, Callable[[Path], object]] = {
    "a bit": lambda top: flip(top / "d" / "f", 3),
    "the last bit of a large file": lambda top: flip(top / "big", -1),
    "one byte more than is read at once": lambda top: (top / "big").write_bytes(b"\0" * ((1 << 20) + 1)),
    "a name": lambda top: (top / "d" / "f").rename(top / "d" / "g"),
    "a file's mode": lambda top: (top / "d" / "f").chmod(0o600),
    "a directory's mode": lambda top: (top / "d").chmod(0o700),
    "the top's mode": lambda top: top.chmod(0o711),
    "a link's target": lambda top: relink(top / "l", "d/g"),
    "a link that became what it leads to": lambda top: os.replace(top / "d" / "f", top / "l"),
    "an empty directory": lambda top: (top / "e").mkdir(),
    "an empty file": lambda top: (top / "e").touch(),
    "a fifo": lambda top: os.mkfifo(top / "e"),
    "a file that moved up": lambda top: (top / "d" / "f").rename(top / "f"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_makes_another_digest(tmp_path: Path, change: str) -> None:
    (tmp_path / "top").mkdir()
    base(tmp_path / "top")
    before = tree_digest(os.fsencode(tmp_path / "top"))
    CHANGES[change](tmp_path / "top")
    assert tree_digest(os.fsencode(tmp_path / "top"))[0] != before[0]


def test_times_hard_links_and_the_place_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    base(tmp_path / "one")
    (tmp_path / "one" / "same").write_bytes(b"content")
    before = tree_digest(os.fsencode(tmp_path / "one"))
    os.utime(tmp_path / "one" / "d" / "f", ns=(1, 1))
    (tmp_path / "one" / "same").unlink()
    (tmp_path / "one" / "same").hardlink_to(tmp_path / "one" / "d" / "f")
    (tmp_path / "one").rename(tmp_path / "two")
    assert tree_digest(os.fsencode(tmp_path / "two")) == before


def test_a_fifo_is_not_waited_for_and_a_link_not_followed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "away").symlink_to("/proc")
    (tmp_path / "nowhere").symlink_to("/nonexistent")
    assert tree_digest(os.fsencode(tmp_path))[1:] == (3, 0)


def test_a_tree_without_bottom_is_refused(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(DEEPEST + 2):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    with pytest.raises(RootfsUnsafe):
        tree_digest(os.fsencode(tmp_path))
