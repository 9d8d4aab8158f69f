# SPDX-License-Identifier: Apache-2.0
"""Every verb of unspill in a hostile clone, outside of any sandbox: nothing that is planted there runs unsealed.

The table of verbs says which there are, so a new one fails here until it is tried too. Version 0.2 did not stand this:
to prove that an agent was sealed, `unspill setup --check` started it in the clone, with its hooks and servers.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.attack.hostile_clone import GIT, HostileClone
from tests.prepared import PROGRAM
from tests.support import Ground
from unspill.cli.main import _UNLISTED, VERBS

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.timeout(300)]

EVENT = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "git status"}}
# By verb: command lines, with what is typed; `tty` is one on a terminal
CALLS: dict[str, list[tuple[str, ...]]] = {
    "run": [
        ("run --hold -- bash -c", "git status; git st; git add .; git commit -qm x; bash -c true; echo 2 >> notes.txt"),
        ("run -q -- sh -c", "echo 3 > made.txt; echo 4 >> planted.sh; mkdir -p .git/hooks; echo x > .git/hooks/new"),
        ("run -q --sandbox other --session s -- git", "log"),
        ("tty run -- git", "status"),
        ("run -d -- bash -c", "sleep 60"),
        ("tty run -d -t -- bash -c", "sleep 60"),
    ],
    "shell": [("tty shell", "", "git status\nexit\n")],
    "learn": [("learn --ask deny --sandbox other -- git", "status")],
    "agent": [("agent --expose 9999 claude",), ("agent --expose 9999 git", "st")],
    "ps": [("ps",)],
    "attach": [("tty attach",)],
    "logs": [("logs",)],
    "stop": [("stop",)],
    "undo": [("undo",)],
    "redo": [("redo",)],
    "sessions": [("sessions",)],
    "changes": [("changes",)],
    "diff": [("diff",), ("tty diff op1",)],
    "review": [("tty review", "", "q")],
    "apply": [("apply",)],
    "discard": [("discard",)],
    "log": [("log",), ("tty log",), ("log notes.txt",)],
    "blame": [("blame made.txt",)],
    "show": [("show @",), ("tty show op1",)],
    "report": [("report --html ../report.html",)],
    "sandboxes": [("sandboxes",)],
    "files": [("files",)],
    "restore": [("restore made.txt",)],
    "requests": [("requests",)],
    "approve": [("approve 0000000000000000",)],
    "deny": [("deny 0000000000000000",)],
    "grants": [("grants",)],
    "audit": [("audit",)],
    "rootfs": [("rootfs list",)],
    "mcp": [("mcp --settings",), ("mcp",)],
    "hook": [("hook claude-code", "", json.dumps(EVENT)), ("hook claude-code --plugin-dir",), ("hook codex",)],
    "status": [("status",), ("tty status",)],
    "playground": [("playground",)],
    "prune": [("prune",)],
    "adopt": [("adopt",)],
    "recover": [("recover",)],
    "doctor": [("doctor .",)],
    "init": [("init",)],
    "completion": [("completion bash",)],
    "candidates": [("candidates -- restore", "")],
    # The last: it deletes what the others left
    "forget": [("forget --yes .",)],
}
# Not done here for reasons of their own: nothing of the kind is there, or the file is; there is no such agent
REFUSED = {"approve", "deny", "adopt", "init", "mcp", "restore", "discard", "hook codex", "agent"}


def call(clone: HostileClone, words: list[str], typed: str) -> tuple[int, str]:
    """Start unspill by its absolute path; return its exit code and what it printed."""
    done = subprocess.run(
        [PROGRAM, *words],
        cwd=clone.project,
        env=clone.environ,
        input=typed.encode(),
        capture_output=True,
        check=False,
        timeout=60,
    )
    return done.returncode, (done.stdout + done.stderr).decode(errors="replace")


def call_on_terminal(clone: HostileClone, words: list[str], typed: str) -> tuple[int, str]:
    """The same on a terminal, where somebody types, presses `q` now and then, and hangs up in the end."""
    master, slave = os.openpty()
    with subprocess.Popen(
        [PROGRAM, *words],
        cwd=clone.project,
        env={**clone.environ, "TERM": "xterm"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    ) as process:
        os.close(slave)
        shown = b""
        os.write(master, typed.encode())
        for _ in range(60):
            if select.select([master], [], [], 0.25)[0]:
                try:
                    shown += os.read(master, 65536)
                except OSError:
                    break
            elif process.poll() is None:
                os.write(master, b"q")
        if process.poll() is None:
            process.send_signal(signal.SIGHUP)
            time.sleep(0.5)
            process.kill()
    os.close(master)
    return process.returncode, shown.decode(errors="replace")


def play(clone: HostileClone, most: int | None = None) -> dict[str, tuple[int, str]]:
    """Have unspill do everything it can, or so many things by each verb; return how each call ended."""
    ended = {}
    for calls in CALLS.values():
        for line, *rest in calls[:most]:
            words = line.removeprefix("tty ").split() + rest[:1] * bool(rest and rest[0])
            start = call_on_terminal if line.startswith("tty ") else call
            ended[" ".join((line, *rest[:1]))] = start(clone, words, rest[1] if len(rest) > 1 else "")
    return ended


@pytest.fixture
def clone(ground: Ground) -> HostileClone:
    ground.configure('after = "apply"\n')
    return HostileClone(ground.project, ground.home / "marks")


def test_every_verb_is_tried() -> None:
    assert set(CALLS) == {*VERBS, *_UNLISTED}


@pytest.mark.parametrize("names_commands", [False, True], ids=["as it may be", "naming programs"])
def test_e13_no_verb_runs_what_a_hostile_clone_has_planted(clone: HostileClone, names_commands: bool) -> None:
    """Run every verb in a clone with hooks, servers and variables of four agents, of git, direnv, mise and bash, with
    programs first on the PATH, and with settings of unspill's own.

    Control: the next test, in which a person's own programs run them.
    """
    if names_commands:
        clone.name_commands()
    ended = play(clone, 1 if names_commands else None)
    assert clone.ran() == set()
    assert not [text for _code, text in ended.values() if "Traceback" in text]
    if names_commands:
        # Nothing runs with settings that can't be read
        assert ".unspill.toml" in ended["changes"][1]
        return
    # Some of what was applied stays held
    fine = {"apply": (0, 6)}
    failed = {line: told for line, told in ended.items() if told[0] not in fine.get(line, (0,))}
    assert {line: told for line, told in failed.items() if not line.startswith((*REFUSED, "tty "))} == {}
    # The planted programs did run, where they reach nothing
    for line in ("run -q --sandbox other --session s -- git log", "agent --expose 9999 claude"):
        assert "marks/ran: Directory nonexistent" in ended[line][1], ended[line]


def test_what_is_planted_runs_where_nothing_seals_it(clone: HostileClone) -> None:
    """The control arm: a person's shell and git, and what agents, direnv and mise do with the same files."""

    def outside(*words: str) -> set[str]:
        done = subprocess.run(
            words, cwd=clone.project, env=clone.environ, capture_output=True, check=False, stdin=subprocess.DEVNULL
        )
        del done
        return clone.ran()

    assert "fsmonitor" in outside(GIT, "status")
    assert {"clean", "hook:pre-commit", "hook:post-commit"} <= outside(
        "/bin/sh", "-c", f"echo 2 >> notes.txt; {GIT} add notes.txt; {GIT} commit -qm two"
    )
    assert outside(GIT, "st") == {"alias"}
    assert "diff" in outside("/bin/sh", "-c", f"echo 3 >> main.c; {GIT} diff")
    assert outside("/usr/bin/bash", "-c", "true") == {"BASH_ENV"}
    assert outside("/usr/bin/bash", "-c", ". ./.envrc") == {"BASH_ENV", "envrc"}
    for name in ("unspill", "git", "claude"):
        assert f"path:{name}" in outside("/bin/sh", "-c", f"{name} --version")
    settings = json.loads((clone.project / ".claude/settings.json").read_text())
    started = settings["hooks"]["SessionStart"][0]["hooks"][0]["command"]
    assert outside("/bin/sh", "-c", started) == {"hooks:claude"}
    server = json.loads((clone.project / ".mcp.json").read_text())["mcpServers"]["evil"]
    assert outside(server["command"], *server["args"]) == {"mcp:claude"}
    assert outside("/usr/bin/python3", "-c", "import unspill") == {"module:unspill"}


def test_what_runs_in_a_sandbox_leaves_no_mark(clone: HostileClone, ground: Ground) -> None:
    """So the marks tell sealed from unsealed: inside, git runs the very same program."""
    result = ground.sandbox().run(f"{GIT} status; {clone.command('inside')} 2>&1; ls {clone.marks} 2>&1; {GIT} st 2>&1")
    assert b"ran" in result.stdout.kept()
    assert clone.ran() == set()
    assert not Path(clone.marks, "ran").exists()
