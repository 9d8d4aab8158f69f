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
from pathlib import Path
from typing import Any, Final

from tests.agents.real.scripted_model import Body, Call, ScriptedModel, Turn
from unspill.cli.hook import trust_hash

INSTALLED: Final = Path(os.environ.get("UNSPILL_CI_AGENTS", "/opt/unspill-ci/agents"))
VERSIONS: Final[dict[str, dict[str, Any]]] = json.loads(Path(__file__).with_name("agents.json").read_text())
UNSPILL: Final = Path(sys.executable).with_name("unspill")
KEY: Final = "-----BEGIN FAKE KEY----- canary-of-the-key"
LOOKS: Final = "cat notes.md; ls"
FAILS: Final = "echo on-out; echo on-err >&2; exit 3"
LIMIT_S: Final = 100


@dataclass(frozen=True)
class Begun:
    """How an agent is started: its words, and variables besides the usual ones."""

    words: list[str]
    variables: dict[str, str]


@dataclass(frozen=True)
class Agent:
    """`begin` sets it up in a trial; `shell` is a call of its own tool for commands."""

    name: str
    begin: Callable[[Trial, str], Begun]
    shell: Callable[[str], Call]
    # What a wrapped one needs of its settings: a copy, since it writes into them
    settings: tuple[str, ...]
    modes: tuple[str, ...] = ("hook", "mcp", "wrap")

    @property
    def program(self) -> Path:
        return INSTALLED / self.name / "node_modules/.bin" / str(VERSIONS[self.name]["program"])


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

    def script(self, mode: str) -> tuple[Turn, ...]:
        """Return what the model does: commands that write, look at the key and try the network, and see their ends."""
        reaches = f"curl -sS -m 3 {self.canary.url}/canary >/dev/null 2>&1 && echo NET-OPEN || echo NET-CLOSED"
        first = (
            f"echo made > made.txt; echo delta >> notes.md; rm doomed.txt; {reaches}; cat ~/.ssh/id_rsa || echo HIDDEN"
        )
        shell = _tool("run", "command") if mode == "mcp" else self.agent.shell
        return (*(Turn(calls=(shell(text),)) for text in (first, LOOKS, FAILS)), Turn(text="All done."))

    def play(self, mode: str) -> subprocess.CompletedProcess[str]:
        """Have the agent do what the model says, until it ends."""
        return self.play_script(mode, self.script(mode))

    def play_script(self, mode: str, script: tuple[Turn, ...]) -> subprocess.CompletedProcess[str]:
        """Have the agent do what a script says, until it ends."""
        self.model.script = script
        begun = self.agent.begin(self, mode)
        words = begun.words
        if mode == "wrap":
            words = self._wrapped(begun)
        return subprocess.run(
            words,
            env={**self.environ(), **begun.variables},
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def _wrapped(self, begun: Begun) -> list[str]:
        copies = self.home / "copies"
        copies.mkdir()
        for name in self.agent.settings:
            subprocess.run(["cp", "-r", str(self.home / name), str(copies)], check=True)
        variables = [word for pair in begun.variables.items() for word in ("--env", "=".join(pair))]
        settings = self.home / ".config/unspill/config.toml"
        settings.parent.mkdir(parents=True)
        settings.write_text(f"readable = {json.dumps([str(INSTALLED), str(copies)])}\n")
        inner = f'cp -r {shlex.quote(str(copies))}/. ~/; exec "$@"'
        expose = ["--expose", str(self.model.port)]
        return [str(UNSPILL), "run", *expose, *variables, "--", "sh", "-c", inner, "sh", *begun.words]

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
        'sandbox_mode = "danger-full-access"',
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
        lines += [f"args = {json.dumps(server['args'])}"]
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
    config = trial.home / "config.yaml"
    config.write_text("\n".join(lines) + "\n")
    words = [str(trial.agent.program), "-p", "--config", str(config), "--auto"]
    if mode == "mcp":
        words += ["--exclude", "Bash", "--exclude", "Write", "--exclude", "Edit"]
    return Begun([*words, "do it"], {"CONTINUE_TELEMETRY_ENABLED": "0"})


def begin_pi(trial: Trial, _mode: str) -> Begun:
    place = trial.home / ".pi/agent"
    place.mkdir(parents=True)
    provider = {"baseUrl": f"{trial.model.url}/v1", "api": "openai-completions", "apiKey": "fake"}
    models = {"providers": {"mock": {**provider, "models": [{"id": "mock-model"}]}}}
    (place / "models.json").write_text(json.dumps(models))
    words = [str(trial.agent.program), "-p", "--provider", "mock", "--model", "mock-model", "do it"]
    return Begun(words, {"PI_OFFLINE": "1"})


def _shell(*names: str, **more: Any) -> Callable[[str], Call]:
    """Return how a command is given to an agent's own tool."""
    return lambda text: Call(names, {"command": text, **more})


def _codex_shell(text: str) -> Call:
    return Call(("shell_command", "exec_command", "shell"), {"command": text, "cmd": text})


AGENTS: Final[dict[str, Agent]] = {
    one.name: one
    for one in (
        Agent("claude-code", begin_claude, _shell("Bash", description="a command"), (".claude",)),
        Agent("codex", begin_codex, _codex_shell, (".codex",)),
        Agent(
            "gemini-cli",
            begin_gemini,
            _shell("run_shell_command", description="a command", is_background=False),
            (".gemini",),
        ),
        Agent("opencode", begin_opencode, _shell("bash", description="a command"), (".config",), modes=("mcp", "wrap")),
        Agent(
            "qwen-code",
            begin_qwen,
            _shell("run_shell_command", description="a command", is_background=False),
            (".qwen",),
            modes=("mcp", "wrap"),
        ),
        Agent("continue", begin_continue, _shell("Bash"), ("config.yaml",), modes=("mcp", "wrap")),
        Agent("pi", begin_pi, _shell("bash"), (".pi",), modes=("wrap",)),
    )
}


def facts_of(trial: Trial) -> dict[str, Any]:
    """Return what became of a trial."""
    return {
        "key seen": KEY in "".join(trial.model.requests),
        "network reached": "/canary" in trial.canary.paths,
        "files": sorted(trial.tree()),
        "steps": len([text for text in trial.model.results if "on-err" in text or "on-out" in text]) > 0,
    }
