# SPDX-License-Identifier: Apache-2.0
"""Help texts and the parts of the command line that need no sandbox."""

import pytest

from tests.support import Ground, run_cli
from unspill import __version__
from unspill.cli.main import VERBS

pytestmark = pytest.mark.kernel


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("help",)])
def test_the_overview_names_every_verb(ground: Ground, words: tuple[str, ...]) -> None:
    done = run_cli(*words, cwd=ground.project)
    assert done.returncode == 0
    text = done.stdout.decode()
    assert text.startswith("unspill: run anything, spill nothing")
    assert all(f"\n  {verb} " in text for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_verb_explains_itself(ground: Ground, verb: str, flag: str) -> None:
    done = run_cli(verb, flag, cwd=ground.project)
    assert done.returncode == 0
    assert done.stderr == b""
    lines = done.stdout.decode().splitlines()
    assert lines[0].startswith(f"usage: unspill {verb} [options]")
    assert lines[1] == lines[3] == ""
    assert lines[2].endswith(".")
    options = "\n".join(lines[4:])
    for option in ("--project DIR", "--sandbox NAME", "--json", "--help"):
        assert option in options
    assert max(map(len, lines)) <= 120


def test_the_version(ground: Ground) -> None:
    done = run_cli("--version", cwd=ground.project)
    assert done.stdout.decode() == f"unspill {__version__}\n"


def test_help_needs_neither_a_state_directory_nor_a_project(ground: Ground) -> None:
    done = run_cli("run", "--help", cwd=ground.home, variables={"UNSPILL_STATE_DIR": "relative"})
    assert done.returncode == 0


def test_a_state_directory_that_is_relative_is_refused(ground: Ground) -> None:
    done = run_cli("changes", cwd=ground.project, variables={"UNSPILL_STATE_DIR": "relative"})
    assert done.returncode == 2
    assert b"UNSPILL_STATE_DIR is not an absolute path" in done.stderr


def test_a_state_directory_that_others_may_read_is_refused(ground: Ground) -> None:
    ground.state.chmod(0o755)
    done = run_cli("changes", cwd=ground.project)
    assert done.returncode == 7
    assert done.stdout == b""
