# SPDX-License-Identifier: Apache-2.0
"""The MCP server: tools and resources of sandboxes, by stdio, for clients of both eras of the protocol.

server        what each request gets; calls of tools, each in a thread, and their questions to the client
questions     who is asked: the client's user, `unspill approve` or nobody; questions as forms
resources     which projects there are, their tools, and what clients can read besides results

What the tools do and say is `unspill.adapters.tools`. Only `cli.mcp` and programs that serve sandboxes themselves
import from here: it needs the extra `mcp`.
"""
