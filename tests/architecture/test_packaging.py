# SPDX-License-Identifier: Apache-2.0
"""What is shipped: a wheel with everything in it and no dependency, from tools that are all pinned."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGE, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINNED = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built from a copy because the checkout may be read-only."""
    copy = tmp_path_factory.mktemp("build")
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist"]
    result = subprocess.run(
        command, cwd=copy, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    assert result.returncode == 0, result.stdout
    (path,) = Path(copy, "dist").glob("*.whl")
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile, name: str) -> Message:
    (path,) = [path for path in wheel.namelist() if path.endswith(f".dist-info/{name}")]
    return Parser().parsestr(wheel.read(path).decode())


@pytest.mark.slow
def test_the_wheel_holds_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    files = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert "unspill/py.typed" in files
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == files


@pytest.mark.slow
def test_the_wheel_says_its_licence_and_needs_nothing(wheel: zipfile.ZipFile) -> None:
    fields = metadata(wheel, "METADATA")
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["License-File"] == "LICENSE"
    assert fields["Requires-Python"] == "<3.14,>=3.11"
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


def test_the_installed_command_is_the_command_line() -> None:
    assert PROJECT["scripts"] == {"unspill": "unspill.cli.main:main"}
