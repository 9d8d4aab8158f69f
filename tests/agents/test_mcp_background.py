# SPDX-License-Identifier: Apache-2.0
"""Background runs over real stdio: what they print, what runs beside them, how they end, and what became of it."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.wire import Wire, wired
from tests.prepared import PROGRAM
from tests.support import Ground, processes_with

pytestmark = [pytest.mark.kernel, pytest.mark.agents, pytest.mark.any_bwrap]

# Tells each new content of a file, and leaves one itself
WATCH = (
    'echo ready; last=; while :; do read -r now < page && [ "$now" != "$last" ] && echo "saw $now" && last=$now '
    '&& echo "$now" > seen; sleep 0.02; done'
)


@pytest.fixture
def wire(ground: Ground, tmp_path: Path) -> Iterator[Wire]:
    ground.configure('after = "apply"\n')
    ground.write("page", "one\n")
    with wired(ground.project, tmp_path / "log", "modern") as made:
        yield made
    assert not made.wrong


def text_of(result: dict[str, Any]) -> str:
    return str(result["content"][0]["text"])


def start(wire: Wire, command: str) -> int:
    """Start a command in the background and return its number."""
    result = wire.call("run", {"command": command, "background": True})
    number = int(result["structuredContent"]["run"])
    told = f"Run {number} goes on in the background. `output` shows what it prints, `kill` ends it.\n"
    assert text_of(result).endswith(told)
    values = {name: value for name, value in result["structuredContent"].items() if name != "notes"}
    assert values == {"run": number, "running": True}
    return number


def read_until(wire: Wire, run: int, word: str, offset: int = 0) -> int:
    """Read on until the output has a word; return where what follows begins."""
    deadline, seen = time.monotonic() + 30, ""
    while word not in seen:
        assert time.monotonic() < deadline, seen
        found = wire.call("output", {"run": run, "offset": offset, "wait_s": 5})["structuredContent"]
        assert (found["offset"], found["lost"]) == (offset, 0)
        seen, offset = seen + found["text"], found["next_offset"]
    return offset


def refused(wire: Wire, tool: str, arguments: dict[str, Any]) -> str:
    result = wire.call(tool, arguments)
    assert result["isError"], result
    return text_of(result)


def test_a_watcher_sees_what_other_calls_write_and_ends_by_kill_and_all_is_undone(ground: Ground, wire: Wire) -> None:
    number = start(wire, WATCH)
    offset = read_until(wire, number, "saw one\n")
    edited = wire.call("edit", {"path": "page", "old": "one", "new": "two"})
    assert "page (1 place, now 4 bytes).\n" in text_of(edited)
    assert (ground.project / "page").read_bytes() == b"two\n", "a checkpoint is applied"
    offset = read_until(wire, number, "saw two\n", offset)
    ran = wire.call("run", {"command": "cat seen; echo three > page"})
    assert f"Changes of run {ran['structuredContent']['run']} and " in text_of(ran)
    assert {"kind": "modified", "path": "page"} in ran["structuredContent"]["changes"]
    offset = read_until(wire, number, "saw three\n", offset)
    assert "three" in text_of(wire.call("read", {"path": "page"}))
    for tool, arguments in (("undo", {}), ("run", {"command": "true", "network": True})):
        assert f"End them with `kill` first: run {number}." in refused(wire, tool, arguments)
    ended = wire.call("kill", {"run": number})
    assert not ended["isError"]
    assert ended["structuredContent"]["ended"] == "signalled"
    assert (ground.project / "seen").read_bytes() == b"three\n"
    again = wire.call("output", {"run": number, "offset": offset})
    assert not again["structuredContent"]["running"]
    plain = wire.call("run", {"command": "cat seen page"})
    assert text_of(plain) == "Exit code: 0\nOutput:\nthree\nthree\n", "nothing is told twice, and no run shares it"
    while "Undid" in text_of(wire.call("undo")):
        pass
    assert (ground.project / "page").read_bytes() == b"one\n"
    assert not (ground.project / "seen").exists()


def test_a_server_in_the_background_is_reached_by_commands(wire: Wire) -> None:
    number = start(wire, "exec python3 -u -m http.server --bind 127.0.0.1 8123")
    read_until(wire, number, "Serving HTTP")
    fetch = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123/page').read().decode())"
    ran = wire.call("run", {"command": f'python3 -c "{fetch}"'})
    assert text_of(ran).endswith("Output:\none\n")
    assert "GET /page" in text_of(wire.call("output", {"run": number}))


def test_the_end_of_a_background_run_is_told_once_with_the_next_answer(ground: Ground, wire: Wire) -> None:
    number = start(wire, "read -r line || echo made > made; exit 3")
    deadline = time.monotonic() + 30
    while not (ground.project / "made").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    told = ""
    while "has ended" not in told:
        assert time.monotonic() < deadline
        told = text_of(wire.call("changes"))
    assert f"Note: run {number} has ended in the background.\nExit code: 3\n" in told
    assert f"Changes of run {number} (applied to the project as operation 1):\n1 added\n  A made\n" in told
    assert "has ended" not in text_of(wire.call("changes"))
    found = wire.call("output", {"run": number})
    assert found["structuredContent"]["exit_code"] == 3
    assert found["structuredContent"]["operation"] == 1
    assert "Undid operation 1" in text_of(wire.call("undo"))


def test_background_runs_end_with_the_connection_and_their_changes_are_kept(ground: Ground, tmp_path: Path) -> None:
    ground.configure('after = "hold"\n')
    mark = f"1000.{os.getpid()}"
    with wired(ground.project, tmp_path / "log", "legacy") as wire:
        number = start(wire, f"echo kept > kept; echo up; exec sleep {mark}")
        read_until(wire, number, "up\n")
        deadline = time.monotonic() + 30
        while not processes_with(mark):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for words in (["run"], ["run", "-d"]):
            done = subprocess.run(
                [PROGRAM, *words, "true"], check=False, cwd=ground.project, capture_output=True, timeout=30
            )
            said = f"They end with process {wire.process.pid}, an MCP server."
            assert said.encode() in done.stderr, "nobody waits for what may never end"
    assert not wire.wrong
    assert not processes_with(mark)
    assert ground.sandbox().run("cat kept").stdout.kept() == b"kept\n"


def test_what_a_background_run_can_not_have_is_refused(wire: Wire) -> None:
    for name, value in (("network", True), ("hosts", ["example.org"]), ("roots", ["/opt"]), ("stdin", "x")):
        said = refused(wire, "run", {"command": "true", "background": True, name: value})
        assert said == f"ERROR: `{name}` is not possible with `background`. Leave one of them out.\n"
    said = refused(wire, "output", {"run": 77})
    assert said == "ERROR: there is no background run 77. `run` with `background` starts one.\n"
    assert refused(wire, "kill", {"run": 77}) == said
    assert refused(wire, "run", {"command": "true", "background": True, "working_dir": "no/such"}).startswith("ERROR: ")
    assert text_of(wire.call("run", {"command": "true"})).startswith("Exit code: 0\n")
