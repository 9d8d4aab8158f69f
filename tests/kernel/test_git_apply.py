# SPDX-License-Identifier: Apache-2.0
"""A run's work in a repository is applied and undone with no question; a part that is held keeps nothing else back."""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.kernel.answering import Person, opened
from tests.kernel.git_cases import CASES, Case
from tests.kernel.git_vectors import FAKE, VECTORS, Vector
from tests.kernel.laying import lay
from tests.kernel.twin_world import World, lines, sh
from tests.support import Ground, printed, run_cli
from unspill import Sandbox
from unspill.apply import guard
from unspill.apply.git_move import remove_own_refs
from unspill.apply.guard import judge
from unspill.changes.scan import MergedTree
from unspill.errors import ApplyFailed, UsageError
from unspill.git import state
from unspill.git.files import part_of, repository_of
from unspill.git.frozen import keep_frozen
from unspill.git.state import LINKED, GitState, owner_of, read_state
from unspill.layers.lifecycle import Swept, sweep
from unspill.model.change import ChangeSet, Selection
from unspill.policy.held import MODULE
from unspill.runner.perform import perform
from unspill.sandbox import apply
from unspill.store.db import Store

pytestmark = pytest.mark.kernel

IDENTITY = "[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n"


# Looking must not write: an index that git has refreshed is not the one that was applied
QUIET = {"GIT_OPTIONAL_LOCKS": "0", "PYTHONDONTWRITEBYTECODE": "1", "npm_config_cache": "/tmp/npm"}


def do(script: str, where: Path) -> str:
    """Run a script outside, as the person, and return what it prints."""
    variables = {**os.environ, **QUIET}
    result = subprocess.run(
        ["sh", "-ec", script], cwd=where, env=variables, capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, (script, result.stdout, result.stderr)
    return result.stdout


def tree_of(project: Path) -> dict[str, tuple[object, ...]]:
    """Return every entry of a project: type, mode, content or target, and the mtime of files.

    Of git's own files those that do not move by repository, and where each repository stands.
    """
    found: dict[str, tuple[object, ...]] = {}
    states: dict[bytes, GitState] = {}
    with MergedTree(os.fsencode(project)) as tree:
        for path in sorted(project.rglob(".git")):
            state = read_state(tree, os.fsencode(path.relative_to(project)))
            if state is not None:
                states[os.fsencode(path.relative_to(project))] = state
    for top, state in states.items():
        refs = {name: value for name, value in state.refs.items() if b"refs/unspill/" not in name}
        found[f"{top!r} stands at"] = (refs, state.files)
    for path in sorted(project.rglob("*")):
        status = path.lstat()
        name = os.fspath(path.relative_to(project))
        if is_of_git(os.fsencode(name), states):
            continue
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        elif path.is_dir():
            found[name] = ("directory", status.st_mode)
        else:
            found[name] = ("file", status.st_mode, path.read_bytes(), status.st_mtime_ns)
    return found


def is_of_git(name: bytes, states: dict[bytes, GitState]) -> bool:
    """Tell whether a file moves with its repository, not by itself."""
    top = repository_of(name)
    if top is None or top not in states:
        return False
    inner = name[len(top) + 1 :]
    return part_of(inner[len(owner_of(inner + b"/", states[top].members)) :]) != "other"


def repositories(project: Path) -> list[Path]:
    """Return every directory of a project in which git works."""
    found = {path.parent for path in project.rglob(".git")} | set(project.glob("*.git"))
    return sorted(path for path in found if path.name != ".git")


def check(project: Path) -> None:
    """Have git check every repository of a project."""
    for repository in repositories(project):
        do("git fsck --no-progress --no-dangling", repository)


@pytest.fixture
def repository(ground: Ground) -> Ground:
    """A project under git with a text and a build file."""
    (ground.home / ".gitconfig").write_text(IDENTITY)
    ground.write("a.txt", "one\n")
    ground.write("Makefile", "all:\n")
    do("git init -q && git add -A && git commit -qm first", ground.project)
    return ground


def work(repository: Ground, case: Case) -> Sandbox:
    """Do the work of a case inside, and hold it."""
    do(case.before, repository.project)
    sandbox = repository.sandbox(after="hold")
    result = sandbox.run(case.inside, env=QUIET)
    assert result.ok, result.stderr.kept()
    return sandbox


# What is made on one side names the project as it is seen there
NOT_IN_ROOTFS = {
    "worktree add": "git writes the absolute path of a worktree, which is held where it leads out of the project",
    "worktree removed": "git writes the absolute path of a worktree, which is not that inside",
    "submodule update": "git writes the absolute path of a local submodule, which is not that inside",
    "pip install into .venv": "pip installs to /workspace/.packages; test_rootfs_view.py has that",
}
PARAMETERS = [
    pytest.param(case, id=str(case), marks=pytest.mark.view("sealed", "host", reason=NOT_IN_ROOTFS[str(case)]))
    if str(case) in NOT_IN_ROOTFS
    else pytest.param(case, id=str(case))
    for case in CASES
]


@pytest.mark.slow
@pytest.mark.parametrize("case", PARAMETERS)
def test_nothing_of_it_is_held_and_it_is_applied_with_no_question_and_undone(repository: Ground, case: Case) -> None:
    """The time buys every case with the real git: run, judged, applied, undone and redone."""
    sandbox = work(repository, case)
    (part,) = sandbox.changes().roots
    judged = judge(part)
    assert judged.held == ()
    assert {os.fsdecode(path) for path, _reason in judged.flagged} == set(case.flags)

    before = tree_of(repository.project)
    inside = printed(sandbox.run(case.shows, env=QUIET, after="discard"))
    assert sandbox.apply().left == ()
    after = tree_of(repository.project)
    assert do(case.shows, repository.project) == inside
    check(repository.project)
    assert not sandbox.changes()

    assert sandbox.undo().left == ()
    assert tree_of(repository.project) == before
    check(repository.project)

    assert sandbox.redo().left == ()
    assert tree_of(repository.project) == after
    check(repository.project)


@pytest.mark.slow
def test_looking_at_the_repository_does_not_stand_in_the_way_of_an_undo(repository: Ground) -> None:
    sandbox = repository.sandbox(after="apply")
    assert sandbox.run("echo two > a.txt && git commit -qam second && touch Makefile").ok
    applied = (repository.project / ".git/index").read_bytes()
    subprocess.run(["git", "status"], cwd=repository.project, check=True, capture_output=True)
    assert (repository.project / ".git/index").read_bytes() != applied, "git had nothing to refresh"

    assert sandbox.undo().left == ()
    assert do("git log --format=%s; git status --short", repository.project) == "first\n"
    assert sandbox.redo().left == ()
    assert do("git log --format=%s; git status --short", repository.project) == "second\nfirst\n"


@pytest.mark.slow
def test_what_the_person_staged_since_is_a_conflict(repository: Ground) -> None:
    sandbox = repository.sandbox(after="apply")
    assert sandbox.run("echo two > a.txt && git commit -qam second").ok
    (repository.project / "mine").write_text("mine")
    subprocess.run(["git", "add", "mine"], cwd=repository.project, check=True, capture_output=True)
    assert [left.path for left in sandbox.undo().left] == [b".git"]
    assert do("git log --format=%s", repository.project) == "second\nfirst\n"
    assert "A  mine" in do("git status --short", repository.project)


COMMIT = "echo {0} > {0} && git add {0} && git commit -qm {0}"
LOG = "git log --format=%s"


@pytest.fixture
def readable_repository(ground: Ground) -> Ground:
    """A project that is a repository with one commit."""
    (ground.home / ".gitconfig").write_text(IDENTITY + "[protocol]\n\tallow = always\n")
    ground.configure('readable = ["~/.gitconfig"]\n')
    do(f"git init -q . && {COMMIT.format('first')}", ground.project)
    return ground


def said(ground: Ground, script: str) -> list[str]:
    """Run a script by the program and return the summary."""
    done = run_cli("run", "-c", script, cwd=ground.project)
    assert done.returncode == 0, done.stderr.decode()
    return done.stderr.decode().splitlines()


@pytest.mark.parametrize("after", ["apply", "hold"])
def test_a_hook_that_is_held_does_not_keep_later_commits_from_the_next_run(
    readable_repository: Ground, after: Literal["apply", "hold"]
) -> None:
    sandbox = readable_repository.sandbox()
    script = "echo true > .git/hooks/post-checkout"
    assert sandbox.run(script if after == "hold" else f"{script} && {COMMIT.format('run')}", after=after).ok
    do(COMMIT.format("mine"), readable_repository.project)
    expected = "mine\nfirst\n" if after == "hold" else "mine\nrun\nfirst\n"
    assert do(LOG, readable_repository.project) == expected
    assert printed(sandbox.run(f"{LOG}; cat .git/hooks/post-checkout", after="discard")) == expected + "true\n"
    assert sandbox.run(COMMIT.format("later"), after="apply").ok
    assert do(LOG, readable_repository.project) == "later\n" + expected
    assert do("git for-each-ref refs/unspill/run-*", readable_repository.project) == ""


def test_a_commit_that_is_held_is_seen_by_the_next_run_whatever_the_person_commits(readable_repository: Ground) -> None:
    sandbox = readable_repository.sandbox()
    assert sandbox.run(COMMIT.format("run"), after="hold").ok
    do(COMMIT.format("mine"), readable_repository.project)
    assert printed(sandbox.run(LOG, after="discard")) == "run\nfirst\n"


@pytest.mark.parametrize("is_defended", [True, False], ids=["defended", "control"])
def test_the_repository_of_a_submodule_goes_only_with_consent_and_keeps_no_commit_back(
    readable_repository: Ground, is_defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_defended:
        monkeypatch.setattr(guard, "_has_repository", lambda _path: False)
    module = readable_repository.home / "module"
    subprocess.run(["git", "init", "-q", module], check=True)
    do(COMMIT.format("inside"), module)
    do(
        f"git -c protocol.file.allow=always submodule --quiet add {module} sub && git commit -qm sub",
        readable_repository.project,
    )
    result = readable_repository.sandbox().run(
        "git rm -q sub && rm -rf .git/modules/sub && git commit -qm gone", after="apply"
    )
    assert result.operation is not None
    held = [(left.path, left.reason) for left in result.operation.left]
    assert held == ([(b".git/modules/sub", MODULE.reason)] if is_defended else [])
    assert do(LOG, readable_repository.project) == "gone\nsub\nfirst\n"
    assert do("git status --porcelain", readable_repository.project) == ""
    assert (readable_repository.project / ".git/modules/sub/HEAD").exists() is is_defended


def test_a_summary_counts_files_of_the_project_and_says_in_one_line_what_git_did(readable_repository: Ground) -> None:
    first, *rest = said(readable_repository, COMMIT.format("new"))
    assert first == "unspill: 1 added. Applied as op 1. Undo: unspill undo"
    assert rest[0] == "  A new"
    assert rest[1].startswith("  git: main ")
    assert len(rest) == 2
    assert (
        said(readable_repository, "git tag done")[0]
        == "unspill: Only git files changed. Applied as op 2. Undo: unspill undo"
    )


def test_a_worktree_outside_of_the_project_is_held_and_the_commits_are_applied(readable_repository: Ground) -> None:
    project = readable_repository.project
    script = f"{COMMIT.format('two')} && git worktree add -q ../out && {COMMIT.format('three')}"
    # What is outside of the project is not kept
    _note, *lines = said(readable_repository, script)
    assert lines[0] == "unspill: 2 added. Applied as op 1. Undo: unspill undo"
    assert lines[1:3] == ["  A three", "  A two"]
    assert lines[3].startswith("  git: main ")
    held = next(at for at, line in enumerate(lines) if "not applied" in line)
    assert lines[held] == "unspill: 1 path was not applied and is held in sandbox 'default':"
    assert lines[held + 1].startswith("  ! .git/worktrees: held: ")
    assert ".git/worktrees/out/gitdir" in lines[held + 1]
    assert not any(line.startswith("  A .git") for line in lines)
    assert do(LOG, project) == "three\ntwo\nfirst\n"
    assert do("git status --porcelain; git fsck 2>&1; git worktree list | wc -l", project) == "1\n"
    assert do("git log --format=%s out", project) == "two\nfirst\n"
    assert not (project / ".git/worktrees").exists()
    # Later ones come too, and the held one with consent
    said(readable_repository, COMMIT.format("four"))
    assert do(LOG, project) == "four\nthree\ntwo\nfirst\n"
    assert readable_repository.sandbox().apply(Selection(included=(b".git/worktrees",))).left == ()
    assert (project / ".git/worktrees/out/gitdir").exists()
    assert run_cli("undo", cwd=project).returncode == 0
    assert not (project / ".git/worktrees/out").exists()
    assert do(LOG, project) == "four\nthree\ntwo\nfirst\n"


def test_a_repository_that_waits_for_a_held_file_in_it_is_not_called_applied(readable_repository: Ground) -> None:
    project = readable_repository.project
    base = do("git rev-parse --short=7 HEAD", project).strip()
    module = "mkdir .git/modules && git init -q --separate-git-dir .git/modules/m m"
    module += " && echo true > .git/modules/m/hooks/post-commit"
    lines = said(readable_repository, f"{module} && {COMMIT.format('two')}")
    assert do(LOG, project) == "first\n"
    assert lines[1:4] == ["  A m/", "  A m/.git", "  A two"]
    (line,) = (line for line in lines if line.startswith("  ! .git: "))
    assert "git's own files are applied together, and .git/modules/m/hooks/post-commit is held; not applied: " in line
    assert f"main {base} -> " in line
    assert not any(line.startswith(("  A .git", "  git: ")) for line in lines)


def test_a_discard_says_which_commits_go_and_a_new_worktree_goes_without_them(readable_repository: Ground) -> None:
    project = readable_repository.project
    base = do("git rev-parse --short=7 HEAD", project).strip()
    script = f"{COMMIT.format('two')} && git worktree add -q ../out"
    assert run_cli("run", "--hold", "-c", script, cwd=project).returncode == 0
    done = run_cli("discard", ".git/worktrees/out/gitdir", cwd=project)
    assert b"git:" not in done.stdout
    held = run_cli("changes", cwd=project).stdout.decode()
    assert "two" in held
    assert "worktrees" not in held
    done = run_cli("discard", ".git/refs/heads/main", cwd=project)
    assert f"  git: also discarded: main {base} -> " in done.stdout.decode()
    assert run_cli("undo", cwd=project).returncode == 0
    assert run_cli("apply", cwd=project).returncode == 0
    assert do(LOG, project) == "two\nfirst\n"


def test_many_new_branches_leave_no_branch_that_moved_out_of_the_line(readable_repository: Ground) -> None:
    many = "; ".join(f"git branch b{number}" for number in range(9))
    do("git branch AHEAD; git commit -q --allow-empty -m more", readable_repository.project)
    lines = said(readable_repository, f"{many}; git branch -qD AHEAD; git reset -q HEAD~1")
    (line,) = [line for line in lines if line.startswith("  git: ")]
    assert "AHEAD deleted" in line
    assert "main " in line
    assert line.endswith(" more")


def test_a_repository_with_a_link_in_it_is_seen_as_it_is_and_held_as_a_whole(readable_repository: Ground) -> None:
    do("mkdir meta && mv .git/refs meta/refs && ln -s ../meta/refs .git/refs", readable_repository.project)
    sandbox = readable_repository.sandbox()
    assert printed(sandbox.run(LOG, after="discard")) == "first\n"
    result = sandbox.run("echo x > new && git add new", after="apply")
    assert result.operation is not None
    assert [left.reason for left in result.operation.left if left.path == b".git"] == [LINKED]
    assert do("git status --porcelain", readable_repository.project) == "?? meta/\n?? new\n"
    assert do("git fsck --full", readable_repository.project) == ""


def test_a_link_in_a_repository_that_is_not_noticed_makes_every_apply_fail(
    readable_repository: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control arm of the test above."""
    monkeypatch.setattr(state, "_NO_LINKS", ())
    do("mkdir meta && mv .git/refs meta/refs && ln -s ../meta/refs .git/refs", readable_repository.project)
    sandbox = readable_repository.sandbox()
    assert sandbox.run(COMMIT.format("new"), after="hold").ok
    with pytest.raises(ApplyFailed, match="symbolic links"):
        sandbox.apply()


def test_objects_that_nobody_can_read_do_not_keep_a_commit_from_being_held(readable_repository: Ground) -> None:
    do("git commit -q --allow-empty -m second", readable_repository.project)
    closed = (
        readable_repository.project
        / ".git/objects"
        / do("git hash-object -w --stdin < /dev/null", readable_repository.project)[:2]
    )
    closed.chmod(0)
    try:
        result = readable_repository.sandbox().run(COMMIT.format("run"), after="hold")
        assert (result.ok, result.held) == (True, True)
    finally:
        closed.chmod(0o755)


def test_a_base_that_was_kept_before_a_crash_is_kept_once(tmp_path: Path) -> None:
    layer, dest = tmp_path / "layer", tmp_path / "bases" / "one"
    (layer / ".git").mkdir(parents=True)
    (layer / ".git/HEAD").write_text("ref: refs/heads/main\n")
    for _ in range(2):
        keep_frozen(bytes(layer), bytes(dest))
    assert (dest / ".git/HEAD").read_text() == "ref: refs/heads/main\n"


def test_yes_to_a_hook_is_no_yes_to_a_repository_that_is_held(readable_repository: Ground) -> None:
    person = Person()
    sandbox = opened(readable_repository, person)
    junk = ".git/objects/aa/" + "b" * 38
    script = f"""
        echo fine > .git/hooks/pre-push; mkdir -p .git/refs/heads .git/objects/aa
        echo garbage > .git/refs/heads/odd; git checkout -q --orphan other
        echo junk > {junk}; echo x > .git/objects/info/commit-graph
    """
    assert sandbox.run(script, after="hold").ok
    operation = sandbox.apply(asked_by="model")
    assert person.texts == ["Apply the held change of .git/hooks/pre-push?"]
    assert [(left.path, left.why) for left in operation.left] == [(b".git", "held")]
    assert (readable_repository.project / ".git/hooks/pre-push").read_text() == "fine\n"
    assert do("git log --format=%s --all", readable_repository.project) == "first\n"
    for name in ("refs/heads/odd", "objects/info/commit-graph", junk.removeprefix(".git/")):
        assert not (readable_repository.project / ".git" / name).exists()


def test_a_path_in_a_repository_that_is_held_includes_only_itself(readable_repository: Ground) -> None:
    sandbox = readable_repository.sandbox()
    script = "echo fine > .git/hooks/pre-push; mkdir -p .git/refs/heads; echo garbage > .git/refs/heads/odd"
    assert sandbox.run(script, after="hold").ok
    operation = sandbox.apply(Selection(included=(b".git/hooks/pre-push",)))
    assert [(left.path, left.why) for left in operation.left] == [(b".git", "held")]
    assert (readable_repository.project / ".git/hooks/pre-push").exists()
    assert not (readable_repository.project / ".git/refs/heads/odd").exists()
    assert sandbox.apply(Selection(included=(b".git",))).left == ()
    assert (readable_repository.project / ".git/refs/heads/odd").exists()


COMMIT_AS_AGENT = "echo agent >> base1; git commit -qam agent"


@dataclass(frozen=True)
class Variant:
    """What the agent does in an applied run, what the person does then, and the subjects that their branch has."""

    agent: str
    person: str
    subjects: tuple[str, ...]


VARIANTS = {
    "a commit of what the agent staged": Variant(
        "echo agent >> base1; git add base1", "git commit -qm person", ("person",)
    ),
    "a commit on top of the agent's": Variant(
        COMMIT_AS_AGENT, "echo mine > mine; git add mine; git commit -qm person", ("person", "agent")
    ),
    "a merge of the agent's branch": Variant(
        f"git checkout -q -b work; {COMMIT_AS_AGENT}",
        "git checkout -q main; git merge -q --no-ff -m person work",
        ("person", "agent"),
    ),
    "an amended commit of the agent": Variant(
        COMMIT_AS_AGENT, "echo mine > mine; git add mine; git commit -q --amend -m person", ("person",)
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_u1_an_undo_leaves_the_objects_that_a_later_commit_needs(beside: World, name: str) -> None:
    variant = VARIANTS[name]
    assert beside.sandbox.run(variant.agent).operation is not None
    sh(beside.project, variant.person)
    tip = lines(beside.project, "rev-parse", "HEAD")

    undone = beside.sandbox.undo()

    assert lines(beside.project, "rev-parse", "HEAD") == tip
    assert set(variant.subjects) <= set(lines(beside.project, "log", "--format=%s"))
    assert sh(beside.project, "git fsck --full --strict --no-dangling").stdout == ""
    sh(beside.top, "git clone -q --no-local project cloned && git -C cloned fsck --full")
    assert [(left.path, left.why) for left in undone.left if left.path.startswith(b".git")] == [(b".git", "conflict")]
    # Also after git has removed everything that nothing leads to
    sh(beside.project, "git reflog expire --expire=now --all; git gc -q --prune=now; git fsck --full")
    assert printed(beside.sandbox.run("git fsck --full --no-dangling 2>&1; git log -1 --format=%s")) == "person\n"


def test_u1_a_chain_of_undos_takes_everything_back(beside: World) -> None:
    first = lines(beside.project, "rev-parse", "HEAD")
    for number in range(3):
        assert beside.sandbox.run(f"echo {number} >> base1; git commit -qam {number}").operation is not None
    for _ in range(3):
        assert beside.sandbox.undo().left == ()
    assert lines(beside.project, "rev-parse", "HEAD") == first
    assert sh(beside.project, "git fsck --full --no-dangling; git status --short").stdout == ""


def commit_beside(beside: World) -> None:
    """Have the agent commit in a run in which the person commits too."""
    mine = "echo mine > mine; git add mine; git commit -qm person"
    result = beside.run(
        "echo agent >> base1; git add base1",
        "git commit -qm agent",
        meanwhile=lambda: beside.person(mine),
        then="apply",
    )
    assert result.operation is not None
    assert result.operation.left == ()


def test_u2_commits_of_both_sides_at_once_are_both_kept(beside: World) -> None:
    commit_beside(beside)
    assert lines(beside.project, "log", "--format=%s", "-2") == ["person", "deep"]
    (arrived,) = lines(beside.project, "for-each-ref", "--format=%(refname)", "refs/unspill")
    assert lines(beside.project, "log", "--format=%s", "-2", arrived) == ["agent", "deep"]
    assert sh(beside.project, "git status --short; git fsck --full --no-dangling").stdout == ""
    # The sandbox has no `main` of its own from then on
    assert printed(beside.sandbox.run("git log --format=%s -1; git status --short")) == "person\n"
    assert not beside.sandbox.changes()
    sh(beside.project, f"git merge -q {arrived.removeprefix('refs/')}")
    assert "agent" in (beside.project / "base1").read_text()
    assert (beside.project / "mine").exists()


def test_u2_git_is_told_of_in_one_line_with_what_to_do(beside: World) -> None:
    assert beside.sandbox.run("git commit -q --allow-empty -m agent", after="hold").held
    sh(beside.project, "git commit -q --allow-empty -m person")
    done = run_cli("apply", cwd=beside.project)
    assert done.returncode == 0, done
    told = (done.stdout + done.stderr).decode().splitlines()
    assert [line for line in told if ".git/" in line] == []
    assert [line.strip() for line in told if "unspill/run-1" in line] == [
        "git log --oneline HEAD..unspill/run-1/heads/main",
        "git merge unspill/run-1/heads/main",
    ]
    assert len(told) <= 5, told


def test_u2_overwriting_drops_no_commit_of_the_person(beside: World) -> None:
    assert beside.sandbox.run("git commit -q --allow-empty -m agent", after="hold").held
    sh(beside.project, "git commit -q --allow-empty -m person")
    (tip,) = lines(beside.project, "rev-parse", "HEAD")
    beside.sandbox.apply(Selection(overwrite=(b".git",)))
    assert lines(beside.project, "log", "--format=%s", "-1") == ["agent"]
    sh(beside.project, "git reflog expire --expire=now --all; git gc -q --prune=now; git fsck --full")
    assert tip in lines(beside.project, "rev-list", "--all")
    assert beside.sandbox.undo().left == ()
    assert lines(beside.project, "rev-parse", "HEAD") == [tip]


def test_u10_looking_is_no_undo_step(beside: World) -> None:
    assert beside.sandbox.run("git commit -q --allow-empty -m agent").operation is not None
    # Git writes the index anew where the times of a file differ
    os.utime(beside.project / "base1", (1, 1))
    looked = beside.sandbox.run("git status; git log --oneline; git gc -q")
    assert looked.operation is None or not looked.operation.number
    undone = beside.sandbox.undo()
    assert undone.left == ()
    assert lines(beside.project, "log", "--format=%s", "-1") == ["deep"]


def test_a_branch_with_a_name_like_ours_stays_when_its_operation_is_forgotten(beside: World) -> None:
    operation = beside.sandbox.run("git branch refs/unspill/mine").operation
    assert operation is not None
    assert operation.notes == ("git: new refs/unspill/mine",)
    assert remove_own_refs(os.fsencode(beside.ground.state), operation)
    assert "refs/heads/refs/unspill/mine" in lines(beside.project, "for-each-ref", "--format=%(refname)")


def test_a_run_does_not_switch_to_a_branch_that_the_person_deleted_meanwhile(beside: World) -> None:
    sh(beside.project, "git branch doomed")
    result = beside.run(
        "git checkout -q doomed", "", meanwhile=lambda: sh(beside.project, "git branch -q -D doomed"), then="apply"
    )
    assert lines(beside.project, "symbolic-ref", "HEAD") == ["refs/heads/main"]
    assert result.operation is not None
    assert result.operation.notes == (
        "git: you changed it during the run, so HEAD and the index stay as you left them",
    )
    sh(beside.project, "git checkout -q -b mine")
    assert lines(beside.project, "rev-parse", "mine") == lines(beside.project, "rev-parse", "main")


def test_a_stash_whose_log_a_run_expired_is_still_there_after_the_next_one(beside: World) -> None:
    sh(beside.project, "echo one > base1; git stash push -q -m first")
    assert beside.sandbox.run("git reflog expire --expire=now --all").operation is not None
    sh(beside.project, "echo two > base1; git stash push -q -m second; git gc -q --prune=now")
    assert {"On main: first", "On main: second"} <= set(lines(beside.project, "log", "--all", "--format=%s"))


def fill_every_directory(world: World) -> None:
    """Give the repository so many objects that there is a directory for any other one, which a cleaning removes."""
    for number in range(1500):
        (world.top / f"blob{number}").write_text(str(number))
    sh(world.project, f"ls {world.top}/blob* | git hash-object -w --stdin-paths > /dev/null")


def test_a_held_run_sees_no_log_of_what_came_after_it(beside: World) -> None:
    """Such a log may name commits that are hidden from it, which git calls an error."""
    fill_every_directory(beside)
    assert beside.sandbox.run(f"{COMMIT_AS_AGENT}; git gc -q --prune=now", after="hold").held
    sh(beside.project, "git checkout -q -b later; git commit -q --allow-empty -m mine")
    found = beside.sandbox.run("git fsck --full --no-dangling 2>&1; git reflog --format=%gs -1", after="discard")
    assert printed(found) == "commit: agent\n"


def test_a_held_cleaning_hides_no_object_that_comes_later(beside: World) -> None:
    fill_every_directory(beside)
    assert beside.sandbox.run(f"{COMMIT_AS_AGENT}; git gc -q --prune=now", after="hold").held
    sh(beside.project, "git commit -q --allow-empty -m mine")
    (tip,) = lines(beside.project, "rev-parse", "HEAD")
    assert printed(beside.sandbox.run(f"git cat-file -t {tip} 2>&1", after="discard")) == "commit\n"


def test_a_log_line_that_the_person_expired_meanwhile_does_not_come_back(beside: World) -> None:
    assert beside.sandbox.run(COMMIT_AS_AGENT, after="hold").held
    sh(beside.project, "git reflog expire --expire=now --all")
    beside.sandbox.apply()
    assert lines(beside.project, "reflog", "--format=%gs") == ["commit: agent"]


def test_a_discard_is_not_redone_below_a_run_that_built_on_it(beside: World) -> None:
    assert beside.sandbox.run(COMMIT_AS_AGENT, after="hold").held
    beside.sandbox.discard()
    undone = beside.sandbox.undo()
    assert beside.sandbox.run("git branch later", after="hold").held
    with pytest.raises(UsageError, match="a later run built on"):
        beside.sandbox.redo(undone.number)
    assert printed(beside.sandbox.run("git fsck --full --no-dangling 2>&1; git log -1 --format=%s later")) == "agent\n"
    beside.sandbox.discard()
    assert printed(beside.sandbox.run("git log -1 --format=%s; git branch --list later")) == "deep\n"


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "kept"])
def test_a_commit_is_pinned_when_the_person_deletes_the_only_other_branch_that_led_to_it(
    beside: World, is_deleted: bool
) -> None:
    sh(beside.project, "echo mine > mine; git add mine; git commit -qm mine; git branch feature")
    tip = lines(beside.project, "rev-parse", "HEAD")
    assert beside.sandbox.run("git reset -q --hard HEAD~1", after="hold").held
    if is_deleted:
        sh(beside.project, "git branch -D feature")
    assert beside.sandbox.apply().left == ()
    refs = lines(beside.project, "for-each-ref", "--format=%(refname)", f"--contains={tip[0]}")
    assert refs == (["refs/unspill/op-1/0"] if is_deleted else ["refs/heads/feature"])


COMMIT_LEFT = "echo work > made; rm base2; git add -A; git commit -qm agent; echo loose > loose"
PERSON = "echo mine > mine; git add mine; git commit -qm person"
SPOIL = "object=.git/objects/$(git rev-parse HEAD:made | sed 's,..,&/,'); chmod u+w $object; echo spoilt > $object"


@dataclass(frozen=True)
class LeftCase:
    """What the run does, what the person does then, why the repository is left, and what else stays held."""

    agent: str
    person: str
    reason: str
    held: frozenset[bytes] = frozenset()


LEFT_CASES = {
    "it is not there": LeftCase(COMMIT_LEFT, "mv .git ../gone", "no longer exists"),
    "an object is not what its name says": LeftCase(f"{COMMIT_LEFT}; {SPOIL}", PERSON, "not what its name says"),
    "no reference can be made": LeftCase(
        COMMIT_LEFT, f"{PERSON}; chmod 500 .git/refs", "permission", frozenset({b"made", b"base2"})
    ),
}


@pytest.mark.parametrize("name", LEFT_CASES)
def test_the_files_of_a_commit_are_applied_or_held_and_named_when_its_repository_is_left(
    beside: World, name: str
) -> None:
    case = LEFT_CASES[name]
    assert beside.sandbox.run(case.agent, after="hold").held
    sh(beside.project, case.person)

    operation = beside.sandbox.apply()

    assert {left.path for left in operation.left} == {b".git", *case.held}
    assert case.reason in operation.left[0].reason
    assert (beside.project / "loose").exists()
    assert (beside.project / "made").exists() == (b"made" not in case.held)
    assert (beside.project / "base2").exists() == (b"base2" in case.held)
    held = {change.path for part in beside.sandbox.changes().roots for change in part.changes}
    assert {path for path in held if not path.startswith(b".git/")} - {b"."} == case.held

    assert beside.sandbox.undo().left == ()
    assert not (beside.project / "made").exists()
    assert (beside.project / "base2").exists()
    assert {b"made", b"base2", b"loose"} <= {
        change.path for part in beside.sandbox.changes().roots for change in part.changes
    }


def test_a_file_that_git_does_not_track_is_deleted_though_the_commit_only_arrives(beside: World) -> None:
    (beside.project / "notes").write_text("junk")
    assert beside.sandbox.run(f"rm notes; {COMMIT_LEFT}", after="hold").held
    sh(beside.project, PERSON)
    assert beside.sandbox.apply().left == ()
    assert not (beside.project / "notes").exists()
    # What the commit deletes is gone once it is merged
    assert (beside.project / "base2").exists()
    assert lines(beside.project, "for-each-ref", "--format=%(refname)", "refs/unspill") != []


def test_a_pack_is_checked_and_applied_while_others_sweep(beside: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert beside.sandbox.run(f"{COMMIT_LEFT}; git repack -q -d", after="hold").held
    swept = []

    def perform_after_a_sweep(*rest: Any) -> object:
        with Store.open(os.fsencode(beside.ground.state)) as store:
            swept.append(sweep(store))
        return perform(*rest)

    monkeypatch.setattr(apply, "perform", perform_after_a_sweep)
    assert beside.sandbox.apply().left == ()
    assert swept == [Swept()]
    assert lines(beside.project, "log", "--format=%s", "-1") == ["agent"]
    assert os.listdir(beside.ground.state / "work") == []


def do_with_canary(ground: Ground, script: str, where: Path) -> None:
    """Run a script outside, as the person."""
    variables = {**os.environ, "CANARY": os.fspath(canary(ground))}
    subprocess.run(["sh", "-c", FAKE + script], cwd=where, env=variables, check=False, capture_output=True, timeout=30)


def canary(ground: Ground) -> Path:
    return ground.top / "canary"


@pytest.fixture
def old_repository(ground: Ground) -> Ground:
    """A project under git with one file, older than the index so that nobody has to read it."""
    (ground.home / ".gitconfig").write_text(IDENTITY)
    os.utime(ground.write("a.txt", "one\n"), (1_000_000_000, 1_000_000_000))
    do_with_canary(ground, "git init -q && git add -A && git commit -qm first", ground.project)
    return ground


def changed_by(repository: Ground, vector: Vector) -> ChangeSet:
    """Let a command make the changes inside, and see that they are there and did nothing yet."""
    do_with_canary(repository, vector.before, repository.project)
    canary(repository).unlink(missing_ok=True)
    sandbox = repository.sandbox(after="hold")
    result = sandbox.run(FAKE + vector.inside, env={"CANARY": os.fspath(canary(repository))})
    assert result.ok, result.stderr.kept()
    assert not canary(repository).exists()
    return sandbox.changes()


def fires(repository: Ground, vector: Vector, changes: ChangeSet, leave_out: list[bytes]) -> bool:
    """Tell whether looking runs something in a copy that has the changes, and those left out are not among them."""
    copy = repository.home / "copy"
    shutil.copytree(repository.project, copy, symlinks=True)
    lay(changes, copy, leave_out)
    # Nobody can enter what was left out as a whole
    (copy / vector.where).mkdir(parents=True, exist_ok=True)
    do_with_canary(repository, vector.looks, copy / vector.where)
    return canary(repository).exists()


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_it_is_held_and_nothing_else_of_the_change_fires(old_repository: Ground, vector: Vector) -> None:
    changes = changed_by(old_repository, vector)
    held = dict(judge(changes.roots[0]).held)
    assert {path.encode() for path in vector.decides} <= held.keys()
    assert b"a.txt" not in held
    assert not fires(old_repository, vector, changes, list(held))


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_the_control_arm_fires_where_nothing_is_held(old_repository: Ground, vector: Vector) -> None:
    assert fires(old_repository, vector, changed_by(old_repository, vector), [])


@pytest.mark.parametrize("vector", VECTORS, ids=str)
def test_an_apply_leaves_it_until_it_is_included(old_repository: Ground, vector: Vector) -> None:
    changed_by(old_repository, vector)
    sandbox = old_repository.sandbox()
    held = {one.path for one in sandbox.apply().left if one.why == "held"}
    assert {path.encode() for path in vector.decides} <= held
    place = old_repository.project / vector.where
    if place.is_dir():
        do_with_canary(old_repository, vector.looks, place)
    assert not canary(old_repository).exists()
    # Looking may have refreshed the index, which is then a conflict; the rest arrives
    left = {one.path for one in sandbox.apply(Selection(included=tuple(held))).left}
    assert left <= {b".git/index"}
    assert not {path.encode() for path in vector.decides} & {change.path for change in sandbox.changes()}
