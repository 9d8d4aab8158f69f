# SPDX-License-Identifier: Apache-2.0
"""A control group outlives a caller that is killed; the next start removes it, and nobody else's."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.leftovers import control_groups, state_problems, within
from tests.support import Ground
from unspill.host.cgroup import Group, make_group, sweep_groups
from unspill.host.probe import probe_cgroup
from unspill.model.policy import Limits

# Only root may make groups on every machine
pytestmark = [pytest.mark.kernel, pytest.mark.root]

KILLED = """
import os, sys
from unspill import Policy, Sandbox, Started
def on_event(event):
    if isinstance(event, Started):
        os.kill(os.getpid(), 9)
policy = Policy(bwrap=os.fsencode(sys.argv[2]), allow_root=True)
Sandbox(sys.argv[1], policy=policy).run("sleep 1000", on_event=on_event)
"""


def made(run: str) -> Group:
    group = make_group(probe_cgroup().kind, run, Limits())
    assert group is not None
    return group


@pytest.fixture
def foreign() -> Iterator[Group]:
    """The group of somebody else's run that is about to begin."""
    group = made("somebody-else")
    yield group
    group.remove()


def test_the_next_start_removes_the_group_of_a_killed_caller(ground: Ground, foreign: Group) -> None:
    before = control_groups()
    done = subprocess.run([sys.executable, "-c", KILLED, ground.project, ground.bwrap], check=False, timeout=30)
    assert done.returncode == -9
    left = set(control_groups()) - set(before)
    assert left
    assert ground.sandbox(allow_root=True).run("true").ok
    assert control_groups() == before
    assert all("control groups" in problem for problem in state_problems(ground.state))


def test_who_is_still_alive_in_the_group_of_a_dead_run_is_killed(foreign: Group) -> None:
    group = made("dead-run")
    with subprocess.Popen(["sleep", "1000"]) as survivor:
        for member in group.member_files():
            Path(os.fsdecode(member)).write_text(f"{survivor.pid}")
        sweep_groups(probe_cgroup().kind, ["dead-run"])
        assert within(1, lambda: survivor.poll() == -9)
    sweep_groups(probe_cgroup().kind, ["dead-run"])
    assert [path for path in control_groups() if "dead-run" in path] == []
    assert [path for path in control_groups() if "somebody-else" in path] != []
