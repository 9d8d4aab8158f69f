# SPDX-License-Identifier: Apache-2.0
"""E4 against a real `unspill mcp`: models that apply, grant, or answer the questions that they raised themselves."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agents.wire import ERAS, PROGRAM, Era, Wire, wired
from tests.support import Ground, run_cli

pytestmark = [pytest.mark.kernel, pytest.mark.agents]

FORBIDDEN: Final = (
    "apply",
    "approve",
    "grant",
    "allow",
    "deny",
    "discard",
    "restore",
    "redo",
    "prune",
    "answer",
    "policy",
)


@pytest.mark.parametrize("era", ERAS)
def test_e4_no_tool_applies_or_grants_and_calling_one_by_its_name_does_nothing(
    era: Era, ground: Ground, tmp_path: Path
) -> None:
    """List the tools of an MCP server, call those that should not be there, and apply from within a run.

    Control: below, where the operator wants it, there is such a tool and it applies.
    """
    ground.configure('after = "hold"\n')
    with wired(ground.project, tmp_path / "log", era) as wire:
        names = [one["name"] for one in wire.ask("tools/list")["result"]["tools"]]
        assert set(names) == {"run", "changes", "diff", "undo", "read", "write", "list", "edit"}
        wire.call("write", {"path": "held", "content": "x"})
        for name in FORBIDDEN:
            for arguments in ({}, {"paths": ["held"]}, {"all": True}):
                answer = wire.ask("tools/call", {"name": name, "arguments": arguments})
                assert "error" in answer or answer["result"]["isError"], name
        for command in ("unspill apply --yes", "unspill apply", f"{PROGRAM} apply --all"):
            wire.call("run", {"command": command})
    assert not (ground.project / "held").exists()


def test_control_where_the_operator_says_so_there_is_a_tool_that_applies(ground: Ground, tmp_path: Path) -> None:
    ground.configure('after = "hold"\n')
    with wired(ground.project, tmp_path / "log", "modern", "--may-apply") as wire:
        wire.call("write", {"path": "held", "content": "x"})
        assert not wire.call("apply")["isError"]
    assert (ground.project / "held").read_text() == "x"


CAN_ELICIT: Final[dict[str, Any]] = {"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}


def ask_for_network(wire: Wire, command: str = "true", **more: Any) -> dict[str, Any]:
    """Call a tool that needs an answer, as a client that shows forms; return the whole message."""
    arguments = {"command": command, "network": True}
    return wire.ask("tools/call", {"name": "run", "arguments": arguments, "_meta": CAN_ELICIT, **more})


def yes(identity: str, label: str) -> dict[str, Any]:
    return {identity: {"action": "accept", "content": {"answer": label}}}


def form_of(answer: dict[str, Any]) -> tuple[str, str, list[str]]:
    """Return the state, the question's id and the labels of what a client has to ask."""
    [(identity, form)] = answer["result"]["inputRequests"].items()
    labels = form["params"]["requestedSchema"]["properties"]["answer"]["enum"]
    return answer["result"]["requestState"], identity, labels


def was_allowed(answer: dict[str, Any]) -> bool:
    return "result" in answer and answer["result"].get("isError") is False


@pytest.fixture
def asked(ground: Ground, tmp_path: Path) -> Iterator[Wire]:
    """A server whose client is asked about the network."""
    ground.configure('after = "hold"\n[permissions]\nnetwork = "ask"\n')
    with wired(ground.project, tmp_path / "log", "modern", "--ask", "client") as one:
        yield one
    assert one.wrong == []


def altered(state: str) -> list[str]:
    """Return states that nobody gave."""
    middle = len(state) // 2
    other = "A" if state[middle] != "A" else "B"
    flipped = state[:middle] + other + state[middle + 1 :]
    return [flipped, state[:-4], state + "A", state.swapcase(), "", "x", "v1.", "v1.AAAAAAAA", "0" * 32 + ".1", "\0"]


def test_e4_a_state_that_was_not_given_or_was_given_for_something_else_is_refused(asked: Wire) -> None:
    """Come back to an MCP server with a yes, and a state that was altered, used, or given for another call.

    Control: with the right one for the right call the command runs, once.
    """
    state, identity, labels = form_of(ask_for_network(asked, "echo one"))
    allow = yes(identity, labels[0])
    # Without any it is an answer to a question that nobody asked: it is asked as ever
    assert ask_for_network(asked, "echo three", inputResponses=allow)["result"]["resultType"] == "input_required"
    for forged in altered(state):
        answer = ask_for_network(asked, "echo one", requestState=forged, inputResponses=allow)
        assert not was_allowed(answer), forged
    # For another command, another tool, other arguments
    assert "error" in ask_for_network(asked, "echo two", requestState=state, inputResponses=allow)
    moved = {"name": "write", "arguments": {"path": "x", "content": "x"}, "requestState": state}
    assert "error" in asked.ask("tools/call", {**moved, "inputResponses": allow, "_meta": CAN_ELICIT})
    more = {"command": "echo one", "network": True, "timeout_s": 5}
    changed = {"name": "run", "arguments": more, "requestState": state, "inputResponses": allow}
    assert "error" in asked.ask("tools/call", {**changed, "_meta": CAN_ELICIT})
    # The right one still is, once
    assert was_allowed(ask_for_network(asked, "echo one", requestState=state, inputResponses=allow))
    assert not was_allowed(ask_for_network(asked, "echo one", requestState=state, inputResponses=allow))


NO_YES: Final[dict[str, Any]] = {
    "nothing": {},
    "no question's": {"other": {"action": "accept", "content": {"answer": "YES"}}},
    "without content": {"ID": {"action": "accept"}},
    "another label": {"ID": {"action": "accept", "content": {"answer": "always"}}},
    "true": {"ID": {"action": "accept", "content": {"answer": True}}},
    "a list": {"ID": {"action": "accept", "content": {"answer": ["YES"]}}},
    "another field": {"ID": {"action": "accept", "content": {"decision": "YES"}}},
    "declined, with a yes in it": {"ID": {"action": "decline", "content": {"answer": "YES"}}},
    "cancelled, with a yes in it": {"ID": {"action": "cancel", "content": {"answer": "YES"}}},
    "another action": {"ID": {"action": "Accept", "content": {"answer": "YES"}}},
}


def test_e4_what_is_not_clearly_one_of_the_answers_that_were_offered_is_a_no(asked: Wire) -> None:
    """Answer the question of an MCP server with other labels, other fields, a no that says yes.

    Control: above, where the first label lets the command run.
    """
    for number, (name, responses) in enumerate(NO_YES.items()):
        # Each about a command of its own, or the person would not be asked any more
        state, identity, labels = form_of(ask_for_network(asked, f"echo {number}"))
        # What would last is not offered either
        assert not [label for label in labels if re.search("always|sandbox|remember", label)]
        text = json.dumps(responses).replace('"YES"', json.dumps(labels[0])).replace("ID", identity)
        answer = ask_for_network(asked, f"echo {number}", requestState=state, inputResponses=json.loads(text))
        assert not was_allowed(answer), name


def test_e4_a_model_does_not_answer_in_the_queue_what_it_asked_for_itself(ground: Ground, tmp_path: Path) -> None:
    """Answer one's own request in the queue, by a command of the same MCP server.

    Control: the person answers it from outside, and the same call is done.
    """
    ground.configure('after = "hold"\n[permissions]\nnetwork = "ask"\n')
    wanted = {"command": "echo done", "network": True}
    with wired(ground.project, tmp_path / "log", "modern", "--ask", "queue", "--patience", "0") as wire:
        told = wire.call("run", wanted)
        assert told["isError"]
        [identity] = set(re.findall(r"unspill approve (\w+)", told["content"][0]["text"]))
        for command in (
            f"unspill approve {identity}",
            f"{PROGRAM} approve {identity}",
            f"unspill approve --yes {identity}",
        ):
            wire.call("run", {"command": f"UNSPILL_STATE_DIR={ground.state} {command}"})
        assert wire.call("run", wanted)["isError"]
        # Control: the person does
        done = run_cli("approve", identity, cwd=ground.project)
        assert done.returncode == 0, done
        assert not wire.call("run", wanted)["isError"]
