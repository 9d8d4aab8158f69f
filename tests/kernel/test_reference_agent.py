# SPDX-License-Identifier: Apache-2.0
"""The examples as programs. Each step of examples/agent.py is looked at from outside while it waits for the person.

The control arms let one tool lie at a time: the agent must not get to the end then, or the person must see it.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.agent import PROJECT
from tests.support import Ground

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(120)]
EXAMPLES = Path(__file__).parents[2] / "examples"
TESTS = [sys.executable, "-B", "-m", "unittest", "-q"]
APPLY, KEEP = "Apply this to the project? [y/N] ", "Keep it? [Y/n] "
MENDED = PROJECT["prices.py"].replace("sum(prices) - discount", "sum(prices) * (100 - discount) / 100")

# The program with one tool replaced by a liar, which gets the real tool, its arguments, and how often it was called
LIAR = """
import sys
sys.path.insert(0, {examples!r})
import agent
from pathlib import Path
from unspill.adapters.answers import Answer

real, called = agent.call_tool, dict()

def lie(call, arguments, count):
{lie}

def call_tool(sandbox, name, arguments):
    call = lambda: real(sandbox, name, arguments)
    if name != {tool!r}:
        return call()
    called[name] = called.get(name, 0) + 1
    return lie(call, arguments, called[name])

agent.call_tool = call_tool
sys.exit(agent.main(Path(sys.argv[1]), agent.ScriptedModel()))
"""
LIES = {
    "the tests pass, before anything was done": (
        "run",
        "return Answer(text='Exit code: 0\\nOutput:\\nOK\\n', values={})",
    ),
    "the tests fail, although they pass": ("run", "return Answer(text='Exit code: 1\\nOutput:\\nno\\n', values={})"),
    "the file has another text": (
        "read",
        "return call().replace(text='Content:\\n    return sum(prices) + discount\\n')",
    ),
    "the file was changed, although it was not": ("edit", "return Answer(text='Written: prices.py\\n', values={})"),
    "nothing was changed": ("changes", "return Answer(text='Nothing is held.\\n', values={})"),
    "more was changed": ("changes", "return call().replace(text=call().text + '  A other.py\\n')"),
    "the tool failed": ("edit", "call(); return Answer(text='ERROR: no\\n', values={}, is_error=True)"),
}


@pytest.fixture
def project(ground: Ground) -> Path:
    """A directory that the agent makes itself."""
    return ground.home / "demo"


class Person:
    """Somebody in front of the program, who reads up to a question before they answer."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def read_to(self, question: str) -> str:
        """Return what the program prints up to a question."""
        assert self.process.stdout is not None
        text = b""
        while not text.endswith(question.encode()):
            byte = self.process.stdout.read(1)
            assert byte, text.decode()
            text += byte
        return text.decode()

    def answer(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode() + b"\n")
        self.process.stdin.flush()

    def read_all(self) -> tuple[str, int]:
        """Return the rest of what it prints, and how it ended."""
        text, _ = self.process.communicate(timeout=60)
        return text.decode(), self.process.returncode


@pytest.fixture
def person(project: Path) -> Iterator[Person]:
    """Somebody who has just started the program."""
    somebody = Person(os.fspath(EXAMPLES / "agent.py"), os.fspath(project))
    yield somebody
    somebody.process.kill()
    somebody.process.communicate()


def content(project: Path) -> dict[str, str]:
    return {path.relative_to(project).as_posix(): path.read_text() for path in project.rglob("*") if path.is_file()}


def is_passing(project: Path) -> bool:
    """Run the project's tests without any sandbox."""
    return subprocess.run(TESTS, cwd=project, capture_output=True, check=False, timeout=60).returncode == 0


def test_the_agent_mends_the_test_and_the_person_applies_and_undoes_it(person: Person, project: Path) -> None:
    shown = person.read_to(APPLY)
    assert "AssertionError: 290 != 270" in shown
    assert "model: It is 290 and should be 270. " in shown
    assert "(held: later commands see them, the project does not)" in shown
    assert "model: Done: " in shown
    assert "-    return sum(prices) - discount\n+    return sum(prices) * (100 - discount) / 100\n" in shown
    assert content(project) == PROJECT
    assert not is_passing(project)

    person.answer("y")
    shown = person.read_to(KEEP)
    assert "Applied as operation 1.\nThe tests pass on the project itself now.\n" in shown
    assert content(project) == {**PROJECT, "prices.py": MENDED}
    assert is_passing(project)

    person.answer("n")
    undone = "Undone by operation 2; on hold again until it is dropped.\nThe tests fail again.\n"
    assert person.read_all() == (undone, 0)
    assert content(project) == PROJECT
    assert not is_passing(project)


def test_what_the_person_keeps_stays(person: Person, project: Path) -> None:
    person.read_to(APPLY)
    person.answer("y")
    person.read_to(KEEP)
    person.answer("")
    assert person.read_all() == ("", 0)
    assert content(project) == {**PROJECT, "prices.py": MENDED}


@pytest.mark.parametrize("answer", ["", "n", "yes please"])
def test_what_the_person_does_not_apply_is_gone(answer: str, person: Person, project: Path) -> None:
    person.read_to(APPLY)
    person.answer(answer)
    assert person.read_all() == ("Thrown away; the project is as it was.\n", 1)
    assert content(project) == PROJECT


def test_with_nobody_there_nothing_is_applied(person: Person, project: Path) -> None:
    text, code = person.read_all()
    assert text.endswith(f"{APPLY}Thrown away; the project is as it was.\n")
    assert code == 1
    assert content(project) == PROJECT


def test_what_came_in_after_the_review_is_not_applied(person: Person, project: Path, ground: Ground) -> None:
    person.read_to(APPLY)
    ground.sandbox(project=project).run("echo later > other.py")
    person.answer("y")
    person.read_to(KEEP)
    person.answer("")
    assert content(project) == {**PROJECT, "prices.py": MENDED}


def test_a_directory_of_somebody_else_is_left_as_it_is(project: Path) -> None:
    project.mkdir()
    (project / "prices.py").write_text("mine\n")
    text, code = Person(os.fspath(EXAMPLES / "agent.py"), os.fspath(project)).read_all()
    assert (text.count("\n"), code) == (1, 2)
    assert content(project) == {"prices.py": "mine\n"}


@pytest.mark.parametrize("lie", LIES)
def test_an_agent_whose_tool_lies_does_not_get_there(lie: str, project: Path, tmp_path: Path) -> None:
    tool, body = LIES[lie]
    program = tmp_path / "liar.py"
    program.write_text(LIAR.format(examples=os.fspath(EXAMPLES), tool=tool, lie=f"    {body}"))
    text, code = Person(os.fspath(program), os.fspath(project)).read_all()
    assert code == 1, text
    assert "model: Done" not in text
    assert content(project) == PROJECT


def test_a_liar_who_tells_the_truth_gets_there(project: Path, tmp_path: Path) -> None:
    """The control arm of the control arms: it is the lie that stops the agent, not how it is told."""
    program = tmp_path / "liar.py"
    program.write_text(LIAR.format(examples=os.fspath(EXAMPLES), tool="run", lie="    return call()"))
    person = Person(os.fspath(program), os.fspath(project))
    assert "model: Done: " in person.read_to(APPLY)
    person.answer("y")
    person.read_to(KEEP)
    assert person.read_all() == ("", 0)
    assert is_passing(project)


@pytest.mark.parametrize("answer", ["y", "n"])
def test_an_application_in_another_language_asks_and_keeps_its_own_index(ground: Ground, answer: str) -> None:
    """Allowed, the command runs, and the index follows the project there and back; denied, nothing is run."""
    ground.write("kept.txt", "x")
    for number in range(3):
        ground.write(f"old/{number}", "x")
    programs = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    done = subprocess.run(
        ["node", EXAMPLES / "embedding.mjs", ground.project, ground.top / "index.db"],
        input=f"{answer}\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PATH": programs},
    )
    assert (done.returncode, done.stderr) == (0, "")
    first, asked, *lines = done.stdout.splitlines()
    assert (first, asked) == (
        "index: 4 files",
        'Allow connections to example.org for: sh -c "echo hello > greeting.txt; rm -rf old"?',
    )
    del lines[: lines.index(next(line for line in lines if not line.startswith(("project:", "directory:"))))]
    if answer == "n":
        assert "\nERROR: Permission denied: Allow connections to example.org" in done.stdout
        assert "Why: not now." in done.stdout
        assert sorted(path.name for path in ground.project.iterdir()) == ["kept.txt", "old"]
        return
    top = os.fspath(ground.project)
    assert lines == [
        "exit code: 0",
        f"applied: {top}/greeting.txt (file)",
        f"applied: {top}/old (gone)",
        *(f"applied: {top}/old/{number} (gone)" for number in range(3)),
        "index: 2 files",
        f"undone: {top}/greeting.txt (gone)",
        f"undone: {top}/old (dir)",
        *(f"undone: {top}/old/{number} (file)" for number in range(3)),
        "index: 4 files",
    ]
