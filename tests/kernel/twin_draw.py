# SPDX-License-Identifier: Apache-2.0
"""What a person, an agent and unspill do on one repository, and sequences of it in which every pair comes up.

A walk passes every ordered pair of actions; it is cut into sequences. So so many walks are so many times each pair.
"""

import functools
import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.kernel.twin_world import KINDS

NO_LOCK = "rm -f .git/*.lock .git/refs/heads/*.lock"
# What a person does: NUMBER is another one each time, BRANCH one of those that there are
PERSON = {
    "edit": "echo 'edited NUMBER' >> 'person-edit'",
    "add": "echo 'staged NUMBER' > 'person-staged-NUMBER'; git add 'person-staged-NUMBER'",
    "commit": "echo NUMBER > 'person-NUMBER'; git add 'person-NUMBER'; git commit -qm 'person NUMBER'",
    "amend": "echo NUMBER > 'person-NUMBER'; git add 'person-NUMBER'; git commit -q --amend -m 'person NUMBER'",
    "merge": "git merge -q --no-ff -m 'person NUMBER' BRANCH",
    # What unspill advises; in the twin there is nothing of the kind
    "merge arrived": "ref=$(git for-each-ref --format='%(refname)' refs/unspill | grep -m 1 /heads/) &&"
    ' git merge -q --no-edit "$ref"',
    "rebase": "git rebase -q BRANCH",
    "stash": "echo NUMBER > base1; git stash push -q -m 'person stash NUMBER' -- base1",
    "pop": "git stash pop -q",
    "branch": "git branch 'person/NUMBER'",
    "checkout": "git checkout -q BRANCH",
    "new branch": "git checkout -q -b 'person/NUMBER'",
    "tag": "git tag -m 'person NUMBER' 'person-tag-NUMBER'",
    "reset": "git reset -q",
    "soft reset": "git reset -q --soft HEAD~1",
    "delete branch": "git branch -q -D BRANCH",
    "gc": "git gc -q",
    "gc now": "git gc -q --prune=now",
    "expire": "git reflog expire --expire=now --all",
    "pack refs": "git pack-refs --all",
    "fetch": "git fetch -q origin",
    "worktree": 'tree="../$(basename "$PWD")-wt-NUMBER"; git worktree add -q "$tree" -b person/wt-NUMBER &&'
    " git -C \"$tree\" commit -q --allow-empty -m 'person NUMBER'",
    "submodule": "test -e lib/.git || git submodule -q add file://REMOTE lib; cd lib && echo NUMBER > person-NUMBER &&"
    " git add -A && git commit -qm 'person NUMBER' && cd .. && git add lib && git commit -qm 'person lib NUMBER'",
    "status": "git status",
    "stale lock": "touch .git/index.lock",
    "foreign lock": "touch .git/HEAD.lock .git/packed-refs.lock .git/refs/heads/main.lock",
    "no lock": NO_LOCK,
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
# How many sequences a walk is cut into
PIECES = 150
# What is asked of unspill comes up more often than each thing that git is asked for
_OFTEN = 2
_LONGEST = 3
_MEANWHILE = 2


@dataclass(frozen=True)
class Step:
    """What is done without a check in between, and the seed of its details.

    What an agent does is one run, with what becomes of it `then`; what others do before the last of it, they do while
    it runs.
    """

    actions: tuple[str, ...]
    seed: int = 0
    then: str = ""


@dataclass(frozen=True)
class Sequence:
    """A kind of repository, and steps."""

    kind: str
    steps: tuple[Step, ...]

    @classmethod
    def drawn(cls, seed: int) -> "Sequence":
        """Return the piece of a walk that a seed stands for."""
        number, piece = divmod(seed, PIECES)
        walk = drawn_walk(number)
        size = math.ceil((len(walk) - 1) / PIECES)
        chance = random.Random(f"piece {seed}")
        actions = walk[piece * size : (piece + 1) * size + 1]
        return cls(chance.choice(KINDS), tuple(_steps(actions, chance)))

    def shorter(self) -> list["Sequence"]:
        """Return sequences that lack one step."""
        return [Sequence(self.kind, self.steps[:at] + self.steps[at + 1 :]) for at in reversed(range(len(self.steps)))]


def every_action() -> dict[str, int]:
    """Return all actions, and how often each one comes up as often as others do once."""
    found = {f"person: {name}": 1 for name in PERSON} | {f"agent: {name}": 1 for name in AGENT}
    return found | dict.fromkeys(OURS, _OFTEN)


@functools.lru_cache(maxsize=4)
def drawn_walk(seed: int) -> tuple[str, ...]:
    """Return actions in an order in which every pair of them comes up one after the other: an Eulerian circuit."""
    chance = random.Random(f"walk {seed}")
    weights = every_action()
    ahead: dict[str, list[str]] = {}
    for action, weight in weights.items():
        ahead[action] = [other for other, often in weights.items() for _ in range(weight * often)]
        chance.shuffle(ahead[action])
    path, found = [chance.choice([*weights])], []
    while path:
        if ahead[path[-1]]:
            path.append(ahead[path[-1]].pop())
        else:
            found.append(path.pop())
    return tuple(reversed(found))


def is_of_agent(action: str) -> bool:
    """Tell whether something is done inside."""
    return action.startswith("agent: ")


def _steps(actions: tuple[str, ...], chance: random.Random) -> Iterator[Step]:
    at = 0
    while at < len(actions):
        first = at + _count(actions[at:], _LONGEST, inside=True)
        others = first + _count(actions[first:], _MEANWHILE, inside=False)
        # What is dropped and pruned within one run is gone before anything of it is kept: docs/reference.md says so
        others = first + 1 if "person: gc now" in actions[first + 1 : others] else others
        last = others + _count(actions[others:], _LONGEST, inside=True)
        is_while_it_runs = others > first and (first > at or last > others) and chance.random() < 0.6
        end = last if is_while_it_runs else max(first, at + 1)
        then = chance.choice(["apply", "apply", "apply", "hold", "hold", "discard"])
        yield Step(actions[at:end], chance.getrandbits(48), then)
        at = end


def _count(actions: tuple[str, ...], most: int, *, inside: bool) -> int:
    """Return how many actions from the first on are those of an agent, or are not."""
    return sum(1 for _ in itertools.takewhile(lambda action: is_of_agent(action) == inside, actions[:most]))
