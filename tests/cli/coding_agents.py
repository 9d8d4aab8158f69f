# SPDX-License-Identifier: Apache-2.0
"""Claude Code as far as its hooks go: what it sends, how it starts a hook, what it makes of the answer.

Written from its documentation and its program. A hook fails open: only exit status 2, or an answer that it
understands, keeps a command from being run as it was.
"""

import json
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import run_cli

# How the hook before a tool ends, for when unspill itself can't answer
OR_STOP = " || { echo 'unspill stopped this.' >&2; exit 2; }"


@dataclass(frozen=True)
class Outcome:
    """What an agent does: run `command`, having asked or not; nothing where that is None."""

    command: str | None
    asked: bool = False
    told: str = ""
    arguments: dict[str, Any] | None = None


class ClaudeCode:
    """It in a project, with the plug-in. Arguments are replaced as a whole; `ask` shows those that were returned."""

    def __init__(self, project: Path, *options: str) -> None:
        self.project = project
        made = run_cli("hook", "claude-code", "--plugin-dir", cwd=project)
        assert made.returncode == 0, made
        self.plugin = Path(made.stdout.decode().strip())
        [entry] = json.loads((self.plugin / "hooks/hooks.json").read_text())["hooks"]["PreToolUse"]
        (self.hook,) = entry["hooks"]
        named = " ".join([" hook claude-code", *map(shlex.quote, options)])
        self.hook["command"] = self.hook["command"].replace(" hook claude-code", named)
        self.matcher = entry["matcher"]

    def event_for(self, command: object, **more: Any) -> dict[str, Any]:
        """Return what is sent before a command is run; `mode`, `event` and `tool` are those of the call itself."""
        mode = more.pop("mode", "default")
        event, tool = more.pop("event", "PreToolUse"), more.pop("tool", "Bash")
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
        said = json.loads(done.stdout)["hookSpecificOutput"]
        assert said["hookEventName"] == "PreToolUse"
        decision = said.get("permissionDecision")
        if decision == "deny":
            return Outcome(command=None, told=said["permissionDecisionReason"])
        taken = said.get("updatedInput", given)
        told = said.get("permissionDecisionReason", "")
        return Outcome(command=taken["command"], asked=decision == "ask", told=told, arguments=taken)
