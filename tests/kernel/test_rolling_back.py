# SPDX-License-Identifier: Apache-2.0
"""An apply that a crash interrupted is rolled back by the next command, unless that would cost somebody their work."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.twin_world import World, lines, sh
from tests.support import Ground
from unspill import Sandbox
from unspill.apply import recover
from unspill.apply.journal import Journal, read_journal
from unspill.errors import SandboxUnavailable
from unspill.model.operation import Operation

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]

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
