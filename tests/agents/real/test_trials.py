# SPDX-License-Identifier: Apache-2.0
"""Real coding agents, set up as our documents say: sealed, and what they did is undone to the very tree."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.real.trials import AGENTS, VERSIONS, Trial, facts_of
from tests.figures import record_agent
from unspill.setup.scripted_model import ScriptedModel

pytestmark = [pytest.mark.agents, pytest.mark.kernel, pytest.mark.timeout(240)]

ALWAYS = [name for name, agent in VERSIONS.items() if agent.get("always")]
DONE = {"files": ["made.txt", "notes.md"], "steps": True}


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as model:
        yield model


@pytest.fixture
def canary() -> Iterator[ScriptedModel]:
    """A server that says nothing, and notes what is asked of it."""
    with ScriptedModel() as canary:
        yield canary


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Try two agents always, and the others with `--full`."""
    chosen = [*AGENTS.values()] if metafunc.config.getoption("--full") else [AGENTS[name] for name in ALWAYS]
    if "mode" in metafunc.fixturenames:
        cases = [(agent.name, mode) for agent in chosen for mode in agent.modes]
        metafunc.parametrize(("name", "mode"), cases)
    elif "name" in metafunc.fixturenames:
        metafunc.parametrize("name", [agent.name for agent in chosen])


def test_an_agent_is_sealed_and_what_it_did_is_undone(
    name: str, mode: str, tmp_path: Path, model: ScriptedModel, canary: ScriptedModel
) -> None:
    trial = Trial(tmp_path, AGENTS[name], model, canary)
    before = trial.tree()
    done = trial.play(mode)
    told = done.stdout[-3000:], done.stderr[-3000:], model.results
    assert facts_of(trial) == {**DONE, "key seen": False, "network reached": False}, told
    assert trial.tree()["notes.md"][1].endswith(b"delta\n")
    trial.undo_everything()
    assert trial.tree() == before
    record_agent(name, mode, VERSIONS[name]["version"], "sealed, undone")


def test_without_unspill_the_same_agent_is_open(
    name: str, tmp_path: Path, model: ScriptedModel, canary: ScriptedModel
) -> None:
    """The control: the key and the network are there to be reached."""
    trial = Trial(tmp_path, AGENTS[name], model, canary)
    done = trial.play("plain")
    assert facts_of(trial) == {**DONE, "key seen": True, "network reached": True}, (done, model.results)


def test_the_installed_agents_are_those_of_the_list(full: bool) -> None:
    for name in AGENTS if full else ALWAYS:
        package = AGENTS[name].program.parents[1] / VERSIONS[name]["package"] / "package.json"
        assert json.loads(package.read_text())["version"] == VERSIONS[name]["version"]
