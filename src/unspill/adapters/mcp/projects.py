# SPDX-License-Identifier: Apache-2.0
"""The projects that the operator offers, by name, and the tools that their clients are told of.

What a client or a model says chooses among these projects and never adds one: roots that a client names are not read.
With one project the tools are those of its sandbox as they are; with several each takes an argument `project` more.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from mcp_types import Tool, ToolAnnotations

from unspill.adapters.mcp.schemas import join_schemas
from unspill.adapters.seen import seen_in
from unspill.adapters.toolbox import tools_of
from unspill.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from unspill.adapters.tool import Tool as OurTool
    from unspill.sandbox.sandbox import Sandbox

ARGUMENT = "project"


class Projects:
    """Sandboxes by the name of their project. `default` is the one that is meant where none is named, if there is."""

    def __init__(
        self, sandboxes: Sequence[Sandbox], *, default: Sandbox | None = None, may_apply: bool = False
    ) -> None:
        """Name them.

        Raises:
            UsageError: there is none, or one is there twice.
        """
        if not sandboxes:
            raise UsageError("there is no project to serve", remedy="Name one: --project DIR")
        self.may_apply = may_apply
        self._named = name_all(sandboxes)
        self._default = sandboxes[0] if len(sandboxes) == 1 else default

    @property
    def named(self) -> Mapping[str, Sandbox]:
        """All of them."""
        return self._named

    @property
    def is_one(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self._named) == 1

    def name_of(self, sandbox: Sandbox) -> str:
        """Return the name of one."""
        return next(name for name, known in self._named.items() if known is sandbox)

    def find(self, name: object) -> Sandbox:
        """Return the sandbox that a name means, or the default where there is no name.

        Raises:
            UsageError: it means none.
        """
        if name is None and self._default is not None:
            return self._default
        found = self._named.get(name) if isinstance(name, str) else None
        if found is None:
            problem = "which project?" if name is None else f"there is no project {name!a:.80}"
            raise UsageError(problem, remedy=f"`{ARGUMENT}` is one of: {', '.join(self._named)}.")
        return found

    def choose(self, arguments: Mapping[str, Any]) -> tuple[Sandbox, dict[str, Any]]:
        """Return the sandbox that the arguments of a tool mean, and what is left of them for the tool."""
        if self.is_one:
            return self.find(None), dict(arguments)
        rest = dict(arguments)
        return self.find(rest.pop(ARGUMENT, None)), rest

    def tools(self) -> list[Tool]:
        """Return what a client is told of the tools."""
        boxes = {name: tools_of(sandbox, may_apply=self.may_apply) for name, sandbox in self._named.items()}
        columns = zip(*boxes.values(), strict=True)
        return [self._tool(dict(zip(boxes, tools, strict=True))) for tools in columns]

    def _tool(self, tools: Mapping[str, OurTool]) -> Tool:
        first = next(iter(tools.values()))
        schemas = {name: tool.schema for name, tool in tools.items()}
        return Tool(
            name=first.name,
            description=_description(tools),
            input_schema=first.schema if self.is_one else self._with_project(join_schemas(schemas)),
            annotations=ToolAnnotations(
                read_only_hint=first.is_read_only,
                # In the project it can be undone; the playground and whatever the network leads to have no undo
                destructive_hint=not first.is_read_only,
                open_world_hint=first.name == "run" and any(map(_has_world, self._named.values())),
            ),
        )

    def _with_project(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        said = {"type": "string", "enum": list(self._named), "description": "The project that it is about."}
        required = list(schema.get("required", ()))
        if self._default is None:
            required.insert(0, ARGUMENT)
        else:
            said["default"] = self.name_of(self._default)
        return {**schema, "properties": {ARGUMENT: said, **schema["properties"]}, "required": required}


def name_all(sandboxes: Sequence[Sandbox]) -> dict[str, Sandbox]:
    """Return them by the last part of their path, or by all of it where two have that in common.

    Raises:
        UsageError: one is there twice.
    """
    short = [os.path.basename(sandbox.project) for sandbox in sandboxes]
    named: dict[str, Sandbox] = {}
    for sandbox, name in zip(sandboxes, short, strict=True):
        word = (name if short.count(name) == 1 else sandbox.project).decode("utf-8", "backslashreplace")
        if word in named:
            raise UsageError(f"a project is named twice: {word!a}")
        named[word] = sandbox
    return named


def _description(tools: Mapping[str, OurTool]) -> str:
    texts = {tool.description for tool in tools.values()}
    if len(texts) == 1:
        return next(iter(texts))
    return "\n\n".join(f"In project {name}:\n{tool.description}" for name, tool in tools.items())


def _has_world(sandbox: Sandbox) -> bool:
    policy = sandbox.policy
    if not seen_in(sandbox).is_sealed:
        return True
    return bool(policy.network.hosts or policy.network.ask or policy.permissions.network == "ask")
