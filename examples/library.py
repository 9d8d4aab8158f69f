# SPDX-License-Identifier: Apache-2.0
"""What a program does with unspill: run, look, choose, undo; paths as text, errors with a remedy.

    python3 -P examples/library.py PROJECT

The type checker lets no `Any` pass in this file: what a caller touches has types.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from unspill import (
    Change,
    Exited,
    Limits,
    Operation,
    OutputChunk,
    Policy,
    RunResult,
    Sandbox,
    SandboxFiles,
    UnspillError,
    UsageError,
)


def tell(result: RunResult) -> None:
    """Print how a command ended, what it printed and what it changed."""
    match result.outcome:
        case Exited(code=0):
            print("ok:", result.stdout.text.strip())
        case _:
            print(f"exit code {result.exit_code}:", result.stderr.text.strip())
    changes: list[Change] = list(result.changes)
    for change in changes:
        print(" ", change.kind, change.name)


def review(sandbox: Sandbox) -> None:
    """Hold what a command does, apply a part of it and drop the rest."""
    sandbox.run(["sh", "-c", "echo 1 > kept; echo 2 > dropped"], after="hold")
    print("held:", sorted(change.name for change in sandbox.changes()))
    applied: Operation = sandbox.apply("kept", reviewed=sandbox.changes())
    print("applied:", [Path(name).name for name in applied.names])
    sandbox.discard()
    undone = sandbox.undo(applied.number)
    print("undone:", [Path(name).name for name in undone.names], [left.name for left in undone.left])


async def follow(sandbox: Sandbox) -> None:
    """Read output while a command runs, then run two at once."""
    async for event in sandbox.stream("echo one two", after="discard"):
        if isinstance(event, OutputChunk):
            print("said:", event.chunk.decode().split())
    results = await asyncio.gather(*(sandbox.arun(f"exit {code}", after="discard") for code in (3, 4)))
    print("exit codes:", [result.exit_code for result in results])


def main(project: Path) -> None:
    policy = Policy(limits=Limits(wall_s=60))
    with Sandbox(project, policy=policy) as sandbox:
        tell(sandbox.run("echo hello | tee greeting"))
        tell(sandbox.run(["cat", Path("missing")], working_dir=project))
        print("log:", [(run.number, run.changed) for run in sandbox.runs()])
        print("blame:", [line.decode().strip() for _who, line in sandbox.blame("greeting")])
        print("file:", SandboxFiles(sandbox).read(Path("greeting")).text().strip())
        review(sandbox)
        asyncio.run(follow(sandbox))
        with sandbox.live() as live:
            tell(live.run("pwd", working_dir=project))
        try:
            sandbox.run("true", working_dir="nowhere")
        except UnspillError as error:
            print("error:", error.code)
    try:
        sandbox.run("true")
    except UsageError as error:
        print("closed:", error, error.remedy)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
