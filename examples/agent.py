# SPDX-License-Identifier: Apache-2.0
"""A whole agent in one file: a model that calls tools in a loop, and a person who reviews, applies and undoes.

    python3 examples/agent.py [NEW_DIRECTORY]

The model here is scripted, so that this runs anywhere and costs nothing. To use a real one, write a class with the one
method `reply` that `ScriptedModel` has. Standard library and unspill only.
"""

import re
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from unspill import Policy, Sandbox
from unspill.adapters.tools import Tool, call_tool, tools_of

MOST_TURNS = 20
TESTS = "python3 -B -m unittest -q"
TASK = f"A test of this project fails (`{TESTS}`). Find out why and mend the code, not the test."

PROJECT = {
    "prices.py": '''def total(prices: list[int], discount: int) -> float:
    """Return what a basket costs, with a discount in percent."""
    return sum(prices) - discount
''',
    "test_prices.py": """import unittest

from prices import total


class Total(unittest.TestCase):
    def test_a_discount_is_in_percent(self) -> None:
        self.assertEqual(total([100, 200], 10), 270)
""",
}


@dataclass(frozen=True)
class Call:
    """One tool that a model wants to be called."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """What a model says, and which tools it wants to be called; it has ended where there are none."""

    text: str
    calls: list[Call] = field(default_factory=list)


@dataclass(frozen=True)
class Message:
    """One entry of the conversation: the user's or a tool's text, or a turn of the model."""

    role: str
    text: str = ""
    turn: Turn | None = None
    is_error: bool = False


class Model(Protocol):
    """What the loop needs of a model."""

    def reply(self, messages: list[Message], tools: tuple[Tool, ...]) -> Turn:
        """Return the next turn. A tool has a `name`, a `description` and the `schema` of its arguments."""


class ScriptedModel:
    """Mends the one mistake of the project above. It gets there only if its tools tell the truth."""

    def reply(self, messages: list[Message], tools: tuple[Tool, ...]) -> Turn:
        last = messages[-1]
        calls = [call for message in messages if message.turn is not None for call in message.turn.calls]
        if not calls:
            return Turn("I run the tests first.", [Call("run", {"command": TESTS})])
        if last.is_error:
            return Turn(f"I give up: {last.text}")
        match calls[-1].name:
            case "run" if last.text.startswith("Exit code: 0\n"):
                return Turn("The tests pass. What have I changed?", [Call("changes", {})])
            case "run" if any(call.name == "edit" for call in calls):
                return Turn("I give up: the tests fail still.")
            case "run":
                wrong = re.search(r"AssertionError: (\S+) != (\S+)", last.text)
                said = f"It is {wrong[1]} and should be {wrong[2]}. " if wrong else ""
                return Turn(f"{said}What is here?", [Call("list", {})])
            case "list":
                path = next(name for name in re.findall(r"^(\w+\.py)  ", last.text, re.MULTILINE) if "test" not in name)
                return Turn(f"It must be in {path}.", [Call("read", {"path": path})])
            case "read":
                line = re.search(r"^ *return .*$", last.text, re.MULTILINE)
                old = line[0] if line else ""
                new = old.replace("sum(prices) - discount", "sum(prices) * (100 - discount) / 100")
                return Turn("Percents are not units.", [Call("edit", calls[-1].arguments | {"old": old, "new": new})])
            case "edit":
                return Turn("Now again.", [Call("run", {"command": TESTS})])
        changed = re.findall(r"^  (\w .*)$", last.text, re.MULTILINE)
        if changed != ["M prices.py"]:
            return Turn(f"I give up: this is not what I have done: {changed}")
        return Turn("Done: the discount was taken as an amount, and is in percent now.")


def work(sandbox: Sandbox, model: Model, task: str) -> None:
    """Let the model work on a task: call the tools it wants, give it what they say, until it wants none."""
    tools = tools_of(sandbox)
    messages = [Message("user", task)]
    for _ in range(MOST_TURNS):
        turn = model.reply(messages, tools)
        print(f"model: {turn.text}")
        messages.append(Message("assistant", turn=turn))
        if not turn.calls:
            return
        for call in turn.calls:
            answer = call_tool(sandbox, call.name, call.arguments)
            print(f"  {call.name} {call.arguments}", *answer.text.splitlines(), sep="\n    ")
            messages.append(Message("tool", answer.text, is_error=answer.is_error))
    print(f"model: stopped after {MOST_TURNS} turns")


def review(sandbox: Sandbox) -> bool:
    """Show the person what is held, and apply it or throw it away, as they say; tell whether it was applied."""
    changes = sandbox.changes()
    if not changes:
        print("Nothing is held: there is nothing to review.")
        return False
    print(sandbox.diff())
    if ask("Apply this to the project? [y/N] ") != "y":
        sandbox.discard()
        print("Thrown away; the project is as it was.")
        return False
    # Exactly what was shown: whatever came in between stays held
    operation = sandbox.apply(reviewed=changes)
    print(f"Applied as operation {operation.number}.")
    return not operation.left


def ask(question: str) -> str:
    """Ask the person; nobody there means no."""
    try:
        return input(question).strip().lower()
    except EOFError:
        return ""


def passes(sandbox: Sandbox) -> bool:
    """Tell whether the tests pass: in the sandbox still, so that what an agent wrote can't do more than it could."""
    return sandbox.run(TESTS, after="discard").ok


def main(project: Path, model: Model) -> int:
    """Make the project, have its test mended, and let the person decide."""
    project.mkdir(parents=True, exist_ok=True)
    if any(project.iterdir()):
        print(f"{project} has something in it. Give a directory that is empty, or not there yet.")
        return 2
    for name, text in PROJECT.items():
        (project / name).write_text(text)
    with Sandbox(project, policy=Policy(after="hold")) as sandbox:
        work(sandbox, model, TASK)
        if not review(sandbox):
            return 1
        print(f"The tests {'pass' if passes(sandbox) else 'fail'} on the project itself now.")
        if ask("Keep it? [Y/n] ") == "n":
            print(f"Undone by operation {sandbox.undo().number}; on hold again until it is dropped.")
            sandbox.discard()
            print(f"The tests {'pass' if passes(sandbox) else 'fail'} again.")
    return 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(Path(sys.argv[1]), ScriptedModel()))
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(main(Path(directory), ScriptedModel()))
