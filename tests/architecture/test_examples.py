# SPDX-License-Identifier: Apache-2.0
"""Every example is run by a test, and every framework that there is an extra for has one."""

import ast
import functools
import tomllib

from tests.architecture.frameworks import framework_files, imported
from tests.architecture.sources import ROOT, Source, sources


@functools.cache
def examples() -> dict[str, Source]:
    """Return the examples by name; not when this file is imported, for every worker of the suite imports it."""
    found = {source.path: source for source in sources()}
    return {path.removeprefix("examples/"): source for path, source in found.items() if path.startswith("examples/")}


def names_example(source: Source, name: str) -> bool:
    """Tell whether a test has the name of an example, as a path or as a module."""
    stem = name.removesuffix(".py")
    texts = (node.value for node in ast.walk(source.tree) if isinstance(node, ast.Constant))
    words = {word for text in texts if isinstance(text, str) for word in text.replace("/", " ").split()}
    return not words.isdisjoint({name, stem}) or f"examples.{stem}" in set(imported(source))


def test_every_example_is_run_by_a_test() -> None:
    tests = [source for source in sources() if source.path.startswith(("tests/agents/", "tests/kernel/"))]
    assert examples()
    assert [name for name in examples() if not any(names_example(source, name) for source in tests)] == []


def test_every_extra_for_agents_has_an_example() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    used = {module.partition(".")[0] for source in examples().values() for module in imported(source)}
    modules = {"mcp": "mcp", "deepagents": "deepagents", "openai-agents": "agents"}
    modules |= {"pydantic-ai": "pydantic_ai", "inspect-ai": "inspect_ai"}
    assert set(modules) == set(extras) - {"dev", "docs", "tui"}
    assert set(modules.values()) <= used


def test_the_reference_agent_needs_no_framework() -> None:
    assert "examples/agent.py" not in framework_files()
