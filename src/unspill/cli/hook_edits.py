# SPDX-License-Identifier: Apache-2.0
"""What a coding agent's own file tools change, and what its person asks for: its hook tells both, for `undo --session`.

The agent's file tools write as the person, sealed or not. Only unspill's own files are not for them: whoever writes its
settings or its queue has answered every question. What can't be recorded is said.
"""

from __future__ import annotations

import os

from unspill.errors import UsageError
from unspill.policy.paths import contains

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from unspill.sandbox.sandbox import Sandbox

# The tools of each agent that write files, and the argument that says which
TOOLS = {
    "claude-code": {
        "Edit": "file_path",
        "MultiEdit": "file_path",
        "Write": "file_path",
        "NotebookEdit": "notebook_path",
    },
    "codex": {"apply_patch": "command"},
    "gemini-cli": {"write_file": "file_path", "replace": "file_path"},
}
# By agent: the events before and after such a tool, and the one with what the person asks for
_USUAL = ("PreToolUse", "PostToolUse", "UserPromptSubmit")
EVENTS = {"claude-code": _USUAL, "codex": _USUAL, "gemini-cli": ("BeforeTool", "AfterTool", "BeforeAgent")}
_PATCHED = ("*** Update File: ", "*** Add File: ", "*** Delete File: ", "*** Move to: ")
_LONGEST_ID = 100


def matcher_of(agent: str) -> str:
    """Return what matches the names of those tools."""
    return f"^({'|'.join(TOOLS[agent])})$"


def session_of(agent: str, event: dict[str, Any]) -> str:
    """Return the name of the session that an event is of, empty where it says none."""
    given = event.get("session_id")
    is_name = isinstance(given, str) and given.isascii() and given.isprintable() and 0 < len(given) <= _LONGEST_ID
    return f"{agent}-{given}" if is_name else ""


def follow(agent: str, event: dict[str, Any], open_sandbox: Callable[[], Sandbox]) -> bool:
    """Record an edit by the agent's own tools, or a prompt; tell whether the event was one of these.

    Raises:
        UnspillError: it can't be recorded.
    """
    before, after, prompt = EVENTS[agent]
    name, tool = event.get("hook_event_name"), str(event.get("tool_name"))
    if name == prompt:
        with open_sandbox() as sandbox:
            sandbox.add_prompt(str(event.get("prompt", "")))
        return True
    if name not in (before, after) or tool not in TOOLS[agent]:
        return False
    call = event.get("tool_use_id") or event.get("tool_input")
    with open_sandbox() as sandbox:
        if name == before:
            sandbox.note_edit(repr(call), list(_paths(agent, tool, event)))
        else:
            sandbox.record_edit(repr(call), asked_by=f"{agent}, {tool}")
    return True


def find_own_file(agent: str, event: dict[str, Any], own: tuple[bytes, ...]) -> bytes | None:
    """Return the file in our own directories that an edit is about, through links too; None if it is about none.

    Raises:
        UsageError: it does not say which file it is about.
    """
    tool = str(event.get("tool_name"))
    if event.get("hook_event_name") != EVENTS[agent][0] or tool not in TOOLS[agent]:
        return None
    real = (os.path.realpath(path) for path in _paths(agent, tool, event))
    return next((path for path in real if any(contains(place, path) for place in own)), None)


def _paths(agent: str, tool: str, event: dict[str, Any]) -> Iterator[bytes]:
    given = event.get("tool_input")
    text = given.get(TOOLS[agent][tool]) if isinstance(given, dict) else None
    if not isinstance(text, str) or "\0" in text:
        raise UsageError(f"{tool} does not say which file it is about")
    names = [text]
    if tool == "apply_patch":
        lines = text.splitlines()
        names = [line.removeprefix(word).strip() for line in lines for word in _PATCHED if line.startswith(word)]
    place = event.get("cwd")
    for name in names:
        # A path that is none of the project's is passed over
        yield os.fsencode(os.path.join(place if isinstance(place, str) else os.getcwd(), name))
        # Claude Code takes this for the home directory
        if name.startswith("~"):
            yield os.fsencode(os.path.expanduser(name))
