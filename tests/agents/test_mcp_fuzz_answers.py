# SPDX-License-Identifier: Apache-2.0
"""Hostile answers to questions of a real `unspill mcp`, among hostile calls: each call ends, and nothing leaks.

Nobody is asked more than ten times in five minutes, so each server gets as many answers and no more.
"""

import random
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agents.fuzzed import Fuzz
from tests.agents.test_mcp_fuzz import Tally, World, attack, look
from tests.agents.wire import ERAS, Era, Wire, wired
from tests.support import Ground

pytestmark = pytest.mark.agents

_NO_RESULTS: Final[tuple[Any, ...]] = (None, [], "x", {}, {"action": "yes"}, {"action": None}, {"content": {}})
_NO_CONTENTS: Final[tuple[Any, ...]] = (None, [], {}, "Allow", {"": 1}, {"answer": None}, {"answer": ["Allow"]})
_NO_YES: Final = ("Deny", "\0", "Allow\n", "allow", "x" * 9000)
# What a client may make of a question: an answer, none, several, or what is no answer at all
REPLIES: Final[tuple[list[dict[str, Any]], ...]] = (
    [{"result": {"action": "accept", "content": {"answer": "Allow"}}}],
    [{"result": {"action": "accept", "content": {"answer": "Allow"}}}] * 3,
    [{"result": {"action": "decline"}}, {"result": {"action": "accept", "content": {"answer": "Allow"}}}],
    [],
    *([{"result": result}] for result in _NO_RESULTS),
    *([{"result": {"action": "accept", "content": content}}] for content in _NO_CONTENTS),
    *([{"result": {"action": "accept", "content": {"answer": text}}}] for text in _NO_YES),
    *([{"error": error}] for error in ({"code": -1, "message": "x"}, {"code": "x"}, None, {})),
)
ASKED_AT_ONCE: Final = 9


def wanted(number: int) -> dict[str, Any]:
    """Return a call that somebody has to allow; each is another, since who was denied is not asked again soon."""
    return {"name": "run", "arguments": {"command": f"echo it ran; : {number}", "network": True}}


class Person:
    """Answers with anything, from a seed; knows how often they were asked, and how often a clear yes was all."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.asked = self.allowed = 0

    def __call__(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        assert params["requestedSchema"]["properties"]["answer"]["default"] == "Deny"
        self.asked += 1
        reply = REPLIES[0] if self.asked % 5 == 1 else self._random.choice(REPLIES)
        self.allowed += bool(reply) and reply[0].get("result") == REPLIES[0][0]["result"]
        return reply


def come_back(wire: Wire, person: Person, calls: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Come back with answers to what a server of the newer era returns; return how the calls, by their ids, ended.

    Not for all: some clients never come back.
    """
    ended, waiting = [], []
    for answer in wire.answers(calls):
        if answer.get("result", {}).get("resultType") != "input_required":
            ended.append(answer)
            continue
        responses: dict[str, Any] = {}
        for identity, request in answer["result"]["inputRequests"].items():
            for reply in person(request["params"]):
                # An answer that comes second has no place here
                responses.setdefault(identity, reply.get("result", reply))
        if responses:
            more = {"requestState": answer["result"]["requestState"], "inputResponses": responses}
            waiting.append(wire.put("tools/call", {**calls[answer["id"]], **more}))
    return [*ended, *wire.answers(waiting)]


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_a_client_answers_a_command_runs_only_for_a_clear_yes(
    era: Era, seed: int, ground: Ground, tmp_path: Path
) -> None:
    """Control: a clear yes lets the command run."""
    world, tally, person = World(ground, more="[permissions]\nwait_s = 2\n"), Tally(), Person(seed)
    with wired(ground.project, tmp_path / "log", era, "--ask", "client", person=person) as wire:
        those = [wanted(number) for number in range(ASKED_AT_ONCE)]
        answers = come_back(wire, person, {wire.put("tools/call", one): one for one in those})
        ran = sum("Output:\\nit ran\\n" in str(answer) for answer in answers)
        assert 0 < ran <= person.allowed < person.asked
        assert person.asked == ASKED_AT_ONCE
        look(wire, world)
        attack(wire, Fuzz(9000 + seed, world.places), tally)
        look(wire, world)
    assert wire.process.returncode == 0
    look(wire, world)
