# SPDX-License-Identifier: Apache-2.0
"""The coding agents that `unspill setup` knows: which settings of theirs make them run commands sealed.

Pure: `plan_edits` says which files get which settings, and changes nothing. A file is one `Edit`.
"""

from __future__ import annotations

import json
import os
import re
from shlex import quote

from unspill.errors import UsageError
from unspill.record import Record
from unspill.setup.edit import Setting, merge, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

# What YAML reads as it is written
_PLAIN_YAML = re.compile(r"[A-Za-z./][^#:'\"\\]*")
_DESCRIBED = (("description", "look around"),)


class Edit(Record):
    """Settings for one file. `form` is how it is written; it need not exist."""

    path: str
    form: str
    settings: tuple[Setting, ...]


class SetupMeans(Record):
    """What settings are made of: the hook and the server of this unspill, and where the person keeps settings.

    `hooks` are groups of hooks with their events; the first one seals commands. `also` are settings beside them.
    """

    home: str
    environ: Mapping[str, str]
    hooks: tuple[tuple[str, dict[str, Any]], ...]
    server: dict[str, Any]
    # The words that start this unspill, and what is in a file without our settings, None where there is none
    unspill: str
    read: Callable[[str], str | None]
    # What Codex records of a hook that the person trusts, if they say so here
    trust: Callable[[object, dict[str, Any], str], str] | None = None
    also: tuple[tuple[str, object], ...] = ()


class SetupAgent(Record):
    """One agent. `oldest` is the first version that does not fail open; `shells` are its own tools for commands, which
    take the command in each of `command_fields`.

    `modes` are the ways in which it can be sealed, the usual one first. `is_proven`: a canary can be run in it.
    """

    title: str
    program: str
    modes: tuple[str, ...]
    edits: Callable[[str, SetupMeans], tuple[Edit, ...]]
    oldest: tuple[int, ...] = ()
    newer: str = ""
    shells: tuple[str, ...] = ()
    command_fields: tuple[str, ...] = ("command",)
    other_fields: tuple[tuple[str, object], ...] = ()
    is_proven: bool = True


def plan_edits(name: str, mode: str, means: SetupMeans) -> tuple[Edit, ...]:
    """Return what has to be in which file for an agent to be sealed."""
    return AGENTS_TO_SET_UP[name].edits(mode, means)


def find_agent(name: str) -> SetupAgent:
    """Return one agent by its name.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in AGENTS_TO_SET_UP:
        problem = f"no such coding agent: {name!r}" if name else "no agent is named"
        raise UsageError(problem, remedy=f"There are {', '.join(AGENTS_TO_SET_UP)}.")
    return AGENTS_TO_SET_UP[name]


def name_of(word: str) -> str:
    """Return the name of the agent that a word means: its name, or its program."""
    return next((name for name, agent in AGENTS_TO_SET_UP.items() if agent.program == word), word)


def choose_mode(agent: SetupAgent, given: str | None) -> str:
    """Return the mode that was asked for, or the usual one.

    Raises:
        UsageError: the agent does not have it.
    """
    if given == "wrap":
        remedy = f"Start the whole agent in the sandbox: unspill agent {agent.program}"
        raise UsageError("for an agent that runs in the sandbox itself there is nothing to set up", remedy=remedy)
    if given is not None and given not in agent.modes:
        raise UsageError(f"{agent.title} can't be set up in mode {given!r}", remedy=f"Use {' or '.join(agent.modes)}.")
    return given or agent.modes[0]


def _hooks(means: SetupMeans) -> tuple[Setting, ...]:
    hooks = (Setting(path=("hooks", event), value=group, is_item=True) for event, group in means.hooks)
    return (*hooks, *(Setting(path=(key,), value=value) for key, value in means.also))


def _excluded(*names: str, path: tuple[str, ...]) -> tuple[Setting, ...]:
    return tuple(Setting(path=path, value=name, is_item=True) for name in names)


def _claude(mode: str, means: SetupMeans) -> tuple[Edit, ...]:
    given = means.environ.get("CLAUDE_CONFIG_DIR")
    settings = os.path.join(given or f"{means.home}/.claude", "settings.json")
    if mode == "hook":
        return (Edit(path=settings, form="json", settings=_hooks(means)),)
    server = {"type": "stdio", **means.server, "alwaysLoad": True}
    tools = ("Bash", "Monitor", "PowerShell", "Edit", "Write", "NotebookEdit")
    allowed = Setting(path=("permissions", "allow"), value="mcp__unspill", is_item=True)
    denied = _excluded(*tools, path=("permissions", "deny"))
    return (
        Edit(
            path=os.path.join(given or means.home, ".claude.json"),
            form="json",
            settings=(Setting(path=("mcpServers", "unspill"), value=server),),
        ),
        Edit(path=settings, form="json", settings=(allowed, *denied)),
    )


def codex_home(means: SetupMeans) -> str:
    """Return where Codex keeps its settings, written as Codex writes it."""
    given = means.environ.get("CODEX_HOME")
    return os.path.realpath(given) if given else os.path.normpath(f"{means.home}/.codex")


def _codex(mode: str, means: SetupMeans) -> tuple[Edit, ...]:
    place = codex_home(means)
    config = f"{place}/config.toml"
    if mode == "hook":
        # Its own sandbox goes only once ours is known to be there
        own = Setting(path=("sandbox_mode",), value="danger-full-access", needs_proof=True)
        hooks = Edit(path=f"{place}/hooks.json", form="json", settings=_hooks(means))
        return (hooks, Edit(path=config, form="toml", settings=(*_codex_trust(hooks, means), own)))
    server = {**means.server, "default_tools_approval_mode": "approve"}
    shell = Setting(path=("features", "shell_tool"), value=False)
    return (Edit(path=config, form="toml", settings=(Setting(path=("mcp_servers", "unspill"), value=server), shell)),)


def _codex_trust(hooks: Edit, means: SetupMeans) -> tuple[Setting, ...]:
    """Return what Codex writes down when a person trusts our hooks, by their places in the file."""
    if means.trust is None:
        return ()
    whole = parse("json", merge("json", means.read(hooks.path) or "", hooks.settings))["hooks"]
    found = []
    for setting in hooks.settings:
        event = re.sub(r"(?<!^)(?=[A-Z])", "_", setting.path[-1]).lower()
        group = whole[setting.path[-1]].index(setting.value)
        digest = means.trust(setting.value.get("matcher"), setting.value["hooks"][0], event)
        key = f"{hooks.path}:{event}:{group}:0"
        found.append(Setting(path=("hooks", "state", key), value={"trusted_hash": digest}))
    return tuple(found)


def _gemini(mode: str, means: SetupMeans) -> tuple[Edit, ...]:
    return _gemini_kin(mode, means, ".gemini", ("run_shell_command", "write_file", "replace"))


def _qwen(mode: str, means: SetupMeans) -> tuple[Edit, ...]:
    return _gemini_kin(mode, means, ".qwen", ("run_shell_command", "write_file", "edit"))


def _gemini_kin(mode: str, means: SetupMeans, place: str, tools: tuple[str, ...]) -> tuple[Edit, ...]:
    path = f"{means.home}/{place}/settings.json"
    if mode == "hook":
        return (Edit(path=path, form="json", settings=_hooks(means)),)
    server = Setting(path=("mcpServers", "unspill"), value={**means.server, "trust": True})
    return (Edit(path=path, form="json", settings=(server, *_excluded(*tools, path=("tools", "exclude")))),)


def _opencode(_mode: str, means: SetupMeans) -> tuple[Edit, ...]:
    place = os.path.join(means.environ.get("XDG_CONFIG_HOME") or f"{means.home}/.config", "opencode")
    with_comments = f"{place}/opencode.jsonc"
    path = with_comments if means.read(with_comments) is not None else f"{place}/opencode.json"
    command = [means.server["command"], *means.server["args"]]
    server = {"type": "local", "command": command, "enabled": True}
    denied = tuple(Setting(path=("permission", name), value="deny") for name in ("bash", "edit"))
    return (Edit(path=path, form="json", settings=(Setting(path=("mcp", "unspill"), value=server), *denied)),)


def _cursor(_mode: str, means: SetupMeans) -> tuple[Edit, ...]:
    server = Setting(path=("mcpServers", "unspill"), value=means.server)
    return (Edit(path=f"{means.home}/.cursor/mcp.json", form="json", settings=(server,)),)


def _aider(_mode: str, means: SetupMeans) -> tuple[Edit, ...]:
    """Return what keeps aider from running what a model suggests, and seals the commands that the person gave it."""
    path = f"{means.home}/.aider.conf.yml"
    settings = [Setting(path=("suggest-shell-commands",), value="false")]
    for key, command in parse("yaml", means.read(path) or "").items():
        if key in ("test-cmd", "lint-cmd") and command:
            if not _PLAIN_YAML.fullmatch(command):
                raise UsageError(f"`{key}` in {path} is not a plain text", remedy="Write `unspill run --` into it.")
            sealed = f"{means.unspill} run --quiet -- bash -c {quote(command)}"
            settings.append(Setting(path=(key,), value=json.dumps(sealed)))
    return (Edit(path=path, form="yaml", settings=tuple(settings)),)


AGENTS_TO_SET_UP = {
    "claude-code": SetupAgent(
        title="Claude Code",
        program="claude",
        modes=("hook", "mcp"),
        edits=_claude,
        oldest=(2, 1, 295),
        newer="npm install -g @anthropic-ai/claude-code",
        shells=("Bash",),
        other_fields=_DESCRIBED,
    ),
    "codex": SetupAgent(
        title="Codex",
        program="codex",
        modes=("hook", "mcp"),
        edits=_codex,
        oldest=(0, 166),
        newer="npm install -g @openai/codex",
        shells=("shell_command", "exec_command", "shell"),
        command_fields=("command", "cmd"),
    ),
    "gemini-cli": SetupAgent(
        title="Gemini CLI",
        program="gemini",
        modes=("hook", "mcp"),
        edits=_gemini,
        oldest=(0, 61),
        newer="npm install -g @google/gemini-cli",
        shells=("run_shell_command",),
        other_fields=(*_DESCRIBED, ("is_background", False)),
    ),
    "opencode": SetupAgent(
        title="opencode", program="opencode", modes=("mcp",), edits=_opencode, shells=("bash",), other_fields=_DESCRIBED
    ),
    "qwen-code": SetupAgent(
        title="Qwen Code",
        program="qwen",
        modes=("mcp",),
        edits=_qwen,
        shells=("run_shell_command",),
        other_fields=(*_DESCRIBED, ("is_background", False)),
    ),
    "aider": SetupAgent(title="aider", program="aider", modes=("hook",), edits=_aider, is_proven=False),
    "cursor": SetupAgent(title="Cursor", program="cursor", modes=("mcp",), edits=_cursor, is_proven=False),
}
