# SPDX-License-Identifier: Apache-2.0
"""What a coding agent's own file tools change, and what its person asks for: its hook tells both, for `undo --session`.

Its file tools write as the person, sealed or not. What can't be recorded is said. An edit of the settings that make the
agent call this hook is for the person to decide; so is, where the agent's own sandbox is off for our sake, one outside
of the project.
"""

from __future__ import annotations

import os
import re

from unspill.errors import UsageError
from unspill.policy.paths import contains, show
from unspill.sandbox.sessions import real_entry

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
    "claude-code": (b"/.claude/settings.json", b"/.claude/settings.local.json"),
    "codex": (b"/.codex/config.toml", b"/.codex/hooks.json"),
    "gemini-cli": (b"/.gemini/settings.json",),
}
_PATCHED = ("*** Update File: ", "*** Add File: ", "*** Delete File: ", "*** Move to: ")
_LONGEST_ID = 100
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


def find_refusal(agent: str, event: dict[str, Any], find_project: Callable[[], bytes]) -> dict[str, Any] | None:
    """Return the answer to an edit that must not happen unseen, None if it may.

    Claude Code asks its person. The others can't be made to ask, and are told no.

    Raises:
        UnspillError: there is no project here, or the tool does not say what it is about.
    """
    before, _after, _prompt = EVENTS[agent]
    if event.get("hook_event_name") != before or str(event.get("tool_name")) not in TOOLS[agent]:
        return None
    reason, project = "", find_project()
    for path in map(real_entry, _paths(agent, str(event["tool_name"]), event)):
        if path.endswith(_SETTINGS[agent]):
            reason = f"{show(path)} decides whether commands are sealed: only the user changes it"
        elif agent == "codex" and not contains(project, path):
            reason = f"{show(path)} is outside of the project {show(project)}"
    if not reason:
        return None
    if agent == "gemini-cli":
        return {"decision": "deny", "reason": reason}
    said = "ask" if agent == "claude-code" else "deny"
    return {
        "hookSpecificOutput": {
            "hookEventName": before,
            "permissionDecision": said,
            "permissionDecisionReason": f"unspill: {reason}",
        }
    }


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
