# SPDX-License-Identifier: Apache-2.0
"""However a hook fails, it ends with 2: at any other status, agents run the command as it was."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import unspill
from tests.cli.coding_agents import KINDS, OR_STOP, Agent
from tests.support import Ground, run_cli

pytestmark = pytest.mark.kernel

PROGRAM = str(Path(sys.executable).with_name("unspill"))
SCRIPT = Path(__file__).parents[2] / "scripts" / "unspill"
# What a module does where it is imported, and how any other verb ends then
BREAKING = {
    "raise ImportError('damaged')": 5,
    "raise MemoryError": 5,
    "raise KeyboardInterrupt": 130,
    "raise BrokenPipeError": 141,
    "raise SystemExit(0)": 0,
    "raise GeneratorExit": 1,
    "import sys; del sys.excepthook; raise ValueError": 1,
}
KILLED = {"import os; os.kill(os.getpid(), 9)": -9, "import os; os._exit(77)": 77}


@pytest.fixture
def agent(ground: Ground) -> Agent:
    return KINDS["claude-code"]("claude-code", ground.project)


def replace_module(ground: Ground, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """Put a module of ours before all others, outside of the project."""
    path = ground.top / "broken" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(ground.top / "broken"))


def call(words: list[str], agent: Agent) -> "subprocess.CompletedProcess[bytes]":
    raw = json.dumps(agent.event_for("echo x")).encode()
    return subprocess.run(words, input=raw, cwd=agent.project, capture_output=True, check=False, timeout=60)


@pytest.mark.parametrize(("text", "otherwise"), BREAKING.items())
def test_a_defect_stops_the_command(
    text: str, otherwise: int, agent: Agent, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_module(ground, monkeypatch, "json.py", text)
    done = call([PROGRAM, "hook", "claude-code"], agent)
    assert (done.returncode, done.stdout) == (2, b"")
    assert run_cli("log", "--json", cwd=ground.project).returncode == otherwise


@pytest.mark.parametrize("words", [[sys.executable, str(SCRIPT)], [sys.executable, "-m", "unspill"]])
@pytest.mark.parametrize("text", ["raise ImportError('damaged')", "raise KeyboardInterrupt", "def main("])
def test_a_damaged_installation_stops_the_command(
    words: list[str], text: str, agent: Agent, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_module(ground, monkeypatch, "unspill/cli/main.py", text)
    damaged = ground.top / "broken/unspill"
    (damaged / "__init__.py").touch()
    shutil.copy(unspill.__path__[0] + "/__main__.py", damaged)
    done = call([*words, "hook", "claude-code"], agent)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.endswith(b"Nothing was run.\n")
    assert call([*words, "log"], agent).returncode not in (0, 2)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("text", "otherwise"), KILLED.items())
def test_the_settings_stop_the_command_where_the_hook_is_killed(
    name: str, text: str, otherwise: int, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = KINDS[name](name, ground.project)
    assert agent.hook["command"].endswith(OR_STOP)
    replace_module(ground, monkeypatch, "json.py", text)
    agent.hook["command"] = f"{PROGRAM} hook {name}{OR_STOP}"
    assert agent.consider("echo x").command is None
    done = call([PROGRAM, "hook", name], agent)
    assert done.returncode == otherwise
    assert agent.decide({"command": "echo x"}, done).command == "echo x"


def test_codex_runs_the_command_where_the_settings_give_no_reason(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control arm: how the printed hook once ended."""
    agent = KINDS["codex"]("codex", ground.project)
    replace_module(ground, monkeypatch, "json.py", "import os; os._exit(77)")
    agent.hook["command"] = f"{PROGRAM} hook codex || exit 2"
    assert agent.consider("echo x").command == "echo x"


@pytest.mark.parametrize("name", KINDS)
def test_the_settings_stop_the_command_where_there_is_no_unspill_any_more(name: str, ground: Ground) -> None:
    agent = KINDS[name](name, ground.project)
    agent.hook["command"] = " ".join([str(ground.home / "gone"), *agent.hook["command"].split()[1:]])
    assert agent.consider("echo x").command is None
    agent.hook["command"] = agent.hook["command"].removesuffix(OR_STOP)
    assert agent.consider("echo x").command == "echo x"
