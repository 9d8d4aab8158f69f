# SPDX-License-Identifier: Apache-2.0
"""What unspill 0.1.0 left on a disk is opened, listed, applied, undone, redone and recovered by this one."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.old_state import OldState, unpacked
from tests.support import XDG, run_cli
from unspill import Policy, Sandbox
from unspill.host.bwrap import facts_to_text
from unspill.model.plan import Facts
from unspill.permissions.audit import Audit
from unspill.sandbox.rootfs import RootfsRegistry
from unspill.store.db import Store

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

Open = Callable[..., Sandbox]


@pytest.fixture
def old(known_facts: tuple[str, Facts], monkeypatch: pytest.MonkeyPatch) -> Iterator[OldState]:
    with unpacked() as state:
        monkeypatch.setenv("HOME", os.fspath(state.home))
        monkeypatch.setenv("UNSPILL_STATE_DIR", os.fspath(state.state))
        for name in XDG:
            monkeypatch.delenv(name, raising=False)
        with closing(Store.open(os.fsencode(state.state))) as store:
            store.facts.put(known_facts[0], facts_to_text(known_facts[1]))
        yield state


@pytest.fixture
def opened(old: OldState, trusted_bwrap: bytes) -> Iterator[Open]:
    sandboxes: list[Sandbox] = []

    def open_sandbox(project: str, name: str = "default") -> Sandbox:
        sandboxes.append(Sandbox(old.home / project, name=name, policy=Policy(bwrap=trusted_bwrap)))
        return sandboxes[-1]

    yield open_sandbox
    for sandbox in sandboxes:
        sandbox.close()


def git(project: Path, *words: str) -> str:
    """Run git as the person; return what it prints."""
    return subprocess.run(["git", *words], cwd=project, check=True, capture_output=True, text=True).stdout


def names(project: Path) -> dict[str, str]:
    """Return the contents of a project's own files."""
    found = (path for path in project.rglob("*") if ".git" not in path.parts and path.is_file())
    return {os.fspath(path.relative_to(project)): path.read_text() for path in found}


def test_everything_is_listed(old: OldState, opened: Open) -> None:
    main = opened("main")
    assert [(one.number, one.kind, one.ending) for one in main.operations()] == [
        (4, "apply", "done"),
        (3, "undo", "done"),
        (2, "apply", "done"),
        (1, "apply", "done"),
    ]
    assert [run.number for run in main.runs()] == [5, 4, 3, 2, 1]
    assert {os.fsdecode(change.path): change.kind for change in main.changes()} == {
        ".envrc": "added",
        "d": "added",
        "d/e": "added",
        "d/e/link": "added",
        "d/e/x": "added",
        "held.txt": "added",
        "src/main.py": "deleted",
    }
    with closing(Store.open(os.fsencode(old.state))) as store:
        (grant,) = store.grants.all()
        assert grant.scope == "always"
        (waiting,) = store.requests.waiting(time.time_ns())
        assert waiting.is_genuine
    assert [made.name for made in RootfsRegistry().list()] == ["small-daab678e5ccb-x86_64"]


def test_the_chained_lines_of_the_audit_are_listed_and_added_to(old: OldState, opened: Open) -> None:
    audit = Audit(os.fsencode(old.state / "audit"))
    before = list(audit.events())
    assert before
    assert {event["kind"] for event in before} == {"run", "operation", "request", "answer"}
    assert all("prev" in event for event in before)
    opened("main").run("touch made", after="apply")
    events = list(audit.events())
    assert events[: len(before)] == before
    added = [(event["kind"], event.get("ending"), event["paths"]) for event in events[len(before) :]]
    assert added == [
        ("operation", "rolled back", []),
        ("operation", "done", ["f1", "f2", "f3", "f4", "f5"]),
        ("run", "Exited 0", ["made"]),
        ("operation", "done", ["made"]),
    ]
    listed = run_cli("audit", "--limit", "999", cwd=old.home).stdout.splitlines()
    assert len(listed) == len(events)


def test_what_was_undone_is_redone_and_undone_again(old: OldState, opened: Open) -> None:
    main, project = opened("main"), old.home / "main"
    before = names(project)
    assert main.redo().left == ()
    assert names(project) == {name: text for name, text in before.items() if name != "b.txt"} | {"new.txt": "new\n"}
    assert (project / "src/main.py").stat().st_mode & 0o777 == 0o755
    assert main.undo().left == ()
    assert names(project) == before


def test_every_operation_is_undone_and_git_is_whole(old: OldState, opened: Open) -> None:
    main, project = opened("main"), old.home / "main"
    assert main.undo(4).left == ()
    assert main.undo(1).left == ()
    assert names(project) == {"a.txt": "one\n", "b.txt": "b\n", "src/main.py": "print(1)\n"}
    assert git(project, "log", "--format=%s") == "first\n"
    git(project, "fsck", "--full", "--strict")
    assert main.redo(1).left == ()
    assert git(project, "log", "--format=%s", "v1") == "by the agent\nfirst\n"
    git(project, "fsck", "--full", "--strict")


def test_what_is_held_is_applied(old: OldState, opened: Open) -> None:
    main, project = opened("main"), old.home / "main"
    assert [(left.path, left.why) for left in main.apply().left] == [(b".envrc", "held")]
    assert (project / "held.txt").read_text() == "held\n"
    assert (project / "d/e/link").readlink() == Path("../a.txt")
    assert not (project / "src/main.py").exists()
    other = opened("main", "other")
    assert other.apply().left == ()
    assert git(project, "log", "--format=%s") == "held by the agent\nby the agent\nfirst\n"
    assert git(project, "symbolic-ref", "HEAD") == "refs/heads/topic\n"
    git(project, "fsck", "--full", "--strict")


def test_an_operation_that_was_cut_short_is_taken_back(old: OldState, opened: Open) -> None:
    sandbox = opened("cut-short")
    ends = {Path(os.fsdecode(one.project)).name: one.ending for one in sandbox.recovered}
    assert ends == {"cut-short": "rolled back", "unrecorded": "done"}
    assert names(old.home / "cut-short") == {f"f{number}": f"old {number}\n" for number in (1, 2, 3, 4)}
    assert len(sandbox.changes()) == 5
    assert sandbox.apply().left == ()
    new = {f"f{number}": f"new {number}\n" for number in (1, 2, 3)} | {"f5": "five\n"}
    assert names(old.home / "cut-short") == names(old.home / "unrecorded") == new
    assert opened("unrecorded").undo().left == ()
    assert names(old.home / "unrecorded") == {f"f{number}": f"old {number}\n" for number in (1, 2, 3, 4)}


def test_what_a_run_had_written_whose_process_was_killed_is_held_and_overwrites_nothing(
    old: OldState, opened: Open
) -> None:
    """0.1.0 did not record when the run began: so whatever is there may have been edited meanwhile."""
    sandbox, project = opened("killed"), old.home / "killed"
    assert names(project) == {"kept": "kept\n"}
    (run,) = sandbox.interrupted_runs
    assert (run.number, run.held, run.outcome, run.changed) == (1, True, None, 2)
    assert {os.fsdecode(change.path): change.kind for change in sandbox.changes()} == {
        "begun": "added",
        "kept": "modified",
    }
    assert sandbox.run("cat kept", after="discard").stdout.head == b"changed\n"
    assert [(left.path, left.why) for left in sandbox.apply().left] == [(b"kept", "conflict")]
    assert names(project) == {"begun": "begun\n", "kept": "kept\n"}
    assert opened("killed").interrupted_runs == ()
