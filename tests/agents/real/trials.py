# SPDX-License-Identifier: Apache-2.0
"""Real coding agents, each started by a line of our documents, with a home directory and a project of their own.

The programs and their versions are in agents.json; `.ci/setup` installs them. Nothing leaves the machine: the model is
on loopback, and the key is a fake. What a line gets besides are the task, and the way to that model.
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
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

import unspill
from tests.architecture.sources import ROOT
from tests.docs.blocks import find_blocks
from tests.panes import typed
from tests.scripted_model import Body, ScriptedModel, Turn
from tests.scripted_model import ToolCall as Call
from unspill.agents.homes import find_whole_agent
from unspill.plan.view import LASTING_HOME

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
# Which page has the line that starts an agent, and what that line begins with behind its variables
PAGES: Final = {
    "wrap": ("docs/coding-agents.md", "unspill agent {}"),
    "hook": ("docs/coding-agents.md", "{} --plugin-dir"),
    "mcp": ("docs/mcp.md", "{}"),
}
_VARIABLE: Final = re.compile(r"^[A-Z_]+='[^']*' ")


@cache
def documented(mode: str, program: str) -> str:
    """Return the line of the documents that starts an agent in a mode."""
    page, beginning = PAGES[mode]
    lines = [
        line for one in find_blocks((ROOT / page).read_text("utf-8")) if one.language == "sh" for line in one.content
    ]
    begins = re.compile(re.escape(beginning.format(program)) + r"(?= |$)")
    [found] = [line for line in lines if begins.match(_VARIABLE.sub("", line))]
    return found


def documented_file(name: str) -> str:
    """Return a file that the documents show; its first line names it."""
    texts = ["\n".join(one.content) for one in find_blocks((ROOT / "docs/mcp.md").read_text("utf-8"))]
    [found] = [text for text in texts if text.startswith(f"# ~/{name}\n")]
    return found + "\n"


@dataclass(frozen=True)
class Begun:
    """How an agent is started for one task: its words besides those of the documents, and variables."""

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
    modes: tuple[str, ...] = ("mcp", "wrap")
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
        path = f"{UNSPILL.parent}:{self.agent.program.parent}:/usr/local/bin:/usr/bin:/bin"
        return {"HOME": str(self.home), "PATH": path, "TERM": "dumb", "LANG": "C.UTF-8", "SHELL": "/bin/bash"}

    def unspill(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run unspill as the person would."""
        command = [str(UNSPILL), *words]
        environ, no_input = self.environ(), subprocess.DEVNULL
        return subprocess.run(
            command, cwd=self.project, env=environ, stdin=no_input, capture_output=True, text=True, check=False
        )

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
        return self.start(self.line(mode, begun), begun, limit_s)

    def start(self, line: str, begun: Begun, limit_s: float = LIMIT_S) -> subprocess.CompletedProcess[str]:
        """Type a line, and wait until the agent ends."""
        return subprocess.run(
            ["bash", "-c", line],
            env={**self.environ(), **begun.variables},
            cwd=self.project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )

    def line(self, mode: str, begun: Begun) -> str:
        """Return what a person types: the line of the documents for this mode, and what the task needs besides."""
        program = self.agent.program.name
        start = program
        if mode in PAGES:
            start = documented(mode, program)
        if mode == "wrap":
            start = start.replace("unspill agent", f"unspill agent {shlex.join(self._way_to_model(begun))}", 1)
        if mode == "sandbox":
            start = f"{self.agent.beside_unspill(self.home.parent)} {self.agent.program} --sandbox unspill"
        if start.startswith(f"{program} mcp add "):
            # This one remembers it
            path = self.home / ".gemini/policies/unspill.toml"
            path.parent.mkdir()
            path.write_text(documented_file(".gemini/policies/unspill.toml"))
            start = f"{start} && {program}"
        return f"{start} {shlex.join(begun.words)}"

    def _way_to_model(self, begun: Begun) -> list[str]:
        """Return the options by which a whole agent reaches this model. Its own variables it gets by itself."""
        agent = find_whole_agent(self.agent.program.name)
        others = {name: value for name, value in begun.variables.items() if not name.startswith(agent.variables)}
        variables = [word for pair in others.items() for word in ("--env", "=".join(pair))]
        return ["--expose", str(self.model.port), *variables]

    def play_at_terminal(self, begun: Begun) -> str:
        """Have somebody start the whole agent in a terminal, type the task and leave; return the screen."""
        typing = self.agent.typing
        assert typing is not None
        self.model.script = self.script("wrap")
        line = self.line("wrap", Begun([*typing.words], begun.variables))
        variables = {**self.environ(), **begun.variables, "TERM": "screen-256color"}
        start = self.home.parent / "start"
        cleared = ["exec", "env", "-i", *("=".join(pair) for pair in variables.items()), "bash", "-c", line]
        start.write_text(shlex.join(cleared) + "\n")
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
    words = ["-p", "do it", "--output-format", "json"]
    if mode != "mcp":
        words += ["--permission-mode", "acceptEdits"] if mode == "hook" else ["--dangerously-skip-permissions"]
    # What it asks a person at its first start
    known = {"hasCompletedOnboarding": True, "theme": "dark", "bypassPermissionsModeAccepted": True}
    answers = {"customApiKeyResponses": {"approved": ["sk-ant-fake"], "rejected": []}}
    trusted = {"projects": {str(trial.project): {"hasTrustDialogAccepted": True}}}
    (trial.home / ".claude.json").write_text(json.dumps({**known, **answers, **trusted}))
    variables = {"ANTHROPIC_BASE_URL": trial.model.url, "ANTHROPIC_API_KEY": "sk-ant-fake"}
    return Begun(words, {**variables, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"})


def begin_codex(trial: Trial, _mode: str) -> Begun:
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
    (place / "config.toml").write_text("\n".join(lines) + "\n")
    words = ["exec", "--json", "--skip-git-repo-check", "do it"]
    return Begun(words, {"SCRIPTED_KEY": "sk-fake"})


def begin_gemini(trial: Trial, _mode: str) -> Begun:
    place = trial.home / ".gemini"
    place.mkdir()
    settings: Body = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"disableAutoUpdate": True},
        "telemetry": {"enabled": False},
        "privacy": {"usageStatisticsEnabled": False},
    }
    (place / "settings.json").write_text(json.dumps(settings))
    (place / "trustedFolders.json").write_text(json.dumps({str(trial.project): "TRUST_FOLDER"}))
    words = ["-p", "do it", "--yolo", "--output-format", "json", "-m", "gemini-2.5-pro"]
    variables = {"GEMINI_API_KEY": "fake", "GOOGLE_GEMINI_BASE_URL": trial.model.url}
    return Begun(words, {**variables, "GEMINI_CLI_TRUST_WORKSPACE": "true"})


def begin_qwen(trial: Trial, _mode: str) -> Begun:
    place = trial.home / ".qwen"
    place.mkdir()
    settings: Body = {"security": {"auth": {"selectedType": "openai"}}, "general": {"disableAutoUpdate": True}}
    settings |= {"telemetry": {"enabled": False}, "privacy": {"usageStatisticsEnabled": False}}
    (place / "settings.json").write_text(json.dumps(settings))
    words = ["-p", "do it", "--yolo", "--output-format", "json"]
    url = f"{trial.model.url}/v1"
    return Begun(words, {"OPENAI_API_KEY": "fake", "OPENAI_BASE_URL": url, "OPENAI_MODEL": "mock-model"})


def begin_opencode(trial: Trial, mode: str) -> Begun:
    model = {"name": "mock", "limit": {"context": 100_000, "output": 8_000}}
    options = {"baseURL": f"{trial.model.url}/v1", "apiKey": "fake"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"mock-model": model}}
    settings: Body = {"autoupdate": False, "share": "disabled"}
    settings |= {"model": "mock/mock-model", "small_model": "mock/mock-model", "provider": {"mock": provider}}
    place = trial.home / ".config/opencode"
    place.mkdir(parents=True)
    (place / "opencode.json").write_text(json.dumps(settings))
    words = ["run", "--format", "json", *(() if mode == "mcp" else ("--auto",)), "do it"]
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
    config = trial.home / ".continue/config.yaml"
    config.parent.mkdir()
    config.write_text("\n".join(lines) + "\n")
    if mode == "wrap":
        config = Path(os.fsdecode(LASTING_HOME), ".continue/config.yaml")
    return Begun(["-p", "--config", str(config), "--auto", "do it"], {"CONTINUE_TELEMETRY_ENABLED": "0"})


def begin_pi(trial: Trial, _mode: str) -> Begun:
    place = trial.home / ".pi/agent"
    place.mkdir(parents=True)
    provider = {"baseUrl": f"{trial.model.url}/v1", "api": "openai-completions", "apiKey": "fake"}
    models = {"providers": {"mock": {**provider, "models": [{"id": "mock-model"}]}}}
    (place / "models.json").write_text(json.dumps(models))
    words = ["-p", "--provider", "mock", "--model", "mock-model", "do it"]
    return Begun(words, {"PI_OFFLINE": "1"})


def begin_aider(trial: Trial, _mode: str) -> Begun:
    test = f"{trial.first}; {FAILS}"
    words = ["--model", "openai/mock-model", "--edit-format", "whole", "--message", "do it"]
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


def begin_dcode(trial: Trial, _mode: str) -> Begun:
    words = ["-n", "do it", "-M", "anthropic:claude-sonnet-4-6", "-S", "all"]
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
            modes=("hook", "mcp", "wrap"),
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
            typing=Typing(("--auto",), "Ask anything", "/exit"),
        ),
        Agent(
            "qwen-code",
            begin_qwen,
            _shell("run_shell_command", description="a command", is_background=False),
            typing=Typing(("--yolo",), "Type your message", "/quit"),
        ),
        Agent("continue", begin_continue, _shell("Bash"), modes=("wrap",)),
        Agent(
            "pi",
            begin_pi,
            _shell("bash"),
            modes=("wrap",),
            typing=Typing(("--provider", "mock", "--model", "mock-model"), "Ask it how to use", "/quit"),
        ),
        Agent("aider", begin_aider, _shell(), modes=("wrap",), is_editor=True),
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
