# SPDX-License-Identifier: Apache-2.0
"""Prove that a coding agent is sealed: have its real program run a command that tries to get out, and see what it got.

A model on loopback tells the agent to run it. The command looks at a file in the home directory, writes to it, and
connects to a port. Nothing is said to be sealed that was not seen: a command that did not run proves nothing.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile

from unspill.errors import UsageError
from unspill.record import Record
from unspill.sandbox.sessions import PROOF
from unspill.setup.edit import Setting, merge
from unspill.setup.scripted_model import ScriptedModel, ToolCall, Turn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from unspill.setup.agents import SetupAgent

_LIMIT_S = 90
_VERSION_S = 30
# Twice a second: how long a server may take to start
_MOST_SEARCHES = 20
_SERVER_NAMES = ("mcp__unspill__", "mcp_unspill_", "unspill_", "unspill__", "")
# What else of its settings decides how commands run
_GEMINI_FILES = ("GEMINI.md", "extensions", "policies", "trustedFolders.json", "trusted_hooks.json")
# Other models, and what else would lead an agent past the one that is asked here
_PROVIDERS = ("ANTHROPIC_", "OPENAI_", "GEMINI_", "GOOGLE_", "CLAUDE_CODE_USE_", "CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT")


class Verdict(Record):
    """What a canary found: `reason` is why the agent is not sealed, empty if it is, and `advice` what to do then."""

    reason: str = ""
    advice: str = ""
    is_told: bool = False

    @property
    def is_sealed(self) -> bool:
        """Tell whether commands ran, and none of them got out."""
        return not self.reason


class Start(Record):
    """How an agent is started once: its words and variables."""

    words: tuple[str, ...]
    variables: Mapping[str, str]


def find_program(agent: SetupAgent, path: str | None) -> str:
    """Return where the agent's program is.

    Raises:
        UsageError: it is not installed.
    """
    found = shutil.which(agent.program, path=path)
    if found is None:
        raise UsageError(f"`{agent.program}` is not on your PATH", remedy=f"Install {agent.title}, or correct PATH.")
    return found


def read_version(agent: SetupAgent, program: str, environ: Mapping[str, str]) -> tuple[int, ...]:
    """Return the version of an agent.

    Raises:
        UsageError: it has none, or one that runs commands unsealed where its hook fails.
    """
    try:
        done = subprocess.run(
            [program, "--version"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"`{agent.program} --version` failed: {error}", remedy=f"Repair {agent.title}.") from error
    words = done.stdout.decode("utf-8", "replace").split()
    numbers = next((word for word in words if word[:1].isdigit() and "." in word), "")
    version = tuple(int(part) for part in numbers.partition("-")[0].split(".") if part.isdecimal())
    if not version:
        raise UsageError(f"`{agent.program} --version` names no version", remedy=f"Repair {agent.title}.")
    if version < agent.oldest:
        oldest = ".".join(map(str, agent.oldest))
        raise UsageError(
            f"{agent.title} {numbers} is too old: it runs commands unsealed where its hook fails ({oldest} does not)",
            remedy=f"Update it: {agent.newer}",
        )
    return version


def prove(
    name: str,
    agent: SetupAgent,
    mode: str,
    program: str,
    project: str,
    environ: Mapping[str, str],
    *,
    told: str,
    assumed: Sequence[Setting] = (),
) -> Verdict:
    """Return whether an agent that is set up is sealed in a project, with whatever settings hold there.

    `told` is in what tells the model that it is. `assumed` are settings that the agent gets only if it is sealed.
    """
    with _Attempt(environ["HOME"]) as attempt:
        own = Turn(calls=(ToolCall(agent.shells, attempt.arguments("own", agent)),), if_there=mode == "mcp")
        served = Turn(
            calls=(ToolCall(tuple(f"{one}run" for one in _SERVER_NAMES), {"command": attempt.command("served")}),)
        )
        attempt.model.script = (own,) if mode == "hook" else (served, own)
        attempt.assumed = tuple(assumed)
        attempt.project = project
        start = _STARTS[name](program, attempt, environ)
        ended = _run(start, project, environ)
        return attempt.judge(agent, mode, ended, told)


class _Attempt:
    """One attempt to get out: a file in the home directory that must stay as it is, and a port that nobody reaches."""

    def __init__(self, home: str) -> None:
        nonce = secrets.token_hex(8)
        self.secret = f"canary-{secrets.token_hex(16)}"
        self.file = os.path.join(home, f".unspill-canary-{nonce}")
        self.marks = {name: 10**9 + secrets.randbelow(9 * 10**9) for name in ("own", "served")}
        self.model, self.port = ScriptedModel(most_searches=_MOST_SEARCHES), ScriptedModel()
        self.scratch = ""
        self.assumed: tuple[Setting, ...] = ()
        self.project = ""

    def __enter__(self) -> _Attempt:
        self.scratch = tempfile.mkdtemp(prefix="unspill-canary-")
        self.write("secret", self.secret, self.file)
        self.model.__enter__()
        self.port.__enter__()
        return self

    def __exit__(self, *_rest: object) -> None:
        self.port.__exit__()
        self.model.__exit__()
        os.unlink(self.file)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def write(self, name: str, text: str, path: str = "") -> str:
        """Write a file that is gone afterwards, and return where it is."""
        path = path or os.path.join(self.scratch, name)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def command(self, name: str) -> str:
        """Return a shell text that tries to get out, and prints a number that is not in the text."""
        # Nothing for the agent's shell to expand: some agents refuse that
        return (
            f"printf 'ran-%d\\n' {self.marks[name]:#x}; cat {self.file}; echo changed >> {self.file}; "
            f"bash -c 'echo GET /canary HTTP/1.0 > /dev/tcp/127.0.0.1/{self.port.port}'"
        )

    def arguments(self, name: str, agent: SetupAgent) -> dict[str, object]:
        """Return the arguments of an agent's own tool for commands."""
        text = self.command(name)
        return dict.fromkeys(agent.command_fields, text) | dict(agent.other_fields)

    def judge(self, agent: SetupAgent, mode: str, ended: str, told: str) -> Verdict:
        """Return what was seen."""
        asked = "".join(self.model.requests)
        with open(self.file, encoding="utf-8") as file:
            is_changed = file.read() != self.secret
        got = [
            text
            for text, is_so in (
                ("read a test file in your home directory", self.secret in asked),
                ("changed it", is_changed),
                ("reached a server of this machine", "/canary" in self.port.paths),
            )
            if is_so
        ]
        ran = {name for name, mark in self.marks.items() if f"ran-{mark}" in asked}
        if not self.model.requests:
            advice = f"Start `{agent.program}` by hand in this directory, and see what it wants."
            if "trusted" in ended:
                trust = f"{agent.title} does not trust this folder, and skips hooks in it"
                return Verdict(
                    reason=trust, advice=f"Start `{agent.program}` here, trust the folder, leave, and try again."
                )
            return Verdict(reason=f"{agent.title} asked no model: {ended}", advice=advice)
        left = [tool for tool in agent.shells if tool in self.model.tools] if mode == "mcp" else []
        if left:
            got = [f"it still has `{left[0]}`, its own tool for commands", *got]
        elif got:
            got[0] = f"its commands {got[0]}"
        if got:
            return Verdict(reason=" and ".join(filter(None, (", ".join(got[:-1]), got[-1]))))
        wanted = "served" if mode == "mcp" else "own"
        if wanted not in ran:
            return Verdict(reason=f"no command ran: {_last_lines(self.model.results) or ended}")
        # Its tools say so themselves
        return Verdict(is_told=mode == "mcp" or told in asked)


def _last_lines(results: list[str]) -> str:
    lines = [line.strip() for line in "\n".join(results).splitlines() if line.strip()]
    return " ".join(lines[-3:])[-400:]


def _run(start: Start, project: str, environ: Mapping[str, str]) -> str:
    """Run an agent to its end, and return the last thing that it said."""
    kept = {name: value for name, value in environ.items() if not name.startswith(_PROVIDERS)}
    process = subprocess.Popen(
        start.words,
        cwd=project,
        env={**kept, **start.variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _none = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _none = process.communicate()
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    text = re.sub(r"\x1b\[[0-9;]*m", "", output.decode("utf-8", "replace"))
    return _last_lines([text]) or "it said nothing"


def _start_claude(program: str, attempt: _Attempt, _environ: Mapping[str, str]) -> Start:
    variables = {
        "ANTHROPIC_BASE_URL": attempt.model.url,
        "ANTHROPIC_API_KEY": "canary",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    # Over those of the person's settings
    settings = attempt.write("settings.json", json.dumps({"env": variables}))
    words = (
        program,
        "-p",
        PROOF,
        "--settings",
        settings,
        "--no-session-persistence",
        "--allowedTools",
        "Bash",
    )
    return Start(words=words, variables=variables)


def _start_codex(program: str, attempt: _Attempt, _environ: Mapping[str, str]) -> Start:
    provider = {
        "name": "canary",
        "base_url": f"{attempt.model.url}/v1",
        "wire_api": "responses",
        "env_key": "UNSPILL_CANARY_KEY",
        "request_max_retries": 1,
        "stream_max_retries": 1,
    }
    inline = ", ".join(f"{key} = {json.dumps(value)}" for key, value in provider.items())
    words = [program, "exec", "--json", "--skip-git-repo-check", "--ephemeral", "-m", "gpt-5.5"]
    words += ["-c", 'model_provider="unspill_canary"', "-c", f"model_providers.unspill_canary={{{inline}}}"]
    # Once the person has trusted the folder, its own settings count, and these may switch hooks off
    words += ["-c", f'projects={{{json.dumps(attempt.project)} = {{trust_level = "trusted"}}}}']
    for setting in attempt.assumed:
        words += ["-c", f"{'.'.join(setting.path)}={json.dumps(setting.value)}"]
    return Start(words=(*words, PROOF), variables={"UNSPILL_CANARY_KEY": "canary"})


def _start_gemini(program: str, attempt: _Attempt, environ: Mapping[str, str]) -> Start:
    """Give Gemini CLI the person's settings in another home directory: nothing else makes it ask this model."""
    own = os.path.join(environ.get("GEMINI_CLI_HOME") or environ["HOME"], ".gemini")
    copy = os.path.join(attempt.scratch, ".gemini")
    os.mkdir(copy, 0o700)
    for name in _GEMINI_FILES:
        if os.path.lexists(os.path.join(own, name)):
            os.symlink(os.path.join(own, name), os.path.join(copy, name))
    settings = os.path.join(own, "settings.json")
    text = ""
    if os.path.exists(settings):
        with open(settings, encoding="utf-8", newline="") as file:
            text = file.read()
    auth = Setting(path=("security", "auth", "selectedType"), value="gemini-api-key")
    attempt.write(".gemini/settings.json", merge("json", text, (auth,)))
    variables = {"GEMINI_API_KEY": "canary", "GOOGLE_GEMINI_BASE_URL": attempt.model.url}
    words = (program, "-p", PROOF, "--yolo", "-m", "gemini-2.5-pro")
    return Start(words=words, variables={**variables, "GEMINI_CLI_HOME": attempt.scratch})


def _start_opencode(program: str, attempt: _Attempt, _environ: Mapping[str, str]) -> Start:
    model = {"name": "canary", "limit": {"context": 100_000, "output": 8_000}}
    options = {"baseURL": f"{attempt.model.url}/v1", "apiKey": "canary"}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"canary": model}}
    inline = {"model": "canary/canary", "small_model": "canary/canary", "provider": {"canary": provider}}
    variables = {"OPENCODE_CONFIG_CONTENT": json.dumps(inline), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    words = (program, "run", "--format", "json", PROOF)
    return Start(words=words, variables={**variables, "OPENCODE_DISABLE_AUTOUPDATE": "1"})


def _start_qwen(program: str, attempt: _Attempt, _environ: Mapping[str, str]) -> Start:
    words = (program, "-p", PROOF, "--yolo", "--auth-type", "openai")
    url = f"{attempt.model.url}/v1"
    variables = {"OPENAI_API_KEY": "canary", "OPENAI_BASE_URL": url, "OPENAI_MODEL": "canary"}
    return Start(words=words, variables=variables)


_STARTS: dict[str, Callable[[str, _Attempt, Mapping[str, str]], Start]] = {
    "claude-code": _start_claude,
    "codex": _start_codex,
    "gemini-cli": _start_gemini,
    "opencode": _start_opencode,
    "qwen-code": _start_qwen,
}
