# SPDX-License-Identifier: Apache-2.0
"""Real coding agents, each set up as our documents say, with a home directory and a project of their own.

The programs and their versions are in agents.json; `.ci/setup` installs them. Nothing leaves the machine: the model is
on loopback, and the key is a fake.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

import unspill
from tests.panes import typed
from unspill.cli.hook import trust_hash
from unspill.plan.view import LASTING_HOME
from unspill.setup.homes import find_whole_agent
from unspill.setup.scripted_model import Body, ScriptedModel, Turn
from unspill.setup.scripted_model import ToolCall as Call

INSTALLED: Final = Path(os.environ.get("UNSPILL_CI_AGENTS", "/opt/unspill-ci/agents"))
VERSIONS: Final[dict[str, dict[str, Any]]] = json.loads(Path(__file__).with_name("agents.json").read_text())
UNSPILL: Final = Path(sys.executable).with_name("unspill")
KEY: Final = "-----BEGIN FAKE KEY----- canary-of-the-key"
LOOKS: Final = "cat notes.md; ls"
# A word that only the output has, not the command; some agents refuse substitutions
FAILS: Final = "printf 'the-end-%s\\n' 42 >&2; exit 3"
ENDS: Final = "the-end-42"
# What an agent without tools does itself, in its own words
OWN_EDIT: Final = "own.txt\n```\nmade by the agent itself\n```\n"
LIMIT_S: Final = 100


@dataclass(frozen=True)
class Begun:
    """How an agent is started: its words for one task, and variables besides the usual ones."""

    words: list[str]
    variables: dict[str, str]


@dataclass(frozen=True)
class Typing:
    """How somebody works with an agent at a terminal: its words, what it shows when it is ready, how to leave it."""

    words: tuple[str, ...]
    ready: str
    leave: str


@dataclass(frozen=True)
class Agent:
    """`begin` sets it up in a trial; `shell` is a call of its own tool for commands."""

    name: str
    begin: Callable[[Trial, str], Begun]
    shell: Callable[[str], Call]
    modes: tuple[str, ...] = ("hook", "mcp", "wrap")
    # It has no tools: it edits files itself, and runs one command after that
    is_editor: bool = False
    typing: Typing | None = None

    @property
    def place(self) -> Path:
        return INSTALLED / self.name

    @property
    def is_python(self) -> bool:
        return VERSIONS[self.name].get("from") == "pypi"

    @property
    def program(self) -> Path:
        return self.place / ("bin" if self.is_python else "node_modules/.bin") / str(VERSIONS[self.name]["program"])

    def installed_version(self) -> str | None:
        """Return the version that is installed, or None where `.ci/setup` tried in vain."""
        if (self.place / "not-installed").exists():
            return None
        package = str(VERSIONS[self.name]["package"])
        if self.is_python:
            return next(iter(distributions(name=package, path=[str(self._packages)]))).version
        described = json.loads((self.place / "node_modules" / package / "package.json").read_text())
        return str(described["version"])

    @property
    def _packages(self) -> Path:
        return next(self.place.glob("lib/python3.*/site-packages"))

    def beside_unspill(self, top: Path) -> Path:
        """Return the program in an environment that has unspill too, as if that were installed beside it."""
        ours = top / "ours"
        ours.mkdir()
        (ours / "unspill").symlink_to(Path(unspill.__file__).parent)
        [metadata] = {Path(str(one.locate_file(""))) for one in distributions(name="unspill")}
        [described] = metadata.glob("unspill-*.dist-info")
        (ours / described.name).symlink_to(described)
        subprocess.run([self.place / "bin/python", "-m", "venv", "--without-pip", top / "venv"], check=True)
        [packages] = (top / "venv").glob("lib/python3.*/site-packages")
        (packages / "both.pth").write_text(f"{self._packages}\n{ours}\n")
        return top / "venv/bin/python"


class Trial:
    """One agent, with the model that it asks and a server that it must not reach."""

    def __init__(self, top: Path, agent: Agent, model: ScriptedModel, canary: ScriptedModel) -> None:
        self.agent = agent
        self.model = model
        self.canary = canary
        self.home = top / "home"
        self.project = self.home / "project"
        self.project.mkdir(parents=True)
        (self.home / ".ssh").mkdir(mode=0o700)
        (self.home / ".ssh/id_rsa").write_text(f"{KEY}\n")
        (self.home / ".gitconfig").write_text("[user]\n\tname = Ann\n\temail = ann@example.org\n")
        (self.project / "notes.md").write_text("# Notes\n\nalpha\nbeta\n")
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
            subprocess.run(["git", *words], cwd=self.project, env=self.environ(), check=True)
        (self.project / "doomed.txt").write_text("untracked and precious\n")

    def environ(self) -> dict[str, str]:
        path = f"{UNSPILL.parent}:/usr/local/bin:/usr/bin:/bin"
        return {"HOME": str(self.home), "PATH": path, "TERM": "dumb", "LANG": "C.UTF-8", "SHELL": "/bin/bash"}

    def unspill(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run unspill as the person would."""
        command = [str(UNSPILL), *words]
        environ, no_input = self.environ(), subprocess.DEVNULL
        return subprocess.run(
            command, cwd=self.project, env=environ, stdin=no_input, capture_output=True, text=True, check=False
        )

    def settings(self, *words: str) -> Body:
        return json.loads(self.unspill(*words, "--settings").stdout)  # type: ignore[no-any-return]

    @property
    def first(self) -> str:
        """A command that writes, tries the network and looks at the key."""
        reaches = f"curl -sS -m 3 {self.canary.url}/canary >/dev/null 2>&1 && echo NET-OPEN || echo NET-CLOSED"
        writes = "echo made > made.txt; echo delta >> notes.md; rm doomed.txt"
        return f"{writes}; {reaches}; cat ~/.ssh/id_rsa || echo HIDDEN"

    def script(self, mode: str) -> tuple[Turn, ...]:
        """Return what the model does: commands of which it sees what they print and how they end, or one edit."""
        if self.agent.is_editor:
            return (Turn(text=OWN_EDIT), Turn(text="All done."))
        shell = self.shell(mode)
        return (*(Turn(calls=(shell(text),)) for text in (self.first, LOOKS, FAILS)), Turn(text="All done."))

    def shell(self, mode: str) -> Callable[[str], Call]:
        """Return how the model has a command run."""
        return _tool("run", "command") if mode == "mcp" else self.agent.shell

    def play(self, mode: str) -> subprocess.CompletedProcess[str]:
        """Have the agent do what the model says, until it ends."""
        return self.play_script(mode, self.script(mode))

    def play_script(
        self, mode: str, script: tuple[Turn, ...], limit_s: float = LIMIT_S
    ) -> subprocess.CompletedProcess[str]:
        """Have the agent do what a script says, until it ends."""
        self.model.script = script
        begun = self.agent.begin(self, mode)
        words = begun.words
        if mode == "wrap":
            words = self._inside(begun)
        return subprocess.run(
            words,
            env={**self.environ(), **begun.variables},
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def play_at_terminal(self, begun: Begun) -> str:
        """Have somebody start the whole agent in a terminal, type the task and leave; return the screen."""
        typing = self.agent.typing
        assert typing is not None
        self.model.script = self.script("wrap")
        words = self._inside(Begun([str(self.agent.program), *typing.words], begun.variables))
        variables = {**self.environ(), **begun.variables, "TERM": "screen-256color"}
        start = self.home.parent / "start"
        start.write_text(shlex.join(["env", "-i", *("=".join(pair) for pair in variables.items()), *words]) + "\n")
        with typed(self.project, self.home.parent, rows=40, columns=110) as pane:
            pane.type("-l", "clear; sh ../../start")
            pane.type("Enter")
            pane.see(typing.ready, LIMIT_S)
            pane.type("-l", "do it")
            pane.see("do it$|do it ")
            pane.type("Enter")
            pane.see("All done", LIMIT_S)
            pane.type("-l", typing.leave)
            # In its list of commands, a moment later: until then, Enter may mean something else
            pane.see("(?i)(exit|quit) (the|codex|pi)")
            pane.type("Enter")
            pane.see("^out>$", LIMIT_S)
            return "\n".join(pane.lines())

    def _inside(self, begun: Begun) -> list[str]:
        """Return what starts the whole agent in a sandbox. Its own variables it gets by itself."""
        agent = find_whole_agent(begun.words[0])
        others = {name: value for name, value in begun.variables.items() if not name.startswith(agent.variables)}
        variables = [word for pair in others.items() for word in ("--env", "=".join(pair))]
        return [str(UNSPILL), "agent", "--expose", str(self.model.port), *variables, "--", *begun.words]

    def forget_settings(self) -> None:
        """Remove all that the person has but the project, the key and what unspill keeps."""
        for path in self.home.iterdir():
            if path.name not in ("project", ".ssh", ".local"):
                subprocess.run(["rm", "-r", str(path)], check=True)

    def tree(self) -> dict[str, tuple[int, bytes]]:
        """Return what the project has, but for git's own files."""
        paths = [path for path in self.project.rglob("*") if ".git" not in path.parts and path.is_file()]
        return {str(path.relative_to(self.project)): (path.stat().st_mode, path.read_bytes()) for path in paths}

    def undo_everything(self) -> None:
        for _ in range(10):
            if self.unspill("undo").returncode != 0:
                return
        raise AssertionError("there is always something to undo")


def _tool(name: str, argument: str) -> Callable[[str], Call]:
    """Return a call of a tool of unspill's server, by the names that clients give it."""
    names = tuple(before + name for before in ("mcp__unspill__", "mcp_unspill_", "unspill_", "unspill__", ""))
    return lambda text: Call(names, {argument: text})


def begin_claude(trial: Trial, mode: str) -> Begun:
    words = [str(trial.agent.program), "-p", "do it", "--output-format", "json"]
    settings: Body = {}
    match mode:
        case "hook":
            settings = trial.settings("hook", "claude-code")
            words += ["--permission-mode", "acceptEdits"]
        case "mcp":
            config = trial.home / "mcp.json"
            config.write_text(json.dumps(trial.settings("mcp")))
            words += [
                "--mcp-config",
                str(config),
                "--allowedTools",
                "mcp__unspill",
                "--disallowedTools",
                "Bash,Edit,Write",
            ]
        case _:
            words += ["--dangerously-skip-permissions"]
    # What it asks a person at its first start
    known = {"hasCompletedOnboarding": True, "theme": "dark", "bypassPermissionsModeAccepted": True}
    answers = {"customApiKeyResponses": {"approved": ["sk-ant-fake"], "rejected": []}}
    trusted = {"projects": {str(trial.project): {"hasTrustDialogAccepted": True}}}
    (trial.home / ".claude.json").write_text(json.dumps({**known, **answers, **trusted}))
    (trial.home / ".claude").mkdir()
    (trial.home / ".claude/settings.json").write_text(json.dumps(settings))
    variables = {"ANTHROPIC_BASE_URL": trial.model.url, "ANTHROPIC_API_KEY": "sk-ant-fake"}
    return Begun(words, {**variables, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"})


def begin_codex(trial: Trial, mode: str) -> Begun:
    place = trial.home / ".codex"
    place.mkdir()
    lines = [
        'model = "gpt-5.5"',
        'model_provider = "scripted"',
        f'sandbox_mode = "{"read-only" if mode == "mcp" else "danger-full-access"}"',
        'approval_policy = "never"',
        "[model_providers.scripted]",
        'name = "scripted"',
        f'base_url = "{trial.model.url}/v1"',
        'wire_api = "responses"',
        'env_key = "SCRIPTED_KEY"',
        "request_max_retries = 1",
        "stream_max_retries = 1",
        f'[projects."{trial.project}"]',
        'trust_level = "trusted"',
    ]
    if mode == "mcp":
        server = trial.settings("mcp")["mcpServers"]["unspill"]
        lines += ["[mcp_servers.unspill]", f"command = {json.dumps(server['command'])}"]
        lines += [f"args = {json.dumps(server['args'])}", "supports_parallel_tool_calls = true"]
        lines += ['default_tools_approval_mode = "approve"']
        lines += ["[features]", "shell_tool = false"]
    if mode == "hook":
        hooks = trial.settings("hook", "codex")
        (place / "hooks.json").write_text(json.dumps(hooks))
        # What Codex writes down when a person trusts them: another digest, and it would skip a hook
        for event, groups in hooks["hooks"].items():
            name = re.sub(r"(?<!^)(?=[A-Z])", "_", event).lower()
            for number, group in enumerate(groups):
                lines += [f'[hooks.state."{place}/hooks.json:{name}:{number}:0"]']
                lines += [f'trusted_hash = "{trust_hash(group.get("matcher"), group["hooks"][0], name)}"']
    (place / "config.toml").write_text("\n".join(lines) + "\n")
    words = [str(trial.agent.program), "exec", "--json", "--skip-git-repo-check", "do it"]
    return Begun(words, {"SCRIPTED_KEY": "sk-fake"})


def begin_gemini(trial: Trial, mode: str) -> Begun:
    place = trial.home / ".gemini"
    place.mkdir()
    settings: Body = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"disableAutoUpdate": True},
        "telemetry": {"enabled": False},
        "privacy": {"usageStatisticsEnabled": False},
    }
    if mode == "hook":
        settings |= trial.settings("hook", "gemini-cli")
    if mode == "mcp":
        settings |= trial.settings("mcp") | {"tools": {"exclude": ["run_shell_command", "write_file", "replace"]}}
        settings["mcpServers"]["unspill"]["trust"] = True
    (place / "settings.json").write_text(json.dumps(settings))
    (place / "trustedFolders.json").write_text(json.dumps({str(trial.project): "TRUST_FOLDER"}))
    words = [str(trial.agent.program), "-p", "do it", "--yolo", "--output-format", "json", "-m", "gemini-2.5-pro"]
    variables = {"GEMINI_API_KEY": "fake", "GOOGLE_GEMINI_BASE_URL": trial.model.url}
    return Begun(words, {**variables, "GEMINI_CLI_TRUST_WORKSPACE": "true"})


def begin_qwen(trial: Trial, mode: str) -> Begun:
    place = trial.home / ".qwen"
    place.mkdir()
    settings: Body = {"security": {"auth": {"selectedType": "openai"}}, "general": {"disableAutoUpdate": True}}
    settings |= {"telemetry": {"enabled": False}, "privacy": {"usageStatisticsEnabled": False}}
    if mode == "mcp":
        settings |= trial.settings("mcp") | {"tools": {"exclude": ["run_shell_command", "write_file", "edit"]}}
        settings["mcpServers"]["unspill"]["trust"] = True
    (place / "settings.json").write_text(json.dumps(settings))
    words = [str(trial.agent.program), "-p", "do it", "--yolo", "--output-format", "json"]
    url = f"{trial.model.url}/v1"
    return Begun(words, {"OPENAI_API_KEY": "fake", "OPENAI_BASE_URL": url, "OPENAI_MODEL": "mock-model"})


def begin_opencode(trial: Trial, mode: str) -> Begun:
    model = {"name": "mock", "limit": {"context": 100_000, "output": 8_000}}
    options = {"baseURL": f"{trial.model.url}/v1", "apiKey": "fake"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"mock-model": model}}
    settings: Body = {"autoupdate": False, "share": "disabled", "permission": {"*": "allow"}}
    settings |= {"model": "mock/mock-model", "small_model": "mock/mock-model", "provider": {"mock": provider}}
    if mode == "mcp":
        server = trial.settings("mcp")["mcpServers"]["unspill"]
        command = [server["command"], *server["args"]]
        settings["mcp"] = {"unspill": {"type": "local", "command": command, "enabled": True}}
        settings["permission"] = {"bash": "deny", "edit": "deny"}
    place = trial.home / ".config/opencode"
    place.mkdir(parents=True)
    (place / "opencode.json").write_text(json.dumps(settings))
    words = [str(trial.agent.program), "run", "--format", "json", "do it"]
    return Begun(words, {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"})


def begin_continue(trial: Trial, mode: str) -> Begun:
    lines = [
        "name: mock",
        "version: 1.0.0",
        "schema: v1",
        "models:",
        "  - name: mock",
        "    provider: openai",
        "    model: mock-model",
        f"    apiBase: {trial.model.url}/v1",
        "    apiKey: fake",
        "    roles: [chat]",
        "    capabilities: [tool_use]",
    ]
    if mode == "mcp":
        server = trial.settings("mcp")["mcpServers"]["unspill"]
        lines += ["mcpServers:", "  - name: unspill", f"    command: {json.dumps(server['command'])}"]
        lines += [f"    args: {json.dumps(server['args'])}"]
    config = trial.home / ".continue/config.yaml"
    config.parent.mkdir()
    config.write_text("\n".join(lines) + "\n")
    if mode == "wrap":
        config = Path(os.fsdecode(LASTING_HOME), ".continue/config.yaml")
    words = [str(trial.agent.program), "-p", "--config", str(config)]
    if mode == "mcp":
        # With `--auto` it has all tools, whatever is excluded
        own = ("Bash", "Write", "Edit", "MultiEdit")
        words += [word for tool in own for word in ("--exclude", tool)] + ["--allow", "*"]
    else:
        words += ["--auto"]
    return Begun([*words, "do it"], {"CONTINUE_TELEMETRY_ENABLED": "0"})


def begin_pi(trial: Trial, _mode: str) -> Begun:
    place = trial.home / ".pi/agent"
    place.mkdir(parents=True)
    provider = {"baseUrl": f"{trial.model.url}/v1", "api": "openai-completions", "apiKey": "fake"}
    models = {"providers": {"mock": {**provider, "models": [{"id": "mock-model"}]}}}
    (place / "models.json").write_text(json.dumps(models))
    words = [str(trial.agent.program), "-p", "--provider", "mock", "--model", "mock-model", "do it"]
    return Begun(words, {"PI_OFFLINE": "1"})


def begin_aider(trial: Trial, mode: str) -> Begun:
    test = f"{trial.first}; {FAILS}"
    if mode == "test command":
        test = f"unspill run --quiet -- sh -c {shlex.quote(test)}"
    words = [str(trial.agent.program), "--model", "openai/mock-model", "--edit-format", "whole", "--message", "do it"]
    words += ["--auto-test", "--test-cmd", test, "--no-suggest-shell-commands", "--yes-always", "--no-auto-commits"]
    words += [
        "--no-check-update",
        "--map-tokens",
        "0",
        "--no-show-release-notes",
        "--analytics-disable",
        "--no-show-model-warnings",
    ]
    # Its own notes are no part of the project
    kept = [f"--{name}-history-file=/dev/null" for name in ("input", "chat")]
    url = f"{trial.model.url}/v1"
    variables = {"OPENAI_API_KEY": "fake", "OPENAI_API_BASE": url, "AIDER_GITIGNORE": "false"}
    return Begun([*words, *kept], {**variables, "LITELLM_LOCAL_MODEL_COST_MAP": "True"})


def begin_dcode(trial: Trial, mode: str) -> Begun:
    program = [str(trial.agent.program)]
    if mode == "sandbox":
        program = [str(trial.agent.beside_unspill(trial.home.parent)), *program]
    words = [*program, "-n", "do it", "-M", "anthropic:claude-sonnet-4-6", "-S", "all"]
    words += ["--sandbox", "unspill"] if mode == "sandbox" else []
    variables = {"ANTHROPIC_BASE_URL": trial.model.url, "ANTHROPIC_API_URL": trial.model.url}
    return Begun(words, {**variables, "ANTHROPIC_API_KEY": "fake", "DEEPAGENTS_CODE_NO_UPDATE_CHECK": "1"})


def _shell(*names: str, **more: Any) -> Callable[[str], Call]:
    """Return how a command is given to an agent's own tool."""
    return lambda text: Call(names, {"command": text, **more})


def _codex_shell(text: str) -> Call:
    return Call(("shell_command", "exec_command", "shell"), {"command": text, "cmd": text})


AGENTS: Final[dict[str, Agent]] = {
    one.name: one
    for one in (
        Agent(
            "claude-code",
            begin_claude,
            _shell("Bash", description="a command"),
            typing=Typing(("--dangerously-skip-permissions",), "bypass permissions on", "/exit"),
        ),
        Agent(
            "codex",
            begin_codex,
            _codex_shell,
            # With a model that it does not know it advertises none
            typing=Typing(("--model", "mock-model"), "Ask Codex to do anything", "/quit"),
        ),
        Agent(
            "gemini-cli",
            begin_gemini,
            _shell("run_shell_command", description="a command", is_background=False),
            typing=Typing(("--yolo", "-m", "gemini-2.5-pro"), "Type your message", "/quit"),
        ),
        Agent(
            "opencode",
            begin_opencode,
            _shell("bash", description="a command"),
            modes=("mcp", "wrap"),
            typing=Typing((), "Ask anything", "/exit"),
        ),
        Agent(
            "qwen-code",
            begin_qwen,
            _shell("run_shell_command", description="a command", is_background=False),
            modes=("mcp", "wrap"),
            typing=Typing(("--yolo",), "Type your message", "/quit"),
        ),
        Agent("continue", begin_continue, _shell("Bash"), modes=("mcp", "wrap")),
        Agent(
            "pi",
            begin_pi,
            _shell("bash"),
            modes=("wrap",),
            typing=Typing(("--provider", "mock", "--model", "mock-model"), "Ask it how to use", "/quit"),
        ),
        Agent("aider", begin_aider, _shell(), modes=("test command", "wrap"), is_editor=True),
        Agent("dcode", begin_dcode, _shell("execute"), modes=("sandbox", "wrap")),
    )
}


def facts_of(trial: Trial) -> dict[str, Any]:
    """Return what became of a trial."""
    sent = "".join(trial.model.requests)
    return {
        "key seen": KEY in sent,
        "network reached": "/canary" in trial.canary.paths,
        "files": sorted(trial.tree()),
        "end seen": ENDS in sent,
    }
