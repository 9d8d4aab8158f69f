# SPDX-License-Identifier: Apache-2.0
"""Play random games: a person edits a project while a program inside changes it too, and a check looks at the end.

Each text has an id in its first line. The person adds lines `pN`, the program lines `rN ID` with the id of the text
that it meant. So the check knows who wrote each line, and which text it was meant for.
"""

import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kernel import outside_inside
from unspill.model.change import ChangeSet
from unspill.model.operation import Operation

PROGRAM = Path(outside_inside.__file__).read_text()
NAMES = ("a", "b", "c", "d/a", "d/b", "e/a", "e/b", "d/s/a", "d/s/b")
DIRECTORIES = ("d", "e", "d/s")
HOLDS = ("open", "written", "watched", "mapped", "directory")
# Asks the program inside for something; an empty answer where that failed
Ask = Callable[..., list[str]]


@dataclass
class Verdict:
    """What was wrong after a game, and how much was held."""

    # Lines of the program in a text that it did not mean
    wrong: list[str] = field(default_factory=list)
    # Texts that the person had removed or moved, and that are back; those that the program has written as a whole
    removed: list[str] = field(default_factory=list)
    rewritten: list[str] = field(default_factory=list)
    # Lines of the person that are gone
    lost: list[str] = field(default_factory=list)
    # Changes of the person that a result says are the program's
    credited: list[str] = field(default_factory=list)
    # What the program read when it was not there any more
    stale: list[str] = field(default_factory=list)
    # What was held though the person had not edited there
    in_vain: list[str] = field(default_factory=list)
    commands: int = 0
    conflicts: int = 0

    def bad(self) -> dict[str, list[str]]:
        """Return what must never be."""
        names = ("wrong", "removed", "lost", "credited", "stale")
        return {name: getattr(self, name) for name in names if getattr(self, name)}

    def add(self, other: "Verdict") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


class Game:
    """One project, and what the person and the program have done to it."""

    def __init__(self, top: Path, seed: int, *, holds: bool, branches: Sequence[str] = ()) -> None:
        """Begin one; `branches` are there to be checked out, each once."""
        self.top = top
        self.chance = random.Random(seed)
        self.holds = holds
        self._branches = list(branches)
        self.verdict = Verdict()
        self._number = 0
        # By id the lines that the person has put there; ids that the person has deleted, and where each was then
        self._lines: dict[str, list[str]] = {}
        self._deleted: set[str] = set()
        # Paths that the person has done something to, that the program wrote to, and that it rewrote as a whole
        self._edited: set[str] = set()
        self._written: set[str] = set()
        self._rewritten: set[str] = set()
        self._fresh: list[str] = []
        for name in NAMES:
            self._create(name)
        self._edited.clear()

    # The person

    def edit(self) -> None:
        """Do something that a person, their editor or git does."""
        if self._branches and self.chance.random() < 0.4:
            self._check_out(self._branches.pop())
            return
        ways: Sequence[Callable[[], None]] = (
            self._in_place,
            self._save,
            self._make,
            self._delete,
            self._move,
            self._swap,
            self._over,
            self._move_directory,
            self._swap_directories,
            self._replace_directory,
        )
        self.chance.choice(ways)()

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _files(self) -> list[str]:
        return sorted(path for path in self._all() if (self.top / path).is_file() and not path.endswith(".new"))

    def _directories(self) -> list[str]:
        return sorted(path for path in self._all() if (self.top / path).is_dir())

    def _all(self) -> Iterable[str]:
        found = (str(path.relative_to(self.top)) for path in self.top.rglob("*"))
        return (path for path in found if path.partition("/")[0] != ".git")

    def _create(self, path: str) -> None:
        place = self.top / path
        place.parent.mkdir(parents=True, exist_ok=True)
        one = f"id:{self._next()}"
        place.write_text(f"{one}\n")
        self._lines[one] = []
        self._note(path)

    def _note(self, *paths: str) -> None:
        self._edited.update(paths)
        self._fresh += paths

    def _line(self, path: str) -> str:
        line = f"p{self._next()}"
        self._lines.setdefault(id_of(self.top / path), []).append(line)
        return line

    def _in_place(self) -> None:
        for path in self.chance.sample(self._files(), 1):
            line = self._line(path)
            with (self.top / path).open("a") as file:
                file.write(f"{line}\n")
            self._note(path)

    def _save(self) -> None:
        for path in self.chance.sample(self._files(), 1):
            text = (self.top / path).read_text() + f"{self._line(path)}\n"
            (self.top / f"{path}.new").write_text(text)
            (self.top / f"{path}.new").rename(self.top / path)
            self._note(path)

    def _make(self) -> None:
        path = f"{self.chance.choice(['', *(one + '/' for one in self._directories())])}n{self._next()}"
        self._create(path)

    def _delete(self) -> None:
        for path in self.chance.sample(self._files(), 1):
            self._deleted.add(id_of(self.top / path))
            (self.top / path).unlink()
            self._note(path)

    def _move(self) -> None:
        for path in self.chance.sample(self._files(), 1):
            to = self.chance.choice([f"m{self._next()}", *[name for name in NAMES if not (self.top / name).exists()]])
            (self.top / to).parent.mkdir(parents=True, exist_ok=True)
            (self.top / path).rename(self.top / to)
            self._note(path, to)

    def _swap(self) -> None:
        files = self._files()
        if len(files) > 1:
            one, two = self.chance.sample(files, 2)
            exchange(self.top / one, self.top / two)
            self._note(one, two)

    def _over(self) -> None:
        files = self._files()
        if len(files) > 1:
            one, two = self.chance.sample(files, 2)
            self._deleted.add(id_of(self.top / two))
            (self.top / one).rename(self.top / two)
            self._note(one, two)

    def _move_directory(self) -> None:
        for path in self.chance.sample(self._directories(), min(1, len(self._directories()))):
            gone = [name for name in DIRECTORIES if not (self.top / name).exists()]
            to = self.chance.choice([f"x{self._next()}", *gone])
            (self.top / to).parent.mkdir(parents=True, exist_ok=True)
            if not f"{to}/".startswith(f"{path}/"):
                (self.top / path).rename(self.top / to)
                self._note(path, to)

    def _swap_directories(self) -> None:
        pairs = [
            (one, two)
            for one in self._directories()
            for two in self._directories()
            if one < two and not two.startswith(f"{one}/")
        ]
        if pairs:
            one, two = self.chance.choice(pairs)
            exchange(self.top / one, self.top / two)
            self._note(one, two)

    def _replace_directory(self) -> None:
        for path in self.chance.sample(self._directories(), min(1, len(self._directories()))):
            names = [found.name for found in (self.top / path).iterdir() if found.is_file()]
            self._deleted.update(id_of(found) for found in (self.top / path).rglob("*") if found.is_file())
            shutil.rmtree(self.top / path)
            (self.top / path).mkdir()
            self._note(path)
            for name in names[:2]:
                self._create(f"{path}/{name}")

    def _check_out(self, branch: str) -> None:
        """Check out a branch whose files have ids that no other has; what was edited in tracked files is given up."""
        before = self._ids()
        run_git(self.top, "checkout", "-q", "-f", branch)
        after = self._ids()
        self._deleted |= set(before.values()) - set(after.values())
        self._lines |= {one: [] for one in set(after.values()) - set(before.values())}
        changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
        self._edited.update(changed)
        self._fresh += self.chance.sample(changed, min(len(changed), 20))

    def _ids(self) -> dict[str, str]:
        return {path: id_of(self.top / path) for path in self._files()}

    # The program

    def work(self, ask: Ask) -> None:
        """Have the program do something."""
        path = self.chance.choice(sorted({*NAMES, *self._files()}))
        line = f"r{self._next()}"
        match self.chance.choice(["append"] * 3 + ["save", "create", "delete", "move", "held", "hold"]):
            case "append":
                self._wrote(ask("append", path, line), path)
            case "save":
                if self._wrote(ask("save", path, line), path):
                    self._rewritten.add(path)
            case "create":
                to = f"{os.path.dirname(path)}/made{self._next()}".lstrip("/")
                self._wrote(ask("create", to, f"id:{line}"), to)
            case "delete":
                self._wrote(ask("delete", path), path)
            case "move":
                to = f"moved{self._next()}"
                if self._wrote(ask("move", path, to), path, to):
                    self._rewritten.add(to)
            case "held":
                if self.holds:
                    ask("append-held", line)
            case "hold":
                self._hold(ask, path)

    def _hold(self, ask: Ask, path: str) -> None:
        if not self.holds:
            return
        if self.chance.random() < 0.3:
            ask("drop")
            return
        how = self.chance.choice(HOLDS)
        if ask("hold", path, how) and how in ("written", "watched"):
            self._written.add(path)

    def _wrote(self, answer: list[str], *paths: str) -> bool:
        self.verdict.commands += 1
        if answer:
            self._written.update(paths)
        return bool(answer)

    def look(self, ask: Ask, *, within_s: float = 0.1) -> None:
        """Have the program read what the person has just edited. By then it must be what lies there now."""
        fresh, self._fresh = self._fresh, []
        if self.holds or not fresh:
            return
        deadline = time.monotonic() + within_s
        time.sleep(0.1)
        for path in fresh:
            if lies_in(path, self._written) or (self.top / path).is_dir():
                continue
            place = self.top / path
            expected = [place.read_text()] if place.is_file() else []
            while (found := ask("read", path)) != expected and time.monotonic() < deadline:
                time.sleep(0.05)
            if found != expected:
                self.verdict.stale.append(f"{path}: {found} instead of {expected}")

    # What came of it

    def credit(self, changes: ChangeSet) -> None:
        """Judge what a result says that the program has changed."""
        known = {*self._written, *(above for path in self._written for above in parents(path))}
        for change in changes:
            path = os.fsdecode(change.path)
            if path not in known and not path.endswith(".new") and not lies_in(path, known):
                self.verdict.credited.append(f"{change.kind} {path}")

    def take(self, operation: Operation | None) -> None:
        """Take note of what was left."""
        for one in () if operation is None else operation.left:
            path = os.fsdecode(one.path)
            self.verdict.conflicts += 1
            touched = lies_in(path, self._edited) or any(edited.startswith(f"{path}/") for edited in self._edited)
            if not touched:
                self.verdict.in_vain.append(f"{path}: {one.reason}")

    def judge(self) -> Verdict:
        """Look at the project when all is over."""
        where: dict[str, list[str]] = {}
        lines: dict[str, set[str]] = {}
        for path in self._files():
            own, *rest = (self.top / path).read_text().splitlines() or [""]
            where.setdefault(own, []).append(path)
            lines.setdefault(own, set()).update(rest)
            for line in rest:
                words = line.split()
                if line.startswith("r") and words[-1] != own:
                    self.verdict.wrong.append(f"{path} is {own} and has {line}")
        for one, paths in where.items():
            if one in self._deleted or len(paths) > 1:
                back = [path for path in paths if path not in self._rewritten]
                extra = back if one in self._deleted else back[1:]
                self.verdict.removed += [f"{path}: {one}" for path in extra]
                self.verdict.rewritten += [path for path in paths if path in self._rewritten]
        for one, wanted in self._lines.items():
            missing = [line for line in wanted if line not in lines.get(one, ())]
            if one not in self._deleted and (missing or (one not in where and wanted)):
                self.verdict.lost.append(f"{one}: {missing}")
        return self.verdict


def make_branches(top: Path, many: int, files: int) -> list[str]:
    """Make a repository whose branches have other texts in the same files; return their names, the current one last."""
    run_git(top, "init", "-q")
    # It would go on packing while the repository is copied
    run_git(top, "config", "gc.auto", "0")
    names = [f"b{number}" for number in range(many)]
    for name in names:
        run_git(top, "checkout", "-q", "-b", name)
        for number in range(files):
            path = top / "tree" / str(number % 50) / str(number // 50)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"id:{name}-{number}\n")
        run_git(top, "add", "tree")
        run_git(top, "-c", "user.name=Person", "-c", "user.email=person@example.org", "commit", "-qm", name)
    return names


def run_git(top: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=top, check=True)


def exchange(one: Path, two: Path) -> None:
    aside = one.parent / ".aside"
    one.rename(aside)
    two.rename(one)
    aside.rename(two)


def id_of(path: Path) -> str:
    return path.read_text().partition("\n")[0]


def parents(path: str) -> Iterable[str]:
    while path:
        path = path.rpartition("/")[0]
        if path:
            yield path


def lies_in(path: str, places: set[str]) -> bool:
    return path in places or any(above in places for above in parents(path))


def request(*words: Any) -> bytes:
    return json.dumps(words).encode() + b"\n"
