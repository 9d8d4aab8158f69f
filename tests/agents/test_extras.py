# SPDX-License-Identifier: Apache-2.0
"""With every framework installed, none is loaded unasked, and the types of all files are checked."""

import functools
import os
import re
import subprocess
import sys
from importlib.metadata import distributions, packages_distributions
from pathlib import Path

import pytest

from tests.architecture.frameworks import framework_files, module_of, normal, pinned
from tests.architecture.sources import ROOT, sources
from tests.architecture.test_tools import check
from tests.support import Ground

pytestmark = pytest.mark.agents

IMPORTED = re.compile(r"^import time: +\d+ \| +\d+ \| +([\w.]+)$", re.MULTILINE)
RUN = """
import sys
from unspill import Sandbox
with Sandbox(sys.argv[1]) as sandbox:
    assert sandbox.run("true").ok
"""
FRAMEWORKS = {"mcp", "pydantic", "anyio", "langchain_core", "deepagents", "agents", "inspect_ai", "pydantic_ai"}


def loaded_by(*words: str, cwd: Path = ROOT) -> set[str]:
    """Return the foreign top-level modules that a program loads, with all Python processes that it starts."""
    variables = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(words, cwd=cwd, env=variables, capture_output=True, text=True, check=True, timeout=120)
    loaded = {name.partition(".")[0] for name in IMPORTED.findall(done.stderr)}
    assert "encodings" in loaded
    return loaded & installed_modules() - sys.stdlib_module_names


@functools.cache
def installed_modules() -> frozenset[str]:
    """Return the top-level modules of all other installed packages."""
    return frozenset(packages_distributions()) - {"unspill"}


@pytest.fixture(scope="module")
def at_start() -> set[str]:
    """What Python loads of installed packages by itself."""
    return loaded_by(sys.executable, "-c", "pass")


@pytest.mark.kernel
def test_the_frameworks_are_here_to_be_loaded() -> None:
    installed = {normal(found.metadata["Name"]) for found in distributions()}
    assert set(pinned("constraints-agents.txt")) <= installed
    assert installed_modules() >= FRAMEWORKS


@pytest.mark.kernel
def test_importing_unspill_loads_nothing_foreign(at_start: set[str]) -> None:
    assert loaded_by(sys.executable, "-c", "import unspill; unspill.Sandbox") - at_start == set()


@pytest.mark.kernel
def test_a_run_of_the_library_loads_nothing_foreign(ground: Ground, at_start: set[str]) -> None:
    assert loaded_by(sys.executable, "-c", RUN, os.fspath(ground.project)) - at_start == set()


@pytest.mark.kernel
@pytest.mark.parametrize(
    "words",
    [("run", "--", "true"), ("run", "--hold", "--json", "--", "touch", "x"), ("changes",), ("--help",), ("hook", "-h")],
)
def test_the_command_line_loads_nothing_foreign(words: tuple[str, ...], ground: Ground, at_start: set[str]) -> None:
    program = Path(sys.executable).with_name("unspill")
    assert loaded_by(os.fspath(program), *words, cwd=ground.project) - at_start == set()


def adapters(*, needing: bool) -> list[str]:
    """Return the modules of the adapters, those that need a framework or the others."""
    found = [source for source in sources() if source.path.startswith("src/unspill/adapters/")]
    return [module_of(source) for source in found if (source.path in framework_files()) is needing]


@pytest.mark.kernel
def test_the_tools_without_a_framework_load_nothing_foreign(at_start: set[str]) -> None:
    free = adapters(needing=False)
    assert "unspill.adapters.tools" in free
    assert loaded_by(sys.executable, "-c", f"import {', '.join(free)}") - at_start == set()


@pytest.mark.kernel
@pytest.mark.timeout(180)
def test_importing_the_adapters_does_load_the_frameworks(at_start: set[str]) -> None:
    """The control arm: what is loaded would be seen."""
    assert loaded_by(sys.executable, "-c", f"import {', '.join(adapters(needing=True))}") - at_start >= FRAMEWORKS


CACHE = Path.home() / ".cache" / "unspill-tests"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_mypy_is_content_with_the_files_that_need_a_framework() -> None:
    """The time buys one strict pass over every file that needs a framework; what the other pass has seen is known."""
    here = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests" / "agents").rglob("*.py")}
    check("mypy", "--cache-dir", CACHE / "mypy", *sorted(framework_files() | here))
