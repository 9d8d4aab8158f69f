# SPDX-License-Identifier: Apache-2.0
"""An agent of the OpenAI agents SDK whose shell is a sandbox; afterwards a person looks at what it did, and applies it.

    python3 examples/openai_agents_example.py PROJECT [MODEL]

The model is scripted, unless you name a real one; its address and key are in the variables that the SDK reads.
"""

import asyncio
import sys
from typing import Any

from agents import Agent, RunConfig, Runner, ShellTool
from agents.testing import ScriptedModel, assistant_message

from unspill import Policy, Sandbox
from unspill.adapters.openai_agents import run_command_function, shell_executor

COMMANDS = ["echo hello > greeting.txt", "cat greeting.txt", "rm -f README.md"]
CALL: Any = {"type": "shell_call", "id": "1", "call_id": "1", "status": "completed", "action": {"commands": COMMANDS}}
SCRIPTED = ScriptedModel([[CALL], [assistant_message("There is a greeting, and no README any more.")]])
MODEL = sys.argv[2] if sys.argv[2:] else SCRIPTED


async def main(project: str) -> None:
    with Sandbox(project, policy=Policy(after="hold")) as sandbox:
        shell, ours = ShellTool(executor=shell_executor(sandbox)), run_command_function(sandbox)  # one of both will do
        agent: Agent[None] = Agent(name="worker", model=MODEL, tools=[shell, ours])
        result = await Runner.run(agent, "Greet me.", run_config=RunConfig(tracing_disabled=True))
        print(result.final_output)
        print(*sandbox.summary(), sep="\n")  # all that it changed; the project has none of it yet
        sandbox.apply(["greeting.txt"])  # `undo()` would take it back
        sandbox.discard()


asyncio.run(main(sys.argv[1]))
