# SPDX-License-Identifier: Apache-2.0
"""Somebody renames files beside a real agent that works as a whole in the sandbox."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.real.trials import AGENTS, Trial
from tests.scripted_model import Asked, ModelAnswer, ScriptedModel, Turn

pytestmark = [pytest.mark.agents, pytest.mark.kernel, pytest.mark.timeout(240)]


class RenamingModel(ScriptedModel):
    """Once it has the answer to the first step, somebody renames files before the next begins."""

    def __init__(self) -> None:
        super().__init__()
        self.project: Path | None = None

    def answer(self, asked: Asked, model: str) -> ModelAnswer:
        if asked.step == 1 and self.project is not None:
            (self.project / "a").rename(self.project / "m")
            (self.project / "b").rename(self.project / "a")
            self.project = None
            time.sleep(0.1)
        return super().answer(asked, model)


@pytest.fixture
def model() -> Iterator[RenamingModel]:
    with RenamingModel() as model:
        yield model


@pytest.mark.parametrize("first", ["cat a b", "sleep 20 < a > /dev/null 2>&1 & cat a b"], ids=["not in use", "in use"])
def test_what_an_agent_writes_by_names_that_were_exchanged_comes_into_no_wrong_file(
    first: str, tmp_path: Path, model: RenamingModel
) -> None:
    """L10 with a whole agent."""
    trial = Trial(tmp_path, AGENTS["claude-code"], model, model)
    for name in ("a", "b"):
        (trial.project / name).write_text(f"id:{name}\n")
    model.project = trial.project
    commands = (first, "for name in a m; do echo r1 >> $name; done; cat a m")
    done = trial.play_script(
        "wrap", (*(Turn(calls=(trial.agent.shell(text),)) for text in commands), Turn(text="Done."))
    )
    told = done.stdout[-3000:], done.stderr[-3000:], model.results
    trial.unspill("apply")
    texts = {name: (trial.project / name).read_text().split() for name in ("a", "m")}
    assert set(texts["a"]) <= {"id:b", "r1"}, told
    assert set(texts["m"]) <= {"id:a", "r1"}, told
    assert "r1" in model.results[-1], told
    # It may have read either of them before they were renamed
    assert done.stderr.count(": conflict: ") == 2, told
