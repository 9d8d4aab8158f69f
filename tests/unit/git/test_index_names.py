# SPDX-License-Identifier: Apache-2.0
"""An index that a command wrote has only names that git itself would stage, and entries where git reads them."""

import hashlib
import struct
import subprocess
from pathlib import Path

import pytest

from tests.unit.git.test_index import git
from unspill.git.files import digest, staged_objects

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
