# SPDX-License-Identifier: Apache-2.0
"""Sessions of agents: commands and the agent's own edits, undone together or up to a step; others' edits stay."""

import json
import os
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import Ground, run_cli
from unspill import Sandbox
from unspill.errors import ApplyFailed, UsageError
from unspill.layers.trees import remove_tree
from unspill.sandbox.upkeep import prune

pytestmark = [pytest.mark.kernel, pytest.mark.any_bwrap]

Tree = dict[str, tuple[str, int, int]]


def tree_of(top: Path) -> Tree:
    """Return what a project has: contents, modes, and times of files; directories by their modes."""
    found: Tree = {}
    for path in sorted(top.rglob("*")):
        status = path.lstat()
        is_dir = path.is_dir() and not path.is_symlink()
        content = "" if is_dir else os.readlink(path) if path.is_symlink() else path.read_text()
        found[str(path.relative_to(top))] = content, status.st_mode, 0 if is_dir else status.st_mtime_ns
    return found


class Agent:
    """A coding agent with a shell that is sealed, and tools of its own that write as the person."""

    def __init__(self, ground: Ground, session: str = "agent-1") -> None:
        self.top = ground.project
        self.sandbox = Sandbox(self.top, policy=ground.policy(after="apply"), session=session)
        ground.opened.append(self.sandbox)
        self._calls = 0

    def edit(self, names: list[str], do: Callable[[], object]) -> None:
        self._calls += 1
        call = f"call {self._calls}"
        self.sandbox.note_edit(call, [os.fsencode(self.top / name) for name in names])
        do()
        self.sandbox.record_edit(call, asked_by="agent, Edit")

    def write(self, name: str, text: str, *, by_rename: bool = False) -> None:
        path = self.top / name

        def do() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not by_rename:
                path.write_text(text)
                return
            new = path.with_name(".new")
            new.write_text(text)
            new.rename(path)

        self.edit([name], do)

    def delete(self, name: str) -> None:
        self.edit([name], (self.top / name).unlink)

    def run(self, command: str) -> None:
        assert self.sandbox.run(command).ok


@pytest.fixture(params=["one mount", "two mounts"])
def agent(request: pytest.FixtureRequest, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    for name in ("a", "b", "c"):
        ground.write(name, f"{name} before\n")
    if request.param == "one mount":
        yield Agent(ground)
        return
    state = tempfile.mkdtemp(dir="/dev/shm")
    assert os.stat(state).st_dev != ground.project.stat().st_dev
    monkeypatch.setenv("UNSPILL_STATE_DIR", state)
    yield Agent(ground)
    remove_tree(os.fsencode(state))


STEPS: dict[str, Callable[[Agent, random.Random, str], None]] = {
    "a command appends": lambda agent, chance, name: agent.run(f"echo {chance.random()} >> {name}"),
    "a command replaces": lambda agent, chance, name: agent.run(
        f"echo {chance.random()} > .new; chmod 755 .new; mv .new {name}"
    ),
    "a command deletes": lambda agent, _chance, name: agent.run(f"rm -f {name}"),
    "a command makes a directory": lambda agent, _chance, name: agent.run(f"mkdir -p of-{name}; echo x > of-{name}/x"),
    "an edit in place": lambda agent, chance, name: agent.write(name, f"{chance.random()}\n"),
    "an edit by a rename": lambda agent, chance, name: agent.write(name, f"{chance.random()}\n", by_rename=True),
    "a new file below": lambda agent, chance, name: agent.write(f"made-{name}/below/file", f"{chance.random()}\n"),
    "a deletion": lambda agent, _chance, name: agent.delete(name) if (agent.top / name).exists() else None,
    "two files at once": lambda agent, chance, name: agent.edit(
        [name, "c"],
        lambda: [(agent.top / one).write_text(f"{chance.random()}\n") for one in (name, "c")],
    ),
}


def play(agent: Agent, seed: int, count: int) -> list[tuple[int, Tree]]:
    """Play random steps; return the last operation and the tree after each of them that changed something."""
    chance = random.Random(seed)
    found: list[tuple[int, Tree]] = []
    for _ in range(count):
        STEPS[chance.choice(list(STEPS))](agent, chance, chance.choice("abc"))
        last = agent.sandbox.operations(limit=1)
        if last and (not found or found[-1][0] != last[0].number):
            found.append((last[0].number, tree_of(agent.top)))
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_session_is_undone_to_any_step_and_to_the_very_tree(agent: Agent, seed: int, full: bool) -> None:
    before = tree_of(agent.top)
    states = play(agent, seed, 40 if full else 16)
    for number, tree in reversed(states[:-1]):
        for operation in agent.sandbox.undo_session(to=number):
            assert operation.left == ()
        assert tree_of(agent.top) == tree
    planned = agent.sandbox.undo_session(dry_run=True)
    assert tree_of(agent.top) != before
    assert [left for one in planned for left in one.left] == []
    done = agent.sandbox.undo_session()
    assert [one.of for one in done] == [one.of for one in planned]
    assert tree_of(agent.top) == before
    with pytest.raises(UsageError, match="is left to undo"):
        agent.sandbox.undo_session()


def test_without_a_record_of_edits_an_undo_is_in_conflict_with_them(agent: Agent) -> None:
    """The control: the agent's own edits would count as the person's."""
    agent.run("echo one > a")
    (agent.top / "a").write_text("two\n")
    agent.run("echo three > b")
    operations = agent.sandbox.undo_session()
    assert [left.path for operation in operations for left in operation.left] == [b"a"]
    assert (agent.top / "a").read_text() == "two\n"


def test_what_a_person_edits_in_between_stays(agent: Agent) -> None:
    agent.run("echo one > a")
    (agent.top / "b").write_text("mine\n")
    agent.write("a", "two\n")
    (agent.top / "new").write_text("mine too\n")
    agent.write("c", "three\n")
    # The same file, after the agent
    (agent.top / "c").write_text("mine as well\n")
    operations = agent.sandbox.undo_session()
    assert [left.path for operation in operations for left in operation.left] == [b"c"]
    found = {name: content for name, (content, _mode, _time) in tree_of(agent.top).items()}
    assert found == {"a": "a before\n", "b": "mine\n", "c": "mine as well\n", "new": "mine too\n"}


def test_what_a_person_edits_between_two_edits_of_the_agent_comes_back(agent: Agent) -> None:
    agent.write("a", "one\n")
    (agent.top / "a").write_text("mine\n")
    agent.write("a", "two\n")
    operations = agent.sandbox.undo_session()
    # The first edit is no more what is there
    assert [left.path for operation in operations for left in operation.left] == [b"a"]
    assert (agent.top / "a").read_text() == "mine\n"


def test_what_the_session_held_and_the_person_applied_is_undone_with_it(agent: Agent, ground: Ground) -> None:
    agent.write("a", "one\n")
    assert agent.sandbox.run("echo two > b", after="hold").held
    ground.sandbox().apply()
    assert (agent.top / "b").read_text() == "two\n"
    agent.sandbox.undo_session()
    assert [(agent.top / name).read_text() for name in "ab"] == ["a before\n", "b before\n"]


def test_prompts_are_forgotten_when_nothing_can_be_undone_any_more(agent: Agent, ground: Ground) -> None:
    agent.sandbox.add_prompt("do it")
    agent.write("a", "one\n")
    store = agent.sandbox._project.store
    later = time.time_ns() + 8 * 24 * 3600 * 1_000_000_000
    prune(store, later, days=7, budget=1 << 40)
    assert agent.sandbox.sessions() == ()
    assert (ground.project / "a").read_text() == "one\n"


def test_an_undone_edit_can_be_redone(agent: Agent) -> None:
    agent.write("a", "one\n")
    agent.delete("b")
    agent.write("d/e", "new\n")
    after = tree_of(agent.top)
    agent.sandbox.undo_session()
    for _ in range(3):
        assert agent.sandbox.redo().left == ()
    assert tree_of(agent.top) == after


@pytest.mark.parametrize("redone", range(1, 5))
def test_edits_that_were_redone_are_undone_again(ground: Ground, redone: int) -> None:
    """Where project and state are on one mount. Elsewhere a redo makes another copy, and the edit is in conflict."""
    ground.write("a", "before\n")
    agent = Agent(ground)
    before = tree_of(agent.top)
    states = []
    for number in range(4):
        agent.write("a", f"{number}\n", by_rename=number == 2)
        states.append(tree_of(agent.top))
    agent.sandbox.undo_session()
    for _ in range(redone):
        assert agent.sandbox.redo().left == ()
    assert tree_of(agent.top) == states[redone - 1]
    assert [left for operation in agent.sandbox.undo_session() for left in operation.left] == []
    assert tree_of(agent.top) == before


def test_an_edit_that_changes_nothing_or_is_refused_is_no_operation(agent: Agent) -> None:
    agent.edit(["a", "missing"], lambda: None)
    agent.edit(["../outside", "."], lambda: None)
    assert agent.sandbox.operations() == ()
    assert agent.sandbox.record_edit("never noted", asked_by="agent") is None


def test_links_lead_nowhere_and_are_edited_as_links(agent: Agent, ground: Ground) -> None:
    outside = ground.home / "outside"
    outside.write_text("theirs\n")
    (agent.top / "link").symlink_to(outside)
    agent.edit(["link"], lambda: outside.write_text("changed\n"))
    assert agent.sandbox.operations() == ()

    def replace() -> None:
        (agent.top / "link").unlink()
        (agent.top / "link").write_text("a file now\n")

    agent.edit(["link"], replace)
    agent.sandbox.undo_session()
    assert os.readlink(agent.top / "link") == str(outside)


def edit_and_die(agent: Agent, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have another process edit a file and die in a step of recording it."""
    with monkeypatch.context() as patch:
        patch.setattr(f"unspill.apply.edits.{step}", lambda *_: os._exit(9))
        child = os.fork()
        if not child:
            agent.write("a", "one\n")
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def test_an_edit_that_can_not_be_recorded_leaves_nothing(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unspill.apply.edits.write_end", fail)
    with pytest.raises(ApplyFailed, match="No space left"):
        agent.write("a", "one\n")
    state = agent.sandbox._project.store.state
    assert [os.listdir(state + b"/" + part) for part in (b"operations", b"pending", b"edits")] == [[], [], []]


def test_an_edit_whose_recorder_dies_before_its_row_is_recorded_by_the_next_start(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit_and_die(agent, "finish", monkeypatch)
    assert (agent.top / "a").read_text() == "one\n"
    undone = run_cli("undo", "--session", cwd=agent.top)
    assert undone.returncode == 0, undone
    assert (agent.top / "a").read_text() == "a before\n"


def test_one_whose_recorder_dies_before_the_journal_is_whole_is_forgotten(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing live is changed: only that edit can't be undone."""
    edit_and_die(agent, "write_end", monkeypatch)
    listed = run_cli("log", "--json", cwd=agent.top)
    assert json.loads(listed.stdout)["operations"] == []
    assert (agent.top / "a").read_text() == "one\n"


def test_sessions_are_listed_shown_and_undone_by_the_command_line(ground: Ground) -> None:
    ground.write("a", "before\n")
    ground.configure("")

    def cli(*words: str) -> str:
        done = run_cli(*words, cwd=ground.project)
        assert done.returncode == 0, done
        return done.stdout.decode()

    assert cli("sessions") == "No session yet.\n"
    cli("run", "--session", "one", "--", "sh", "-c", "echo 1 > a")
    cli("run", "--session", "two", "--", "sh", "-c", "echo 2 > b")
    cli("run", "--session", "two", "--", "sh", "-c", "echo 3 > b")
    cli("run", "--", "sh", "-c", "echo 4 > mine")
    assert [line.split()[-1] for line in cli("sessions").splitlines()] == ["two", "one"]
    shown = cli("show", "--session")
    assert shown.splitlines()[0].startswith("session two, from ")
    assert '  run 2: sh -c "echo 2 > b" (exit 0, op 2, 1 change)' in shown
    assert "+3\n" in cli("diff", "--session", "two")
    log = cli("log", "--all")
    for options in (("--session", "--dry-run"), ("--dry-run", "--session", "two")):
        assert cli("undo", *options) == (
            "Would undo session two (2 operations, 2 changes).\n"
            'op 3 of run 3: sh -c "echo 3 > b"\n  b\n'
            'op 2 of run 2: sh -c "echo 2 > b"\n  b\n'
        )
    assert (cli("log", "--all"), (ground.project / "b").read_text()) == (log, "3\n")
    assert cli("undo", "--session", "--to", "op2") == "Undid session two after op 2 (1 operation, 1 change).\n"
    assert (ground.project / "b").read_text() == "2\n"
    cli("undo", "--session")
    assert sorted(path.name for path in ground.project.iterdir()) == ["a", "mine"]
    assert cli("redo", "--session") == "Redid session two (2 operations, 2 changes).\n"
    assert (ground.project / "b").read_text() == "3\n"
    cli("undo", "--session", "two")
    assert "undone" in cli("sessions").splitlines()[0]
    assert (ground.project / "a").read_text() == "1\n"
    cli("undo", "--session", "one")
    assert (ground.project / "a").read_text() == "before\n"
    # Never another one than `show` shows: not the one before it, where nothing is left to undo
    cli("run", "--session", "four", "--", "true")
    cli("redo")
    assert cli("show", "--session").startswith("session two, ")
    for words, problem in ((("three",), "no such session: three"), ((), "nothing of session two is left to undo")):
        refused = run_cli("undo", "--session", *words, cwd=ground.project)
        assert (refused.returncode, refused.stderr.decode().splitlines()[0]) == (2, f"unspill: {problem}")
    assert cli("undo", "--session", "one").startswith("Undid session one ")


def test_every_step_of_a_run_that_was_taken_by_checkpoints_is_shown(ground: Ground) -> None:
    with ground.sandbox(after="apply") as sandbox, sandbox.live() as live:
        sandbox._project.store.session = "long"
        run = live.start("echo 1 > a; echo up; read line; echo 2 > b")
        while b"up" not in run.output(0, timeout=20)[0]:
            pass
        live.checkpoint()
        run.write(b"\n")
        assert run.wait(20) is not None
    shown = run_cli("show", "--session", cwd=ground.project).stdout.decode()
    assert "(exit 0, op 1, 1 change; op 2, 1 change)\n" in shown


def tell_hook(ground: Ground, **event: Any) -> "subprocess.CompletedProcess[bytes]":
    whole = {"session_id": "7", "cwd": str(ground.project), "tool_name": "Edit", **event}
    return run_cli("hook", "claude-code", cwd=ground.project, stdin=json.dumps(whole).encode())


def test_the_hook_records_the_agents_own_edits_and_prompts(ground: Ground) -> None:
    ground.configure("")
    ground.write("a", "before\n")

    def hear(**more: Any) -> None:
        done = tell_hook(ground, tool_input={"file_path": str(ground.project / "a")}, **more)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b""), done

    hear(hook_event_name="UserPromptSubmit", prompt="please do it")
    hear(hook_event_name="PreToolUse")
    (ground.project / "a").write_text("after\n")
    hear(hook_event_name="PostToolUse")
    found = json.loads(run_cli("show", "--session", "--json", cwd=ground.project).stdout)
    assert found["session"] == "claude-code-7"
    assert [(one["kind"], one["changed"]) for one in found["operations"]] == [("edit", 1)]
    assert [one["text"] for one in found["prompts"]] == ["please do it"]
    shown = run_cli("show", "--session", cwd=ground.project).stdout.decode()
    assert "prompt: please do it  (back to here: unspill undo --session claude-code-7 --to op0)" in shown
    assert run_cli("undo", "--session", "--to", "op0", cwd=ground.project).returncode == 0
    assert (ground.project / "a").read_text() == "before\n"


# What decides whether the agent goes on calling the hook, and what is the agent's own to write
DECIDING = """
    .claude/settings.json .claude/settings.local.json .claude/settings.team.json .mcp.json sub/.claude/settings.json
    ../.claude/settings.json ../.claude.json ../.claude/plugins/x/hooks/hooks.json .claude/skills/x/SKILL.md
    .claude/agents/helper.md .claude/hooks/own.sh .claude-plugin/plugin.json plugin/hooks/hooks.json
    leads-out/.claude/settings.json ~/.claude/settings.json /etc/claude-code/managed-settings.json moved/settings.json
""".split()
ITS_OWN = "a ../outside.txt .claude/plans/plan.md CLAUDE.md settings.json hooks/other.json claude.json".split()
DECISIONS = {"default": "ask", "acceptEdits": "ask", "plan": "ask", "bypassPermissions": "deny", "dontAsk": "deny"}


@pytest.mark.parametrize("mode", [*DECISIONS, "auto", "a later one", None])
def test_an_edit_that_could_unseal_the_agent_is_not_the_agents_to_decide(ground: Ground, mode: str | None) -> None:
    """Where its person is asked about edits, so are they about this; else it is denied, in modes not known here too.

    Control: every other file is the agent's own to write, in every mode.
    """
    ground.configure("")
    (ground.project / "leads-out").symlink_to(ground.home)
    (ground.project / "moved").mkdir()
    variables = {"CLAUDE_CONFIG_DIR": str(ground.project / "moved")}
    for path in (*DECIDING, *ITS_OWN):
        told = {"file_path": path if path.startswith("~") else str(ground.project / path)}
        event = {"session_id": "7", "cwd": str(ground.project), "tool_name": "Write", "tool_input": told}
        event |= {"hook_event_name": "PreToolUse"} | ({} if mode is None else {"permission_mode": mode})
        raw = json.dumps(event).encode()
        done = run_cli("hook", "claude-code", cwd=ground.project, stdin=raw, variables=variables)
        assert done.returncode == 0, done
        if path in ITS_OWN:
            assert done.stdout == b"", path
            continue
        said = json.loads(done.stdout)["hookSpecificOutput"]
        assert said["permissionDecision"] == DECISIONS.get(mode or "", "deny"), path
        assert "only the user may change it" in said["permissionDecisionReason"]


@pytest.mark.parametrize("told", [{}, {"file_path": 7}, {"file_path": "a\0b"}, {"notebook_path": "a"}, None])
def test_an_edit_that_names_no_file_is_stopped(ground: Ground, told: object) -> None:
    ground.configure("")
    done = tell_hook(ground, hook_event_name="PreToolUse", tool_input=told)
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize("target", ["a", "new/n"])
def test_an_edit_through_a_link_is_undone_where_the_link_leads(agent: Agent, target: str) -> None:
    (agent.top / "new").mkdir()
    (agent.top / "other").symlink_to(target)
    (agent.top / "link").symlink_to("other")
    before = tree_of(agent.top)
    agent.edit(["link"], lambda: (agent.top / "link").write_text("by the agent\n"))
    assert [one.kind for one in agent.sandbox.operations()] == ["edit"]
    agent.sandbox.undo_session()
    assert tree_of(agent.top) == before


def test_the_older_operations_of_a_session_are_undone_though_a_newer_one_is_refused(agent: Agent) -> None:
    agent.write("a", "by the agent\n")
    agent.write("b", "by the agent\n")
    agent.write("c", "by the agent\n")
    newest, refused, oldest = agent.sandbox.operations()
    remove_tree(os.fsencode(Path(os.environ["UNSPILL_STATE_DIR"]) / "operations" / refused.id))
    planned = agent.sandbox.undo_session(dry_run=True)
    done = agent.sandbox.undo_session()
    for found in (planned, done):
        assert [one.of for one in found] == [newest.id, refused.id, oldest.id]
        assert [one.changed for one in found] == [1, 0, 1]
        assert [(left.why, left.reason) for one in found for left in one.left] == [
            ("refused", f"the backup of op {refused.number} is gone")
        ]
    assert [(agent.top / name).read_text() for name in "abc"] == ["a before\n", "by the agent\n", "c before\n"]
    redone = agent.sandbox.redo_session()
    assert [one.of for one in redone] == [done[2].id, done[0].id]
