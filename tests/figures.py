# SPDX-License-Identifier: Apache-2.0
"""Published figures: one table, one row per figure, rewritten by the test that measures it.

Only runs with --full record; any other run leaves the table as it is. Several processes may record at once.
"""

import datetime
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

TABLE: Final = Path(__file__).parents[1] / "docs" / "security" / "figures.md"
HEADER: Final = ("| figure | value | note | date |", "|---|---|---|---|")
COMPATIBILITY: Final = Path(__file__).parents[1] / "docs" / "compatibility.md"
AGENTS_HEADER: Final = ("| agent, mode | version | result | date |", "|---|---|---|---|")


def record_figure(name: str, value: str | float, note: str, *, table: Path = TABLE) -> None:
    """Write the row of `name`, replacing the one of the last measurement.

    Args:
        name: What was measured, unique in the table; with `--view rootfs` that is added to it.
        value: The result with its unit; a bare number is shortened to four digits.
        note: How it was measured.
        table: The document that holds the table.

    Raises:
        ValueError: The document has no table of figures.
        OSError: The document cannot be written.
    """
    if os.environ.get("UNSPILL_TEST_VIEW") == "rootfs":
        name += ", in view rootfs"
    shown = value if isinstance(value, str) else f"{value:.4g}"
    _record((name, shown, note), table, HEADER)


def record_agent(name: str, mode: str, version: str, result: str, *, table: Path = COMPATIBILITY) -> None:
    """Write the row of a coding agent in one mode, replacing the one of the last trial.

    Raises:
        ValueError: The document has no table of agents.
        OSError: The document cannot be written.
    """
    _record((f"{name}, {mode}", version, result), table, AGENTS_HEADER)


def _record(row: tuple[str, ...], table: Path, header: tuple[str, str]) -> None:
    if os.environ.get("UNSPILL_TEST_FULL") != "1":
        return
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    with _locked(table.parent):
        _replace(table, with_row(table.read_text("utf-8"), _cells(*row, today), header))


def with_row(document: str, row: tuple[str, ...], header: tuple[str, str] = HEADER) -> str:
    """Return `document` with `row` in its table, the rows in the order of their names."""
    lines = document.splitlines()
    if header[0] not in lines:
        raise ValueError("the document has no table of figures")
    start = lines.index(header[0]) + len(header)
    end = start
    while end < len(lines) and lines[end].startswith("|"):
        end += 1
    rows = {_name(line): line for line in lines[start:end]}
    rows[row[0]] = f"| {' | '.join(row)} |"
    lines[start:end] = [rows[name] for name in sorted(rows)]
    return "\n".join(lines) + "\n"


def _cells(*texts: str) -> tuple[str, ...]:
    return tuple(" ".join(text.split()).replace("|", "\\|") for text in texts)


def _name(line: str) -> str:
    return line.removeprefix("|").partition(" | ")[0].strip()


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    # The directory carries the lock because the table itself is replaced, and so no lock file is left behind.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: Path, text: str) -> None:
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
    ) as draft:
        draft.write(text)
    os.chmod(draft.name, path.stat().st_mode & 0o777)
    os.replace(draft.name, path)
