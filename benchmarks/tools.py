# SPDX-License-Identifier: Apache-2.0
"""What an agent's way to the library costs: a `run` of `true` through MCP over stdio and through each adapter.

All in turns within one run, against the library's own run in the same kind of sandbox. Then eight clients at once, each
with a server of its own, against eight programs that use the library. What is not installed is not measured.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import Case, Turns, parse_arguments, report
from stdio_client import Caller, McpCaller, WorkerCaller

from unspill import Sandbox
from unspill.layers.trees import remove_tree

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any

    Call = Callable[[], Coroutine[Any, Any, None]]

MCP_BAR, ADAPTER_BAR, THROUGHPUT_BAR = 2.0, 1.2, 0.8
CLIENTS = 8


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    directory = Path(tempfile.mkdtemp(prefix="unspill-tools-", dir=Path.home()))
    os.environ["UNSPILL_STATE_DIR"] = str(directory / "state")
    try:
        # First, while this program is small: it is the clients', and what it collects is no server's work
        with ExitStack() as stack:
            at_once = list(measure_clients(directory, stack, arguments))
        with ExitStack() as stack:
            cases = [*measure_calls(directory, stack, arguments), *at_once]
    finally:
        remove_tree(os.fsencode(directory))
    wanted = dict.fromkeys(("mcp", *(needed for needed, _ in ADAPTERS.values())))
    missing = [name for name in wanted if find_spec(name) is None]
    report("tools", cases, arguments, [f"not installed, so not measured: {', '.join(missing)}"] if missing else [])


def make_project(directory: Path, name: str) -> Path:
    project = directory / name
    project.mkdir()
    (project / "file").write_text("content\n")
    return project


def measure_calls(directory: Path, stack: ExitStack, arguments: argparse.Namespace) -> Iterator[Case]:
    """One call at a time, all ways in turns."""
    sandbox = stack.enter_context(Sandbox(make_project(directory, "library")))
    things: dict[str, Callable[[], object]] = {"library": lambda: check(sandbox.run("true").exit_code)}
    if find_spec("mcp") is not None:
        for era in ("2025-11-25", "2026-07-28"):
            caller = stack.enter_context(McpCaller(make_project(directory, era), era))
            things[f"MCP over stdio, {era}"] = caller.call
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    for name, (needed, make) in ADAPTERS.items():
        if find_spec(needed) is not None:
            call = make(stack.enter_context(Sandbox(make_project(directory, name))))
            things[name] = lambda call=call: loop.run_until_complete(call())  # type: ignore[misc]
    turns = Turns(seconds=100 if arguments.full else 6, rounds=1000 if arguments.full else 200)
    turns.run(things)  # type: ignore[arg-type]
    for name in things:
        if name != "library":
            bar = MCP_BAR if name.startswith("MCP") else ADAPTER_BAR
            told = f"run of true: {name}"
            yield Case(told, turns.median(name), "ms", turns.median("library"), bar, samples=turns.samples[name])


def measure_clients(directory: Path, stack: ExitStack, arguments: argparse.Namespace) -> Iterator[Case]:
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
    for turn in range(16 if arguments.full else 6):
        for name in list(groups)[:: -1 if turn % 2 else 1]:
            samples[name].append(rate(groups[name], 4.0 if arguments.full else 2.0))
    made, bare = (sum(samples[name]) / len(samples[name]) for name in ("MCP", "library"))
    told = f"{CLIENTS} clients at once, runs a second"
    yield Case(told, made, "runs/s", bare, THROUGHPUT_BAR, at_least=True, samples=samples["MCP"])


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
