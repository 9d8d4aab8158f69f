# SPDX-License-Identifier: Apache-2.0
"""Coding agents as far as their hooks go: what they send, how they start a hook, what they make of its answer.

Written from their documentation and sources. A hook fails open in all of them: only exit status 2, or an answer that
they understand, keeps a command from being run as it was.
"""

import json
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import run_cli

# How every hook that is printed ends, for when unspill itself can't answer
OR_STOP = " || { echo 'unspill stopped this command.' >&2; exit 2; }"
# What a shell reads as it is, and what it expands in part
_QUOTED = re.compile(r"""\\.|'[^']*'?|(?P<doubled>"(?:\\.|[^"\\])*"?)""", re.DOTALL)


@dataclass(frozen=True)
class Outcome:
    """What an agent does: run `command`, having asked or not; nothing where that is None."""

    command: str | None
    asked: bool = False
    told: str = ""
    arguments: dict[str, Any] | None = None


class Agent:
    """One agent in a project: it has the settings that `unspill hook --settings` prints."""

    event = "PreToolUse"
    tool = "Bash"

    def __init__(self, name: str, project: Path, *options: str) -> None:
        self.name, self.project = name, project
        done = run_cli("hook", name, "--settings", *options, cwd=project)
        assert done.returncode == 0, done
        entry, self.edits = json.loads(done.stdout)["hooks"][self.event]
        (self.hook,) = entry["hooks"]
        self.matcher = entry["matcher"]

    def event_for(self, command: object, **more: Any) -> dict[str, Any]:
        """Return what is sent before a command is run; `mode`, `event` and `tool` are those of the call itself."""
        mode = more.pop("mode", "default")
        event, tool = more.pop("event", self.event), more.pop("tool", self.tool)
        return {
            "session_id": "0a1b",
            "transcript_path": "/nowhere/transcript.jsonl",
            "cwd": str(self.project),
            "permission_mode": mode,
            "hook_event_name": event,
            "tool_name": tool,
            "tool_input": {"command": command, **more},
            "tool_use_id": "call_1",
        }

    def send(self, raw: bytes) -> "subprocess.CompletedProcess[bytes]":
        """Start the hook as agents do, by a shell, and give it what it reads."""
        return subprocess.run(
            ["/bin/sh", "-c", self.hook["command"]],
            input=raw,
            cwd=self.project,
            capture_output=True,
            check=False,
            timeout=60,
        )

    def consider(self, command: object, **more: Any) -> Outcome:
        """Return what the agent does with a command once its hook has answered."""
        event = self.event_for(command, **more)
        return self.decide(event["tool_input"], self.send(json.dumps(event).encode()))

    def decide(self, given: dict[str, Any], done: "subprocess.CompletedProcess[bytes]") -> Outcome:
        if done.returncode == 2:
            return Outcome(command=None, told=done.stderr.decode())
        # Any other status, and no answer at all: the command is run as it was
        if done.returncode != 0 or not done.stdout.strip():
            return Outcome(command=given["command"], arguments=given)
        return self.take(given, json.loads(done.stdout))

    def take(self, given: dict[str, Any], answer: dict[str, Any]) -> Outcome:
        """Return what the agent makes of an answer."""
        raise NotImplementedError


class ClaudeCode(Agent):
    """The arguments are replaced as a whole; `ask` shows the person those that were returned."""

    def take(self, given: dict[str, Any], answer: dict[str, Any]) -> Outcome:
        said = answer["hookSpecificOutput"]
        assert said["hookEventName"] == self.event
        decision = said.get("permissionDecision")
        if decision == "deny":
            return Outcome(command=None, told=said["permissionDecisionReason"])
        taken = said.get("updatedInput", given)
        told = said.get("permissionDecisionReason", "")
        return Outcome(command=taken["command"], asked=decision == "ask", told=told, arguments=taken)


class Codex(ClaudeCode):
    """An answer that it does not support is as good as none, and so is 2 without a reason: the command is run."""

    known = frozenset(("continue", "decision", "reason", "stopReason", "suppressOutput", "systemMessage"))
    specific = frozenset(("hookEventName", "permissionDecision", "permissionDecisionReason", "updatedInput"))

    def decide(self, given: dict[str, Any], done: "subprocess.CompletedProcess[bytes]") -> Outcome:
        if done.returncode == 2 and not done.stderr.strip():
            return Outcome(command=given["command"], arguments=given)
        return super().decide(given, done)

    def take(self, given: dict[str, Any], answer: dict[str, Any]) -> Outcome:
        said = answer.get("hookSpecificOutput", {})
        decision, updated = said.get("permissionDecision"), said.get("updatedInput")
        is_known = set(answer) <= self.known | {"hookSpecificOutput"} and set(said) <= self.specific
        if not is_known or decision == "ask" or (decision == "allow") != (updated is not None):
            return Outcome(command=given["command"], arguments=given)
        return super().take(given, answer)


class GeminiCli(Agent):
    """What is returned replaces the arguments, or is laid over them in older versions (`lays_over`).

    It refuses a command that has a substitution anywhere but between single quotes.
    """

    event = "BeforeTool"
    tool = "run_shell_command"
    lays_over = False

    def take(self, given: dict[str, Any], answer: dict[str, Any]) -> Outcome:
        if answer.get("decision") in ("deny", "block"):
            return Outcome(command=None, told=answer["reason"])
        returned = answer.get("hookSpecificOutput", {}).get("tool_input")
        taken = given if returned is None else {**given, **returned} if self.lays_over else returned
        if has_substitution(taken["command"]):
            return Outcome(command=None, told="Command injection detected")
        return Outcome(command=taken["command"], arguments=taken)


def has_substitution(line: str) -> bool:
    """Tell whether a shell would run something else while it reads this line."""
    doubled = "".join(found["doubled"] or "" for found in _QUOTED.finditer(line))
    return bool(
        re.search(r"[$<>]\(|`", _QUOTED.sub(" ", line))
        or re.search(r"\$\(|`", re.sub(r"\\.", "", doubled, flags=re.DOTALL))
    )


KINDS: dict[str, type[Agent]] = {"claude-code": ClaudeCode, "codex": Codex, "gemini-cli": GeminiCli}
