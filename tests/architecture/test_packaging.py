# SPDX-License-Identifier: Apache-2.0
"""What is shipped: a wheel with everything in it and no dependency, from tools that are all pinned.

Frameworks for agents are extras: bounded, pinned for the tests, explained.
"""

import ast
import configparser
import re
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser

import pytest
from packaging.requirements import Requirement

from tests.architecture.frameworks import normal, pinned
from tests.architecture.sources import PACKAGE, ROOT
from tests.building import build_wheel

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXPLAINED = (ROOT / "docs" / "dependencies.md").read_text()
CONSTRAINTS = ("constraints.txt", "constraints-agents.txt")
FRAMEWORKS = {name: wanted for name, wanted in PROJECT["optional-dependencies"].items() if name != "dev"}
GROUPS = {"deepagents_code.sandbox_providers", "inspect_ai"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, opened."""
    return zipfile.ZipFile(build_wheel(tmp_path_factory.mktemp("build")))


def metadata(wheel: zipfile.ZipFile, name: str) -> Message:
    (path,) = [path for path in wheel.namelist() if path.endswith(f".dist-info/{name}")]
    return Parser().parsestr(wheel.read(path).decode())


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    files = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in path.relative_to(PACKAGE).parts)
    }
    assert "unspill/py.typed" in files
    assert {name for name in wheel.namelist() if name.startswith("unspill/")} == files


@pytest.mark.slow
def test_the_wheel_says_its_licence_and_needs_nothing(wheel: zipfile.ZipFile) -> None:
    fields = metadata(wheel, "METADATA")
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["License-File"] == "LICENSE"
    assert fields["Requires-Python"] == "<3.14,>=3.11"
    assert fields["Description-Content-Type"] == "text/markdown"
    needed = [Requirement(line) for line in fields.get_all("Requires-Dist", [])]
    assert [wanted for wanted in needed if wanted.marker is None or wanted.marker.evaluate({"extra": ""})] == []
    assert set(fields.get_all("Provides-Extra", [])) == {"dev", *FRAMEWORKS}


@pytest.mark.slow
def test_the_wheel_announces_itself_to_two_frameworks_by_what_exists(wheel: zipfile.ZipFile) -> None:
    (path,) = [path for path in wheel.namelist() if path.endswith(".dist-info/entry_points.txt")]
    found = configparser.ConfigParser()
    found.read_string(wheel.read(path).decode())
    assert set(found.sections()) == GROUPS
    for _, target in (item for group in GROUPS for item in found.items(group)):
        module, _, name = target.partition(":")
        tree = ast.parse(wheel.read(module.replace(".", "/") + ".py"))
        assert not name or name in {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}


@pytest.mark.slow
def test_the_wheel_fits_every_machine(wheel: zipfile.ZipFile) -> None:
    assert metadata(wheel, "WHEEL")["Tag"] == "py3-none-any"


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_constraints_pin_one_version_each_and_name_no_registry(name: str) -> None:
    lines = (ROOT / name).read_text().splitlines()
    entries = [line for line in lines if not line.startswith("#")]
    assert [line for line in entries if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []
    assert len(pinned(name)) == len(entries)
    assert [line for line in lines if "://" in line or "--" in line] == []


def test_nothing_is_pinned_twice() -> None:
    first, second = map(pinned, CONSTRAINTS)
    assert set(first) & set(second) == set()


def test_every_development_package_is_pinned_and_explained() -> None:
    for name in PROJECT["optional-dependencies"]["dev"]:
        assert normal(name) in pinned("constraints.txt")
        assert f"`{name}`" in EXPLAINED


@pytest.mark.parametrize("extra", FRAMEWORKS)
def test_every_extra_is_one_framework_bounded_pinned_and_explained(extra: str) -> None:
    (wanted,) = map(Requirement, FRAMEWORKS[extra])
    assert sorted(bound.operator for bound in wanted.specifier) == ["<", ">="]
    assert wanted.specifier.contains(pinned("constraints-agents.txt")[normal(wanted.name)])
    assert f"| `unspill[{extra}]` | `{wanted.name}` |" in EXPLAINED


@pytest.mark.slow
def test_the_installed_command_is_a_plain_script(wheel: zipfile.ZipFile) -> None:
    (path,) = [path for path in wheel.namelist() if ".data/" in path]
    assert path.endswith("/scripts/unspill")
    script = wheel.read(path).decode()
    # pip puts the interpreter into a line of exactly this form
    assert script.startswith("#!python\n")
    assert "from unspill.cli.main import main\n" in script
