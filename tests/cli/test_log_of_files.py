# SPDX-License-Identifier: Apache-2.0
"""`unspill log` where an agent has read many files: each is a run, and none of them hides what else was done."""

import json

import pytest

from tests.support import Ground, run_cli
from unspill import SandboxFiles
from unspill.sandbox.files import SandboxTree, verb_of

pytestmark = pytest.mark.kernel


@pytest.fixture
def read(ground: Ground) -> Ground:
    """A project in which one command was run, one file written, and the rest is looks at files."""
    sandbox = ground.sandbox()
    files = SandboxFiles(sandbox)
    sandbox.run("echo first")
    files.write("a b", "x\ny\n")
    for _time in range(3):
        files.read("a b")
        files.read_lines("a b")
        files.list()
    return ground


def lines_of(ground: Ground, *words: str) -> list[str]:
    done = run_cli("log", *words, cwd=ground.project)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().splitlines()


def test_reads_are_counted_in_one_line(read: Ground) -> None:
    lines = lines_of(read)
    assert [line.split()[0] for line in lines] == ["2", "1", "and"]
    assert lines[0].endswith(f"  write {read.inside()}/a b")
    assert lines[1].endswith('"echo first"')
    assert lines[2] == "and 9 file reads (list with --all)"


def test_they_take_no_line_of_others(read: Ground) -> None:
    """Control: with all of them, the last two are reads."""
    assert [line.split()[0] for line in lines_of(read, "--limit", "2")] == ["2", "1", "and"]
    assert [line.split()[0] for line in lines_of(read, "--limit", "2", "--all")] == ["11", "10"]


def test_all_of_them_are_there_and_readable(read: Ground) -> None:
    lines = lines_of(read, "--all")
    assert len(lines) == 11
    assert lines[0].endswith(f"  list {read.inside()}")
    assert lines[1].endswith(f"  read {read.inside()}/a b")


def test_json_has_the_count(read: Ground) -> None:
    value = json.loads("\n".join(lines_of(read, "--json")))
    assert [run["number"] for run in value["runs"]] == [2, 1]
    assert value["file_reads"] == 9
    everything = json.loads("\n".join(lines_of(read, "--json", "--all")))
    assert len(everything["runs"]) == 11
    assert everything["file_reads"] == 0


def test_one_read_is_told_as_one(ground: Ground) -> None:
    ground.write("a", "x")
    SandboxFiles(ground.sandbox()).read("a")
    assert lines_of(ground) == ["and 1 file read (list with --all)"]


def test_looks_at_the_tree_are_reads_too_and_changes_of_it_have_their_names(ground: Ground) -> None:
    tree = SandboxTree(ground.sandbox())
    tree.make_directory("made")
    tree.look("made")
    tree.exists("made")
    tree.directories(".", [b"made"])
    tree.real_path("made")
    tree.remove("made")
    lines = [line.rpartition("  ")[2] for line in lines_of(ground) if " op " not in line]
    assert lines == [
        f"remove {ground.inside()}/made",
        f"make {ground.inside()}/made",
        "and 4 file reads (list with --all)",
    ]
    names = [line.rpartition("  ")[2].split()[0] for line in lines_of(ground, "--all") if " op " not in line]
    assert names == ["remove", "real", "directories", "exists", "look", "make"]


def test_no_other_command_can_hide_among_them(ground: Ground) -> None:
    """Only the very text of our script is one, whatever a command calls itself."""
    sandbox = ground.sandbox()
    SandboxFiles(sandbox).list()
    script = sandbox.runs()[0].argv[2]
    sandbox.run(["/bin/sh", "-c", "echo harm > harm", "unspill-list", "."])
    sandbox.run(["/bin/sh", "-c", b"echo harm > harm\n" + script, "unspill-list", "/", "1", "10"])
    sandbox.run(["/bin/sh", "-c", script + b"\necho harm > harm", "unspill-list", "/", "1", "10"])
    assert [line.split()[0] for line in lines_of(ground)] == ["4", "3", "2", "and"]
    assert [verb_of(run) for run in sandbox.runs()] == [None, None, None, f"list {ground.inside()}"]
