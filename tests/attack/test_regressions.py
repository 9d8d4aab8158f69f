# SPDX-License-Identifier: Apache-2.0
"""Every weakness of others that is named has a test with a control arm, and is listed."""

from __future__ import annotations

from tests.attack.regressions import DOCUMENT, rows, table, whose
from tests.figures import record_figure


def test_at_least_25_weaknesses_of_others_have_a_test() -> None:
    numbers = {row.cve for row in rows()}
    print(f"{len(numbers)} numbers in {len({(row.file, row.name) for row in rows()})} tests")
    record_figure("regressions by CVE", f"{len(numbers)}", "weaknesses of others, tried here with a control arm each")
    assert len(numbers) >= 25


def test_every_number_is_known_with_what_it_was_found_in() -> None:
    assert {row.cve for row in rows()} == whose().keys()


def test_every_test_says_what_it_tries_and_what_its_control_is() -> None:
    assert [row.name for row in rows() if len(row.tried) < 20 or len(row.control) < 10] == []


def test_the_document_lists_every_test() -> None:
    assert DOCUMENT.read_text("utf-8").endswith(table()), "run: python -m tests.attack.regressions"
