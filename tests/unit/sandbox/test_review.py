# SPDX-License-Identifier: Apache-2.0
"""What a consent is for: everything that is held at or below a path, and nothing that could be told from it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from unspill.apply.guard import Judged
from unspill.cli.review import split_token
from unspill.model.change import Change, Identity, RootChanges
from unspill.sandbox.review import HeldPart, digest_of_hunks, outermost

if TYPE_CHECKING:
    from pathlib import Path


def made(layer: Path, path: str, content: str | None = "x", *, kind: str = "added", mode: int = 0o644) -> Change:
    """Return a change that leaves a file, a directory (no content) or a link (`-> target`)."""
    where = layer / path
    where.parent.mkdir(parents=True, exist_ok=True)
    target = None
    if content is None:
        where.mkdir()
    elif content.startswith("-> "):
        target = content[3:]
        where.symlink_to(target)
    else:
        where.write_text(content)
    if target is None:
        where.chmod(mode)
    found = where.lstat()
    what = "symlink" if target is not None else "dir" if content is None else "file"
    entry = Identity(kind=what, mode=mode, inode=found.st_ino, size=found.st_size, ctime_ns=found.st_ctime_ns)  # type: ignore[arg-type]
    return Change(
        path=os.fsencode(path),
        kind=kind,  # type: ignore[arg-type]
        entry=entry,
        layer=os.fsencode(layer),
        target=None if target is None else os.fsencode(target),
    )


def part_of(tmp_path: Path, *changes: Change) -> HeldPart:
    root = os.fsencode(tmp_path)
    return HeldPart(
        RootChanges(root=root, changes=changes),
        Judged(held=tuple((change.path, "why") for change in changes), flagged=()),
    )


def digest(tmp_path: Path, *changes: Change, of: bytes = b".envrc") -> str:
    return part_of(tmp_path, *changes).digest(of)


VARIANTS = {
    "content": (".envrc", "y", "added", 0o644),
    "mode": (".envrc", "x", "added", 0o755),
    "a link": (".envrc", "-> x", "added", 0o777),
    "what it replaces": (".envrc", "x", "replaced", 0o644),
}


@pytest.mark.parametrize("case", VARIANTS)
def test_another_content_mode_or_kind_has_another_digest(tmp_path: Path, case: str) -> None:
    path, content, kind, mode = VARIANTS[case]
    before = digest(tmp_path, made(tmp_path / "1", ".envrc"))
    other = made(tmp_path / "2", path, content, kind=kind, mode=mode)
    if kind == "replaced":
        other = other.replace(base_kind="dir")
    assert digest(tmp_path, other) != before
    assert digest(tmp_path, made(tmp_path / "3", ".envrc")) == before


def test_a_deletion_has_a_digest_of_its_own(tmp_path: Path) -> None:
    file = Change(path=b".envrc", kind="deleted", base_kind="file")
    directory = Change(path=b".envrc", kind="deleted", base_kind="dir")
    found = {digest(tmp_path, file), digest(tmp_path, directory), digest(tmp_path, made(tmp_path / "1", ".envrc"))}
    assert len(found) == 3


def test_a_path_is_part_of_the_digest(tmp_path: Path) -> None:
    assert digest(tmp_path, made(tmp_path / "1", "a/.envrc"), of=b"a/.envrc") != digest(
        tmp_path, made(tmp_path / "2", "b/.envrc"), of=b"b/.envrc"
    )


def test_a_directory_stands_for_all_that_is_held_in_it(tmp_path: Path) -> None:
    layer = tmp_path / "1"
    first, second = made(layer, ".vscode/tasks.json"), made(layer, ".vscode/settings.json")
    part = part_of(tmp_path, first, second)
    assert [change.path for change in part.covered(b".vscode")] == [second.path, first.path]
    assert part.digest(b".vscode") != part_of(tmp_path, first).digest(b".vscode")
    assert part.digest(b".") == part.digest(b".vscode")
    assert part.digest(b".vscod") == ""


def test_a_new_directory_that_comes_along_is_a_part_of_it(tmp_path: Path) -> None:
    """It would be made with the mode that it has."""
    layer = tmp_path / "1"
    directory, file = made(layer, ".vscode", None, mode=0o755), made(layer, ".vscode/tasks.json")
    together = part_of(tmp_path, directory, file)
    assert together.digest(b".vscode/tasks.json") != part_of(tmp_path, file).digest(b".vscode/tasks.json")
    assert together.names(b".vscode/tasks.json") == {b".vscode", b".vscode/tasks.json"}
    replaced = directory.replace(kind="replaced", base_kind="symlink")
    assert part_of(tmp_path, replaced, file).digest(b".vscode/tasks.json") != together.digest(b".vscode/tasks.json")


def test_hunks_are_those_of_two_texts(tmp_path: Path) -> None:
    texts = [(b"p", b"ab", b"c"), (b"p", b"a", b"bc"), (b"p", b"ab", b"d"), (b"q", b"ab", b"c"), (b"", b"pab", b"c")]
    assert len({digest_of_hunks(*one) for one in texts}) == len(texts)


def test_one_line_stands_for_what_is_in_a_directory_for_the_same_reason() -> None:
    held = [(b"a", "x"), (b"a/b", "x"), (b"a/c", "y"), (b"ab", "x")]
    assert outermost(held) == [(b"a", "x"), (b"a/c", "y"), (b"ab", "x")]


WORDS = {
    ".envrc@7f3a9c": (".envrc", "7f3a9c"),
    ".envrc": (".envrc", ""),
    "a@b/.envrc": ("a@b/.envrc", ""),
    "a@7f3a9c@7f3a9d": ("a@7f3a9c", "7f3a9d"),
    ".envrc@7f3a9": (".envrc@7f3a9", ""),
    ".envrc@7F3A9C": (".envrc@7F3A9C", ""),
    "@7f3a9c": ("@7f3a9c", ""),
    ".envrc@" + "a" * 65: (".envrc@" + "a" * 65, ""),
}


@pytest.mark.parametrize("word", WORDS)
def test_what_looks_like_a_token_is_one(word: str) -> None:
    assert split_token(word) == WORDS[word]
