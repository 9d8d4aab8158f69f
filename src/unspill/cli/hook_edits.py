# SPDX-License-Identifier: Apache-2.0
"""What a coding agent's own file tools change, and what its person asks for: its hook tells both, for `undo --session`.

The agent's file tools write as the person, sealed or not. What can't be recorded is said. Not for them are unspill's
own files: whoever writes its settings or its queue has answered every question. The settings that make the agent call
this hook are for the person to decide; so is, where the agent's own sandbox is off for our sake, what lies outside of
the project.
"""

from __future__ import annotations

import os
import re

from unspill.errors import UsageError
from unspill.policy.paths import contains, show

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
# What decides how an agent's commands run
_SETTINGS = {
    "claude-code": (b"/.claude/settings.json", b"/.claude/settings.local.json", b"/.claude.json", b"/.mcp.json"),
    "codex": (b"/.codex/config.toml", b"/.codex/hooks.json"),
    "gemini-cli": (b"/.gemini/settings.json",),
}
_PATCHED = ("*** Update File: ", "*** Add File: ", "*** Delete File: ", "*** Move to: ")
_LONGEST_ID = 100
_FOR_THE_USER = "is unspill's own: only the user may change its settings and answer its questions."
# Gemini CLI puts before a prompt what hooks have told it
_CONTEXT = re.compile(r"^<hook_context>.*?</hook_context>\s*", re.DOTALL)


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
            sandbox.add_prompt(_CONTEXT.sub("", str(event.get("prompt", ""))))
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


def find_refusal(
    agent: str, event: dict[str, Any], own: tuple[bytes, ...], find_project: Callable[[], bytes]
) -> tuple[str, bool] | None:
    """Return why an edit must not happen unseen, and whether its person may allow it; None if it may.

    Args:
        agent: Whose tool it is.
        event: What its hook was told.
        own: Our own directories.
        find_project: Finds the project that the agent works in.

    Raises:
        UnspillError: there is no project here, or the tool does not say what it is about.
    """
    tool = str(event.get("tool_name"))
    if event.get("hook_event_name") != EVENTS[agent][0] or tool not in TOOLS[agent]:
        return None
    # Through links too
    for path in map(os.path.realpath, _paths(agent, tool, event)):
        if any(contains(place, path) for place in own):
            return f"{show(path)} {_FOR_THE_USER}", False
        if path.endswith(_SETTINGS[agent]):
            return f"{show(path)} decides whether commands are sealed: only the user may change it.", True
        if agent == "codex" and not contains(find_project(), path):
            return f"{show(path)} is outside of the project {show(find_project())}.", False
    return None


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
