# SPDX-License-Identifier: Apache-2.0
"""Makes a failing sequence small, and a shell script of it that needs nothing but the command line."""

import shlex
from collections.abc import Callable
from typing import Any

from tests.model.driver import Case, Step, World, play
from tests.model.edits import to_shell
from tests.model.verbs import Failure

Make = Callable[[Case], World]
# Which argument of a step is a list of edits
EDITS_AT = {"run": 4, "edit": 2, "commit": 2}
START = """rm -rf p; mkdir -p p/d; cd p
for name in f g d/a; do seq -f "$name%g" 24 > $name; done; printf 'a\\0b\\n' > bin"""
# What a terminal has shown may be applied by its token, which is told to whoever lacks it
HUNK = r"""hunk() {
    script -qec "unspill diff --sandbox $1 ${2%:*}" /dev/null > /dev/null
    token=$(unspill apply --sandbox $1 --hunk "$2" 2>&1 | sed -n 's/.*--hunk .*@//p')
    unspill apply --sandbox $1 --hunk "$2@$token"
}"""


class Shrinker:
    """Takes out steps, then edits of steps, as long as the same rule is broken."""

    def __init__(self, steps: list[Step], rule: str, case: Case, make: Make = World) -> None:
        self.steps, self.failure, self.script = steps, None, ""
        self._rule, self._case, self._make = rule, case, make

    steps: list[Step]
    failure: Failure | None

    def shrink(self) -> bool:
        """Make the sequence small; return whether it fails at all."""
        if self._fails(self.steps):
            self._take_out_steps()
            self._take_out_edits()
        return self.failure is not None

    def _fails(self, steps: list[Step]) -> bool:
        world = self._make(self._case)
        try:
            failure = play(world, steps)
        finally:
            world.close()
        if failure is None or failure.rule != self._rule:
            return False
        self.steps, self.failure, self.script = steps, failure, script_of(steps, world)
        return True

    def _take_out_steps(self) -> None:
        size = max(1, len(self.steps) // 2)
        while True:
            at, is_smaller = 0, False
            while at < len(self.steps):
                if self._fails(self.steps[:at] + self.steps[at + size :]):
                    is_smaller = True
                else:
                    at += size
            if size == 1 and not is_smaller:
                return
            size = max(1, size // 2)

    def _take_out_edits(self) -> None:
        for place in range(len(self.steps)):
            where, at = EDITS_AT.get(self.steps[place][1]), 0
            while where is not None and at < len(self.steps[place][where]) > 1:
                edits = self.steps[place][where]
                less = with_argument(self.steps[place], where, edits[:at] + edits[at + 1 :])
                if not self._fails([*self.steps[:place], less, *self.steps[place + 1 :]]):
                    at += 1


def with_argument(step: Step, at: int, value: Any) -> Step:
    return [*step[:at], value, *step[at + 1 :]]


def script_of(steps: list[Step], world: World) -> str:
    """Return the steps as a shell script; the world says which operations they made."""
    lines = START.splitlines()
    if world.case.mode == "git":
        lines.append("git init -q -b main; git add -A; git commit -qm base")
    if any(step[1] == "hunk" for step in steps):
        lines.append(HUNK)
    for _number, kind, *rest in steps:
        lines += lines_of(kind, rest, world)
    return "\n".join(lines) + "\n"


def lines_of(kind: str, rest: list[Any], world: World) -> list[str]:
    operation = {ref: f" op{number}" for ref, number in world.made.items()}
    match kind, rest:
        case "run", [name, after, edits, *more]:
            session = f" --session {more[0]}" if more and more[0] else ""
            commands = [*map(to_shell, edits), *(f"git add -A; git commit -qm {one}" for one in more[2:] if one)]
            return [f"unspill run -q{sandbox(name)} --{after}{session} -c {quoted('; '.join(commands))}"]
        case "edit", [edits]:
            return ["; ".join(map(to_shell, edits))]
        case "commit", [edits, message]:
            return ["; ".join(map(to_shell, edits)), f"git add -A; git commit -qm {message}"]
        case "git", [command]:
            return [str(command)]
        case "apply", [name, *more]:
            side = f" --{more[1]}" if len(more) > 1 and more[1] else ""
            paths = "".join(f"{side} {path}" for path in more[0] or ()) if more else ""
            return [f"unspill apply{sandbox(name)}{paths}"]
        case "include", [name, path]:
            return [f"echo y | script -qec 'unspill apply{sandbox(name)} --include {path}' /dev/null"]
        case "hunk", [name, path, numbers, "apply", []]:
            return [f"hunk {name} {path}:{','.join(map(str, numbers))}"]
        case "hunk", [name, path, numbers, "discard", []]:
            return [f"unspill discard{sandbox(name)} --hunk {path}:{','.join(map(str, numbers))}"]
        case "hunk", [name, path, _numbers, _verb, lines]:
            return [f"# in `unspill review` of {name}: changed lines {lines} of {path}"]
        case "discard", [name, *more]:
            return [" ".join([f"unspill discard{sandbox(name)}", *((more[0] or ()) if more else ())])]
        case "undo" | "redo", [ref, *more]:
            dry = [f"unspill undo --dry-run{operation.get(ref, '')}"] if more and more[0] else []
            return [*dry, f"unspill {kind}{operation.get(ref, '')}"]
        case "restore", [path, ref]:
            return [f"unspill restore {path} --from{operation.get(ref, '')}"]
        case "undo-session" | "redo-session", [session, *more]:
            to = f" --to{operation.get(more[0], '')}" if more and more[0] is not None else ""
            return [f"unspill {kind.partition('-')[0]} --session {session}{to}"]
        case "look", [name, *_how]:
            return [f"unspill run -q{sandbox(name)} --discard -c 'find . -ls; tail -n 99 $(find . -type f)'"]
        case "start", [name, after]:
            return [f"unspill run -q -d{sandbox(name)} --{after} -c 'sleep 600'"]
        case "stop", [name]:
            return [f"unspill stop {name}"]
    return [f"# {kind} {rest}"]


def sandbox(name: str) -> str:
    return "" if name == "default" else f" --sandbox {name}"


def quoted(text: str) -> str:
    return shlex.quote(text) if set(text) & set('"$`\\!') else f'"{text}"'
