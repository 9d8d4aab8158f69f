# SPDX-License-Identifier: Apache-2.0
"""Copies of open layers stay inside: a link that a command puts in the place of a directory is never followed."""

import mmap
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest

from unspill.errors import SandboxUnavailable
from unspill.layers import checkpoint
from unspill.layers.checkpoint import LayerCopy

SECRET = b"of the person\n"


class Following:
    """The naive way to reach what lies beneath a directory: by its path, links and all."""

    def __init__(self, root_fd: int, _open_closed: object = None) -> None:
        self.root_fd = root_fd
        self._opened = [root_fd]

    def directory(self, path: bytes) -> int:
        self._opened.append(os.open(path or b".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.root_fd))
        return self._opened[-1]

    def parent(self, path: bytes) -> tuple[int, bytes]:
        above, _, name = path.rpartition(b"/")
        return self.directory(above), name

    def find(self, path: bytes) -> os.stat_result | None:
        try:
            return os.stat(path, dir_fd=self.root_fd)
        except FileNotFoundError:
            return None

    def forget(self, _path: bytes) -> None:
        pass

    def close(self) -> None:
        while self._opened:
            os.close(self._opened.pop())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_details: object) -> None:
        self.close()


class Place:
    """A layer with a directory, and one of the host that a link leads to."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.layer, self.outside = top / "layer", top / "outside"
        for path in (self.layer / "d", self.outside):
            path.mkdir(parents=True)
        (self.layer / "d/x").write_bytes(b"of the run \n")
        (self.layer / "d/victim").write_bytes(b"v")
        (self.outside / "x").write_bytes(SECRET)
        (self.outside / "victim").write_bytes(SECRET)
        self._copies = 0

    def exchange(self) -> None:
        """Put a link in the place of the directory, or the directory back."""
        there, aside = self.layer / "d", self.top / "aside"
        if there.is_symlink():
            there.unlink()
            aside.rename(there)
        else:
            there.rename(aside)
            there.symlink_to(self.outside)

    def copy(self, last: LayerCopy | None = None) -> LayerCopy:
        self._copies += 1
        return LayerCopy(os.fsencode(self.layer), os.fsencode(self.top / f"copy-{self._copies}"), last)

    def outside_is_untouched(self) -> bool:
        return {path.name: path.read_bytes() for path in self.outside.iterdir() if path.is_file()} == {
            "x": SECRET,
            "victim": SECRET,
        } and not any(stat.S_ISCHR(path.lstat().st_mode) for path in self.outside.iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(params=["by descriptors", "control"])
def is_safe(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "control":
        monkeypatch.setattr(checkpoint, "Beneath", Following)
        monkeypatch.setattr(checkpoint, "_check", lambda _is_same: None)
    return bool(request.param != "control")


def after_next_walk(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Do something right after a layer was looked at, once."""
    walk, waiting = checkpoint.walk, [act]

    def walked(*given: Any, **named: Any) -> Any:
        found = walk(*given, **named)
        if waiting:
            waiting.pop()()
        return found

    monkeypatch.setattr(checkpoint, "walk", walked)


def test_what_lies_behind_a_link_is_not_copied(place: Place, is_safe: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    after_next_walk(monkeypatch, place.exchange)
    copy = place.copy()
    copy.begin(time.time_ns(), [])
    copied = Path(os.fsdecode(copy.dest)) / "d/x"
    assert (copied.is_file() and copied.read_bytes() == SECRET) is not is_safe
    if is_safe:
        # Back again it looks as it did, and is copied all the same
        place.exchange()
        copy.catch_up([])
        copy.finish()
        assert copied.read_bytes() == b"of the run \n"


def test_nothing_is_written_or_removed_behind_a_link(place: Place, is_safe: bool) -> None:
    copy = place.copy()
    copy.begin(time.time_ns(), [])
    (place.layer / "d/victim").unlink()
    # As if the copy itself had become the link
    there = Path(os.fsdecode(copy.dest)) / "d"
    there.rename(place.top / "taken")
    there.symlink_to(place.outside)
    if is_safe:
        with pytest.raises(SandboxUnavailable):
            copy.catch_up([])
    else:
        copy.catch_up([])
    assert place.outside_is_untouched() is is_safe


def test_no_mark_of_a_deletion_is_made_behind_a_link(place: Place, is_safe: bool) -> None:
    (place.layer / "d/more").write_bytes(b"")
    first = place.copy()
    first.begin(time.time_ns(), [])
    first.catch_up([])
    first.finish()
    place.exchange()
    second = place.copy(first)
    second.begin(time.time_ns(), [])
    second.catch_up([])
    if not is_safe:
        # That something is there would do
        second._modes[b"d"] = stat.S_IFDIR | 0o755
    second.finish()
    first.bury_in_layer()
    assert place.outside_is_untouched() is is_safe


def test_a_deletion_is_marked_in_a_directory_that_was_closed(place: Place) -> None:
    first = place.copy()
    first.begin(time.time_ns(), [])
    first.catch_up([])
    first.finish()
    (place.layer / "d/x").unlink()
    (place.layer / "d").chmod(0o555)
    first.bury_in_layer()
    assert stat.S_ISCHR((place.layer / "d/x").lstat().st_mode)
    assert stat.S_IMODE((place.layer / "d").stat().st_mode) == 0o555
    # Whoever removes it can't otherwise
    (place.layer / "d").chmod(0o755)


def test_a_file_that_is_mapped_by_a_name_that_was_deleted_is_copied_again(place: Place) -> None:
    path = place.layer / "a"
    path.write_bytes(b"0" * 4096)
    (place.layer / "b").hardlink_to(path)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 4096) as page:
        path.unlink()
        page[:1] = b"1"
        copies: list[LayerCopy] = []
        for content in (b"2", b"3"):
            copies.append(place.copy(copies[-1] if copies else None))
            copies[-1].begin(time.time_ns(), [b"a (deleted)"])
            page[:1] = content
            copies[-1].catch_up([b"a (deleted)"])
            copies[-1].finish()
            assert (Path(os.fsdecode(copies[-1].dest)) / "b").read_bytes()[:1] == content
