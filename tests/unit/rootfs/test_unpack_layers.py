# SPDX-License-Identifier: Apache-2.0
"""Layers over layers: what a layer removes, and what it never removes, in whatever order its entries come."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attack.tar_crafting import END, entry, folder, hard, link, long_name
from unspill.errors import RootfsUnsafe
from unspill.rootfs import tar
from unspill.rootfs.tar import unpack

OPAQUE = b".wh..wh..opq"


def stack(tree: Path, *layers: list[bytes]) -> None:
    for number, layer in enumerate(layers):
        archive = tree.parent / f"layer-{number}"
        archive.write_bytes(b"".join(layer) + END)
        unpack(os.fsencode(archive), os.fsencode(tree), whiteouts=True)


def listed(tree: Path) -> list[str]:
    return sorted(os.fspath(path.relative_to(tree)) for path in tree.rglob("*"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    path = tmp_path / "tree"
    path.mkdir()
    return path


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
