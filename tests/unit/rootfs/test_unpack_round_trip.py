# SPDX-License-Identifier: Apache-2.0
"""Whatever tree Python's own module packs, in any of its formats, comes out as it was."""

import io
import os
import stat
import tarfile
import tempfile
from dataclasses import dataclass
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from unspill.rootfs.tar import unpack

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
