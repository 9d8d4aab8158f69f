# SPDX-License-Identifier: Apache-2.0
"""A client has to do with what its own server did: the person uses the same sandbox, and gives their runs more.

What must not be shown is looked for in all that comes over the wire; each test has the same where it may be shown.
"""

import pytest
from mcp import Client, MCPError
from mcp_types import TextResourceContents

from tests.agents.mcp_world import MODES, connected, in_world, text_of
from tests.support import Ground
from unspill import Sandbox, Secrets
from unspill.adapters.answers import Answer
from unspill.adapters.mcp.resources import CallHistory, Projects, read_resource
from unspill.errors import UsageError
from unspill.model.permission import Allowed, Question
from unspill.permissions.approvers import Callback

pytestmark = [pytest.mark.kernel, pytest.mark.agents]

SECRET = "hunter2"
NOT_SHOWN = "Note: not shown, because of names of secrets: .env."


def allow(question: Question) -> Allowed:
    return Allowed(digest=question.digest, by="test")


def persons_run(ground: Ground, command: str, *, is_masked: bool = True, after: str = "hold") -> None:
    """Run what the person wants, in the sandbox that the server uses too, with a secret that they show it."""
    policy = ground.policy(secrets=Secrets(mask=is_masked), after=after)
    with Sandbox(ground.project, policy=policy, approver=Callback(allow)) as sandbox:
        assert sandbox.run(command, reveal=[".env"] if is_masked else []).ok


async def read(client: Client, uri: str) -> list[str]:
    contents = (await client.read_resource(uri)).contents
    return [one.text for one in contents if isinstance(one, TextResourceContents)]


@pytest.mark.parametrize("is_masked", [True, False])
def test_no_way_to_read_what_is_held_shows_a_secret(ground: Ground, is_masked: bool) -> None:
    """Neither the tool nor the resource. Control: where the policy masks nothing, both show it."""
    ground.configure(f'after = "hold"\n[secrets]\nmask = {str(is_masked).lower()}\n')
    ground.write(".env", f"SECRET={SECRET}\n")
    persons_run(ground, "echo SECRET=new > .env; echo x > x", is_masked=is_masked)

    async def steps() -> None:
        async with connected(ground, "auto") as client:
            diff, *notes = await read(client, "unspill://changes/diff")
            tool = text_of(await client.call_tool("diff", {}))
            for told in (diff, tool):
                assert "added x" in told
                assert (SECRET in told) is not is_masked
            assert notes == ([NOT_SHOWN] if is_masked else [])

    in_world(steps)


@pytest.mark.parametrize("mode", MODES)
def test_what_a_run_of_the_persons_own_printed_is_no_resource(ground: Ground, mode: str) -> None:
    """Control: what a run of the client's own printed is one, in the same sandbox."""
    ground.write(".env", f"SECRET={SECRET}\n")
    persons_run(ground, "cat .env; cat .env >&2")

    async def steps() -> None:
        async with connected(ground, mode) as client:
            await client.call_tool("list", {})
            own = await client.call_tool("run", {"command": "seq 100"})
            number = own.structured_content["run"]
            assert number > 2
            for other in range(1, number):
                for stream in ("stdout", "stderr"):
                    with pytest.raises(MCPError, match="no such resource") as refused:
                        await client.read_resource(f"unspill://runs/{other}/{stream}")
                    assert SECRET not in str(refused.value)
            assert (await read(client, f"unspill://runs/{number}/stdout"))[0].startswith("1\n2\n")
        async with connected(ground, mode) as client:
            with pytest.raises(MCPError, match="Only what commands of this server have printed can be read"):
                await client.read_resource(f"unspill://runs/{number}/stdout")

    in_world(steps)


@pytest.mark.parametrize("mode", MODES)
def test_a_model_takes_back_what_its_calls_applied_and_nothing_of_the_persons(ground: Ground, mode: str) -> None:
    ground.configure('after = "apply"\n')

    async def steps() -> None:
        async with connected(ground, mode) as client:
            for tool, arguments in (
                ("run", {"command": "echo 1 > one"}),
                ("write", {"path": "two", "content": "2\n"}),
                ("edit", {"path": "two", "old": "2", "new": "3"}),
            ):
                assert not (await client.call_tool(tool, arguments)).is_error
            persons_run(ground, "echo mine > mine", is_masked=False, after="apply")
            assert "not one that a command or a file tool of yours" in text_of(
                await client.call_tool("undo", {"operation": 4})
            )
            for last in (3, 2, 1):
                undone = await client.call_tool("undo", {})
                assert undone.structured_content["undone"] == last
            nothing = await client.call_tool("undo", {})
            assert text_of(nothing).startswith("ERROR: there is nothing of yours to undo")

    in_world(steps)
    assert [path.name for path in ground.project.iterdir()] == ["mine"]


def test_what_was_not_kept_of_an_output_is_said_where_it_is_missing(ground: Ground) -> None:
    # The record has 64 KiB of each end; a character of two bytes lies across both bounds
    sandbox = ground.sandbox()
    command = "printf x; yes ä | tr -d '\\n' | head -c 200000"
    whole = b"x" + ("ä".encode() * 100_000)
    run, projects = sandbox.run(command), Projects([sandbox])
    with pytest.raises(UsageError):
        read_resource(projects, CallHistory(), "unspill://runs/1/stdout")
    for is_kept in (True, False):
        history = CallHistory(most=1 << 20 if is_kept else 0)
        history.add(sandbox, "run", Answer(text="", values={"run": run.number}))
        history.keep(sandbox, run.number, "stdout", whole)
        found, said, uri = b"", [], "unspill://runs/1/stdout"
        while uri:
            contents = read_resource(projects, history, uri)
            texts = [one.text for one in contents if isinstance(one, TextResourceContents)]
            found += texts[0].encode()
            said += texts[1:]
            uri = contents[1].uri if len(contents) > 1 and "?start=" in contents[1].uri else ""
        assert (found == whole) is is_kept
        assert [text for text in said if "not kept" in text] == (
            [] if is_kept else ["Bytes 134465 to 200001 of 200001 are above. Bytes 65536 to 134465 were not kept."]
        )
