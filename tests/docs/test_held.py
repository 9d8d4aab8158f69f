# SPDX-License-Identifier: Apache-2.0
"""docs/held.md and docs/secrets.md have every row of the code's tables, and no other."""

from tests.docs.held import DOCUMENT, with_tables
from tests.docs.secrets import DOCUMENT as SECRETS
from tests.docs.secrets import with_table
from tests.docs.tables import code, rows_of
from unspill.apply.guard_git import MAX_CONTENT
from unspill.policy.git import BUILT_IN_DRIVERS, EXCLUDED_KEYS, FORMAT_KEYS, ORDINARY_KEYS
from unspill.policy.held import FLAGGED, HELD, LINES_AT_MOST, PACKAGE_TREES, PACKAGES, RULES, UNREADABLE
from unspill.policy.secrets import SECRET_NAMES

NAME = "docs/held.md"
TEXT = DOCUMENT.read_text("utf-8")


def test_the_tables_are_those_of_the_code() -> None:
    assert with_tables(TEXT) == TEXT


def test_every_row_is_there_once() -> None:
    reasons = [row[2] for row in rows_of(NAME, "The table")]
    assert sorted(reasons) == sorted(row.reason for row in (*HELD, *FLAGGED, *RULES))
    names = [row[0] for row in rows_of(NAME, "The table")]
    assert len(set(names)) == len(names)


def test_every_setting_is_there_once() -> None:
    listed = [key for row in rows_of(NAME, "Settings that may change") for key in code(row[0])]
    assert sorted(listed) == sorted((*ORDINARY_KEYS, *FORMAT_KEYS, *EXCLUDED_KEYS))


def test_figures_and_lists_in_its_words_are_those_of_the_code() -> None:
    assert f"{MAX_CONTENT // 1024} KiB" in UNREADABLE.what
    assert set(code(PACKAGES.what)) == {name.decode() for name in PACKAGE_TREES}
    assert f"more than {LINES_AT_MOST} paths" in TEXT
    listed = {word for word in code(TEXT) if word.startswith(("diff=", "merge=", "filter=")) and word[-1] != "="}
    assert listed == {driver.decode() for driver in BUILT_IN_DRIVERS}


SECRETS_TEXT = SECRETS.read_text("utf-8")


def test_the_table_is_that_of_the_code() -> None:
    assert with_table(SECRETS_TEXT) == SECRETS_TEXT


def test_examples_that_are_called_visible_are() -> None:
    before = SECRETS_TEXT.partition("## Names")[0]
    named = [word for word in code(before) if word.startswith(".env.")]
    assert len(named) == 4
    assert not {name.encode() for name in named} & set(SECRET_NAMES)
