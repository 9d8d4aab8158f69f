# SPDX-License-Identifier: Apache-2.0
"""A SandboxAgent of the OpenAI agents SDK that works in a sandbox: its shell and its patches see one tree.

    python3 examples/openai_sandbox_example.py PROJECT [MODEL]

The model is scripted, unless you name a real one; its address and key are in the variables that the SDK reads.
"""

import asyncio
import sys

from agents import RunConfig, Runner
from agents.sandbox import SandboxAgent, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem, Shell
from agents.testing import ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseCustomToolCall

from unspill import Sandbox
from unspill.adapters.openai_agents import UnspillClient

PATCH = "*** Begin Patch\n*** Add File: hello.py\n+print('hello')\n*** End Patch\n"
FIRST = ResponseCustomToolCall(type="custom_tool_call", name="apply_patch", input=PATCH, call_id="1")
SECOND = function_call("exec_command", {"cmd": "python3 hello.py | tee greeting.txt"}, call_id="2")
SCRIPTED = ScriptedModel([[FIRST], [SECOND], [assistant_message("It greets.")]])
MODEL = sys.argv[2] if sys.argv[2:] else SCRIPTED


async def main(project: str) -> None:
    with Sandbox(project) as sandbox:
        agent: SandboxAgent[None] = SandboxAgent(name="coder", model=MODEL, capabilities=[Shell(), Filesystem()])
        config = RunConfig(tracing_disabled=True, sandbox=SandboxRunConfig(client=UnspillClient(sandbox)))
        result = await Runner.run(agent, "Write a program that greets.", run_config=config)
        print(result.final_output)
        sandbox.undo()  # what the last command wrote; the patch before it stays


asyncio.run(main(sys.argv[1]))
