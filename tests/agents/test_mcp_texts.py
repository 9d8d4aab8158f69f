# SPDX-License-Identifier: Apache-2.0
"""What only the MCP server says, word for word: of several projects, of parts of resources, of calls that are over.

All else that a model reads is `adapters.tools`, and is looked at where that is.
"""

import itertools
from typing import Any

import pytest

from tests.agents.mcp_world import connected, in_world, text_of
from tests.support import Ground
from unspill import Limits, Network, Rules, Sandbox, Secrets
from unspill.adapters.answers import Answer, answer_error
from unspill.adapters.mcp import resources, server
from unspill.adapters.mcp.questions import with_open_questions
from unspill.adapters.mcp.resources import CallHistory, Projects, join_schemas
from unspill.adapters.tools import tools_of
from unspill.errors import UsageError
from unspill.model.permission import RequestId
from unspill.model.run import Output
from unspill.permissions.approvers import RetryQueue

pytestmark = [pytest.mark.kernel, pytest.mark.agents]

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
    tools = {kind: tools_of(sandbox) for kind, sandbox in boxes.items()}
    for at, told in enumerate(Projects(list(boxes.values())).tools()):
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
    contained._project = contained._project.with_means(container="docker")
    assert server.make_server(sealed).instructions == server.INSTRUCTIONS
    assert server.make_server(contained).instructions == (
        "Commands run without a sandbox, as processes of a container: what they change is changed at once, for good."
    )
