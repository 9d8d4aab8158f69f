# SPDX-License-Identifier: Apache-2.0
"""What tests of deep agents need: a model that says what it is told to, and what it has been shown."""

from collections.abc import Sequence
from typing import Any

from deepagents import create_deep_agent
from deepagents.backends.protocol import BackendProtocol
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage


class Scripted(GenericFakeChatModel):
    """Says one message after the other, whatever it is given."""

    def bind_tools(self, *_tools: Any, **_options: Any) -> "Scripted":
        return self


def scripted(steps: Sequence[tuple[str, dict[str, Any]]]) -> Scripted:
    """Return a model that calls one tool after the other, and then says `done`."""
    calls = [
        AIMessage("", tool_calls=[{"id": f"call_{number}", "name": name, "args": arguments}])
        for number, (name, arguments) in enumerate(steps)
    ]
    return Scripted(messages=iter([*calls, AIMessage("done")]))


def shown(backend: BackendProtocol, *steps: tuple[str, dict[str, Any]]) -> list[ToolMessage]:
    """Have an agent call tools, and return what its model is shown of each."""
    agent = create_deep_agent(scripted(steps), backend=backend)
    state = agent.invoke({"messages": [HumanMessage("go")]})
    assert state["messages"][-1].text == "done"
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


async def ashown(backend: BackendProtocol, *steps: tuple[str, dict[str, Any]]) -> list[ToolMessage]:
    """Do the same by the async tools."""
    agent = create_deep_agent(scripted(steps), backend=backend)
    state = await agent.ainvoke({"messages": [HumanMessage("go")]})
    assert state["messages"][-1].text == "done"
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]
