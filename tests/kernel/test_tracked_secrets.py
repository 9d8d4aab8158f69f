# SPDX-License-Identifier: Apache-2.0
"""Secrets of a project that git tracks: shown and reported, unless a command is why they are in the index."""

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import Ground, printed, run_cli
from unspill import Sandbox
from unspill.sandbox.secrets import Claims, search

pytestmark = pytest.mark.kernel

SECRET = "SECRET-of-the-project\n"


@pytest.fixture
def repository(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> Ground:
    """A project under git that tracks `.npmrc` and not `.env`."""
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"):
        monkeypatch.setenv(name, "Ada")
    for name in ("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "ada@example.org")
    (ground.home / ".gitconfig").write_text("[user]\nname = Ada\nemail = ada@example.org\n")
    ground.write(".npmrc", "registry=https://example.org\n")
    ground.write(".env", SECRET)
    git(ground.project, "init", "-q")
    git(ground.project, "add", ".npmrc")
    git(ground.project, "commit", "-qm", "first")
    return ground


def git(where: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=where, check=True, capture_output=True)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_what_git_tracks_is_shown_and_the_first_run_says_so(repository: Ground, engine: str, version: int) -> None:
    git(repository.project, "update-index", "--index-version", str(version))
    repository.write("later", "x")
    git(repository.project, "add", "-N", "later")
    sandbox = repository.sandbox()
    first = sandbox.run("cat .npmrc; cat .env")
    assert first.stdout.kept() == b"registry=https://example.org\n"
    assert any(text.startswith(".npmrc is tracked by git, so it is not masked") for text in first.warnings)
    second = sandbox.run("git status --short .npmrc")
    assert printed(second) == ""
    assert not any("tracked" in text for text in second.warnings)


def test_the_command_line_says_once_that_a_secret_is_tracked(repository: Ground) -> None:
    first, second = (run_cli("run", "--", "true", cwd=repository.project) for _ in range(2))
    assert first.stderr.decode().startswith("unspill: .npmrc is tracked by git, so it is not masked")
    assert second.stderr == b""


def test_what_git_tracks_is_shown_whatever_the_person_has_made_of_it(repository: Ground, engine: str) -> None:
    first = repository.run("true")
    assert any(text.startswith(".npmrc is tracked by git, so it is not masked") for text in first.warnings)
    repository.write(".npmrc", SECRET)
    result = repository.run("cat .npmrc && git status --short")
    assert (result.ok, printed(result)) == (True, f"{SECRET} M .npmrc\n")


def test_an_edited_file_is_shown_by_a_new_database_only_after_the_person_was_told(
    repository: Ground, engine: str
) -> None:
    repository.write(".npmrc", SECRET)
    text = ".npmrc is tracked by git and edited, but unspill does not know who added it"
    for _ in range(2):
        result = repository.run("cat .npmrc")
        assert SECRET.encode() not in result.stdout.kept()
        assert any(warning.startswith(text) for warning in result.warnings)
    # What a program reads, an agent's for example, the person has not read
    assert text in run_cli("run", "--", "true", cwd=repository.project).stderr.decode()
    assert SECRET.encode() not in repository.run("cat .npmrc").stdout.kept()
    ours, theirs = pty.openpty()
    try:
        program = os.fspath(Path(sys.executable).with_name("unspill"))
        subprocess.run([program, "run", "--no-tty", "--", "true"], cwd=repository.project, stderr=theirs, check=True)
        assert text.encode() in os.read(ours, 1 << 16).replace(b"\r\n  ", b" ").replace(b"\r\n", b" ")
    finally:
        os.close(ours)
        os.close(theirs)
    told, later = (repository.run("cat .npmrc") for _ in range(2))
    assert printed(told) == printed(later) == SECRET
    assert any(warning.startswith(".npmrc is tracked by git, so it is not masked") for warning in told.warnings)
    assert not any("tracked" in warning for warning in later.warnings)


@pytest.mark.parametrize("where", [".env", "deeper/.env"])
@pytest.mark.parametrize("is_careful", [True, False])
def test_after_a_lost_database_an_index_that_a_command_wrote_shows_no_secret(
    repository: Ground, monkeypatch: pytest.MonkeyPatch, where: str, is_careful: bool
) -> None:
    repository.write(where, SECRET)
    sandbox = repository.sandbox(after="apply")
    look_deeper(sandbox)
    assert sandbox.run(f"mkdir -p deeper; echo fake > {where}; git add -f {where}").ok
    shutil.rmtree(repository.state)
    # As 0.2 had it: what nothing is known of is the person's
    if not is_careful:
        monkeypatch.setattr(Claims, "is_told", lambda *_: True)
    again = repository.sandbox("again")
    look_deeper(again)
    result = again.run(f"cat {where}")
    assert (SECRET.encode() in result.stdout.kept()) is not is_careful
    assert any(text.startswith(f"{where} is tracked by git and edited") for text in result.warnings) is is_careful


def look_deeper(sandbox: Sandbox) -> None:
    """Search deeper down now; a run would do that when it has ended."""
    project = sandbox._project
    search(project.store, project.path, project.means.policy.secrets)


def test_a_commit_of_all_does_not_delete_what_the_person_edited(repository: Ground, engine: str) -> None:
    sandbox = repository.sandbox(after="apply")
    repository.write("plain", "x")
    assert sandbox.run("git add plain && git commit -qm plain").ok
    for number in range(2):
        repository.write(".npmrc", f"registry=https://example.org/{number}\n")
        assert sandbox.run("git commit -qam work").ok
        shown = subprocess.run(["git", "show", "HEAD:.npmrc"], cwd=repository.project, capture_output=True, check=True)
        assert shown.stdout == f"registry=https://example.org/{number}\n".encode()


def test_every_run_says_that_git_misses_a_masked_file(repository: Ground) -> None:
    sandbox = repository.sandbox(after="apply")
    sandbox.run("echo fake > .env && git add -f .env")
    sandbox.discard()
    for _ in range(3):
        result = sandbox.run("git status --short")
        assert any(text.startswith(".env is tracked by git but masked") for text in result.warnings)
    told = [run_cli("run", "--", "true", cwd=repository.project).stderr.decode() for _ in range(2)]
    assert all(".env is tracked by git but masked" in text for text in told)


def test_a_command_can_not_unmask_a_secret_by_adding_it_to_the_index(repository: Ground, engine: str) -> None:
    sandbox = repository.sandbox(after="apply")
    assert sandbox.run("echo fake > .env && git add -f .env && git commit -qm fake").ok
    listed = subprocess.run(["git", "ls-files"], cwd=repository.project, capture_output=True, text=True, check=True)
    assert ".env" in listed.stdout.split()
    sandbox.discard()
    result = sandbox.run("cat .env")
    assert SECRET.encode() not in result.stdout.kept()
    assert any(text.startswith(".env is tracked by git but") for text in result.warnings)
    git(repository.project, "add", "-f", ".env")
    assert printed(sandbox.run("cat .env")) == SECRET


def test_worktrees_modules_and_projects_inside_a_repository_have_an_index_too(repository: Ground) -> None:
    git(repository.project, "worktree", "add", "-q", "../tree")
    inner = repository.write("packages/a/.npmrc", "inner\n").parent
    git(repository.project, "add", "packages")
    for project, text in ((repository.home / "tree", "registry=https://example.org\n"), (inner, "inner\n")):
        assert printed(repository.sandbox(project=project).run("cat .npmrc")) == text


@pytest.mark.parametrize(
    "index", [b"", b"DIRC", b"DIRC\0\0\0\2\xff\xff\xff\xff", b"DIRC\0\0\0\4\0\0\0\1" + b"\x80" * 999]
)
def test_an_index_that_can_not_be_read_tracks_nothing(repository: Ground, index: bytes) -> None:
    (repository.project / ".git/index").write_bytes(index)
    assert not repository.run("cat .npmrc").ok


def test_an_index_that_is_no_file_tracks_nothing(repository: Ground) -> None:
    (repository.project / ".git/index").unlink()
    os.mkfifo(repository.project / ".git/index")
    assert not repository.run("cat .npmrc").ok
