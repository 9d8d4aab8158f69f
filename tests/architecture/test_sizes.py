# SPDX-License-Identifier: Apache-2.0
"""Functions and examples stay small, measured on the syntax tree: none too long, and most of them short."""

import statistics

from tests.architecture.sources import Function, sources

FUNCTION_LINES = 60
EXAMPLE_LINES = 40


def package_functions() -> list[Function]:
    return [function for source in sources() if source.is_package_code for function in source.functions()]


def test_every_example_for_a_framework_has_fewer_than_40_lines() -> None:
    """The reference agent and the tour of the library, which need none, are whole programs and may have more."""
    examples = {source.path: source.lines for source in sources() if source.path.startswith("examples/")}
    whole = {"examples/agent.py", "examples/library.py"}
    assert whole <= set(examples)
    long_ones = {path for path, lines in examples.items() if lines >= EXAMPLE_LINES}
    assert long_ones <= whole


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
