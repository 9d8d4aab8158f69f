# SPDX-License-Identifier: Apache-2.0
"""`status`, `sandboxes`, `forget` and `adopt`, and how `files` folds what nobody reads file by file."""

import json
import os
import pty
import shutil
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.prepared import PROGRAM
from tests.support import Ground, run_cli
from unspill.errors import SandboxUnavailable
from unspill.layers.lifecycle import sweep
from unspill.sandbox import projects
from unspill.store.db import Store

pytestmark = pytest.mark.kernel


def told(ground: Ground, *words: str, cwd: Path | None = None, code: int = 0) -> str:
    done = run_cli(*words, cwd=cwd or ground.project)
    assert done.returncode == code, done
    return (done.stdout if code == 0 else done.stderr).decode()


def value_of(ground: Ground, *words: str, cwd: Path | None = None) -> dict[str, object]:
    found: dict[str, object] = json.loads(told(ground, *words, "--json", cwd=cwd))
    return found


def git(directory: Path, *words: str) -> str:
    identity = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    done = subprocess.run(["git", *identity, *words], cwd=directory, capture_output=True, check=True, text=True)
    return done.stdout


@pytest.fixture
def used(ground: Ground) -> Ground:
    """A project with two operations, one of them of a repository, and changes held in two sandboxes."""
    ground.write("a", "one\n")
    ground.write(".gitignore", "build/\n")
    git(ground.project, "init", "-q", "-b", "main")
    git(ground.project, "add", ".")
    git(ground.project, "commit", "-q", "-m", "first")
    (ground.home / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    told(ground, "run", "-q", "-c", "echo two >> a; mkdir -p build/x; touch build/x/1 build/2; git commit -qam second")
    told(ground, "run", "-q", "-c", "echo b > b")
    told(ground, "run", "-q", "--hold", "-c", "echo held > held; echo three >> a")
    told(ground, "run", "-q", "--hold", "--sandbox", "other", "-c", "echo o > other")
    return ground


def renamed(ground: Ground) -> Path:
    return ground.project.rename(ground.project.with_name("renamed"))


def everything_in(state: Path) -> list[str]:
    """Return what a state directory has besides the database, its copies and the audit, which name no content."""
    parts = ("layers", "work", "runs", "operations", "pending", "bases", "locks")
    return [f"{part}/{name}" for part in parts for name in os.listdir(state / part)]


def test_files_folds_what_git_has_for_itself_and_what_it_ignores_unless_that_is_asked_for(used: Ground) -> None:
    lines = told(used, "files").splitlines()
    named = [line.split("  ")[0] for line in lines if not line.startswith(" ")]
    assert named == [".git/", "a", "b", "build/"]
    assert "build/  (2 files, 0 bytes; ignored by git, list with --all)" in lines
    assert lines[0].endswith("; git's own, list with --all)")

    for words in (("--all",), ("build", ".git"), ("build/x", "build/2", ".git")):
        text = told(used, "files", *words)
        assert "build/x/1  (" in text
        assert "build/2  (" in text
        assert ".git/COMMIT_EDITMSG  (" in text
        assert "list with --all" not in text
    paths = [file["path"] for file in json.loads(told(used, "files", "--json"))["files"]]
    assert {"build/x/1", "build/2", ".git/COMMIT_EDITMSG"} <= set(paths)


def test_sandboxes_are_listed_with_what_they_hold(used: Ground) -> None:
    lines = told(used, "sandboxes").splitlines()
    assert [line.split()[:4] for line in lines] == [
        ["default", "holds", "2", "changes"],
        ["other", "holds", "1", "change"],
    ]
    assert "  3 runs  " in lines[0]
    assert "running" not in "".join(lines)
    told(used, "apply", "--sandbox", "other")
    assert "other    holds nothing" in told(used, "sandboxes")
    found = value_of(used, "sandboxes")
    assert [(one["name"], one["held"], one["runs"], one["running"]) for one in found["sandboxes"]] == [  # type: ignore[attr-defined]
        ("default", 2, 3, 0),
        ("other", 0, 1, 0),
    ]


def test_what_runs_is_in_the_list_and_in_the_status(used: Ground) -> None:
    told(used, "run", "-d", "-q", "--sandbox", "third", "--", "sleep", "1000")
    try:
        assert told(used, "sandboxes").splitlines()[-1].endswith("  1 running")
        assert "4, of which 1 going on now" not in told(used, "status")
        assert "5, of which 1 going on now (unspill ps)" in told(used, "status")
    finally:
        told(used, "stop", "third")
    assert "running" not in told(used, "sandboxes")


def test_status_is_one_screen_with_sums_and_what_to_do_next(used: Ground) -> None:
    lines = told(used, "status").splitlines()
    assert len(lines) <= 12
    fields = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines if not line.startswith(" ")}
    assert fields["project"] == os.fspath(used.project)
    assert fields["held"].startswith("2 changes (")
    assert fields["held"].endswith(" in sandbox 'other'")
    assert fields["last"].startswith("op2 (apply), ")
    assert fields["last"].endswith(", 1 changed")
    assert '          /bin/sh -c "echo b > b"' in lines
    assert fields["runs"] == "4"
    assert fields["disk"].endswith(f" in {used.state}")
    assert lines[-3:] == [
        "next      unspill diff                  review what is held",
        "          unspill diff --sandbox other  review what is held there",
        "          unspill undo                  undo op2",
    ]
    told(used, "discard")
    told(used, "discard", "--sandbox", "other")
    assert "held      nothing\n" in told(used, "status")


def test_status_of_a_directory_in_which_nothing_was_run_makes_no_sandbox_there(used: Ground) -> None:
    fresh = used.home / "fresh"
    fresh.mkdir()
    text = told(used, "status", cwd=fresh)
    assert "next      unspill run -- COMMAND  run something" in text
    assert value_of(used, "status", cwd=fresh)["here"]["sandboxes"] == []  # type: ignore[index]
    assert told(used, "status", cwd=used.home).startswith("project   none here\n")


def test_forget_says_what_goes_and_deletes_nothing_unless_told(used: Ground) -> None:
    before = everything_in(used.state)
    text = told(used, "forget", "--dry-run", ".")
    assert f"unspill keeps of {used.project}:\n" in text
    assert "changes held in sandbox 'default', which the project does not have: " in text
    assert "the undo of 2 operations: " in text
    assert "the record of 4 runs" in text
    assert "nobody could be asked" in told(used, "forget", ".", code=2)
    assert "no project given" in told(used, "forget", code=2)
    assert f"unspill keeps nothing of {used.home}" in told(used, "forget", os.fspath(used.home), code=2)
    assert everything_in(used.state) == before


def test_forget_deletes_all_that_is_kept_of_a_project_and_nothing_of_others(used: Ground) -> None:
    other = used.home / "other"
    other.mkdir()
    told(used, "run", "-q", "-c", "echo kept > file", cwd=other)
    told(used, "run", "-q", "--hold", "-c", "echo held > later", cwd=other)
    told(used, "files", cwd=other)
    told(used, "run", "-q", "--working-dir", "playground", "-c", "echo x > tried")
    playground = Path(value_of(used, "playground")["playground"])  # type: ignore[arg-type]
    files = {path: path.read_bytes() for path in used.project.rglob("*") if path.is_file()}
    assert (playground / "tried").exists()
    found = value_of(used, "forget", "--yes", ".")
    assert (found["runs"], found["operations"], found["dry_run"]) == (5, 2, False)
    assert not playground.exists()
    assert {path: path.read_bytes() for path in files} == files
    with closing(sqlite3.connect(used.state / "store.db")) as db:
        for table, column in (("sandboxes", "project"), ("operations", "project"), ("files", "project")):
            assert {os.fsdecode(row[0]) for row in db.execute(f"SELECT {column} FROM {table}")} == {os.fspath(other)}
        assert db.execute("SELECT count(*) FROM runs").fetchone() == (2,)
        assert {os.fsdecode(row[0]) for row in db.execute("SELECT root FROM texts")} == {os.fspath(other)}
    # Of the other project: an operation, a layer, and the lock of its sandbox
    kept = everything_in(used.state)
    assert sorted(name.split("/")[0] for name in kept) == ["layers", "locks", "locks", "operations"]
    assert "A later" in told(used, "changes", cwd=other)
    told(used, "undo", cwd=other)
    assert not (other / "file").exists()
    # It begins anew
    told(used, "run", "-q", "-c", "echo n > n")
    assert told(used, "log").startswith("run1 ")
    assert "op1" in told(used, "log")


def test_forget_takes_the_marks_of_operations_out_of_a_repository_that_was_renamed(used: Ground) -> None:
    told(used, "undo", "op1")
    place = renamed(used)
    told(used, "adopt", cwd=place)
    assert "refs/unspill" in git(place, "for-each-ref")
    told(used, "forget", "--yes", ".", cwd=place)
    assert "refs/unspill" not in git(place, "for-each-ref")
    git(place, "fsck", "--strict")


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"y\n", 0)])
def test_forget_asks_on_a_terminal(ground: Ground, answer: bytes, code: int) -> None:
    told(ground, "run", "-q", "-c", "echo a > a")
    master, slave = pty.openpty()
    words = [PROGRAM, "forget", "."]
    with subprocess.Popen(words, cwd=ground.project, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        shown = b""
        while not shown.endswith(b"[y/N] "):
            shown += os.read(master, 4096)
        os.write(master, answer)
        assert process.wait(20) == code
    os.close(master)
    assert b"the undo of 1 operation: " in shown
    assert (told(ground, "log") == "No runs yet.\n") == (code == 0)


@pytest.mark.parametrize("moment", ["remove_family", "clean", "remove_runs", "remove_tree", "_unlink"])
def test_what_a_killed_forget_left_is_deleted_by_the_next(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    sandbox = ground.sandbox()
    sandbox.run("echo a > a", after="apply")
    sandbox.run("echo held > held", after="hold")
    sandbox.close()
    state, data = os.fsencode(ground.state), os.fsencode(ground.home / ".local/share/unspill")
    project = os.fsencode(ground.project)
    with Store.open(state) as store:
        with monkeypatch.context() as patch:
            patch.setattr(projects, moment, killed)
            with pytest.raises(InterruptedError):
                projects.forget(store, data, project)
        if store.sandboxes.of_project(project):
            projects.forget(store, data, project)
        assert store.sandboxes.all() == ()
        assert store.operations.all() == ()
        # As at each start
        sweep(store)
    assert [name for name in everything_in(ground.state) if not name.startswith("locks/")] == []
    assert (ground.project / "a").read_text() == "a\n"
    assert ground.sandbox().run("cat a").stdout.kept() == b"a\n"


def killed(*_arguments: object) -> None:
    raise InterruptedError


def test_forget_works_for_a_project_that_is_gone(used: Ground) -> None:
    shutil.rmtree(used.project)
    assert f"Projects whose directory is gone: {used.project}." in told(used, "forget", "x", cwd=used.home, code=2)
    assert told(used, "forget", "--yes", os.fspath(used.project), cwd=used.home).startswith(f"Forgot {used.project}: ")
    assert everything_in(used.state) == []


def test_a_project_in_use_is_left_alone(used: Ground) -> None:
    told(used, "run", "-d", "-q", "--", "sleep", "1000")
    place = renamed(used)
    try:
        for words in (("forget", "--yes", os.fspath(used.project)), ("adopt",)):
            text = told(used, *words, cwd=place, code=5)
            assert text == "unspill: Background runs use the sandbox 'default'.\n  End them: unspill stop default\n"
    finally:
        place.rename(used.project)
        told(used, "stop", "default")


def test_a_sandbox_that_was_open_when_it_was_forgotten_runs_nothing_more(used: Ground) -> None:
    """Without the check its layers would have no sandbox, and nobody would find them again."""
    sandbox = used.sandbox()
    told(used, "forget", "--yes", ".")
    with pytest.raises(SandboxUnavailable, match="forgotten"):
        sandbox.run("echo lost > lost")
    assert used.sandbox().run("true").exit_code == 0


def test_after_a_rename_adopt_brings_held_changes_history_and_undo(used: Ground) -> None:
    place = renamed(used)
    done = run_cli("log", cwd=place)
    assert done.stdout == b"No runs yet.\n"
    assert f"This directory seems to have been {used.project}.".encode() in done.stderr
    assert b"unspill adopt" in done.stderr
    assert f"next      unspill adopt  this directory seems to have been {used.project}: " in told(
        used, "status", cwd=place
    )
    # Control: without adopting, nothing of it is there
    assert "Nothing is held." in told(used, "changes", cwd=place)
    assert "there is nothing to undo" in told(used, "undo", cwd=place, code=2)
    text = told(used, "adopt", cwd=place)
    assert text.startswith(f"Adopted {used.project}: 4 runs, 2 operations.\nHeld changes came along.")
    assert [line.split()[0] for line in told(used, "log", cwd=place).splitlines()] == ["run3", "run2", "run1"]
    assert told(used, "changes", cwd=place).splitlines()[1:] == ["  M a", "  A held"]
    assert "+two" in told(used, "diff", "op1", "a", cwd=place)
    assert [line.split()[0] for line in told(used, "log", "b", cwd=place).splitlines()] == ["run2"]
    told(used, "apply", cwd=place)
    assert (place / "a").read_text() == "one\ntwo\nthree\n"
    told(used, "undo", cwd=place)
    assert "A held" in told(used, "changes", cwd=place)
    told(used, "restore", "a", "--from", "op1", cwd=place)
    assert (place / "a").read_text() == "one\n"
    told(used, "undo", cwd=place)
    told(used, "undo", "op2", cwd=place)
    told(used, "undo", "op1", cwd=place)
    assert (place / "a").read_text() == "one\n"
    assert not (place / "b").exists()
    assert not (place / "build").exists()
    assert git(place, "log", "--format=%s") == "first\n"
    git(place, "fsck", "--strict")
    assert told(used, "changes", "--sandbox", "other", cwd=place).splitlines()[1:] == ["  A other"]
    assert b"This directory seems" not in run_cli("log", cwd=place).stderr


def test_what_was_done_at_the_new_path_meanwhile_is_counted_on(used: Ground) -> None:
    place = renamed(used)
    told(used, "run", "-q", "-c", "echo four >> a", cwd=place)
    told(used, "run", "-q", "-c", "echo five >> a; echo n > n", cwd=place)
    text = told(used, "adopt", cwd=place)
    assert "op1 is now op3" in text
    log = told(used, "log", cwd=place).splitlines()
    assert [line.split()[0] for line in log] == ["run5", "run4", "run3", "run2", "run1"]
    assert ["op4" in log[0], "op3" in log[1], "held" in log[2], "op2" in log[3], "op1" in log[4]] == [True] * 5
    for expected in ("one\ntwo\nfour\n", "one\ntwo\n"):
        told(used, "undo", cwd=place)
        assert (place / "a").read_text() == expected
    told(used, "apply", "held", cwd=place)
    assert (place / "held").read_text() == "held\n"
    told(used, "run", "-q", "-c", "echo six > six", cwd=place)
    assert "op8" in told(used, "log", "--limit", "1", cwd=place)
    files = [line for line in told(used, "files", "--all", "a", cwd=place).splitlines() if not line.startswith(" ")]
    assert len(files) == 1


def test_both_paths_hold_changes_so_neither_is_lost(used: Ground) -> None:
    place = renamed(used)
    told(used, "run", "-q", "--hold", "-c", "echo x > x", cwd=place)
    assert "sandbox 'default' holds changes of both paths" in told(used, "adopt", cwd=place, code=2)
    assert told(used, "changes", cwd=place).splitlines()[1:] == ["  A x"]
    told(used, "apply", cwd=place)
    told(used, "adopt", cwd=place)
    assert told(used, "changes", cwd=place).splitlines()[1:] == ["  M a", "  A held"]


def test_what_comes_along_with_adopt_is_merged_with_later_edits(used: Ground) -> None:
    place = renamed(used)
    told(used, "adopt", cwd=place)
    (place / "a").write_text("mine\none\ntwo\n")
    told(used, "apply", "a", cwd=place)
    assert (place / "a").read_text() == "mine\none\ntwo\nthree\n"


def test_a_project_that_is_still_there_is_not_adopted(used: Ground) -> None:
    copy = used.home / "copy"
    shutil.copytree(used.project, copy, symlinks=True)
    assert "does not know" in told(used, "adopt", cwd=copy, code=2)
    assert "still exists" in told(used, "adopt", os.fspath(used.project), cwd=copy, code=2)
    assert "is where the project is already" in told(used, "adopt", ".", code=2)
    assert "unspill keeps nothing of /nowhere" in told(used, "adopt", "/nowhere", code=2)


def test_a_copy_is_adopted_by_the_name_of_what_is_gone_and_no_undo_is_guessed(used: Ground) -> None:
    copy = used.home / "copy"
    shutil.copytree(used.project, copy, symlinks=True)
    shutil.rmtree(used.project)
    assert f"Gone are: {used.project}" in told(used, "adopt", cwd=copy, code=2)
    text = told(used, "adopt", os.fspath(used.project), cwd=copy)
    assert "It is another directory, perhaps a copy" in text
    assert "run3" in told(used, "log", cwd=copy)
    assert "A held" in told(used, "changes", cwd=copy)
    assert "is not the directory that the operation changed" in told(used, "undo", cwd=copy, code=2)
    assert (copy / "a").read_text() == "one\ntwo\n"
    told(used, "apply", "held", cwd=copy)
    assert (copy / "held").read_text() == "held\n"


def test_another_directory_at_the_old_path_does_not_stand_in_the_way(used: Ground) -> None:
    place = renamed(used)
    used.project.mkdir()
    told(used, "adopt", os.fspath(used.project), cwd=place)
    told(used, "undo", cwd=place)
    assert not (place / "b").exists()
    assert list(used.project.iterdir()) == []


def test_what_a_command_claimed_about_a_secret_stays_known_after_a_rename(ground: Ground) -> None:
    """Have a command make git track a secret: it stays hidden, at the new path too."""
    ground.write(".env", "SECRET=1\n")
    git(ground.project, "init", "-q", "-b", "main")
    (ground.home / ".gitconfig").write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    blob = git(ground.project, "hash-object", "-w", ".env").strip()
    told(ground, "run", "-q", "-c", f"git update-index --add --cacheinfo 100644,{blob},.env")
    assert git(ground.project, "ls-files") == ".env\n"
    assert run_cli("run", "-q", "-c", "cat .env", cwd=ground.project).returncode == 1
    place = renamed(ground)
    told(ground, "adopt", cwd=place)
    assert run_cli("run", "-q", "-c", "cat .env", cwd=place).returncode == 1
    told(ground, "forget", "--yes", ".", cwd=place)
    assert run_cli("run", "-q", "-c", "cat .env", cwd=place).returncode == 1
    # Control: what is known is why
    with closing(sqlite3.connect(ground.state / "store.db")) as db, db:
        db.execute("DELETE FROM trust")
    assert run_cli("run", "-q", "-c", "cat .env", cwd=place).returncode == 0
