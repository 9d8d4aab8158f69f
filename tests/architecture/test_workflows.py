# SPDX-License-Identifier: Apache-2.0
"""Workflow files of a public CI: a linter finds nothing, every action is one commit, and what they call is there.

They are not run here. The list of what a wheel consists of, which a release publishes, is made from a real wheel.
"""

import json
import re
import runpy
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT
from tests.building import build_wheel, made_once
from unspill import __version__

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
USES = re.compile(r"^ +(?:- )?uses: (?P<action>\S+)(?P<comment>.*)$", re.MULTILINE)
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}")
CALLED = re.compile(r"(?:\.ci|scripts|tests|constraints)[\w./-]*\w")


def lint(*paths: Path) -> subprocess.CompletedProcess[str]:
    """Run the linter without a network."""
    tool = Path(sys.executable).with_name("zizmor")
    words = ["--offline", "--no-config", "--pedantic", "--color=never", "--no-progress"]
    return subprocess.run([tool, *words, *paths], capture_output=True, text=True, check=False)


def test_the_linter_finds_nothing() -> None:
    done = lint(*WORKFLOWS)
    assert done.returncode == 0, done.stdout


def test_the_linter_would_find_an_action_by_its_tag_and_rights_that_nobody_needs(tmp_path: Path) -> None:
    text = (ROOT / ".github/workflows/release.yml").read_text()
    bad = tmp_path / "release.yml"
    bad.write_text(USES.sub(r"      - uses: actions/checkout@v7", text, count=1).replace("{}", "write-all", 1))
    said = lint(bad).stdout
    assert "unpinned-uses" in said
    assert "excessive-permissions" in said


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_one_commit_with_the_version_beside_it(path: Path) -> None:
    found = list(USES.finditer(path.read_text()))
    assert found
    assert [match["action"] for match in found if not PINNED.fullmatch(match["action"])] == []
    assert [match["action"] for match in found if not re.fullmatch(r" # v\d+\.\d+\.\d+", match["comment"])] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_file_that_a_workflow_calls_is_there(path: Path) -> None:
    called = set(CALLED.findall(path.read_text()))
    assert called
    assert [name for name in called if not (ROOT / name).exists()] == []


@pytest.mark.slow
def test_the_list_of_a_wheel_names_every_file_and_needs_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = made_once(tmp_path_factory, "wheel", lambda place: build_wheel(place).rename(place / "made.whl"))
    wheel = place / "made.whl"
    made = runpy.run_path(str(ROOT / "scripts/make_sbom.py"))["make_sbom"]
    found = made(wheel)
    assert json.dumps(found) == json.dumps(made(wheel))
    main = found["metadata"]["component"]
    assert (main["name"], main["version"]) == ("unspill", __version__)
    assert main["hashes"][0]["content"] == sha256(wheel.read_bytes()).hexdigest()
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: sha256(archive.read(name)).hexdigest() for name in archive.namelist()}
    assert {file["name"]: file["hashes"][0]["content"] for file in main["components"]} == contents
    assert found["dependencies"] == [{"ref": main["bom-ref"], "dependsOn": []}]
    assert {part["scope"] for part in found["components"]} == {"optional"}
    assert {"mcp", "deepagents"} <= {part["name"] for part in found["components"]}
