# SPDX-License-Identifier: Apache-2.0
"""`doctor` on this host: with all it has, and with one feature taken away for real."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.masked_host import asked_through, masked, nested
from unspill.cli.upkeep import as_json, as_text, exit_code
from unspill.errors import BwrapMissing, BwrapUnsafe, HostError
from unspill.host.bwrap import find_bwrap
from unspill.host.diagnosis import diagnose, install_command, survey_project
from unspill.host.probe import probe
from unspill.model.plan import Facts
from unspill.model.policy import Policy

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]


def told(facts: Facts, policy: Policy | None = None, bwrap_error: HostError | None = None) -> tuple[str, int]:
    """Return what a person reads, and the exit code."""
    found = diagnose(facts, policy or Policy(), bwrap_error=bwrap_error)
    return as_text(facts, found), exit_code(found)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def trusted(bwrap: Path) -> bytes:
    return find_bwrap(os.fsencode(bwrap), "", [])


def test_on_a_host_made_for_the_tests_commands_can_be_run(trusted: bytes, state: Path) -> None:
    text, code = told(probe(trusted, os.fsencode(state)))
    assert code == 0
    assert text.startswith(("Level A: ", "Level B: "))
    assert os.fsdecode(trusted) in text


def test_json_has_the_same_rows_and_all_facts(trusted: bytes, state: Path) -> None:
    facts = probe(trusted, os.fsencode(state))
    found = diagnose(facts, Policy())
    value = json.loads(as_json(facts, found))
    assert exit_code(found) == 0
    assert value["level"] in {"A", "B"}
    assert value["facts"]["engines"] == list(facts.engines)
    assert value["facts"]["bwrap"]["path"] == os.fsdecode(trusted)
    assert {"namespaces", "engines", "cgroup"} <= {row["fact"] for row in value["rows"]}


@pytest.mark.parametrize("mask", ["no-more-namespaces", "covered-proc"])
def test_what_seals_a_run_taken_away_is_level_d_and_exit_code_3(mask: str, trusted: bytes, state: Path) -> None:
    text, code = told(masked([mask], trusted, state))
    assert text.startswith("Level D: ")
    assert code == HostError.exit_code == 3


def test_a_limit_of_no_namespaces_comes_with_the_line_that_lifts_it(trusted: bytes, state: Path) -> None:
    facts = masked(["no-more-namespaces"], trusted, state)
    text, _code = told(facts)
    assert "echo user.max_user_namespaces=15000 | sudo tee" in text


def test_inside_a_sandbox_that_forbids_namespaces_it_says_to_leave_it(trusted: bytes, state: Path) -> None:
    facts = asked_through(nested(trusted, state, "--disable-userns"), trusted, state)
    text, code = told(facts)
    assert code == 3
    assert "outside the container or sandbox" in text


def test_without_bwrap_it_says_what_to_install(state: Path) -> None:
    with pytest.raises(BwrapMissing) as missing:
        find_bwrap(None, "", [])
    text, code = told(probe(None, os.fsencode(state)), bwrap_error=missing.value)
    assert code == 3
    assert f"Install bubblewrap: {install_command()}" in text


def test_a_bwrap_that_others_may_write_is_refused_by_name(state: Path, tmp_path: Path) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o4777)
    with pytest.raises(BwrapUnsafe) as unsafe:
        find_bwrap(os.fsencode(fake), "", [])
    text, code = told(probe(None, os.fsencode(state)), bwrap_error=unsafe.value)
    assert code == 3
    assert "setuid" in text


def test_where_only_bwrap_may_mount_its_overlays_are_used_or_a_newer_one_is_needed(trusted: bytes, state: Path) -> None:
    facts = masked(["own-namespace"], trusted, state)
    text, code = told(facts)
    has_native = "native" in facts.engines
    assert code == (0 if has_native else 3)
    assert ("bwrap mounts overlays" in text) is has_native
    assert ("bubblewrap 0.11 or later" in text) is not has_native


def test_a_project_is_looked_through(trusted: bytes, state: Path, tmp_path: Path) -> None:
    project = tmp_path / "pro\x1b[31mject"
    project.mkdir()
    (project / "a\nb").symlink_to("/etc")
    root = os.fsencode(project)
    facts = probe(trusted, os.fsencode(state))
    found, survey = diagnose(facts, Policy()), survey_project(root)
    text = as_text(facts, found, survey)
    assert exit_code(found) == 0
    assert "1 entries" in text
    assert "symlinks that point outside the project" in text
    assert "\x1b" not in text
    assert "a\\nb" in text
    value = json.loads(as_json(facts, found, survey))
    assert value["findings"] == [{"kind": "link-out", "count": 1, "examples": ["a\\nb"]}]


def run_program(*words: str | Path, state: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    variables = os.environ | {"UNSPILL_STATE_DIR": os.fspath(state)} | environ
    code = "from unspill.cli.main import main; main()"
    command = [sys.executable, "-c", code, "doctor", *words]
    return subprocess.run(command, capture_output=True, text=True, env=variables, check=False, cwd="/")


def test_the_program_prints_the_report_and_exits_with_0(state: Path, tmp_path: Path) -> None:
    done = run_program(tmp_path, state=state)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(("Level A: ", "Level B: "))
    assert f"Project {tmp_path}: " in done.stdout


def test_the_program_without_bwrap_on_path_exits_with_3(state: Path) -> None:
    done = run_program("--json", state=state, PATH="")
    assert done.returncode == 3
    value = json.loads(done.stdout)
    assert value["level"] == "D"
    assert value["facts"]["bwrap"] is None


@pytest.mark.root
def test_root_is_refused_unless_configured(trusted: bytes, state: Path) -> None:
    facts = probe(trusted, os.fsencode(state))
    assert facts.namespaces
    assert told(facts)[1] == 3
    text, code = told(facts, Policy(allow_root=True))
    assert code == 0
    assert text.startswith("Level C: ")
