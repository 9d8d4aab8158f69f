# SPDX-License-Identifier: Apache-2.0
"""`unspill agent`: a whole program in the sandbox, with a home directory of its own. Real agents: tests/agents/real."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import find_blocks
from tests.kernel.internet import Internet, internet
from tests.kernel.internet_program import PUBLIC4, PUBLIC6
from tests.prepared import PROGRAM
from tests.scripted_model import ScriptedModel
from tests.support import Ground, run_cli
from unspill.cli import agent as verb
from unspill.cli.agent import _AgentOutput, _Checkpoints

pytestmark = pytest.mark.kernel

HOME = "/run/unspill-home"
# What is known of Claude Code holds for whatever has its name
MODEL_HOSTS = "[network]\nhosts = ['api.anthropic.com', 'console.anthropic.com', 'claude.ai', 'platform.claude.com']\n"


def give(ground: Ground, script: str, name: str = "claude") -> dict[str, str]:
    """Install a program in the person's home directory, and return the variables to find it."""
    path = ground.home / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"PATH": f"{path.parent}:{os.environ['PATH']}"}


def start(ground: Ground, script: str, *options: str, **variables: str) -> "subprocess.CompletedProcess[bytes]":
    """Start what claims to be Claude Code."""
    given = give(ground, script) | variables
    return run_cli("agent", *options, "claude", cwd=ground.project, variables=given)


@pytest.fixture
def allowed(ground: Ground) -> None:
    ground.configure(MODEL_HOSTS)


def test_its_home_directory_lasts_and_nobody_else_has_it(ground: Ground, allowed: None) -> None:
    (ground.home / ".ssh").mkdir()
    (ground.home / ".ssh/id_rsa").write_text("the key")
    (ground.home / ".claude.json").write_text('{"theme": "dark", "mcpServers": {"x": {"env": {"TOKEN": "t"}}}}')
    looks = f"cat ~/login; cat ~/.claude.json; cat {ground.home}/.ssh/id_rsa; echo logged-in > ~/login; echo $HOME"
    first = start(ground, looks)
    assert first.stdout.decode().split() == ["{", '"theme":', '"dark"', "}", HOME]
    said = first.stderr.decode()
    assert "unspill: Made a home directory for Claude Code from copies of ~/.claude.json.\n" in said
    assert "the key" not in said
    second = start(ground, looks)
    assert second.stdout.decode().split() == ["logged-in", "{", '"theme":', '"dark"', "}", HOME]
    assert "Made a home" not in second.stderr.decode()
    assert not (ground.home / "login").exists()
    other = run_cli("agent", "--", "sh", "-c", f"ls -A ~; ls -A {HOME}/.claude.json", cwd=ground.project)
    assert other.stdout == b""
    plain = run_cli("run", "--", "sh", "-c", f"ls -A {HOME}", cwd=ground.project)
    assert b"No such file" in plain.stderr


def test_its_own_edits_and_commands_are_one_session_that_is_undone_in_one_step(ground: Ground, allowed: None) -> None:
    ground.write("notes", "alpha\n")
    assert start(ground, "echo beta >> notes; mkdir made; echo x > made/file", "--session", "task").returncode == 0
    assert (ground.project / "made/file").read_text() == "x\n"
    sessions = json.loads(run_cli("sessions", "--json", cwd=ground.project).stdout)["sessions"]
    assert [one["session"] for one in sessions] == ["task"]
    assert run_cli("undo", "--session", "task", cwd=ground.project).returncode == 0
    assert [path.name for path in ground.project.iterdir()] == ["notes"]
    assert (ground.project / "notes").read_text() == "alpha\n"


def test_a_session_without_a_name_is_named_after_the_agent(ground: Ground, allowed: None) -> None:
    start(ground, "echo x > made")
    [session] = json.loads(run_cli("sessions", "--json", cwd=ground.project).stdout)["sessions"]
    assert session["session"].startswith("claude-")


def test_what_it_changes_is_applied_at_a_pause_and_each_checkpoint_can_be_gone_back_to(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb, "_PAUSE_S", 0.2)
    monkeypatch.setattr(verb, "_LOOK_S", 0.02)
    with ground.sandbox(after="apply") as sandbox, sandbox.live() as live:
        sandbox._project.store.session = "task"
        output = _AgentOutput()
        reading, writing = os.pipe()
        done = []
        with _Checkpoints(live, output, is_paced=True):
            thread = threading.Thread(
                target=lambda: done.append(
                    live.run("echo 1 > first; read line; echo 2 > second", stdin=reading, timeout=50)
                )
            )
            thread.start()
            deadline = time.monotonic() + 30
            while not (ground.project / "first").exists():
                # It prints, and then pauses
                output.note(b"working")
                time.sleep(0.5)
                assert time.monotonic() < deadline
            assert not (ground.project / "second").exists()
            os.write(writing, b"\n")
            thread.join(30)
        os.close(reading)
        os.close(writing)
        assert done[0].ok
        assert (ground.project / "second").read_text() == "2\n"
        session = sandbox.find_session("task")
        assert [one.changed for one in session.operations] == [1, 1]
        sandbox.undo_session("task", to=session.operations[0].number)
        assert sorted(path.name for path in ground.project.iterdir()) == ["first"]


def test_one_that_waits_for_its_person_is_left_alone() -> None:
    output = _AgentOutput()
    now = output.printed_s
    paced = _Checkpoints(None, output, is_paced=True)  # type: ignore[arg-type]
    unpaced = _Checkpoints(None, output, is_paced=False)  # type: ignore[arg-type]
    assert not paced._is_due(now + 3600)
    assert unpaced._is_due(now + 3600)
    paced._taken = now - 1
    assert not paced._is_due(now + 0.1)
    assert paced._is_due(now + 2)
    paced._taken = now - 60
    assert paced._is_due(now + 0.1)


def test_its_program_is_found_in_the_home_directory_and_nothing_beside_it(ground: Ground, allowed: None) -> None:
    given = give(ground, 'ls "$(dirname "$0")"')
    (ground.home / "tools").mkdir()
    (ground.home / "tools/token").write_text("of another tool")
    (ground.home / "bin/claude").rename(ground.home / "tools/claude")
    (ground.home / "bin/claude").symlink_to("../tools/claude")
    done = run_cli("agent", "claude", cwd=ground.project, variables=given)
    assert done.stdout.split() == [b"claude"]


def test_it_gets_its_own_variables_and_no_others(ground: Ground, allowed: None) -> None:
    done = start(ground, "env", ANTHROPIC_API_KEY="own", GITHUB_TOKEN="others", CLAUDE_CONFIG_DIR="/nowhere")
    lines = done.stdout.decode().splitlines()
    assert "ANTHROPIC_API_KEY=own" in lines
    assert not [line for line in lines if line.startswith(("GITHUB_TOKEN", "CLAUDE_CONFIG_DIR"))]


def test_its_model_hosts_are_asked_for_and_without_them_nothing_runs(ground: Ground) -> None:
    done = start(ground, "echo ran > made", "--ask", "deny")
    assert done.returncode == 125
    assert done.stderr.decode().startswith("unspill: Made a home directory")
    assert "api.anthropic.com" in done.stderr.decode()
    assert not (ground.project / "made").exists()

    given = give(ground, "echo ran > made")
    found = []
    thread = threading.Thread(
        target=lambda: found.append(run_cli("agent", "--ask", "queue", "claude", cwd=ground.project, variables=given))
    )
    thread.start()
    deadline = time.monotonic() + 30
    while b"api.anthropic.com" not in run_cli("requests", cwd=ground.project).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    [asked] = json.loads(run_cli("requests", "--json", cwd=ground.project).stdout)["requests"]
    assert run_cli("approve", asked["id"], cwd=ground.project).returncode == 0
    thread.join(60)
    assert found[0].returncode == 0, found[0].stderr
    assert (ground.project / "made").read_text() == "ran\n"


def test_the_first_start_is_as_the_document_shows(ground: Ground) -> None:
    text = (Path(__file__).parents[2] / "docs/coding-agents.md").read_text()
    [block] = [one for one in find_blocks(text) if one.content[0] == "$ unspill agent claude"]
    (ground.home / ".claude").mkdir()
    (ground.home / ".claude/settings.json").write_text("{}")
    (ground.home / ".claude.json").write_text("{}")
    command = give(ground, "true")
    with subprocess.Popen(
        [PROGRAM, "agent", "--ask", "queue", "claude"],
        cwd=ground.project,
        env={**os.environ, **command},
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline().decode() == block.content[1] + "\n"
        deadline = time.monotonic() + 30
        while not (asked := json.loads(run_cli("requests", "--json", cwd=ground.project).stdout)["requests"]):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        shown = block.content[3].strip().split("...")
        assert asked[0]["text"].startswith(shown[0])
        assert asked[0]["text"].splitlines()[0].endswith(shown[1])
        run_cli("deny", asked[0]["id"], cwd=ground.project)
        assert process.wait(30) == 125


def test_a_model_on_this_machine_is_reached_by_its_port_and_nothing_else_is(ground: Ground) -> None:
    with ScriptedModel() as model, ScriptedModel() as canary:
        script = f"for url in {model.url}/model {canary.url}/canary; do curl -sS -m 5 $url; done"
        done = start(ground, script, "--expose", str(model.port), ANTHROPIC_BASE_URL=model.url)
        assert b"connect" in done.stderr
        assert model.paths == ["/model"]
        assert canary.paths == []


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory, trusted_bwrap: bytes) -> Iterator[Internet]:
    with internet(tmp_path_factory.mktemp("internet"), trusted_bwrap) as made:
        yield made


def test_of_all_hosts_it_reaches_those_that_are_allowed(net: Internet) -> None:
    net.configure("[network]\nhosts = ['example.org']\n")
    script = "for host in example.org npm.example.org; do curl -sS -m 20 http://$host/hello; done"
    done = net.cli("agent", "--", "sh", "-c", script)
    assert "hello" in done.stdout
    assert "npm.example.org:80 was refused" in done.stdout + done.stderr
    assert [port for address, port in net.met() if address in (PUBLIC4, PUBLIC6)] == [80]
    assert net.asked() == ["example.org"]


@pytest.mark.parametrize("is_new", [False, True])
def test_links_that_it_leaves_in_its_home_lead_unspill_nowhere(ground: Ground, allowed: None, is_new: bool) -> None:
    (ground.home / "precious").mkdir()
    (ground.home / "precious/file").write_text("precious")
    plants = (
        f"cd ~; ln -s {ground.home}/precious a; mkdir .claude; ln -s {ground.home}/precious/file .claude/settings.json"
    )
    assert start(ground, plants).returncode == 0
    (ground.home / ".claude").mkdir()
    (ground.home / ".claude/settings.json").write_text('{"model": "opus"}')
    again = start(ground, "ls -A ~; cat ~/a/file", *(["--new-home"] if is_new else []))
    assert again.stdout.split() == ([b".claude"] if is_new else [b".claude", b"a"])
    assert (ground.home / "precious/file").read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "unspill: no agent is named"),
        (("no-such-agent",), "unspill: `no-such-agent` is not on your PATH"),
        (("--publish", "x", "sh"), "unspill: not a port: x"),
    ],
)
def test_what_can_not_be_started_is_refused(ground: Ground, words: tuple[str, ...], problem: str) -> None:
    done = run_cli("agent", *words, cwd=ground.project)
    assert done.returncode == 125
    assert problem in done.stderr.decode().splitlines()


def test_in_a_rootfs_there_is_no_agent_of_this_machine(ground: Ground) -> None:
    ground.configure("view = 'rootfs'\n")
    done = start(ground, "true")
    assert done.returncode == 125
    assert "Claude Code is installed on this machine, which a rootfs does not show" in done.stderr.decode()


def test_two_at_once_in_one_project_have_a_sandbox_each(ground: Ground, allowed: None) -> None:
    given = give(ground, 'echo x > "$1"; touch ~/"$1"; until test -e ~/both; do sleep 0.05; done')
    home = ground.home / ".local/share/unspill/homes/claude"

    def begin(word: str) -> "subprocess.Popen[bytes]":
        words = [PROGRAM, "agent", "--quiet", "claude", word]
        begun = subprocess.Popen(words, cwd=ground.project, env={**os.environ, **given})
        deadline = time.monotonic() + 40
        while not (home / word).exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return begun

    with begin("one") as one, begin("two") as two:
        (home / "both").write_text("")
        assert (one.wait(40), two.wait(40)) == (0, 0)
    assert sorted(path.name for path in ground.project.iterdir()) == ["one", "two"]
    [kept] = json.loads(run_cli("status", "--json", cwd=ground.project).stdout)["homes"]
    assert kept["home"] == os.fspath(home)


def test_its_exit_code_is_passed_on(ground: Ground, allowed: None) -> None:
    assert start(ground, "exit 7").returncode == 7


def test_a_home_of_more_than_the_limit_ends_it(ground: Ground) -> None:
    ground.configure(MODEL_HOSTS + "[limits]\nlayer_bytes = '4M'\n")
    done = start(ground, "head -c 20000000 /dev/urandom > ~/much; sleep 30; echo survived")
    assert done.returncode != 0
    assert b"survived" not in done.stdout


def test_the_state_and_the_homes_are_not_shown(ground: Ground, allowed: None) -> None:
    done = start(ground, f"ls {ground.state} {ground.home}/.local/share/unspill")
    assert done.stdout == b""
    assert (ground.home / ".local/share/unspill/homes/claude").is_dir()
