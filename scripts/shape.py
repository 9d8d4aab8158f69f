#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print the shape of the code: files, code lines and imports, for each package and for the whole.

`--json` prints one object. tests/architecture/test_shape.py holds the bounds.
"""

import argparse
import ast
import collections
import functools
import io
import json
import statistics
import sys
import tokenize
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SRC = Path(__file__).resolve().parents[1] / "src"
# What the spawner runs: it starts with every sandbox, so it may import what the standard library wraps.
SPAWNER, DOOR = "unspill.host.spawner", "unspill.host.door"
LAZY = "# lazy: "
LAZY_MODULE = "lazy_module"
_NO_CODE = frozenset(
    (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
)


@dataclass(frozen=True)
class Import:
    """One module that an import statement may load. `typing`: for type checkers.

    `late`: it stands in a function, or is a module that `lazy_module` imports when it is first used.
    """

    module: str
    line: int
    late: bool
    typing: bool


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    path: Path
    text: str

    @property
    def package(self) -> str:
        return self.name.rpartition(".")[0]

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @functools.cached_property
    def code_lines(self) -> int:
        """Lines that are neither blank nor a comment nor part of a docstring."""
        lines: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in _NO_CODE:
                lines.update(range(token.start[0], token.end[0] + 1))
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0] if node.body else None
                if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                    lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
        return len(lines)

    @functools.cached_property
    def imports(self) -> tuple[Import, ...]:
        return tuple(_imports(self.tree, late=False, typing=False))

    def is_marked(self, found: Import) -> bool:
        """Tell whether an import in a function says which feature it belongs to."""
        return LAZY in self.text.splitlines()[found.line - 1]


def _imports(node: ast.AST, *, late: bool, typing: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, late, typing) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (Import(f"{child.module}.{alias.name}", child.lineno, late, typing) for alias in child.names)
        elif isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id == LAZY_MODULE:
            yield Import(ast.literal_eval(child.args[0]), child.lineno, late=True, typing=False)
        else:
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            is_typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
            yield from _imports(child, late=late or is_function, typing=typing or is_typing)


def load(src: Path = SRC) -> dict[str, Module]:
    """Return every module by its name, `__init__` left out."""
    paths = (path for path in sorted(src.rglob("*.py")) if path.name != "__init__.py")
    names = {".".join(path.relative_to(src).with_suffix("").parts): path for path in paths}
    return {name: Module(name, path, path.read_text("utf-8")) for name, path in names.items()}


def graph(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Return which of our modules each one imports: at the top, in functions and for types."""
    return {
        name: {to for found in module.imports if (to := _ours(found.module, modules))} - {name}
        for name, module in modules.items()
    }


def _ours(imported: str, modules: Mapping[str, Module]) -> str | None:
    """Return the module of ours that an import names, directly or by something in it."""
    return imported if imported in modules else above if (above := imported.rpartition(".")[0]) in modules else None


def circles(edges: Mapping[str, Set[str]]) -> list[list[str]]:
    """Return the groups of names that lead to one another, the largest first (Tarjan's algorithm)."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        numbers[name] = lowest[name] = len(numbers)
        stack.append(name)
        for other in edges.get(name, ()):
            if other not in numbers:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], numbers[other])
        if lowest[name] == numbers[name]:
            group = stack[stack.index(name) :]
            del stack[-len(group) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in edges:
        if name not in numbers:
            visit(name)
    return sorted(found, key=lambda group: (-len(group), group))


def circles_of_siblings(edges: Mapping[str, Set[str]]) -> list[list[str]]:
    """Return the circles among what each package consists of, modules and packages alike."""
    packages = {name[:end] for name in edges for end, letter in enumerate(name) if letter == "."}
    found = []
    for package in sorted(packages):
        merged: dict[str, set[str]] = collections.defaultdict(set)
        for name, others in edges.items():
            if (child := _child(package, name)) is not None:
                merged[child] |= {other for name in others if (other := _child(package, name)) not in (None, child)}
        found += circles(merged)
    return sorted(found, key=lambda group: (-len(group), group))


def _child(package: str, name: str) -> str | None:
    inside = name.removeprefix(package + ".")
    return None if inside == name else f"{package}.{inside.partition('.')[0]}"


def reachable(start: str, edges: Mapping[str, Set[str]]) -> set[str]:
    """Return all modules that a program loads which begins with this one."""
    seen, todo = {start}, [start]
    while todo:
        new = edges.get(todo.pop(), set()) - seen
        seen |= new
        todo += new
    return seen


def shape(modules: Mapping[str, Module]) -> dict[str, Any]:
    """Return the whole picture."""
    edges = graph(modules)
    top = {
        name: {
            to
            for found in module.imports
            if not found.late and not found.typing and (to := _ours(found.module, modules))
        }
        for name, module in modules.items()
    }
    late = [(name, found) for name, module in modules.items() for found in module.imports if found.late]
    statements = {(name, found.line): found for name, found in late}
    spawners = reachable(SPAWNER, top) | reachable(DOOR, top)
    private = sorted(
        {
            f"{name}: {found.module.partition('.')[0]}"
            for name, module in modules.items()
            if name not in spawners
            for found in module.imports
            if _is_private(found.module)
        }
    )
    classes = collections.Counter(
        node.name for module in modules.values() for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)
    )
    packages = {
        package: _sizes([module for module in modules.values() if module.package == package])
        | {"late_imports": sum(name.rpartition(".")[0] == package for name, _line in statements)}
        for package in sorted({module.package for module in modules.values()})
    }
    return {
        **_sizes(list(modules.values())),
        "most_files_in_a_package": max(found["files"] for found in packages.values()),
        "circles": circles_of_siblings(edges),
        "class_names_twice": sorted(name for name, count in classes.items() if count > 1),
        "late_imports": len(statements),
        "late_imports_without_a_feature": sum(
            not modules[name].is_marked(found) for (name, _line), found in statements.items()
        ),
        "private_modules": private,
        "packages": packages,
    }


def _is_private(module: str) -> bool:
    # Python's library reference documents `_thread`
    top = module.partition(".")[0]
    return top.startswith("_") and not top.startswith("__") and top != "_thread"


def _sizes(modules: list[Module]) -> dict[str, int]:
    lines = sorted(module.code_lines for module in modules)
    return {
        "files": len(lines),
        "code_lines": sum(lines),
        "median": round(statistics.median(lines)),
        "p90": lines[len(lines) * 9 // 10],
        "longest": lines[-1],
    }


def table(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the table."""
    heads = ("files", "code_lines", "median", "p90", "longest", "late_imports")
    yield f"{'package':26}" + "".join(f"{head.replace('_', ' '):>14}" for head in heads)
    for name, row in (*found["packages"].items(), ("all", found)):
        yield f"{name:26}" + "".join(f"{row[head]:14,}" for head in heads)
    yield ""
    yield f"most files in a package: {found['most_files_in_a_package']}"
    yield f"imports in functions that name no feature: {found['late_imports_without_a_feature']}"
    for head in ("circles", "class_names_twice", "private_modules"):
        yield f"{head.replace('_', ' ')}: {len(found[head])}"
        yield from (f"  {len(group)}: {' '.join(group)}" for group in found[head] if isinstance(group, list))
        names = [name for name in found[head] if isinstance(name, str)]
        if names:
            yield "  " + ", ".join(names)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the shape of the code.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    found = shape(load())
    text = json.dumps(found, indent=1) if arguments.json else "\n".join(table(found))
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
