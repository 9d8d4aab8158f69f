# SPDX-License-Identifier: Apache-2.0
"""Container mode: only configured, only in a container, only where no sandbox can be made.

That none can be made is real: a filter or a namespace takes away what bubblewrap needs. The container is made up by
the variable that a hosted workspace sets; `--full` runs the mode in a real one.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kernel.masked_host import MASKS
from tests.support import Ground
from unspill import Policy
from unspill.errors import BwrapUnsafe, HostError, NamespacesForbidden
from unspill.sandbox.project import find_container
from unspill.store.db import Store

pytestmark = pytest.mark.kernel

MARK = {"CODESPACES": "true"}
CONFIGURED = 'container = true\nafter = "apply"\n'


def unspill(
    ground: Ground, *words: str, masks: tuple[str, ...] = ("no-more-namespaces",), **more: str
) -> "subprocess.CompletedProcess[str]":
    """Run the program where bubblewrap can't work, in a made-up container."""
    wrapper = [sys.executable, os.fspath(MASKS), *masks, "--"] if masks else []
    program = os.fspath(Path(sys.executable).with_name("unspill"))
    return subprocess.run(
        [*wrapper, program, *words],
        cwd=ground.project,
        env={**os.environ, **MARK, "API_TOKEN": "a secret value", **more},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.bwrap
@pytest.mark.parametrize("masks", [("no-more-namespaces",), ("covered-proc",)])
def test_a_command_runs_in_the_container_with_a_new_environment(ground: Ground, masks: tuple[str, ...]) -> None:
    ground.configure(CONFIGURED)
    done = unspill(ground, "run", "--", "sh", "-c", "pwd; env; echo made > file", masks=masks)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == os.fspath(ground.project)
    assert f"HOME={ground.project}" in lines
    assert f"PIP_TARGET={ground.project}/.packages" in lines
    assert "a secret value" not in done.stdout
    assert "container mode" in done.stderr
    assert (ground.project / "file").read_text() == "made\n"


def test_the_playground_is_where_its_word_says(ground: Ground) -> None:
    ground.configure(CONFIGURED)
    place = json.loads(unspill(ground, "playground", "--json").stdout)["playground"]
    for given in ("playground", os.fspath(ground.home / "playground")):
        done = unspill(ground, "run", "--working-dir", given, "-c", "pwd; echo kept >> note")
        assert (done.returncode, done.stdout) == (0, f"{place}\n"), done.stderr
    assert Path(place, "note").read_text() == "kept\nkept\n"


@pytest.mark.bwrap
def test_it_is_never_chosen_by_itself(ground: Ground) -> None:
    done = unspill(ground, "run", "--", "touch", "file")
    assert done.returncode == 125
    assert "no sandbox can be made here" in done.stderr
    assert not (ground.project / "file").exists()


@pytest.mark.bwrap
@pytest.mark.parametrize("mask", ["forbidden-namespaces", "no-more-processes", "no-more-memory"])
def test_a_shortage_of_the_moment_does_not_take_the_sandbox_away(ground: Ground, mask: str) -> None:
    """The control is what is forbidden, and so will be in the next moment."""
    ground.configure(CONFIGURED)
    with Store.open(os.fsencode(ground.state)) as store:
        store.facts.forget()
    done = unspill(ground, "run", "--", "touch", "file", masks=(mask,))
    is_forbidden = mask == "forbidden-namespaces"
    assert done.returncode == (0 if is_forbidden else 125), done.stderr
    assert ("container mode" if is_forbidden else "no sandbox can be made here") in done.stderr
    assert (ground.project / "file").exists() is is_forbidden


def test_a_project_can_not_choose_it(ground: Ground) -> None:
    ground.write(".unspill.toml", "container = true\n")
    done = unspill(ground, "run", "--", "touch", "file")
    assert done.returncode != 0
    assert not (ground.project / "file").exists()


@pytest.mark.bwrap
def test_where_a_sandbox_works_it_is_used_although_the_mode_is_configured(ground: Ground) -> None:
    secret = ground.home / "secret"
    secret.write_text("a secret file")
    ground.configure(CONFIGURED)
    command = ["run", "--", "sh", "-c", f"cat {secret}; true"]
    sealed = unspill(ground, *command, masks=())
    assert sealed.returncode == 0
    assert "container mode" not in sealed.stderr
    assert "a secret file" not in sealed.stdout
    assert "a secret file" in unspill(ground, *command).stdout


def test_it_is_refused_without_a_container_with_a_made_up_root(ground: Ground) -> None:
    error = NamespacesForbidden("no sandbox can be made here: a reason", remedy="A remedy.")
    policy = Policy(container=True, bwrap=os.fsencode(ground.top / "no-bwrap"))
    with Store.open(os.fsencode(ground.state)) as store:
        with pytest.raises(HostError, match="no container was detected") as refused:
            find_container(store, policy, (), error, environ={}, top=os.fspath(ground.top))
        assert "a reason" in refused.value.remedy
        assert find_container(store, policy, (), error, environ=MARK, top=os.fspath(ground.top))[1] == "codespaces"


@pytest.mark.bwrap
def test_a_bubblewrap_that_somebody_may_have_changed_is_not_passed_over(ground: Ground) -> None:
    with Store.open(os.fsencode(ground.state)) as store, pytest.raises(BwrapUnsafe):
        find_container(store, Policy(container=True), (), BwrapUnsafe("setuid"), environ=MARK)


def test_the_run_is_recorded_as_one_without_a_sandbox(ground: Ground) -> None:
    ground.configure(CONFIGURED)
    done = unspill(ground, "run", "--json", "--", "sh", "-c", "exit 3")
    result = json.loads(done.stdout)
    assert done.returncode == 3
    assert result["sandboxed"] is False
    assert any("can't be undone" in warning for warning in result["warnings"])
    assert "not sandboxed" in unspill(ground, "log").stdout
    assert "WITHOUT a sandbox" in unspill(ground, "audit").stdout


def test_time_is_bounded(ground: Ground) -> None:
    ground.configure(CONFIGURED)
    done = unspill(ground, "run", "--timeout", "0.5", "--", "sleep", "60")
    assert done.returncode == 124


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--hold",), "can't keep changes apart"),
        (("--discard",), "can't keep changes apart"),
        (("--network",), "has the whole container"),
        (("--unsandboxed",), "has the whole container"),
        (("--explain",), "container mode has no sandbox"),
    ],
)
def test_what_only_a_sandbox_could_give_is_refused(ground: Ground, options: tuple[str, ...], said: str) -> None:
    ground.configure(CONFIGURED)
    done = unspill(ground, "run", *options, "--", "touch", "file")
    assert done.returncode != 0
    assert said in done.stderr
    assert not (ground.project / "file").exists()


def test_doctor_says_that_it_is_weaker(ground: Ground) -> None:
    assert unspill(ground, "doctor").returncode == 3
    ground.configure(CONFIGURED)
    done = unspill(ground, "doctor")
    assert done.returncode == 0
    assert done.stdout.startswith("Level C: ")
    assert "Container mode: commands run WITHOUT a sandbox" in done.stdout
    assert "It has no effect" in unspill(ground, "doctor", masks=()).stdout
