# SPDX-License-Identifier: Apache-2.0
"""Thousands of hostile calls and answers to a real `unspill mcp`: it lives, it answers, and nothing leaks."""

import os
import random
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from tests.agents.fuzzed import Fuzz
from tests.agents.fuzzed_values import ARGUMENTS, CANARY
from tests.agents.wire import ERAS, Era, Wire, descendants, digest, wired
from tests.figures import record_figure
from tests.support import Ground, lasting, processes_with, run_cli
from unspill import Sandbox, Secrets

pytestmark = pytest.mark.agents

BATCH = 25
CLIENTS = 8
SEEDS: list[tuple[Era, str]] = [("legacy", "hold"), ("modern", "hold"), ("modern", "apply")]


class World:
    """What hostile calls are made against: a project with all sorts of entries, beside what must not change by them."""

    def __init__(self, ground: Ground, after: str = "hold", more: str = "") -> None:
        self.ground = ground
        self.word = lasting()
        self.other = ground.top / "other"
        self.is_held = after == "hold"
        ground.configure(f'after = "{after}"\n[limits]\nwall_s = 3\n{more}')
        (ground.home / "secret").write_text(CANARY)
        self.other.mkdir()
        (self.other / "file").write_text(CANARY)
        with Sandbox(self.other, policy=ground.policy()) as sandbox:
            sandbox.run("echo held > mine")
        (ground.home / ".local").mkdir(exist_ok=True)
        self.mend()
        self.before = self.now()

    @property
    def places(self) -> dict[str, str]:
        named = {"HOME": self.ground.home, "STATE": self.ground.state, "OTHER": self.other}
        return {**{name: os.fspath(path) for name, path in named.items()}, "SLEEPS": self.word}

    def now(self) -> dict[str, str]:
        """Return all that must stay as it is: of the project too where nothing is applied to it."""
        home = self.ground.home
        # The playground and its like are there to be written
        but = (home / ".local",) if self.is_held else (home / ".local", self.ground.project)
        return digest(home, self.other, but=but)

    def mend(self) -> None:
        """Do what whoever reviews it does: commands may have taken everything away that others need."""
        project = self.ground.project
        with Sandbox(project, policy=self.ground.policy()) as sandbox:
            sandbox.discard()
        if self.is_held and (project / "pipe").exists():
            self._show_secret()
            return
        subprocess.run(["chmod", "-R", "u+rwX", project], check=True)
        for path in project.iterdir():
            subprocess.run(["rm", "-rf", path], check=True)
        self.ground.write("readme", "one\ntwo\n")
        self.ground.write("sub/file", "x" * 5000)
        (project / "link").symlink_to("sub")
        (project / "loop").symlink_to("loop")
        (project / "out").symlink_to(self.ground.home)
        os.mkfifo(project / "pipe")
        (project / os.fsdecode(b"bad\xff")).write_bytes(b"\xff\x00\x80")
        self.ground.write(".env", f"{CANARY}\n")
        self._show_secret()

    def _show_secret(self) -> None:
        """Do what the person may: show a run of theirs the secret, which prints and changes it."""
        with Sandbox(self.ground.project, policy=self.ground.policy(secrets=Secrets(mask=False))) as sandbox:
            printed = sandbox.run("cat .env; echo other > .env").stdout.head
        assert printed.strip() == CANARY.encode()


class Tally:
    """What was sent and what came of it."""

    def __init__(self) -> None:
        self.calls = 0
        self.results = 0
        self.tool_errors = 0
        self.refusals = 0

    def take(self, answer: dict[str, Any]) -> None:
        self.calls += 1
        if "error" in answer:
            self.refusals += 1
        elif answer["result"].get("isError"):
            self.tool_errors += 1
        else:
            self.results += 1


def is_message(line: bytes) -> bool:
    """Tell whether a line can be read at all: without that nobody knows whom to answer."""
    try:
        jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError:
        return False
    return True


def attack(wire: Wire, fuzz: Fuzz, tally: Tally) -> None:
    """Send a batch at once, wait for all answers, and see that the server is well."""
    waiting = []
    for _ in range(BATCH):
        if fuzz.is_line():
            wire.send(fuzz.line())
            tally.calls += 1
        identity, line = wire.line_of(*fuzz.request())
        wire.send(line)
        if not is_message(line):
            tally.calls += 1
        elif fuzz.is_cancelled():
            wire.note("notifications/cancelled", {"requestId": identity})
            tally.calls += 1
        else:
            waiting.append(identity)
    for answer in wire.answers(waiting):
        tally.take(answer)
    assert "result" in wire.ask("tools/list")


def of_commands(wire: Wire) -> list[str]:
    """Return what runs but the spawner, and the sandbox that is kept for the next run: bwrap, pid 1 and a door."""
    kept = ("spawner_main", "unspill-spawner", "/run/unspill-wait", "unspill-door")
    return [one for one in descendants(wire.process.pid).values() if not any(word in one for word in kept)]


def until(condition: Callable[[], bool]) -> bool:
    """Wait for something to become true, and tell whether it did."""
    end = time.monotonic() + 20
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def look(wire: Wire, world: World) -> None:
    """See that nothing has happened that must not."""
    assert wire.wrong == []
    said = "".join(wire.lines)
    wire.lines.clear()
    assert CANARY not in said
    assert "Traceback" not in said
    assert "the server failed" not in said
    assert "Traceback" not in wire.log.read_text(), wire.log.read_text()[-5000:]
    assert until(lambda: not of_commands(wire)), of_commands(wire)
    assert processes_with(world.word) == []
    assert world.now() == world.before


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("era", "after"), SEEDS)
def test_e3_hostile_calls_change_nothing_that_they_must_not_and_the_server_answers_on(
    era: Era, after: str, ground: Ground, full: bool, tmp_path: Path
) -> None:
    """Call every tool of an MCP server thousands of times with hostile arguments, and send it what is no call.

    Control: one in ten at least is done, one in ten at least is refused by the tool.
    """
    wanted = 5000 if full else 125
    tally, world = Tally(), World(ground, after)
    options = ("--ask", "deny") if era == "legacy" else ("--ask", "queue", "--patience", "0")
    with wired(ground.project, tmp_path / "log", era, *options) as wire:
        tools = wire.ask("tools/list")["result"]["tools"]
        assert {one["name"]: set(one["inputSchema"]["properties"]) for one in tools} == {
            name: set(arguments) for name, arguments in ARGUMENTS.items()
        }
        started = 0
        while tally.calls < wanted:
            attack(wire, Fuzz(1000 * SEEDS.index((era, after)) + started, world.places), tally)
            started += 1
            look(wire, world)
            if started % 4 == 0:
                world.mend()
        world.mend()
        seen = descendants(wire.process.pid)
        assert not wire.call("run", {"command": "cat readme"})["isError"]
    look(wire, world)
    assert wire.process.returncode == 0
    assert until(lambda: not [pid for pid in seen if Path(f"/proc/{pid}").exists()])
    # What another project has held is still there, and is all there is
    held = ground.sandbox(project=world.other).changes()
    assert [change.path for change in held] == [b"mine"]
    # Calls that only ever fail try nothing
    assert tally.results > tally.calls / 10
    assert tally.tool_errors > tally.calls / 10
    note = f"{tally.results} done, {tally.tool_errors} answered with an error of the tool, {tally.refusals} refused"
    name = f"hostile calls by MCP, {era} era, after = {after}"
    record_figure(name, f"{tally.calls}: nothing changed that must not, 0 left behind", note)


@pytest.mark.kernel
@pytest.mark.timeout(600)
def test_eight_clients_at_once_do_not_disturb_each_other(ground: Ground, full: bool, tmp_path: Path) -> None:
    """Each has a server and a sandbox of its own over the same project, and finds there what it has written."""
    batches = 20 if full else 1
    world = World(ground)

    def be_client(number: int) -> Tally:
        tally = Tally()
        log = tmp_path / f"log{number}"
        options = ("--ask", "deny", "--sandbox", f"box{number}")
        with wired(ground.project, log, ERAS[number % 2], *options) as wire:
            for batch in range(batches):
                assert not wire.call("write", {"path": "own", "content": f"of {number}"})["isError"]
                assert f"Output:\nof {number}\n" in str(wire.call("run", {"command": "cat own"})["content"][0]["text"])
                attack(wire, Fuzz(100 * number + batch, world.places), tally)
                assert run_cli("discard", "--sandbox", f"box{number}", cwd=ground.project).returncode == 0
        assert wire.wrong == []
        assert "Traceback" not in log.read_text(), log.read_text()[-5000:]
        return tally

    with ThreadPoolExecutor(CLIENTS) as threads:
        tallies = list(threads.map(be_client, range(CLIENTS)))
    assert world.now() == world.before
    assert processes_with(world.word) == []
    calls = sum(one.calls for one in tallies)
    assert calls >= CLIENTS * batches * BATCH * 0.8
    record_figure(
        "hostile calls by MCP, 8 clients", f"{calls}: all well, nothing changed", "each with a sandbox of its own"
    )


_NO_RESULTS: Final[tuple[Any, ...]] = (None, [], "x", {}, {"action": "yes"}, {"action": None}, {"content": {}})
_NO_CONTENTS: Final[tuple[Any, ...]] = (None, [], {}, "Allow", {"": 1}, {"answer": None}, {"answer": ["Allow"]})
_NO_YES: Final = ("Deny", "\0", "Allow\n", "allow", "x" * 9000)
# What a client may make of a question: an answer, none, several, or what is no answer at all
REPLIES: Final[tuple[list[dict[str, Any]], ...]] = (
    [{"result": {"action": "accept", "content": {"answer": "Allow"}}}],
    [{"result": {"action": "accept", "content": {"answer": "Allow"}}}] * 3,
    [{"result": {"action": "decline"}}, {"result": {"action": "accept", "content": {"answer": "Allow"}}}],
    [],
    *([{"result": result}] for result in _NO_RESULTS),
    *([{"result": {"action": "accept", "content": content}}] for content in _NO_CONTENTS),
    *([{"result": {"action": "accept", "content": {"answer": text}}}] for text in _NO_YES),
    *([{"error": error}] for error in ({"code": -1, "message": "x"}, {"code": "x"}, None, {})),
)
ASKED_AT_ONCE: Final = 9


def wanted(number: int) -> dict[str, Any]:
    """Return a call that somebody has to allow; each is another, since who was denied is not asked again soon."""
    return {"name": "run", "arguments": {"command": f"echo it ran; : {number}", "network": True}}


class Person:
    """Answers with anything, from a seed; knows how often they were asked, and how often a clear yes was all."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.asked = self.allowed = 0

    def __call__(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        assert params["requestedSchema"]["properties"]["answer"]["default"] == "Deny"
        self.asked += 1
        reply = REPLIES[0] if self.asked % 5 == 1 else self._random.choice(REPLIES)
        self.allowed += bool(reply) and reply[0].get("result") == REPLIES[0][0]["result"]
        return reply


def come_back(wire: Wire, person: Person, calls: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Come back with answers to what a server of the newer era returns; return how the calls, by their ids, ended.

    Not for all: some clients never come back.
    """
    ended, waiting = [], []
    for answer in wire.answers(calls):
        if answer.get("result", {}).get("resultType") != "input_required":
            ended.append(answer)
            continue
        responses: dict[str, Any] = {}
        for identity, request in answer["result"]["inputRequests"].items():
            for reply in person(request["params"]):
                # An answer that comes second has no place here
                responses.setdefault(identity, reply.get("result", reply))
        if responses:
            more = {"requestState": answer["result"]["requestState"], "inputResponses": responses}
            waiting.append(wire.put("tools/call", {**calls[answer["id"]], **more}))
    return [*ended, *wire.answers(waiting)]


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_a_client_answers_a_command_runs_only_for_a_clear_yes(
    era: Era, seed: int, ground: Ground, tmp_path: Path
) -> None:
    """Control: a clear yes lets the command run."""
    world, tally, person = World(ground, more="[permissions]\nwait_s = 2\n"), Tally(), Person(seed)
    with wired(ground.project, tmp_path / "log", era, "--ask", "client", person=person) as wire:
        those = [wanted(number) for number in range(ASKED_AT_ONCE)]
        answers = come_back(wire, person, {wire.put("tools/call", one): one for one in those})
        ran = sum("Output:\\nit ran\\n" in str(answer) for answer in answers)
        assert 0 < ran <= person.allowed < person.asked
        assert person.asked == ASKED_AT_ONCE
        look(wire, world)
        attack(wire, Fuzz(9000 + seed, world.places), tally)
        look(wire, world)
    assert wire.process.returncode == 0
    look(wire, world)
