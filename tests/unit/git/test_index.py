# SPDX-License-Identifier: Apache-2.0
"""An index: whether git only refreshed it or somebody staged something, and that it has only names git would stage."""

import hashlib
import os
import struct
import subprocess
import time
from pathlib import Path

import pytest

from unspill.git.files import (
    _FIRST_LOOK,
    digest,
    find_objects,
    index_digest,
    is_index,
    overlooked,
    says_at,
    staged_objects,
)

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


def test_an_index_tells_which_files_git_overlooks(project: Path) -> None:
    git(project, "update-index", "--no-skip-worktree", "ab")
    assert overlooked((project / ".git" / "index").read_bytes()) == set()
    git(project, "update-index", "--assume-unchanged", "a")
    git(project, "update-index", "--skip-worktree", "abc/d")
    # Another flag that needs more room
    (project / "new").write_text("")
    git(project, "add", "--intent-to-add", "new")
    assert overlooked((project / ".git" / "index").read_bytes()) == {b"a", b"abc/d"}


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


FILE, LINK, TREE = 0o100644, 0o120000, 0o040000


def entry(name: bytes, mode: int = FILE, length: int | None = None, stage: int = 0) -> bytes:
    flags = min(len(name), 0xFFF) if length is None else length
    text = bytes(24) + struct.pack(">I", mode) + bytes(12) + b"o" * 20 + struct.pack(">H", flags | stage << 12) + name
    return text + bytes(8 - len(text) % 8)


def index(*entries: bytes, extensions: bytes = b"") -> bytes:
    text = b"DIRC" + struct.pack(">II", 2, len(entries)) + b"".join(entries) + extensions
    return text + hashlib.sha1(text).digest()


REFUSED = {
    "nothing": b"",
    "a hook": b".git/hooks/post-checkout",
    "a hook in capitals": b".GIT/hooks/post-checkout",
    "a repository below": b"sub/.git/config",
    "the directory above": b"../evil",
    "one above, further down": b"a/../../evil",
    "itself": b"a/./b",
    "an empty part": b"a//b",
    "from the top of the disk": b"/etc/passwd",
    "an end that is a slash": b"a/",
    "a short name": b"git~1/config",
    "a short name in capitals": b"GIT~1/config",
    "a space at the end": b".git /config",
    "dots at the end": b".git.../config",
    "a stream": b".git::$INDEX_ALLOCATION/config",
    "a character that is ignored": ".g\u200cit/config".encode(),
    "one at the beginning": "\ufeff.git/config".encode(),
    "backslashes": b".git\\config",
    "backslashes further down": b"a\\.git\\config",
    "above by a backslash": b"..\\evil",
}

FINE = [b"a", b".gitignore", b"a/.github/x", b".gitmodules", b"...", b"..a", b"a.git/x", b"x~1", b"dev\\x2dlabel.swap"]
FINE += ["é/.gité".encode(), b"a" * 5000, b"git", b".gitattributes", b"a:b", b"a b/. c"]


@pytest.mark.parametrize("what", REFUSED)
def test_a_name_that_git_would_refuse_makes_the_index_unreadable(what: str) -> None:
    for text in (index(entry(REFUSED[what])), index(entry(b"Z"), entry(REFUSED[what]))):
        assert digest(text) == b""
        assert staged_objects(text) is None


@pytest.mark.parametrize("name", FINE)
def test_a_name_that_git_stages_is_read(name: bytes) -> None:
    assert digest(index(entry(name))) != b""
    assert staged_objects(index(entry(name))) == {name: {(b"o" * 20).hex().encode()}}


@pytest.mark.parametrize("what", sorted(set(REFUSED) - {"nothing", "an end that is a slash", "above by a backslash"}))
def test_git_refuses_to_stage_what_is_refused(tmp_path: Path, what: str) -> None:
    git(tmp_path, "init", "-q")
    settings = ["-c", "core.protectNTFS=true", "-c", "core.protectHFS=true"]
    line = b"100644 %b\t%b\0" % (b"1" * 40, REFUSED[what])
    for one in (line, line.replace(REFUSED[what], b"control")):
        subprocess.run(["git", *settings, "update-index", "-z", "--index-info"], cwd=tmp_path, input=one, check=False)
    assert subprocess.check_output(["git", "ls-files", "-z"], cwd=tmp_path) == b"control\0"


# Entries, and whether they are read
TOGETHER = {
    "what is in a link": ([entry(b"a", LINK), entry(b"a/b/c")], False),
    "in whatever order": ([entry(b"a/b/c"), entry(b"a", LINK)], False),
    "a link and a longer name": ([entry(b"a", LINK), entry(b"ab/c")], True),
    "a merge under way": ([entry(b"a", LINK, stage=2), entry(b"a/b")], True),
    "a link in place of the list of submodules": ([entry(b".gitmodules", LINK)], False),
    "a directory of a sparse index": ([entry(b"a/", TREE)], True),
    "a sparse directory that is a repository": ([entry(b".git/", TREE)], False),
    "a length that ends within the name": ([entry(b".git_x", length=4)], False),
    "a length that goes beyond it": ([entry(b"a", length=9)], False),
}


@pytest.mark.parametrize("what", TOGETHER)
def test_entries_are_read_as_git_reads_them_or_not_at_all(what: str) -> None:
    entries, is_read = TOGETHER[what]
    assert bool(digest(index(*entries))) == is_read


def blocks(*table: tuple[int, int]) -> bytes:
    content = struct.pack(">I", 1) + b"".join(struct.pack(">II", *one) for one in table)
    return b"IEOT" + struct.pack(">I", len(content)) + content


def end(offset: int) -> bytes:
    return b"EOIE" + struct.pack(">II", 24, offset) + bytes(20)


EXTENSIONS = {
    "blocks where the entries are": (blocks((12, 1), (76, 1)) + end(140), True),
    "blocks elsewhere": (blocks((12, 1), (84, 1)) + end(140), False),
    "blocks that leave something out": (blocks((12, 1)) + end(140), False),
    "blocks of more than there is": (blocks((12, 1), (76, 2)) + end(140), False),
    "extensions that begin elsewhere": (end(76), False),
    "the same in another extension": (b"XXXX" + struct.pack(">I", 32) + end(76), False),
}


@pytest.mark.parametrize("what", EXTENSIONS)
def test_tables_that_lead_git_to_other_entries_make_an_index_unreadable(what: str) -> None:
    extensions, is_read = EXTENSIONS[what]
    assert bool(digest(index(entry(b"a"), entry(b"b"), extensions=extensions))) == is_read


@pytest.mark.parametrize("version", [2, 4])
def test_a_large_index_that_git_reads_in_blocks_is_read(tmp_path: Path, version: int) -> None:
    git(tmp_path, "init", "-q")
    lines = b"".join(b"100644 %b\tsrc/%d/file\n" % (b"1" * 40, number) for number in range(25_000))
    command = ["git", "-c", "index.threads=2", "update-index", "--index-version", str(version), "--index-info"]
    subprocess.run(command, cwd=tmp_path, input=lines, check=True)
    text = (tmp_path / ".git/index").read_bytes()
    assert b"IEOT" in text
    assert digest(text) != b""
