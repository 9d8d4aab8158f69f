# SPDX-License-Identifier: Apache-2.0
"""What is shipped: a wheel with everything in it and no dependency, from tools that are all pinned.

Frameworks for agents are extras: bounded, pinned for the tests, explained.
"""

import ast
import configparser
import importlib
import json
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.architecture.frameworks import normal, pinned
from tests.architecture.sources import PACKAGE, ROOT
from tests.building import build_wheel, copy_checkout, made_once
from tests.docs.blocks import find_blocks
from unspill.cli.completion import SCRIPTS
from unspill.cli.manual import pages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXPLAINED = (ROOT / "docs" / "design" / "dependencies.md").read_text()
CONSTRAINTS = ("constraints.txt", "constraints-agents.txt", "constraints-docs.txt")
FRAMEWORKS = {name: wanted for name, wanted in PROJECT["optional-dependencies"].items() if name not in {"dev", "docs"}}
GROUPS = {"deepagents_code.sandbox_providers", "inspect_ai"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, opened."""
    place = made_once(tmp_path_factory, "wheel", lambda place: build_wheel(place).rename(place / "made.whl"))
    return zipfile.ZipFile(place / "made.whl")


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
    assert {"unspill/py.typed", "unspill/agents/claude_code/.claude-plugin/plugin.json"} <= files
    assert {name for name in wheel.namelist() if name.startswith("unspill/")} == files


@pytest.mark.slow
def test_the_wheel_says_its_licence_and_needs_nothing(wheel: zipfile.ZipFile) -> None:
    fields = metadata(wheel, "METADATA")
    assert fields["License-Expression"] == "Apache-2.0"
    assert fields["License-File"] == "LICENSE"
    assert fields["Requires-Python"] == ">=3.11"
    assert fields["Description-Content-Type"] == "text/markdown"
    needed = [Requirement(line) for line in fields.get_all("Requires-Dist", [])]
    assert [wanted for wanted in needed if wanted.marker is None or wanted.marker.evaluate({"extra": ""})] == []
    assert set(fields.get_all("Provides-Extra", [])) == {"dev", "docs", *FRAMEWORKS}


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


def test_nothing_is_pinned_twice_in_one_environment_nor_to_two_versions() -> None:
    first, agents, docs = map(pinned, CONSTRAINTS)
    assert set(first) & {*agents, *docs} == set()
    assert {name for name in set(agents) & set(docs) if agents[name] != docs[name]} == set()


def test_every_development_package_is_pinned_and_explained() -> None:
    for name in PROJECT["optional-dependencies"]["dev"]:
        assert normal(name) in pinned("constraints.txt")
        assert f"`{name}`" in EXPLAINED


def test_what_builds_the_site_is_of_one_version_and_explained() -> None:
    (wanted,) = map(Requirement, PROJECT["optional-dependencies"]["docs"])
    assert str(wanted.specifier) == f"=={pinned('constraints-docs.txt')[wanted.name]}"
    assert f"`{wanted.name}`" in EXPLAINED


@pytest.mark.parametrize("extra", FRAMEWORKS)
def test_every_extra_is_one_framework_bounded_pinned_and_explained(extra: str) -> None:
    (wanted,) = map(Requirement, FRAMEWORKS[extra])
    assert sorted(bound.operator for bound in wanted.specifier) == ["<", ">="]
    versions = {**pinned("constraints.txt"), **pinned("constraints-agents.txt")}
    assert wanted.specifier.contains(versions[normal(wanted.name)])
    assert f"| `unspill[{extra}]` | `{wanted.name}` |" in EXPLAINED


@pytest.mark.slow
def test_the_installed_command_is_a_plain_script(wheel: zipfile.ZipFile) -> None:
    (path,) = [path for path in wheel.namelist() if ".data/scripts/" in path]
    assert path.endswith("/unspill")
    script = wheel.read(path).decode()
    # pip puts the interpreter into a line of exactly this form
    assert script.startswith("#!python\n")
    assert "from unspill.cli.main import main\n" in script


@pytest.mark.slow
def test_the_wheel_has_the_pages_and_completions_that_this_source_makes(wheel: zipfile.ZipFile) -> None:
    shared = {path.partition(".data/data/share/")[2]: path for path in wheel.namelist() if ".data/data/share/" in path}
    page = wheel.read(shared["man/man1/unspill.1"]).decode()
    (date,) = re.findall(r'^\.TH UNSPILL 1 "([0-9-]{10})"', page, re.MULTILINE)
    expected = {f"man/man1/{name}": text for name, text in pages(date).items()}
    expected |= {
        "bash-completion/completions/unspill": SCRIPTS["bash"],
        "zsh/site-functions/_unspill": SCRIPTS["zsh"],
        "fish/vendor_completions.d/unspill.fish": SCRIPTS["fish"],
    }
    assert {name: wheel.read(path).decode() for name, path in shared.items()} == expected


def build_tools(directory: Path) -> Path:
    """Lay what builds a wheel, and nothing else of this environment, where a Python finds it that has no network."""
    directory.mkdir()
    for name in ("hatchling", "packaging", "pathspec", "pluggy", "trove_classifiers"):
        (place,) = importlib.import_module(name).__path__
        (directory / name).symlink_to(place)
    return directory


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_the_readme_has_one_install_works_for_somebody_who_has_only_a_checkout(tmp_path: Path) -> None:
    """Word for word, in a new home and a new virtual environment. Only the build tools are not fetched."""
    (block,) = [
        found
        for found in find_blocks((ROOT / "README.md").read_text())
        if found.not_run is not None and "test_packaging.py" in found.not_run
    ]
    home, checkout = tmp_path / "home", tmp_path / "checkout"
    (home / "demo").mkdir(parents=True)
    checkout.mkdir()
    copy_checkout(checkout)
    plain = {"HOME": os.fspath(home), "PATH": f"{home}/.local/bin:{os.environ['PATH']}", "LANG": "C.UTF-8"}
    # `0` is how pip spells no isolation in a variable
    offline = {
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",
        "PYTHONPATH": os.fspath(build_tools(tmp_path / "tools")),
    }
    words = ["sh", "-e", "-c", "\n".join(block.content)]
    done = subprocess.run(words, cwd=checkout, env={**plain, **offline}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    def say(*command: str) -> str:
        ran = subprocess.run(command, cwd=home / "demo", env=plain, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()

    assert say("sh", "-c", "command -v unspill") == f"{home}/.local/bin/unspill"
    assert say("unspill", "--version") == f"unspill {PROJECT['version']}"
    place = say(f"{home}/.local/unspill/bin/python", "-c", "import unspill; print(unspill.__file__)")
    assert place.startswith(f"{home}/.local/unspill/lib/"), "it does without the checkout"
    shutil.rmtree(checkout)
    assert say("unspill", "run", "--", "sh", "-c", "echo made > made; cat made") == "made"
    assert (home / "demo/made").read_text() == "made\n"
    say("unspill", "undo")
    assert not (home / "demo/made").exists()
    plugin = Path(say("unspill", "hook", "claude-code", "--plugin-dir"))
    assert f"{home}/.local/unspill/" in (plugin / "hooks/hooks.json").read_text()
    assert json.loads((plugin / ".claude-plugin/plugin.json").read_text())["name"] == "unspill"


def test_no_document_says_that_it_is_on_a_package_index_or_bounds_the_version_of_python() -> None:
    claims = re.compile(r"(pip|pipx|uv tool|uv pip) install ['\"]?unspill|released version|3\.11 to 3\.\d+|<3\.\d+")
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/*"), *PACKAGE.rglob("*.py")]
    files += [*ROOT.glob("examples/*"), ROOT / "pyproject.toml"]
    found = [(path.name, match[0]) for path in files if path.is_file() for match in claims.finditer(path.read_text())]
    assert found == []
    assert PROJECT["requires-python"] == ">=3.11"
