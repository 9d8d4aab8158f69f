# SPDX-License-Identifier: Apache-2.0
"""Which files of the project need one of the frameworks that agents are built with.

Found by what they import, directly or by way of another file, and the same in every environment: a package is a
framework's if it is neither of the standard library, nor ours, nor pinned in constraints.txt.
"""

import ast
import functools
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from typing import Final

from tests.architecture.sources import ROOT, TREES, Source, sources

OURS: Final = frozenset({"unspill", *TREES, *(path.stem for path in (ROOT / "benchmarks").glob("*.py"))})


def pinned(name: str) -> dict[str, str]:
    """Return the versions in a file of constraints, by the name of the package as packaging normalises it."""
    lines = (line.partition("==") for line in (ROOT / name).read_text().splitlines() if not line.startswith("#"))
    return {normal(package): version for package, _, version in lines}


def normal(package: str) -> str:
    """Return a package's name in the one spelling that all of its spellings mean."""
    return re.sub(r"[-_.]+", "-", package).lower()


@functools.cache
def development_modules() -> frozenset[str]:
    """Return the top-level modules of the packages that development alone needs."""
    known = pinned("constraints.txt")
    found = packages_distributions().items()
    return frozenset(module for module, packages in found if any(normal(package) in known for package in packages))


def imported(source: Source) -> Iterator[str]:
    """Yield every module that a file may load by its imports; of `from a.b import c` these are `a`, `a.b`, `a.b.c`."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            named = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for parts in (name.split(".") for name in named):
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def is_of_a_framework(module: str) -> bool:
    """Tell whether a module comes with a framework."""
    top = module.partition(".")[0]
    return top not in sys.stdlib_module_names and top not in OURS and top not in development_modules()


def module_of(source: Source) -> str:
    """Return the name under which others import a file."""
    path = source.path.removesuffix(".py").removesuffix("/__init__").removeprefix("src/").removeprefix("benchmarks/")
    return path.replace("/", ".")


@functools.cache
def framework_files() -> frozenset[str]:
    """Return the paths of the files that can't be loaded without a framework."""
    by_path = {source.path: frozenset(imported(source)) for source in sources()}
    names = {source.path: module_of(source) for source in sources()}
    found = {path for path, modules in by_path.items() if any(map(is_of_a_framework, modules))}
    while True:
        needing = {names[path] for path in found}
        more = {path for path, modules in by_path.items() if path not in found and not needing.isdisjoint(modules)}
        if not more:
            return frozenset(found)
        found |= more
