# SPDX-License-Identifier: Apache-2.0
"""An agent whose workspace is a sandbox; afterwards a person looks at what it did, and applies it.

    python3 examples/pydantic_ai_example.py PROJECT [MODEL]

The model is scripted, unless you name a real one: `anthropic:claude-sonnet-4-6`.
"""

import sys
from collections.abc import Iterator
from contextlib import closing

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from unspill import Policy
from unspill.adapters.pydantic_ai import UnspillBackend


def script() -> Iterator[TextPart | ToolCallPart]:
    yield ToolCallPart("shell", {"command": "echo hello >greeting.txt; tr a-z A-Z <greeting.txt"})
    yield TextPart("I greeted you.")


steps = script()
agent = Agent(sys.argv[2] if sys.argv[2:] else FunctionModel(lambda _messages, _info: ModelResponse([next(steps)])))


@agent.tool
async def shell(context: RunContext[object], command: str) -> str:
    result = await context.workspace.run(command, shell=True)
    return f"exit code {result.exit_code}\n{result.stdout}{result.stderr}"


with closing(UnspillBackend(sys.argv[1], policy=Policy(after="hold"))) as backend:
    print(agent.run_sync("Greet me.", workspace=backend).output)
    print(*backend.open().summary(), sep="\n")  # all that it did; the project is as it was
    backend.open().apply(["greeting.txt"])  # or nothing, and `discard()`; `undo()` takes it back
