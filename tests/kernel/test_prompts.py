# SPDX-License-Identifier: Apache-2.0
"""A person is asked at most twice in 100 ordinary commands, and everything that these change is in the project."""

import base64
import json
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.figures import record_figure
from tests.kernel.internet import Internet, internet
from tests.kernel.prompts_table import COMMANDS, HOSTS, QUESTIONS

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(180)]

FILES = {
    "README.md": "# Demo\n\nA small project.\n",
    "src/shapes.py": '"""Areas."""\n\nPI = 3.14\n\n\ndef circle(radius):\n    """Return an area.\n\n'
    '    >>> circle(0)\n    0.0\n    """\n    return PI * radius * radius\n\n\ndef main():\n    print(circle(1.0))\n',
    "src/hello.c": '#include <stdio.h>\n\nint main(void) {\n    puts("hello");\n    return 0;\n}\n',
    "src/index.js": "console.log([1, 2, 3].map((side) => side * side).join(' '));\n",
    "checks/__init__.py": "",
    "checks/test_shapes.py": "import sys\nimport unittest\n\nsys.path.insert(0, 'src')\nimport shapes  # noqa\n\n\n"
    "class Shapes(unittest.TestCase):\n    def test(self):\n        self.assertEqual(shapes.square(3), 9)\n",
    "checks/shapes.test.js": "require('node:test')('squares', () => { if (3 * 3 !== 9) throw new Error(); });\n",
    "scripts/report.sh": "#!/bin/sh\nwc -l src/*.*\n",
    "package.json": '{"name": "demo-project", "version": "0.1.0", "private": true}\n',
    "Makefile": "build/hello: src/hello.c\n\tmkdir -p build\n\t$(CC) -O1 -o $@ $<\n\nclean:\n\trm -rf build\n\n"
    ".PHONY: clean\n",
}


def prepare(net: Internet) -> None:
    """Write the project, a repository with one revision in it."""
    for name, text in FILES.items():
        path = net.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (net.directory / "home" / ".gitconfig").write_text("[user]\n\tname = Ann\n\temail = ann@example.org\n")
    git = ["git", "-C", os.fspath(net.project), "-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "Begin"]):
        subprocess.run([*git, *words], check=True)


def work(net: Internet) -> dict[str, Any]:
    """Have an agent do its day's work."""
    given = base64.b64encode(pickle.dumps((net.settings(*HOSTS), net.trust()))).decode()
    done = net.program("tests.kernel.prompts_day", given)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_there_are_100_commands_and_each_is_there_once() -> None:
    assert len(COMMANDS) == len(set(COMMANDS)) == 100


def test_100_ordinary_commands_ask_at_most_twice(tmp_path: Path, trusted_bwrap: bytes) -> None:
    with internet(tmp_path / "internet", trusted_bwrap) as net:
        prepare(net)
        day = work(net)
    unexpected = [step for step in day["steps"] if not step["as_expected"]]
    assert unexpected == [], json.dumps(unexpected, indent=1)
    assert tuple(day["asked"]) == QUESTIONS
    assert [step for step in day["steps"] if step["left"] or step["denials"]] == []
    assert day["held"] == 0
    assert (net.project / ".vscode" / "tasks.json").exists()
    assert (net.project / "docs" / "hello.txt").read_text() == "hello\n"
    record_figure("questions in 100 commands", str(len(day["asked"])), "; ".join(day["asked"]))
