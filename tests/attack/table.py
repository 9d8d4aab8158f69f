# SPDX-License-Identifier: Apache-2.0
"""Make the tables of docs/security/attacks.md and SECURITY.md from the tests' own words.

Run `python -m tests.attack.table` to write them. The list of techniques comes first. The attacks that are written out
follow: such a test's name begins with the attack's number, and its docstring says what is tried, then `Control:` and
what shows that the attempt is worth something.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.attack.techniques.every import TECHNIQUES

HERE: Final = Path(__file__).parent
# Those against the server for agents, or by real ones, need these, so they lie with the others that do
AGENTS: Final = HERE.parent / "agents"
DOCUMENT: Final = HERE.parents[1] / "docs" / "security" / "attacks.md"
PROMISES: Final = HERE.parents[1] / "SECURITY.md"
BEGIN: Final = "<!-- from here on: python -m tests.attack.table -->\n"
ROOT_BEGIN, ROOT_END = "<!-- python -m tests.attack.table -->\n", "<!-- end of the table -->\n"
HEADER: Final = "| attack | what is tried | what shows that the attempt works | test |"
LIST_HEADER: Final = "| technique | what is tried | where it succeeds |"
ROOT_HEADER: Final = "| technique | what succeeds for root | why |"
NAME: Final = re.compile(r"test_(?P<letter>[a-e])(?P<number>\d+)_")
# What only a root caller can try, so that it is no technique of the list; test_root_callers.py shows it
OF_ROOT: Final = (
    "A10",
    "Read a file of the system that only root may read, such as /etc/shadow",
    "the command has root's uid, which file permissions do not stop",
)


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
        return _line(f"{self.letter}{self.number}", self.tried, self.control, f"`{self.file}` {self.name}")


def _line(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def rows() -> list[Row]:
    """Return one row per test here, or of what agents are served, that has an attack's number."""
    paths = [*HERE.glob("test_*.py"), *AGENTS.glob("test_mcp_*.py"), *AGENTS.glob("real/test_*.py")]
    return sorted(row for path in paths for row in _rows_of(path))


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


def tables() -> str:
    """Return all that is generated of docs/security/attacks.md."""
    listed = [_line(one.id, one.tries, one.removed) for one in TECHNIQUES]
    written = [str(row) for row in rows()]
    return "\n".join(
        [
            f"## The {len(listed)} techniques",
            "",
            "Each is run twice by `test_techniques.py`: against a sandbox as it is, where it fails, and where its",
            "defence is missing, where it succeeds.",
            "",
            *(LIST_HEADER, "|---|---|---|", *listed, ""),
            f"## The {len(written)} attacks that are written out",
            "",
            *(HEADER, "|---|---|---|---|", *written, ""),
        ]
    )


def root_table() -> str:
    """Return the table of what succeeds for a root caller who is let in."""
    listed = [(one.id, one.tries, one.why_root) for one in TECHNIQUES if one.as_root == "succeeds"]
    return "\n".join([ROOT_HEADER, "|---|---|---|", *(_line(*row) for row in (OF_ROOT, *listed)), ""])


def with_tables(document: str) -> str:
    """Return docs/security/attacks.md with the tables as they are now."""
    return document[: document.index(BEGIN)] + BEGIN + "\n" + tables()


def with_root_table(document: str) -> str:
    """Return SECURITY.md with its table as it is now."""
    begin, end = document.index(ROOT_BEGIN) + len(ROOT_BEGIN), document.index(ROOT_END)
    return document[:begin] + root_table() + document[end:]


if __name__ == "__main__":
    DOCUMENT.write_text(with_tables(DOCUMENT.read_text("utf-8")), "utf-8")
    PROMISES.write_text(with_root_table(PROMISES.read_text("utf-8")), "utf-8")
