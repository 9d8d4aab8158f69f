# SPDX-License-Identifier: Apache-2.0
"""Files that need a framework are told from those that don't, whatever is installed."""

import ast

import pytest

from tests.architecture.frameworks import framework_files, imported, is_of_a_framework, module_of
from tests.architecture.sources import Source


def made(path: str, text: str) -> Source:
    return Source(path=path, text=text, tree=ast.parse(text))


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("mcp.server", True),
        ("pydantic", True),
        ("agents", True),
        ("no_such_package", True),
        ("os.path", False),
        ("__future__", False),
        ("unspill.adapters.tool", False),
        ("tests.support", False),
        ("measuring", False),
        ("pytest", False),
        ("_pytest.config", False),
        ("hypothesis", False),
    ],
)
def test_packages_of_frameworks_are_told_from_the_others(module: str, expected: bool) -> None:
    assert is_of_a_framework(module) is expected


def test_an_import_names_all_that_it_loads() -> None:
    text = "import a.b\nfrom c.d import e, f as g\ndef late():\n    import h\n"
    assert set(imported(made("x.py", text))) == {"a", "a.b", "c", "c.d", "c.d.e", "c.d.f", "h"}


@pytest.mark.parametrize(
    ("path", "module"),
    [
        ("src/unspill/adapters/mcp/__init__.py", "unspill.adapters.mcp"),
        ("src/unspill/cli/main.py", "unspill.cli.main"),
        ("tests/agents/conftest.py", "tests.agents.conftest"),
        ("benchmarks/measuring.py", "measuring"),
    ],
)
def test_a_file_is_known_by_the_name_that_others_import(path: str, module: str) -> None:
    assert module_of(made(path, "")) == module


def test_what_every_run_needs_needs_no_framework() -> None:
    needing = framework_files()
    assert needing
    assert {path.split("/")[2] for path in needing if path.startswith("src/")} <= {"adapters", "cli"}
    assert needing.isdisjoint({"src/unspill/adapters/tool.py", "src/unspill/adapters/calling.py", "examples/agent.py"})
