# SPDX-License-Identifier: Apache-2.0
"""Where a repository stands is told by what its files say, not by which files there are."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.unit.git.test_objects import git
from unspill.changes.scan import MergedTree
from unspill.git.files import is_ref_name, part_of
from unspill.git.state import GitState, read_state, read_values


def state(project: Path) -> GitState:
    with MergedTree(os.fsencode(project)) as tree:
        found = read_state(tree, b".git")
    assert found is not None
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "a").write_text("a\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def refs_by_git(project: Path) -> dict[bytes, bytes]:
    lines = git(project, "for-each-ref", "--format=%(refname) %(objectname) %(symref)").splitlines()
    found = {}
    for line in lines:
        name, value, symbolic = line.split(b" ")
        found[name] = b"ref: " + symbolic if symbolic else value
    return found


def test_references_are_those_that_git_lists(project: Path) -> None:
    for name in ("topic", "feature/one", "refs/heads/inner"):
        git(project, "branch", name)
    git(project, "pack-refs", "--all")
    git(project, "branch", "loose")
    git(project, "tag", "-a", "-m", "x", "v1")
    git(project, "symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/main")
    git(project, "update-ref", "refs/remotes/origin/main", "HEAD")
    found = state(project)
    assert {name: value for name, value in found.refs.items() if name != b"HEAD"} == refs_by_git(project)
    assert found.refs[b"HEAD"] == b"ref: refs/heads/main"
    assert found.branch() == b"refs/heads/main"
    assert found.problem == ""


SAME = {
    "status with other times": "touch -d @1 a; git status",
    "pack-refs": "git pack-refs --all",
    "gc": "git gc -q --prune=now",
    "fetch of nothing": "git fetch -q . ; true",
    "an unreferenced object": "echo x | git hash-object -w --stdin",
    "a file that is not staged": "echo new > new",
    "log": "git reflog expire --expire=now --all",
}
OTHER = {
    "add": ("echo b > b; git add b", {b"index"}),
    "commit": ("echo b > a; git commit -qam two", {b"index", b"refs/heads/main"}),
    "checkout -b": ("git checkout -q -b topic", {b"HEAD", b"refs/heads/topic"}),
    "detached": ("git checkout -q --detach", {b"HEAD"}),
    "tag": ("git tag v1", {b"refs/tags/v1"}),
    "stash": ("echo b > a; git stash -q", {b"refs/stash", b"logs/refs/stash"}),
    "merge that stops": (
        "git checkout -q -b t; echo t > a; git commit -qam t; git checkout -q main; echo m > a; git commit -qam m;"
        "git merge -q t || true",
        {b"refs/heads/t", b"refs/heads/main", b"index", b"MERGE_HEAD", b"MERGE_MSG", b"MERGE_MODE"},
    ),
    "chmod": ("chmod +x a; git add a", {b"index"}),
    "assume unchanged": ("git update-index --assume-unchanged a", {b"index"}),
    "bisect": ("git bisect start", {b"BISECT_LOG", b"BISECT_START", b"BISECT_NAMES", b"BISECT_TERMS"}),
    "sparse": ("git sparse-checkout set nothing", {b"info/sparse-checkout"}),
}


def sh(project: Path, text: str) -> None:
    from tests.unit.git.test_objects import ENVIRONMENT

    subprocess.run(["sh", "-ec", text], cwd=project, env=ENVIRONMENT, check=True, capture_output=True)


@pytest.mark.parametrize("what", SAME)
def test_it_stands_where_it_stood_after(project: Path, what: str) -> None:
    before = state(project)
    sh(project, SAME[what])
    assert state(project) == before


@pytest.mark.parametrize("what", OTHER)
def test_it_stands_elsewhere_after(project: Path, what: str) -> None:
    before = state(project)
    command, names = OTHER[what]
    sh(project, command)
    after = state(project)
    moved = {name for name in {*before.refs, *after.refs, *before.files, *after.files}
             if before.value(name) != after.value(name)}  # fmt: skip
    assert moved - {b"BISECT_TERMS"} == names - {b"BISECT_TERMS"}
    with MergedTree(os.fsencode(project)) as tree:
        some = read_values(tree, b".git", after.members, names)
    assert {name: some.value(name) for name in names} == {name: after.value(name) for name in names}


def test_worktrees_and_submodules_belong_to_it(project: Path) -> None:
    sh(project, "git worktree add -q wt; git init -q -b main sub/refs; cd sub/refs; git commit -q --allow-empty -m x")
    sh(project, "git -c protocol.file.allow=always submodule -q add ./sub/refs vendor/refs")
    found = state(project)
    assert found.members == (b"", b"worktrees/wt/", b"modules/vendor/refs/")
    assert found.refs[b"worktrees/wt/HEAD"] == b"ref: refs/heads/wt"
    assert found.branch(b"worktrees/wt/") == b"refs/heads/wt"
    assert found.branch(b"modules/vendor/refs/") == b"modules/vendor/refs/refs/heads/main"
    assert {b"modules/vendor/refs/refs/heads/main", b"modules/vendor/refs/HEAD"} <= found.refs.keys()
    assert {b"index", b"worktrees/wt/index", b"modules/vendor/refs/index"} <= found.files.keys()
    assert found.core(b"worktrees/wt/") == {b"worktrees/wt/HEAD", b"worktrees/wt/index", b"refs/heads/wt"}


PROBLEMS = {
    "split index": "git update-index --split-index",
    "a reference that is none": "echo nonsense > .git/refs/heads/odd",
    "reftable": "mkdir .git/reftable",
}


@pytest.mark.parametrize("what", PROBLEMS)
def test_what_can_not_be_moved_says_so(project: Path, what: str) -> None:
    assert not state(project).problem
    sh(project, PROBLEMS[what])
    assert state(project).problem


def test_a_directory_that_is_no_repository_has_no_state(tmp_path: Path) -> None:
    with MergedTree(os.fsencode(tmp_path)) as tree:
        assert read_state(tree, b".git") is None
        (tmp_path / ".git").write_text("gitdir: elsewhere\n")
        assert read_state(tree, b".git") is None


@pytest.mark.parametrize(
    "name",
    "refs/heads/a.lock refs/heads/.a refs/heads/a..b refs/heads/a@{b refs//a refs/heads/ refs/heads/a. refs refs/a:b x"
    .split(),
)  # fmt: skip
def test_what_git_takes_for_no_reference_is_none(project: Path, name: str) -> None:
    full = name if name != "x" else "refs/heads/a b"
    assert subprocess.run(["git", "check-ref-format", full], check=False).returncode != 0
    assert not is_ref_name(full.encode())


@pytest.mark.parametrize("name", "refs/heads/main refs/tags/v1.0 refs/unspill/run-1/heads/x refs/heads/ä HEAD".split())
def test_what_git_takes_for_a_reference_is_one(name: str) -> None:
    assert name == "HEAD" or subprocess.run(["git", "check-ref-format", name], check=False).returncode == 0
    assert is_ref_name(name.encode())


PARTS = {
    "HEAD refs refs/heads/main packed-refs": "ref",
    "index MERGE_HEAD rebase-merge/done info/sparse-checkout logs/refs/stash sequencer": "file",
    "logs logs/HEAD logs/refs/heads/main": "log",
    "ORIG_HEAD FETCH_HEAD COMMIT_EDITMSG TAG_EDITMSG AUTO_MERGE MERGE_RR rr-cache/x/preimage gc.log": "along",
    f"objects/ab/{'c' * 38} objects/ab/{'c' * 62}": "object",
    "objects/pack/pack-1.pack": "pack",
    "objects/pack/pack-1.promisor": "promisor",
    "objects objects/ab objects/pack objects/pack/pack-1.idx objects/pack/pack-1.rev objects/info/commit-graph"
    " info/refs objects/pack/multi-pack-index objects/info/packs": "derived",
    "index.lock refs/heads/main.lock gc.pid objects/ab/tmp_obj_x objects/pack/tmp_pack_x objects/incoming-1/ab/cd"
    " packed-refs.new objects/maintenance.lock index.stash.12": "scrap",
    "config hooks/pre-commit info/exclude info/attributes info/grafts shallow objects/info/alternates description"
    " worktrees/x/gitdir modules/x/config config.worktree refs.txt": "other",
}  # fmt: skip


@pytest.mark.parametrize(("name", "part"), [(name, part) for names, part in PARTS.items() for name in names.split()])
def test_each_file_has_its_part(name: str, part: str) -> None:
    assert part_of(name.encode()) == part
