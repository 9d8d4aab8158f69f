# SPDX-License-Identifier: Apache-2.0
"""`blame` says which run wrote each line, whatever the person, other runs, undo and merges have done in between."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import Ground
from unspill import Operation, Sandbox
from unspill.errors import UsageError

pytestmark = pytest.mark.kernel


def authors(sandbox: Sandbox, path: str = "text") -> list[tuple[str, str]]:
    """Return who wrote each line, and the line."""
    numbers = {run.id: run.number for run in sandbox.runs()}

    def name(author: Operation | str) -> str:
        if isinstance(author, str):
            return author
        return f"run{numbers[author.runs[-1]]}" if author.kind == "apply" else f"op{author.number}"

    return [(name(author), line.decode().rstrip("\n")) for author, line in sandbox.blame(path)]


class History:
    """A text of which each line says who wrote it; whatever is done to it, that must be what `blame` says."""

    def __init__(self, ground: Ground, seed: int) -> None:
        self._chance = random.Random(seed)
        self._ground = ground
        self.sandbox = ground.sandbox(f"sandbox{seed}", after="apply")
        self.path = ground.project / f"text{seed}"
        self._count = 0
        if self._chance.random() < 0.7:
            self.path.write_text("".join(f"? {number}\n" for number in range(self._chance.randint(0, 12))))

    def run(self) -> None:
        self._run(self._edited(self._next_run()))

    def step(self) -> None:
        match self._chance.choice(("run", "run", "run", "person", "person", "hold and merge", "undo", "redo")):
            case "run":
                self.run()
            case "person":
                self._edit()
            case "hold and merge":
                self._hold_and_merge()
            case "undo":
                self._reverse(self.sandbox.undo)
            case "redo":
                self._reverse(self.sandbox.redo)

    def _next_run(self) -> str:
        return f"run{len(self.sandbox.runs()) + 1}"

    def _lines(self) -> list[str]:
        return self.path.read_text().splitlines(keepends=True) if self.path.exists() else []

    def _edited(self, author: str) -> list[str]:
        lines = self._lines()
        for _ in range(self._chance.randint(1, 3)):
            at = self._chance.randint(0, len(lines))
            self._count += 1
            new = [f"{author} {self._count}.{number}\n" for number in range(self._chance.randint(0, 2))]
            lines[at : at + self._chance.randint(0, 2)] = new
        return lines

    def _run(self, lines: list[str], **options: str) -> None:
        result = self.sandbox.run(["sh", "-c", f"cat > {self.path.name}"], stdin="".join(lines), **options)  # type: ignore[arg-type]
        assert result.ok, result

    def _edit(self) -> None:
        lines = self._edited("you")
        if self._chance.random() < 0.5:
            self.path.write_text("".join(lines))
        else:
            other = self.path.with_suffix(".new")
            other.write_text("".join(lines))
            other.rename(self.path)

    def _hold_and_merge(self) -> None:
        self._run(self._edited(self._next_run()), after="hold")
        self._edit()
        self.sandbox.apply()
        self.sandbox.discard()

    @staticmethod
    def _reverse(reverse: Callable[[], object]) -> None:
        try:
            reverse()
        except UsageError:
            return  # there is nothing to reverse


def test_random_histories_are_told_as_they_were(ground: Ground, full: bool) -> None:
    """The time buys 8 histories, and 500 with `--full`."""
    told = 0
    for seed in range(500 if full else 8):
        history = History(ground, seed)
        # What the person did before there was an operation, nobody knows
        history.run()
        for _ in range(7):
            history.step()
        if history.path.exists():
            found = authors(history.sandbox, history.path.name)
            assert [line for _author, line in found] == history.path.read_text().splitlines()
            wrong = [(author, line) for author, line in found if line.split()[0] != author]
            assert not wrong, f"seed {seed}"
            told += sum(author.startswith("run") for author, _line in found)
    assert told > 20


def test_a_file_that_a_run_made_and_the_person_edited_in_place(ground: Ground) -> None:
    sandbox = ground.sandbox(after="apply")
    sandbox.run("printf 'one\\ntwo\\nthree\\n' > text")
    text = ground.project / "text"
    text.write_text("one\nmine\nthree\n")
    assert authors(sandbox) == [("run1", "one"), ("you", "mine"), ("run1", "three")]


def test_what_is_older_than_what_is_kept_is_nobodys(ground: Ground, text: Path) -> None:
    sandbox = ground.sandbox(after="apply")
    assert authors(sandbox) == [("?", "old")]
    text.write_text("old\nnew\n")
    assert authors(sandbox) == [("?", "old"), ("?", "new")]


@pytest.fixture
def text(ground: Ground) -> Path:
    return ground.write("text", "old\n")


def test_where_a_version_is_not_kept_nobody_is_named(ground: Ground, text: Path) -> None:
    sandbox = ground.sandbox(after="apply")
    sandbox.run("echo run >> text")
    sandbox._project.store.transaction.change("DELETE FROM texts")
    text.write_text("old\nrun\nmine\n")
    assert authors(sandbox) == [("?", "old"), ("?", "run"), ("?", "mine")]


@pytest.mark.parametrize(("content", "why"), [(b"a\0b", "is not a text"), (None, "can't be read: No such file")])
def test_what_has_no_lines_is_refused(ground: Ground, content: bytes | None, why: str) -> None:
    if content is not None:
        (ground.project / "text").write_bytes(content)
    with pytest.raises(UsageError, match=why):
        ground.sandbox().blame("text")
