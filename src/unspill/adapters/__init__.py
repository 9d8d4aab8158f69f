# SPDX-License-Identifier: Apache-2.0
"""What agents are given: every word that a model reads, once, and thin translations into the frameworks of others.

toolbox     the tools in one list, and the way to call one; the rest of this group is what they consist of
  tool, calling                   `run`: its description, its call
  filing, reviewing, applying     `read` to `edit`; `changes`, `diff`, `undo`; `apply`
  arguments, answering, advising  what a model gives is checked; what it is told; what it can do about a refusal
  window                          a part of a long text
mcp         the tools by the Model Context Protocol: a package with a map of its own
workspace   commands and files for frameworks that have tools of their own
  told, batch, viewing            what a command printed, apart from what we say of it; what is shown of a file
  lazily, twins, translating      opened at first use; async twins; errors as the framework wants them
deepagents, deepagents_code, inspect_ai, openai_agents, openai_sandbox, pydantic_ai
            one framework each, which is imported there and nowhere else
"""
