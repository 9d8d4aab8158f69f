# SPDX-License-Identifier: Apache-2.0
"""`changes`, `diff`, `discard`, `log` and `show`: what they print for people and as JSON, in repositories as well."""

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import Ground, kinds, run_cli
from unspill import SandboxFiles
from unspill.sandbox.files import SandboxTree, verb_of

pytestmark = pytest.mark.kernel


@pytest.fixture
def held(ground: Ground) -> Ground:
    """A project with two runs held over it."""
    ground.write("edited", "one\ntwo\nthree\n")
    ground.write("removed", "gone\n")
    ground.write("dir/inner", "x\n")
    sandbox = ground.sandbox()
    sandbox.run("sed -i s/two/2/ edited; rm removed; ln -s /etc/passwd out")
    sandbox.run(
        "printf 'new\\n' > 'sp ace'; chmod 600 dir/inner; head -c 100 /dev/zero > binary; echo said; echo bad >&2"
    )
    return ground


def text_of(ground: Ground, *words: str, code: int = 0) -> str:
    done = run_cli(*words, cwd=ground.project)
    assert done.returncode == code, done.stderr
    return done.stdout.decode()


def test_changes_lists_what_is_held(held: Ground) -> None:
    assert text_of(held, "changes").splitlines() == [
        "3 added, 1 modified, 1 deleted, 1 with changed metadata",
        "  A binary",
        "  m dir/inner  [mode 644 to 600]",
        "  M edited",
        "  A out -> /etc/passwd  [points outside the project]",
        "  D removed",
        '  A "sp ace"',
    ]


def test_changes_of_one_run(held: Ground) -> None:
    assert text_of(held, "changes", "--run", "1").splitlines()[1:] == [
        "  M edited",
        "  A out -> /etc/passwd  [points outside the project]",
        "  D removed",
    ]
    assert text_of(held, "changes", "--run=2").splitlines()[0] == "2 added, 1 with changed metadata"


def test_changes_where_nothing_is_held(ground: Ground) -> None:
    assert text_of(ground, "changes") == "Nothing is held.\n"
    run_cli("run", "--sandbox", "other", "--", "true", cwd=ground.project)
    assert text_of(ground, "changes", "--sandbox", "other") == "Nothing is held.\n"
    assert text_of(ground, "diff") == ""


def test_changes_as_json_has_the_bytes(held: Ground) -> None:
    value = json.loads(text_of(held, "changes", "--json"))
    (root,) = value["roots"]
    assert root["root"] == str(held.project)
    by_path = {base64.b64decode(change["path_b64"]).decode(): change for change in root["changes"]}
    assert by_path["out"]["leads_out"] is True
    assert by_path["removed"]["kind"] == "deleted"
    assert {path: change["kind"] for path, change in by_path.items()} == kinds(held.sandbox().changes())


def test_diff_shows_lines(held: Ground) -> None:
    text = text_of(held, "diff", "edited", "removed")
    assert "--- a/edited\n+++ b/edited\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n" in text
    assert "deleted removed\n--- a/removed\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n" in text
    assert "binary" not in text
    whole = text_of(held, "diff")
    assert "(binary, new: 100 bytes, sha256 " in whole
    assert "-> /etc/passwd" in whole
    assert "[mode 644 to 600]" in whole


def test_diff_below_a_directory_and_of_one_run(held: Ground) -> None:
    assert text_of(held, "diff", "dir").splitlines() == ["metadata dir/inner  [mode 644 to 600]"]
    assert text_of(held, "diff", "dir/").splitlines() == ["metadata dir/inner  [mode 644 to 600]"]
    assert "edited" not in text_of(held, "diff", "--run", "2")
    assert text_of(held, "diff", "no-such-path") == ""


def test_diff_as_json(held: Ground) -> None:
    value = json.loads(text_of(held, "diff", "--json", "edited"))
    assert value["sandbox"] == "default"
    assert "+2" in value["diff"]


def test_a_diff_of_the_second_run_is_against_the_first(ground: Ground) -> None:
    ground.write("file", "live\n")
    sandbox = ground.sandbox()
    sandbox.run("echo first > file")
    sandbox.run("echo second > file")
    assert "-first\n+second\n" in text_of(ground, "diff", "--run", "2")
    assert "-live\n+first\n" in text_of(ground, "diff", "--run", "1")
    assert "-live\n+second\n" in text_of(ground, "diff")


def test_discard_lists_what_it_drops_and_undo_brings_it_back(held: Ground) -> None:
    listed = text_of(held, "changes").partition("\n")[2].replace("\n", "\n").rstrip()
    assert text_of(held, "discard") == f"Discarded 6 held changes (op 1). Undo: unspill undo\n{listed}\n"
    assert text_of(held, "discard") == "Nothing is held.\n"
    assert text_of(held, "changes") == "Nothing is held.\n"
    assert (held.project / "removed").exists()
    held.sandbox().run("touch x")
    assert json.loads(text_of(held, "discard", "--json")) == {"discarded_changes": 1, "operation": 2}
    held.sandbox("other").run("touch x")
    assert text_of(held, "discard", "--sandbox", "other").startswith("Discarded 1 held change (op 3).")
    assert ", discarded op1 " in text_of(held, "log")
    text_of(held, "undo", "op1")
    assert text_of(held, "changes").partition("\n")[2].rstrip() == listed


def test_help_never_does_the_deed(held: Ground) -> None:
    for words in (("--help",), ("--project", ".", "--help"), ("--sandbox=default", "-h")):
        assert text_of(held, "discard", *words).startswith("usage: unspill discard")
    assert kinds(held.sandbox().changes())


def test_log_lists_runs_the_youngest_first(held: Ground) -> None:
    held.sandbox().run("exit 7")
    held.sandbox().run("sleep 9", timeout=0.2)
    lines = text_of(held, "log").splitlines()
    assert [line.split()[0] for line in lines] == ["run4", "run3", "run2", "run1"]
    assert "timed out" in lines[0]
    assert "exit 7" in lines[1]
    assert "exit 0" in lines[2]
    assert "3 changed, held" in lines[3]
    assert "sed -i" in lines[3]
    assert len(text_of(held, "log", "--limit", "2").splitlines()) == 2
    assert run_cli("log", "--limit", "x", cwd=held.project).returncode == 2


def test_log_as_json(held: Ground) -> None:
    runs = json.loads(text_of(held, "log", "--json"))["runs"]
    assert [run["number"] for run in runs] == [2, 1]
    assert runs[0]["stdout"]["text"] == "said\n"
    assert runs[0]["outcome"] == {"kind": "Exited", "exit_code": 0, "code": 0}


def test_log_of_nothing(ground: Ground) -> None:
    assert text_of(ground, "log") == "No runs yet.\n"
    assert text_of(ground, "log", "--grep", "x") == ""


def test_show_tells_all_of_one_run(held: Ground) -> None:
    lines = text_of(held, "show", "run2").splitlines()
    assert lines[0].startswith("run 2 (")
    assert lines[0].endswith("in sandbox 'default': exit 0")
    assert lines[1].startswith("command: /bin/sh -c ")
    assert lines[2] == f"directory: {held.project}"
    assert re.fullmatch(r"started: [-0-9]+ [:0-9]+, took \d+\.\ds", lines[3])
    assert lines[4:8] == ["stdout: 5 bytes", "  said", "stderr: 4 bytes", "  bad"]
    assert lines[8:10] == ["changes:", "2 added, 1 with changed metadata"]
    by_id = held.sandbox().find_run(2).id
    assert text_of(held, "show", by_id).splitlines() == lines


def test_show_as_json(held: Ground) -> None:
    value = json.loads(text_of(held, "show", "--json", "run1"))
    assert (value["number"], value["held"], value["changed"]) == (1, True, 3)
    assert value["argv"][:2] == ["/bin/sh", "-c"]


def test_show_is_safe_to_print(ground: Ground) -> None:
    ground.sandbox().run(r"printf '\033]0;evil\007\377\n'; : '$(printf \033)'")
    done = run_cli("show", "run1", cwd=ground.project)
    assert b"\x1b" not in done.stdout
    assert b"\xff" not in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show",), "no run or operation given"),
        (("show", "99"), "no such run or operation: 99"),
        (("show", "run99"), "no such run: 99"),
        (("show", "nonsense"), "no such run or operation: 'nonsense'"),
        (("show", "1", "2"), "too many arguments: 2"),
        (("changes", "--run", "99"), "no such run: 99"),
        (("changes", "extra"), "too many arguments: extra"),
        (("changes", "--nope"), "unknown option --nope"),
        (("changes", "--run"), "--run needs a value: RUN"),
        (("changes", "--json=1"), "--json takes no value"),
        (("changes", "--run", "1", "--run", "2"), "--run was given twice"),
        (("diff", "--project", "/no/such/place"), "no such project directory"),
    ],
)
def test_a_wrong_word_is_a_usage_error_with_where_to_look(ground: Ground, words: tuple[str, ...], message: str) -> None:
    done = run_cli(*words, cwd=ground.project)
    assert done.returncode == 2
    assert done.stdout == b""
    lines = done.stderr.decode().splitlines()
    assert message in lines[0]
    assert lines[0].startswith("unspill: ")
    assert len(lines) == 2


def test_a_run_of_another_sandbox_is_not_found(held: Ground) -> None:
    run = held.sandbox().find_run(1).id
    done = run_cli("show", "--sandbox", "other", run, cwd=held.project)
    assert done.returncode == 2


def test_what_was_discarded_is_said_so(held: Ground) -> None:
    held.sandbox().discard()
    done = run_cli("changes", "--run", "1", cwd=held.project)
    assert done.returncode == 2
    assert b"run 1 has no held changes" in done.stderr
    assert "changes:" not in text_of(held, "show", "run1")


def test_output_into_a_closed_pipe_is_quiet(held: Ground) -> None:
    done = subprocess.run(
        ["bash", "-c", "unspill diff | true; unspill log | head -1 >/dev/null"],
        cwd=held.project,
        capture_output=True,
        check=False,
    )
    assert done.stderr == b""


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
    assert [line.split()[0] for line in lines] == ["run2", "run1", "and"]
    assert lines[0].endswith(f"  write {read.inside()}/a b")
    assert lines[1].endswith('"echo first"')
    assert lines[2] == "and 9 file reads (list with --all)"


def test_they_take_no_line_of_others(read: Ground) -> None:
    """Control: with all of them, the last two are reads."""
    assert [line.split()[0] for line in lines_of(read, "--limit", "2")] == ["run2", "run1", "and"]
    assert [line.split()[0] for line in lines_of(read, "--limit", "2", "--all")] == ["run11", "run10"]


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
    assert [line.split()[0] for line in lines_of(ground)] == ["run4", "run3", "run2", "and"]
    assert [verb_of(run) for run in sandbox.runs()] == [None, None, None, f"list {ground.inside()}"]


IDENTITY = "[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n"
LEFT = 6


def person(ground: Ground, script: str) -> str:
    """Run a script outside, as the person."""
    done = subprocess.run(["sh", "-ec", script], cwd=ground.project, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def repository(ground: Ground) -> Ground:
    """A project with two branches, in which a run has committed to `main`."""
    (ground.home / ".gitconfig").write_text(IDENTITY)
    ground.write("a", "1\n")
    ground.write("b", "1\n")
    person(ground, "git init -q; git add -A; git commit -qm Begin; git branch old")
    return ground


def commit_inside(ground: Ground) -> None:
    done = run_cli("run", "-c", "echo 2 >> a; git commit -qam Agent", cwd=ground.project)
    assert done.returncode == 0, done.stderr


def undo(ground: Ground, code: int = LEFT) -> str:
    done = run_cli("undo", cwd=ground.project)
    assert done.returncode == code, done.stderr
    return done.stdout.decode() + done.stderr.decode()


def test_an_undo_after_your_own_commit_names_the_branch_and_a_command_that_undoes_the_runs_commit(
    repository: Ground,
) -> None:
    commit_inside(repository)
    person(repository, "echo 2 >> b; git commit -qam Mine")
    said = undo(repository)
    (line,) = [line for line in said.splitlines() if ".git" in line]
    begin, command = line.split(", git ")
    assert begin == (
        "  ! .git: conflict: you moved main since, so git stays as it is; to undo its commits: "
        "commit your files as they are now, or `unspill redo`"
    )
    assert re.fullmatch(r"revert [0-9a-f]{7}\.\.[0-9a-f]{7}", command)
    # Both ways end with the same files, and a clean tree
    person(repository, "cp -a . ../other; cd ../other; git commit -qam Undone")
    assert run_cli("redo", cwd=repository.project).returncode == 0
    person(repository, f"git {command} --no-edit")
    for where in (".", "../other"):
        assert person(repository, f"cd {where}; cat a b") == "1\n1\n2\n"
        assert person(repository, f"cd {where}; git status --porcelain") == ""


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "git switch -q old",
            "you switched to another branch since, so git stays as it is; "
            + "to undo it too: switch back, `unspill undo op1`",
        ),
        (
            "echo x > c; git add c",
            "you staged something since, so git stays as it is; to undo it too: unstage it, `unspill undo op1`",
        ),
    ],
)
def test_an_undo_that_leaves_git_says_what_you_did_and_is_possible_afterwards(
    repository: Ground, script: str, words: str
) -> None:
    done = run_cli("run", "-c", "git commit -q --allow-empty -m Agent", cwd=repository.project)
    assert done.returncode == 0, done.stderr
    person(repository, script)
    assert undo(repository).splitlines() == [
        "Did not undo op 1.",
        "unspill: 1 path was skipped:",
        f"  ! .git: conflict: {words}",
    ]
    person(repository, "git reset -q; git switch -q main")
    assert "git: main" in undo(repository, code=0)
    assert person(repository, "git log --format=%s") == "Begin\n"


def test_what_an_undo_says_to_do_after_you_staged_something_undoes_git_too(repository: Ground) -> None:
    commit_inside(repository)
    person(repository, "echo x > c; git add c")
    assert "to undo it too: `unspill redo`, unstage it, `unspill undo op1`" in undo(repository)
    assert run_cli("redo", cwd=repository.project).returncode == 0
    person(repository, "git reset -q")
    assert run_cli("undo", "op1", cwd=repository.project).returncode == 0
    assert person(repository, "git log --format=%s; cat a; git status --porcelain") == "Begin\n1\n?? c\n"


def test_an_undo_says_whose_changes_it_undid_where_a_newer_run_is_held(ground: Ground) -> None:
    for words in (("--", "touch", "old"), ("--hold", "--", "touch", "new")):
        assert run_cli("run", *words, cwd=ground.project).returncode == 0
    assert undo(ground, code=0).splitlines()[-2:] == [
        "  That undid the changes of run 1: touch old",
        "  Run 2 is newer, and its changes are held. Discard them: unspill discard",
    ]


def test_a_branch_that_a_run_deleted_is_named_where_it_stays(repository: Ground) -> None:
    script = "git branch -D old >&2; git tag made; echo ready; read line"
    program = [os.fspath(Path(sys.executable).with_name("unspill")), "run", "-c", script]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        program, cwd=repository.project, text=True, stdin=pipe, stdout=pipe, stderr=pipe
    ) as running:  # fmt: skip
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        person(repository, "echo 2 >> a; git commit -qam Mine")
        _stdout, stderr = running.communicate("go on\n", timeout=30)
    lines = [line.strip() for line in stderr.splitlines()]
    assert "git: the run deleted old. You still have it; to delete it too:" in lines
    command = lines[lines.index("git: the run deleted old. You still have it; to delete it too:") + 1]
    assert command == "git branch -D old"
    person(repository, command)
    assert person(repository, "git branch --format='%(refname:short)'") == "main\n"
