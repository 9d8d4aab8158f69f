#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write deploy/claude-plugin, the plug-in of Claude Code: its hooks, its MCP server and its skill.

They are what `unspill setup` puts into settings, but for the program: a plug-in finds `unspill` on the PATH.
Also deploy/server.json, by which the MCP registry knows the same server.
"""

import json
import tomllib
from pathlib import Path

from unspill import __version__
from unspill.cli.hook import SESSION_WORDS, hook_groups

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "deploy/claude-plugin"
ABOUT = "Run shell commands sealed, see what they changed, and undo it."
SERVER = ["mcp"]
# The registry looks for this name in the README of the package
SERVER_NAME = "io.github.unspill/unspill"
SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
SKILL = f"""---
name: unspill
description: What sealed shell commands can do. Use it when a command can't reach a host or a file.
---

{SESSION_WORDS}

- The output names what is missing. Don't try to get around it: tell the user what you need and why.
- `unspill changes`, `diff`, `log` and `undo` are for the user. In a sealed command they change nothing.
"""


def make_files() -> dict[str, str]:
    """Return the files of the plug-in, by their names."""
    groups: dict[str, list[object]] = {}
    for event, group in hook_groups("claude-code", "unspill"):
        groups.setdefault(event, []).append(group)
    hooks = {"hooks": groups}
    manifest = {"name": "unspill", "version": __version__, "description": ABOUT, "license": "Apache-2.0"}
    server = {"mcpServers": {"unspill": {"command": "unspill", "args": SERVER}}}
    values = {".claude-plugin/plugin.json": manifest, "hooks/hooks.json": hooks, ".mcp.json": server}
    texts = {name: json.dumps(value, indent=2) + "\n" for name, value in values.items()}
    return {**texts, "skills/unspill/SKILL.md": SKILL}


def make_server() -> str:
    """Return what the MCP registry reads: which package the server is in, and how a client starts it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [{"type": "named", "name": "--with", "value": one} for one in project["optional-dependencies"]["mcp"]]
    package = {
        "registryType": "pypi",
        "identifier": project["name"],
        "version": __version__,
        "runtimeHint": "uvx",
        "runtimeArguments": needed,
        "packageArguments": [{"type": "positional", "value": word} for word in SERVER],
        "transport": {"type": "stdio"},
    }
    server = {"$schema": SCHEMA, "name": SERVER_NAME, "title": "unspill", "description": ABOUT}
    return json.dumps({**server, "version": __version__, "packages": [package]}, indent=2) + "\n"


if __name__ == "__main__":
    (PLACE.parent / "server.json").write_text(make_server())
    for name, text in make_files().items():
        (PLACE / name).parent.mkdir(parents=True, exist_ok=True)
        (PLACE / name).write_text(text)
