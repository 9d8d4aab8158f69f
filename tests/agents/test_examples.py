# SPDX-License-Identifier: Apache-2.0
"""The examples for frameworks do what they say, each as a program of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import Ground

pytestmark = [pytest.mark.kernel, pytest.mark.agents]

EXAMPLE = Path(__file__).parents[2] / "examples" / "mcp_example.py"


@pytest.mark.parametrize("answer", ["Deny", "yes"])
def test_the_example_of_a_client(answer: str, ground: Ground) -> None:
    programs = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    done = subprocess.run(
        [sys.executable, EXAMPLE, ground.project],
        input=f"{answer}\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PATH": programs},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tools: run output kill changes diff undo read write list edit\nrun: Exit code: 0\n")
    assert "\nOutput:\nhello\n" in done.stdout
    assert "curl example.org" in done.stdout
    assert "ERROR: " in done.stdout
    assert "\nnever" not in done.stdout
    assert list(ground.project.iterdir()) == []


EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(name: str, project: Path) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, project],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_example_with_a_shell_tool(ground: Ground) -> None:
    ground.write("README.md", "kept")
    printed = run_example("openai_agents_example.py", ground.project)
    assert printed.splitlines()[0] == "There is a greeting, and no README any more."
    assert printed.splitlines()[2:] == ["  D README.md", "  A greeting.txt"]
    assert (ground.project / "greeting.txt").read_text() == "hello\n"
    assert (ground.project / "README.md").read_text() == "kept"


def test_the_example_with_a_sandbox_agent(ground: Ground) -> None:
    assert run_example("openai_sandbox_example.py", ground.project) == "It greets.\n"
    assert [path.name for path in ground.project.iterdir()] == ["hello.py"]
