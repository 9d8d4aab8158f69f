# SPDX-License-Identifier: Apache-2.0
"""An index that git only refreshed says what it said before; one that somebody staged something in does not."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from unspill.git.files import _FIRST_LOOK, find_objects, index_digest, is_index, says_at

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


def objects(project: Path, *paths: str) -> dict[str, str]:
    fd = os.open(project / ".git/index", os.O_RDONLY)
    try:
        found = find_objects(fd, [path.encode() for path in paths])
    finally:
        os.close(fd)
    return {path.decode(): name.hex() for path, name in found.items()}


def git_says(project: Path) -> dict[str, str]:
    words = ["git", "ls-files", "-sz"]
    listed = subprocess.run(words, cwd=project, env=ENVIRONMENT, check=True, capture_output=True, text=True).stdout
    lines = (line.split("\t") for line in listed.split("\0") if line)
    return {path: entry.split()[1] for entry, path in lines}


def test_objects_are_those_that_git_says(project: Path) -> None:
    known = git_says(project)
    assert objects(project, *known, "absent", "abc") == known
    for path in known:
        assert objects(project, path) == {path: known[path]}


def test_objects_beyond_the_first_look_are_found(project: Path) -> None:
    for number in range(4000):
        (project / f"a-rather-long-name-{number:06}").write_text("")
    (project / "z").write_text("z")
    git(project, "add", ".")
    assert (project / ".git/index").stat().st_size > _FIRST_LOOK or (project / ".git/index").read_bytes()[7] == 4
    known = git_says(project)
    assert objects(project, "a", "z", "zz") == {"a": known["a"], "z": known["z"]}


@pytest.mark.parametrize("cut", [0, 4, 12, 40, 90])
def test_an_index_that_ends_too_early_has_no_objects(project: Path, cut: int) -> None:
    path = project / ".git/index"
    path.write_bytes(path.read_bytes()[:cut])
    assert objects(project, "z") == {}


@pytest.mark.parametrize("number", [b"\xff" * 3_000_000, b"\xff" * 40 + b"\x00", b"\x05"])
def test_a_number_without_an_end_does_not_keep_the_reader_busy(tmp_path: Path, number: bytes) -> None:
    index = tmp_path / "index"
    index.write_bytes(b"DIRC" + (4).to_bytes(4, "big") + (1).to_bytes(4, "big") + bytes(62) + number + b"name\0")
    with index.open("rb") as file:
        begun = time.monotonic()
        assert index_digest(file.fileno()) == b""
        assert find_objects(file.fileno(), [b"name"]) == {}
    assert time.monotonic() - begun < 5
