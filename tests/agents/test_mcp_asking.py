# SPDX-License-Identifier: Apache-2.0
"""Questions that get to a person: by the client's elicitation in both eras, or by the queue where it shows none."""

import asyncio
import re
import time
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import ElicitResult, InputRequiredResult

from tests.agents.mcp_world import (
    CANCEL,
    DECLINE,
    MODES,
    Person,
    connected,
    in_world,
    say,
    text_of,
    until_gone,
    until_started,
)
from tests.support import Ground, lasting, run_cli

pytestmark = [pytest.mark.kernel, pytest.mark.agents]

FOR_THIS_RUN = "Allow for this run"
NO_ANSWERS = {
    "declined": (DECLINE, "the user said no"),
    "cancelled": (CANCEL, "the question was dismissed without an answer"),
    "denied by its label": (say("Deny"), "the user said no"),
    "a label that was not offered": (say("Always allow in this project"), "none of those that were offered"),
    "a scope instead of a label": (say("once"), "none of those that were offered"),
    "no content": (ElicitResult(action="accept"), "none of those that were offered"),
    "another field": (ElicitResult(action="accept", content={"allow": True}), "none of those that were offered"),
    "another kind": (ElicitResult(action="accept", content={"answer": True}), "none of those that were offered"),
}


@pytest.mark.parametrize("mode", MODES)
def test_only_a_label_that_was_offered_allows_and_each_other_answer_says_why_not(ground: Ground, mode: str) -> None:
    person = Person(*(answer for answer, _why in NO_ANSWERS.values()), say("Allow"))

    async def steps() -> None:
        async with connected(ground, mode, person=person) as client:
            for case, (_answer, why) in NO_ANSWERS.items():
                refused = await client.call_tool("run", {"command": f"echo {case}; touch file", "network": True})
                assert refused.is_error, case
                assert why in text_of(refused), case
                assert "Nothing was run." in text_of(refused), case
            assert not (ground.project / "file").exists()
            allowed = await client.call_tool("run", {"command": "echo yes; touch file", "network": True})
            assert text_of(allowed).endswith("Output:\nyes\n")
            assert (ground.project / "file").exists(), "the same command runs once somebody said yes"

    in_world(steps)
    assert person.offered == [["Allow", "Deny"]] * len(person.asked)
    assert person.asked[-1].message.splitlines() == [
        "Run command with network access: echo yes; touch file?",
        f"project:   {ground.project}",
        "reaches:   any public host, by HTTP, HTTPS or SOCKS through a proxy; no raw sockets, UDP or ping",
    ]
    assert person.asked[-1].requested_schema["properties"]["answer"]["default"] == "Deny"
    events = run_cli("audit", "--json", cwd=ground.project).stdout
    assert events.count(b"mcp client") == len(person.asked), "who answered is on record"
    assert b"No request waits" in run_cli("requests", cwd=ground.project).stdout, "and nobody else was asked"


@pytest.mark.parametrize("mode", MODES)
def test_hosts_and_roots_are_asked_for_one_by_one(ground: Ground, mode: str) -> None:
    """The last one is denied, so nothing is run."""
    roots = [str(ground.home / name) for name in ("one", "missing")]
    (ground.home / "one").mkdir()
    person = Person(say("Allow once"), say("Allow once"), DECLINE)

    async def steps() -> None:
        async with connected(ground, mode, person=person) as client:
            wanted = {"command": "touch ~/one/file", "hosts": ["example.org"], "roots": roots[:1]}
            allowed = await client.call_tool("run", wanted)
            assert "  A file" in text_of(allowed)
            refused = await client.call_tool("run", {**wanted, "roots": roots[1:]})
            assert text_of(refused).startswith(f"ERROR: Permission denied: Let the sandbox change files in {roots[1]}?")

    in_world(steps)
    assert [params.message.partition("\n")[0] for params in person.asked] == [
        f"Let the sandbox change files in {roots[0]}?",
        "Allow connections to example.org for: touch ~/one/file?",
        f"Let the sandbox change files in {roots[1]}?",
    ]


@pytest.mark.parametrize("mode", MODES)
def test_a_question_that_nobody_answers_in_time_is_denied(ground: Ground, mode: str) -> None:
    ground.configure("[permissions]\nwait_s = 1\n")
    person = Person(say("Allow"), after_s=30.0 if mode == "legacy" else 2.0)

    async def steps() -> None:
        async with connected(ground, mode, person=person) as client:
            began = time.monotonic()
            late = await client.call_tool("run", {"command": "touch file", "network": True})
            assert late.is_error
            assert "in time" in text_of(late)
            if mode == "legacy":
                assert time.monotonic() - began < 20, "the model does not wait for who does not answer"

    in_world(steps)
    assert not (ground.project / "file").exists()


def asking(ground: Ground, **more: object) -> None:
    """Have hosts asked for while a command waits for them."""
    lines = "".join(f"{name} = {value}\n" for name, value in more.items())
    ground.configure(f"[network]\nask = true\n[permissions]\n{lines}")


def fetch(*hosts: str) -> str:
    """Return a command that connects to hosts at once, and says for each what the proxy answered."""
    words = "; ".join(
        f"(curl -s -m 30 -o /dev/null -w '{host} %{{http_code}}\\n' http://{host}/ || true) &" for host in hosts
    )
    return f"{words.replace('&;', '&')} wait"


@pytest.mark.parametrize("mode", MODES)
def test_hosts_that_a_command_wants_while_it_runs_are_asked_for_together(ground: Ground, mode: str) -> None:
    asking(ground)
    person = Person(say(FOR_THIS_RUN), DECLINE, DECLINE, after_s=0.3)

    async def steps() -> None:
        async with connected(ground, mode, person=person) as client:
            ran = await client.call_tool("run", {"command": fetch("one.example.org", "two.example.org")})
            assert not ran.is_error
            assert person.most_at_once == 2, "both were asked for before either was answered"
            again = await client.call_tool("run", {"command": fetch("three.example.org")})
            assert "three.example.org" in text_of(again).partition("Output:")[0]
            assert "three.example.org 403" in text_of(again)
            refused = [line for line in text_of(ran).splitlines() if "403" in line]
            assert len(refused) == 1, "the one that was declined; the other was let through, to no such host"

    in_world(steps)
    assert {params.message.partition(" for:")[0] for params in person.asked} == {
        f"Allow connections to {name}.example.org" for name in ("one", "two", "three")
    }
    assert person.offered[0] == [FOR_THIS_RUN, "Deny"], "nothing that would outlive the run"


def test_an_answer_that_outlives_the_run_is_offered_only_where_the_operator_wants_that(ground: Ground) -> None:
    asking(ground)
    person = Person(say("Always allow this very command in this project"))

    async def steps() -> None:
        async with connected(ground, "auto", "--remember", person=person) as client:
            for _time in range(2):
                await client.call_tool("run", {"command": fetch("one.example.org")})

    in_world(steps)
    assert len(person.asked) == 1, "the answer was remembered"
    assert b"one.example.org" in run_cli("grants", cwd=ground.project).stdout


def test_a_call_that_asks_more_often_than_clients_allow_ends_with_denials_not_with_an_error(ground: Ground) -> None:
    asking(ground)
    person = Person(*[say(FOR_THIS_RUN)] * 10)
    command = "; ".join(fetch(f"h{number}.example.org") for number in range(13))

    async def steps() -> None:
        async with connected(ground, "auto", person=person) as client:
            ran = await client.call_tool("run", {"command": command})
            assert not ran.is_error
            assert text_of(ran).count(" 403") == 3

    in_world(steps)


def test_a_client_that_does_not_come_back_loses_its_command(ground: Ground) -> None:
    asking(ground, wait_s=1)
    word = lasting()

    async def steps() -> None:
        async with connected(ground, "auto", person=Person()) as client:
            command = f"sleep {word} & {fetch('one.example.org')}"
            asked = await client.session.call_tool("run", {"command": command}, allow_input_required=True)
            assert isinstance(asked, InputRequiredResult)
            await until_started(word)
            await asyncio.sleep(0.5)
            await until_started(word)
            await until_gone(word)
            late = await client.session.call_tool(
                "run", {"command": command}, request_state=asked.request_state, input_responses={}
            )
            assert late.is_error
            assert "this call is over" in text_of(late)

    in_world(steps)


def test_what_a_client_has_to_show_to_go_on_is_good_once_for_one_call_and_can_not_be_made_up(ground: Ground) -> None:
    asking(ground)
    arguments = {"command": fetch("one.example.org")}

    async def steps() -> None:
        async with connected(ground, "auto", person=Person()) as client:
            call = client.session.call_tool
            asked = await call("run", arguments, allow_input_required=True)
            assert isinstance(asked, InputRequiredResult)
            (key,) = asked.input_requests or {}
            answers: Any = {key: say(FOR_THIS_RUN)}
            for state, meant in (
                ("x", arguments),
                (f"{asked.request_state}x", arguments),
                (asked.request_state, {"command": fetch("two.example.org")}),
            ):
                with pytest.raises(MCPError, match="requestState"):
                    await call("run", meant, request_state=state, input_responses=answers)
            done = await call("run", arguments, request_state=asked.request_state, input_responses=answers)
            assert not done.is_error
            assert " 403" not in text_of(done)
            replayed = await call("run", arguments, request_state=asked.request_state, input_responses=answers)
            assert "this call is over" in text_of(replayed)
            wrong: list[Any] = [{}, {"another": say(FOR_THIS_RUN)}]
            for left_out in wrong:
                asked = await call("run", arguments, allow_input_required=True)
                assert isinstance(asked, InputRequiredResult)
                done = await call("run", arguments, request_state=asked.request_state, input_responses=left_out)
                assert " 403" in text_of(done), "a question without an answer is denied"

    in_world(steps)


def test_a_person_who_wants_to_be_asked_by_the_queue_alone_is_not_asked_by_the_client(ground: Ground) -> None:
    person = Person()

    async def steps() -> None:
        async with connected(ground, "auto", "--ask", "queue", "--patience", "0.1", person=person) as client:
            refused = await client.call_tool("run", {"command": "true", "network": True})
            assert "unspill approve" in text_of(refused)
        async with connected(ground, "auto", "--ask", "deny", person=person) as client:
            refused = await client.call_tool("run", {"command": "true", "network": True})
            assert "there is nobody to ask" in text_of(refused)

    in_world(steps)
    assert person.asked == []


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
            assert time.monotonic() - began < 20, "a model does not wait for minutes"
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
