# SPDX-License-Identifier: Apache-2.0
"""The coding agents whose hooks are understood: what each one sends, and what it takes for an answer.

Only what its documentation or its source says is in here. What all of them share: the hook reads one JSON object,
exit status 2 stops the command and gives the agent what is on stderr, any other failure lets the command through.
"""

from __future__ import annotations

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class CodingAgent(Record):
    """One agent. `fields` are those that its tool has besides the command.

    `background` is the field that asks for a command nobody waits for, `unsealed` the one that asks to leave the
    agent's own sandbox. `asks`: a hook can make it ask the person. `returned` is the field of an answer that has the
    new arguments. `decides`: the answer also says whether the command is allowed. `warning` is what to know before its
    settings are used.
    """

    event: str
    tool: str
    fields: frozenset[str]
    matcher: str
    settings: str
    timeout: int
    background: str = ""
    unsealed: str = ""
    asks: bool = False
    returned: str = "updatedInput"
    decides: bool = True
    warning: str = ""
    extra: tuple[tuple[str, str], ...] = ()


AGENTS = {
    "claude-code": CodingAgent(
        event="PreToolUse",
        tool="Bash",
        fields=frozenset(("description", "timeout", "run_in_background", "dangerouslyDisableSandbox")),
        # The others run commands too: they are stopped, and the agent is told which one to use
        matcher="Bash|Monitor|PowerShell",
        settings="~/.claude/settings.json",
        timeout=30,
        background="run_in_background",
        unsealed="dangerouslyDisableSandbox",
        asks=True,
        # Without it, a hook that can't be started lets the command through
        extra=(("onFailure", "block"),),
    ),
    "codex": CodingAgent(
        event="PreToolUse",
        tool="Bash",
        fields=frozenset(),
        matcher="^Bash$",
        settings="~/.codex/hooks.json",
        timeout=30,
        warning=(
            "Codex skips a hook that you have not trusted, without a word, and runs commands unsealed.\n"
            "  Trust this one in Codex (type /hooks), then check that it is called: unspill hook codex --check"
        ),
    ),
    "gemini-cli": CodingAgent(
        event="BeforeTool",
        tool="run_shell_command",
        # `delay_ms` is only looked at together with `is_background`
        fields=frozenset(("description", "dir_path", "directory", "is_background", "delay_ms")),
        matcher="^run_shell_command$",
        settings="~/.gemini/settings.json",
        timeout=30_000,
        background="is_background",
        returned="tool_input",
        decides=False,
        warning=(
            "Gemini CLI skips every hook, without a word, in a folder that it does not trust.\n"
            "  Trust the folder before you let it run commands there."
        ),
    ),
}


def answer_form(agent: CodingAgent, given: dict[str, Any], command: str, *, reason: str, ask: bool) -> dict[str, Any]:
    """Return the answer that has an agent run `command` in place of its own.

    All arguments are in it: some versions replace theirs with what they get, others lay it over them.
    """
    said: dict[str, Any] = {"hookEventName": agent.event}
    if agent.decides:
        said |= {"permissionDecision": "ask" if ask else "allow", "permissionDecisionReason": reason}
    return {"hookSpecificOutput": {**said, agent.returned: {**given, "command": command}}}


def settings_form(agent: CodingAgent, command: str) -> dict[str, Any]:
    """Return the part of an agent's settings that makes it call a hook before it runs a command."""
    hook = {"type": "command", "command": command, "timeout": agent.timeout, **dict(agent.extra)}
    return {"hooks": {agent.event: [{"matcher": agent.matcher, "hooks": [hook]}]}}
