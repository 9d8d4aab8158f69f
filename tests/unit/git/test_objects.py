# SPDX-License-Identifier: Apache-2.0
"""Objects are read as git reads them, loose or packed; one that is not what its name says is refused."""

import os
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from unspill.git.objects import Broken, Objects, Pack, check_loose, make_object

ENVIRONMENT = {
    "PATH": os.defpath,
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "a@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(project: Path, *words: str, text: bytes = b"") -> bytes:
    done = subprocess.run(["git", *words], cwd=project, env=ENVIRONMENT, check=True, capture_output=True, input=text)
    return done.stdout


def every_object(project: Path) -> dict[bytes, tuple[bytes, bytes]]:
    """Return kind and content of all objects, as git tells them."""
    names = git(project, "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)").split(b"\n")
    pairs = [line.split(b" ") for line in names if line]
    return {name: (kind, git(project, "cat-file", kind.decode(), name.decode())) for name, kind in pairs}


@pytest.fixture(params=["sha1", "sha256"])
def size(request: pytest.FixtureRequest) -> int:
    return 20 if request.param == "sha1" else 32


@pytest.fixture(params=["loose", "packed", "packed, index version 1", "borrowed"])
def project(tmp_path: Path, size: int, request: pytest.FixtureRequest) -> Path:
    """A repository with a few of everything, in different forms."""
    project = tmp_path / "project"
    project.mkdir()
    git(project, "init", "-q", "-b", "main", f"--object-format={'sha1' if size == 20 else 'sha256'}")
    for number in range(12):
        (project / "deep" / "er").mkdir(parents=True, exist_ok=True)
        lines = [f"line {line}" for line in range(400)] + [f"changed {number}"]
        (project / "deep" / "er" / "file").write_text("\n".join(lines))
        (project / f"file {number}").write_text(f"{number}\n")
        git(project, "add", "-A")
        git(project, "commit", "-qm", f"number {number}")
    git(project, "tag", "-a", "-m", "tagged", "v1")
    if request.param.startswith("packed"):
        # There is no version 1 for SHA-256
        version = "1" if request.param.endswith("1") and size == 20 else "2"
        git(project, "-c", f"pack.indexVersion={version}", "gc", "-q", "--aggressive", "--prune=now")
        assert not list((project / ".git" / "objects").glob("[0-9a-f][0-9a-f]/*"))
    if request.param == "borrowed":
        git(tmp_path, "clone", "-q", "--shared", "project", "clone")
        return tmp_path / "clone"
    return project


def objects_of(project: Path, size: int) -> Objects:
    return Objects([os.fsencode(project / ".git" / "objects")], size)


def test_every_object_is_read_as_git_reads_it(project: Path, size: int) -> None:
    objects = objects_of(project, size)
    everything = every_object(project)
    assert len(everything) > 50
    for name, (kind, content) in everything.items():
        found = objects.find(name)
        assert objects.has(name)
        assert found is not None
        assert found.kind == kind.decode()
        if kind != b"blob":
            assert found.content == content
        assert all(need in everything for need in found.needs)
    assert not objects.has(b"0" * 2 * size)
    assert objects.find(b"0" * 2 * size) is None


def test_a_commit_leads_to_its_files(project: Path, size: int) -> None:
    objects = objects_of(project, size)
    head = git(project, "rev-parse", "HEAD").strip()
    tag = git(project, "rev-parse", "v1").strip()
    tree = objects.tree_of(head)
    assert tree is not None
    assert objects.tree_of(tag) == tree
    blob = git(project, "rev-parse", "HEAD:deep/er/file").strip()
    assert objects.entry_at(tree, b"deep/er/file") == (b"100644", blob)
    assert objects.entry_at(tree, b"deep/missing/file") is None
    assert objects.entry_at(tree, b"missing") is None


def test_ancestors_are_found_as_far_as_is_asked(project: Path, size: int) -> None:
    objects = objects_of(project, size)
    head, old = (git(project, "rev-parse", name).strip() for name in ("HEAD", "HEAD~11"))
    assert objects.is_ancestor(head, head)
    assert objects.is_ancestor(old, head)
    assert not objects.is_ancestor(head, old)
    assert not objects.is_ancestor(old, head, most=5)


def test_a_made_object_is_the_one_that_git_makes(tmp_path: Path, size: int) -> None:
    git(tmp_path, "init", "-q", f"--object-format={'sha1' if size == 20 else 'sha256'}")
    name, text = make_object("blob", b"content\n", size)
    assert git(tmp_path, "hash-object", "--stdin", text=b"content\n").strip() == name
    place = tmp_path / ".git" / "objects" / name[:2].decode() / name[2:].decode()
    place.parent.mkdir()
    place.write_bytes(text)
    assert git(tmp_path, "cat-file", "blob", name.decode()) == b"content\n"


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "another content": lambda text: zlib.compress(b"blob 5\0other"),
    "cut": lambda text: text[:-4],
    "with something behind": lambda text: text + b"x",
    "not compressed": lambda text: b"blob 8\0content\n",
    "empty": lambda text: b"",
    "with another length": lambda text: zlib.compress(b"blob 9\0content\n"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_loose_object_that_is_not_what_its_name_says_is_refused(tmp_path: Path, how: str) -> None:
    name, text = make_object("blob", b"content\n", 20)
    path = tmp_path / "object"
    path.write_bytes(text)
    assert check_loose(os.open(path, os.O_RDONLY), name, 20).kind == "blob"
    path.write_bytes(BROKEN[how](text))
    with pytest.raises(Broken):
        check_loose(os.open(path, os.O_RDONLY), name, 20)


@pytest.mark.parametrize(
    ("kind", "content"),
    [("tree", b"100644 a\0short"), ("commit", b"author nobody\n\n"), ("tag", b"object 12\n\n"), ("tree", b"no end")],
)
def test_a_malformed_object_is_refused_although_its_name_is_right(tmp_path: Path, kind: str, content: bytes) -> None:
    name, text = make_object(kind, content, 20)  # type: ignore[arg-type]
    path = tmp_path / "object"
    path.write_bytes(text)
    with pytest.raises(Broken):
        check_loose(os.open(path, os.O_RDONLY), name, 20)


def test_a_large_object_is_checked_without_being_kept(tmp_path: Path) -> None:
    name, text = make_object("blob", bytes(200 << 20), 20)
    path = tmp_path / "object"
    path.write_bytes(text)
    assert check_loose(os.open(path, os.O_RDONLY), name, 20).kind == "blob"


def test_flipped_bytes_of_a_pack_raise_nothing_but_what_is_expected(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    for number in range(5):
        (tmp_path / "file").write_text("\n".join(str(line * number) for line in range(200)))
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-qm", "x")
    git(tmp_path, "gc", "-q")
    (index,) = (tmp_path / ".git" / "objects" / "pack").glob("*.idx")
    content = index.with_suffix(".pack").read_bytes()
    names = list(Pack(os.fsencode(index), os.fsencode(index.with_suffix(".pack")), 20))
    damaged = tmp_path / "objects" / "pack"
    damaged.mkdir(parents=True)
    (damaged / "pack-1.idx").write_bytes(index.read_bytes())
    for at in range(12, len(content), max(1, len(content) // 150)):
        (damaged / "pack-1.pack").write_bytes(content[:at] + bytes([content[at] ^ 0x5A]) + content[at + 1 :])
        objects = Objects([os.fsencode(damaged.parent)])
        for name in names:
            objects.find(name)


def test_a_fifo_in_place_of_the_alternates_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "info").mkdir()
    os.mkfifo(tmp_path / "info" / "alternates")
    top = os.fsencode(tmp_path)
    assert not Objects([top]).has(b"0" * 40)
    assert not Objects([], written=[top]).has(b"0" * 40)


def test_the_alternates_of_a_command_lead_nowhere(project: Path, tmp_path: Path, size: int) -> None:
    name = next(iter(every_object(project)))
    other = tmp_path / "other"
    (other / "info").mkdir(parents=True)
    (other / "info" / "alternates").write_text(f"{project}/.git/objects\n")
    top = os.fsencode(other)
    assert not Objects([], size, written=[top]).has(name)
    assert Objects([top], size).has(name)


def test_many_object_directories_are_all_looked_at(project: Path, tmp_path: Path, size: int) -> None:
    name = next(iter(every_object(project)))
    many = [os.fsencode(tmp_path / f"none{number}") for number in range(40)]
    assert Objects([*many, os.fsencode(project / ".git" / "objects")], size).has(name)
