# SPDX-License-Identifier: Apache-2.0
"""Any JSON value for any argument of any tool: an answer, never an exception, and nothing outside is touched."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.figures import record_figure
from tests.support import Ground
from unspill import Limits, Sandbox
from unspill.adapters.answers import Answer
from unspill.adapters.tools import Tool, call_tool, tools_of

pytestmark = [pytest.mark.kernel, pytest.mark.view("sealed", reason="the names of its files are of this view")]

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
# What is of the kind that is wanted, and meant to do harm
WORDS = st.text() | st.sampled_from(
    [
        *(".", "..", "/", "../../../outside", "{home}/outside", "{home}/playground/x", "/etc/passwd", "/proc/self/mem"),
        *("file", "file/x", "link", "made/deep/x", "-rf", "$(touch {home}/outside)", "a\nb", "a\0b", "\udcff", "a"),
        *(
            "echo out > {home}/outside",
            "rm -rf {project} {home}",
            "cat {home}/secret",
            "kill -9 -1",
            "exec 1>&-; exit 7",
        ),
        *("", "x" * 5000),
    ]
)
NUMBERS = st.integers(0, 5) | st.sampled_from(
    [-1, 2**31, 2**63, 2**64, 10**400, 1e308, 0.5, float("nan"), float("inf")]
)
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "string": WORDS,
    "boolean": st.booleans(),
    "array": st.lists(WORDS, max_size=3),
    "number": NUMBERS,
    "integer": NUMBERS,
}


def tree_of(top: Path, *, but: tuple[Path, ...]) -> dict[str, tuple[int, int, bytes]]:
    """Return what is at every path below a directory, and when it was changed."""
    found = {}
    for directory, names, files in os.walk(top):
        names[:] = [name for name in names if Path(directory, name) not in but]
        for name in [*names, *files]:
            path = Path(directory, name)
            status = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found[os.fspath(path)] = status.st_mode, status.st_mtime_ns, content
    return found


@pytest.fixture
def fuzzed(ground: Ground) -> Sandbox:
    (ground.home / "secret").write_text("a secret of the person\n")
    (ground.home / "playground").mkdir(exist_ok=True)
    (ground.project / "file").write_text("a\nb\n")
    (ground.project / "link").symlink_to(ground.home / "secret")
    sandbox = ground.sandbox(limits=Limits(wall_s=3.0))
    # The first run makes directories of ours
    sandbox.run("true")
    return sandbox


def arguments_of(tool: Tool, *, is_sane: bool) -> st.SearchStrategy[Any]:
    """Return values for what a tool needs and for some of what it takes; or anything else."""
    names = st.sampled_from([*tool.schema["properties"], "other"])
    if not is_sane:
        return st.dictionaries(names, WORDS | NUMBERS | ANYTHING) | ANYTHING
    own: dict[str, Any] = {name: KINDS[schema["type"]] for name, schema in tool.schema["properties"].items()}
    needed = {name: own.pop(name) for name in tool.schema.get("required", ())}
    return st.fixed_dictionaries(needed, optional=own)


def filled(value: Any, ground: Ground) -> Any:
    if isinstance(value, str):
        return value.replace("{home}", os.fspath(ground.home)).replace("{project}", os.fspath(ground.project))
    return [filled(one, ground) for one in value] if isinstance(value, list) else value


@pytest.mark.timeout(900)
def test_any_value_for_any_argument_has_an_answer(ground: Ground, fuzzed: Sandbox, full: bool) -> None:
    tools = {tool.name: tool for tool in tools_of(fuzzed)}
    ours = (ground.state, ground.home / "playground", ground.home / ".local/share/unspill/playground")
    outside = tree_of(ground.top, but=ours)
    count = 0

    @settings(
        max_examples=5000 if full else 300,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(st.data())
    def fuzz(choice: st.DataObject) -> None:
        nonlocal count
        count += 1
        tool = tools[choice.draw(st.sampled_from(sorted(tools)))]
        arguments: Any = choice.draw(arguments_of(tool, is_sane=choice.draw(st.booleans())))
        if isinstance(arguments, dict):
            arguments = {name: filled(value, ground) for name, value in arguments.items()}
        answer = call_tool(fuzzed, tool.name, arguments)
        assert isinstance(answer, Answer)
        assert answer.is_error is answer.text.startswith("ERROR: ")
        assert answer.text.endswith("\n") or tool.name == "read"
        assert "a secret of the person" not in answer.text
        assert os.fspath(ground.state) not in answer.text
        json.loads(json.dumps(answer.values))

    fuzz()
    # Else it was nearly all refused at the door
    assert fuzzed.runs(limit=1)[0].number > count / 10
    assert tree_of(ground.top, but=ours) == outside
    record_figure("fuzzed tool calls without an exception", f"{count}", "any JSON value for any argument of any tool")


@pytest.mark.parametrize("name", ["", "apply", "approve", "grant", "RUN", "run\0", 7, None])
def test_any_name_of_a_tool_has_an_answer(fuzzed: Sandbox, name: Any) -> None:
    answer = call_tool(fuzzed, name, {"command": "true"})
    assert answer.text.startswith("ERROR: there is no tool ")
    assert answer.is_error
