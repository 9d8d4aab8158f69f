# SPDX-License-Identifier: Apache-2.0
"""Every attack of the threat model and every weakness of others has a test with a control arm, and is listed."""

from __future__ import annotations

import ast
from collections import Counter

from tests.attack.regressions import DOCUMENT as REGRESSIONS
from tests.attack.regressions import rows as regression_rows
from tests.attack.regressions import table, whose
from tests.attack.table import DOCUMENT, HERE, PROMISES, root_table, rows, tables, with_root_table
from tests.attack.techniques.every import TECHNIQUES
from tests.attack.techniques.vectors import CLASSES
from tests.figures import record_figure

# A25 falls away, the project keeps its real path; D10 too, there is no user-mode network such as slirp.
REQUIRED = {
    *(f"A{number}" for number in range(1, 27) if number != 25),
    *(f"B{number}" for number in range(1, 11)),
    *(f"C{number}" for number in range(1, 19)),
    *(f"D{number}" for number in range(1, 12) if number != 10),
    *("E1", "E3", "E4", "E5", "E6", "E7", "E12", "E13"),
}
# What only tests that are written out try
NO_TECHNIQUE = {"A9", "A10", "A20", "A22", "A24", "A26", "B4", "B7", "B8", "B9", "B10"}


def test_every_required_attack_is_tried() -> None:
    tried = {f"{row.letter}{row.number}" for row in rows()} | {technique.row for technique in TECHNIQUES}
    assert tried >= REQUIRED
    assert {technique.row for technique in TECHNIQUES} >= REQUIRED - NO_TECHNIQUE


def test_there_are_enough_techniques_and_no_two_are_the_same() -> None:
    assert len(TECHNIQUES) >= 120
    for counted in (Counter(one.id for one in TECHNIQUES), Counter(one.tries for one in TECHNIQUES)):
        assert [text for text, times in counted.items() if times > 1] == []


def test_every_technique_says_what_it_tries_and_where_it_succeeds() -> None:
    assert [one.id for one in TECHNIQUES if len(one.tries) < 15 or len(one.removed) < 10] == []
    assert [one.id for one in TECHNIQUES if one.attack is one.control] == []
    assert {one.as_root for one in TECHNIQUES} == {"fails", "succeeds", "anybody"}
    assert all(one.why_root for one in TECHNIQUES if one.as_root == "succeeds")


def test_every_module_of_techniques_is_in_the_list() -> None:
    written = {path.stem for path in (HERE / "techniques").glob("*.py") if "LIST: Final" in path.read_text("utf-8")}
    tree = ast.parse((HERE / "techniques" / "every.py").read_text("utf-8"))
    imported = {name.name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert written <= imported


def test_a_memory_of_permissions_is_tried_with_150_vectors() -> None:
    assert sum(len(one.vectors()) for one in CLASSES) >= 150


def test_every_test_that_is_written_out_says_what_it_tries_and_what_its_control_is() -> None:
    assert [row.name for row in rows() if len(row.tried) < 20 or len(row.control) < 10] == []


def test_the_document_lists_every_technique_and_every_test() -> None:
    assert DOCUMENT.read_text("utf-8").endswith(tables()), "run: python -m tests.attack.table"


def test_what_succeeds_for_root_is_listed_in_what_is_promised() -> None:
    promises = PROMISES.read_text("utf-8")
    assert root_table() in promises, "run: python -m tests.attack.table"
    assert with_root_table(promises) == promises


def test_at_least_25_weaknesses_of_others_have_a_test() -> None:
    numbers = {row.cve for row in regression_rows()}
    print(f"{len(numbers)} numbers in {len({(row.file, row.name) for row in regression_rows()})} tests")
    record_figure("regressions by CVE", f"{len(numbers)}", "weaknesses of others, tried here with a control arm each")
    assert len(numbers) >= 25


def test_every_number_is_known_with_what_it_was_found_in() -> None:
    assert {row.cve for row in regression_rows()} == whose().keys()


def test_every_test_says_what_it_tries_and_what_its_control_is() -> None:
    assert [row.name for row in regression_rows() if len(row.tried) < 20 or len(row.control) < 10] == []


def test_the_document_lists_every_test() -> None:
    assert REGRESSIONS.read_text("utf-8").endswith(table()), "run: python -m tests.attack.regressions"
