# SPDX-License-Identifier: Apache-2.0
"""Files that need a framework are told from those that don't, whatever is installed."""

import ast
import tomllib
from typing import Any

import pytest

from tests.architecture.frameworks import framework_files, imported, is_of_a_framework, module_of
from tests.architecture.sources import ROOT, Source, sources


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
        ("unspill.adapters.tools", False),
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
    assert needing.isdisjoint({"src/unspill/adapters/tools.py", "src/unspill/adapters/answers.py", "examples/agent.py"})


def contract(name: str) -> dict[str, Any]:
    """Return one of the import contracts."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return next(found for found in contracts if found["id"] == name)


def test_every_module_is_under_the_import_contracts_of_frameworks() -> None:
    """Each module of the adapters needs a framework and is protected, or needs none and may import none."""
    protected = set(contract("adapters")["protected_modules"])
    free = {name for name in contract("frameworks")["source_modules"] if name.startswith("unspill.adapters.")}
    paths = {source.path: module_of(source) for source in sources() if source.path.startswith("src/unspill/adapters/")}
    parts = {path: ".".join(name.split(".")[:3]) for path, name in paths.items() if name != "unspill.adapters"}
    assert protected.isdisjoint(free)
    assert set(parts.values()) == protected | free
    assert {parts[path] for path in framework_files() if path in parts} == protected
    others = {source.path.split("/")[2].removesuffix(".py") for source in sources() if source.is_package_code}
    named = {name.removeprefix("unspill.") for name in contract("frameworks")["source_modules"]} - free
    assert others - {"adapters", "__init__", "__main__"} <= named


def test_no_framework_is_missing_in_the_import_contract() -> None:
    """Of the packages that modules of adapters import, each is forbidden to the others."""
    forbidden = set(contract("frameworks")["forbidden_modules"])
    of_adapters = (source for source in sources() if source.path.startswith("src/unspill/adapters/"))
    found = {name.partition(".")[0] for source in of_adapters for name in imported(source) if is_of_a_framework(name)}
    assert found <= forbidden
