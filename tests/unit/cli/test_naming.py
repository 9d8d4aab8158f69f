# SPDX-License-Identifier: Apache-2.0
"""How operations are written: `op5` is one, `5` is one only where no run can be meant."""

import pytest

from unspill.cli.naming import is_operation, operation_word


@pytest.mark.parametrize(
    ("word", "is_one", "inner"),
    [
        ("op5", True, "5"),
        ("5", False, "5"),
        ("op", False, "op"),
        ("op5x", False, "op5x"),
        ("OP5", False, "OP5"),
        ("0123456789abcdef", False, "0123456789abcdef"),
    ],
)
def test_words(word: str, is_one: bool, inner: str) -> None:
    assert is_operation(word) is is_one
    assert operation_word(word) == inner
