# SPDX-License-Identifier: Apache-2.0
"""Remedies of the library in the words of a model, and none of them lost."""

import ast
from pathlib import Path

import pytest

import unspill
from unspill.adapters.advising import advice_of_file, for_user
from unspill.errors import FileError

SOURCES = Path(unspill.__file__).parent
KINDS = [
    *("not_found", "is_directory", "not_a_directory", "not_a_file", "permission_denied", "exists", "too_large"),
    *("not_text", "changed", "not_found_in_file", "ambiguous", "failed"),
]


@pytest.mark.parametrize(
    ("remedy", "expected"),
    [
        ("", ""),
        ("Give a directory that is there.", "Give a directory that is there."),
        ("Run `unspill doctor`.", "What the user can do: Run `unspill doctor`."),
        ("Why: no. Use `--ask`, or `x=`.", "Why: no. What the user can do: Use `--ask`, or `x=`."),
        ("Set x in your own configuration.", "What the user can do: Set x in your own configuration."),
    ],
)
def test_words_of_a_command_line_are_for_the_user(remedy: str, expected: str) -> None:
    assert for_user(remedy) == expected


def test_no_remedy_of_the_library_has_words_of_a_command_line_for_a_model() -> None:
    """Every constant remedy in the sources, as it is told to a model."""
    found = 0
    for source in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if not isinstance(node, ast.keyword) or node.arg != "remedy" or not isinstance(node.value, ast.Constant):
                continue
            remedy = str(node.value.value)
            told = for_user(remedy)
            found += told != remedy
            before = told.partition("What the user can do: ")[0]
            assert "`unspill" not in before
            assert "--" not in before
    assert found > 10


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_error_has_its_advice_or_the_librarys_own(kind: str) -> None:
    error = FileError("x: no", kind=kind, remedy="Do something else.")  # type: ignore[arg-type]
    advice = advice_of_file(error, is_masked=False)
    assert advice.endswith(".")
    assert (advice == "Do something else.") is (kind in ("not_a_file", "failed"))
    assert ("masked" in advice_of_file(error, is_masked=True)) is (kind == "not_found")
