# SPDX-License-Identifier: Apache-2.0
"""The example of a client does what it says: commands are sealed and undone, and the person has the last word."""

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
    assert done.stdout.startswith("tools: run changes diff undo read write list edit\nrun: Exit code: 0\n")
    assert "\nOutput:\nhello\n" in done.stdout
    assert "curl example.org" in done.stdout
    assert "ERROR: " in done.stdout
    assert "\nnever" not in done.stdout
    assert list(ground.project.iterdir()) == []
