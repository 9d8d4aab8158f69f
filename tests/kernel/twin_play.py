# SPDX-License-Identifier: Apache-2.0
"""Plays a person and an agent on one repository, and says after every step what is not as it must be."""

import os
import random
import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.kernel.twin_draw import AGENT, NO_LOCK, PERSON, Sequence, Step, is_of_agent
from tests.kernel.twin_world import World, lines, sh
from unspill import Sandbox
from unspill.errors import SandboxUnavailable, UsageError
from unspill.layers.locks import still_active
from unspill.model.change import Selection
from unspill.model.operation import Operation

_ABORT = "{ git merge --abort; git rebase --abort; git cherry-pick --abort; } 2>/dev/null"
_MADE = 'made() { echo "<made $(git rev-parse HEAD)>"; }\n'

# What a run does to go to a branch from wherever it is
_GOES_ELSEWHERE = {"agent: checkout", "agent: new branch"}


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
    # What the person's commands made here, and what they themselves left behind with a HEAD on no branch
    _seen: set[str] = field(default_factory=set)
    _left: set[str] = field(default_factory=set)
    # What the person committed on no branch and a run then saw and went away from, as git lets anybody. Applying that
    # moves HEAD; that the commits stay reachable is looked at as for all.
    _passed: set[str] = field(default_factory=set)

    def problems(self, sequence: Sequence) -> list[str]:
        """Play until something is wrong; return that, with what was done before."""
        for step in sequence.steps:
            try:
                self._play(step, random.Random(step.seed))
                found = self._check()
            except AssertionError as error:
                found = [f"assertion: {error}"]
            if found:
                return [*self.told, *(f"  ! {problem}" for problem in found)]
        return []

    def _play(self, step: Step, chance: random.Random) -> None:
        sandbox, other = self.world.sandbox, self.world.other
        if step.seed and chance.random() < 0.25:
            sandbox, other = other, sandbox
        inside = [at for at, action in enumerate(step.actions) if is_of_agent(action)]
        if not inside:
            for action in step.actions:
                self._act(action, chance, sandbox)
            return
        first = next((at for at, action in enumerate(step.actions) if not is_of_agent(action)), len(step.actions))
        last = next((at for at in inside if at > first), len(step.actions))
        parts = [step.actions[:first], step.actions[first:last], step.actions[last:]]
        self._run(parts, step.then, chance, sandbox, other)

    def _act(self, action: str, chance: random.Random, sandbox: Sandbox, running: Sandbox | None = None) -> None:
        """Do what a person does, or what they ask unspill for; while a run goes on, in another sandbox."""
        self._note(action)
        if action.startswith("person: "):
            self._person(action.removeprefix("person: "), chance)
        else:
            self._ours(action, chance, sandbox, running)

    def _note(self, action: str) -> None:
        self.pairs[self._last, action] += 1
        self._last = action

    def _filled(self, text: str, chance: random.Random) -> str:
        self._number += 1
        branches = lines(self.world.project, "for-each-ref", "--format=%(refname:short)", "refs/heads")
        text = text.replace("BRANCH", f"'{chance.choice(branches or ['main'])}'")
        return text.replace("NUMBER", str(self._number)).replace("REMOTE", str(self.world.remote))

    def _person(self, action: str, chance: random.Random) -> None:
        if action == "fetch":
            self._push(chance)
        text = self._filled(PERSON[action], chance)
        if not action.endswith("lock") and chance.random() < 0.8:
            text = f"{NO_LOCK}; {text}"
        self.told.append(f"person: {text}")
        world = self.world
        before = {where: lines(where, "rev-parse", "HEAD") for where in (world.project, world.twin)}
        branches, reachable = self._branches_here(), self._subjects()
        is_detached = not lines(world.project, "symbolic-ref", "-q", "HEAD")
        world.person(text)
        self._seen |= self._subjects("--reflog")
        if is_detached:
            self._left |= reachable - self._subjects()
            self._take_along()
        # Git lets them delete here what in the twin they stand on
        self._deleted |= branches - self._branches_here()
        if action in ("commit", "amend") and all(
            lines(where, "rev-parse", "HEAD") != before[where] for where in (world.project, world.twin)
        ):
            (branch,) = lines(world.project, "rev-parse", "--symbolic-full-name", "HEAD")
            self._committed[f"person-{self._number}"] = branch

    def _take_along(self) -> None:
        """Note what became of commits on no branch when the person went to one."""
        (branch,) = lines(self.world.project, "rev-parse", "--symbolic-full-name", "HEAD") or ["HEAD"]
        tip = set(lines(self.world.project, "ls-tree", "--name-only", "HEAD"))
        for name in [name for name, old in self._committed.items() if old == "HEAD" != branch]:
            del self._committed[name]
            if name in tip:
                self._committed[name] = branch

    def _subjects(self, *more: str) -> set[str]:
        """Return the subjects of what can be reached in the project."""
        return {
            *lines(self.world.project, "log", "--all", *more, "--format=%s"),
            *lines(self.world.project, "log", "-g", "--format=%s", "refs/stash"),
        }

    def _branches_here(self) -> set[str]:
        return set(lines(self.world.project, "for-each-ref", "--format=%(refname)", "refs/heads"))

    def _push(self, chance: random.Random) -> None:
        self._number += 1
        other = self.world.top / "other"
        sh(self.world.top, f"rm -rf other; git clone -q file://{self.world.remote} other")
        sh(other, f"git commit -q --allow-empty -m 'remote {self._number}'; git push -q origin HEAD; rm -rf ../other")

    def _run(
        self, parts: list[tuple[str, ...]], then: str, chance: random.Random, sandbox: Sandbox, other: Sandbox
    ) -> None:
        before, others, after = parts
        scripts = [self._script(part, chance) for part in (before, after)]
        self.told.append(f"run in {self.world.name_of(sandbox)}, {then}: {scripts[0]!r}; {others}; {scripts[1]!r}")

        def meanwhile() -> None:
            for action in others:
                self._act(action, chance, other, sandbox)

        for action in before:
            self._note(action)
        on_no_branch = {name for name, branch in self._committed.items() if branch == "HEAD"}
        # A rebase or merge of nothing leaves a commit of the person on top
        known = set(lines(self.world.project, "rev-list", "--all", "--reflog", "HEAD"))
        result = self.world.run(_MADE + scripts[0], scripts[1], meanwhile=meanwhile, then=then, sandbox=sandbox)
        for action in after:
            self._note(action)
        printed = result.stdout.kept().decode("utf-8", "replace")
        self.told.append(f"  -> {_told(result.operation)} {result.problem}")
        if then != "discard":
            self._made |= set(re.findall(r"<made ([0-9a-f]{40,64})>", printed)) - known
            if _GOES_ELSEWHERE & {*before, *after}:
                self._passed |= on_no_branch

    def _script(self, actions: tuple[str, ...], chance: random.Random) -> str:
        texts = [self._filled(AGENT[action.removeprefix("agent: ")], chance) for action in actions]
        return "\n".join(f"{{ {text}; }} || {_ABORT}" for text in texts)

    def _ours(self, kind: str, chance: random.Random, sandbox: Sandbox, running: Sandbox | None) -> None:
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
                case "undo one":
                    numbers = [one.number for one in self._free(sandbox, running)]
                    operation = sandbox.undo(chance.choice(numbers)) if numbers else None
                case "discard":
                    operation = sandbox.discard()
                case _:
                    number = self._last_of(kind, sandbox, running) if running is not None else None
                    if running is None or number is not None:
                        operation = sandbox.undo(number) if kind == "undo" else sandbox.redo(number)
        except (UsageError, SandboxUnavailable) as error:
            if isinstance(error, SandboxUnavailable) and (running is None or error.message != still_active().message):
                raise
            # What an operation left held, or a later run covers, is not held otherwise while a run stands on it
            self.told.append(f"{kind}: {error.message}")
            return
        self.told.append(f"{kind} in {self.world.name_of(sandbox)}: {_told(operation)}")

    def _free(self, sandbox: Sandbox, running: Sandbox | None) -> list[Operation]:
        """Return the operations whose reversal need not wait for a run: it does if it changes what that one holds."""
        found = sandbox.operations(limit=100)
        if running is None:
            return list(found)
        asked_by = {one.id: one.asked_by for one in found}
        own = sandbox.id
        return [one for one in found if one.sandbox == own or asked_by.get(one.origin or one.id) == "run"]

    def _last_of(self, kind: str, sandbox: Sandbox, running: Sandbox | None) -> int | None:
        """Return the number of the last operation that can be undone, or of the last undo."""
        return next(
            (one.number for one in self._free(sandbox, running) if (one.kind == "undo") == (kind == "redo")), None
        )

    def _check(self) -> list[str]:
        return [*self._whole(), *self._branches(), *self._commits(), *self._runs()]

    def _whole(self) -> list[str]:
        """Have git check both sides of the project."""
        found = []
        done = sh(self.world.project, "git fsck --full --no-progress --no-dangling 2>&1", check=False)
        if done.returncode or "missing" in done.stdout or "error" in done.stdout:
            found.append(f"project: {done.stdout.strip()}")
        for sandbox in self.world.used():
            result = sandbox.run("git fsck --full --no-progress --no-dangling 2>&1", after="discard")
            text = result.stdout.kept().decode("utf-8", "replace")
            if not result.ok or "missing" in text or "error" in text:
                found.append(f"sandbox {self.world.name_of(sandbox)}: {text.strip()}")
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
            if branch == "HEAD" and name in self._passed:
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
        here = self._subjects()
        # What failed here alone can't be lost
        missing = {subject for subject in (there - here) & self._seen - self._left if subject.startswith("person")}
        # A stash names the branch that it was made on, which may be one of the agent's here
        stashed = re.findall(r"person stash \d+", "\n".join(lines(self.world.twin, "stash", "list")))
        kept, seen = "\n".join(here), "\n".join(self._seen)
        missing |= {entry for entry in stashed if re.search(rf"{entry}\b", seen) and not re.search(rf"{entry}\b", kept)}
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
