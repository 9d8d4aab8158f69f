#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write deploy/server.json, by which the MCP registry knows `unspill mcp`."""

import json
import tomllib
from pathlib import Path

from unspill import __version__

ROOT = Path(__file__).parents[1]
ABOUT = "Run shell commands sealed, see what they changed, and undo it."
# The registry looks for this name in the README of the package
SERVER_NAME = "io.github.unspill/unspill"
SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"


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
        "packageArguments": [{"type": "positional", "value": "mcp"}],
        "transport": {"type": "stdio"},
    }
    server = {"$schema": SCHEMA, "name": SERVER_NAME, "title": "unspill", "description": ABOUT}
    return json.dumps({**server, "version": __version__, "packages": [package]}, indent=2) + "\n"


if __name__ == "__main__":
    (ROOT / "deploy/server.json").write_text(make_server())
