# SPDX-License-Identifier: Apache-2.0
"""docs/secrets.md has every name of the code's table, and promises no more than it."""

from tests.docs.secrets import DOCUMENT, with_table
from tests.docs.tables import code
from unspill.policy.secrets import SECRET_NAMES

TEXT = DOCUMENT.read_text("utf-8")


def test_the_table_is_that_of_the_code() -> None:
    assert with_table(TEXT) == TEXT


def test_examples_that_are_called_visible_are() -> None:
    before = TEXT.partition("## Names")[0]
    named = [word for word in code(before) if word.startswith(".env.")]
    assert len(named) == 4
    assert not {name.encode() for name in named} & set(SECRET_NAMES)
