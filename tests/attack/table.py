# SPDX-License-Identifier: Apache-2.0
"""The table of docs/attacks.md, made from the tests' own words: `python -m tests.attack.table` writes it.

A test's name begins with the attack's number, and its docstring says what is tried, then `Control:` and what shows
that the attempt is worth something.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
DOCUMENT: Final = HERE.parents[1] / "docs" / "attacks.md"
HEADER: Final = "| attack | what is tried | what shows that the attempt works | test |"
NAME: Final = re.compile(r"test_(?P<letter>[ab])(?P<number>\d+)_")


@dataclass(frozen=True, order=True)
class Row:
    """One test: the attack's letter and number, what it tries, and its control arm."""

    letter: str
    number: int
    file: str
    line: int
    name: str
    tried: str
    control: str

    def __str__(self) -> str:
        cells = (f"{self.letter}{self.number}", self.tried, self.control, f"`{self.file}` {self.name}")
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def rows() -> list[Row]:
    """Return one row per test of this directory that has an attack's number."""
    return sorted(row for path in sorted(HERE.glob("test_*.py")) for row in _rows_of(path))


def _rows_of(path: Path) -> list[Row]:
    found = []
    for node in ast.parse(path.read_text("utf-8")).body:
        match = NAME.match(node.name) if isinstance(node, ast.FunctionDef) else None
        if match is None or not isinstance(node, ast.FunctionDef):
            continue
        words = " ".join((ast.get_docstring(node) or "").split())
        tried, _, control = words.partition(" Control: ")
        name = node.name[match.end() :].replace("_", " ")
        found.append(Row(match["letter"].upper(), int(match["number"]), path.name, node.lineno, name, tried, control))
    return found


def table() -> str:
    """Return the whole table."""
    return "\n".join([HEADER, "|---|---|---|---|", *map(str, rows())]) + "\n"


def with_table(document: str) -> str:
    """Return the document with the table in the place of the old one, which is the last thing in it."""
    return document[: document.index(HEADER)] + table()


if __name__ == "__main__":
    DOCUMENT.write_text(with_table(DOCUMENT.read_text("utf-8")), "utf-8")
