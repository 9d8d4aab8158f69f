# SPDX-License-Identifier: Apache-2.0
"""`unspill setup` without any agent: what it plans, writes, refuses and takes back. With agents: tests/agents/real."""

import json
import os
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.support import Ground, run_cli
from unspill.cli.hook import AGENTS
from unspill.setup.agents import AGENTS_TO_SET_UP

pytestmark = pytest.mark.kernel


def give_agent(ground: Ground, program: str, version: str) -> dict[str, str]:
    """Put a program that only knows its version where an agent would be, and return the variables to find it."""
    path = ground.home / "bin" / program
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo {version} && exit\necho "I ask nobody."\n')
    path.chmod(0o755)
    return {"PATH": f"{path.parent}:{os.environ['PATH']}"}


def setup(ground: Ground, *words: str, **variables: str) -> "subprocess.CompletedProcess[bytes]":
    return run_cli("setup", *words, cwd=ground.project, variables=variables)


def test_the_plan_is_printed_and_nothing_is_changed(ground: Ground) -> None:
    settings = ground.home / ".claude/settings.json"
    settings.parent.mkdir()
    settings.write_text('{"model": "opus"}')
    done = setup(ground, "claude-code", "--print")
    lines = done.stdout.decode().splitlines()
    assert lines[:2] == [f"--- {settings}", f"+++ {settings}"]
    assert '-{"model": "opus"}' in lines
    assert "client.py hook claude-code || " in lines[-1]
    assert settings.read_text() == '{"model": "opus"}'
    assert not (ground.state / "setup").exists()


def test_what_can_not_be_proven_is_set_up_and_said_to_be_so(ground: Ground) -> None:
    done = setup(ground, "cursor")
    settings = ground.home / ".cursor/mcp.json"
    assert done.returncode == 0
    assert done.stdout.decode().splitlines()[0] == f"Changed {settings}."
    assert "Cursor (mcp): not proven." in done.stdout.decode()
    assert json.loads(settings.read_text())["mcpServers"]["unspill"]["args"][-1] == "mcp"
    assert json.loads(setup(ground, "cursor", "--json").stdout)["sealed"] is None
    assert setup(ground, "cursor", "--print").stdout == b"Everything is in place.\n"
    assert setup(ground, "cursor", "--check").returncode == 2
    assert setup(ground, "cursor", "--remove").returncode == 0
    assert not settings.parent.exists()


def test_a_file_behind_a_link_keeps_its_mode_and_the_link(ground: Ground) -> None:
    real = ground.home / "dotfiles" / "aider.yml"
    real.parent.mkdir()
    real.write_text("model: o3\ntest-cmd: pytest -q\n")
    real.chmod(0o640)
    link = ground.home / ".aider.conf.yml"
    link.symlink_to("dotfiles/aider.yml")
    assert setup(ground, "aider").returncode == 0
    assert "run --quiet -- bash -c 'pytest -q'" in real.read_text()
    assert "suggest-shell-commands: false" in real.read_text()
    copy = ground.state / "setup/aider/.aider.conf.yml"
    assert copy.read_text() == "model: o3\ntest-cmd: pytest -q\n"
    assert setup(ground, "aider", "--remove").returncode == 0
    assert link.is_symlink()
    assert (real.read_text(), real.stat().st_mode & 0o777) == ("model: o3\ntest-cmd: pytest -q\n", 0o640)


def test_an_agent_that_runs_no_command_is_not_sealed(ground: Ground) -> None:
    found = give_agent(ground, "claude", "2.1.326")
    done = setup(ground, "claude-code", **found)
    assert done.returncode == 1
    assert "Claude Code (hook): NOT sealed: Claude Code asked no model: I ask nobody." in done.stdout.decode()


def test_the_agents_own_sandbox_stays_on_until_ours_is_proven(ground: Ground) -> None:
    found = give_agent(ground, "codex", "codex-cli 0.169.0")
    config = ground.home / ".codex/config.toml"
    config.parent.mkdir()
    config.write_text('model = "o3"\n')
    assert setup(ground, "codex", "--trust", **found).returncode == 1
    whole = tomllib.loads(config.read_text())
    assert "sandbox_mode" not in whole
    assert len(whole["hooks"]["state"]) == 5
    planned = setup(ground, "codex", "--print", **found).stdout.decode()
    assert '+sandbox_mode = "danger-full-access"' in planned
    assert setup(ground, "codex", "--remove").returncode == 0
    assert config.read_text() == 'model = "o3"\n'
    assert not (config.parent / "hooks.json").exists()


def test_another_mode_takes_the_first_one_back(ground: Ground) -> None:
    found = give_agent(ground, "claude", "2.1.326")
    setup(ground, "claude-code", **found)
    setup(ground, "claude-code", "--mode", "mcp", **found)
    settings = json.loads((ground.home / ".claude/settings.json").read_text())
    assert "hooks" not in settings
    assert "Bash" in settings["permissions"]["deny"]
    setup(ground, "claude-code", "--remove")
    assert not (ground.home / ".claude").exists()
    assert not (ground.home / ".claude.json").exists()


@pytest.mark.parametrize(
    ("program", "version", "agent", "told"),
    [
        ("claude", "2.1.294", "claude-code", "Claude Code 2.1.294 is too old"),
        ("codex", "codex-cli 0.99.0", "codex", "Codex 0.99.0 is too old"),
        ("gemini", "0.60.9-preview.1", "gemini-cli", "Gemini CLI 0.60.9-preview.1 is too old"),
        ("claude", "none", "claude-code", "names no version"),
    ],
)
def test_a_version_that_fails_open_is_refused_and_nothing_is_written(
    ground: Ground, program: str, version: str, agent: str, told: str
) -> None:
    done = setup(ground, agent, **give_agent(ground, program, version))
    assert done.returncode == 2
    assert told in done.stderr.decode()
    assert [path.name for path in ground.home.iterdir() if path.name.startswith((".claude", ".codex", ".gemini"))] == []


def test_setup_and_the_hook_refuse_the_same_versions() -> None:
    assert AGENTS["claude-code"].oldest == AGENTS_TO_SET_UP["claude-code"].oldest


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nobody",), "no such coding agent: 'nobody'"),
        ((), "no agent is named"),
        (
            ("claude-code", "--mode", "wrap"),
            "Start the whole agent in the sandbox: unspill agent claude",
        ),
        (("opencode", "--mode", "hook"), "opencode can't be set up in mode 'hook'"),
        (("claude-code", "--remove"), "unspill has not set up Claude Code"),
        (("claude-code", "--remove", "--check"), "can't be used together"),
    ],
)
def test_what_can_not_be_done_is_refused(ground: Ground, words: tuple[str, ...], told: str) -> None:
    done = setup(ground, *words)
    assert done.returncode == 2
    assert told in done.stderr.decode()


@pytest.mark.parametrize("text", [b'{"mcpServers": []}', b'{"mcpServers"', b"\xff"])
def test_settings_that_can_not_be_edited_stay_as_they_are(ground: Ground, text: bytes) -> None:
    settings: Path = ground.home / ".cursor/mcp.json"
    settings.parent.mkdir()
    settings.write_bytes(text)
    done = setup(ground, "cursor")
    assert done.returncode == 2
    assert str(settings) in done.stderr.decode()
    assert settings.read_bytes() == text


@pytest.mark.parametrize("agent", ["claude-code", "codex", "gemini-cli"])
def test_a_session_begins_with_what_the_model_is_told(ground: Ground, agent: str) -> None:
    event = json.dumps({"hook_event_name": "SessionStart", "source": "startup", "cwd": str(ground.project)})
    done = run_cli("hook", agent, cwd=ground.project, stdin=event.encode())
    said = json.loads(done.stdout)["hookSpecificOutput"]
    assert said["hookEventName"] == "SessionStart"
    assert said["additionalContext"].startswith("Shell commands in this session run sealed by unspill")
    assert "`unspill approve`" in said["additionalContext"]
