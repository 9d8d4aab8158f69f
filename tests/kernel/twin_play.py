# SPDX-License-Identifier: Apache-2.0
"""Plays a person and an agent on one repository at random, and says after every step what is not as it must be."""

import os
import random
import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.kernel.twin_world import KINDS, World, lines, sh
from unspill.errors import UsageError
from unspill.model.operation import Operation
from unspill.model.selection import Selection

# What a person does: NUMBER is another one each time, BRANCH one of those that there are
PERSON = {
    "edit": "echo 'edited NUMBER' >> 'person-edit'",
    "add": "echo 'staged NUMBER' > 'person-staged-NUMBER'; git add 'person-staged-NUMBER'",
    "commit": "echo NUMBER > 'person-NUMBER'; git add 'person-NUMBER'; git commit -qm 'person NUMBER'",
    "amend": "echo NUMBER > 'person-NUMBER'; git add 'person-NUMBER'; git commit -q --amend -m 'person NUMBER'",
    "merge": "git merge -q --no-ff -m 'person NUMBER' BRANCH",
    "rebase": "git rebase -q BRANCH",
    "stash": "echo NUMBER > base1; git stash push -q -m 'person stash NUMBER' -- base1",
    "pop": "git stash pop -q",
    "branch": "git branch 'person/NUMBER'",
    "checkout": "git checkout -q BRANCH",
    "new branch": "git checkout -q -b 'person/NUMBER'",
    "tag": "git tag -m 'person NUMBER' 'person-tag-NUMBER'",
    "soft reset": "git reset -q --soft HEAD~1",
    "delete branch": "git branch -q -D BRANCH",
    "gc": "git gc -q",
    "gc now": "git gc -q --prune=now",
    "expire": "git reflog expire --expire=now --all",
    "pack refs": "git pack-refs --all",
    "fetch": "git fetch -q origin",
    "worktree": "git worktree add -q '../NAME-wt-NUMBER' -b 'person/wt-NUMBER'",
    "submodule": "test -e lib/.git && cd lib && echo NUMBER > 'person-NUMBER' && git add -A &&"
    " git commit -qm 'person NUMBER' && cd .. && git add lib && git commit -qm 'person lib NUMBER'",
    "status": "git status",
    "stale lock": "touch .git/index.lock",
    "no lock": "rm -f .git/index.lock",
    "rename branch": "git branch -q -m BRANCH 'person/NUMBER/renamed'",
}
# What an agent does inside: nothing of it drops what the person committed
AGENT = {
    "edit": "echo 'agent NUMBER' >> agent-file",
    "add": "echo 'NUMBER' > 'agent-staged-NUMBER'; git add 'agent-staged-NUMBER'",
    "commit": "echo NUMBER > 'agent-NUMBER'; git add 'agent-NUMBER'; git commit -qm 'agent NUMBER' && made",
    "commit all": "echo NUMBER > base2; echo x > 'agent-NUMBER'; git add -A; git commit -qm 'agent NUMBER' && made",
    "amend": "echo NUMBER > 'agent-NUMBER'; git add 'agent-NUMBER'; git commit -q --amend -m 'agent NUMBER' && made",
    "merge": "git merge -q --no-ff -m 'agent NUMBER' BRANCH && made",
    "rebase": "git rebase -q BRANCH && made",
    "stash": "echo NUMBER > base3; git stash push -q -m 'agent stash NUMBER' -- base3",
    "pop": "git stash pop -q",
    "branch": "git branch 'agent/NUMBER'",
    "checkout": "git checkout -q BRANCH",
    "new branch": "git checkout -q -b 'agent/NUMBER'",
    "tag": "git tag -m 'agent NUMBER' 'agent-tag-NUMBER'",
    "reset own": "git commit -q --allow-empty -m 'agent NUMBER' && made; git reset -q --hard HEAD~1",
    "detached": "git checkout -q --detach; git commit -q --allow-empty -m 'agent NUMBER' && made",
    "gc": "git gc -q",
    "gc now": "git gc -q --prune=now",
    "expire": "git reflog expire --expire=now --all",
    "pack refs": "git pack-refs --all",
    "worktree": "git worktree add -q 'agent-wt-NUMBER' -b 'agent/wt-NUMBER'",
    "submodule": "test -e lib/.git && cd lib && git commit -q --allow-empty -m 'agent NUMBER' && cd .. &&"
    " git add lib && git commit -qm 'agent lib NUMBER' && made",
    "status": "git status; git log --oneline",
    "delete own branch": "git branch -q 'agent/gone-NUMBER'; git branch -q -D 'agent/gone-NUMBER'",
    "clone": "git clone -q --no-hardlinks . 'agent-clone-NUMBER'",
}
OURS = ("apply", "overwrite", "undo", "undo one", "redo", "discard")
_ABORT = "{ git merge --abort; git rebase --abort; git cherry-pick --abort; } 2>/dev/null"
_MADE = 'made() { echo "<made $(git rev-parse HEAD)>"; }\n'


@dataclass(frozen=True)
class Step:
    """What is done, and the seed of its details."""

    kind: str
    seed: int


@dataclass(frozen=True)
class Sequence:
    """A kind of repository, and steps."""

    kind: str
    steps: tuple[Step, ...]

    @classmethod
    def drawn(cls, seed: int) -> "Sequence":
        """Draw a sequence."""
        chance = random.Random(seed)
        kinds = [*("person",) * 9, *("run",) * 10, *OURS, *OURS]
        steps = tuple(Step(chance.choice(kinds), chance.getrandbits(48)) for _ in range(chance.randint(6, 16)))
        return cls(chance.choice(KINDS), steps)

    def shorter(self) -> list["Sequence"]:
        """Return sequences that lack one step."""
        return [Sequence(self.kind, self.steps[:at] + self.steps[at + 1 :]) for at in reversed(range(len(self.steps)))]


@dataclass
class Game:
    """One sequence, played; `told` says what was done."""

    world: World
    told: list[str] = field(default_factory=list)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    _number: int = 0
    _last: str = "start"
    _committed: dict[str, str] = field(default_factory=dict)
    _made: set[str] = field(default_factory=set)
    _deleted: set[str] = field(default_factory=set)

    def problems(self, sequence: Sequence) -> list[str]:
        """Play until something is wrong; return that, with what was done before."""
        for step in sequence.steps:
            chance = random.Random(step.seed)
            try:
                self._play(step.kind, chance)
                found = self._check()
            except AssertionError as error:
                found = [f"assertion: {error}"]
            if found:
                return [*self.told, *(f"  ! {problem}" for problem in found)]
        return []

    def _play(self, kind: str, chance: random.Random) -> None:
        match kind:
            case "person":
                self._person(chance)
            case "run":
                self._run(chance)
            case _:
                self._note(kind)
                self._ours(kind, chance)

    def _note(self, action: str) -> None:
        self.pairs[self._last, action] += 1
        self._last = action

    def _filled(self, text: str, chance: random.Random) -> str:
        self._number += 1
        branches = lines(self.world.project, "for-each-ref", "--format=%(refname:short)", "refs/heads")
        text = text.replace("BRANCH", f"'{chance.choice(branches or ['main'])}'")
        return text.replace("NUMBER", str(self._number)).replace("NAME", self.world.project.parent.name)

    def _person(self, chance: random.Random) -> None:
        action = chance.choice([*PERSON])
        self._note(f"person: {action}")
        if action == "fetch":
            self._push(chance)
        text = self._filled(PERSON[action], chance)
        if action != "stale lock" and chance.random() < 0.8:
            text = f"rm -f .git/index.lock; {text}"
        self.told.append(f"person: {text}")
        world = self.world
        before = {where: lines(where, "rev-parse", "HEAD") for where in (world.project, world.twin)}
        branches = self._branches_here()
        world.person(text)
        # Git lets them delete here what in the twin they stand on
        self._deleted |= branches - self._branches_here()
        if action in ("commit", "amend") and all(
            lines(where, "rev-parse", "HEAD") != before[where] for where in (world.project, world.twin)
        ):
            (branch,) = lines(world.project, "rev-parse", "--symbolic-full-name", "HEAD")
            self._committed[f"person-{self._number}"] = branch

    def _branches_here(self) -> set[str]:
        return set(lines(self.world.project, "for-each-ref", "--format=%(refname)", "refs/heads"))

    def _push(self, chance: random.Random) -> None:
        self._number += 1
        other = self.world.top / "other"
        sh(self.world.top, f"rm -rf other; git clone -q file://{self.world.remote} other")
        sh(other, f"git commit -q --allow-empty -m 'remote {self._number}'; git push -q origin HEAD; rm -rf ../other")

    def _run(self, chance: random.Random) -> None:
        parts = []
        for _ in range(2):
            actions = [chance.choice([*AGENT]) for _ in range(chance.randint(0, 2))]
            parts.append("\n".join(f"{{ {self._filled(AGENT[one], chance)}; }} || {_ABORT}" for one in actions))
            for action in actions:
                self._note(f"agent: {action}")
        then = chance.choice(["apply", "apply", "apply", "hold", "hold", "discard"])
        count = chance.choice([0, 0, 1, 1, 2])
        self.told.append(f"run, {then}: {parts[0]!r}; {count} of the person; {parts[1]!r}")

        def meanwhile() -> None:
            for _ in range(count):
                self._person(chance)

        result = self.world.run(_MADE + parts[0], parts[1], meanwhile=meanwhile, then=then)
        printed = result.stdout.kept().decode("utf-8", "replace")
        self.told.append(f"  -> {_told(result.operation)} {result.problem}")
        if then != "discard":
            self._made |= set(re.findall(r"<made ([0-9a-f]{40,64})>", printed))

    def _ours(self, kind: str, chance: random.Random) -> None:
        sandbox = self.world.sandbox
        operation: Operation | None = None
        try:
            match kind:
                case "apply":
                    operation = sandbox.apply()
                case "overwrite":
                    if any(change.path.startswith(b".git/") for change in sandbox.changes()):
                        operation = sandbox.apply(Selection(overwrite=(b".git",)))
                        # Asked for: theirs is off the branch then, but still reachable
                        self._committed.clear()
                case "undo":
                    operation = sandbox.undo()
                case "undo one":
                    numbers = [one.number for one in sandbox.operations(limit=100)]
                    operation = sandbox.undo(chance.choice(numbers)) if numbers else None
                case "redo":
                    operation = sandbox.redo()
                case "discard":
                    sandbox.discard()
        except UsageError as error:
            self.told.append(f"{kind}: {error.message}")
            return
        self.told.append(f"{kind}: {_told(operation)}")

    def _check(self) -> list[str]:
        return [*self._whole(), *self._branches(), *self._commits(), *self._runs()]

    def _whole(self) -> list[str]:
        """Have git check both sides of the project."""
        found = []
        done = sh(self.world.project, "git fsck --full --no-progress --no-dangling 2>&1", check=False)
        if done.returncode or "missing" in done.stdout or "error" in done.stdout:
            found.append(f"project: {done.stdout.strip()}")
        result = self.world.sandbox.run("git fsck --full --no-progress --no-dangling 2>&1", after="discard")
        text = result.stdout.kept().decode("utf-8", "replace")
        if not result.ok or "missing" in text or "error" in text:
            found.append(f"sandbox: {text.strip()}")
        return found

    def _branches(self) -> list[str]:
        """Look whether each branch of the twin is there, and what the person committed is in the tip it was for."""
        world, found = self.world, []
        theirs = set(lines(world.twin, "for-each-ref", "--format=%(refname)", "refs/heads"))
        here = self._branches_here()
        found += [f"the branch {name} is gone" for name in theirs - here - self._deleted]
        tips: dict[str, set[str]] = {}
        for branch in {*theirs, "HEAD"}:
            tips[branch] = set(lines(world.twin, "ls-tree", "--name-only", branch))
        kept = set().union(*tips.values())
        for name, branch in self._committed.items():
            if name not in kept or (branch != "HEAD" and branch not in here):
                continue
            if name not in lines(world.project, "ls-tree", "--name-only", branch) and not self._is_elsewhere(name):
                found.append(f"{name} is not in the tip of {branch}")
        return found

    def _is_elsewhere(self, name: str) -> bool:
        """Tell whether the person moved on from the branch: what they committed is in a tip that is theirs now."""
        branches = lines(self.world.project, "for-each-ref", "--format=%(refname)", "refs/heads")
        return any(name in lines(self.world.project, "ls-tree", "--name-only", tip) for tip in (*branches, "HEAD"))

    def _commits(self) -> list[str]:
        """Look whether every commit that the twin can reach can be reached here."""
        there = set(lines(self.world.twin, "log", "--all", "--format=%s"))
        here = set(lines(self.world.project, "log", "--all", "--format=%s"))
        missing = {subject for subject in there - here if subject.startswith("person")}
        # A stash names the branch that it was made on, which may be one of the agent's here
        kept = "\n".join((*here, *lines(self.world.project, "stash", "list")))
        stashed = re.findall(r"person stash \d+", "\n".join(lines(self.world.twin, "stash", "list")))
        missing |= {entry for entry in stashed if not re.search(rf"{entry}\b", kept)}
        return [f"not reachable any more: {subject}" for subject in sorted(missing)]

    def _runs(self) -> list[str]:
        """Look whether every commit of a run is in a reference, a held layer or an operation."""
        lost = self._made - set(lines(self.world.project, "rev-list", "--all"))
        if not lost:
            return []
        state = self.world.ground.state
        # Deletions have such names too, but are no files
        lost = {
            name for name in lost if not any(path.is_file() for path in state.glob(f"**/objects/{name[:2]}/{name[2:]}"))
        }
        if lost:
            indexes = [path for path in state.glob("**/objects/pack/*.idx") if path.is_file()]
            lost -= {name for path in indexes for name in _names_in(path, self.world.kind)}
        return [f"a commit of a run is nowhere: {name}" for name in sorted(lost)]


def _names_in(index: Path, kind: str) -> list[str]:
    words = ["git", "show-index", f"--object-format={'sha256' if kind == 'sha256' else 'sha1'}"]
    with index.open("rb") as file:
        text = subprocess.run(words, stdin=file, capture_output=True, check=False).stdout
    return [line.split()[1] for line in os.fsdecode(text).splitlines()]


def _told(operation: Operation | None) -> str:
    if operation is None:
        return "nothing"
    left = [(os.fsdecode(left.path), left.why, left.reason) for left in operation.left]
    return f"op {operation.number} {operation.kind}, left {left}"
