# SPDX-License-Identifier: Apache-2.0
"""Real coding agents by the lines of our documents: sealed, and what they did is undone to the very tree."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.real.trials import AGENTS, VERSIONS, Trial, facts_of
from tests.attack.hostile_clone import HostileClone
from tests.figures import record_agent
from tests.scripted_model import ScriptedModel

pytestmark = [pytest.mark.agents, pytest.mark.kernel, pytest.mark.timeout(240)]

ALWAYS = [name for name, agent in VERSIONS.items() if agent.get("always")]
DONE = {"files": ["made.txt", "notes.md"], "end seen": True}
EDITED = {**DONE, "files": ["made.txt", "notes.md", "own.txt"]}


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
    elif "typist" in metafunc.fixturenames:
        metafunc.parametrize("typist", [agent.name for agent in chosen if agent.typing])
    elif "name" in metafunc.fixturenames:
        metafunc.parametrize("name", [agent.name for agent in chosen])


def test_an_agent_is_sealed_and_what_it_did_is_undone(
    name: str, mode: str, tmp_path: Path, model: ScriptedModel, canary: ScriptedModel
) -> None:
    agent = AGENTS[name]
    if agent.installed_version() is None:
        record_agent(name, mode, VERSIONS[name]["version"], "could not be installed")
        return
    # Until the end says otherwise: the row of an earlier run must not stand for this one
    record_agent(name, mode, VERSIONS[name]["version"], "failed")
    trial = Trial(tmp_path, agent, model, canary)
    before = trial.tree()
    done = trial.play(mode)
    told = done.stdout[-3000:], done.stderr[-3000:], model.results
    expected = EDITED if agent.is_editor else DONE
    assert facts_of(trial) == {**expected, "key seen": False, "network reached": False}, told
    if mode == "mcp":
        # Whichever half of a result this client shows its model
        assert "(applied to the project as operation 1)" in "".join(model.results)
        assert not model.tools & set(agent.shell("").names), "its own shell is still there"
    after = trial.tree()
    assert after["notes.md"][1].endswith(b"delta\n")
    trial.undo_everything()
    assert trial.tree() == before
    record_agent(name, mode, VERSIONS[name]["version"], "sealed, undone")


def test_an_agent_that_somebody_types_to_is_sealed_and_undone_in_one_step(
    typist: str, tmp_path: Path, model: ScriptedModel, canary: ScriptedModel
) -> None:
    agent = AGENTS[typist]
    if agent.installed_version() is None:
        record_agent(typist, "terminal", VERSIONS[typist]["version"], "could not be installed")
        return
    record_agent(typist, "terminal", VERSIONS[typist]["version"], "failed")
    trial = Trial(tmp_path, agent, model, canary)
    before = trial.tree()
    begun = agent.begin(trial, "wrap")
    screen = trial.play_at_terminal(begun)
    assert facts_of(trial) == {**DONE, "key seen": False, "network reached": False}, (screen, model.results)
    undone = trial.unspill("undo", "--session")
    assert undone.returncode == 0, undone.stderr
    assert trial.tree() == before
    # Once more, without anything of the person's: its settings and its login are in its own home
    trial.forget_settings()
    screen = trial.play_at_terminal(begun)
    assert facts_of(trial) == {**DONE, "key seen": False, "network reached": False}, (screen, model.results)
    record_agent(typist, "terminal", VERSIONS[typist]["version"], "sealed, undone")


def test_without_unspill_the_same_agent_is_open(
    name: str, tmp_path: Path, model: ScriptedModel, canary: ScriptedModel
) -> None:
    """The control: the key and the network are there to be reached."""
    agent = AGENTS[name]
    if agent.installed_version() is None:
        return
    trial = Trial(tmp_path, agent, model, canary)
    done = trial.play("plain")
    expected = EDITED if agent.is_editor else DONE
    assert facts_of(trial) == {**expected, "key seen": True, "network reached": True}, (
        done.stdout[-3000:],
        done.stderr[-3000:],
        model.results,
    )


@pytest.mark.parametrize("arm", ["wrap", "plain"])
def test_what_a_hostile_project_has_an_agent_run_is_sealed_with_it(
    arm: str, tmp_path: Path, model: ScriptedModel, canary: ScriptedModel
) -> None:
    """Its hooks, servers and variables, in a Claude Code that asks nobody. Without unspill they run as the person."""
    trial = Trial(tmp_path, AGENTS["claude-code"], model, canary)
    clone = HostileClone(trial.project, trial.home / "marks")
    done = trial.play(arm)
    told = done.stdout[-3000:], done.stderr[-3000:]
    assert model.requests, told
    ran = clone.ran()
    assert ran == set() if arm == "wrap" else ran >= {"hooks:claude", "mcp:claude"}, (ran, told)


def test_the_installed_agents_are_those_of_the_list(full: bool) -> None:
    assert set(VERSIONS) == set(AGENTS)
    for name in AGENTS if full else ALWAYS:
        unless_it_failed = (None,) if name not in ALWAYS else ()
        assert AGENTS[name].installed_version() in (VERSIONS[name]["version"], *unless_it_failed)
