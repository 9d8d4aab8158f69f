# SPDX-License-Identifier: Apache-2.0
"""A command without a sandbox, as far as no other test of it reaches."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from unspill.model.policy import Limits
from unspill.model.run import Cancelled, Exited, RunId
from unspill.runner.plain import perform_plainly
from unspill.runner.watch import RunControl

MANY = 1100


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2 * MANY), before[1]))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(MANY)]
    yield
    for fd in opened:
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_descriptors")
def test_it_runs_for_a_caller_that_has_more_than_1024_descriptors(tmp_path: Path) -> None:
    control = RunControl(run=RunId("1"), spill_dir=os.fsencode(tmp_path / "spill"))
    performed = perform_plainly((b"/bin/echo", b"x"), b"/", {}, Limits(), control)
    assert performed.outcome == Exited(code=0)
    assert performed.stdout.kept() == b"x\n"


@pytest.mark.parametrize("gives_up", [True, False])
def test_what_was_given_up_before_it_began_does_not_begin(tmp_path: Path, gives_up: bool) -> None:
    """Control: the same without giving up."""
    read_end, write_end = os.pipe()
    if gives_up:
        os.write(write_end, b"x")
    control = RunControl(run=RunId("1"), spill_dir=os.fsencode(tmp_path / "spill"), cancel_fd=read_end)
    made = tmp_path / "made"
    performed = perform_plainly((b"/bin/mkdir", os.fsencode(made)), b"/", {}, Limits(), control)
    os.close(read_end)
    os.close(write_end)
    assert performed.outcome == (Cancelled() if gives_up else Exited(code=0))
    assert made.exists() is not gives_up
