# SPDX-License-Identifier: Apache-2.0
"""Every attack of the threat model has a test with a control arm, and is listed."""

from __future__ import annotations

from tests.attack.table import DOCUMENT, rows, table

# A9 comes with the rules for secrets; A25 falls away, the project keeps its real path.
NOT_YET = {9, 25}
REQUIRED = {f"A{number}" for number in range(1, 27) if number not in NOT_YET} | {f"B{n}" for n in range(1, 11)}


def test_every_required_attack_has_a_test() -> None:
    assert {f"{row.letter}{row.number}" for row in rows()} == REQUIRED


def test_every_test_says_what_it_tries_and_what_its_control_is() -> None:
    assert [row.name for row in rows() if len(row.tried) < 20 or len(row.control) < 10] == []


def test_the_document_lists_every_test() -> None:
    document = DOCUMENT.read_text("utf-8")
    assert document.endswith(table()), "run: python -m tests.attack.table"
