# SPDX-License-Identifier: Apache-2.0
"""The calls of one connection share a live sandbox, which is in nobody's way and ends with the connection."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.wire import Wire, descendants, wired
from tests.prepared import PROGRAM
from tests.support import Ground
from unspill import Sandbox

pytestmark = [pytest.mark.kernel, pytest.mark.agents, pytest.mark.any_bwrap]

WAITER = "/run/unspill-wait"


@pytest.fixture
def wire(ground: Ground, tmp_path: Path) -> Iterator[Wire]:
    ground.configure('after = "apply"\n')
    ground.write("page", "one\n")
    with wired(ground.project, tmp_path / "log", "modern") as made:
        yield made
    assert not made.wrong


def output(wire: Wire, command: str, **more: Any) -> str:
    result = wire.call("run", {"command": command, **more})
    assert not result["isError"], result
    return str(result["structuredContent"]["stdout"]["text"])


def waiters(wire: Wire) -> list[int]:
    """Return the processes that keep sandboxes of the server alive."""
    return [pid for pid, words in descendants(wire.process.pid).items() if words.strip() == WAITER]


def by_a_person(ground: Ground, *words: str) -> None:
    done = subprocess.run([PROGRAM, *words], check=False, cwd=ground.project, capture_output=True, timeout=30)
    assert done.returncode == 0, done.stderr


def test_calls_share_one_sandbox_whatever_the_tool_is(ground: Ground, wire: Wire) -> None:
    assert output(wire, "cat page") == "one\n"
    first = waiters(wire)
    assert len(first) == 1
    wire.call("write", {"path": "page", "content": "two\n"})
    assert "two" in str(wire.call("read", {"path": "page"})["structuredContent"]["content"])
    assert not wire.call("edit", {"path": "page", "old": "two", "new": "three"})["isError"]
    assert wire.call("list", {})["structuredContent"]["total"] >= 1
    assert output(wire, "cat page") == "three\n"
    assert waiters(wire) == first
    assert (ground.project / "page").read_text() == "three\n"
    for before in ("two\n", "one\n"):
        assert not wire.call("undo")["isError"]
        assert output(wire, "cat page") == before
    assert waiters(wire) == first


def test_nothing_is_left_for_the_next_call(wire: Wire) -> None:
    output(wire, "echo x > /tmp/left; echo y > ~/left")
    assert output(wire, "ls -A /tmp; ls ~/left || echo none").endswith("none\n")
    assert "left" not in output(wire, "ls -A /tmp")


def test_a_person_works_on_while_the_server_is_idle_and_the_next_call_sees_it(ground: Ground, wire: Wire) -> None:
    output(wire, "cat page")
    assert waiters(wire)
    by_a_person(ground, "run", "--", "sh", "-c", "echo theirs > page")
    assert output(wire, "cat page") == "theirs\n"
    by_a_person(ground, "undo")
    assert output(wire, "cat page") == "one\n"
    by_a_person(ground, "run", "--hold", "--", "sh", "-c", "echo held > page")
    assert output(wire, "cat page") == "held\n"
    by_a_person(ground, "apply")
    assert output(wire, "cat page") == "held\n"
    assert len(waiters(wire)) == 1


def test_calls_at_once_run_at_once_and_each_has_its_own_changes(ground: Ground, wire: Wire) -> None:
    output(wire, "cat page")
    command = "touch {0}; echo {0} > ~/playground/{0}; until [ -e ~/playground/{1} ]; do sleep 0.02; done; rm -f x"
    pairs = (("first", "second"), ("second", "first"))
    asked = [wire.put("tools/call", {"name": "run", "arguments": {"command": command.format(*pair)}}) for pair in pairs]
    for answer, (own, _other) in zip(wire.answers(asked), pairs, strict=True):
        found = answer["result"]["structuredContent"]
        assert found["exit_code"] == 0
        assert found["changes"] == [{"kind": "added", "path": own}]
        assert (ground.project / own).exists()


def test_a_background_run_waits_for_no_idle_sandbox_and_calls_join_it(wire: Wire) -> None:
    output(wire, "cat page")
    started = wire.call("run", {"command": "echo up > up; exec sleep 1000.75", "background": True})
    number = started["structuredContent"]["run"]
    deadline = time.monotonic() + 30
    while output(wire, "cat up || true") != "up\n":
        assert time.monotonic() < deadline
    assert wire.call("kill", {"run": number})["structuredContent"]["ended"] == "signalled"
    assert output(wire, "cat up") == "up\n"


def test_the_sandbox_ends_with_the_connection(ground: Ground, tmp_path: Path) -> None:
    ground.configure('after = "apply"\n')
    with wired(ground.project, tmp_path / "log", "legacy") as wire:
        output(wire, "true")
        alive = waiters(wire)
        assert len(alive) == 1
    assert not [pid for pid in alive if Path(f"/proc/{pid}/cmdline").exists()]
    assert ground.left_behind() == []


def test_what_each_connection_does_is_a_session_of_its_own(ground: Ground, tmp_path: Path) -> None:
    ground.configure('after = "apply"\n')
    for name in ("one", "two"):
        with wired(ground.project, tmp_path / name, "modern") as wire:
            for command in (f"echo 1 > {name}", f"echo 2 >> {name}"):
                assert not wire.call("run", {"command": command})["isError"]
    with Sandbox(ground.project) as sandbox:
        sessions = sandbox.sessions()
        assert [len(session.operations) for session in sessions] == [2, 2]
        assert all(session.name.startswith("mcp-") for session in sessions)
        sandbox.undo_session(sessions[0].name)
    assert [path.name for path in ground.project.iterdir()] == ["two"]
