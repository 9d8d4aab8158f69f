# SPDX-License-Identifier: Apache-2.0
"""The shell prefix of docs/coding-agents.md, used as Claude Code uses one: before a whole text, quoted as one word."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import Ground

pytestmark = pytest.mark.kernel
DOCUMENT = Path(__file__).parents[2] / "docs" / "coding-agents.md"


def with_prefix(prefix: str, command: str, cwd_file: Path) -> str:
    """Return the line that is given to a shell: the prefix up to its last option is taken for one program."""
    text = f"source /nowhere/snapshot.sh 2>/dev/null || true && eval {shlex.quote(command)} && pwd -P >| {cwd_file}"
    program, dash, options = prefix.rpartition(" -")
    words = f"{shlex.quote(program)} -{options}" if dash else shlex.quote(prefix)
    return f"{words} {shlex.quote(text)}"


@pytest.fixture
def prefix(ground: Ground) -> Path:
    """The program that the document has you write."""
    found = re.search(r"<<'END'\n(#!/bin/sh\n.*?)END\n", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    path = ground.home / "sealed"
    path.write_text(found[1])
    path.chmod(0o755)
    return path


def perform(line: str, cwd: Path) -> "subprocess.CompletedProcess[bytes]":
    programs = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    variables = {**os.environ, "PATH": programs}
    return subprocess.run(["bash", "-c", line], cwd=cwd, env=variables, capture_output=True, check=False, timeout=60)


@pytest.mark.parametrize(
    ("command", "printed", "code"),
    [
        ("echo plain", "plain\n", 0),
        ("echo 'it'\"'\"'s' \"$((6 * 7))\" | tr a-z A-Z", "IT'S 42\n", 0),
        ("cat <<'E'\n'raw' $x\nE", "'raw' $x\n", 0),
        ("echo a; exit 7", "a\n", 7),
        ("[[ x == x ]] && echo bash", "bash\n", 0),
    ],
)
def test_a_command_behind_the_prefix_is_run_whole_and_sealed(
    command: str, printed: str, code: int, prefix: Path, ground: Ground
) -> None:
    canary, cwd_file = ground.home / "canary", ground.home / "cwd"
    text = f"touch {canary} 2>/dev/null; {command}"
    done = perform(with_prefix(os.fspath(prefix), text, cwd_file), ground.project)
    # What follows the command is sealed as well: where the agent would look up its directory nothing is written
    assert done.stdout.decode() == printed
    assert not canary.exists()
    assert not cwd_file.exists()
    if code:
        assert done.returncode == code
    perform(with_prefix("bash -c", text, cwd_file), ground.project)
    assert canary.exists(), "behind another prefix the same command gets out"


def test_the_variable_can_not_hold_our_own_command_line(ground: Ground) -> None:
    done = perform(with_prefix("unspill run --quiet -c", "echo x", ground.home / "cwd"), ground.project)
    assert done.returncode == 127
    assert done.stdout == b""
