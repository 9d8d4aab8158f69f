# SPDX-License-Identifier: Apache-2.0
"""A person is asked at most twice in 100 ordinary commands, and everything that these change is in the project."""

import base64
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.figures import record_figure
from tests.kernel.demo_project import prepare
from tests.kernel.internet import Internet, internet
from tests.kernel.prompts_table import COMMANDS, HOSTS, QUESTIONS

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(180)]


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
