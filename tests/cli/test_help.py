# SPDX-License-Identifier: Apache-2.0
"""Help texts and the parts of the command line that need no sandbox, `unspill mcp` without its extra among them."""

import importlib.util
import json
import os
import subprocess
import sys

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


def test_without_the_extra_it_says_what_to_install(ground: Ground) -> None:
    assert importlib.util.find_spec("mcp") is None, "the package is tested without its extras"
    done = run_cli("mcp", cwd=ground.project)
    assert done.returncode == 2
    assert done.stdout == b"", "nothing that a client would take for an answer"
    assert done.stderr.decode().splitlines() == [
        "unspill: the extra `mcp` is not installed",
        f"  Run in a checkout of unspill: {sys.executable} -m pip install '.[mcp]'",
    ]


def test_the_settings_of_a_client_name_this_program_and_whole_paths(ground: Ground) -> None:
    words = ("--sandbox", "agent", "--also", "../other", "--ask", "queue", "--patience", "2", "--remember")
    (ground.home / "other").mkdir()
    done = run_cli("mcp", "--settings", *words, cwd=ground.project)
    server = json.loads(done.stdout)["mcpServers"]["unspill"]
    assert os.access(server["command"], os.X_OK)
    assert os.access(server["args"][2], os.X_OK)
    assert server["args"] == [
        *("-E", "-P", server["args"][2]),
        *("mcp", "--project", os.fspath(ground.project), "--also", os.fspath(ground.home / "other")),
        *("--sandbox", "agent", "--ask", "queue", "--patience", "2", "--remember"),
    ]


def test_the_settings_of_a_server_without_a_project_work_anywhere(ground: Ground) -> None:
    done = run_cli("mcp", "--settings", "--no-project", cwd=ground.home)
    assert json.loads(done.stdout)["mcpServers"]["unspill"]["args"][3:] == ["mcp", "--no-project"]
    for other in ("--project", "--also"):
        done = run_cli("mcp", "--settings", "--no-project", other, os.fspath(ground.project), cwd=ground.home)
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"can't be used together" in done.stderr


def test_settings_work_for_a_program_that_is_started_as_a_module(ground: Ground) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "unspill", "mcp", "--settings"], cwd=ground.project, capture_output=True, check=True
    )
    server = json.loads(done.stdout)["mcpServers"]["unspill"]
    started = subprocess.run([server["command"], *server["args"], "--ask", "x"], capture_output=True, check=False)
    assert started.stderr.startswith(b"unspill: --ask is not one of")


def test_settings_that_would_not_work_are_not_printed(ground: Ground) -> None:
    for words, problem in (
        (("--project", "nowhere"), f"no such project directory: '{ground.project}/nowhere'"),
        (("--also", "nowhere"), f"no such project directory: '{ground.project}/nowhere'"),
        (("--project", os.fspath(ground.home)), f"{ground.home} can't be a root: it is your home directory."),
    ):
        done = run_cli("mcp", "--settings", *words, cwd=ground.project)
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.decode().splitlines()[0] == f"unspill: {problem}"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--ask", "model"), "--ask is not one of client, queue, deny: 'model'"),
        (("--ask", "terminal"), "--ask is not one of client, queue, deny: 'terminal'"),
        (("--patience", "-1"), "--patience is not a number of seconds up to 600: -1"),
        (("--patience", "nan"), "--patience is not a number of seconds up to 600: nan"),
        (("--patience", "soon"), "--patience is not a number of seconds up to 600: soon"),
        (("word",), "too many arguments: word"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_loaded(ground: Ground, words: tuple[str, ...], problem: str) -> None:
    done = run_cli("mcp", *words, cwd=ground.project)
    assert done.returncode == 2
    assert done.stderr.decode().splitlines()[0] == f"unspill: {problem}"
