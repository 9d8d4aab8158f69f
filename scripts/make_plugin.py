#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write deploy/claude-plugin, the plug-in of Claude Code: its hooks, its MCP server and its skill.

They are what `unspill setup` puts into settings, but for the program: a plug-in finds `unspill` on the PATH.
"""

import json
from pathlib import Path

from unspill import __version__
from unspill.cli.hook import SESSION_WORDS, hook_groups

PLACE = Path(__file__).parents[1] / "deploy/claude-plugin"
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
    about = "Run shell commands sealed, see what they changed, and undo it."
    manifest = {"name": "unspill", "version": __version__, "description": about, "license": "Apache-2.0"}
    server = {"mcpServers": {"unspill": {"command": "unspill", "args": ["mcp"]}}}
    values = {".claude-plugin/plugin.json": manifest, "hooks/hooks.json": hooks, ".mcp.json": server}
    texts = {name: json.dumps(value, indent=2) + "\n" for name, value in values.items()}
    return {**texts, "skills/unspill/SKILL.md": SKILL}


if __name__ == "__main__":
    for name, text in make_files().items():
        (PLACE / name).parent.mkdir(parents=True, exist_ok=True)
        (PLACE / name).write_text(text)
