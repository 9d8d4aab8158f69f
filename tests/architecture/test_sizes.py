# SPDX-License-Identifier: Apache-2.0
"""Modules and functions stay small, measured on the syntax tree: none too long, and most of them short."""

import statistics

from tests.architecture.frameworks import framework_files
from tests.architecture.sources import Function, sources

MODULE_LINES = 400
FUNCTION_LINES = 60
ADAPTER_LINES = 120
EXAMPLE_LINES = 40

ADAPTERS_PATH = "src/unspill/adapters/"
# Every adapter, and all of the modules that are about its framework.
ADAPTERS = {
    "deep agents": ("deepagents.py",),
    "deepagents-code": ("deepagents_code.py",),
    "OpenAI agents, tools": ("openai_agents.py",),
    "OpenAI agents, sandbox client": ("openai_sandbox.py",),
    "pydantic-ai": ("pydantic_ai.py",),
    "inspect-ai": ("inspect_ai.py",),
}

# Path of a module that may be longer, and why it is better whole.
LONG_MODULES: dict[str, str] = {
    "src/unspill/rootfs/debian.py": "one source: names, the three steps of a build, and what a failure means",
    "tests/unit/rootfs/test_debian.py": "the tests of that source",
}


def package_functions() -> list[Function]:
    return [function for source in sources() if source.is_package_code for function in source.functions()]


def test_no_module_is_longer_than_400_lines() -> None:
    too_long = {source.path: source.lines for source in sources() if source.lines > MODULE_LINES}
    assert {path: lines for path, lines in too_long.items() if path not in LONG_MODULES} == {}


def lines_of(modules: tuple[str, ...]) -> int:
    return sum(source.lines for source in sources() if source.path.removeprefix(ADAPTERS_PATH) in modules)


def test_every_adapter_has_fewer_than_120_lines_in_all_of_its_modules() -> None:
    lines = {name: lines_of(modules) for name, modules in ADAPTERS.items()}
    assert all(lines.values())
    assert {name: count for name, count in lines.items() if count >= ADAPTER_LINES} == {}


def test_every_module_that_needs_a_framework_is_counted_for_one_adapter() -> None:
    """What needs none is shared by all of them. A server is no adapter: what it does is not a framework's to do."""
    needing = {path.removeprefix(ADAPTERS_PATH) for path in framework_files() if path.startswith(ADAPTERS_PATH)}
    counted = [module for modules in ADAPTERS.values() for module in modules]
    assert sorted(counted) == sorted(module for module in needing if not module.startswith("mcp/"))


def test_every_example_for_a_framework_has_fewer_than_40_lines() -> None:
    """The reference agent, which needs none, is a whole program and may have more."""
    examples = {source.path: source.lines for source in sources() if source.path.startswith("examples/")}
    assert "examples/agent.py" in examples
    long_ones = {path for path, lines in examples.items() if lines >= EXAMPLE_LINES}
    assert long_ones <= {"examples/agent.py"}


def test_every_explained_exception_is_still_needed() -> None:
    long_ones = {source.path for source in sources() if source.lines > MODULE_LINES}
    assert set(LONG_MODULES) <= long_ones
    assert all(LONG_MODULES.values())


def test_no_function_is_longer_than_60_lines() -> None:
    functions = [function for source in sources() for function in source.functions()]
    assert [function for function in functions if function.lines > FUNCTION_LINES] == []


def test_half_of_the_functions_have_at_most_12_lines() -> None:
    assert statistics.median(function.lines for function in package_functions()) <= 12


def test_nine_of_ten_functions_have_at_most_30_lines() -> None:
    lengths = [function.lines for function in package_functions()]
    assert statistics.quantiles(lengths, n=10, method="inclusive")[-1] <= 30


def test_fewer_than_2_percent_of_the_functions_have_more_than_50_lines() -> None:
    functions = package_functions()
    longest = [function for function in functions if function.lines > 50]
    assert len(longest) < 0.02 * len(functions), longest
