# SPDX-License-Identifier: Apache-2.0
"""Steps are done, refused or taken back by what is there; an entry is known after a rename, and never overwritten."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unspill.apply.perform import perform, take_back
from unspill.apply.steps import OpenDirs, entry_of, matches
from unspill.model.operation import Metadata, Step


class Ground:
    """A live root and a directory of operations side by side, and steps between them."""

    def __init__(self, base: Path) -> None:
        self.live = base / "live"
        self.places = base / "state" / "operations" / "op"
        self.live.mkdir()
        self.places.mkdir(parents=True)
        self.dirs = OpenDirs(os.fsencode(base / "state"))
        self.dirs.open_roots([os.fsencode(self.live)])

    def step(self, action: str, name: str, place: str = "p", **fields: Any) -> Step:
        found = {
            "before": entry_of(os.lstat(self.live / name)) if os.path.lexists(self.live / name) else None,
            "after": entry_of(os.lstat(self.places / place)) if os.path.lexists(self.places / place) else None,
        }
        given: dict[str, Any] = {"root": 0, "group": 1, "place": b"op/" + os.fsencode(place)}
        return Step(path=os.fsencode(name), action=action, **(given | found | fields))  # type: ignore[arg-type]

    def state(self) -> dict[str, str]:
        """Return what is where, in a form that can be compared."""
        found = {}
        for path in sorted([*self.live.rglob("*"), *self.places.rglob("*")]):
            found[os.path.relpath(path, self.live.parent)] = f"{path.lstat().st_ino} {path.lstat().st_mode:o}"
        return found


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    with made.dirs:
        yield made


def one(ground: Ground, step: Step) -> str | None:
    """Do one step; return why it was left, None if it was done."""
    done, left = perform(ground.dirs, [step])
    assert bool(done) != bool(left)
    return left[0].reason if left else None


def test_a_put_exchanges_the_entries_and_keeps_both_inodes(ground: Ground) -> None:
    (ground.live / "a").write_text("old")
    (ground.places / "p").write_text("new")
    inodes = (ground.live / "a").stat().st_ino, (ground.places / "p").stat().st_ino
    assert one(ground, ground.step("put", "a")) is None
    assert (ground.live / "a").read_text() == "new"
    assert (ground.places / "p").read_text() == "old"
    assert inodes == ((ground.places / "p").stat().st_ino, (ground.live / "a").stat().st_ino)


def edit_in_place(path: Path) -> None:
    path.write_text("their own")


def edit_by_rename(path: Path) -> None:
    path.with_name("temporary").write_text("theirs")
    path.with_name("temporary").rename(path)


def delete(path: Path) -> None:
    path.unlink()


def make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("edit", [edit_in_place, edit_by_rename, delete, make_directory])
@pytest.mark.parametrize("action", ["put", "take"])
def test_whatever_a_person_did_meanwhile_stays_and_is_reported(ground: Ground, action: str, edit: Any) -> None:
    (ground.live / "a").write_text("old")
    if action == "put":
        (ground.places / "p").write_text("new")
    step = ground.step(action, "a")
    edit(ground.live / "a")
    before = ground.state()
    assert one(ground, step) is not None
    assert ground.state() == before


def test_nothing_is_put_where_a_person_made_something_meanwhile(ground: Ground) -> None:
    (ground.places / "p").write_text("new")
    step = ground.step("put", "a")
    (ground.live / "a").write_text("theirs")
    assert one(ground, step) == "something else is there now"
    assert (ground.live / "a").read_text() == "theirs"
    assert (ground.places / "p").read_text() == "new"


def test_a_directory_with_something_new_in_it_is_not_taken(ground: Ground) -> None:
    (ground.live / "d").mkdir()
    step = ground.step("take", "d")
    (ground.live / "d" / "theirs").write_text("x")
    assert one(ground, step) == "the directory is not empty"
    assert (ground.live / "d" / "theirs").read_text() == "x"


def test_a_link_in_the_place_of_a_directory_is_not_followed(ground: Ground, tmp_path: Path) -> None:
    (ground.live / "d").mkdir()
    (ground.places / "p").write_text("new")
    step = ground.step("put", "d/a")
    outside = tmp_path / "outside"
    outside.mkdir()
    (ground.live / "d").rmdir()
    (ground.live / "d").symlink_to(outside)
    assert one(ground, step) is not None
    assert list(outside.iterdir()) == []


def test_steps_of_a_group_are_done_all_or_none(ground: Ground) -> None:
    (ground.live / "a").write_text("old")
    (ground.places / "q").write_text("new")
    take, put = ground.step("take", "a"), ground.step("put", "a", "q", before=None)
    (ground.places / "q").unlink()
    before = ground.state()
    done, left = perform(ground.dirs, [take, put])
    assert (done, [one.path for one in left]) == ([], [b"a"])
    assert ground.state() == before


def test_a_group_that_fails_does_not_stop_the_others(ground: Ground) -> None:
    (ground.live / "a").write_text("old")
    (ground.live / "b").write_text("old")
    first, second = ground.step("take", "a"), ground.step("take", "b", "q", group=2)
    (ground.live / "a").write_text("theirs")
    done, left = perform(ground.dirs, [first, second])
    assert (done, [one.path for one in left]) == ([1], [b"a"])


def steps_of_each_kind(ground: Ground) -> list[Step]:
    (ground.live / "changed").write_text("old")
    (ground.live / "gone").write_text("old")
    (ground.live / "empty").mkdir()
    (ground.live / "closed").mkdir(mode=0o755)
    (ground.places / "1").write_text("new")
    (ground.places / "2").symlink_to("target")
    (ground.places / "3").mkdir()
    return [
        ground.step("put", "changed", "1", group=1),
        ground.step("put", "link", "2", group=2),
        ground.step("put", "made", "3", group=3),
        ground.step("take", "gone", "4", group=4),
        ground.step("take", "empty", "5", group=5),
        ground.step("set_metadata", "closed", group=6, was=Metadata(mode=0o755), becomes=Metadata(mode=0o500)),
    ]


def test_every_step_can_be_taken_back_from_any_point_and_any_number_of_times(ground: Ground) -> None:
    steps = steps_of_each_kind(ground)
    before = ground.state()
    for count in range(len(steps) + 1):
        done, left = perform(ground.dirs, steps[:count])
        assert (done, left) == (list(range(count)), [])
        for _ in range(2):
            assert [take_back(ground.dirs, step) for step in reversed(steps)] == [None] * len(steps)
            assert ground.state() == before


def test_a_person_s_edit_of_what_was_put_is_not_taken_back(ground: Ground) -> None:
    (ground.live / "a").write_text("old")
    (ground.places / "p").write_text("new")
    step = ground.step("put", "a")
    perform(ground.dirs, [step])
    (ground.live / "a").write_text("new, and theirs")
    assert take_back(ground.dirs, step) == "it has changed since"
    assert (ground.live / "a").read_text() == "new, and theirs"
    assert (ground.places / "p").read_text() == "old"


def test_what_was_taken_does_not_come_back_over_something_new(ground: Ground) -> None:
    (ground.live / "a").write_text("old")
    step = ground.step("take", "a")
    perform(ground.dirs, [step])
    (ground.live / "a").write_text("theirs")
    assert take_back(ground.dirs, step) == "something else is there now"
    assert (ground.live / "a").read_text() == "theirs"


def rename(path: Path) -> None:
    path.rename(path.with_name("moved"))
    (path.with_name("moved")).rename(path)


def write(path: Path) -> None:
    path.write_text("other")


def replace(path: Path) -> None:
    path.with_name("new").write_text("text")
    path.with_name("new").rename(path)


def chmod(path: Path) -> None:
    path.chmod(0o600)


def swap_for_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("x")


@pytest.mark.parametrize(
    ("change", "is_same"), [(rename, True), (write, False), (replace, False), (chmod, False), (swap_for_link, False)]
)
def test_only_a_rename_leaves_a_file_what_it_was(tmp_path: Path, change: Callable[[Path], None], is_same: bool) -> None:
    path = tmp_path / "file"
    path.write_text("text")
    path.chmod(0o644)
    os.utime(path, ns=(1, 1))
    entry = entry_of(os.lstat(path))
    change(path)
    assert matches(os.lstat(path), entry) == is_same


def test_a_directory_is_the_same_whatever_is_in_it(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    entry = entry_of(os.lstat(directory))
    (directory / "x").write_text("x")
    directory.chmod(0o700)
    assert matches(os.lstat(directory), entry)
