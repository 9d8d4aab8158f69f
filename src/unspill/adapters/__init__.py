# SPDX-License-Identifier: Apache-2.0
"""What agents are given: every word that a model reads, once, and thin translations into the frameworks of others.

answers       what a model reads of a run or an error, and what it can do about a refusal
files         files as commands see them: the file tools, and `Workspace` for frameworks that have tools of their own
review        `changes`, `diff`, `undo` and `apply`
tools         all tools with their descriptions and schemas, and the way to call one
aio           the same without blocking an event loop
mcp           the tools by the Model Context Protocol: a package with a map of its own
deepagents, deepagents_code, inspect_ai, openai_agents, pydantic_ai
              one framework each, which is imported there and nowhere else
"""

import sys

from unspill.adapters import tools

# The paths under which the tools were first documented
for _old in ("calling", "tool", "toolbox"):
    sys.modules[f"{__name__}.{_old}"] = tools
