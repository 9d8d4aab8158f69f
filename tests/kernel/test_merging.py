# SPDX-License-Identifier: Apache-2.0
"""What a run and the person made of one text is merged, by apply and by undo; nothing of either is lost."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.test_applying import LIST
from tests.support import Ground
from unspill import Hunks, Operation, Sandbox, Selection
from unspill.apply import bases

pytestmark = pytest.mark.kernel

LINES = [f"line {number}\n" for number in range(1, 41)]


def text_with(**edits: str) -> str:
    """Return the text with some lines replaced: `_5="five"`."""
    lines = list(LINES)
    for name, line in edits.items():
        lines[int(name[1:]) - 1] = f"{line}\n"
    return "".join(lines)


@pytest.fixture
def text(ground: Ground) -> Path:
    return ground.write("text", "".join(LINES))


def hold(ground: Ground, script: str = "sed -i 's/^line 5$/five/' text") -> Sandbox:
    sandbox = ground.sandbox()
    assert sandbox.run(script, after="hold").held
    return sandbox


def left(operation: Operation) -> dict[bytes, str]:
    return {one.path: one.reason for one in operation.left}


def edit(path: Path, content: str) -> None:
    """Write as an editor does that keeps the old file until the new one is there."""
    other = path.with_name("text.new")
    other.write_text(content)
    other.chmod(path.stat().st_mode)
    other.rename(path)


def edit_in_place(path: Path, content: str) -> None:
    path.write_text(content)


WAYS = {"in place": edit_in_place, "by a rename": edit}


@pytest.mark.parametrize("way", WAYS)
def test_edits_of_other_lines_are_merged_and_undone_to_the_very_file(ground: Ground, text: Path, way: str) -> None:
    sandbox = hold(ground)
    WAYS[way](text, text_with(_30="mine"))
    inode = text.stat().st_ino
    operation = sandbox.apply()
    assert left(operation) == {}
    assert operation.notes == ("text: merged with your edits",)
    assert text.read_text() == text_with(_5="five", _30="mine")
    assert not sandbox.changes()
    assert sandbox.undo().left == ()
    assert (text.read_text(), text.stat().st_ino) == (text_with(_30="mine"), inode)
    # What is held again was not made from that: it is merged once more
    text.write_text(text_with(_30="mine", _35="mine too"))
    assert left(sandbox.apply()) == {}
    assert text.read_text() == text_with(_5="five", _30="mine", _35="mine too")


def test_without_what_the_run_saw_the_same_edits_are_a_conflict(
    ground: Ground, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: nothing else makes them a merge."""
    monkeypatch.setattr(bases, "MOST_TEXTS", 0)
    sandbox = hold(ground)
    text.write_text(text_with(_30="mine"))
    assert left(sandbox.apply()) == {b"text": "it changed in the project during or after the run"}
    assert text.read_text() == text_with(_30="mine")


def test_a_file_that_was_edited_during_the_run_is_a_conflict(ground: Ground, text: Path) -> None:
    def edit_now(_event: object) -> None:
        text.write_text(text_with(_30="mine"))

    sandbox = ground.sandbox()
    result = sandbox.run("echo go; sed -i 's/^line 5$/five/' text; sleep 0.2", after="hold", on_event=edit_now)
    assert result.held
    assert left(sandbox.apply()) == {b"text": "it changed in the project during or after the run"}
    assert text.read_text() == text_with(_30="mine")


SIDES = {
    "ours": text_with(_5="mine", _20="twenty"),
    "theirs": text_with(_5="five", _20="twenty"),
    "markers": text_with(_5="<<<<<<< yours\nmine\n=======\nfive\n>>>>>>> the run's", _20="twenty"),
}


@pytest.mark.parametrize("side", SIDES)
def test_lines_that_both_changed_are_a_conflict_until_somebody_says_whose_count(
    ground: Ground, text: Path, side: str
) -> None:
    sandbox = hold(ground, "sed -i 's/^line 5$/five/; s/^line 20$/twenty/' text")
    text.write_text(text_with(_5="mine"))
    assert left(sandbox.apply()) == {b"text": "you and the run changed the same lines: line 5"}
    assert text.read_text() == text_with(_5="mine")
    operation = sandbox.apply(Selection(sides=((b"text", side),)))  # type: ignore[arg-type]
    assert left(operation) == {}
    assert text.read_text() == SIDES[side]
    assert sandbox.undo().left == ()
    assert text.read_text() == text_with(_5="mine")


NAMED = {
    "overwrite": Selection(overwrite=(b"text",)),
    "sides": Selection(sides=((b"text", "theirs"),)),
    "sides beside those of everything": Selection(sides=((b".", "ours"), (b"text", "theirs"))),
}


@pytest.mark.parametrize("way", NAMED)
def test_a_word_about_one_conflict_applies_nothing_else(ground: Ground, text: Path, way: str) -> None:
    sandbox = hold(ground, "sed -i 's/^line 5$/five/' text; echo other > other")
    text.write_text(text_with(_5="mine"))
    assert left(sandbox.apply(NAMED[way])) == {}
    assert text.read_text() == text_with(_5="five")
    assert not (ground.project / "other").exists()
    assert {change.path for change in sandbox.changes()} == {b"other"}
    # A word about all of them narrows nothing
    assert left(sandbox.apply(Selection(sides=((b".", "theirs"),)))) == {}
    assert (ground.project / "other").exists()


def test_the_nearest_word_says_whose_lines_count(ground: Ground, text: Path) -> None:
    ground.write("dir/text", "a\nb\nc\n")
    sandbox = hold(ground, "sed -i 's/^line 5$/five/' text; sed -i s/b/run/ dir/text")
    text.write_text(text_with(_5="mine"))
    (ground.project / "dir/text").write_text("a\nmine\nc\n")
    sides = ((b".", "ours"), (b"dir", "theirs"), (b"text", "markers"))
    assert left(sandbox.apply(Selection(sides=sides))) == {}  # type: ignore[arg-type]
    assert (ground.project / "dir/text").read_text() == "a\nrun\nc\n"
    assert "<<<<<<<" in text.read_text()


def test_a_hunk_goes_to_a_file_that_was_edited_elsewhere(ground: Ground, text: Path) -> None:
    sandbox = hold(ground, "sed -i 's/^line 5$/five/; s/^line 38$/thirty-eight/' text")
    text.write_text(text_with(_20="mine"))
    # Between the live text and the run's lie the person's own edit too, as the second one
    operation = sandbox.apply(Selection(hunks=(Hunks(path=b"text", numbers=(1,)),)))
    assert left(operation) == {}
    assert text.read_text() == text_with(_5="five", _20="mine")
    assert sandbox.changes(), "the rest is still held"
    assert left(sandbox.apply()) == {}
    assert text.read_text() == text_with(_5="five", _20="mine", _38="thirty-eight")


def test_several_held_runs_are_merged_from_what_the_first_of_them_saw(ground: Ground, text: Path) -> None:
    sandbox = hold(ground)
    text.write_text(text_with(_30="mine"))
    assert sandbox.run("sed -i 's/^line 12$/twelve/' text", after="hold").held
    text.write_text(text_with(_30="mine", _35="mine too"))
    assert left(sandbox.apply()) == {}
    assert text.read_text() == text_with(_5="five", _12="twelve", _30="mine", _35="mine too")


def test_what_stays_held_after_a_part_was_applied_is_merged_later(ground: Ground, text: Path) -> None:
    ground.write("other", "old\n")
    sandbox = hold(ground, "sed -i 's/^line 5$/five/' text; echo new > other")
    assert left(sandbox.apply(["other"])) == {}
    text.write_text(text_with(_30="mine"))
    assert left(sandbox.apply()) == {}
    assert text.read_text() == text_with(_5="five", _30="mine")


def test_what_was_consented_to_is_not_merged_with_anything_else(ground: Ground) -> None:
    tasks = ground.write(".vscode/tasks.json", "".join(LINES))
    assert ground.sandbox(after="apply").run("sed -i 's/^line 5$/five/' .vscode/tasks.json").held
    tasks.write_text(text_with(_30="mine"))
    consent = Selection(included=(b".vscode/tasks.json",))
    assert b".vscode/tasks.json" in left(ground.sandbox().apply(consent))
    assert tasks.read_text() == text_with(_30="mine")


@pytest.mark.parametrize("script", ["rm text", "ln -sf /x text"])
def test_what_is_more_than_a_text_is_not_merged(ground: Ground, text: Path, script: str) -> None:
    sandbox = hold(ground, script)
    text.write_text(text_with(_30="mine"))
    assert b"text" in left(sandbox.apply())
    assert text.read_text() == text_with(_30="mine")


@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_bits_of_one_side_and_lines_of_the_other_come_together(ground: Ground, text: Path, mode: int) -> None:
    sandbox = hold(ground, f"chmod {mode:o} text; sed -i 's/^line 5$/five/' text")
    text.write_text(text_with(_30="mine"))
    assert left(sandbox.apply()) == {}
    assert text.read_text() == text_with(_5="five", _30="mine")
    assert text.stat().st_mode & 0o777 == mode


def test_bits_that_the_person_gave_a_file_are_not_taken_away(ground: Ground, text: Path) -> None:
    sandbox = hold(ground)
    text.write_text(text_with(_30="mine"))
    text.chmod(0o700)
    assert left(sandbox.apply()) == {}
    assert text.read_text() == text_with(_5="five", _30="mine")
    assert text.stat().st_mode & 0o777 == 0o700


def test_other_bits_of_both_sides_are_a_conflict(ground: Ground, text: Path) -> None:
    sandbox = hold(ground, "chmod 755 text")
    text.chmod(0o700)
    assert b"text" in left(sandbox.apply())
    assert text.stat().st_mode & 0o777 == 0o700


def test_a_binary_file_is_a_conflict(ground: Ground) -> None:
    data = ground.write("data", "a\0b\nc\nd\n")
    sandbox = hold(ground, "printf 'A\\0b\\nc\\nd\\n' > data")
    data.write_text("a\0b\nc\nD\n")
    assert b"data" in left(sandbox.apply())


@pytest.mark.parametrize("way", WAYS)
def test_undo_keeps_what_was_edited_since(ground: Ground, text: Path, way: str) -> None:
    sandbox = ground.sandbox(after="apply")
    assert sandbox.run("sed -i 's/^line 5$/five/' text").operation is not None
    WAYS[way](text, text_with(_5="five", _30="mine"))
    operation = sandbox.undo()
    assert left(operation) == {}
    assert operation.notes == ("text: your edits since were kept",)
    assert text.read_text() == text_with(_30="mine")
    assert sandbox.redo().left == ()
    assert text.read_text() == text_with(_5="five", _30="mine")


def test_undo_is_a_conflict_where_the_same_lines_were_edited_since(ground: Ground, text: Path) -> None:
    sandbox = ground.sandbox(after="apply")
    sandbox.run("sed -i 's/^line 5$/five/' text")
    text.write_text(text_with(_5="five, mine"))
    assert left(sandbox.undo()) == {b"text": "you changed the same lines since: line 5"}
    assert text.read_text() == text_with(_5="five, mine")


def test_redo_keeps_what_was_edited_since(ground: Ground, text: Path) -> None:
    sandbox = ground.sandbox(after="apply")
    sandbox.run("sed -i 's/^line 5$/five/' text")
    sandbox.undo()
    text.write_text(text_with(_30="mine"))
    assert left(sandbox.redo()) == {}
    assert text.read_text() == text_with(_5="five", _30="mine")


def test_secrets_that_no_run_has_seen_are_not_kept(ground: Ground) -> None:
    ground.write(".env", "KEY=secret-of-the-person\n")
    sandbox = hold(ground, "echo KEY=other > .env; echo x > new")
    found = sandbox._project.store.transaction.rows("SELECT path, text FROM texts")
    assert found == []


def test_what_a_link_leads_to_is_not_read_for_a_merge(ground: Ground, text: Path) -> None:
    sandbox = hold(ground)
    outside = ground.write("outside", text_with(_30="mine"))
    text.unlink()
    os.symlink(outside, text)
    assert b"text" in left(sandbox.apply())
    assert outside.read_text() == text_with(_30="mine")


def test_what_an_operation_changed_is_shown_though_the_file_was_edited_since(ground: Ground, text: Path) -> None:
    sandbox = ground.sandbox(after="apply")
    sandbox.run("sed -i 's/^line 5$/five/' text")
    text.write_text(text_with(_5="five", _30="mine"))
    shown = sandbox.diff(operation=1).splitlines()
    assert [line for line in shown if line.startswith(("-line", "+"))][1:] == ["-line 5", "+five"]


def test_undo_of_an_apply_that_was_asked_for_leaves_what_was_edited_since(ground: Ground, text: Path) -> None:
    """The run's text would be held again, and nobody has it any more."""
    sandbox = hold(ground)
    sandbox.apply()
    text.write_text(text_with(_5="five", _30="mine"))
    assert b"text" in left(sandbox.undo())
    assert text.read_text() == text_with(_5="five", _30="mine")


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "control"])
def test_what_was_merged_is_merged_again_after_its_undo(
    ground: Ground, text: Path, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base is what the run saw, not what the undo put back; the control takes that for it."""
    sandbox = hold(ground)
    text.write_text(text_with(_30="mine"))
    sandbox.apply()
    if not is_known:
        monkeypatch.setattr("unspill.apply.fold._is_edited", lambda *_given, **_more: False)
    assert sandbox.undo().left == ()
    sandbox.apply()
    assert ("mine\n" in text.read_text()) is is_known


def test_your_lines_that_were_kept_are_an_operation_that_can_be_undone(ground: Ground, text: Path) -> None:
    sandbox = hold(ground)
    text.write_text(text_with(_5="mine"))
    operation = sandbox.apply(Selection(sides=((b"text", "ours"),)))
    assert operation.number == 1
    assert not sandbox.changes()
    sandbox.undo()
    assert left(sandbox.apply(Selection(sides=((b"text", "theirs"),)))) == {}
    assert text.read_text() == text_with(_5="five")


def test_a_hunk_that_the_person_took_back_does_not_come_again(ground: Ground, text: Path) -> None:
    sandbox = hold(ground, "sed -i 's/^line 5$/five/; s/^line 38$/thirty-eight/' text")
    sandbox.apply(Selection(hunks=(Hunks(path=b"text", numbers=(1,)),)))
    text.write_text("".join(LINES))
    assert left(sandbox.apply()) == {}
    assert text.read_text() == text_with(_38="thirty-eight")


def test_an_edit_that_was_kept_by_a_discard_and_taken_back_does_not_come_again(ground: Ground, text: Path) -> None:
    sandbox = hold(ground, "sed -i 's/^line 5$/five/; s/^line 20$/twenty/' text")
    text.write_text(text_with(_38="mine"))
    # The third hunk would take the person's edit away
    sandbox.discard(Selection(hunks=(Hunks(path=b"text", numbers=(3,)),)))
    text.write_text("".join(LINES))
    assert left(sandbox.apply()) == {}
    assert text.read_text() == text_with(_5="five", _20="twenty")


def test_the_run_s_side_replaces_what_can_not_be_merged_and_says_so_but_deletes_nothing(
    ground: Ground, text: Path
) -> None:
    ground.write("gone", "old\n")
    sandbox = hold(ground, "sed -i 's/^line 5$/five/' text; chmod 755 text; rm gone")
    text.write_text(text_with(_30="mine"))
    text.chmod(0o600)
    ground.write("gone", "mine\n")
    operation = sandbox.apply(Selection(sides=((b".", "theirs"),)))
    assert left(operation).keys() == {b"gone"}
    assert operation.notes == ("text: can't be merged, so the run's version has replaced yours",)
    assert text.read_text() == text_with(_5="five")


def test_undo_keeps_the_access_list_of_a_file_that_it_merges(ground: Ground, text: Path) -> None:
    os.setxattr(text, "system.posix_acl_access", LIST)
    sandbox = ground.sandbox(after="apply")
    sandbox.run("sed -i 's/^line 5$/five/' text")
    text.write_text(text_with(_5="five", _30="mine"))
    assert left(sandbox.undo()) == {}
    assert text.read_text() == text_with(_30="mine")
    assert os.getxattr(text, "system.posix_acl_access") == LIST


def test_undo_leaves_a_file_that_got_attributes_since(ground: Ground, text: Path) -> None:
    sandbox = ground.sandbox(after="apply")
    sandbox.run("sed -i 's/^line 5$/five/' text")
    text.write_text(text_with(_5="five", _30="mine"))
    os.setxattr(text, "user.mine", b"1")
    assert b"text" in left(sandbox.undo())


MADE = {
    "a new text": ("new", "echo one > new"),
    "a new binary": ("new", r"printf 'a\000b\377' > new"),
    "a changed text": ("text", "sed -i 's/^line 5$/five/' text"),
    "a changed binary": ("bin", r"printf 'a\000c' > bin"),
}
# What happens to it then, that changes nothing but its times
AGAIN: dict[str, Callable[[Sandbox, str], object]] = {
    "a run touches it": lambda sandbox, name: sandbox.run(f"touch {name}", after="apply"),
    "a run writes it anew": lambda sandbox, name: sandbox.run(f"cp {name} x; rm {name}; mv x {name}", after="apply"),
    "two runs touch it": lambda sandbox, name: [sandbox.run(f"touch {name}", after="apply") for _ in range(2)],
}


@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("made", MADE)
def test_a_file_that_is_written_as_it_was_can_be_undone(ground: Ground, text: Path, made: str, again: str) -> None:
    name, command = MADE[made]
    ground.write("bin", "a\0b")
    sandbox, path = ground.sandbox(), ground.project / name
    before = path.read_bytes() if path.exists() else None
    first = sandbox.run(command, after="apply").operation
    assert first is not None
    after = path.read_bytes()
    AGAIN[again](sandbox, name)
    operation = sandbox.undo(first.number)
    assert (operation.left, operation.notes) == ((), ())
    assert (path.read_bytes() if path.exists() else None) == before
    assert sandbox.redo().left == ()
    assert path.read_bytes() == after


@pytest.mark.parametrize("made", ["a new text", "a changed text"])
def test_a_text_that_the_person_saved_as_it_was_can_be_undone(ground: Ground, text: Path, made: str) -> None:
    name, command = MADE[made]
    sandbox, path = ground.sandbox(), ground.project / name
    sandbox.run(command, after="apply")
    edit_in_place(path, path.read_text())
    assert sandbox.undo().left == ()
    assert not path.exists() if name == "new" else path.read_text() == "".join(LINES)


def test_a_new_file_that_somebody_changed_since_is_a_conflict(ground: Ground) -> None:
    """The control: by the person, by a later run, by the person before a later run, and only its mode."""
    sandbox, path = ground.sandbox(), ground.project / "new"
    ways: tuple[Callable[[], object], ...] = (
        lambda: path.write_text("two\n"),
        lambda: sandbox.run("echo two > new", after="apply"),
        lambda: (path.write_text("two\n"), sandbox.run("touch new", after="apply")),
        lambda: path.chmod(0o600),
    )
    for change in ways:
        path.unlink(missing_ok=True)
        operation = sandbox.run("echo one > new; echo other > beside", after="apply").operation
        assert operation is not None
        change()
        kept = path.read_text(), path.stat().st_mode
        assert left(sandbox.undo(operation.number)) == {b"new": "it has changed since"}
        assert (path.read_text(), path.stat().st_mode) == kept
