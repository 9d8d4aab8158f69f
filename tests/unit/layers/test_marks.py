# SPDX-License-Identifier: Apache-2.0
"""Which mark counts for a path, and which marks a residue keeps."""

import os
import stat
from pathlib import Path

import pytest

from unspill.apply.draft import Marks
from unspill.apply.fold import FoldedLayers
from unspill.model.change import Change, Identity
from unspill.store.db import Store

FILE = Identity(kind="file", mode=0o644, inode=1, size=1, ctime_ns=1)
DIR = FILE.replace(kind="dir", mode=0o755)


class Layers:
    """Upper directories below one place, oldest first, with the marks 100, 200 and so on."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._uppers: list[tuple[bytes, int, dict[bytes, int]]] = []

    def add(self, *entries: str, overrides: dict[bytes, int] | None = None) -> "Layers":
        """Add a layer of entries: `a`, `d/`, `d/!` (opaque), `a -` (whiteout), `a @` (symlink to a directory)."""
        upper = self._place / f"layer{len(self._uppers)}"
        upper.mkdir()
        for entry in entries:
            path = upper / entry.rstrip("/!-@ ")
            path.parent.mkdir(parents=True, exist_ok=True)
            if entry.endswith("-"):
                os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))
            elif entry.endswith("@"):
                path.symlink_to(self._place)
            elif entry.endswith(("/", "!")):
                path.mkdir()
            else:
                path.touch()
            if entry.endswith("!"):
                os.setxattr(path, "user.overlay.opaque", b"y")
        self._uppers.append((os.fsencode(upper), 100 * (len(self._uppers) + 1), overrides or {}))
        return self

    def marks(self) -> Marks:
        return Marks(self._uppers)


@pytest.fixture
def layers(tmp_path: Path) -> Layers:
    return Layers(tmp_path)


@pytest.mark.parametrize(
    ("older", "newer", "path", "wanted"),
    [
        ("a", "a", b"a", 100),
        ("b", "a", b"a", 200),
        ("d/", "d/x", b"d/x", 200),
        ("d/", "d/", b"d", 100),
        ("d -", "d/x", b"d/x", 100),
        ("d/!", "d/x", b"d/x", 100),
        ("d", "d/x", b"d/x", 100),
        ("d @", "d/layer0", b"d/layer0", 100),
        ("d/e -", "d/e/f/g", b"d/e/f/g", 100),
        ("d/e/", "d/e/f/g", b"d/e/f/g", 200),
        ("d/x", "d/y", b"d", 100),
        ("b", "a", b".", 100),
        ("b", "a", b"nowhere", 100),
    ],
)
def test_the_oldest_layer_that_says_anything_about_a_path_has_the_mark(
    layers: Layers, older: str, newer: str, path: bytes, wanted: int
) -> None:
    marks = layers.add(older).add(newer).marks()
    assert marks.of(path) == wanted
    assert marks.of(path) == wanted


def test_a_link_in_a_layer_is_not_followed(layers: Layers, tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    layers.add("b").add("d @").add("d/x")
    assert layers.marks().of(b"d/x") == 200


def test_one_layer_without_overrides_is_never_looked_at(layers: Layers, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = layers.add("a").marks()
    monkeypatch.setattr(os, "lstat", None)
    assert marks.of(b"a") == marks.of(b"anything/else") == 100


def test_an_older_mark_of_a_path_wins(layers: Layers) -> None:
    marks = layers.add("a", "b", overrides={b"a": 50, b"b": 150}).marks()
    assert [marks.of(path) for path in (b"a", b"b", b"c")] == [50, 100, 100]


def test_an_older_mark_holds_below_what_hides_the_live_tree_and_not_below_a_directory_that_shows_it(
    layers: Layers,
) -> None:
    marks = layers.add("gone -", "d/x", overrides={b"gone": 50, b"d": 60}).marks()
    assert [marks.of(path) for path in (b"gone", b"gone/a/b", b"d", b"d/x")] == [50, 50, 60, 100]


def test_overrides_count_in_the_layer_that_has_the_mark(layers: Layers) -> None:
    marks = layers.add("a").add("a", "b", overrides={b"a": 10, b"b": 20}).marks()
    assert [marks.of(path) for path in (b"a", b"b")] == [100, 20]


def test_where_nobody_can_look_the_older_mark_counts(layers: Layers, tmp_path: Path) -> None:
    marks = layers.add("closed/x").add("closed/y").marks()
    (tmp_path / "layer0" / "closed").chmod(0)
    try:
        assert marks.of(b"closed/y") == 100
        assert marks.of(b"n" * 250 + (b"/" + b"n" * 250) * 20) == 100
    finally:
        (tmp_path / "layer0" / "closed").chmod(0o700)


class Live:
    """A live tree, and the mark between what is old in it and what is new."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        (root / "d").mkdir()
        for name in ("old", "new", "d/in"):
            (root / name).touch()
        self.mark = self._tick()
        (root / "new").chmod(0o600)
        self.now = self._tick()

    def _tick(self) -> int:
        """Let the clock of the filesystem move on; return a moment after all that was done."""
        probe = self.root.parent / "probe"
        probe.touch()
        first = os.lstat(probe).st_ctime_ns
        while (now := os.lstat(probe).st_ctime_ns) == first:
            probe.chmod(0o600)
        return now

    def kept(self, *changes: Change) -> dict[bytes, int]:
        with Store.open(os.fsencode(self.root.parent / "state")) as store:
            layers = FoldedLayers(store, os.fsencode(self.root), [("layer", os.fsencode(self.root), self.mark, {})])
            entries = layers.entries(changes)
        return {entry.change.path: entry.mark_ns for entry in entries if entry.mark_ns is not None}


@pytest.fixture
def live(tmp_path: Path) -> Live:
    return Live(tmp_path / "live")


def modified(path: bytes) -> Change:
    return Change(path=path, kind="modified", entry=FILE, base_kind="file")


def test_what_was_changed_since_the_old_mark_keeps_it(live: Live) -> None:
    assert live.kept(modified(b"old"), modified(b"new")) == {b"new": live.mark}


def test_what_is_not_there_gets_the_new_mark(live: Live) -> None:
    assert live.kept(Change(path=b"added", kind="added", entry=FILE), modified(b"d/gone")) == {}


def test_a_directory_that_is_to_go_keeps_the_old_mark_for_what_is_in_it(live: Live) -> None:
    os.utime(live.root / "d" / "in")
    for change in (
        Change(path=b"d", kind="deleted", base_kind="dir"),
        Change(path=b"d", kind="replaced", entry=FILE, base_kind="dir"),
        Change(path=b"d", kind="replaced", entry=DIR, base_kind="dir", unreadable=True),
    ):
        assert live.kept(change) == {b"d": live.mark}


def test_a_directory_that_only_gets_other_bits_is_judged_by_its_own_time(live: Live) -> None:
    change = Change(path=b"d", kind="metadata", entry=DIR, base_kind="dir", aspects=("mode",))
    assert live.kept(change) == {}
    (live.root / "d").chmod(0o700)
    assert live.kept(change) == {b"d": live.mark}


def test_the_root_is_judged_by_its_own_time(live: Live) -> None:
    change = Change(path=b".", kind="metadata", entry=DIR, base_kind="dir", aspects=("mode",))
    live.root.chmod(0o700)
    assert live.kept(change) == {b".": live.mark}


def test_behind_a_link_or_a_closed_door_the_old_mark_is_kept(live: Live, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "x").touch()
    (live.root / "link").symlink_to(outside)
    (live.root / "closed").mkdir(mode=0)
    try:
        kept = live.kept(modified(b"link/x"), modified(b"closed/x"))
    finally:
        (live.root / "closed").chmod(0o700)
    assert kept == {b"link/x": live.mark, b"closed/x": live.mark}
