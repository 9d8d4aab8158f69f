# SPDX-License-Identifier: Apache-2.0
"""A deep agent whose files and shell are those of a sandbox; afterwards a person looks at what it did, and applies it.

    python3 examples/deepagents_example.py PROJECT [MODEL]

The model is scripted, unless you name a real one: `anthropic:claude-sonnet-4-6`.
"""

import sys
from typing import Any

from deepagents import create_deep_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage

from unspill import Policy, Sandbox
from unspill.adapters.deepagents import UnspillSandbox, make_backend


class Scripted(GenericFakeChatModel):
    def bind_tools(self, *_tools: Any, **_options: Any) -> "Scripted":
        return self


def call(number: int, name: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"id": str(number), "name": name, "args": arguments}])


with Sandbox(sys.argv[1], policy=Policy(after="hold")) as sandbox:
    steps = [
        call(1, "write_file", file_path=f"{UnspillSandbox(sandbox).working_dir}/greeting.txt", content="hello\n"),
        call(2, "execute", command="tr a-z A-Z <greeting.txt >loud.txt; cat loud.txt"),
        AIMessage("Hello, twice."),
    ]
    model = sys.argv[2] if sys.argv[2:] else Scripted(messages=iter(steps))
    agent = create_deep_agent(model, backend=make_backend(sandbox))
    print(agent.invoke({"messages": [HumanMessage("Greet me.")]})["messages"][-1].text)
    print(*sandbox.summary(), sep="\n")  # all that it did; the project is as it was
    sandbox.apply(["greeting.txt"])  # or nothing, and `discard()`; `undo()` takes it back
