# SPDX-License-Identifier: Apache-2.0
"""The list of the review screen, what is picked in it, and the choice that comes of that."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.changes.diff import numbered_lines
from unspill.changes.merge import merge_texts
from unspill.changes.select import select
from unspill.model.change import Change, ChangeSet, Consent, Identity, RootChanges
from unspill.tui.model import NOT, PARTLY, WHOLE, Detail, Picks, carry, shown_lines

ROOT = b"/p"
FILE = Identity(kind="file", mode=0o644, inode=1, size=1, ctime_ns=1)
DIR = FILE.replace(kind="dir")


def added(path: bytes) -> Change:
    return Change(path=path.rstrip(b"/"), kind="added", entry=DIR if path.endswith(b"/") else FILE)


def modified(path: bytes) -> Change:
    return Change(path=path, kind="modified", entry=FILE, base_kind="file", aspects=("content",))


def picks_of(*changes: Change) -> Picks:
    return Picks(ChangeSet(roots=(RootChanges(root=ROOT, changes=changes),), layers=(b"/l",)))


TREE = (added(b"a/"), added(b"a/b/"), added(b"a/b/c"), added(b"a/d"), added(b"a-e"), modified(b"f"))


def names(picks: Picks) -> list[bytes]:
    return [picks.entries[at].path for at in picks.visible]


def chosen(picks: Picks) -> list[bytes]:
    return [change.path for change in picks.choice().reviewed]


def text_detail(old: bytes, new: bytes) -> Detail:
    return Detail(lines=tuple(numbered_lines(old, new)), digest="d")


def test_a_directory_is_picked_with_all_in_it_and_nothing_beside_it() -> None:
    picks = picks_of(*TREE)
    assert picks.toggle(0)
    assert chosen(picks) == [b"a", b"a/b", b"a/b/c", b"a/d"]
    picks.toggle(2)
    assert [picks.mark_of(at) for at in range(4)] == [PARTLY, PARTLY, NOT, WHOLE]
    # A directory without what is in it
    assert chosen(picks) == [b"a", b"a/b", b"a/d"]


def test_a_file_in_a_new_directory_brings_the_directory_and_nothing_else() -> None:
    picks = picks_of(*TREE)
    picks.toggle(2)
    assert chosen(picks) == [b"a", b"a/b", b"a/b/c"]
    assert picks.counts() == (1, 0)


def test_a_choice_is_never_taken_for_all_that_is_held() -> None:
    picks = picks_of(*TREE)
    picks.toggle_all()
    assert picks.choice().reviewed.layers == ()


def test_times_go_along_with_everything_and_with_nothing_less() -> None:
    touched = Change(path=b"z", kind="metadata", entry=FILE, base_kind="file", aspects=("mtime",))
    picks = picks_of(*TREE, touched)
    assert len(picks) == len(TREE)
    picks.toggle_all()
    assert chosen(picks)[-1] == b"z"
    picks.toggle(5)
    assert b"z" not in chosen(picks)


def test_what_is_discarded_is_what_is_picked() -> None:
    picks = picks_of(*TREE)
    picks.toggle(0)
    picks.toggle(2)
    dropped = select(picks.changes, picks.choice().dropped, parents=False)
    assert [change.path for change in dropped] == [b"a", b"a/b", b"a/d"]


def test_held_entries_and_conflicts_are_not_picked_with_the_others() -> None:
    picks = picks_of(*TREE)
    picks.held[3] = "why"
    picks.sides[5] = [None, "ours"]
    picks.toggle_all()
    assert picks.picked() == [0, 1, 2, 4]
    picks.consents[3] = Consent(root=ROOT, path=b"a/d", digest="x")
    picks.resolve(5, "theirs", 0)
    picks.merges[5] = "m"
    picks.toggle_all()
    assert picks.picked() == [0, 1, 2, 3, 4, 5]
    choice = picks.choice()
    assert [one.path for one in choice.selection.consents] == [b"a/d"]
    assert [(one.path, one.sides, one.digest) for one in choice.selection.resolutions] == [
        (b"/p/f", ("theirs", "ours"), "m")
    ]


def test_what_stays_held_is_left_out_of_everything() -> None:
    picks = picks_of(*TREE)
    picks.keep(0)
    picks.toggle_all()
    assert picks.picked() == [4, 5]


@pytest.mark.parametrize("start", [NOT, WHOLE])
def test_lines_make_a_file_whole_partly_or_not_picked(start: int) -> None:
    picks = picks_of(*TREE)
    detail = text_detail(b"1\n2\n", b"1\nx\n")
    picks.state[5] = start
    picks.toggle_lines(5, {1}, detail)
    assert picks.state[5] == PARTLY
    assert picks.lines[5] == ({1} if start == NOT else {2})
    picks.toggle_lines(5, {2} if start == NOT else {1}, detail)
    assert (picks.state[5], picks.lines) == (WHOLE, {})
    picks.toggle_lines(5, {1, 2}, detail)
    assert picks.state[5] == NOT


def test_a_part_of_a_file_is_chosen_by_its_lines_beside_whole_files() -> None:
    picks = picks_of(*TREE)
    picks.toggle(4)
    picks.toggle_lines(5, {2}, text_detail(b"1\n2\n", b"1\nx\n"))
    choice = picks.choice()
    assert [(one.path, one.lines, one.digest) for one in choice.selection.hunks] == [(b"/p/f", (2,), "d")]
    assert [change.path for change in select(choice.reviewed, choice.selection)] == [b"a-e", b"f"]


def test_folding_hides_what_is_in_a_directory_and_searching_shows_it() -> None:
    picks = picks_of(*TREE)
    picks.fold(0, folded=True)
    assert names(picks) == [b"a", b"a-e", b"f"]
    found = picks.find("B/C", 3, 1)
    assert found == 2
    assert picks.reveal(2) == 2
    assert names(picks) == [change.path for change in TREE]
    assert picks.find("nowhere", 0, 1) is None


def test_what_git_keeps_for_itself_is_one_entry() -> None:
    inside = [b".git/HEAD", b".git/hooks/x", b".git/index", b".git/objects/12/34"]
    picks = picks_of(*(modified(path) for path in inside), modified(b"f"))
    assert names(picks) == [b".git", b".git/hooks/x", b"f"]
    picks.toggle(0)
    assert chosen(picks) == [b".git/HEAD", b".git/index", b".git/objects/12/34"]


def test_a_merge_shows_the_three_versions_of_a_conflict_and_what_comes_of_the_choice() -> None:
    ours = b"a\nmine\nc\n"
    merge = merge_texts(b"a\nb\nc\n", ours, b"a\ntheirs\nc\n")
    assert merge is not None
    detail = Detail(merge=merge, ours=ours)
    lines = [line.text for line in shown_lines(detail, [None])]
    assert lines[0] == "conflict 1 of 1, line 2 of your file: not resolved"
    assert lines[1:4] == [" yours mine", "before b", " run's theirs"]
    result = [line.mark + line.text for line in shown_lines(detail, ["theirs"]) if line.kind == "text"]
    assert result == [" a", "-mine", "+theirs", " c"]


def test_nothing_that_a_terminal_obeys_is_shown() -> None:
    detail = Detail(notes=("a\033[2J",), lines=tuple(numbered_lines(b"\033]0;x\007\n", b"\x9b31m\xe2\x80\xae\n")))
    text = "".join(line.text for line in shown_lines(detail))
    assert text.isprintable()
    assert "\\" in text


@given(chance=st.randoms(use_true_random=False))
def test_what_was_picked_stays_picked_for_what_is_the_same(chance: random.Random) -> None:
    old, new = picks_of(*TREE), picks_of(*TREE[1:])
    for at in range(len(TREE)):
        if chance.random() < 0.5:
            old.state[at] = WHOLE
    same = {at: at - 1 for at in range(1, len(TREE)) if chance.random() < 0.5}
    carry(old, new, same.items())
    assert new.picked() == sorted(same[at] for at in old.picked() if at in same)
