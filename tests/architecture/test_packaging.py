# SPDX-License-Identifier: Apache-2.0
"""What is shipped: a wheel with everything in it and no dependency, from tools that are all pinned."""

import re
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser

import pytest

from tests.architecture.sources import PACKAGE, ROOT
from tests.building import build_wheel

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINNED = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]


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
    needed = fields.get_all("Requires-Dist", [])
    assert [requirement for requirement in needed if "extra == 'dev'" not in requirement] == []


@pytest.mark.slow
def test_the_wheel_fits_every_machine(wheel: zipfile.ZipFile) -> None:
    assert metadata(wheel, "WHEEL")["Tag"] == "py3-none-any"


def test_every_development_package_is_pinned_and_explained() -> None:
    assert [line for line in PINNED if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line)] == []
    explained = (ROOT / "docs" / "dependencies.md").read_text()
    pinned = {line.partition("==")[0].lower() for line in PINNED}
    for name in PROJECT["optional-dependencies"]["dev"]:
        assert name in pinned
        assert f"`{name}`" in explained


@pytest.mark.slow
def test_the_installed_command_is_a_plain_script(wheel: zipfile.ZipFile) -> None:
    (path,) = [path for path in wheel.namelist() if ".data/" in path]
    assert path.endswith("/scripts/unspill")
    script = wheel.read(path).decode()
    # pip puts the interpreter into a line of exactly this form
    assert script.startswith("#!python\n")
    assert "from unspill.cli.main import main\n" in script
