# SPDX-License-Identifier: Apache-2.0
"""The MCP server: tools and resources of sandboxes, by stdio or HTTP, for clients of both eras of the protocol.

One call of a tool, in this order:

    stdio, pipes        a line from the client that started us, or by `http`: a request that shows the token
    server              what a request is answered with; a call begins, or goes on with its answers
    projects, schemas   which sandbox is meant; what a client is told of the tools, also of several projects
    asking              who is asked for more: the client, the queue of `unspill approve`, nobody
    calls               the call in a thread of its own, its end, its wait for a client that has to come back
    (toolbox)           what is done and what a model reads: `unspill.adapters`, nothing of it is here
    bridge              a question from that thread to the event loop, and the answer back
    conversing          carries questions to the client and answers back, as its era wants it
    eliciting           a question as a form, and what a form that comes back means
    progress            what a long run printed last
    outputs, resources  what runs printed, of this server's calls alone; the diff of what is held

Only `cli.mcp` and programs that serve sandboxes themselves import from here: it needs the extra `mcp`.
"""
