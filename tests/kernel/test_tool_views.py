# SPDX-License-Identifier: Apache-2.0
"""The tools where a sandbox has a root of its own, and where several threads use one sandbox at once."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support import HOST_ROOT, Ground
from unspill import Sandbox
from unspill.adapters.answers import Answer
from unspill.adapters.tools import call_tool

pytestmark = [pytest.mark.kernel, pytest.mark.view("sealed", reason="the views are chosen here")]

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("write", {"path": "src/a", "content": "one\n"}),
    ("edit", {"path": "/workspace/src/a", "old": "one", "new": "two"}),
    ("read", {"path": "src/a"}),
    ("read", {"path": "missing"}),
    ("list", {}),
    ("run", {"command": "pwd; cat src/a missing", "working_dir": "/workspace"}),
    ("run", {"command": "true", "working_dir": "missing"}),
    ("changes", {}),
    ("diff", {}),
    ("undo", {}),
]


def test_in_a_root_of_its_own_no_path_of_the_host_is_told(ground: Ground) -> None:
    """Control: without one the project is named by its path there."""
    sandbox = ground.sandbox(view="rootfs", rootfs=HOST_ROOT)
    told = [call_tool(sandbox, name, arguments) for name, arguments in CALLS]
    assert told[0].text.startswith("Written: /workspace/src/a (a new file, 4 bytes).\n")
    assert told[2].text == "/workspace/src/a: all of it, 4 bytes, follows.\nContent:\ntwo\n"
    assert told[5].text.partition("Output:\n")[2].startswith("/workspace\ntwo\n")
    assert told[6].text == "ERROR: Working directory does not exist: /workspace/missing.\n"
    assert os.fspath(ground.top) not in "".join(f"{answer.text}{answer.values}" for answer in told)
    sealed = call_tool(ground.sandbox(name="other"), "list", {})
    assert os.fspath(ground.project) in sealed.text


def test_the_project_may_be_named_as_on_the_host(ground: Ground) -> None:
    ground.write("a", "x\n")
    sandbox = ground.sandbox(view="rootfs", rootfs=HOST_ROOT)
    answer = call_tool(sandbox, "read", {"path": os.fspath(ground.project / "a")})
    assert answer.text == "/workspace/a: all of it, 2 bytes, follows.\nContent:\nx\n"


def test_threads_may_call_the_tools_of_one_sandbox_at_once(ground: Ground) -> None:
    sandbox = ground.sandbox()

    def work(number: int) -> list[Answer]:
        name = f"file-{number}"
        return [
            call_tool(sandbox, "write", {"path": name, "content": f"{number}\n"}),
            call_tool(sandbox, "run", {"command": f"cat {name}"}),
            call_tool(sandbox, "edit", {"path": name, "old": f"{number}", "new": f"{number}{number}"}),
            call_tool(sandbox, "changes", {}),
            call_tool(sandbox, "read", {"path": name}),
        ]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(work, range(8)))
    for number, (written, ran, edited, changes, read) in enumerate(answers):
        assert not any(answer.is_error for answer in (written, ran, edited, changes, read))
        assert ran.text == f"Exit code: 0\nOutput:\n{number}\n"
        assert read.values["content"] == f"{number}{number}\n"
    assert len(call_tool(sandbox, "changes", {}).values["changes"]) == 8


@pytest.mark.parametrize("after", ["apply", "hold", "discard"])
def test_in_a_root_of_its_own_with_two_roots_the_project_is_not_named_as_on_the_host(
    ground: Ground, after: Any
) -> None:
    """Control: the other root keeps its path, and is named by it."""
    other = ground.home / "other"
    other.mkdir()
    settings: dict[str, Any] = {"view": "rootfs", "rootfs": HOST_ROOT, "roots": (os.fsencode(other),), "after": after}
    sandbox = ground.sandbox(**settings)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("run", {"command": f"echo a > a; echo b > {other}/b; mkdir .vscode; echo '{{}}' > .vscode/tasks.json"}),
        ("write", {"path": "c", "content": "c\n"}),
        ("changes", {}),
        ("diff", {}),
        ("apply", {}),
        ("undo", {}),
    ]
    told = [call_tool(sandbox, name, arguments, may_apply=True) for name, arguments in calls]
    assert "in /workspace:" in told[0].text
    assert f"in {other}:" in told[0].text
    whole = "".join(f"{answer.text}{answer.values}" for answer in told)
    assert os.fspath(ground.project) not in whole
    assert os.fspath(ground.project) not in sandbox.run(f"echo d > d; echo d > {other}/d").text()


def test_a_root_that_the_project_lies_in_is_named(ground: Ground) -> None:
    """Else what is changed beside the project would read as if it were in it."""
    inner = ground.project / "inner"
    inner.mkdir()
    for view, name in (("sealed", os.fspath(ground.project)), ("rootfs", "/workspace")):
        settings: dict[str, Any] = {"view": view, "rootfs": HOST_ROOT if view == "rootfs" else ""}
        policy = ground.policy(roots=(os.fsencode(ground.project),), after="hold", **settings)
        sandbox = Sandbox(inner, name=view, policy=policy)
        ground.opened.append(sandbox)
        answer = call_tool(sandbox, "run", {"command": "echo a > ../beside; mkdir ../.vscode; echo 1 > ../.vscode/a"})
        assert f"in {name}:\n" in answer.text
        answer = call_tool(sandbox, "apply", {}, may_apply=True)
        assert f"  ! {name}/.vscode" in answer.text
        assert answer.values["left"][0]["path"].startswith(name)
