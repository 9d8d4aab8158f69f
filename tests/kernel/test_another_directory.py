# SPDX-License-Identifier: Apache-2.0
"""Another directory where the project was: what is held is not applied to it, and nothing is undone in it."""

import os

import pytest

from tests.support import Ground
from unspill.errors import RootRefused

pytestmark = pytest.mark.kernel


def exchange(ground: Ground) -> None:
    """Put another directory in the project's place, with a file of the same name."""
    ground.project.rename(ground.home / "moved")
    ground.project.mkdir()
    (ground.project / "file").write_text("another's\n")


def put_back(ground: Ground) -> None:
    (ground.project / "file").unlink()
    ground.project.rmdir()
    (ground.home / "moved").rename(ground.project)


def test_what_is_held_stays_held_until_the_project_is_back(ground: Ground) -> None:
    ground.write("file", "old\n")
    assert ground.run("echo new > file; echo made > made").held
    exchange(ground)
    for _ in range(2):
        # In this process, and in the next one
        with pytest.raises(RootRefused):
            ground.sandbox().apply()
    assert os.listdir(ground.project) == ["file"]
    put_back(ground)
    assert ground.sandbox().apply().changed == 2
    assert (ground.project / "file").read_text() == "new\n"


def test_a_sandbox_that_holds_nothing_goes_on_with_the_new_directory(ground: Ground) -> None:
    ground.run("true")
    exchange(ground)
    assert ground.run("echo new > file").held
    assert ground.sandbox().apply().changed == 1
    assert (ground.project / "file").read_text() == "new\n"


def test_after_a_discard_the_sandbox_is_the_new_directorys(ground: Ground) -> None:
    assert ground.run("echo made > made").held
    exchange(ground)
    assert ground.sandbox().discard().number == 1
    assert ground.run("echo new > file", after="apply").operation is not None
    assert (ground.project / "file").read_text() == "new\n"


def test_nothing_is_undone_in_another_directory(ground: Ground) -> None:
    ground.write("gone", "old\n")
    assert ground.run("rm gone", after="apply").operation is not None
    exchange(ground)
    with pytest.raises(RootRefused):
        ground.sandbox().undo()
    assert os.listdir(ground.project) == ["file"]
    put_back_and_undo(ground)


def put_back_and_undo(ground: Ground) -> None:
    put_back(ground)
    ground.sandbox().undo()
    assert (ground.project / "gone").read_text() == "old\n"


def test_a_run_whose_project_is_exchanged_meanwhile_is_held(ground: Ground) -> None:
    ground.write("file", "old\n")
    sandbox = ground.sandbox()
    started: list[object] = []

    def swap(event: object) -> None:
        if type(event).__name__ == "OutputChunk" and not started:
            started.append(event)
            exchange(ground)

    result = sandbox.run("echo new > made; echo go; sleep 0.3", after="apply", on_event=swap)
    assert result.ok
    assert result.held
    assert result.operation is None
    assert "another directory" in result.problem
    assert os.listdir(ground.project) == ["file"]
