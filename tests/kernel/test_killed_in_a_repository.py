# SPDX-License-Identifier: Apache-2.0
"""The caller of a run in a repository is killed, and the person commits meanwhile: neither work reverts the other."""

import pytest

from tests.kernel.killed_callers import Callers, callers, kill
from tests.kernel.twin_world import IDENTITY, lines, sh
from tests.support import Ground, printed
from unspill import Sandbox

__all__ = ["callers"]

pytestmark = pytest.mark.kernel

FSCK = "git fsck --full --no-dangling --no-progress 2>&1"
COMMIT = "git commit -qm agent"
# What the run had done when its caller was killed, and what is left to do for the next one
WORK = {"committed": (f"&& {COMMIT}", "true"), "only staged": ("", COMMIT)}


def killed_run(ground: Ground, callers: Callers, more: str) -> Sandbox:
    """Have a run killed, let the person commit, and open the project again."""
    (ground.home / ".gitconfig").write_text(IDENTITY)
    sh(ground.project, "git init -q && echo base > base && git add base && git commit -qm base")
    kill(callers, ground, f"echo agent > agent && git add agent {more}", after="apply")
    sh(ground.project, "echo person > person && git add person && git commit -qm person")
    sandbox = ground.sandbox(after="hold")
    (run,) = sandbox.interrupted_runs
    assert run.held
    return sandbox


def staged(sandbox: Sandbox) -> list[str]:
    """Return what git finds broken in the sandbox, and what it would commit there; not what it does not know."""
    text = printed(sandbox.run(f"{FSCK}; git status --porcelain", after="discard"))
    return [line for line in text.splitlines() if not line.startswith("??")]


@pytest.mark.parametrize("work", WORK)
def test_the_work_of_a_killed_run_does_not_revert_what_the_person_committed(
    ground: Ground, callers: Callers, work: str
) -> None:
    done, rest = WORK[work]
    sandbox = killed_run(ground, callers, done)
    assert staged(sandbox) == ([] if work == "committed" else ["A  agent"])
    printed(sandbox.run(rest))
    assert sandbox.apply().left == ()
    assert sh(ground.project, f"{FSCK}; git status --porcelain").stdout == ""
    assert lines(ground.project, "log", "--format=%s", "main") == ["person", "base"]
    # The commit of the run lies beside it, made from what the run saw
    assert lines(ground.project, "log", "--format=%s", "main..", "--all") == ["agent"]
    sh(ground.project, "git merge -q --no-edit $(git for-each-ref --format='%(refname)' refs/unspill)")
    assert lines(ground.project, "ls-tree", "--name-only", "HEAD") == ["agent", "base", "person"]
    assert staged(sandbox) == []


def test_it_did_when_the_repository_that_the_run_saw_was_not_kept(
    ground: Ground, callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: what the run has staged lies over the person's commit, so a commit would delete their file."""
    monkeypatch.setattr("unspill.sandbox.scan.left_base", lambda *_: None)
    assert "D  person" in staged(killed_run(ground, callers, WORK["only staged"][0]))
