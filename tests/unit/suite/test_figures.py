# SPDX-License-Identifier: Apache-2.0
"""The table of figures: what a long run records, and that nothing else touches it."""

import multiprocessing
from pathlib import Path

import pytest

from tests.figures import HEADER, TABLE, record_figure

DOCUMENT = "\n".join(["# Figures", "", *HEADER, "| b | 1 ms | old | 2020-01-01 |", "", "Afterword.", ""])


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNSPILL_TEST_FULL", "1")
    path = tmp_path / "figures.md"
    path.write_text(DOCUMENT)
    return path


def rows(table: Path) -> list[list[str]]:
    lines = [line for line in table.read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[len(HEADER) :]]


def test_a_new_figure_gets_a_row_in_the_order_of_names(table: Path) -> None:
    record_figure("c", "3 ms", "median of 9", table=table)
    record_figure("a", "2 ms", "median of 9", table=table)
    assert [row[:3] for row in rows(table)] == [
        ["a", "2 ms", "median of 9"],
        ["b", "1 ms", "old"],
        ["c", "3 ms", "median of 9"],
    ]


def test_a_figure_measured_again_replaces_its_row(table: Path) -> None:
    record_figure("b", "2 ms", "new", table=table)
    assert [row[:3] for row in rows(table)] == [["b", "2 ms", "new"]]
    assert rows(table)[0][3] > "2020-01-01"


def test_the_text_around_the_table_stays(table: Path) -> None:
    record_figure("a", "2 ms", "", table=table)
    assert table.read_text().startswith("# Figures\n\n| figure |")
    assert table.read_text().endswith("|\n\nAfterword.\n")


def test_a_bare_number_is_shortened(table: Path) -> None:
    record_figure("b", 1.23456, "a ratio", table=table)
    assert rows(table)[0][1] == "1.235"


def test_cells_cannot_break_the_table(table: Path) -> None:
    record_figure("x | y", "1\n2", "a | b", table=table)
    record_figure("x | y", "3", "a | b", table=table)
    assert table.read_text().count("x \\| y") == 1
    assert "| 3 | a \\| b |" in table.read_text()


def test_a_plain_run_records_nothing(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSPILL_TEST_FULL", "0")
    record_figure("a", "2 ms", "", table=table)
    assert table.read_text() == DOCUMENT


def test_a_document_without_the_table_is_refused(table: Path) -> None:
    table.write_text("# Figures\n")
    with pytest.raises(ValueError, match="no table"):
        record_figure("a", "2 ms", "", table=table)


def test_mode_is_kept_and_no_other_file_is_left(table: Path) -> None:
    table.chmod(0o640)
    record_figure("a", "2 ms", "", table=table)
    assert table.stat().st_mode & 0o777 == 0o640
    assert list(table.parent.iterdir()) == [table]


def test_processes_that_record_at_once_lose_no_row(table: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=record_many, args=(table, worker)) for worker in range(3)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
    assert [process.exitcode for process in workers] == [0, 0, 0]
    assert len(rows(table)) == 1 + 3 * 20


def record_many(table: Path, worker: int) -> None:
    for number in range(20):
        record_figure(f"worker {worker}, figure {number}", number, "", table=table)


def test_the_published_document_has_the_table() -> None:
    assert HEADER[0] in TABLE.read_text().splitlines()
