# SPDX-License-Identifier: Apache-2.0
"""Tables of a document: found by the heading they stand under, read as rows of cells."""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_CODE = re.compile(r"`([^`]+)`")


def section(document: str, heading: str) -> str:
    """Return the text under a heading, down to the next one of any level."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", (ROOT / document).read_text("utf-8"), re.M | re.S)
    assert found is not None, f"{document} has no heading {heading!r}"
    return found[1]


def tables(text: str) -> list[list[list[str]]]:
    """Return the tables of a text: rows of cells, without the head of each."""
    found: list[list[list[str]]] = []
    rows: list[list[str]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif rows:
            found.append(rows[2:])
            rows = []
    return found


def rows_of(document: str, heading: str) -> list[list[str]]:
    """Return the rows of the only table under a heading; none where there is no table."""
    found = tables(section(document, heading))
    assert len(found) <= 1, f"{document} has several tables under {heading!r}"
    return found[0] if found else []


def code(cell: str) -> list[str]:
    """Return what stands between backquotes in a cell."""
    return _CODE.findall(cell)
