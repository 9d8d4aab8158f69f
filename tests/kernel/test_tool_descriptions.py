# SPDX-License-Identifier: Apache-2.0
"""Every description and every schema that a model is shown, word for word, in each kind of sandbox.

The words are in the files of `tool_words`, with the places of this machine's person taken out.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.rootfs_tree import make_small_tree
from tests.support import Ground
from unspill import Limits, Network, Policy, Rules, Sandbox, Secrets
from unspill.adapters.tools import NAME, Tool, run_command_tool, tools_of

pytestmark = [pytest.mark.kernel, pytest.mark.view("sealed", reason="its texts name the paths of this view")]

WORDS = Path(__file__).with_name("tool_words")
ORDER = ["run", "changes", "diff", "undo", "read", "write", "list", "edit"]
KINDS: dict[str, dict[str, Any]] = {
    "hold": {"after": "hold"},
    "apply": {"after": "apply"},
    "discard": {"after": "discard"},
    "host": {"view": "host"},
    "hosts": {"network": Network(hosts=("example.org", "*.example.net")), "permissions": Rules(network="deny")},
    "asking": {"network": Network(ask=True)},
    "network of the host": {"network": Network(mode="host", hosts=("example.org",))},
    "tools in the home": {"made": (".cache/pip", ".cargo/bin")},
    "narrow": {"tmp": "persistent", "limits": Limits(wall_s=5.0), "shown_lines": 7, "shown_bytes": 1000},
    "open": {"secrets": Secrets(mask=False), "limits": Limits(wall_s=None)},
    "rootfs": {"view": "rootfs"},
    "writable": {"view": "rootfs", "rootfs_writable": True},
    "roots": {"roots": ("other", "more")},
    "roots of a rootfs": {"view": "rootfs", "roots": ("other",)},
    "container": {"after": "apply"},
}


def open_kind(ground: Ground, kind: str) -> Sandbox:
    settings = dict(KINDS[kind])
    if settings.get("view") == "rootfs":
        settings["rootfs"] = os.fspath(make_small_tree(ground.top / "tree"))
    for name in (*settings.get("roots", ()), *settings.pop("made", ())):
        (ground.home / name).mkdir(parents=True, exist_ok=True)
    settings["roots"] = tuple(os.fsencode(ground.home / name) for name in settings.get("roots", ()))
    sandbox = Sandbox(ground.project, policy=Policy(bwrap=ground.bwrap, **settings))
    ground.opened.append(sandbox)
    if kind == "container":
        sandbox._project = sandbox._project.with_means(container="docker")
    return sandbox


def as_text(ground: Ground, tools: tuple[Tool, ...]) -> str:
    parts = [
        f"# {tool.name}{' (read-only)' if tool.is_read_only else ''}\n{tool.description}\n"
        f"{json.dumps(tool.schema, indent=1)}\n"
        for tool in tools
    ]
    text = "\n".join(parts)
    return text.replace(os.fspath(ground.project), "PROJECT").replace(os.fspath(ground.home), "HOME")


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_model_is_shown(ground: Ground, kind: str) -> None:
    text = as_text(ground, tools_of(open_kind(ground, kind)))
    assert text == (WORDS / f"{kind.replace(' ', '_')}.txt").read_text()


def test_the_tool_to_apply_is_only_there_where_the_person_wants_it(ground: Ground) -> None:
    """Nobody who only lists the tools can approve anything: none applies or grants."""
    sandbox = open_kind(ground, "hold")
    assert [tool.name for tool in tools_of(sandbox)] == ORDER
    *others, apply = tools_of(sandbox, may_apply=True)
    assert [tool.name for tool in others] == ORDER
    assert as_text(ground, (apply,)) == (WORDS / "may_apply.txt").read_text()


def test_run_command_is_the_same_tool_under_its_own_name(ground: Ground) -> None:
    sandbox = open_kind(ground, "hold")
    assert run_command_tool(sandbox) == tools_of(sandbox)[0].replace(name=NAME)


@pytest.mark.parametrize("kind", KINDS)
def test_every_schema_is_strict_and_every_argument_described(ground: Ground, kind: str) -> None:
    for tool in tools_of(open_kind(ground, kind), may_apply=True):
        assert tool.schema["type"] == "object"
        assert tool.schema["additionalProperties"] is False
        assert set(tool.schema.get("required", ())) <= set(tool.schema["properties"])
        assert all(field["description"].endswith(".") for field in tool.schema["properties"].values())


def test_a_rootfs_is_described_without_a_path_of_the_host(ground: Ground) -> None:
    """Control: without a rootfs the paths are the host's, and named."""
    told = "".join(tool.description + json.dumps(tool.schema) for tool in tools_of(open_kind(ground, "rootfs")))
    assert "/workspace" in told
    assert os.fspath(ground.top) not in told
    sealed = "".join(tool.description for tool in tools_of(open_kind(ground, "hold")))
    assert os.fspath(ground.project) in sealed
