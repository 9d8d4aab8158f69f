# SPDX-License-Identifier: Apache-2.0
"""Every example that `--help` shows is a command line that works, typed into bash in a project like the documents'."""

import os
import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from tests.cli.test_agent import MODEL_HOSTS, give
from tests.cli.test_permissions import waiting
from tests.prepared import PROGRAM
from tests.rootfs_tree import make_small_tree
from tests.support import Ground, run_cli
from unspill.cli.main import VERBS, find_verb, help_text

pytestmark = pytest.mark.kernel

# What needs the person's terminal
ON_TERMINAL = ("shell", "agent")
# Is run by tests/kernel/test_terminal_person.py: somebody has to leave a terminal first
ELSEWHERE = ("attach",)
# What a person does first, so that an example makes sense; by verb, or for one of its lines
BEFORE = {
    "apply": "unspill run --hold -q -c 'date +%N > sorted.txt'",
    "discard": "unspill run --hold -q -c 'date +%N > sorted.txt'",
    "redo": "unspill undo op1",
    "restore": "unspill run -q -c 'date +%N > notes.txt'",
    "init": "rm .unspill.toml",
    "adopt": "mkdir ../old; (cd ../old && unspill run -q -- true); rm -r ../old",
    "unspill undo --session": "unspill redo",
    "unspill logs": "unspill run -d -- sleep 60",
    "unspill logs --follow run7": "unspill stop; unspill run -d -- echo said",
    "unspill stop run7": "unspill run -d -- sleep 60",
    "unspill stop trial": "unspill run -d --sandbox trial -- sleep 60",
}


@pytest.fixture
def demo(ground: Ground) -> Ground:
    """A project in which something was run and applied, and something is held."""
    ground.write(".unspill.toml")
    ground.write("main.py", 'print("hello")\n')
    ground.write("notes.txt", "b\na\n")
    ground.write("Makefile", "test:\n\ttrue\n")
    ground.configure(MODEL_HOSTS)
    for name in ("claude", "codex"):
        give(ground, "exit 0", name)
    make_archive(ground.project / "root.tar")
    run_cli("run", "--session", "trial", "-c", "echo c >> notes.txt", cwd=ground.project)
    run_cli("run", "--hold", "-c", "sort notes.txt > sorted.txt", cwd=ground.project)
    return ground


def make_archive(path: Path) -> None:
    with tempfile.TemporaryDirectory() as place, tarfile.open(path, "w") as archive:
        make_small_tree(Path(place, "tree"))
        archive.add(Path(place, "tree"), ".")


def type_line(ground: Ground, line: str, *, on_terminal: bool = False) -> "subprocess.CompletedProcess[str]":
    """Type a line into bash; `script` is its terminal where it needs one."""
    words = ["script", "--quiet", "--return", "--command", line, "/dev/null"] if on_terminal else ["bash", "-c", line]
    path = f"{ground.home}/bin:{Path(PROGRAM).parent}:{os.environ['PATH']}"
    return subprocess.run(
        words,
        cwd=ground.project,
        env={**os.environ, "PATH": path, "SHELL": "/bin/bash", "TERM": "xterm"},
        input="exit\n" if on_terminal else "",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in (*ELSEWHERE, "approve", "deny")])
def test_the_examples_of_a_verb_work(demo: Ground, verb: str) -> None:
    try:
        for line in find_verb(verb).examples:
            before = BEFORE.get(line) or BEFORE.get(verb)
            said = type_line(demo, before).stdout if before else ""
            typed = line.replace("run7", "run" + "".join(re.findall(r"run (\d+)", said)[-1:]))
            done = type_line(demo, typed, on_terminal=verb in ON_TERMINAL)
            assert done.returncode == 0, (typed, done.stdout)
    finally:
        if verb in ("logs", "stop"):
            type_line(demo, "unspill stop; unspill stop trial")


@pytest.mark.parametrize("verb", ["approve", "deny"])
def test_the_examples_that_answer_a_request_work(demo: Ground, verb: str) -> None:
    for line in find_verb(verb).examples:
        with waiting(demo, "--allow-host", "example.org", "--", "true") as (run, identity):
            done = type_line(demo, line.replace("ID", identity) + " --yes" * (verb == "approve"))
            assert done.returncode == 0, (line, done.stdout)
            run.wait(30)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_examples_that_its_help_shows(verb: str) -> None:
    found = find_verb(verb)
    assert 1 <= len(found.examples) <= 3
    assert all(f"unspill {verb}" in line for line in found.examples)
    assert help_text(found).endswith("examples:\n" + "\n".join(f"  {line}" for line in found.examples))
