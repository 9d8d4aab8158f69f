# SPDX-License-Identifier: Apache-2.0
"""`unspill doctor` as a person calls it; what it finds is tested where it is found."""

import json
import os

import pytest

from tests.support import Ground, run_cli

pytestmark = [pytest.mark.kernel, pytest.mark.bwrap]


def test_it_says_the_level_and_every_fact(ground: Ground) -> None:
    done = run_cli("doctor", cwd=ground.project)
    assert done.returncode == 0
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith(("Level A: ", "Level B: "))
    assert os.fsdecode(ground.bwrap) in done.stdout.decode()


def test_as_json(ground: Ground) -> None:
    done = run_cli("doctor", "--json", cwd=ground.project)
    value = json.loads(done.stdout)
    assert value["level"] in ("A", "B")
    assert value["facts"]["namespaces"] is True
    assert value["project"] is None


def test_with_a_project_it_looks_through_it(ground: Ground) -> None:
    (ground.project / "out").symlink_to("/etc")
    done = run_cli("doctor", ground.project, cwd=ground.home)
    assert "symlinks that point outside the project" in done.stdout.decode()
    value = json.loads(run_cli("doctor", "--json", ground.project, cwd=ground.home).stdout)
    assert [finding["kind"] for finding in value["findings"]] == ["link-out"]


def test_it_renews_what_runs_remember(ground: Ground) -> None:
    assert run_cli("doctor", cwd=ground.project).returncode == 0
    assert run_cli("run", "--", "true", cwd=ground.project).returncode == 0


def test_a_wrong_setting_is_named(ground: Ground) -> None:
    ground.configure("nonsense = 1\n")
    done = run_cli("doctor", cwd=ground.project)
    assert done.returncode == 2
    assert b"nonsense" in done.stderr


def test_without_bwrap_nothing_runs_and_both_say_what_to_install(ground: Ground) -> None:
    ground.configure(f'bwrap = "{ground.top}/bwrap"\n')
    done = run_cli("doctor", cwd=ground.project)
    assert done.returncode == 3
    assert done.stdout.startswith(b"Level D: ")
    done = run_cli("run", "--", "touch", "file", cwd=ground.project)
    assert done.returncode == 125
    assert b"bubblewrap" in done.stderr
    assert list(ground.project.iterdir()) == []


def test_inside_flatpak_it_says_so(ground: Ground) -> None:
    value = json.loads(run_cli("doctor", "--json", cwd=ground.project, variables={"FLATPAK_ID": "x"}).stdout)
    assert value["facts"]["flatpak"] is True


@pytest.mark.parametrize("word", ["/no/such/place", "--nope"])
def test_a_wrong_word_is_a_usage_error(ground: Ground, word: str) -> None:
    assert run_cli("doctor", word, cwd=ground.project).returncode == 2
