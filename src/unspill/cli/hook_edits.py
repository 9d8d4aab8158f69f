# SPDX-License-Identifier: Apache-2.0
"""What Claude Code's own file tools change, and what its person asks for: its hook tells both, for `undo --session`.

The agent's file tools write as the person, sealed or not. What can't be recorded is said. Not for them are unspill's
own files: whoever writes its settings or its queue has answered every question. Whether the agent goes on calling this
hook is for the person to decide, so where they are not asked about edits, its settings are not for these tools either.
"""

from __future__ import annotations

import os
import re

from unspill.errors import UsageError
from unspill.policy.paths import contains, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from unspill.sandbox.sandbox import Sandbox

# The tools that write files, and the argument that says which
_TOOLS = {"Edit": "file_path", "MultiEdit": "file_path", "Write": "file_path", "NotebookEdit": "notebook_path"}
# The events before and after such a tool, and the one with what the person asks for
EVENTS = _BEFORE, _AFTER, _PROMPT = ("PreToolUse", "PostToolUse", "UserPromptSubmit")
# What decides which hooks are called, and what else runs as the person: settings, servers, plug-ins, skills, subagents
_DECIDING = re.compile(
    rb"/\.claude/(settings[^/]*\.json\Z|(hooks|plugins|skills|commands|agents|workflows)(/|\Z))|/\.(claude|mcp)\.json\Z"
    rb"|/\.claude-plugin(/|\Z)|/hooks/hooks\.json\Z|\A/etc/claude-code(/|\Z)"
)
# The modes in which the person is asked about edits; in every other one, known or not, an answer `ask` may ask nobody
_ASKING = ("default", "manual", "acceptEdits", "plan")
_LONGEST_ID = 100
_FOR_THE_USER = "is unspill's own: only the user may change its settings and answer its questions."


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
    name, tool = event.get("hook_event_name"), str(event.get("tool_name"))
    if name == _PROMPT:
        with open_sandbox() as sandbox:
            sandbox.add_prompt(str(event.get("prompt", "")))
        return True
    if tool not in _TOOLS:
        return False
    call = event.get("tool_use_id") or event.get("tool_input")
    with open_sandbox() as sandbox:
        if name == _BEFORE:
            sandbox.note_edit(repr(call), list(_paths(tool, event)))
        else:
            sandbox.record_edit(repr(call), asked_by=f"{agent}, {tool}")
    return True


def find_refusal(
    event: dict[str, Any], own: tuple[bytes, ...], environ: Mapping[bytes, bytes]
) -> tuple[str, str] | None:
    """Return the decision about an edit that must not happen unseen, `deny` or `ask`, and why; None if it may.

    Args:
        event: What the hook was told.
        own: Our own directories.
        environ: The agent's variables, which may say where its settings are.

    Raises:
        UsageError: the tool does not say which file it is about.
    """
    tool = str(event.get("tool_name"))
    if event.get("hook_event_name") != _BEFORE or tool not in _TOOLS:
        return None
    given = environ.get(b"CLAUDE_CONFIG_DIR")
    moved = os.path.realpath(given) if given else b""
    # Through links too
    for path in map(os.path.realpath, _paths(tool, event)):
        if any(contains(place, path) for place in own):
            return "deny", f"{show(path)} {_FOR_THE_USER}"
        usual = b"/.claude" + path[len(moved) :] if moved and contains(moved, path) else path
        if _DECIDING.search(usual):
            reason = f"{show(path)} decides whether commands are sealed: only the user may change it."
            return "ask" if event.get("permission_mode") in _ASKING else "deny", reason
    return None


def _paths(tool: str, event: dict[str, Any]) -> Iterator[bytes]:
    given = event.get("tool_input")
    name = given.get(_TOOLS[tool]) if isinstance(given, dict) else None
    if not isinstance(name, str) or "\0" in name:
        raise UsageError(f"{tool} does not say which file it is about")
    place = event.get("cwd")
    # A path that is none of the project's is passed over
    yield os.fsencode(os.path.join(place if isinstance(place, str) else os.getcwd(), name))
    # Claude Code takes this for the home directory
    if name.startswith("~"):
        yield os.fsencode(os.path.expanduser(name))
