# SPDX-License-Identifier: Apache-2.0
"""What a caller may write for `working_dir`, and what it means (C15, C16, C17)."""

from __future__ import annotations

import pytest

from unspill.errors import UsageError
from unspill.plan.view import missing_text, not_a_directory_text, resolve_working_dir

PROJECT = b"/home/ann/shop"
PLAYGROUND = b"/home/ann/playground"


@pytest.mark.parametrize(
    ("working_dir", "expected"),
    [
        (None, PROJECT),
        ("", PROJECT),
        (".", PROJECT),
        ("sub", b"/home/ann/shop/sub"),
        ("./sub//x/", b"/home/ann/shop/sub/x"),
        ("..", b"/home/ann"),
        ("../../../..", b"/"),
        ("/", b"/"),
        ("/etc", b"/etc"),
        ("//etc/../usr/", b"/usr"),
        ("playground", b"/home/ann/playground"),
        ("./playground", b"/home/ann/shop/playground"),
        ("playground/x", b"/home/ann/shop/playground/x"),
        ("~", b"/home/ann/shop/~"),
        ("a\nb", b"/home/ann/shop/a\nb"),
        ("\udcff", b"/home/ann/shop/\xff"),
    ],
)
def test_a_working_directory_is_relative_to_the_project(working_dir: str | None, expected: bytes) -> None:
    assert resolve_working_dir(working_dir, PROJECT, PLAYGROUND) == expected


def test_nul_is_refused() -> None:
    with pytest.raises(UsageError):
        resolve_working_dir("a\0b", PROJECT, PLAYGROUND)


def test_the_errors_are_those_a_model_knows() -> None:
    assert missing_text(b"/x") == "ERROR: Working directory does not exist: /x"
    assert not_a_directory_text(b"/x") == "ERROR: Working directory is not a directory: /x"
    assert missing_text(b"/\x1b[2J").isprintable()
