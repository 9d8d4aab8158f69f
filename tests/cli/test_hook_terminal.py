# SPDX-License-Identifier: Apache-2.0
"""Commands of coding agents on a terminal that the agent types into: no question is put there, so none is answered.

The agent is a process that starts what its hook returned on a pty, reads it, and types a yes whenever it is asked.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.cli.coding_agents import KINDS, Agent
from tests.kernel.terminal_person import ASKED, Person
from tests.support import Ground, run_cli

pytestmark = pytest.mark.kernel

ASKING = "curl -sS -m 20 http://one.example.org/ >&2; echo ended"
ASKED_FOR = "[network]\nask = true\n[permissions]\n"
# Long enough to be answered on a busy machine; where no answer can come, the command is to end soon
CONFIG, SHORT = f"{ASKED_FOR}wait_s = 10\n", f"{ASKED_FOR}wait_s = 3\n"
# Leads a session on the terminal, as a shell does that an agent gave one
STARTED = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(fd, stream)
os.execv("/bin/sh", ["sh", "-c", sys.argv[2]])
"""


@pytest.fixture
def model() -> Iterator[Person]:
    """Who sees the terminal and types there: here the model, and no person."""
    somebody = Person()
    yield somebody
    somebody.hang_up()


def play(command: str | None, ground: Ground, model: Person) -> str:
    """Run a command on the terminal, type `always` whenever that looks like it could help; return what was shown."""
    assert command is not None
    words = [sys.executable, "-c", STARTED, os.ttyname(model.slave), command]
    with subprocess.Popen(words, cwd=ground.project, start_new_session=True, stdin=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            model.look(0.2)
            if ASKED in model.seen or "unspill approve" in model.seen:
                time.sleep(0.8)
                model.type("always\n")
        process.kill()
    return model.look(0.1)


def grants(ground: Ground) -> list[str]:
    return [grant["scope"] for grant in json.loads(run_cli("grants", "--json", cwd=ground.project).stdout)["grants"]]


def make(name: str, ground: Ground, config: str) -> Agent:
    ground.configure(config)
    return KINDS[name](name, ground.project)


@pytest.mark.parametrize("approver", ["", 'approver = "terminal"\n'], ids=["by default", "configured"])
@pytest.mark.parametrize("name", KINDS)
def test_a_model_gets_no_grant_by_what_it_types(name: str, approver: str, ground: Ground, model: Person) -> None:
    sealed = make(name, ground, SHORT + approver).consider(ASKING).command
    assert sealed is not None
    shown = play(sealed, ground, model)
    assert "ended" in shown
    assert "unspill asks" not in shown
    assert "Waiting until" in shown, "somebody else may answer, elsewhere"
    assert grants(ground) == []


def test_without_the_rule_the_model_answers_its_own_question(ground: Ground, model: Person) -> None:
    """The control arm: the same command line with nothing said about whom to ask."""
    sealed = make("codex", ground, CONFIG).consider(ASKING).command
    assert sealed is not None
    assert " --ask queue " in sealed
    shown = play(sealed.replace(" --ask queue ", " "), ground, model)
    assert "unspill asks" in shown
    assert grants(ground) == ["always"]


@pytest.mark.parametrize("whom", ["terminal", "queue"])
def test_a_model_can_not_say_whom_to_ask(whom: str, ground: Ground, model: Person) -> None:
    agent = make("codex", ground, CONFIG)
    once = agent.consider(ASKING).command
    assert once is not None
    texts = [
        once.replace("--ask queue", f"--ask {whom}").replace("--project", f"--ask {whom} --project"),
        once.replace(" --ask queue", f" --ask {whom}") + " ",
        f"{once.partition(' run ')[0]} run --ask {whom} --network -- true",
        f"--ask {whom} -- true",
        f"' --ask {whom} -- true '",
    ]
    for text in texts:
        sealed = agent.consider(text).command
        assert sealed != text
        assert "unspill asks" not in play(sealed, ground, model)
    assert grants(ground) == []


@pytest.mark.parametrize("where", ["config", "project"])
def test_where_nobody_is_to_be_asked_nothing_waits(where: str, ground: Ground, model: Person) -> None:
    rule = 'approver = "deny"\n'
    if where == "project":
        ground.write(".unspill.toml", f"[permissions]\n{rule}")
    agent = make("codex", ground, SHORT + (rule if where == "config" else ""))
    shown = play(agent.consider(ASKING).command, ground, model)
    assert "ended" in shown
    assert "Waiting until" not in shown
    assert json.loads(run_cli("requests", "--json", cwd=ground.project).stdout)["requests"] == []
    assert grants(ground) == []


def test_a_person_answers_the_queue_elsewhere(ground: Ground, model: Person) -> None:
    sealed = make("codex", ground, CONFIG).consider("curl -sS -m 7 http://one.example.org/; echo ended").command
    assert sealed is not None
    with subprocess.Popen(["sh", "-c", sealed], cwd=ground.project, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "unspill approve" in line
        assert run_cli("approve", line.split()[-1], "--scope", "sandbox", cwd=ground.project).returncode == 0
        process.communicate(timeout=30)
    assert grants(ground) == ["sandbox"]


def test_a_configuration_that_can_not_be_read_stops_the_command(ground: Ground) -> None:
    outcome = make("codex", ground, "nonsense = 1\n").consider("echo x")
    assert outcome.command is None
    assert "nonsense" in outcome.told
