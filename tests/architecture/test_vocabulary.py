# SPDX-License-Identifier: Apache-2.0
"""Names of our modules and classes: no word that means five things in this field, and no rag-bags."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.sources import Source, sources

RESERVED = frozenset(("commit", "snapshot"))
RAG_BAGS = frozenset("util utils helper helpers common misc shared".split())


def words(name: str) -> list[str]:
    """Split snake_case and CamelCase into lower-case words."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", name)]


def names(source: Source) -> Iterator[str]:
    """Yield the parts of a module's path, then its classes."""
    yield from source.path.removesuffix(".py").split("/")
    yield from (node.name for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef))


def test_no_module_or_class_uses_a_reserved_word() -> None:
    singular_or_plural = RESERVED | {f"{word}s" for word in RESERVED}
    offenders = [
        f"{source.path}: {name}"
        for source in sources()
        for name in names(source)
        if not singular_or_plural.isdisjoint(words(name))
    ]
    assert offenders == []


def test_no_module_or_package_is_a_rag_bag() -> None:
    paths = [source.path for source in sources()]
    assert [path for path in paths if not RAG_BAGS.isdisjoint(path.removesuffix(".py").split("/"))] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ChangeSet", ["change", "set"]),
        ("snake_case_name", ["snake", "case", "name"]),
        ("SQLiteStore", ["sq", "lite", "store"]),
        ("ExecInfo", ["exec", "info"]),
        ("Database", ["database"]),
    ],
)
def test_names_are_split_into_their_words(name: str, expected: list[str]) -> None:
    assert words(name) == expected
