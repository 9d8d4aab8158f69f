# SPDX-License-Identifier: Apache-2.0
"""Chooses random steps, by what the model knows then: those that make sense, and most often where things meet."""

import random
from typing import Any

from tests.model.driver import TEXTS, Step, World, play, try_step
from tests.model.edits import Edit, Senseless, do_in_model
from tests.model.model import Tree, is_dir
from tests.model.verbs import Failure

LOOK_SHARE = 0.4
LOOKS = ("reuse", "reuse", "reuse", "plain")
NEW_FILES = ("n1", "d/n2", "e/n3", "e/k/n4")
DIRECTORIES = ("d", "e", "e/k", "m", "f")
KINDS = {
    "run": 26, "edit": 14, "apply": 8, "apply-path": 8, "hunk": 10, "lines": 3, "discard-hunk": 3, "side": 4,
    "discard": 3, "undo": 14, "redo": 9, "undo-op": 7, "redo-op": 3, "restore": 3, "undo-session": 3,
    "redo-session": 2, "include": 1, "apply-run": 3, "run-with-edit": 3, "kill": 3, "interrupt": 1, "ask": 1,
}  # fmt: skip
MORE_KINDS = {
    "git": {
        "run": 12, "commit": 8, "git": 6, "run-commit": 18, "hunk": 2, "lines": 0, "discard-hunk": 1, "side": 0,
        "restore": 0, "undo-session": 4, "redo-session": 2, "include": 0,
        "apply-run": 0, "run-with-edit": 0, "kill": 0, "interrupt": 0, "ask": 0,
    },
    "background": {
        "start": 8, "stop": 6, "edit": 8, "hunk": 2, "lines": 0, "discard-hunk": 0, "side": 0, "restore": 0,
        "undo-session": 0, "redo-session": 0, "include": 0,
        "apply-run": 0, "run-with-edit": 0, "kill": 0, "interrupt": 0, "ask": 0,
    },
}  # fmt: skip
GIT = (
    "git status", "git add -A", "git checkout -q -b side", "git checkout -q main", "git stash -q", "git gc -q",
    "git checkout -q .",
)  # fmt: skip
EDITS = {
    "replace-line": 28, "replace-line-in-place": 12, "insert-line": 8, "append-in-place": 8, "delete-line": 6,
    "write": 10, "delete": 6, "chmod": 5, "move": 5, "link": 2, "mkdir": 3, "delete-all": 3, "same": 2,
}  # fmt: skip


class Chooser:
    """Random steps for one world."""

    def __init__(self, seed: int, world: World) -> None:
        self.chance, self._world, self._count = random.Random(seed), world, 0

    def _token(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def _of(self, weights: dict[str, int]) -> str:
        return self.chance.choices(list(weights), list(weights.values()))[0]

    def edits(self, tree: Tree, most: int) -> list[Edit]:
        """Return some edits that can be made one after the other in this tree."""
        tree, made = dict(tree), []
        for _ in range(self.chance.randint(1, most)):
            edit = self._edit(tree)
            try:
                do_in_model(tree, edit)
            except Senseless:
                continue
            made.append(edit)
            if edit[0] == "delete-all" and self.chance.random() < 0.4:
                # A file in place of a directory
                made.append(["write", edit[1], f"{self._token()}\\n"])
                do_in_model(tree, made[-1])
            elif edit[0] == "delete" and self.chance.random() < 0.2:
                made.append(["write", f"{edit[1]}/n5", f"{self._token()}\\n"])
                do_in_model(tree, made[-1])
        return made

    def _edit(self, tree: Tree) -> Edit:
        chance, kind = self.chance, self._of(EDITS)
        texts = [path for path, node in tree.items() if node.kind == "file" and b"\0" not in node.data and node.data]
        directories = [path for path, node in tree.items() if is_dir(node)]
        if kind == "same" and texts:
            return [chance.choice(["same-content", "same-in-place"]), chance.choice(sorted(texts))]
        if kind.endswith(("-line", "-in-place")) and texts:
            at = chance.choice([2, 3, 12, 22, 23])
            return [kind, chance.choice(sorted(texts)), at, *([] if kind == "delete-line" else [self._token()])]
        if kind in ("delete", "chmod", "move") and tree:
            path = chance.choice(sorted(tree))
            mode = chance.choice(["755", "600", "644"]) if not is_dir(tree[path]) else chance.choice(["755", "700"])
            to = chance.choice([*NEW_FILES[:2], "m"])
            return [kind, path, *({"chmod": [mode], "move": [to]}.get(kind, []))]
        if kind == "delete-all" and directories:
            return [kind, chance.choice(sorted(directories))]
        if kind == "mkdir":
            return [kind, chance.choice(DIRECTORIES), chance.choice(["755", "755", "700"])]
        if kind == "link":
            return [kind, chance.choice(["l1", *NEW_FILES[:2]]), self._token()]
        # No two lines alike: of those, diffs may differ
        many = "".join(f"{self._token()}\\n" for _ in range(9))
        content = chance.choice([f"{self._token()}\\n", many, f"{self._token()}\\0\\n"])
        path = chance.choice([*NEW_FILES, "bin", chance.choice(TEXTS), chance.choice([".exrc", "n1"])])
        return ["write", path, content]

    def name(self) -> str:
        return self.chance.choices(["default", "b"], [4, 1])[0]

    def step(self) -> list[Any]:
        """Return a step without its number."""
        chance, world, name = self.chance, self._world, self.name()
        held, made = sorted(world.model.changes(name)), sorted(world.made)
        if (again := self._there_and_back()) is not None:
            return again
        kind = self._of(self.kinds())
        match kind:
            case "run":
                after = chance.choices(["hold", "apply", "discard"], [6, 4, 0.3])[0]
                session, how = chance.choice(["", "", "s1"]), chance.choice(["plain", "plain", "reuse"])
                return ["run", name, after, self.edits(world.model.view(name), 3), session, how]
            case "edit":
                return ["edit", self.edits(world.model.live, 2)]
            case "apply":
                return ["apply", name]
            case "apply-path" if held:
                return ["apply", name, chance.sample(held, min(len(held), chance.choice([1, 1, 2])))]
            case "side" if held:
                side = chance.choice(["ours", "theirs", "overwrite", "markers"])
                return ["apply", name, [chance.choice(held)], side]
            case "include":
                return ["include", name, ".exrc"]
            case "hunk" | "lines" | "discard-hunk" as kind if held:
                return self._hunk(name, kind)
            case "discard":
                return ["discard", name, *([[chance.choice(held)]] if held and chance.random() < 0.6 else [])]
            case "undo-op" | "redo-op" as kind if made:
                return [kind.partition("-")[0], chance.choice(made)]
            case "restore" if made:
                ref = chance.choice(made)
                paths = sorted(world.model.operations[world.made[ref]].live)
                return ["restore", chance.choice(paths or ["f"]), ref]
            case "undo-session":
                return ["undo-session", "s1", chance.choice([None, *made])]
            case "redo-session":
                return ["redo-session", "s1"]
            case "redo":
                return ["redo", None]
        return self._rare_step(kind, name) or ["undo", None, chance.random() < 0.15]

    def _rare_step(self, kind: str, name: str) -> list[Any] | None:
        """Return a step beside git, beside a person or a kill; None for another kind."""
        chance, world = self.chance, self._world
        match kind:
            case "run-commit":
                after, session = chance.choice(["hold", "apply"]), chance.choice(["", "", "s1"])
                edits = self.edits(world.model.view(name), 2)
                return ["run", name, after, edits, session, "plain", self._token()]
            case "commit":
                return ["commit", self.edits(world.model.live, 2), self._token()]
            case "git":
                return ["git", chance.choice(GIT)]
            case "apply-run":
                return ["apply-run", name, chance.choice([*world.model.sandbox(name).runs, -1])]
            case "run-with-edit":
                after, is_first = chance.choice(["hold", "apply"]), chance.random() < 0.5
                own = self.edits(world.model.live, 1)
                return ["run-with-edit", name, after, self.edits(world.model.view(name), 2), own, is_first]
            case "kill":
                verb = chance.choice(["apply", "apply", "discard", "undo", "redo"])
                return ["kill", chance.randint(1, 60), verb, *([name] if verb in ("apply", "discard") else [])]
            case "interrupt":
                after, how = chance.choice(["hold", "apply"]), chance.choice(["kill", "cancel"])
                return ["interrupt", name, after, self.edits(world.model.view(name), 2), how]
            case "ask":
                return ["ask"]
            case "start":
                return ["start", name, chance.choice(["hold", "apply"])]
            case "stop":
                return ["stop", name]
        return None

    def kinds(self) -> dict[str, int]:
        """Return how often each kind of step is to be tried."""
        return KINDS | MORE_KINDS.get(self._world.case.mode, {})

    def _there_and_back(self) -> list[Any] | None:
        """Return, now and then, the reverse of the last step: where nothing is predicted, that is what is compared."""
        if self._world.is_exact or self.chance.random() > 0.35:
            return None
        match self._world.last_kind:
            case "undo" | "git" if self.chance.random() < 0.3:
                return ["git", "git status"] if self._world.case.mode == "git" else None
            case "undo":
                return ["redo", None]
            case "undo-session":
                return ["redo-session", "s1"]
            case "redo-session":
                return ["undo-session", "s1", None]
            case "apply" | "run" | "redo" | "discard":
                return ["undo", None]
        return None

    def _hunk(self, name: str, kind: str) -> list[Any]:
        held = self._world.model.changes(name)
        texts = sorted(path for path, one in held.items() if one == "modified") or ["f"]
        verb = "discard" if kind == "discard-hunk" else "apply"
        lines = sorted(self.chance.sample(range(1, 7), self.chance.randint(1, 3))) if kind == "lines" else []
        return ["hunk", name, self.chance.choice(texts), [] if lines else [self.chance.choice([1, 1, 2])], verb, lines]


def drive(seed: int, world: World, chooser: Chooser) -> tuple[list[Step], Failure | None]:
    """Do random steps, 10 to 40; return those that made sense, and how the last one failed."""
    chance, steps = random.Random(~seed), list[Step]()
    length = chance.randint(10, 40)
    for _ in range(4 * length):
        if len(steps) >= length:
            break
        step = [len(steps), *chooser.step()]
        outcome = try_step(world, step)
        if isinstance(outcome, Senseless):
            continue
        steps.append(step)
        if outcome is None and world.is_exact and chance.random() < LOOK_SHARE:
            steps.append([len(steps), "look", chance.choice(sorted(world.names)), chance.choice(LOOKS)])
            outcome = try_step(world, steps[-1])
        if outcome is not None:
            return steps, outcome if isinstance(outcome, Failure) else None
    last = [[len(steps) + at, *step] for at, step in enumerate(world.last_steps())]
    return [*steps, *last], play(world, last)
