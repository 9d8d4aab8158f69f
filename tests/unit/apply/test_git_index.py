# SPDX-License-Identifier: Apache-2.0
"""An index that git only refreshed says what it said before; one that somebody staged something in does not."""

import os
import subprocess
from pathlib import Path

import pytest

from unspill.apply.git_index import is_index, says_at

ENVIRONMENT = {
    "PATH": os.defpath,
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
}


def git(project: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=project, env=ENVIRONMENT, check=True, capture_output=True)


def says(project: Path) -> bytes:
    fd = os.open(project / ".git", os.O_RDONLY)
    try:
        return says_at(fd, b"index")
    finally:
        os.close(fd)


@pytest.fixture(params=[2, 3, 4])
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    git(tmp_path, "init", "-q")
    for name in ("a", "ab", "abc/d", "abc/de", "é" * 40):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    git(tmp_path, "update-index", "--index-version", "4" if request.param == 4 else "2")
    if request.param == 3:
        # Only entries with further flags need this version
        git(tmp_path, "update-index", "--skip-worktree", "ab")
    assert (tmp_path / ".git" / "index").read_bytes()[7] == request.param
    return tmp_path


def test_a_refreshed_index_says_the_same(project: Path) -> None:
    before, content = says(project), (project / ".git" / "index").read_bytes()
    os.utime(project / "a", (1, 1))
    git(project, "status")
    assert (project / ".git" / "index").read_bytes() != content
    assert says(project) == before != b""


@pytest.mark.parametrize(
    "words", [("add", "a"), ("rm", "-q", "--cached", "abc/d"), ("update-index", "--chmod=+x", "abc/de")]
)
def test_an_index_in_which_something_was_staged_says_something_else(project: Path, words: tuple[str, ...]) -> None:
    before = says(project)
    (project / "a").write_text("changed")
    git(project, *words)
    assert says(project) not in (before, b"")


def test_a_split_index_is_not_read(project: Path) -> None:
    git(project, "update-index", "--split-index")
    assert says(project) == b""


def test_no_index_and_a_broken_one_say_nothing(project: Path) -> None:
    whole = (project / ".git" / "index").read_bytes()
    for length in range(0, len(whole) - 20, 7):
        (project / ".git" / "index").write_bytes(whole[:length])
        # Cut within its extensions it has all entries, and git would say so as well
        assert says(project) in (b"", says_of(project, whole))
    (project / ".git" / "index").unlink()
    assert says(project) == b""


def says_of(project: Path, content: bytes) -> bytes:
    (project / ".git" / "index").write_bytes(content)
    return says(project)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b".git/index", True),
        (b"sub/.git/index", True),
        (b".git/worktrees/w/index", True),
        (b".git/modules/m/index", True),
        (b"index", False),
        (b"docs/index", False),
        (b".git/index.lock", False),
    ],
)
def test_an_index_is_known_by_its_place(path: bytes, expected: bool) -> None:
    assert is_index(path) == expected
