# SPDX-License-Identifier: Apache-2.0
"""Every tool and resource over real stdio in both eras: our words, our schemas, hints that are true."""

import asyncio
import os

import pytest
from mcp import Client, MCPError
from mcp_types import ListRootsResult, ResourceLink, Root, TextResourceContents
from pydantic import FileUrl

from tests.agents.mcp_world import MODES, Bare, connected, in_world, text_of
from tests.support import Ground
from unspill.adapters.tools import tools_of

pytestmark = [pytest.mark.kernel, pytest.mark.agents]

NAMES = ["run", "changes", "diff", "undo", "read", "write", "list", "edit"]
READ_ONLY = {"changes", "diff", "read", "list"}


@pytest.mark.parametrize("mode", MODES)
def test_every_tool_says_and_does_what_it_does_in_the_library(ground: Ground, mode: str) -> None:
    ground.write("notes.txt", "one\ntwo\n")
    sandbox = ground.sandbox(after="apply")

    async def steps() -> None:
        async with connected(ground, mode) as client:
            listed = (await client.list_tools()).tools
            assert [tool.name for tool in listed] == NAMES
            assert [(tool.description, tool.input_schema) for tool in listed] == [
                (tool.description, tool.schema) for tool in tools_of(sandbox)
            ]
            hints = {tool.name: tool.annotations for tool in listed}
            assert {name for name, hint in hints.items() if hint and hint.read_only_hint} == READ_ONLY
            changing = {name for name, hint in hints.items() if hint and hint.destructive_hint}
            assert changing == set(NAMES) - READ_ONLY, "none of them only adds"
            assert [name for name, hint in hints.items() if hint and hint.open_world_hint] == ["run"]
            await _use_each(client)
            await _is_told_how_a_long_run_goes_on(client)
            await _reads_all_of_an_output_that_was_cut(client)

    in_world(steps)
    assert (ground.top / "stderr").read_text() == ""


async def _use_each(client: Client) -> None:
    ran = await client.call_tool("run", {"command": "cat notes.txt; echo three >> notes.txt; exit 3"})
    assert text_of(ran).startswith("Exit code: 3\n")
    assert text_of(ran).endswith("Output:\none\ntwo\n")
    assert not ran.is_error, "a command that fails is a result"
    assert ran.structured_content["exit_code"] == 3
    assert ran.structured_content["changes"] == [{"kind": "modified", "path": "notes.txt"}]
    assert "three" in text_of(await client.call_tool("read", {"path": "notes.txt"}))
    assert "+three" in text_of(await client.call_tool("diff", {"operation": 1}))
    assert not (await client.call_tool("undo", {})).is_error
    assert "three" not in text_of(await client.call_tool("read", {"path": "notes.txt"}))
    await client.call_tool("write", {"path": "new/file.txt", "content": "fresh\n"})
    await client.call_tool("edit", {"path": "new/file.txt", "old": "fresh", "new": "stale"})
    assert "file.txt" in text_of(await client.call_tool("list", {"path": "new"}))
    assert text_of(await client.call_tool("run", {"command": "cat new/file.txt"})).endswith("Output:\nstale\n")
    assert not (await client.call_tool("changes", {})).is_error
    for wrong in (("run", {}), ("run", {"command": 7}), ("approve", {"id": "x"}), ("apply", {}), ("read", {"x": 1})):
        refused = await client.call_tool(*wrong)
        assert refused.is_error, wrong
        assert text_of(refused).startswith("ERROR:"), wrong


async def _read_on(client: Client, uri: str) -> tuple[str, list[str], int]:
    """Read a resource part by part; return what it has, what was said of it, and how often it was read."""
    found, said, readings = "", [], 0
    while uri:
        contents = (await client.read_resource(uri)).contents
        texts = [one.text for one in contents if isinstance(one, TextResourceContents)]
        found += texts[0]
        said += texts[1:]
        uri = contents[1].uri if len(contents) > 1 and "?start=" in contents[1].uri else ""
        readings += 1
    return found, said, readings


async def _reads_all_of_an_output_that_was_cut(client: Client) -> None:
    count = 500_000
    ran = await client.call_tool("run", {"command": f"seq {count}; echo ä >&2"})
    links = [block.uri for block in ran.content if isinstance(block, ResourceLink)]
    run = ran.structured_content["run"]
    assert links == [f"unspill://runs/{run}/stdout"]
    told = " and ".join(f"the resource {link}" for link in links)
    assert f"For the rest read {told}.\n" in text_of(ran).partition("Output:")[0]
    mistaken = await client.call_tool("read", {"path": links[0]})
    assert text_of(mistaken) == (
        "ERROR: this is a resource, not a file: it is the client that reads it. If you have no tool for resources, run "
        "the command again, write what it prints to a file, and read that.\n"
    )
    assert await _read_on(client, f"unspill://runs/{run}/stderr") == ("ä\n", [], 1)
    found, _said, readings = await _read_on(client, links[0])
    assert found == "".join(f"{number}\n" for number in range(1, count + 1))
    assert readings > 20, "no reading is without a bound"
    short = await client.call_tool("run", {"command": "echo short"})
    assert not any(isinstance(block, ResourceLink) for block in short.content)


def test_clients_of_the_oldest_protocol_get_text_alone(ground: Ground) -> None:
    server = Bare(ground, "2024-11-05")
    server.run("seq 100", 2)
    assert [block["type"] for block in server.receive()["result"]["content"]] == ["text"]
    assert server.end() == b""


def test_resources_are_listed_and_what_is_none_is_refused(ground: Ground) -> None:
    ground.configure('after = "hold"\n')

    async def steps() -> None:
        async with connected(ground, "auto") as client:
            await client.call_tool("run", {"command": "echo new > file"})
            assert [one.uri for one in (await client.list_resources()).resources] == ["unspill://changes/diff"]
            templates = (await client.list_resource_templates()).resource_templates
            assert [one.uri_template for one in templates] == [
                "unspill://runs/{number}/stdout{?start}",
                "unspill://runs/{number}/stderr{?start}",
            ]
            diff = (await client.read_resource("unspill://changes/diff")).contents[0]
            assert "+new" in diff.text  # type: ignore[union-attr]
            for uri in (
                *("unspill://runs/9/stdout", "unspill://runs/1/stdin", "unspill://runs/-1/stdout"),
                *(f"unspill://runs/{'9' * 5000}/stdout", f"unspill://runs/1/stdout?start={'9' * 5000}"),
                *("unspill://runs/1/stdout?start=-1", "unspill://runs/1/stdout?x=1", "unspill://runs/../stdout"),
                *("file:///etc/passwd", "unspill:///etc/passwd", "unspill://projects/x/runs/1/stdout"),
            ):
                with pytest.raises(MCPError, match="no such"):
                    await client.read_resource(uri)

    in_world(steps)
    assert (ground.top / "stderr").read_text() == ""


def test_several_projects_are_chosen_by_name_and_a_client_adds_none(ground: Ground) -> None:
    other, secret = ground.top / "other", ground.top / "secret"
    for directory in (other, secret):
        directory.mkdir()
    (secret / "key").write_text("hush\n")

    async def roots(_context: object) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl(f"file://{secret}"))])

    async def steps() -> None:
        words = ("--also", os.fspath(other))
        async with connected(ground, "legacy", *words, list_roots_callback=roots) as client:
            run = (await client.list_tools()).tools[0]
            assert run.input_schema["properties"]["project"]["enum"] == ["project", "other"]
            assert run.input_schema["properties"]["project"]["default"] == "project", "the one it was started in"
            await client.call_tool("run", {"command": "echo here > file"})
            there = await client.call_tool("run", {"project": "other", "command": "echo there > file; seq 100"})
            assert there.content[1].uri == "unspill://projects/other/runs/1/stdout"  # type: ignore[union-attr]
            part = await client.read_resource("unspill://projects/other/runs/1/stdout")
            assert part.contents[0].text.startswith("1\n2\n")  # type: ignore[union-attr]
            for wrong in (os.fspath(secret), "secret", "../secret", "", 7, ["other"]):
                refused = await client.call_tool("run", {"project": wrong, "command": "cat key"})
                assert refused.is_error, wrong
                assert "hush" not in refused.model_dump_json(), wrong

    in_world(steps)
    assert [(directory / "file").read_text() for directory in (ground.project, other)] == ["here\n", "there\n"]


def test_with_several_projects_and_none_of_them_here_one_must_be_named(ground: Ground) -> None:
    places = [ground.top / name for name in ("one", "two", "three")]
    for directory in places:
        directory.mkdir()
    options = ("--project", "--also", "--also")
    words = [word for pair in zip(options, map(os.fspath, places), strict=True) for word in pair]

    async def steps() -> None:
        async with connected(ground, "auto", *words) as client:
            run = (await client.list_tools()).tools[0]
            assert run.input_schema["required"] == ["project", "command"]
            refused = await client.call_tool("run", {"command": "true"})
            assert refused.is_error
            assert "one, two, three" in text_of(refused)

    in_world(steps)


def test_apply_is_a_tool_only_where_the_operator_wants_that(ground: Ground) -> None:
    ground.configure('after = "hold"\n')

    async def steps() -> None:
        async with connected(ground, "auto", "--may-apply") as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == [*NAMES, "apply"]
            await client.call_tool("run", {"command": "echo new > file"})
            assert not (ground.project / "file").exists()
            assert not (await client.call_tool("apply", {})).is_error

    in_world(steps)
    assert (ground.project / "file").read_text() == "new\n"


async def _is_told_how_a_long_run_goes_on(client: Client) -> None:
    told: list[tuple[float, str | None]] = []

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        assert total is None, "nobody knows how much there will be"
        told.append((progress, message))

    command = r"for i in 1 2 3; do printf 'step \033[31m%s\n' $i; sleep 0.4; done; yes | head -c 2000000"
    await client.call_tool("run", {"command": command}, progress_callback=tell)
    await asyncio.sleep(0.1)
    assert r"step \u{1b}[31m1" in [message for _count, message in told], "nothing reaches a terminal as it is"
    assert len(told) <= 12, "not more often than anybody could read"
    counts = [count for count, _message in told]
    assert counts == sorted(set(counts)), "each says more than the one before"
