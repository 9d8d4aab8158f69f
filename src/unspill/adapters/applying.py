# SPDX-License-Identifier: Apache-2.0
"""The tool `apply`, for persons who want their agent to have it. It is in no list of tools by itself.

What needs the person's consent is asked of the sandbox's broker, path by path; without anybody to ask it stays held.
"""

from __future__ import annotations

from unspill.adapters.answering import Answer
from unspill.adapters.reviewing import BY, operation_form, paths_schema
from unspill.adapters.seen import seen_in
from unspill.adapters.tool import Tool, make_schema
from unspill.adapters.window import many
from unspill.changes.render import left_lines

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.sandbox.asking import Who
    from unspill.sandbox.sandbox import Sandbox


def apply_tool(_sandbox: Sandbox) -> Tool:
    """Return the tool `apply`."""
    return Tool(
        name="apply",
        description=(
            "Apply what is held to the project, or a part of it. The user is asked about each file that runs by itself "
            "or holds secrets. What was changed in the project meanwhile is left alone, and you are told why."
        ),
        schema=make_schema({"paths": paths_schema()}),
    )


def call_apply(sandbox: Sandbox, given: dict[str, Any], *, approver: Who, cancel_fd: int | None = None) -> Answer:
    """Apply what is held, or a part of it; not what was cancelled before it began."""
    done = sandbox.apply(given.get("paths", []), asked_by=BY, approver=approver, cancel_fd=cancel_fd)
    done = seen_in(sandbox).operation(done)
    if done.number:
        lines = [f"Applied to the project as operation {done.number}: {many(done.changed, 'path')}."]
    else:
        lines = ["Nothing was applied."]
    if done.left:
        lines += ["Not applied (still held). Why, as the user is told:", *left_lines(done)]
    lines += [f"Note: {note}" for note in done.notes]
    return Answer(text="\n".join(lines) + "\n", values=operation_form(done))
