# SPDX-License-Identifier: Apache-2.0
"""A part of a repository that waits for consent keeps nothing else back: neither the commit nor what comes later."""

import subprocess
from pathlib import Path
from typing import Literal

import pytest

from tests.kernel.answering import Person, opened
from tests.kernel.test_git_apply import IDENTITY, do
from tests.support import Ground, printed, run_cli
from unspill.apply import guard
from unspill.errors import ApplyFailed
from unspill.git import state
from unspill.git.frozen import keep_frozen
from unspill.git.state import LINKED
from unspill.model.change import Selection
from unspill.policy.held import MODULE

pytestmark = pytest.mark.kernel

COMMIT = "echo {0} > {0} && git add {0} && git commit -qm {0}"
LOG = "git log --format=%s"


@pytest.fixture
def repository(ground: Ground) -> Ground:
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
    repository: Ground, after: Literal["apply", "hold"]
) -> None:
    sandbox = repository.sandbox()
    script = "echo true > .git/hooks/post-checkout"
    assert sandbox.run(script if after == "hold" else f"{script} && {COMMIT.format('run')}", after=after).ok
    do(COMMIT.format("mine"), repository.project)
    expected = "mine\nfirst\n" if after == "hold" else "mine\nrun\nfirst\n"
    assert do(LOG, repository.project) == expected
    assert printed(sandbox.run(f"{LOG}; cat .git/hooks/post-checkout", after="discard")) == expected + "true\n"
    assert sandbox.run(COMMIT.format("later"), after="apply").ok
    assert do(LOG, repository.project) == "later\n" + expected
    assert do("git for-each-ref refs/unspill/run-*", repository.project) == ""


def test_a_commit_that_is_held_is_seen_by_the_next_run_whatever_the_person_commits(repository: Ground) -> None:
    sandbox = repository.sandbox()
    assert sandbox.run(COMMIT.format("run"), after="hold").ok
    do(COMMIT.format("mine"), repository.project)
    assert printed(sandbox.run(LOG, after="discard")) == "run\nfirst\n"


@pytest.mark.parametrize("is_defended", [True, False], ids=["defended", "control"])
def test_the_repository_of_a_submodule_goes_only_with_consent_and_keeps_no_commit_back(
    repository: Ground, is_defended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_defended:
        monkeypatch.setattr(guard, "_has_repository", lambda _path: False)
    module = repository.home / "module"
    subprocess.run(["git", "init", "-q", module], check=True)
    do(COMMIT.format("inside"), module)
    do(
        f"git -c protocol.file.allow=always submodule --quiet add {module} sub && git commit -qm sub",
        repository.project,
    )
    result = repository.sandbox().run("git rm -q sub && rm -rf .git/modules/sub && git commit -qm gone", after="apply")
    assert result.operation is not None
    held = [(left.path, left.reason) for left in result.operation.left]
    assert held == ([(b".git/modules/sub", MODULE.reason)] if is_defended else [])
    assert do(LOG, repository.project) == "gone\nsub\nfirst\n"
    assert do("git status --porcelain", repository.project) == ""
    assert (repository.project / ".git/modules/sub/HEAD").exists() is is_defended


def test_a_summary_counts_files_of_the_project_and_says_in_one_line_what_git_did(repository: Ground) -> None:
    first, *rest = said(repository, COMMIT.format("new"))
    assert first == "unspill: 1 added. Applied as op 1. Undo: unspill undo"
    assert rest[0] == "  A new"
    assert rest[1].startswith("  git: main ")
    assert len(rest) == 2
    assert said(repository, "git tag done")[0] == "unspill: Only git files changed. Applied as op 2. Undo: unspill undo"


def test_a_repository_with_a_link_in_it_is_seen_as_it_is_and_held_as_a_whole(repository: Ground) -> None:
    do("mkdir meta && mv .git/refs meta/refs && ln -s ../meta/refs .git/refs", repository.project)
    sandbox = repository.sandbox()
    assert printed(sandbox.run(LOG, after="discard")) == "first\n"
    result = sandbox.run("echo x > new && git add new", after="apply")
    assert result.operation is not None
    assert [left.reason for left in result.operation.left if left.path == b".git"] == [LINKED]
    assert do("git status --porcelain", repository.project) == "?? meta/\n?? new\n"
    assert do("git fsck --full", repository.project) == ""


def test_a_link_in_a_repository_that_is_not_noticed_makes_every_apply_fail(
    repository: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control arm of the test above."""
    monkeypatch.setattr(state, "_NO_LINKS", ())
    do("mkdir meta && mv .git/refs meta/refs && ln -s ../meta/refs .git/refs", repository.project)
    sandbox = repository.sandbox()
    assert sandbox.run(COMMIT.format("new"), after="hold").ok
    with pytest.raises(ApplyFailed, match="symbolic links"):
        sandbox.apply()


def test_objects_that_nobody_can_read_do_not_keep_a_commit_from_being_held(repository: Ground) -> None:
    do("git commit -q --allow-empty -m second", repository.project)
    closed = repository.project / ".git/objects" / do("git hash-object -w --stdin < /dev/null", repository.project)[:2]
    closed.chmod(0)
    try:
        result = repository.sandbox().run(COMMIT.format("run"), after="hold")
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


def test_yes_to_a_hook_is_no_yes_to_a_repository_that_is_held(repository: Ground) -> None:
    person = Person()
    sandbox = opened(repository, person)
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
    assert (repository.project / ".git/hooks/pre-push").read_text() == "fine\n"
    assert do("git log --format=%s --all", repository.project) == "first\n"
    for name in ("refs/heads/odd", "objects/info/commit-graph", junk.removeprefix(".git/")):
        assert not (repository.project / ".git" / name).exists()


def test_a_path_in_a_repository_that_is_held_includes_only_itself(repository: Ground) -> None:
    sandbox = repository.sandbox()
    script = "echo fine > .git/hooks/pre-push; mkdir -p .git/refs/heads; echo garbage > .git/refs/heads/odd"
    assert sandbox.run(script, after="hold").ok
    operation = sandbox.apply(Selection(included=(b".git/hooks/pre-push",)))
    assert [(left.path, left.why) for left in operation.left] == [(b".git", "held")]
    assert (repository.project / ".git/hooks/pre-push").exists()
    assert not (repository.project / ".git/refs/heads/odd").exists()
    assert sandbox.apply(Selection(included=(b".git",))).left == ()
    assert (repository.project / ".git/refs/heads/odd").exists()
