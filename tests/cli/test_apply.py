# SPDX-License-Identifier: Apache-2.0
"""`apply`, `discard`, `undo`, `redo`, `show`, and `run` that applies: what a person sees, and what is still held."""

import base64
import json
import os
import socket
import subprocess

import pytest

from tests.kernel.terminal_person import at_terminal
from tests.support import Ground, kinds, run_cli

pytestmark = pytest.mark.kernel

EDITED = "it changed in the project during or after the run"


def typed(ground: Ground, *words: str, code: int = 0, cwd: str = ".") -> tuple[str, str]:
    """Run the program in the project; return what it printed."""
    done = run_cli(*words, cwd=ground.project / cwd)
    assert done.returncode == code, done.stderr.decode()
    return done.stdout.decode(), done.stderr.decode()


def agree(ground: Ground, *words: str, cwd: str = ".") -> str:
    """Run the program on a terminal and say yes to what it asks; return what was seen after that."""
    code, seen = at_terminal(*words, cwd=ground.project / cwd, answer="y\n")
    assert code == 0, seen
    return seen.rpartition("anything else = Deny] y\n")[2]


def hold(ground: Ground, script: str) -> None:
    assert ground.sandbox().run(script).ok


def listing(ground: Ground) -> list[str]:
    return sorted(os.listdir(ground.project))


def events_of(ground: Ground, *words: str) -> list[tuple[str, int, str, str, str]]:
    """Run the program with --events; return what it wrote there, without the exact names."""
    file = ground.top / "events"
    file.unlink(missing_ok=True)
    typed(ground, words[0], "--events", os.fspath(file), *words[1:])
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        assert os.fsdecode(base64.b64decode(line["path_b64"])) == line["path"]
    top = f"{ground.project}/"
    return [
        (line["event"], line["operation"], line["kind"], line["path"].removeprefix(top), line["now"]) for line in lines
    ]


def test_events_name_each_path_that_is_applied_or_undone(ground: Ground) -> None:
    ground.write("edited", "1\n")
    ground.write("old/file", "x\n")
    script = "echo 2 > edited; rm -r old; mkdir dir; touch dir/new; ln -s edited link"
    assert events_of(ground, "run", "-q", "-c", script) == [
        ("applied", 1, "apply", "dir", "dir"),
        ("applied", 1, "apply", "dir/new", "file"),
        ("applied", 1, "apply", "edited", "file"),
        ("applied", 1, "apply", "link", "symlink"),
        ("applied", 1, "apply", "old", "gone"),
        ("applied", 1, "apply", "old/file", "gone"),
    ]
    undone = {path: (event, now) for event, _op, _kind, path, now in events_of(ground, "undo")}
    gone = ("undone", "gone")
    back = {"edited": ("undone", "file"), "old": ("undone", "dir"), "old/file": ("undone", "file")}
    assert undone == {"dir": gone, "dir/new": gone, "link": gone, **back}
    assert [(event, kind) for event, _op, kind, path, _now in events_of(ground, "redo") if path == "old"] == [
        ("applied", "redo")
    ]
    assert events_of(ground, "run", "-q", "--hold", "-c", "echo 3 > edited") == []
    assert events_of(ground, "apply") == [("applied", 4, "apply", "edited", "file")]
    assert events_of(ground, "restore", "edited") == [("applied", 5, "restore", "edited", "file")]


def test_events_go_to_a_descriptor_that_the_command_does_not_have(ground: Ground) -> None:
    """Of a socket too, which has no name that could be opened. Control: a descriptor that is not open is refused."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        number = theirs.fileno()
        words = ["run", "--events", str(number), "-c", "ls -l /proc/self/fd > seen"]
        done = run_cli(*words, cwd=ground.project, pass_fds=(number,))
        assert done.returncode == 0, done.stderr
        theirs.close()
        assert [json.loads(line)["path"] for line in ours.makefile()] == [f"{ground.project}/seen"]
    assert "socket" not in (ground.project / "seen").read_text()
    _stdout, stderr = typed(ground, "undo", "--events", "99", code=2)
    assert stderr.startswith("unspill: --events can't be written: 99: Bad file descriptor\n")
    assert (ground.project / "seen").exists()


def test_events_that_can_not_be_written_do_not_break_the_run(ground: Ground) -> None:
    """Control: they can, and nothing is said."""
    _stdout, stderr = typed(ground, "run", "--events", "/dev/full", "-c", "touch a")
    assert "unspill: `on_change` or `--events` failed after op 1: OSError: " in stderr
    assert listing(ground) == ["a"]
    assert "on_change" not in typed(ground, "run", "--events", "/dev/null", "-c", "touch b")[1]


def test_a_run_applies_and_says_how_to_take_it_back(ground: Ground) -> None:
    ground.write("edited", "1\n")
    ground.write("gone", "x\n")
    stdout, stderr = typed(ground, "run", "-c", "echo 2 > edited; rm gone; echo y > new; echo said")
    assert stdout == "said\n"
    assert stderr.splitlines() == [
        "unspill: 1 added, 1 modified, 1 deleted. Applied as op 1. Undo: unspill undo",
        "  M edited",
        "  D gone",
        "  A new",
    ]
    assert listing(ground) == ["edited", "new"]
    stdout, stderr = typed(ground, "undo")
    assert (stdout.splitlines(), stderr) == (
        ["Undid op 1 (3 changes), recorded as op 2. Redo: unspill redo", "  M edited", "  A gone", "  D new"],
        "",
    )
    assert listing(ground) == ["edited", "gone"]
    assert typed(ground, "redo")[0].splitlines()[0] == "Redid op 1 (3 changes), recorded as op 3. Undo: unspill undo"
    assert listing(ground) == ["edited", "new"]


def test_a_run_applies_whatever_its_exit_code(ground: Ground) -> None:
    _stdout, stderr = typed(ground, "run", "-c", "touch new; exit 3", code=3)
    assert "Applied as op 1" in stderr
    assert listing(ground) == ["new"]


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("", "Held in sandbox"),
        ('after_timeout = "apply"', "Applied as op 1"),
        ('after_timeout = "discard"', "Discarded"),
    ],
)
def test_what_a_timeout_cut_short_is_held_unless_the_person_says_otherwise(
    ground: Ground, setting: str, says: str
) -> None:
    ground.configure(setting)
    _stdout, stderr = typed(ground, "run", "--timeout", "0.5", "-c", "touch new; sleep 60", code=124)
    assert says in stderr
    assert listing(ground) == (["new"] if "Applied" in says else [])


def test_the_options_of_run_win_over_the_setting(ground: Ground) -> None:
    ground.configure('after = "hold"')
    assert "Applied as op 1" in typed(ground, "run", "--apply", "--", "touch", "a")[1]
    assert "Held in sandbox" in typed(ground, "run", "--", "touch", "b")[1]
    assert "Discarded" in typed(ground, "run", "--discard", "--", "touch", "c")[1]
    assert listing(ground) == ["a"]
    done = run_cli("run", "--hold", "--apply", "true", cwd=ground.project)
    assert b"--apply and --hold can't be used together" in done.stderr


def test_what_needs_consent_is_named_with_what_to_type(ground: Ground) -> None:
    _stdout, stderr = typed(ground, "run", "-c", "echo x > .envrc; echo 'all:' > Makefile; touch plain")
    assert stderr.splitlines() == [
        "unspill: 2 added. Applied as op 1. Undo: unspill undo",
        "  ! Review before use: Makefile (runs when you build)",
        "  A Makefile",
        "  A plain",
        "unspill: 1 path was not applied and is held in sandbox 'default':",
        "  ! .envrc: held: direnv runs it when you enter the directory",
        "      unspill apply --include .envrc@ec841b",
        "  To discard held changes: unspill discard PATH",
    ]
    assert listing(ground) == ["Makefile", "plain"]
    # It is still the sandbox's, so the next command sees it
    assert typed(ground, "run", "--", "cat", ".envrc")[0] == "x\n"
    stdout, stderr = typed(ground, "apply", code=6)
    assert stdout == "Nothing was applied.\n"
    assert stderr.splitlines()[0] == "unspill: 1 path is still held:"
    assert agree(ground, "apply", "--include", ".envrc").splitlines() == [
        "Applied 1 change (op 2). Undo: unspill undo",
        "  A .envrc",
    ]
    assert listing(ground) == [".envrc", "Makefile", "plain"]


def test_consent_to_a_directory_is_consent_to_what_was_changed_in_it(ground: Ground) -> None:
    hold(ground, "mkdir .vscode; echo 1 > .vscode/tasks.json; echo 2 > .vscode/settings.json; touch other")
    agree(ground, "apply", "--include", ".vscode")
    assert sorted(os.listdir(ground.project / ".vscode")) == ["settings.json", "tasks.json"]
    # Nothing else was chosen, so nothing else was applied
    assert kinds(ground.sandbox().changes()) == {"other": "added"}


def test_a_conflict_is_left_alone_and_can_be_decided_either_way(ground: Ground) -> None:
    ground.write("one", "old\n")
    # What is no text can't be merged
    ground.write("two", "old\0\n")
    hold(ground, "echo ours > one; echo ours > two; touch free")
    for name in ("one", "two"):
        ground.write(name, "theirs\n")
    stdout, stderr = typed(ground, "apply", code=6)
    assert stdout.splitlines() == ["Applied 1 change (op 1). Undo: unspill undo", "  A free"]
    assert stderr.splitlines() == [
        "unspill: 2 paths are still held:",
        "  ! one: conflict: you and the run changed the same lines: line 1",
        "      unspill apply --theirs one (the run's lines), --ours one (yours) or --markers one (both)",
        f"  ! two: conflict: {EDITED}",
        "      unspill diff two, then unspill apply --overwrite two or unspill discard two",
    ]
    assert "-theirs\n+ours\n" in typed(ground, "diff", "one")[0]
    typed(ground, "apply", "--overwrite", "one")
    assert typed(ground, "discard", "two")[0] == "Discarded 1 held change (op 3). Undo: unspill undo\n  M two\n"
    assert [(ground.project / name).read_text() for name in ("one", "two")] == ["ours\n", "theirs\n"]
    assert typed(ground, "changes")[0] == "Nothing is held.\n"
    # Overwriting is an operation like any other
    typed(ground, "undo", "op2")
    assert (ground.project / "one").read_text() == "theirs\n"


def test_a_conflict_inside_a_deleted_directory_can_be_overwritten_by_its_own_name(ground: Ground) -> None:
    ground.write("dir/file", "old\n")
    hold(ground, "rm -r dir")
    ground.write("dir/file", "theirs\n")
    _stdout, stderr = typed(ground, "apply", code=6)
    assert "unspill apply --overwrite dir/file" in stderr
    typed(ground, "apply", "--overwrite", "dir/file")
    assert listing(ground) == []


def test_undo_leaves_what_was_changed_since_and_says_how_to_get_at_it(ground: Ground) -> None:
    ground.write("file", "old\n")
    typed(ground, "run", "-c", "echo agent > file; touch other")
    ground.write("file", "person\n")
    stdout, stderr = typed(ground, "undo", code=6)
    assert stdout.splitlines() == ["Undid op 1 (1 change), recorded as op 2. Redo: unspill redo", "  D other"]
    assert stderr.splitlines() == [
        "unspill: 1 path was skipped:",
        "  ! file: conflict: you changed the same lines since: line 1",
        "      unspill diff --op op1 file, then unspill restore file --from op1",
    ]
    assert (ground.project / "file").read_text() == "person\n"
    typed(ground, "restore", "file", "--from", "op1")
    assert (ground.project / "file").read_text() == "old\n"
    typed(ground, "undo")
    assert (ground.project / "file").read_text() == "person\n"


def test_undo_of_an_older_operation(ground: Ground) -> None:
    for name in ("a", "b"):
        typed(ground, "run", "-q", "--", "touch", name)
    for word in ("op1", "run2"):
        typed(ground, "undo", word)
    assert listing(ground) == []
    _stdout, stderr = typed(ground, "undo", "op1", code=2)
    assert "op 3 already undid op 1" in stderr
    assert "unspill redo op1" in stderr
    typed(ground, "redo", "op1")
    assert listing(ground) == ["a"]
    _stdout, stderr = typed(ground, "redo", "op3", code=2)
    assert "op 5 already redid what op 3 undid" in stderr
    assert "unspill undo op5" in stderr
    typed(ground, "undo", "op5")
    assert listing(ground) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("undo",), "there is nothing to undo"),
        (("redo",), "there is nothing to redo"),
        (("undo", "op5"), "no such operation: 5"),
        (("undo", "five"), "no such run or operation: 'five'"),
        (("redo", "1", "2"), "too many arguments: 2"),
        (("apply", "missing"), "missing has no changes"),
        (("apply", "--glob", "*.x"), "no change matches *.x"),
        (("apply", "--hunk", "file"), "--hunk needs PATH:N"),
        (("apply", "--hunk", "file:"), "--hunk needs PATH:N"),
        (("apply", "--hunk", "file:x"), "--hunk needs PATH:N"),
        (("apply", "--hunk", "file:999999999999"), "there is no hunk 999999999999"),
        (("apply", "--run", "9"), "no such run: 9"),
        (("discard", "missing"), "missing has no changes"),
        (("restore",), "no file given"),
        (("restore", "missing"), "there is no backup of 'missing'"),
        (("restore", "/etc/passwd"), "is not inside the project"),
        (("diff", "--op", "9"), "no such operation: 9"),
        (("diff", "--op", "1", "--run", "1"), "--run and --op can't be used together"),
        (("show", "op9"), "no such operation: 9"),
    ],
)
def test_a_wrong_word_changes_nothing(ground: Ground, words: tuple[str, ...], message: str) -> None:
    ground.write("file", "1\n")
    hold(ground, "echo 2 > file")
    stdout, stderr = typed(ground, *words, code=2)
    assert stdout == ""
    assert stderr.startswith("unspill: ")
    assert message in stderr
    assert kinds(ground.sandbox().changes()) == {"file": "modified"}


def test_nothing_is_held(ground: Ground) -> None:
    assert typed(ground, "apply") == ("Nothing is held.\n", "")
    assert ground.sandbox().operations() == ()


def test_paths_globs_and_hunks_choose_as_seen_from_where_the_person_stands(ground: Ground) -> None:
    ground.write(".unspill.toml")
    ground.write("sub/text", "".join(f"{number}\n" for number in range(1, 31)))
    hold(ground, "sed -i 's/^2$/two/; s/^25$/25!/' sub/text; touch sub/a.py sub/b.py top.py other")
    assert "hunk 2" in typed(ground, "diff", "text", cwd="sub")[0]
    agree(ground, "apply", "--hunk", "text:2", cwd="sub")
    assert "25!" in (ground.project / "sub" / "text").read_text()
    assert "two" not in (ground.project / "sub" / "text").read_text()
    typed(ground, "apply", "--glob", "*.py", cwd="sub")
    assert sorted(os.listdir(ground.project / "sub")) == ["a.py", "b.py", "text"]
    assert not (ground.project / "top.py").exists()
    typed(ground, "apply", "../top.py", cwd="sub")
    assert typed(ground, "discard", "--hunk", "text:1", cwd="sub")[0] == (
        "Discarded 1 held change (op 4). Undo: unspill undo\n  M text\n"
    )
    assert kinds(ground.sandbox().changes()) == {"other": "added"}
    typed(ground, "discard", "--glob", "**")
    assert typed(ground, "changes")[0] == "Nothing is held.\n"


def test_remedies_are_typed_where_the_person_stands(ground: Ground) -> None:
    ground.write(".unspill.toml")
    ground.write("sub/x")
    _stdout, stderr = typed(ground, "run", "-c", "echo x > .envrc; cd ..; echo x > .envrc", cwd="sub")
    assert "  ! ../.envrc: held" in stderr
    assert "  ! .envrc: held" in stderr
    assert "      unspill apply --include .envrc@" in stderr
    assert f"      unspill apply --include {ground.project}/.envrc@" in stderr


NAMES = (
    "sp ace/.envrc",
    "do$(touch pwned)/.envrc",
    "qu'ote/.envrc",
    "-dash/.envrc",
    "esc\033[31m/.envrc",
    "nl\n/.envrc",
)


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_remedy_can_be_pasted_whatever_the_name(ground: Ground, name: str) -> None:
    directory = os.path.dirname(name)
    result = ground.sandbox().run(["sh", "-c", 'mkdir -- "$1" && echo x > "./$1/.envrc"', "sh", directory])
    assert result.ok
    _stdout, stderr = typed(ground, "apply", code=6)
    assert "\033" not in stderr
    (remedy,) = [line for line in stderr.splitlines() if line.startswith("      unspill")]
    code, seen = at_terminal("-c", remedy, cwd=ground.project, answer="y\n", program="/bin/bash")
    assert code == 0, seen
    assert (ground.project / name).read_text() == "x\n"
    assert not (ground.project / "pwned").exists()


def test_apply_of_one_run(ground: Ground) -> None:
    hold(ground, "touch a")
    hold(ground, "touch b")
    hold(ground, "echo x > a")
    _stdout, stderr = typed(ground, "apply", "--run", "3", code=2)
    assert "another held run changed 'a' too" in stderr
    typed(ground, "apply", "--run", "2")
    assert listing(ground) == ["b"]
    assert ground.sandbox().operations()[0].runs == (ground.sandbox().find_run(2).id,)


def test_log_has_runs_and_operations_by_time(ground: Ground) -> None:
    typed(ground, "run", "-q", "-c", "touch a; echo x > .envrc")
    typed(ground, "undo")
    typed(ground, "run", "-q", "--", "true")
    lines = typed(ground, "log")[0].splitlines()
    assert [line.split()[0] for line in lines] == ["run2", "run1"]
    assert "  no change " in lines[0]
    assert "  2 changed, op1 undone  " in lines[1]
    lines = typed(ground, "log", "--all")[0].splitlines()
    assert [line.split()[0] for line in lines] == ["run2", "op2", "op1", "run1"]
    assert lines[1].split()[2:] == ["undo", "1", "changed", "of", "op", "1"]
    assert lines[2].split()[2:] == ["apply", "1", "changed,", "1", "skipped,", "undone", "of", "run", "1"]
    assert len(typed(ground, "log", "--all", "--limit", "3")[0].splitlines()) == 3
    value = json.loads(typed(ground, "log", "--json")[0])
    assert [run["number"] for run in value["runs"]] == [2, 1]
    assert [(one["number"], one["kind"]) for one in value["operations"]] == [(2, "undo"), (1, "apply")]
    assert value["operations"][0]["of"] == value["operations"][1]["operation"]


@pytest.mark.parametrize("later", ["nothing", "undo", "another run", "the person"])
def test_diff_of_an_operation_is_the_same_whatever_came_later(ground: Ground, later: str) -> None:
    ground.write("file", "old\n")
    ground.write("gone", "gone\n")
    (ground.project / "link").symlink_to("file")
    typed(ground, "run", "-q", "-c", "echo new > file; rm gone; ln -sfn gone link; mkdir -m 700 d; echo in > d/inner")
    first = typed(ground, "diff", "--op", "op1")[0]
    assert "modified file\n--- a/file\n+++ b/file\n@@ -1 +1 @@\n-old\n+new\n" in first
    assert "deleted gone\n--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n" in first
    assert "modified link\n-> file  [old target]\n-> gone  [new target]\n" in first
    assert "added d\nadded d/inner\n--- /dev/null\n+++ b/d/inner\n@@ -0,0 +1 @@\n+in\n" in first
    if later == "undo":
        typed(ground, "undo")
        assert "-new\n+old\n" in typed(ground, "diff", "--op", "op2")[0]
    elif later == "another run":
        typed(ground, "run", "-q", "-c", "echo newer > file; rm link; rm -r d")
    elif later == "the person":
        ground.write("file", "person\n")
    assert typed(ground, "diff", "--op", "op1")[0] == first
    assert typed(ground, "diff", "--op", "op1", "gone")[0].startswith("deleted gone\n")
    assert typed(ground, "diff", "--op", "op1", "nothing")[0] == ""


def test_json_of_operations(ground: Ground) -> None:
    hold(ground, "touch a; echo x > .envrc")
    value = json.loads(typed(ground, "apply", "--json", code=6)[0])
    assert (value["number"], value["kind"], value["ending"], value["changed"]) == (1, "apply", "done", 1)
    assert [(left["path"], left["why"]) for left in value["left"]] == [(".envrc", "held")]
    assert json.loads(typed(ground, "undo", "--json")[0])["of"] == value["operation"]
    assert json.loads(typed(ground, "redo", "--json")[0])["kind"] == "redo"
    assert json.loads(typed(ground, "discard", "--json", ".envrc")[0]) == {
        "discarded_changes": 1,
        "operation": 4,
    }
    run = json.loads(typed(ground, "run", "--json", "-c", "rm a; echo 'all:' > Makefile")[0])
    assert run["operation"]["number"] == 5
    assert [flag["path"] for flag in run["flagged"]] == ["Makefile"]
    assert (run["held"], run["problem"]) == (False, "")
    assert json.loads(typed(ground, "restore", "a", "--json")[0])["kind"] == "restore"


def test_another_root_is_always_named(ground: Ground) -> None:
    library = ground.home / "library"
    library.mkdir()
    ground.configure('roots = ["~/library"]')
    _stdout, stderr = typed(ground, "run", "-c", f"touch {library}/new; echo x > {library}/.envrc")
    assert stderr.splitlines() == [
        "unspill: 1 added. Applied as op 1. Undo: unspill undo",
        f"  in {library}:",
        "  A new",
        "unspill: 1 path was not applied and is held in sandbox 'default':",
        f"  ! {library}/.envrc: held: direnv runs it when you enter the directory",
        f"      unspill apply --include {library}/.envrc@ec841b",
        "  To discard held changes: unspill discard PATH",
    ]
    assert "added .envrc\n" in at_terminal("diff", f"{library}/.envrc", cwd=ground.project)[1]
    typed(ground, "apply", "--include", f"{library}/.envrc@ec841b")
    assert sorted(os.listdir(library)) == [".envrc", "new"]


def test_a_commit_is_one_line(ground: Ground) -> None:
    script = "git init -q -b main . && git config user.name x && git config user.email x@example.org"
    subprocess.run(["sh", "-c", script], cwd=ground.project, check=True)
    ground.write("file", "x\n")
    _stdout, stderr = typed(ground, "run", "-c", "git add . && git commit -qm one")
    head, line = stderr.splitlines()
    assert head.endswith("Applied as op 1. Undo: unspill undo")
    assert line == "  git: new main"
    assert "note: git: new main\n" in typed(ground, "show", "op1")[0]
    typed(ground, "undo")
    _stdout, stderr = typed(ground, "run", "--hold", "-c", "git add . && git commit -qm one")
    assert stderr.splitlines()[-1].startswith("  . .git/: ")


def test_show_of_an_operation(ground: Ground) -> None:
    ground.write("file", "old\n")
    typed(ground, "run", "-q", "-c", "echo new > file; touch exe; chmod 4755 exe; echo x > .envrc")
    lines = typed(ground, "show", "op1")[0].splitlines()
    assert lines[0].startswith("op 1 (")
    assert lines[0].endswith("): apply of run 1, done")
    assert lines[1].endswith("requested by: run")
    flagged = "  ! Review before use: exe (lets others on this machine write to it or run it as you)"
    assert lines[2:7] == ["changes:", "1 added, 1 modified", flagged, "  A exe", "  M file"]
    assert lines[7] == "note: exe: set-user-id, set-group-id and sticky bits are not applied"
    assert lines[8:10] == ["skipped:", "  ! .envrc: held: direnv runs it when you enter the directory"]
    operation = ground.sandbox().operations()[0]
    assert typed(ground, "show", operation.id)[0].splitlines() == lines
    value = json.loads(typed(ground, "show", "op1", "--json")[0])
    assert (value["number"], value["changed"], value["asked_by"]) == (1, 2, "run")
    assert [(left["path"], left["why"]) for left in value["left"]] == [(".envrc", "held")]
    # A number alone is a run's
    assert typed(ground, "show", "run1")[0].startswith("run 1 (")


def test_show_of_a_run_says_what_became_of_its_changes(ground: Ground) -> None:
    typed(ground, "run", "-q", "-c", "touch a b")
    typed(ground, "undo")
    typed(ground, "run", "-q", "--hold", "-c", "touch c d")
    typed(ground, "apply", "c")
    typed(ground, "apply")
    typed(ground, "run", "-q", "--discard", "-c", "touch e")
    typed(ground, "run", "-q", "-c", "true")
    last = [typed(ground, "show", f"run{run}")[0].splitlines()[-1] for run in "1234"]
    assert last.pop().startswith("started: "), "of a run without changes there is nothing to tell"
    assert last == [
        "changed 2 paths: applied by op 1 (unspill show op1)",
        "changed 2 paths: applied by op 3 (unspill show op3), op 4 (unspill show op4)",
        "changed 1 path: no operation on record applied them",
    ]


def test_a_number_alone_is_refused_with_what_it_may_mean(ground: Ground) -> None:
    typed(ground, "run", "-q", "-c", "touch a b")
    typed(ground, "undo")
    for verb, number, meant in (
        ("show", "2", "op2: undo."),
        ("undo", "1", 'run1: /bin/sh -c "touch a b"; op1: apply.'),
    ):
        _stdout, stderr = typed(ground, verb, number, code=2)
        assert stderr.splitlines() == [
            f"unspill: {number} alone may be a run or an operation",
            f"  Say which. {meant}",
        ]


def test_what_git_keeps_for_itself_is_one_line_of_an_apply_too(ground: Ground) -> None:
    git = "git -c user.email=a@example.org -c user.name=A"
    typed(ground, "run", "-q", "-c", "git init -q . && touch a && git add a")
    typed(ground, "run", "-q", "--hold", "-c", f"touch b; {git} commit -qm one")
    lines = typed(ground, "apply")[0].splitlines()
    assert lines[1] == "  A b"
    assert lines[2] == "  git: new master"
    assert len(lines) == 3
    assert [line[:9] for line in typed(ground, "undo")[0].splitlines()[1:]] == ["  D b", "  git: ma"]


HIDDEN = "unspill: This run does not see .git: held changes delete it. To see it: unspill discard .git"


def on_hold(stderr: str) -> list[str]:
    """Return the line that says what is on hold, and what is listed below it."""
    lines = stderr.splitlines()
    first = next((index for index, line in enumerate(lines) if "Still held" in line), len(lines))
    return lines[first:]


@pytest.fixture
def wiped(ground: Ground) -> Ground:
    """A repository in which a run has deleted everything: the files are gone, that `.git` goes is held."""
    subprocess.run(["git", "init", "-q", ground.project], check=True)
    ground.write("file", "x\n")
    stderr = typed(ground, "run", "-c", "rm -rf ./* ./.[a-z]*")[1]
    assert "! .git: held: " in stderr
    assert stderr.endswith("  To discard held changes: unspill discard PATH\n")
    return ground


def test_an_undo_takes_away_what_the_run_left_held_and_a_redo_brings_it_back(wiped: Ground) -> None:
    stdout, stderr = typed(wiped, "undo")
    assert stdout.splitlines() == ["Undid op 1 (1 change), recorded as op 2. Redo: unspill redo", "  A file"]
    assert on_hold(stderr) == []
    assert typed(wiped, "changes")[0].startswith("Nothing is held.")
    typed(wiped, "redo")
    assert not (wiped.project / "file").exists()
    assert "D .git/" in typed(wiped, "changes")[0]


def test_a_run_that_does_not_see_git_says_so_before_it_starts(wiped: Ground) -> None:
    lines = typed(wiped, "run", "--", "git", "status", code=128)[1].splitlines()
    assert lines[0] == HIDDEN
    assert lines[1].startswith("fatal: not a git repository")
    (wiped.project / "below").mkdir()
    assert f"unspill discard {wiped.project}/.git" in typed(wiped, "run", "--", "true", cwd="below")[1]
    result = wiped.sandbox().run("true")
    assert any(note.startswith("This run does not see .git") for note in result.warnings)
    typed(wiped, "discard", ".git")
    assert typed(wiped, "run", "--", "git", "status", "--short")[1] == ""


def test_a_run_that_sees_everything_says_nothing(ground: Ground) -> None:
    ground.write("file", "x\n")
    typed(ground, "run", "-q", "--hold", "-c", "echo y > file; touch new; rm new")
    assert typed(ground, "run", "--", "true")[1] == ""


def test_what_is_deleted_and_made_again_is_seen(ground: Ground) -> None:
    ground.write("file", "x\n")
    typed(ground, "run", "-q", "--hold", "-c", "rm file")
    assert "does not see file:" in typed(ground, "run", "--", "true")[1]
    typed(ground, "run", "-q", "--hold", "-c", "echo again > file")
    assert typed(ground, "run", "--", "true")[1] == ""


def test_a_part_that_was_not_applied_is_named(ground: Ground) -> None:
    typed(ground, "run", "-q", "--hold", "-c", "echo 1 > a; echo 2 > b")
    said = ["unspill: Still held, visible to later runs: 1 added. Discard: unspill discard b", "  A b"]
    assert on_hold(typed(ground, "apply", "a")[1]) == said
    assert on_hold(typed(ground, "apply")[1]) == []


def test_an_undo_of_an_apply_says_that_its_changes_are_on_hold_again(ground: Ground) -> None:
    typed(ground, "run", "-q", "--hold", "-c", "echo 1 > a")
    typed(ground, "apply")
    said = ["unspill: Still held, visible to later runs: 1 added. Discard: unspill discard a", "  A a"]
    assert on_hold(typed(ground, "undo")[1]) == said
    assert on_hold(typed(ground, "redo")[1]) == []


def test_a_project_that_can_be_listed_but_not_entered_is_refused_in_words(ground: Ground) -> None:
    ground.write("file", "x\n")
    typed(ground, "run", "-q", "--hold", "-c", "rm file; chmod 644 .")
    stderr = typed(ground, "run", "--", "true", code=125)[1]
    assert "the working directory can't be entered" in stderr
    assert "`unspill discard`" in stderr


def test_what_is_proposed_is_about_the_sandbox_that_it_is_told_of(ground: Ground) -> None:
    ground.write("f", "old\n")
    held = "--sandbox b --include .envrc@"
    assert held in run_cli("run", "--sandbox", "b", "-c", "echo 1 > .envrc", cwd=ground.project).stderr.decode()
    told = run_cli("apply", "--sandbox", "b", cwd=ground.project).stderr.decode()
    assert held in told
    assert "unspill discard --sandbox b PATH" in told
    # Control: of the usual one nothing is said
    told = run_cli("run", "-c", "echo 1 > .envrc", cwd=ground.project).stderr.decode()
    assert "unspill apply --include .envrc@" in told
