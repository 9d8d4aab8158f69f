# SPDX-License-Identifier: Apache-2.0
"""The rules of the suite itself: who runs what, what a skip costs, and what a long run records."""

import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from tests.figures import HEADER, TABLE, record_figure

CONFTEST = Path(__file__).parents[2] / "conftest.py"
RULES = "[pytest]\nmarkers =\n    root: as root\n"
TWO_CASES = """
import pytest

def test_ordinary():
    pass

@pytest.mark.root
def test_as_root():
    pass
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite with our rules and no test yet; what a run changes in the environment is undone."""
    for name in ("CI", "UNSPILL_TEST_FULL", "UNSPILL_TEST_BWRAP", "UNSPILL_TEST_VIEW"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("PATH", os.environ["PATH"])
    pytester.makeini(RULES)
    pytester.makeconftest(CONFTEST.read_text())
    return pytester


def test_cases_of_root_are_left_out_for_an_ordinary_user(suite: pytest.Pytester) -> None:
    suite.makepyfile(TWO_CASES)
    suite.runpytest_subprocess().assert_outcomes(passed=1, deselected=1)


@pytest.mark.root
def test_root_is_refused_when_anything_ordinary_is_selected(suite: pytest.Pytester) -> None:
    suite.makepyfile(TWO_CASES)
    result = suite.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*run the tests as an ordinary user*"])


@pytest.mark.root
def test_root_runs_its_own_cases_alone(suite: pytest.Pytester) -> None:
    suite.makepyfile(TWO_CASES)
    suite.runpytest_subprocess("-m", "root").assert_outcomes(passed=1, deselected=1)


@pytest.mark.parametrize(
    "body",
    [
        "def test_it():\n    pytest.skip('not here')",
        "@pytest.mark.skip(reason='not here')\ndef test_it():\n    pass",
        "pytest.skip('not here', allow_module_level=True)",
    ],
)
def test_a_skip_fails_the_run_on_a_machine_made_for_the_tests(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    suite.makepyfile(test_sample=f"import pytest\n\n{body}\n")
    suite.makepyfile(test_other="def test_passes():\n    pass\n")
    assert suite.runpytest_subprocess().ret == pytest.ExitCode.OK
    monkeypatch.setenv("CI", "true")
    result = suite.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["SKIPPED test_sample.py*"])


def test_an_expected_failure_is_not_a_skip(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    suite.makepyfile("import pytest\n\n@pytest.mark.xfail\ndef test_it():\n    assert False\n")
    assert suite.runpytest_subprocess().ret == pytest.ExitCode.OK


@pytest.mark.parametrize("options", [[], ["--full"]])
def test_full_is_off_unless_asked_for(suite: pytest.Pytester, options: list[str]) -> None:
    suite.makepyfile(f"def test_it(full):\n    assert full is {bool(options)}\n")
    suite.runpytest_subprocess(*options).assert_outcomes(passed=1)


def test_the_chosen_bwrap_is_the_first_on_the_path(suite: pytest.Pytester) -> None:
    chosen = suite.mkdir("bin") / "bwrap"
    chosen.write_text("#!/bin/sh\n")
    chosen.chmod(0o755)
    suite.makepyfile(
        "import shutil\n\ndef test_it(bwrap):\n    assert shutil.which('bwrap') == str(bwrap)"
        f" == {os.fspath(chosen)!r}\n"
    )
    suite.runpytest_subprocess("--bwrap", os.fspath(chosen)).assert_outcomes(passed=1)


@pytest.mark.parametrize("path", ["bwrap", "/nowhere/bwrap", shutil.which("sh") or "/bin/sh"])
def test_a_bwrap_that_cannot_be_put_on_the_path_is_refused(suite: pytest.Pytester, path: str) -> None:
    assert suite.runpytest_subprocess("--bwrap", path).ret == pytest.ExitCode.USAGE_ERROR


OF_A_VIEW = """
import os, pytest

def test_of_any():
    assert os.environ["UNSPILL_TEST_VIEW"] == {view!r}

@pytest.mark.view("sealed", "host"{reason})
def test_of_others():
    assert os.environ["UNSPILL_TEST_VIEW"] == "sealed"
"""


@pytest.mark.parametrize(("options", "left_out"), [([], 0), (["--view", "sealed"], 0), (["--view", "rootfs"], 1)])
def test_what_is_about_another_view_is_left_out(suite: pytest.Pytester, options: list[str], left_out: int) -> None:
    view = options[-1] if options else "sealed"
    suite.makepyfile(OF_A_VIEW.format(view=view, reason=", reason='about them'"))
    suite.runpytest_subprocess(*options).assert_outcomes(passed=2 - left_out, deselected=left_out)


def test_whoever_leaves_a_view_out_says_why(suite: pytest.Pytester) -> None:
    suite.makepyfile(OF_A_VIEW.format(view="sealed", reason=""))
    assert suite.runpytest_subprocess().ret == pytest.ExitCode.USAGE_ERROR


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
