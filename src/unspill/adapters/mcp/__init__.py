# SPDX-License-Identifier: Apache-2.0
"""The MCP server: the tools of a sandbox for any client that speaks the protocol. Needs the extra `mcp`."""
