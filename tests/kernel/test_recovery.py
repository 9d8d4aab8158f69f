# SPDX-License-Identifier: Apache-2.0
"""After a crash: an interrupted apply is rolled back, and a lost database costs nothing that was held or displaced."""

import errno
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.twin_world import World, lines, sh
from tests.support import Ground, chosen_views, kinds, printed, run_cli
from unspill import Sandbox
from unspill.apply import recover
from unspill.apply.journal import Journal, read_journal
from unspill.errors import SandboxUnavailable, StoreDamaged
from unspill.layers.trees import remove_tree
from unspill.model.operation import Operation
from unspill.sandbox import scan
from unspill.sandbox.upkeep import recover_now

pytestmark = pytest.mark.kernel

# Dies when everything is done and nothing of that is recorded
CRASH = """
import os, sys
from unspill import Sandbox
from unspill.apply import operate
operate.write_end = lambda *_rest, **_options: os._exit(9)
Sandbox(sys.argv[1]).apply()
"""


def crash(sandbox: Sandbox) -> None:
    """Apply what is held in a process that dies at the end of it."""
    done = subprocess.run([sys.executable, "-c", CRASH, os.fsdecode(sandbox.project)], check=False)
    assert done.returncode == 9


def recovered(ground: Ground, sandbox: Sandbox) -> Operation:
    """Do what the next command does first; return what became of the apply."""
    (operation,) = ground.sandbox(project=Path(os.fsdecode(sandbox.project))).recovered
    assert operation.ending == "rolled back"
    return operation


@pytest.mark.parametrize("is_same", [True, False], ids=["the same inode", "another inode"])
def test_an_apply_before_a_reboot_is_rolled_back_though_the_device_has_another_number(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, is_same: bool
) -> None:
    """A changed journal stands for the reboot. The control arm: with another inode it is another directory."""
    ground.write("changed", "mine")
    ground.write("deleted", "mine")
    sandbox = ground.sandbox(after="hold")
    assert sandbox.run("echo agent > changed; rm deleted; echo agent > new").held
    crash(sandbox)

    def read(path: bytes) -> Journal | None:
        journal = read_journal(path)
        if journal is None:
            return None
        moved = tuple((device + 1, inode + (not is_same)) for device, inode in journal.identities)
        return journal.replace(identities=moved)

    monkeypatch.setattr(recover, "read_journal", read)
    assert bool(recovered(ground, sandbox).left) != is_same
    names = {path.name: path.read_text() for path in ground.project.iterdir() if path.is_file()}
    assert names == ({"changed": "mine", "deleted": "mine"} if is_same else {"changed": "agent\n", "new": "agent\n"})


def crash_after_a_commit(beside: World) -> str:
    """Have a commit of the agent applied over what the person staged, and the apply crash; return the tip before."""
    sh(beside.project, "echo precious > mine; git add mine; echo later > mine")
    (tip,) = lines(beside.project, "rev-parse", "HEAD")
    assert beside.sandbox.run("git reset -q; echo agent > new; git add new; git commit -qm agent", after="hold").held
    crash(beside.sandbox)
    assert lines(beside.project, "log", "-1", "--format=%s") == ["agent"]
    return tip


def test_a_repository_is_rolled_back_with_what_was_staged(beside: World, ground: Ground) -> None:
    tip = crash_after_a_commit(beside)
    assert recovered(ground, beside.sandbox).left == ()
    assert lines(beside.project, "rev-parse", "HEAD") == [tip]
    assert lines(beside.project, "show", ":mine") == ["precious"]
    assert lines(beside.project, "for-each-ref", "refs/unspill") == []


@pytest.mark.parametrize("is_interrupted", [False, True], ids=["at once", "interrupted"])
def test_a_repository_stays_whole_where_the_person_staged_something_since(
    beside: World, ground: Ground, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    """With the branch alone back, the index would be that of a commit which nothing leads to."""
    tip = crash_after_a_commit(beside)
    sh(beside.project, "echo since > since; git add since")
    if is_interrupted:
        with monkeypatch.context() as patch:
            patch.setattr(recover, "wait_for_opens", fail)
            with pytest.raises(SandboxUnavailable):
                recovered(ground, beside.sandbox)
    operation = recovered(ground, beside.sandbox)
    assert [left.path for left in operation.left] == [b".git"]
    assert lines(beside.project, "rev-parse", "HEAD~1") == [tip]
    assert lines(beside.project, "diff", "--cached", "--name-status") == ["A\tsince"]
    # What the person had staged before is pinned, and so is its index kept
    (pin,) = lines(beside.project, "for-each-ref", "--format=%(objectname)", "refs/unspill")
    (blob,) = lines(beside.project, "ls-tree", "--object-only", pin)
    assert lines(beside.project, "cat-file", "blob", blob) == ["precious"]
    (note,) = operation.notes
    kept = note.rpartition(" ")[2]
    assert sh(beside.project, f"GIT_INDEX_FILE={kept} git show :mine").stdout == "precious\n"


def fail() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


DAY_NS = 24 * 3600 * 10**9
LOST: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "emptied": lambda path: os.truncate(path, 0),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "overwritten": lambda path: path.write_bytes(os.urandom(path.stat().st_size)),
}


def typed(ground: Ground, *words: str) -> str:
    done = run_cli(*words, cwd=ground.project)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@contextmanager
def opened(ground: Ground, name: str = "default", **settings: Any) -> Iterator[Sandbox]:
    """Open a sandbox as a new process does, which looks first for what others have left."""
    scan._swept.clear()
    with Sandbox(ground.project, name=name, policy=ground.policy(**settings)) as sandbox:
        yield sandbox


def a_day_passes(ground: Ground) -> None:
    """Have the next opening take the last daily upkeep and the last copy for those of yesterday, and open."""
    copy = ground.state / "copies" / "daily.db"
    before = 0
    with closing(sqlite3.connect(ground.state / "store.db")) as db, db:
        db.execute("UPDATE facts SET value = value - ? WHERE key = 'pruned'", (DAY_NS,))
    if copy.exists():
        before = copy.stat().st_ino
        os.utime(copy, ns=(0, copy.stat().st_mtime_ns - DAY_NS))
    with opened(ground):
        assert copy.stat().st_ino != before


def contents(ground: Ground) -> set[bytes]:
    """Return what is in every file of the project, the layers and the operations, wherever those lie now."""
    places = [ground.project, ground.state / "layers", ground.state / "operations", *ground.state.glob("lost-*")]
    return {path.read_bytes() for place in places for path in place.rglob("*") if path.is_file()}


def work(ground: Ground) -> None:
    """Hold and apply before the copy is made and after it, in several sandboxes."""
    for name in ("edited", "removed", "kept"):
        ground.write(name, f"{name}: the person's\n")
    with opened(ground) as default, opened(ground, "other") as other, opened(ground, "third") as third:
        assert default.run("echo 'known, applied' > edited", after="apply").operation
        assert default.run("echo 'known, held' > held").held
        assert other.run("echo 'known, applied later' > other").held
        assert third.run("echo 'known, in another layer later' > third").held
    a_day_passes(ground)
    with opened(ground) as default, opened(ground, "other") as other, opened(ground, "third") as third:
        assert other.apply().changed == 1
        assert third.run("echo 'unknown, applied' > kept; rm removed", after="apply").operation
        assert default.run("mkdir d; echo 'unknown, held' > d/later").held
    with opened(ground, "new") as new:
        assert new.run("echo 'unknown, of a new sandbox' > newest").held


def rows(ground: Ground) -> set[str]:
    with closing(sqlite3.connect(ground.state / "store.db")) as db:
        return {row[0] for row in db.execute("SELECT id FROM layers UNION SELECT id FROM operations")}


@pytest.mark.parametrize("damage", LOST)
def test_every_byte_is_still_there_when_the_copy_is_put_back(ground: Ground, damage: str) -> None:
    work(ground)
    everything, known = contents(ground), rows(ground)
    LOST[damage](ground.state / "store.db")
    refused = run_cli("changes", cwd=ground.project)
    assert refused.returncode == 7
    assert b"unspill recover" in refused.stderr
    assert contents(ground) == everything
    done = json.loads(typed(ground, "recover", "--json"))
    assert done["copied_ns"] is not None
    aside = {Path(path).name for path in done["aside"]}
    assert aside == known - rows(ground)
    assert {Path(path).parent.name for path in done["aside"]} == {"layers", "operations"}
    assert contents(ground) == everything
    use_it(ground)
    assert contents(ground) >= everything
    assert {Path(path).name for path in json.loads(typed(ground, "status", "--json"))["aside"]} >= aside


def use_it(ground: Ground) -> None:
    """Do all that removes something, now and a day later."""
    with opened(ground) as sandbox:
        assert "held" in kinds(sandbox.changes())
        assert sandbox.run("echo dropped > dropped", after="discard").ok
        assert sandbox.run("echo more > more", after="apply").operation
    a_day_passes(ground)
    typed(ground, "recover")
    with opened(ground) as sandbox:
        assert sandbox.apply().left == ()
    assert (ground.project / "held").read_text() == "known, held\n"


def test_what_the_copy_knows_is_undone_as_before(ground: Ground) -> None:
    work(ground)
    (ground.state / "store.db").unlink()
    recover_now()
    with opened(ground) as sandbox:
        assert sandbox.undo(1).left == ()
    assert (ground.project / "edited").read_text() == "edited: the person's\n"
    assert (ground.project / "kept").read_text() == "unknown, applied\n", "the copy does not know that operation"


@pytest.mark.parametrize("damage", LOST)
def test_without_a_copy_everything_is_set_aside_and_the_new_database_works(ground: Ground, damage: str) -> None:
    work(ground)
    shutil.rmtree(ground.state / "copies")
    everything, known = contents(ground), rows(ground)
    LOST[damage](ground.state / "store.db")
    done = recover_now()
    assert done.copied_ns is None
    assert {os.fsdecode(os.path.basename(path)) for path in done.aside} == known
    with opened(ground) as sandbox:
        assert printed(sandbox.run("cat kept; echo more > more", after="apply")) == "unknown, applied\n"
    assert contents(ground) >= everything


def test_without_the_rule_that_sets_aside_what_the_copy_does_not_know_would_be_swept(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control arm: the same, with a sweep that removes what has no row."""
    work(ground)
    everything = contents(ground)
    (ground.state / "store.db").unlink()

    def remove(state: bytes, part: bytes, names: set[str]) -> None:
        for name in names:
            remove_tree(os.path.join(state, part, os.fsencode(name)))

    monkeypatch.setattr("unspill.layers.lifecycle.set_aside", remove)
    assert recover_now().aside == ()
    lost = everything - contents(ground)
    assert {b"unknown, held\n", b"unknown, of a new sandbox\n", b"kept: the person's\n"} <= lost


def test_a_program_that_still_has_the_lost_database_open_is_told_and_loses_nothing(ground: Ground) -> None:
    sandbox = ground.sandbox()
    assert sandbox.run("echo held > held").held
    (ground.state / "store.db").unlink()
    with pytest.raises(StoreDamaged, match="removed or replaced"):
        sandbox.run("echo more > more")
    recover_now()
    with pytest.raises(StoreDamaged, match="removed or replaced"):
        sandbox.run("echo more > more")
    assert b"held\n" in contents(ground)


@pytest.mark.bwrap
@pytest.mark.parametrize("view", chosen_views())
def test_a_copy_is_for_its_owner_alone_and_no_command_sees_it(ground: Ground, view: str) -> None:
    ground.write("file", "x")
    sandbox = ground.sandbox(view=view) if view != "rootfs" else ground.sandbox()
    assert sandbox.run("true").ok
    a_day_passes(ground)
    copy = ground.state / "copies" / "daily.db"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert stat.S_IMODE(copy.parent.stat().st_mode) == stat.S_IMODE(ground.state.stat().st_mode) == 0o700
    seen = {path: sandbox.run(["test", "-e", os.fspath(path)]).ok for path in (copy, copy.parent, ground.project)}
    assert seen == {copy: False, copy.parent: False, ground.project: True}
