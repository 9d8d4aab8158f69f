# SPDX-License-Identifier: Apache-2.0
"""`unspill review`: the screen in a real terminal and by its keys, and the questions where it is not installed."""

import asyncio
import random
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot

from tests.panes import Pane, typed
from tests.support import Ground, run_cli
from tests.unit.changes.by_hand import by_hand
from unspill.changes.diff import numbered_lines
from unspill.tui.app import HELP, ReviewApp
from unspill.tui.model import PARTLY
from unspill.tui.source import HeldSource, PastSource

pytestmark = pytest.mark.kernel

WAIT_S = 30
Play = Callable[[ReviewApp, "Keys"], Awaitable[None]]
NUMBERS = "".join(f"{n}\n" for n in range(40))


class Keys:
    """Somebody who presses keys, and waits for what comes of it."""

    def __init__(self, app: ReviewApp, pilot: Pilot[None]) -> None:
        self._app = app
        self._pilot = pilot

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)
        await self._pilot.pause()

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, (self._app.message, self._app.diff.lines)
            await self._pilot.pause(0.01)

    async def go_to(self, path: str) -> None:
        """Put the cursor on a path, and wait until it is shown."""
        app = self._app
        at = next(place for place, one in enumerate(app.picks.entries) if one.path == path.encode())
        app.files.go(app.picks.reveal(at))
        await self.until(lambda: app.diff.place == at and app.diff.lines)
        await self.until(lambda: at not in app.picks.held or (at in app.details and app.details[at].consent))

    async def click(self, pane: str, x: int, y: int) -> None:
        await self._pilot.click(pane, offset=(x, y))
        await self._pilot.pause()


def play(source: HeldSource | PastSource, steps: Play, size: tuple[int, int] = (100, 30)) -> ReviewApp:
    """Open the screen, wait until all is known of the list, and do something there."""
    app = ReviewApp(source, colour=True)

    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            keys = Keys(app, pilot)
            await keys.until(lambda: app.is_ready)
            await steps(app, keys)

    asyncio.run(run())
    return app


def hold(ground: Ground, script: str) -> HeldSource:
    sandbox = ground.sandbox()
    assert sandbox.run(script, after="hold").ok
    return HeldSource(sandbox)


def read(ground: Ground, path: str) -> str:
    return (ground.project / path).read_text()


def exists(ground: Ground, path: str) -> bool:
    return (ground.project / path).exists()


def test_files_hunks_and_lines_are_picked_by_keys_and_applied(ground: Ground) -> None:
    ground.write("whole", "a\n")
    ground.write("part", NUMBERS)
    ground.write("other", "a\n")
    source = hold(ground, "echo b > whole; echo b > other; sed -i 's/^3$/three/; s/^20$/twenty/; 38d' part")

    async def steps(app: ReviewApp, keys: Keys) -> None:
        await keys.go_to("part")
        # The second hunk, and of the third one line
        await keys.press("enter", "right_square_bracket", "x")
        await keys.press("right_square_bracket", "down", "down", "down", "down", "space")
        assert app.picks.state[1] == PARTLY
        await keys.press("escape")
        await keys.go_to("whole")
        await keys.press("space", "a")
        await keys.until(lambda: app.done)

    play(source, steps)
    assert read(ground, "part") == NUMBERS.replace("\n20\n", "\ntwenty\n").replace("\n37\n", "\n")
    assert (read(ground, "whole"), read(ground, "other")) == ("b\n", "a\n")
    assert source.sandbox.apply().changed == 2
    assert read(ground, "part") == NUMBERS.replace("\n3\n", "\nthree\n").replace("\n20\n", "\ntwenty\n").replace(
        "\n37\n", "\n"
    )


def test_keys_that_are_typed_fast_are_taken_in_their_order(ground: Ground) -> None:
    source = hold(ground, "echo b > a; echo b > b; echo b > c; echo b > d")

    async def steps(app: ReviewApp, keys: Keys) -> None:
        for key in ("j", "j", "space", "j", "space", "k", "enter"):
            app.post_message(events.Key(key, key if len(key) == 1 else None))
        await keys.until(lambda: app.is_reading)
        await keys.until(lambda: app.diff.place == 2 and app.diff.lines)
        assert bytes(app.picks.state) == bytes((0, 0, 1, 1))

    play(source, steps)


def test_whatever_is_picked_is_what_the_file_gets_and_the_rest_stays_held(ground: Ground, full: bool) -> None:
    chance = random.Random(18)
    sandbox = ground.sandbox()
    for number in range(40 if full else 4):
        olds = {f"f{n}": random_text(chance) for n in range(6)}
        news = {name: random_edit(chance, old) for name, old in olds.items()}
        for name, old in olds.items():
            ground.write(name, old)
            ground.write(f"{number}-{name}", news[name])
        script = "; ".join(f"cat {number}-{name} > {name}" for name in olds)
        assert sandbox.run(script, after="hold").ok
        source = HeldSource(sandbox)
        picks = source.load()
        wanted = dict(olds)
        for at, entry in enumerate(picks.entries):
            name = entry.path.decode()
            lines = list(numbered_lines(olds[name].encode(), news[name].encode()))
            detail = source.detail(entry)
            assert detail.lines == tuple(lines)
            unit = chance.choice(["file", "hunk", "line"])
            if unit == "file":
                picks.toggle(at)
                picked = detail.numbers
            else:
                kept = {getattr(line, {"hunk": "hunk", "line": "number"}[unit]) for line in lines if line.number}
                kept = {one for one in sorted(kept) if chance.random() < 0.5}
                picked = frozenset(
                    line.number
                    for line in lines
                    if line.number and (line.hunk if unit == "hunk" else line.number) in kept
                )
                if picked:
                    picks.toggle_lines(at, picked, detail)
            wanted[name] = by_hand(olds[name].encode(), lines, set(picked)).decode()
        choice = picks.choice()
        if choice.count:
            assert sandbox.apply(choice.selection, reviewed=choice.reviewed).left == ()
        assert {name: read(ground, name) for name in olds} == wanted
        sandbox.apply()
        assert {name: read(ground, name) for name in olds} == news


def random_text(chance: random.Random) -> str:
    return "".join(chance.choice("abcdef") * 3 + "\n" for _ in range(chance.randrange(1, 30)))


def random_edit(chance: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(lines) + 1)
        lines[at : at + chance.randrange(3)] = [f"new {chance.random()}\n" for _ in range(chance.randrange(3))]
    return "".join(lines) or "new\n"


@pytest.mark.parametrize("whose", ["project", "layer"])
def test_what_changed_since_it_was_shown_is_shown_again_and_not_applied(ground: Ground, whose: str) -> None:
    ground.write("file", "a\n")
    source = hold(ground, "echo b > file; echo x > other")

    async def steps(app: ReviewApp, keys: Keys) -> None:
        await keys.go_to("file")
        await keys.press("space")
        await keys.go_to("other")
        await keys.press("space")
        if whose == "project":
            ground.write("file", "mine\n")
        else:
            assert source.sandbox.run("echo c > file", after="hold").ok
        await keys.press("a")
        await keys.until(lambda: app.picks.changed)
        assert "file changed since you looked" in app.message
        await keys.until(lambda: app.is_ready)
        # What is the same is still picked
        assert [app.picks.entries[at].path for at in app.picks.picked()] == [b"other"]
        assert (app.done, exists(ground, "other")) == ([], False)
        await keys.press("a")
        await keys.until(lambda: app.done)

    play(source, steps)
    assert read(ground, "file") == ("mine\n" if whose == "project" else "a\n")
    assert read(ground, "other") == "x\n"


def test_a_held_file_is_picked_only_when_it_was_read_to_its_end(ground: Ground) -> None:
    source = hold(ground, "seq 100 > .envrc; echo x > plain")

    async def steps(app: ReviewApp, keys: Keys) -> None:
        await keys.go_to(".envrc")
        await keys.press("space")
        assert not any(app.picks.counts())
        assert "to the end first" in app.message
        await keys.go_to(".envrc")
        # Who jumps to the end has not read what is in between
        await keys.press("enter", "G", "space", "g", *["pagedown"] * 6, "space")
        await keys.until(lambda: app.picks.counts() == (1, 0))
        await keys.press("a")
        await keys.until(lambda: app.done)

    play(source, steps, (100, 24))
    assert read(ground, ".envrc").startswith("1\n2\n")
    assert not exists(ground, "plain")


def test_a_held_file_that_changes_after_it_was_read_needs_another_look(ground: Ground) -> None:
    source = hold(ground, "echo one > .envrc")

    async def steps(app: ReviewApp, keys: Keys) -> None:
        await keys.go_to(".envrc")
        await keys.press("space")
        assert app.picks.counts() == (1, 0)
        assert source.sandbox.run("echo two > .envrc", after="hold").ok
        await keys.press("a")
        await keys.until(lambda: app.picks.changed)
        assert not any(app.picks.counts())

    play(source, steps)
    assert not exists(ground, ".envrc")


def test_conflicts_are_resolved_one_by_one(ground: Ground) -> None:
    ground.write("file", NUMBERS)
    source = hold(ground, "sed -i 's/^5$/run five/; s/^30$/run thirty/' file")
    ground.write("file", NUMBERS.replace("\n5\n", "\nmy five\n").replace("\n30\n", "\nmy thirty\n"))

    async def steps(app: ReviewApp, keys: Keys) -> None:
        await keys.go_to("file")
        assert [line.part for line in app.diff.lines if line.kind == "clash"] == [1, 2]
        await keys.press("space")
        assert not any(app.picks.counts())
        await keys.press("enter", "o", "right_square_bracket", "t")
        await keys.until(lambda: app.picks.counts() == (1, 0))
        await keys.press("a")
        await keys.until(lambda: app.done)

    play(source, steps)
    assert read(ground, "file") == NUMBERS.replace("\n5\n", "\nmy five\n").replace("\n30\n", "\nrun thirty\n")


def test_discard_hold_and_undo_work_from_the_screen(ground: Ground) -> None:
    source = hold(ground, "echo 1 > one; echo 2 > two; echo 3 > three")

    async def steps(app: ReviewApp, keys: Keys) -> None:
        await keys.go_to("one")
        await keys.press("h")
        await keys.go_to("two")
        await keys.press("d")
        await keys.until(lambda: app.done and app.is_ready)
        assert [entry.path for entry in app.picks.entries] == [b"one", b"three"]
        await keys.press("u")
        await keys.until(lambda: app.undone and app.is_ready)
        await keys.press("A", "a")
        await keys.until(lambda: len(app.done) == 1)

    play(source, steps)
    assert (read(ground, "one"), read(ground, "two"), read(ground, "three")) == ("1\n", "2\n", "3\n")


def test_past_operations_and_sessions_are_read_and_undone(ground: Ground) -> None:
    ground.write("file", "a\n")
    sandbox = ground.sandbox()
    assert sandbox.run("echo b > file; head -c 100 /dev/zero > data", after="apply").ok

    async def steps(app: ReviewApp, keys: Keys) -> None:
        await keys.go_to("data")
        assert any(line.text.startswith("(binary, new: 100 bytes") for line in app.diff.lines)
        await keys.go_to("file")
        assert [line.mark + line.text for line in app.diff.lines if line.kind == "text"] == ["-a", "+b"]
        await keys.press("space", "a")
        assert app.done == []
        await keys.press("u")
        await keys.until(lambda: app.undone)

    operation = sandbox.operations()[0]
    play(PastSource(sandbox, (operation,), "Operation 1"), steps)
    assert (read(ground, "file"), exists(ground, "data")) == ("a\n", False)


def test_the_mouse_picks_and_search_finds(ground: Ground) -> None:
    source = hold(ground, "for n in $(seq 60); do echo $n > file$n; done; echo x > needle")

    async def steps(app: ReviewApp, keys: Keys) -> None:
        await keys.click("#files", 1, 2)
        assert app.picks.picked() == [2]
        await keys.press("slash", *"NEED", "enter")
        assert app.picks.entries[app.files.place or 0].path == b"needle"
        await keys.press("slash", *"nowhere", "enter")
        assert "Not found" in app.message

    play(source, steps)


def test_hostile_names_and_texts_are_shown_and_not_obeyed(ground: Ground) -> None:
    names = r"printf x > $(printf 'b\033[2Jb'); printf x > $(printf '\344\275\240\345\245\275')e"
    source = hold(ground, rf"printf '[bold]x[/bold]\033[2J\n' > \[red\]a; {names}")

    async def steps(app: ReviewApp, keys: Keys) -> None:
        await keys.go_to("[red]a")
        drawn = ["".join(one.text for one in app.files.draw(row)) for row in range(3)]
        assert "[red]a" in drawn[0]
        assert r"b\u{1b}[2Jb" in drawn[1]
        assert "你好e" in drawn[2]
        assert all(line.isprintable() for line in drawn)
        assert any(line.text.startswith("[bold]x[/bold]") for line in app.diff.lines)
        widths = {app.files.render_line(row).cell_length for row in range(3)}
        assert widths == {app.files.scrollable_content_region.width}

    play(source, steps)


SCREENS = Path(__file__).parent / "screens"


@pytest.mark.parametrize("colour", ["", "NO_COLOR=1 "])
def test_the_screen_fits_real_terminals_of_every_width(ground: Ground, tmp_path: Path, colour: str) -> None:
    ground.write("main.py", "def main():\n    return 1\n")
    ground.write("gone", "x\n")
    others = "rm gone; echo x > .envrc; mkdir new; printf '\\0' > new/data; ln -s main.py link"
    hold(ground, f"sed -i 's/1/2/' main.py; {others}")
    with typed(ground.project, tmp_path, columns=200) as pane:
        pane.type("-l", f"{colour}unspill review")
        pane.type("Enter")
        pane.see("needs consent")
        pane.type("/", "main", "Enter")
        compare(pane, "review-200")
        drawn = "\n".join(pane.lines(with_attributes=True))
        assert bool(re.search(r"\x1b\[[0-9;]*3[1-6]m", drawn)) == (not colour)
        resize(pane, 80)
        compare(pane, "review-80")
        pane.type("?")
        compare(pane, "help-80")
        pane.type("q")
        resize(pane, 40)
        compare(pane, "review-40")
        pane.type("Enter")
        compare(pane, "diff-40")
        pane.type("q")
        pane.see("^out>")


def resize(pane: Pane, columns: int) -> None:
    pane.tmux("resize-window", "-x", str(columns), "-y", "24")


def compare(pane: Pane, name: str) -> None:
    """Wait until the terminal shows what was looked at and kept."""
    wanted = (SCREENS / f"{name}.txt").read_text().splitlines()
    deadline = time.monotonic() + WAIT_S
    while (lines := [line.rstrip() for line in pane.tmux("capture-pane", "-p").rstrip().splitlines()]) != wanted:
        assert time.monotonic() < deadline, "\n".join(lines)
        time.sleep(0.02)


def test_without_the_extra_each_hunk_is_asked_about(ground: Ground, tmp_path: Path) -> None:
    ground.write("file", NUMBERS)
    hold(ground, "sed -i 's/^3$/three/; s/^30$/thirty/' file; echo x > new; echo y > bad")
    hidden = tmp_path / "hidden"
    (hidden / "textual").mkdir(parents=True)
    (hidden / "textual" / "__init__.py").write_text("raise ModuleNotFoundError(name='textual')\n")
    with typed(ground.project, tmp_path, columns=80) as pane:
        pane.type("-l", f"PYTHONPATH={hidden} unspill review")
        pane.type("Enter")
        pane.see(r"pip install '\.\[tui\]'")
        answer(pane, "bad: apply it", "x")
        answer(pane, "file, hunk 1 of 2", "n")
        answer(pane, "file, hunk 2 of 2", "y")
        answer(pane, "new: apply it", "y")
        pane.see("Discarded 1 change")
    assert read(ground, "file") == NUMBERS.replace("\n30\n", "\nthirty\n")
    assert (read(ground, "new"), exists(ground, "bad")) == ("x\n", False)


def answer(pane: Pane, question: str, word: str) -> None:
    pane.see(re.escape(question) + r".*\] ?$")
    pane.type(word, "Enter")


def test_without_a_terminal_the_verb_says_what_to_use_instead(ground: Ground) -> None:
    done = run_cli("review", cwd=ground.project)
    assert done.returncode == 2
    assert b"needs a terminal" in done.stderr
    assert b"unspill diff" in done.stderr


def test_help_fits_a_narrow_terminal() -> None:
    assert max(map(len, HELP.splitlines())) <= 60


def test_nothing_else_loads_the_screen() -> None:
    foreign = "[name for name in sys.modules if 'textual' in name or '.tui' in name]"
    code = f"import sys, unspill.cli.review, unspill.cli.main; print({foreign})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
