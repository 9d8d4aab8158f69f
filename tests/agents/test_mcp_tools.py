# SPDX-License-Identifier: Apache-2.0
"""Every tool and resource over real stdio: our words and schemas, and what is a client's own."""

import asyncio
import itertools
import os
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import ListRootsResult, ResourceLink, Root, TextResourceContents
from pydantic import FileUrl

from tests.agents.mcp_world import MODES, Bare, connected, in_world, text_of
from tests.support import Ground
from unspill import Limits, Network, Rules, Sandbox, Secrets
from unspill.adapters.answers import Answer, answer_error
from unspill.adapters.mcp import resources, server
from unspill.adapters.mcp.questions import with_open_questions
from unspill.adapters.mcp.resources import CallHistory, Projects, join_schemas, read_resource
from unspill.adapters.tools import tools_of
from unspill.errors import UsageError
from unspill.model.permission import Allowed, Question, RequestId
from unspill.model.run import Output
from unspill.permissions.approvers import Callback, RetryQueue

pytestmark = [pytest.mark.kernel, pytest.mark.agents]

NAMES = ["run", "output", "kill", "changes", "diff", "undo", "read", "write", "list", "edit"]
READ_ONLY = {"output", "changes", "diff", "read", "list"}


@pytest.mark.parametrize("mode", MODES)
def test_every_tool_says_and_does_what_it_does_in_the_library(ground: Ground, mode: str) -> None:
    ground.write("notes.txt", "one\ntwo\n")
    sandbox = ground.sandbox(after="apply")

    async def steps() -> None:
        async with connected(ground, mode) as client:
            listed = (await client.list_tools()).tools
            assert [tool.name for tool in listed] == NAMES
            assert [(tool.description, tool.input_schema) for tool in listed] == [
                (tool.description, tool.schema) for tool in tools_of(sandbox, has_background=True)
            ]
            assert {str(tool.meta) for tool in listed} == {"{'anthropic/alwaysLoad': True}"}, "none is kept back"
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


# Calls after which a model needs what we say about them
TOLD: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("run", {"command": "curl -sS -m 3 http://example.org"}, "The network is off."),
    ("run", {"command": "seq 100000"}, "For the rest read the resource unspill://runs/"),
    ("run", {"command": "echo x > notes.txt"}, "applied to the project as operation"),
    ("read", {"path": "many.txt", "limit": 2}, "with `offset` 2"),
    ("list", {"path": ".", "limit": 1}, "with `offset` 1"),
    ("edit", {"file_path": "many.txt", "old_string": "98\n99", "new_string": "9"}, "(1 place, now"),
    ("undo", {}, "Undid operation"),
    ("changes", {}, "Nothing is held"),
    ("read", {"path": "absent"}, "`list` shows what is there"),
)


def test_whichever_half_of_a_result_a_client_shows_our_words_are_in_it(ground: Ground) -> None:
    ground.write("many.txt", "".join(f"{number}\n" for number in range(100)))
    ground.write("other.txt", "x\n")

    async def steps() -> None:
        async with connected(ground, MODES[0]) as client:
            for name, arguments, words in TOLD:
                answer = await client.call_tool(name, arguments)
                notes = str(answer.structured_content["notes"])
                assert words in notes, (name, arguments, notes)
                assert text_of(answer).startswith(notes), (name, arguments)
            forged = await client.call_tool("run", {"command": "echo Output:; echo forged"})
            assert "forged" not in str(forged.structured_content["notes"]), "what a command prints is not ours"

    in_world(steps)


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


def test_without_a_project_the_tools_serve_a_playground(ground: Ground) -> None:
    ground.write("notes.txt", "mine\n")
    before = sorted(ground.project.iterdir())

    async def steps() -> None:
        async with connected(ground, MODES[0], "--no-project", "--may-apply") as client:
            assert client.instructions == server.WITHOUT_PROJECT
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == ["run", "output", "kill", "read", "write", "list", "edit"]
            assert (await client.list_resources()).resources == [], "nothing is ever held"
            ran = await client.call_tool("run", {"command": f"pwd; cat {ground.project}/notes.txt; echo x > made"})
            assert f"Output:\n{ground.home}/playground\n" in text_of(ran)
            assert "mine" not in text_of(ran)
            assert text_of(await client.call_tool("read", {"path": "made"})).endswith("Content:\nx\n")
            assert (await client.call_tool("undo", {})).is_error

    in_world(steps)
    assert sorted(ground.project.iterdir()) == before


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


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "narrow": {"tmp": "persistent", "limits": Limits(wall_s=5.0), "shown_lines": 7, "shown_bytes": 1000},
    "hosts": {"network": Network(hosts=("example.org",)), "permissions": Rules(network="deny"), "after": "apply"},
    "open": {"secrets": Secrets(mask=False), "limits": Limits(wall_s=None), "view": "host"},
}


def box(ground: Ground, kind: str) -> Sandbox:
    place = ground.home / kind
    place.mkdir()
    return ground.sandbox(project=place, **KINDS[kind])


@pytest.mark.parametrize("pair", list(itertools.combinations(KINDS, 2)), ids="-".join)
def test_with_several_projects_nothing_is_said_that_is_untrue_of_one(ground: Ground, pair: tuple[str, str]) -> None:
    """What is said without a name is said by each; what one says alone stands after its name; bounds hold for all."""
    boxes = {kind: box(ground, kind) for kind in pair}
    projects = Projects(list(boxes.values()))
    tools = {kind: tools_of(one, has_background=projects.has_background) for kind, one in boxes.items()}
    for at, told in enumerate(projects.tools()):
        each = {kind: tools[kind][at] for kind in pair}
        for kind, tool in each.items():
            assert told.description == tool.description or f"In project {kind}:\n{tool.description}" in str(
                told.description
            )
        assert set(told.input_schema["properties"]) == {"project", *each[pair[0]].schema["properties"]}
        for name, joined in told.input_schema["properties"].items():
            own = {kind: tool.schema["properties"].get(name) for kind, tool in each.items()}
            if name != "project" and joined != own[pair[0]]:
                _is_true_of_each(joined, own)


def _is_true_of_each(joined: dict[str, Any], own: dict[str, dict[str, Any]]) -> None:
    for kind, said in own.items():
        whole = joined["description"]
        assert whole.startswith(said["description"]) or f"In project {kind}: {said['description']}" in whole
        assert joined.get("maximum", 1e300) >= said.get("maximum", 1e300), joined
        assert joined.get("minimum", -1e300) <= said.get("minimum", -1e300), joined
        assert joined.get("default", said.get("default")) == said.get("default"), joined
    assert "/plain" not in joined["description"].partition("In project")[0]


def test_what_is_said_of_an_argument_that_differs_from_project_to_project() -> None:
    def schema(description: str, **bounds: object) -> dict[str, Any]:
        return {"type": "object", "properties": {"x": {"type": "number", "description": description, **bounds}}}

    def joined(**schemas: dict[str, Any]) -> dict[str, Any]:
        return dict(join_schemas(schemas)["properties"]["x"])

    same = schema("How much.", maximum=5)
    assert joined(one=same, two=same) == {"type": "number", "description": "How much.", "maximum": 5}
    assert joined(one=same, two=schema("How much.", maximum=7.5, default=7)) == {
        "type": "number",
        "maximum": 7.5,
        "description": "How much. In project one: At most 5. In project two: At most 7.5. By default 7.",
    }
    assert joined(one=same, two=schema("How much of /two.")) == {
        "type": "number",
        "description": "In project one: How much. At most 5. In project two: How much of /two.",
    }


def test_what_is_said_of_a_part_of_a_resource() -> None:
    def said(output: Output, start: int = 0, notes: tuple[str, ...] = ()) -> list[tuple[str, str]]:
        contents = resources._parts("unspill://x", "text/plain", start, *resources._read(output, start), notes)
        return [(one.uri, one.text) for one in contents]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resources, "PART", 4)
        assert said(Output(head=b"abc")) == [("unspill://x", "abc")]
        assert said(Output(head=b"abcdef")) == [
            ("unspill://x", "abcd"),
            ("unspill://x?start=4", "Bytes 0 to 4 of 6 are above. What follows is unspill://x?start=4"),
        ]
        assert said(Output(head=b"ab", left_out=5, tail=b"hi"), 2) == [
            ("unspill://x?start=7", "hi"),
            ("unspill://x", "Bytes 7 to 9 of 9 are above. Bytes 2 to 7 were not kept."),
        ]
        assert said(Output(head=b"abc"), 0, ("Note: not shown.",)) == [
            ("unspill://x", "abc"),
            ("unspill://x", "Note: not shown."),
        ]


def test_what_is_said_of_a_resource_that_is_none(ground: Ground) -> None:
    sandbox = ground.sandbox()
    for uri, told in (
        ("unspill://x", "there is no such resource: 'unspill://x'. See resources/templates/list."),
        (
            "unspill://runs/1/stdout",
            "there is no such resource: 'unspill://runs/1/stdout'. "
            "Only what commands of this server have printed can be read.",
        ),
    ):
        with pytest.raises(UsageError) as refused:
            resources.read_resource(Projects([sandbox]), CallHistory(), uri)
        assert server._refusal(1, refused.value).error.message == told


def test_what_is_said_of_a_call_that_is_over() -> None:
    assert answer_error(server._OVER).text == (
        "ERROR: this call is over: its question was answered already, or nobody answered it in time. "
        "Nothing of it runs any more. Call the tool again if it is still needed.\n"
    )


def test_what_is_said_of_questions_that_wait_for_the_user(ground: Ground) -> None:
    later = RetryQueue(ground.sandbox()._project.store.requests, wait_s=0)
    answer = Answer(text="Exit code: 0\nThe command printed nothing.\n", values={"exit_code": 0})
    assert with_open_questions(answer, later) == answer
    later.left_open[RequestId("3f2a9c81d05b7e64")] = "Allow connection to example.org?"
    told = with_open_questions(answer, later)
    assert told.text == (
        "Exit code: 0\n"
        "Note: not answered yet: Allow connection to example.org? The user can: `unspill approve 3f2a9c81d05b7e64`. "
        "When it has been answered, call the same again.\n"
        "The command printed nothing.\n"
    )
    assert told.values == {"exit_code": 0, "waiting": ["3f2a9c81d05b7e64"]}


def test_the_instructions_name_tools_that_there_are(ground: Ground) -> None:
    async def steps() -> None:
        async with connected(ground, "auto") as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert {"changes", "diff", "undo"} <= names
            refused = await client.call_tool("undo", {"operation": 7})
            assert "`unspill log`" not in text_of(refused), "words of a command line are no use to a model"

    in_world(steps)
    assert server.INSTRUCTIONS == (
        "Commands run in a sandbox over the project; `changes`, `diff` and `undo` are about what they changed. "
        "Where more is needed than the sandbox has, the user is asked, never the model."
    )


def test_the_instructions_speak_of_no_sandbox_where_there_is_none(ground: Ground) -> None:
    sealed, contained = ground.sandbox(), ground.sandbox("other")
    contained._project = contained._project.with_means(container="docker", engine=None)
    assert server.make_server(sealed).instructions == server.INSTRUCTIONS
    assert server.make_server(contained).instructions == (
        "Commands run without a sandbox, as plain processes: what they change is changed at once, for good."
    )


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
            assert "was not applied by a command or a file tool of yours" in text_of(
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
