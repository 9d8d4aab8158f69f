# SPDX-License-Identifier: Apache-2.0
"""Sessions of a real Claude Code: sealed commands and its own edits, undone together or up to any step."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.real.trials import AGENTS, Trial
from tests.scripted_model import ScriptedModel, Turn
from tests.scripted_model import ToolCall as Call

pytestmark = [pytest.mark.agents, pytest.mark.kernel, pytest.mark.timeout(900)]

FILES = ("notes.md", "one.txt", "sub/two.txt")


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as model:
        yield model


def edit(trial: Trial, name: str, text: str, old: str | None) -> list[Call]:
    path = str(trial.project / name)
    # It writes over a file only if it has read it
    read = [] if old is None else [Call(("Read",), {"file_path": path})]
    return [*read, Call(("Write",), {"file_path": path, "content": text})]


def draw(trial: Trial, count: int) -> tuple[tuple[Turn, ...], list[dict[str, str]]]:
    """Return commands and edits by turns, and what the files say after each of them."""
    chance = random.Random(7)
    files = {name: content.decode() for name, (_mode, content) in trial.tree().items()}
    calls: list[Call] = []
    states: list[dict[str, str]] = []
    for number in range(count):
        name = chance.choice(FILES)
        if number % 2:
            calls.append(trial.agent.shell(f"mkdir -p sub; echo line {number} >> {name}"))
            files[name] = f"{files.get(name, '')}line {number}\n"
        else:
            text = f"edit {number}\n"
            calls += edit(trial, name, text, files.get(name))
            files[name] = text
        states.append(dict(files))
    return (*(Turn(calls=(call,)) for call in calls), Turn(text="done")), states


def contents(trial: Trial) -> dict[str, str]:
    return {name: content.decode() for name, (_mode, content) in trial.tree().items()}


def test_a_session_of_commands_and_own_edits_is_undone_to_any_step(
    tmp_path: Path, model: ScriptedModel, full: bool
) -> None:
    """The time buys 6 steps of a real agent, and 40 with `--full`."""
    trial = Trial(tmp_path, AGENTS["claude-code"], model, model)
    before = trial.tree()
    script, states = draw(trial, count := 40 if full else 6)
    done = trial.play_script("hook", script, limit_s=20 * count + 60)
    told = done.stdout[-2000:], done.stderr[-2000:], model.results
    assert contents(trial) == states[-1], told
    [session] = json.loads(trial.unspill("sessions", "--json").stdout)["sessions"]
    kinds = [one["kind"] for one in session["operations"]]
    assert kinds == ["edit", "apply"] * (count // 2), told
    assert [one["text"] for one in session["prompts"]] == ["do it"]
    # What a person writes meanwhile is no part of it
    mine = {"mine.txt": "mine\n"}
    (trial.project / "mine.txt").write_text(mine["mine.txt"])
    numbers = [one["number"] for one in session["operations"]]
    for number, state in zip(reversed(numbers[:-1]), reversed(states[:-1]), strict=True):
        undone = trial.unspill("undo", "--session", "--to", f"op{number}")
        assert undone.returncode == 0, undone
        assert contents(trial) == {**state, **mine}
    assert trial.unspill("undo", "--session").returncode == 0
    (trial.project / "mine.txt").unlink()
    assert trial.tree() == before
