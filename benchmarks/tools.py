# SPDX-License-Identifier: Apache-2.0
"""What an agent's way to the library costs: a `run` of `true` through MCP over stdio and through each adapter.

All in turns within one run, against the library's own run in the same kind of sandbox. Then eight clients at once, each
with a server of its own, against eight programs that use the library. Then how long the server takes to be up, against
the import of the SDK alone, and three commands at once, against one. What is not installed is not measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from measuring import (
    Case,
    Options,
    Turns,
    compiled_environ,
    fast,
    make_project,
    parse_options,
    report,
    run_program,
    scratch,
    unspill_program,
)

from unspill import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    Call = Callable[[], Coroutine[Any, Any, None]]

MCP_BAR, ADAPTER_BAR, THROUGHPUT_BAR = 2.0, 1.2, 0.8
START_BAR, PARALLEL_BAR = 1.3, 1.15
CLIENTS, AT_ONCE = 8, 3
LIBRARY = """
import sys
from unspill import Sandbox
with Sandbox(sys.argv[1]) as sandbox:
    for line in sys.stdin:
        print(sandbox.run("true").exit_code, flush=True)
"""


def main() -> None:
    options = parse_options(__doc__ or "")
    with scratch() as directory:
        # First, while this program is small: it is the clients', and what it collects is no server's work
        with ExitStack() as stack:
            at_once = list(measure_clients(directory, stack, options))
        at_once += measure_start(directory, options)
        with ExitStack() as stack:
            at_once += measure_parallel(directory, stack, options)
        with ExitStack() as stack:
            cases = [*measure_calls(directory, stack, options), *at_once]
    wanted = dict.fromkeys(("mcp", *(needed for needed, _ in ADAPTERS.values())))
    missing = [name for name in wanted if find_spec(name) is None]
    report("tools", cases, options, [f"not installed, so not measured: {', '.join(missing)}"] if missing else [])


def measure_calls(directory: Path, stack: ExitStack, options: Options) -> Iterator[Case]:
    """One call at a time, all ways in turns."""
    sandbox = stack.enter_context(Sandbox(make_project(directory, "library")))
    things: dict[str, Callable[[], object]] = {"library": lambda: check(sandbox.run("true").exit_code)}
    if find_spec("mcp") is not None:
        for era in ("2025-11-25", "2026-07-28"):
            caller = stack.enter_context(McpCaller(make_project(directory, era), era))
            things[f"MCP over stdio, {era}"] = caller.call
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    asynchronous = stack.enter_context(Sandbox(make_project(directory, "arun")))
    things["arun"] = lambda: check(loop.run_until_complete(asynchronous.arun("true")).exit_code)
    for name, (needed, make) in ADAPTERS.items():
        if find_spec(needed) is not None:
            call = make(stack.enter_context(Sandbox(make_project(directory, name))))
            things[name] = lambda call=call: loop.run_until_complete(call())  # type: ignore[misc]
    turns = Turns(seconds=options.pick(4, 6, 100), rounds=options.pick(40, 200, 1000))
    turns.run(things)
    for name in things:
        if name != "library":
            bar = MCP_BAR if name.startswith("MCP") else ADAPTER_BAR
            told = f"run of true: {name}"
            yield Case(told, turns.fast(name), "ms", turns.fast("library"), bar, samples=turns.samples[name])


def measure_clients(directory: Path, stack: ExitStack, options: Options) -> Iterator[Case]:
    """Eight at once, in slices of a few seconds by turns."""
    if find_spec("mcp") is None:
        return
    groups: dict[str, list[Caller]] = {"library": [], "MCP": []}
    for number in range(CLIENTS):
        worker = WorkerCaller(make_project(directory, f"library {number}"))
        client = McpCaller(make_project(directory, f"client {number}"), "2026-07-28")
        groups["library"].append(stack.enter_context(worker))
        groups["MCP"].append(stack.enter_context(client))
    samples: dict[str, list[float]] = {"library": [], "MCP": []}
    for turn in range(options.pick(2, 6, 16)):
        for name in list(groups)[:: -1 if turn % 2 else 1]:
            samples[name].append(rate(groups[name], options.pick(1.0, 2.0, 4.0)))
    made, bare = (fast(samples[name], is_rate=True) for name in ("MCP", "library"))
    told = f"{CLIENTS} clients at once, runs a second"
    yield Case(told, made, "runs/s", bare, THROUGHPUT_BAR, at_least=True, samples=samples["MCP"])


def measure_start(directory: Path, options: Options) -> Iterator[Case]:
    """Until a server has answered for the first time, against a program that imports the SDK and ends."""
    if find_spec("mcp") is None:
        return
    environ, project = compiled_environ(directory), make_project(directory, "start")

    def serve() -> None:
        with McpCaller(project, "2025-11-25", environ):
            pass

    turns = Turns(seconds=options.pick(8, 30, 120), rounds=options.pick(3, 12, 50))
    turns.run({"SDK": lambda: run_program([sys.executable, "-c", "import mcp"], environ), "server": serve})
    told = "MCP server up, against `import mcp`"
    yield Case(told, turns.fast("server"), "ms", turns.fast("SDK"), START_BAR, samples=turns.samples["server"])


def measure_parallel(directory: Path, stack: ExitStack, options: Options) -> Iterator[Case]:
    """Commands of one second that a client sends at once, as agents do for calls that don't depend on each other."""
    if find_spec("mcp") is None:
        return
    caller = stack.enter_context(McpCaller(make_project(directory, "parallel"), "2025-11-25"))
    turns = Turns(seconds=options.pick(4, 20, 60), rounds=options.pick(2, 8, 20))
    turns.run({"one": lambda: caller.sleep(1), "all": lambda: caller.sleep(AT_ONCE)})
    told = f"{AT_ONCE} commands of a second at once, against one"
    yield Case(told, turns.fast("all"), "ms", turns.fast("one"), PARALLEL_BAR, samples=turns.samples["all"])


def rate(callers: list[Caller], seconds: float) -> float:
    """Let all of them call as often as they can for some seconds; return the calls a second."""
    counts = [0] * len(callers)
    end = time.monotonic() + seconds

    def work(number: int) -> None:
        while time.monotonic() < end:
            callers[number].call()
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(callers))]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - begun)


class Caller:
    """A program that runs `true` for each line of its input and answers with a line, for the length of a `with`."""

    def __init__(self, words: list[str], environ: dict[str, str] | None = None) -> None:
        self._words = words
        self._environ = environ

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._program = subprocess.Popen(self._words, stdin=pipe, stdout=pipe, env=self._environ)
        self.greet()
        return self

    def __exit__(self, *_rest: object) -> None:
        self._program.communicate(timeout=30)

    def greet(self) -> None:
        """Do what comes before the first call."""

    def call(self) -> None:
        """Have `true` run once."""
        raise NotImplementedError

    def exchange(self, line: bytes) -> bytes:
        """Send a line and return the one that answers it."""
        self.send(line)
        return self.take()

    def take(self) -> bytes:
        """Return the next line that the program sends."""
        assert self._program.stdout is not None
        return self._program.stdout.readline()

    def send(self, line: bytes) -> None:
        """Send a line."""
        assert self._program.stdin is not None
        self._program.stdin.write(line + b"\n")
        self._program.stdin.flush()


class WorkerCaller(Caller):
    """The library, in a program of its own."""

    def __init__(self, project: Path) -> None:
        super().__init__([sys.executable, "-c", LIBRARY, str(project)])

    def call(self) -> None:
        assert self.exchange(b"") == b"0\n"


class McpCaller(Caller):
    """The MCP server, spoken to by hand in both eras of its protocol: a whole client would cost more than a call."""

    def __init__(self, project: Path, era: str, environ: dict[str, str] | None = None) -> None:
        super().__init__([unspill_program(), "mcp", "--project", str(project)], environ)
        self._era = era
        self._number = 0

    def greet(self) -> None:
        if self._era < "2026":
            client = {"name": "benchmark", "version": "1"}
            self.ask("initialize", {"protocolVersion": self._era, "capabilities": {}, "clientInfo": client})
            self.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        else:
            self.ask("server/discover", {})

    def call(self) -> None:
        result = self.ask("tools/call", {"name": "run", "arguments": {"command": "true"}})
        assert result["structuredContent"]["exit_code"] == 0, result

    def sleep(self, count: int) -> None:
        """Have so many commands of a second run at once."""
        for _ in range(count):
            self.send(self._line("tools/call", {"name": "run", "arguments": {"command": "sleep 1"}}))
        for _ in range(count):
            assert json.loads(self.take())["result"]["structuredContent"]["exit_code"] == 0

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        answer = json.loads(self.exchange(self._line(method, params)))
        assert answer["id"] == self._number, answer
        return answer["result"]

    def _line(self, method: str, params: dict[str, Any]) -> bytes:
        self._number += 1
        if self._era >= "2026":
            said = "io.modelcontextprotocol/"
            client = {"name": "benchmark", "version": "1"}
            about = {"protocolVersion": self._era, "clientInfo": client, "clientCapabilities": {}}
            params = params | {"_meta": {said + name: value for name, value in about.items()}}
        return json.dumps({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}).encode()


def check(exit_code: int | None) -> None:
    assert exit_code == 0, exit_code


def by_deepagents(sandbox: Sandbox) -> Call:
    from unspill.adapters.deepagents import UnspillSandbox

    backend = UnspillSandbox(sandbox)

    async def call() -> None:
        check((await backend.aexecute("true")).exit_code)

    return call


def by_openai_shell(sandbox: Sandbox) -> Call:
    from agents import RunContextWrapper, ShellActionRequest, ShellCallData, ShellCommandRequest

    from unspill.adapters.openai_agents import shell_executor

    execute = shell_executor(sandbox)
    action = ShellCallData(call_id="1", action=ShellActionRequest(commands=["true"]))

    async def call() -> None:
        result = await execute(ShellCommandRequest(RunContextWrapper(context=None), action))
        check(result.output[0].outcome.exit_code)

    return call


def by_openai_sandbox(sandbox: Sandbox) -> Call:
    from unspill.adapters.openai_agents import UnspillClient

    client = UnspillClient(sandbox)
    opened: list[Any] = []

    async def call() -> None:
        if not opened:
            opened.append(await client.create(options=None))
        # By the shell that the library takes: the SDK's own default reads the profiles of a login first
        check((await opened[0].exec("true", shell=["/bin/sh", "-c"])).exit_code)

    return call


def by_pydantic_ai(sandbox: Sandbox) -> Call:
    from unspill.adapters.pydantic_ai import UnspillBackend

    backend = UnspillBackend(os.fsdecode(sandbox.project))

    async def call() -> None:
        check((await backend.run("true", shell=True)).exit_code)

    return call


def by_inspect_ai(sandbox: Sandbox) -> Call:
    from unspill.adapters.inspect_ai import UnspillEnvironment

    place = UnspillEnvironment(sandbox)

    async def call() -> None:
        check((await place.exec(["true"])).returncode)

    return call


# What has to be installed for each, and how it is called
ADAPTERS: dict[str, tuple[str, Callable[[Sandbox], Call]]] = {
    "deep agents": ("deepagents", by_deepagents),
    "OpenAI agents, ShellTool": ("agents", by_openai_shell),
    "OpenAI agents, sandbox client": ("agents", by_openai_sandbox),
    "pydantic-ai": ("pydantic_ai", by_pydantic_ai),
    "inspect-ai": ("inspect_ai", by_inspect_ai),
}

if __name__ == "__main__":
    main()
