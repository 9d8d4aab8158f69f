# SPDX-License-Identifier: Apache-2.0
"""Commands and files for frameworks: what is told of a command, what is refused, and what files are called by."""

import pytest

from tests.support import Ground, kinds, short
from unspill.adapters.files import Workspace, attempt, transfer
from unspill.errors import FileError, UsageError

pytestmark = pytest.mark.kernel


def test_what_is_printed_and_what_we_say_of_it_are_apart(ground: Ground) -> None:
    told = Workspace(ground.sandbox(after="discard")).run("printf out; printf err >&2; echo x > file; exit 3")
    assert (told.exit_code, told.printed) == (3, (b"out", b"err"))
    assert told.notes == ("Changes of run 1 (discarded):", "1 added", "  A file")
    said = "".join(f"[unspill] {note}\n" for note in told.notes)
    assert told.stderr == f"err\n{said}"
    assert told.noted_output() == f"{said}[unspill] Output:\nout\nerr"


def test_no_network_can_be_asked_for_where_only_a_command_is_given(ground: Ground) -> None:
    (note,) = Workspace(ground.sandbox()).run("echo Could not resolve host: example.org >&2; exit 6").notes
    assert note.startswith("Note: The network is off. ")
    assert "call again" not in note


def test_the_time_of_the_policy_is_the_longest(ground: Ground) -> None:
    sandbox = ground.sandbox(limits=short(wall_s=0.5))
    told = Workspace(sandbox).run_program(["sleep", "60"], env={}, timeout=3600, cancel_fd=None)
    assert (told.late_s, told.notes) == (0.5, ("Command timed out after 0.5s",))


@pytest.mark.parametrize(
    "path", [".", "PROJECT", "PROJECT/", "PROJECT/.", "PROJECT/sub/..", "/", "up/project", "sub/../../project"]
)
def test_the_project_and_what_it_lies_in_are_not_removed(ground: Ground, path: str) -> None:
    ground.write("sub/file", "x")
    (ground.project / "up").symlink_to("..")
    sandbox = ground.sandbox()
    files = Workspace(sandbox)
    with pytest.raises((UsageError, FileError)):
        files.remove(path.replace("PROJECT", ground.inside()))
    assert not sandbox.changes()
    # The control arm: what lies in it, and a link itself
    files.remove("sub")
    files.remove("up")
    assert set(kinds(sandbox.changes()).values()) == {"deleted"}
    assert files.entries(".") == ()


def test_each_thing_that_can_be_wrong_has_one_code(ground: Ground) -> None:
    ground.write("file", "one one\n")
    files = Workspace(ground.sandbox())
    missing, twice = attempt(files.read, "none")[1], attempt(files.edit, "file", "one", "two")[1]
    assert missing is not None
    assert missing.startswith("file_not_found: ")
    assert twice is not None
    assert twice.startswith("multiple occurrences: ")
    assert transfer(files.read, f"{ground.inside()}/none") == (None, "file_not_found")
    assert transfer(files.read, "file") == (None, "invalid_path")
    assert transfer(files.read, f"{ground.inside()}/file") == (b"one one\n", None)
