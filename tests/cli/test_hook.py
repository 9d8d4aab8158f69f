# SPDX-License-Identifier: Apache-2.0
"""Commands of coding agents by way of their hooks: sealed to the byte, run for real, never let through as they were."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.coding_agents import KINDS, OR_STOP, Agent, Codex, Outcome
from tests.support import Ground, run_cli

pytestmark = pytest.mark.kernel

# What bash does with each is the measure
COMMANDS = [
    "echo plain",
    "echo \"double $((1 + 1))\" 'single $x' `echo tick` $(echo sub)",
    "echo 'it'\"'\"'s' \\' \\\\ \"\\\"\"",
    "echo a\necho b\n\n",
    "cat <<'END'\nit's \"raw\" $x `y`\nEND\ncat <<END\n$((6 * 7))\nEND",
    "echo one; false && echo two || echo three; exit 7",
    "sleep 0.01 & wait; echo done",
    "(echo late) & echo early >/dev/null; wait",
    "echo {1..3}; [[ a == a ]] && echo bash $0 $#",
    "trap 'echo bye' EXIT; exec 3>&1; echo fd >&3",
    "printf 'x\\ty\\n' | tr x z | { read line; echo \"$line\"; }",
    "echo ünï ✓ 𐍈",
    "echo '\r\t\x01\x7f' | od -c",
    "echo 'never closed",
    "-x echo looks like an option",
    "--help",
    "+x",
    "# nothing but a comment",
    "! echo bang !!",
    "echo " + "x" * 50_000 + " | wc -c",
]
# Whether it gets at what lies outside of the project where nothing seals it
REACHING = {
    "'; touch $CANARY; echo '": False,
    '"; touch $CANARY; "': False,
    "x' ; touch $CANARY ; 'y": False,
    "touch $CANARY": True,
    "\\'; touch $CANARY; \\'": True,
    "echo ''; touch $CANARY; echo ''": True,
    "$(touch $CANARY)`touch $CANARY`": True,
    "rm -f $CANARY; echo > $CANARY; wc -l < $CANARY": True,
    "(setsid sh -c 'touch $CANARY' &) ; sleep 0.2": True,
}
NEVER_RUN: list[tuple[str, dict[str, Any], str]] = [
    ("echo \0; touch x", {}, "zero byte"),
    ("", {}, "there is no command"),
    (" \n", {}, "there is no command"),
    ("echo " + "x" * 100_000, {}, "too long"),
    ("echo x", {"tool": "Monitor"}, "'Monitor' can't be sealed. Use the tool "),
    ("echo x", {"tool": None}, "None can't be sealed"),
    ("echo x", {"event": "PostToolUse"}, "this is not the event"),
    ("echo x", {"shell": "/bin/evil"}, "the argument 'shell' is not known here"),
]
NO_EVENTS = [b"", b"\xff", b"{", b"[]", b"null", b'"text"', b"{}", b'{"tool_name": "Bash"}', b"[" * 100_000]


@pytest.fixture
def canary(ground: Ground) -> Path:
    """A place outside of the project, where nothing is as long as no command got out."""
    return ground.home / "canary"


def make(name: str, ground: Ground, *options: str) -> Agent:
    return KINDS[name](name, ground.project, *options)


def perform(command: str | None, cwd: Path) -> "subprocess.CompletedProcess[bytes]":
    """Run a command as an agent does: by a shell of its own."""
    assert command is not None
    return subprocess.run(["/bin/sh", "-c", command], cwd=cwd, capture_output=True, check=False, timeout=60)


def perform_plain(text: str, directory: Path) -> "subprocess.CompletedProcess[bytes]":
    """Run a command unsealed, in a directory of its own."""
    directory.mkdir()
    return subprocess.run(["bash", "-c", "--", text], cwd=directory, capture_output=True, check=False, timeout=60)


@pytest.mark.parametrize("text", COMMANDS, ids=range(len(COMMANDS)))
def test_a_command_prints_and_returns_what_it_would_have_without_us(text: str, ground: Ground, tmp_path: Path) -> None:
    alone = perform_plain(text, tmp_path / "plain")
    sealed = perform(make("claude-code", ground, "--quiet").consider(text).command, ground.project)
    assert (sealed.stdout, sealed.returncode) == (alone.stdout, alone.returncode), sealed


@pytest.mark.parametrize(("text", "gets_out"), REACHING.items(), ids=range(len(REACHING)))
def test_no_command_gets_out_of_its_quotes(
    text: str, gets_out: bool, ground: Ground, canary: Path, tmp_path: Path
) -> None:
    text = text.replace("$CANARY", os.fspath(canary))
    perform(make("claude-code", ground, "--quiet").consider(text).command, ground.project)
    assert not canary.exists()
    perform_plain(text, tmp_path / "plain")
    assert canary.exists() is gets_out


@pytest.mark.parametrize("name", KINDS)
def test_every_agent_runs_the_sealed_command_in_place_of_its_own(name: str, ground: Ground, canary: Path) -> None:
    agent = make(name, ground)
    text = f"touch {canary}; echo $((6 * 7)); echo kept > made"
    outcome = agent.consider(text)
    assert not outcome.asked
    done = perform(outcome.command, ground.project)
    assert done.stdout == b"42\n"
    assert not canary.exists()
    # What a command changes is there for the agent's own file tools, and can be taken back
    assert (ground.project / "made").read_text() == "kept\n"
    assert run_cli("undo", cwd=ground.project).returncode == 0
    assert not (ground.project / "made").exists()
    perform(text, ground.project)
    assert canary.exists(), "without the hook the same command gets out"


@pytest.mark.parametrize("name", KINDS)
def test_a_command_reads_nothing_of_what_the_agent_gives_its_shell(name: str, ground: Ground) -> None:
    """Some agents give it a pipe that never ends, for which a command would wait."""
    outcome = make(name, ground, "--quiet").consider("cat; echo read all")
    assert outcome.command is not None
    read, write = os.pipe()
    os.write(write, b"of the agent")
    done = subprocess.run(
        ["/bin/sh", "-c", outcome.command], cwd=ground.project, stdin=read, capture_output=True, check=False, timeout=30
    )
    os.close(read)
    os.close(write)
    assert (done.stdout, done.returncode) == (b"read all\n", 0)


def test_what_else_the_agent_gave_is_kept(ground: Ground) -> None:
    given = {"description": "says hello", "timeout": 5000, "run_in_background": False}
    outcome = make("claude-code", ground).consider("echo hello", **given)
    assert outcome.arguments == {"command": outcome.command, **given}
    given = {"description": "x", "dir_path": "sub", "delay_ms": 5, "is_background": False}
    for lays_over in (False, True):
        agent = make("gemini-cli", ground)
        agent.lays_over = lays_over  # type: ignore[attr-defined]
        outcome = agent.consider("echo hello", **given)
        assert outcome.arguments == {"command": outcome.command, **given}


@pytest.mark.parametrize("text", ["echo x", "echo $(id) `id` <(id) >(id)", "echo \"$(id)\" '$(id)' it\\'s \\$(id)"])
def test_an_agent_that_refuses_substitutions_finds_none_in_a_sealed_command(text: str, ground: Ground) -> None:
    agent = make("gemini-cli", ground)
    outcome = agent.consider(text)
    assert outcome.command is not None, outcome.told
    # The control arm: this is how the line once named where the agent's shell stands
    refused = outcome.command.replace("--working-dir .", '--working-dir "$(pwd -P)"')
    answer = {"hookSpecificOutput": {"tool_input": {"command": refused}}}
    assert agent.take({"command": text}, answer).command is None


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("command", "more", "said"), NEVER_RUN, ids=[said for _, _, said in NEVER_RUN])
def test_what_is_not_understood_is_not_run(
    name: str, command: str, more: dict[str, Any], said: str, ground: Ground
) -> None:
    outcome = make(name, ground).consider(command, **more)
    assert outcome.command is None
    assert said in outcome.told
    assert "\nNothing was run.\n" in outcome.told


@pytest.mark.parametrize("command", [None, 7, ["rm", "-rf"], {"text": "x"}])
def test_a_command_that_is_no_text_is_not_run(command: object, ground: Ground) -> None:
    assert make("claude-code", ground).consider(command).command is None


@pytest.mark.parametrize("raw", NO_EVENTS, ids=range(len(NO_EVENTS)))
def test_what_is_no_event_stops_the_command(raw: bytes, ground: Ground) -> None:
    done = make("claude-code", ground).send(raw)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"unspill: ")


@pytest.mark.parametrize(
    "given",
    [
        b'"command": "echo \\ud800"',
        b'"command": "echo x", "description": "\\udfff"',
        b'"command": "echo x", "timeout": NaN',
        b'"command": "echo x", "timeout": 1e999',
        b'"command": "echo \xed\xa0\x80"',
    ],
)
def test_what_an_agent_could_not_read_back_is_not_answered(given: bytes, ground: Ground) -> None:
    event = b'{"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {%s}}'
    done = make("claude-code", ground).send(event % given)
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize(
    "streams",
    [">/dev/full", ">/dev/full 2>/dev/full", "2>&-", "<&-", ">&-", ">/dev/null", "| (exec <&-; sleep 0.5)"],
)
def test_an_answer_that_nobody_gets_stops_the_command(streams: str, ground: Ground) -> None:
    agent = make("claude-code", ground)
    command = "echo x" if "2>&-" not in streams else ""
    raw = json.dumps(agent.event_for(command)).encode()
    program = agent.hook["command"].removesuffix(OR_STOP)
    line = f"set -o pipefail; {program} {streams}"
    done = subprocess.run(["bash", "-c", line], input=raw, cwd=ground.project, capture_output=True, check=False)
    assert done.returncode == 2


def test_what_is_told_of_a_refusal_does_nothing_to_a_terminal(ground: Ground) -> None:
    outcome = make("claude-code", ground).consider("echo x", tool="\x1b]0;owned\x07\nBash")
    assert "\x1b" not in outcome.told
    assert outcome.command is None


@pytest.mark.parametrize(
    ("name", "more"),
    [("claude-code", {"run_in_background": True}), ("gemini-cli", {"is_background": True})],
)
def test_a_command_in_the_background_is_refused_with_what_to_do(
    name: str, more: dict[str, Any], ground: Ground
) -> None:
    outcome = make(name, ground).consider("sleep 100", **more)
    assert outcome.command is None
    assert "in the foreground" in outcome.told


def test_leaving_the_agents_own_sandbox_is_for_the_person_to_say_and_leaves_not_ours(
    ground: Ground, canary: Path
) -> None:
    agent = make("claude-code", ground)
    outcome = agent.consider(f"touch {canary}", dangerouslyDisableSandbox=True)
    assert outcome.asked
    assert "dangerouslyDisableSandbox" in outcome.told
    perform(outcome.command, ground.project)
    assert not canary.exists()
    assert not agent.consider(f"touch {canary}", dangerouslyDisableSandbox=False).asked


def test_while_the_agent_plans_nothing_is_changed(ground: Ground) -> None:
    agent = make("claude-code", ground)
    planned = perform(agent.consider("echo 1 > made; cat made", mode="plan").command, ground.project)
    assert planned.stdout == b"1\n"
    assert not (ground.project / "made").exists()
    perform(agent.consider("echo 1 > made; cat made", mode="acceptEdits").command, ground.project)
    assert (ground.project / "made").exists()


def test_a_sealed_command_is_not_sealed_twice(ground: Ground) -> None:
    agent = make("gemini-cli", ground)
    once = agent.consider("echo 'x'").command
    assert agent.consider(once).command == once


@pytest.mark.parametrize(
    "tail", ["; touch $CANARY", " ; touch $CANARY #'", "\ntouch $CANARY", " 'x'; touch $CANARY", "$(touch $CANARY)"]
)
def test_what_only_looks_sealed_is_sealed(tail: str, ground: Ground, canary: Path) -> None:
    agent = make("gemini-cli", ground)
    once = agent.consider("echo 'x'").command
    forged = f"{once}{tail}".replace("$CANARY", os.fspath(canary))
    outcome = agent.consider(forged)
    assert outcome.command != forged
    perform(outcome.command, ground.project)
    assert not canary.exists()
    perform(forged, ground.project)
    assert canary.exists(), "the forged command would have got out"


def test_an_agent_can_neither_apply_nor_undo_nor_leave_by_calling_us(ground: Ground, canary: Path) -> None:
    agent = make("claude-code", ground, "--hold")
    perform(agent.consider("echo 1 > held").command, ground.project)
    unspill = Path(sys.executable).with_name("unspill")
    for text in ("apply", "undo", "approve --help >/dev/null && false", f"run --unsandboxed -- touch {canary}"):
        done = perform(agent.consider(f"{unspill} {text}").command, ground.project)
        assert done.returncode != 0
    assert not (ground.project / "held").exists()
    assert not canary.exists()
    assert run_cli("apply", cwd=ground.project).returncode == 0
    assert (ground.project / "held").exists()


def test_options_of_the_hook_are_those_of_every_command(ground: Ground) -> None:
    (ground.project / "sub").mkdir()
    agent = make("claude-code", ground, "--confirm", "--sandbox", "it's", "--project", os.fspath(ground.project))
    outcome = agent.consider("pwd; echo 1 > here")
    assert outcome.asked
    done = perform(outcome.command, ground.project / "sub")
    assert done.stdout.decode().strip() == ground.inside(ground.project / "sub")
    assert (ground.project / "sub" / "here").exists()
    assert json.loads(run_cli("log", "--sandbox", "it's", "--json", cwd=ground.project).stdout)["runs"]
    assert not json.loads(run_cli("log", "--json", cwd=ground.project).stdout)["runs"]


@pytest.mark.parametrize("name", ["codex", "gemini-cli"])
def test_an_agent_that_can_not_be_made_to_ask_says_so_beforehand(name: str, ground: Ground) -> None:
    done = run_cli("hook", name, "--confirm", cwd=ground.project, stdin=b"{}")
    assert done.returncode == 2
    assert b"can't make" in done.stderr


def test_wrong_options_stop_commands_too(ground: Ground) -> None:
    for words in (("hook",), ("hook", "emacs"), ("hook", "claude-code", "--no-such"), ("hook", "codex", "codex")):
        assert run_cli(*words, cwd=ground.project, stdin=b"{}").returncode == 2


@pytest.mark.parametrize("name", KINDS)
def test_the_hook_is_called_for_what_runs_commands_and_for_no_file_tool(name: str, ground: Ground) -> None:
    agent = make(name, ground)
    tools = ["Bash", "Monitor", "PowerShell", "run_shell_command", "BashOutput", "Write", "Edit", "Read", "write_file"]
    called = {tool for tool in tools if re.search(f"^(?:{agent.matcher})$", tool)}
    assert agent.tool in called
    assert called <= {"Bash", "Monitor", "PowerShell", "run_shell_command"}


def test_a_hook_that_failed_otherwise_would_let_the_command_through() -> None:
    """The control arm: the agents here do what the real ones do, so that 2 and a good answer are what stops them."""
    given = {"command": "echo x"}
    agent = Codex.__new__(Codex)
    for code, output in ((1, b""), (127, b""), (0, b""), (125, b"{}"), (2, b"")):
        done = subprocess.CompletedProcess([], code, output, b"")
        assert agent.decide(given, done) == Outcome(command="echo x", arguments=given)
    ask = {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "ask", "updatedInput": {}}}
    done = subprocess.CompletedProcess([], 0, json.dumps(ask).encode(), b"")
    assert agent.decide(given, done) == Outcome(command="echo x", arguments=given)
