# SPDX-License-Identifier: Apache-2.0
"""Make the table of docs/security/regressions.md from the tests that are named by a CVE.

Run `python -m tests.attack.regressions` to write it. Such a test's name begins with the numbers it is about; its
docstring says what is tried, then `Control:` and what shows that the attempt is worth something.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.attack.cve_entries import ENTRIES

HERE: Final = Path(__file__).parent
DOCUMENT: Final = HERE.parents[1] / "docs" / "security" / "regressions.md"
HEADER: Final = "| number | of | what is tried here | what shows that the attempt works | test |"
NAME: Final = re.compile(r"test_(?P<numbers>(?:cve_\d{4}_\d+_)+)(?P<rest>\w+)")
NUMBER: Final = re.compile(r"cve_(\d{4})_(\d+)")
CALL_TEST: Final = "test_cve_the_call_with_which_it_begins_is_refused"

WHOSE: Final = {
    "bubblewrap": "2016-8659 2020-5291 2026-41163 2026-87766",
    "bubblewrap, Flatpak": "2017-5226",
    "Flatpak": "2019-10063 2021-41133 2023-28100 2023-28101 2024-32462 2024-42472 2026-34078 2026-34079",
    "runc": "2019-5736 2024-21626 2025-31133",
    "containerd": "2020-15257",
    "CRI-O": "2022-0811",
    "Go": "2026-39822",
    "polkit": "2021-4034",
    "Claude Code": "2025-54794 2025-55284 2025-59536 2025-66479 2026-25724 2026-25725 2026-39861 2026-46406 2026-55607",
    "Codex": "2025-59532 2025-61260",
    "Cursor": "2025-54135 2025-54136 2025-59944 2026-22708",
    "Copilot": "2025-53773 2026-21523 2026-45482",
    "git": ("2014-9390 2017-1000117 2018-11235 2018-17456 2020-5260 2022-24765 2024-32002 2025-48384"),
    "the kernel": (
        "2009-4131 2010-2226 2010-3904 2013-2094 2015-3290 2016-0728 2017-2636 2019-8912 2020-14386 2021-26708 "
        "2021-3490 2021-4155 2021-43267 2022-0185 2022-0492 2022-29582 2023-0386 2024-1086"
    ),
}


@dataclass(frozen=True, order=True)
class Row:
    """One weakness: its year and number, whose it was, what a test tries, its control arm, and the test."""

    year: int
    number: int
    file: str
    line: int
    name: str
    tried: str
    control: str

    @property
    def cve(self) -> str:
        return f"{self.year}-{self.number:04}"

    def __str__(self) -> str:
        cells = (f"CVE-{self.cve}", whose()[self.cve], self.tried, self.control, f"`{self.file}` {self.name}")
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def whose() -> dict[str, str]:
    """Return what each weakness was found in, by its number."""
    return {cve: product for product, numbers in WHOSE.items() for cve in numbers.split()}


def rows() -> list[Row]:
    """Return one row per weakness and test, in the order of the numbers."""
    return sorted(row for path in sorted(HERE.glob("test_cve_*.py")) for row in _rows_of(path))


def _rows_of(path: Path) -> list[Row]:
    found = []
    for node in ast.parse(path.read_text("utf-8")).body:
        if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
            continue
        tried, _, control = " ".join((ast.get_docstring(node) or "").split()).partition(" Control: ")
        if node.name == CALL_TEST:
            name = "the call with which it begins is refused"
            for entry in ENTRIES:
                year, number = entry.cve.split("-")[1:]
                calls = ", ".join(f"`{call}`" for call, _ in entry.calls)
                what = f"{entry.what[0].upper()}{entry.what[1:]}: it begins with {calls}."
                found.append(Row(int(year), int(number), path.name, node.lineno, name, what, control))
            continue
        match = NAME.match(node.name)
        assert match, f"{node.name} is not named by a number"
        name = match["rest"].replace("_", " ")
        for year, number in NUMBER.findall(match["numbers"]):
            found.append(Row(int(year), int(number), path.name, node.lineno, name, tried, control))
    return found


def table() -> str:
    """Return the whole table."""
    return "\n".join([HEADER, "|---|---|---|---|---|", *map(str, rows())]) + "\n"


if __name__ == "__main__":
    text = DOCUMENT.read_text("utf-8")
    DOCUMENT.write_text(text[: text.index(HEADER)] + table(), "utf-8")
