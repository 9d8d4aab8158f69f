# SPDX-License-Identifier: Apache-2.0
"""The Python files of the project, found and parsed once for all tests of the architecture."""

import ast
import functools
import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "src" / "unspill"
TREES: Final = tuple(name for name in ("src", "tests", "benchmarks", "examples") if any((ROOT / name).rglob("*.py")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One Python file: its path from the root of the project, its text and its syntax tree."""

    path: str
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_package_code(self) -> bool:
        return self.path.startswith("src/")

    def functions(self) -> Iterator["Function"]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                yield Function(where=f"{self.path}:{node.lineno} {node.name}", lines=node.end_lineno - node.lineno + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function or method and its length, from `def` to its last line."""

    where: str
    lines: int


@functools.cache
def sources() -> tuple[Source, ...]:
    """Return all Python files of the project in the order of their paths."""
    paths = sorted(path for tree in TREES for path in (ROOT / tree).rglob("*.py"))
    # A million nodes that stay: looked through for garbage again and again, they would take three times as long
    gc.disable()
    try:
        return tuple(_load(path) for path in paths)
    finally:
        gc.freeze()
        gc.enable()


def _load(path: Path) -> Source:
    text = path.read_text("utf-8")
    return Source(path=path.relative_to(ROOT).as_posix(), text=text, tree=ast.parse(text, path))
