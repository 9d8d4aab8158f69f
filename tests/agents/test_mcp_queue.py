# SPDX-License-Identifier: Apache-2.0
"""Clients that show no questions: the request waits for `unspill approve`, and the model is told so and calls again."""

import asyncio
import re
import time

import pytest

from tests.agents.mcp_world import MODES, connected, in_world, text_of
from tests.support import Ground, run_cli

pytestmark = [pytest.mark.kernel, pytest.mark.agents]

SOON = ("--patience", "0.2")
WANTED = {"command": "echo out; echo more >> file", "network": True}


def waiting_id(text: str) -> str:
    """Return the id that a model is told."""
    found = re.search(r"`unspill approve ([0-9a-f]{16})`", text)
    assert found, text
    return found[1]


@pytest.mark.parametrize("mode", MODES)
def test_a_model_is_told_at_once_what_the_user_can_do_and_the_answer_counts_for_its_next_call(
    ground: Ground, mode: str
) -> None:
    async def steps() -> None:
        async with connected(ground, mode, *SOON) as client:
            began = time.monotonic()
            refused = await client.call_tool("run", WANTED)
            assert refused.is_error
            assert time.monotonic() - began < 5, "a model does not wait for minutes"
            identity = waiting_id(text_of(refused))
            again = await client.call_tool("run", WANTED)
            assert waiting_id(text_of(again)) == identity, "the same is not asked twice"
            assert run_cli("approve", identity, cwd=ground.project).returncode == 0
            other = await client.call_tool("run", {**WANTED, "command": "echo out; echo more >> file #"})
            assert waiting_id(text_of(other)) != identity, "it was for that very command"
            allowed = await client.call_tool("run", WANTED)
            assert text_of(allowed).endswith("Output:\nout\n")
            used = await client.call_tool("run", WANTED)
            assert used.is_error, "and for one time"
            assert waiting_id(text_of(used)) != identity

    in_world(steps)
    assert (ground.project / "file").read_text() == "more\n"


def test_who_says_no_has_answered_and_a_yes_is_taken_by_one_of_many_calls(ground: Ground) -> None:
    no = {**WANTED, "command": "touch never"}

    async def steps() -> None:
        async with connected(ground, "auto", *SOON) as client:
            identity = waiting_id(text_of(await client.call_tool("run", no)))
            run_cli("deny", identity, "--reason", "not today", cwd=ground.project)
            refused = await client.call_tool("run", no)
            assert refused.is_error
            assert "not today" in text_of(refused)
            identity = waiting_id(text_of(await client.call_tool("run", WANTED)))
            run_cli("approve", identity, cwd=ground.project)
            results = await asyncio.gather(*(client.call_tool("run", WANTED) for _ in range(4)))
            assert sorted(result.is_error for result in results) == [False, True, True, True]

    in_world(steps)
    assert not (ground.project / "never").exists()
    assert (ground.project / "file").read_text() == "more\n"


def test_an_answer_of_one_sandbox_is_none_for_another(ground: Ground) -> None:
    async def steps() -> None:
        async with connected(ground, "auto", *SOON) as one, connected(ground, "auto", *SOON, "--sandbox", "b") as other:
            identity = waiting_id(text_of(await one.call_tool("run", WANTED)))
            run_cli("approve", identity, cwd=ground.project)
            assert (await other.call_tool("run", WANTED)).is_error
            assert not (await one.call_tool("run", WANTED)).is_error, "but it is for the one that asked"

    in_world(steps)


def test_an_answer_while_the_model_waits_still_lets_the_command_run(ground: Ground) -> None:
    async def steps() -> None:
        async with connected(ground, "auto", "--patience", "20") as client:
            call = asyncio.create_task(client.call_tool("run", WANTED))
            answered = False
            while not answered:
                await asyncio.sleep(0.1)
                listed = await asyncio.to_thread(run_cli, "requests", cwd=ground.project)
                found = re.search(rb"unspill approve ([0-9a-f]{16})", listed.stdout)
                if found:
                    answered = run_cli("approve", found[1], cwd=ground.project).returncode == 0
            assert not (await call).is_error

    in_world(steps)


def test_a_host_that_is_wanted_while_a_command_runs_can_be_allowed_for_the_next_try(ground: Ground) -> None:
    ground.configure("[network]\nask = true\n")
    wanted = {"command": "curl -s -o /dev/null -w '%{http_code}\\n' http://one.example.org/"}

    async def steps() -> None:
        async with connected(ground, "auto", *SOON) as client:
            refused = await client.call_tool("run", wanted)
            assert not refused.is_error, "the command ran, without that host"
            assert text_of(refused).endswith("Output:\n403\n")
            identity = waiting_id(text_of(refused).partition("Output:")[0])
            assert refused.structured_content["waiting"] == [identity]
            run_cli("approve", identity, cwd=ground.project)
            let = await client.call_tool("run", wanted)
            assert text_of(let).endswith("Output:\n502\n"), "let through, to no such host"

    in_world(steps)
