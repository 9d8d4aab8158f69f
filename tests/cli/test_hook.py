# SPDX-License-Identifier: Apache-2.0
"""Commands of Claude Code by its hook: sealed to the byte, never let through as they were."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import unspill
from tests.cli.coding_agents import OR_STOP, ClaudeCode, Outcome
from tests.kernel.terminal_person import ASKED, Person
from tests.support import Ground, lasting, processes_with, run_cli, starts

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
    sealed = perform(ClaudeCode(ground.project).consider(text).command, ground.project)
    assert (sealed.stdout, sealed.returncode) == (alone.stdout, alone.returncode), sealed


@pytest.mark.parametrize(("text", "gets_out"), REACHING.items(), ids=range(len(REACHING)))
def test_no_command_gets_out_of_its_quotes(
    text: str, gets_out: bool, ground: Ground, canary: Path, tmp_path: Path
) -> None:
    text = text.replace("$CANARY", os.fspath(canary))
    perform(ClaudeCode(ground.project).consider(text).command, ground.project)
    assert not canary.exists()
    perform_plain(text, tmp_path / "plain")
    assert canary.exists() is gets_out


def test_the_agent_runs_the_sealed_command_in_place_of_its_own(ground: Ground, canary: Path) -> None:
    agent = ClaudeCode(ground.project)
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


def test_a_command_reads_nothing_of_what_the_agent_gives_its_shell(ground: Ground) -> None:
    """Some agents give it a pipe that never ends, for which a command would wait."""
    outcome = ClaudeCode(ground.project).consider("cat; echo read all")
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
    outcome = ClaudeCode(ground.project).consider("echo hello", **given)
    assert outcome.arguments == {"command": outcome.command, **given}


@pytest.mark.parametrize(("command", "more", "said"), NEVER_RUN, ids=[said for _, _, said in NEVER_RUN])
def test_what_is_not_understood_is_not_run(command: str, more: dict[str, Any], said: str, ground: Ground) -> None:
    outcome = ClaudeCode(ground.project).consider(command, **more)
    assert outcome.command is None
    assert said in outcome.told
    assert "\nNothing was run.\n" in outcome.told


@pytest.mark.parametrize("command", [None, 7, ["rm", "-rf"], {"text": "x"}])
def test_a_command_that_is_no_text_is_not_run(command: object, ground: Ground) -> None:
    assert ClaudeCode(ground.project).consider(command).command is None


@pytest.mark.parametrize("raw", NO_EVENTS, ids=range(len(NO_EVENTS)))
def test_what_is_no_event_stops_the_command(raw: bytes, ground: Ground) -> None:
    done = ClaudeCode(ground.project).send(raw)
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
    done = ClaudeCode(ground.project).send(event % given)
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize(
    "streams",
    [">/dev/full", ">/dev/full 2>/dev/full", "2>&-", "<&-", ">&-", ">/dev/null", "| (exec <&-; sleep 0.5)"],
)
def test_an_answer_that_nobody_gets_stops_the_command(streams: str, ground: Ground) -> None:
    agent = ClaudeCode(ground.project)
    command = "echo x" if "2>&-" not in streams else ""
    raw = json.dumps(agent.event_for(command)).encode()
    program = agent.hook["command"].removesuffix(OR_STOP)
    line = f"set -o pipefail; {program} {streams}"
    done = subprocess.run(["bash", "-c", line], input=raw, cwd=ground.project, capture_output=True, check=False)
    assert done.returncode == 2


def test_what_is_told_of_a_refusal_does_nothing_to_a_terminal(ground: Ground) -> None:
    outcome = ClaudeCode(ground.project).consider("echo x", tool="\x1b]0;owned\x07\nBash")
    assert "\x1b" not in outcome.told
    assert outcome.command is None


def test_a_command_in_the_background_shares_its_sandbox_and_ends_with_the_agents_own(
    ground: Ground,
) -> None:
    agent = ClaudeCode(ground.project)
    word = lasting()
    outcome = agent.consider(f"until cat wish; do sleep 0.02; done 2>/dev/null; sleep {word}", run_in_background=True)
    assert outcome.command is not None, outcome.told
    with subprocess.Popen(["bash", "-c", outcome.command], cwd=ground.project, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        deadline = time.monotonic() + 30
        while not list((ground.state / "locks").glob("*.socket")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        perform(agent.consider("echo granted > wish").command, ground.project)
        assert shell.stdout.readline() == b"granted\n"
        assert starts(word)
        for path in Path(f"/proc/{shell.pid}/task/{shell.pid}/children").read_text().split() or [str(shell.pid)]:
            os.kill(int(path), signal.SIGTERM)
        shell.wait(30)
    assert processes_with(word) == []
    assert (ground.project / "wish").read_text() == "granted\n"


def test_leaving_the_agents_own_sandbox_is_for_the_person_to_say_and_leaves_not_ours(
    ground: Ground, canary: Path
) -> None:
    agent = ClaudeCode(ground.project)
    outcome = agent.consider(f"touch {canary}", dangerouslyDisableSandbox=True)
    assert outcome.asked
    assert "dangerouslyDisableSandbox" in outcome.told
    perform(outcome.command, ground.project)
    assert not canary.exists()
    assert not agent.consider(f"touch {canary}", dangerouslyDisableSandbox=False).asked


def test_while_the_agent_plans_nothing_is_changed(ground: Ground) -> None:
    agent = ClaudeCode(ground.project)
    planned = perform(agent.consider("echo 1 > made; cat made", mode="plan").command, ground.project)
    assert planned.stdout == b"1\n"
    assert not (ground.project / "made").exists()
    perform(agent.consider("echo 1 > made; cat made", mode="acceptEdits").command, ground.project)
    assert (ground.project / "made").exists()


def test_a_sealed_command_is_not_sealed_twice(ground: Ground) -> None:
    agent = ClaudeCode(ground.project)
    once = agent.consider("echo 'x'").command
    assert agent.consider(once).command == once


@pytest.mark.parametrize(
    "tail", ["; touch $CANARY", " ; touch $CANARY #'", "\ntouch $CANARY", " 'x'; touch $CANARY", "$(touch $CANARY)"]
)
def test_what_only_looks_sealed_is_sealed(tail: str, ground: Ground, canary: Path) -> None:
    agent = ClaudeCode(ground.project)
    once = agent.consider("echo 'x'").command
    forged = f"{once}{tail}".replace("$CANARY", os.fspath(canary))
    outcome = agent.consider(forged)
    assert outcome.command != forged
    perform(outcome.command, ground.project)
    assert not canary.exists()
    perform(forged, ground.project)
    assert canary.exists(), "the forged command would have got out"


def test_an_agent_can_neither_apply_nor_undo_nor_leave_by_calling_us(ground: Ground, canary: Path) -> None:
    ground.configure('after = "hold"\n')
    agent = ClaudeCode(ground.project)
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
    agent = ClaudeCode(ground.project, "--sandbox", "it's", "--project", os.fspath(ground.project))
    outcome = agent.consider("pwd; echo 1 > here")
    done = perform(outcome.command, ground.project / "sub")
    assert done.stdout.decode().strip() == ground.inside(ground.project / "sub")
    assert (ground.project / "sub" / "here").exists()
    assert json.loads(run_cli("log", "--sandbox", "it's", "--json", cwd=ground.project).stdout)["runs"]
    assert not json.loads(run_cli("log", "--json", cwd=ground.project).stdout)["runs"]


def test_wrong_options_stop_commands_too(ground: Ground) -> None:
    for words in (("hook",), ("hook", "emacs"), ("hook", "claude-code", "--no-such"), ("hook", "claude-code", "twice")):
        assert run_cli(*words, cwd=ground.project, stdin=b"{}").returncode == 2


def test_the_hook_is_called_before_what_runs_commands_or_writes_files_and_nothing_else(ground: Ground) -> None:
    tools = "Bash Monitor PowerShell BashOutput Write Edit MultiEdit NotebookEdit Read Glob mcp__x__Bash".split()
    called = [tool for tool in tools if re.search(ClaudeCode(ground.project).matcher, tool)]
    assert called == "Bash Monitor PowerShell Write Edit MultiEdit NotebookEdit".split()


def test_a_hook_that_failed_otherwise_would_let_the_command_through() -> None:
    """The control arm: the agent here does what the real one does, so that 2 and a good answer are what stops it."""
    given = {"command": "echo x"}
    agent = ClaudeCode.__new__(ClaudeCode)
    for code, output in ((1, b""), (127, b""), (0, b""), (125, b"{}")):
        done = subprocess.CompletedProcess([], code, output, b"")
        assert agent.decide(given, done) == Outcome(command="echo x", arguments=given)


def test_the_plug_in_names_this_very_program_whatever_comes_first_on_the_path(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: a hook that looks for `unspill` on the PATH finds what a sealed command has put there."""
    planted, canary = ground.project / ".venv/bin/unspill", ground.home / "canary"
    agent = ClaudeCode(ground.project)
    text = f"mkdir -p .venv/bin; printf '#!/bin/sh\\ntouch {canary}\\n' > {planted}; chmod +x {planted}"
    perform(agent.consider(text).command, ground.project)
    monkeypatch.setenv("PATH", f"{planted.parent}:{os.environ['PATH']}")
    assert perform(agent.consider("echo x").command, ground.project).stdout == b"x\n"
    assert not canary.exists()
    agent.hook["command"] = f"unspill hook claude-code{OR_STOP}"
    agent.consider("echo x")
    assert canary.exists()


def test_the_plug_in_is_made_anew_each_time_where_no_command_reaches_it(ground: Ground) -> None:
    """Also as the first thing of all, before there is a state directory."""
    shutil.rmtree(ground.state, ignore_errors=True)
    agent = ClaudeCode(ground.project)
    assert ground.state.stat().st_mode & 0o777 == 0o700
    made = agent.plugin / "hooks/hooks.json"
    text = made.read_text()
    made.write_text("{}")
    assert ClaudeCode(ground.project).plugin == agent.plugin
    assert made.read_text() == text
    assert sorted(path.name for path in agent.plugin.rglob("*") if path.is_file()) == ["hooks.json", "plugin.json"]
    done = perform(agent.consider(f"cat {made} || echo x > {made}").command, ground.project)
    assert done.stdout == b""
    assert made.read_text() == text


GONE = {
    "codex": ("~/.codex/hooks.json", '`sandbox_mode = "danger-full-access"`', "unspill agent codex"),
    "gemini-cli": ("~/.gemini/settings.json", "`hook gemini-cli`", "unspill agent gemini"),
}


@pytest.mark.parametrize("name", GONE)
def test_an_agent_that_lost_its_hooks_runs_nothing_and_is_told_what_to_take_out(name: str, ground: Ground) -> None:
    """With the settings that 0.2 wrote: its hook before a patch ended well whatever became of it."""
    event = {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "echo x"}}
    done = run_cli("hook", name, cwd=ground.project, stdin=json.dumps(event).encode())
    assert done.returncode == 2
    for words in GONE[name]:
        assert words in done.stderr.decode()
    if name == "codex":
        assert json.loads(done.stdout)["hookSpecificOutput"]["permissionDecision"] == "deny"


PROGRAM = str(Path(sys.executable).with_name("unspill"))
SCRIPT = Path(__file__).parents[2] / "scripts" / "unspill"
# What a module does where it is imported, and how any other verb ends then
BREAKING = {
    "raise ImportError('damaged')": 5,
    "raise MemoryError": 5,
    "raise KeyboardInterrupt": 130,
    "raise BrokenPipeError": 141,
    "raise SystemExit(0)": 0,
    "raise GeneratorExit": 1,
    "import sys; del sys.excepthook; raise ValueError": 1,
}
KILLED = {"import os; os.kill(os.getpid(), 9)": -9, "import os; os._exit(77)": 77}


@pytest.fixture
def agent(ground: Ground) -> ClaudeCode:
    return ClaudeCode(ground.project)


def replace_module(ground: Ground, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    """Put a module of ours before all others, outside of the project."""
    path = ground.top / "broken" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(ground.top / "broken"))


def call(words: list[str], agent: ClaudeCode) -> "subprocess.CompletedProcess[bytes]":
    raw = json.dumps(agent.event_for("echo x")).encode()
    return subprocess.run(words, input=raw, cwd=agent.project, capture_output=True, check=False, timeout=60)


@pytest.mark.parametrize(("text", "otherwise"), BREAKING.items())
def test_a_defect_stops_the_command(
    text: str, otherwise: int, agent: ClaudeCode, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_module(ground, monkeypatch, "json.py", text)
    done = call([PROGRAM, "hook", "claude-code"], agent)
    assert (done.returncode, done.stdout) == (2, b"")
    assert run_cli("log", "--json", cwd=ground.project).returncode == otherwise


@pytest.mark.parametrize("words", [[sys.executable, str(SCRIPT)], [sys.executable, "-m", "unspill"]])
@pytest.mark.parametrize("text", ["raise ImportError('damaged')", "raise KeyboardInterrupt", "def main("])
def test_a_damaged_installation_stops_the_command(
    words: list[str], text: str, agent: ClaudeCode, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_module(ground, monkeypatch, "unspill/cli/main.py", text)
    damaged = ground.top / "broken/unspill"
    (damaged / "__init__.py").touch()
    shutil.copy(unspill.__path__[0] + "/__main__.py", damaged)
    done = call([*words, "hook", "claude-code"], agent)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.endswith(b"Nothing was run.\n")
    assert call([*words, "log"], agent).returncode not in (0, 2)


@pytest.mark.parametrize(("text", "otherwise"), KILLED.items())
def test_the_settings_stop_the_command_where_the_hook_is_killed(
    text: str, otherwise: int, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = ClaudeCode(ground.project)
    assert agent.hook["command"].endswith(OR_STOP)
    replace_module(ground, monkeypatch, "json.py", text)
    agent.hook["command"] = f"{PROGRAM} hook claude-code{OR_STOP}"
    assert agent.consider("echo x").command is None
    done = call([PROGRAM, "hook", "claude-code"], agent)
    assert done.returncode == otherwise
    assert agent.decide({"command": "echo x"}, done).command == "echo x"


def test_the_settings_stop_the_command_where_there_is_no_unspill_any_more(ground: Ground) -> None:
    agent = ClaudeCode(ground.project)
    agent.hook["command"] = " ".join([str(ground.home / "gone"), *agent.hook["command"].split()[1:]])
    assert agent.consider("echo x").command is None
    agent.hook["command"] = agent.hook["command"].removesuffix(OR_STOP)
    assert agent.consider("echo x").command == "echo x"


ASKING = "curl -sS -m 20 http://one.example.org/ >&2; echo ended"
ASKED_FOR = "[network]\nask = true\n[permissions]\n"
# Long enough to be answered on a busy machine; where no answer can come, the command is to end soon
CONFIG, SHORT = f"{ASKED_FOR}wait_s = 10\n", f"{ASKED_FOR}wait_s = 3\n"
# Leads a session on the terminal, as a shell does that an agent gave one
STARTED = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(fd, stream)
os.execv("/bin/sh", ["sh", "-c", sys.argv[2]])
"""


@pytest.fixture
def model() -> Iterator[Person]:
    """Who sees the terminal and types there: here the model, and no person."""
    somebody = Person()
    yield somebody
    somebody.hang_up()


def play(command: str | None, ground: Ground, model: Person) -> str:
    """Run a command on the terminal, type `always` whenever that looks like it could help; return what was shown."""
    assert command is not None
    words = [sys.executable, "-c", STARTED, os.ttyname(model.slave), command]
    with subprocess.Popen(words, cwd=ground.project, start_new_session=True, stdin=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            model.look(0.2)
            if ASKED in model.seen or "unspill approve" in model.seen:
                time.sleep(0.8)
                model.type("always\n")
        process.kill()
    return model.look(0.1)


def grants(ground: Ground) -> list[str]:
    return [grant["scope"] for grant in json.loads(run_cli("grants", "--json", cwd=ground.project).stdout)["grants"]]


def make_configured(ground: Ground, config: str) -> ClaudeCode:
    ground.configure(config)
    return ClaudeCode(ground.project)


@pytest.mark.parametrize("approver", ["", 'approver = "terminal"\n'], ids=["by default", "configured"])
def test_a_model_gets_no_grant_by_what_it_types(approver: str, ground: Ground, model: Person) -> None:
    sealed = make_configured(ground, SHORT + approver).consider(ASKING).command
    assert sealed is not None
    shown = play(sealed, ground, model)
    assert "ended" in shown
    assert "unspill asks" not in shown
    assert "Waiting until" in shown, "somebody else may answer, elsewhere"
    assert grants(ground) == []


def test_without_the_rule_the_model_answers_its_own_question(ground: Ground, model: Person) -> None:
    """The control arm: the same command line with nothing said about whom to ask."""
    sealed = make_configured(ground, CONFIG).consider(ASKING).command
    assert sealed is not None
    assert " --ask queue " in sealed
    shown = play(sealed.replace(" --ask queue ", " "), ground, model)
    assert "unspill asks" in shown
    assert grants(ground) == ["always"]


@pytest.mark.parametrize("whom", ["terminal", "queue"])
def test_a_model_can_not_say_whom_to_ask(whom: str, ground: Ground, model: Person) -> None:
    agent = make_configured(ground, CONFIG)
    once = agent.consider(ASKING).command
    assert once is not None
    texts = [
        once.replace("--ask queue", f"--ask {whom}").replace("--project", f"--ask {whom} --project"),
        once.replace(" --ask queue", f" --ask {whom}") + " ",
        f"{once.partition(' run ')[0]} run --ask {whom} --network -- true",
        f"--ask {whom} -- true",
        f"' --ask {whom} -- true '",
    ]
    for text in texts:
        sealed = agent.consider(text).command
        assert sealed != text
        assert "unspill asks" not in play(sealed, ground, model)
    assert grants(ground) == []


@pytest.mark.parametrize("where", ["config", "project"])
def test_where_nobody_is_to_be_asked_nothing_waits(where: str, ground: Ground, model: Person) -> None:
    rule = 'approver = "deny"\n'
    if where == "project":
        ground.write(".unspill.toml", f"[permissions]\n{rule}")
    agent = make_configured(ground, SHORT + (rule if where == "config" else ""))
    shown = play(agent.consider(ASKING).command, ground, model)
    assert "ended" in shown
    assert "Waiting until" not in shown
    assert json.loads(run_cli("requests", "--json", cwd=ground.project).stdout)["requests"] == []
    assert grants(ground) == []


def test_a_person_answers_the_queue_elsewhere(ground: Ground, model: Person) -> None:
    sealed = make_configured(ground, CONFIG).consider("curl -sS -m 7 http://one.example.org/; echo ended").command
    assert sealed is not None
    with subprocess.Popen(["sh", "-c", sealed], cwd=ground.project, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "unspill approve" in line
        assert run_cli("approve", line.split()[-1], "--scope", "sandbox", cwd=ground.project).returncode == 0
        process.communicate(timeout=30)
    assert grants(ground) == ["sandbox"]


def test_a_configuration_that_can_not_be_read_stops_the_command(ground: Ground) -> None:
    outcome = make_configured(ground, "nonsense = 1\n").consider("echo x")
    assert outcome.command is None
    assert "nonsense" in outcome.told


def test_a_session_begins_with_what_the_model_is_told(ground: Ground) -> None:
    event = json.dumps({"hook_event_name": "SessionStart", "source": "startup", "cwd": str(ground.project)})
    done = run_cli("hook", "claude-code", cwd=ground.project, stdin=event.encode())
    said = json.loads(done.stdout)["hookSpecificOutput"]
    assert said["hookEventName"] == "SessionStart"
    assert said["additionalContext"].startswith("Shell commands in this session run sealed by unspill")
    assert "`unspill approve`" in said["additionalContext"]


CLAUDE_CODE = {
    "of today": ({"AI_AGENT": "claude-code_2-1-326_harness", "CLAUDE_CODE_ENTRYPOINT": "cli"}, True),
    "the first that fails closed": ({"AI_AGENT": "claude-code_2-1-295_harness"}, True),
    "the last that fails open": ({"AI_AGENT": "claude-code_2-1-294_harness"}, False),
    "of the spring": ({"AI_AGENT": "claude-code/2.1.120/harness", "CLAUDE_CODE_ENTRYPOINT": "cli"}, False),
    "from before it said its version": ({"CLAUDE_CODE_ENTRYPOINT": "cli"}, False),
    "a version that is none": ({"AI_AGENT": "claude-code_next_harness"}, False),
    "in another agent that says its own": ({"AI_AGENT": "other_1-0-0", "CLAUDE_CODE_ENTRYPOINT": "cli"}, True),
    "nothing is known": ({}, True),
}


@pytest.mark.parametrize("case", CLAUDE_CODE)
def test_a_version_that_fails_open_is_refused_with_the_remedy(
    case: str, ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables, is_taken = CLAUDE_CODE[case]
    for name in ("AI_AGENT", "CLAUDE_CODE_ENTRYPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    outcome = ClaudeCode(ground.project).consider("echo x")
    assert (outcome.command is not None) is is_taken
    if not is_taken:
        assert "Update it to 2.1.295 or newer: claude update." in outcome.told
