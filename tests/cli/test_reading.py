# SPDX-License-Identifier: Apache-2.0
"""`changes`, `diff`, `discard`, `log` and `show`: what they print for people, and as JSON."""

import base64
import json
import subprocess

import pytest

from tests.support import Ground, kinds, run_cli

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
    assert "  discard " in text_of(held, "log")
    text_of(held, "undo", "1")
    assert text_of(held, "changes").partition("\n")[2].rstrip() == listed


def test_help_never_does_the_deed(held: Ground) -> None:
    for words in (("--help",), ("--project", ".", "--help"), ("--sandbox=default", "-h")):
        assert text_of(held, "discard", *words).startswith("usage: unspill discard")
    assert kinds(held.sandbox().changes())


def test_log_lists_runs_the_youngest_first(held: Ground) -> None:
    held.sandbox().run("exit 7")
    held.sandbox().run("sleep 9", timeout=0.2)
    lines = text_of(held, "log").splitlines()
    assert [line.split()[0] for line in lines] == ["4", "3", "2", "1"]
    assert "TimedOut" in lines[0]
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
    assert text_of(ground, "log") == ""


def test_show_tells_all_of_one_run(held: Ground) -> None:
    lines = text_of(held, "show", "2").splitlines()
    assert lines[0].startswith("run 2 (")
    assert lines[0].endswith("in sandbox 'default': exit 0")
    assert lines[1].startswith("command: /bin/sh -c ")
    assert lines[2] == f"directory: {held.project}"
    assert lines[3:7] == ["stdout: 5 bytes", "  said", "stderr: 4 bytes", "  bad"]
    assert lines[7:9] == ["changes:", "2 added, 1 with changed metadata"]
    by_id = held.sandbox().find_run(2).id
    assert text_of(held, "show", by_id).splitlines() == lines


def test_show_as_json(held: Ground) -> None:
    value = json.loads(text_of(held, "show", "--json", "1"))
    assert (value["number"], value["held"], value["changed"]) == (1, True, 3)
    assert value["argv"][:2] == ["/bin/sh", "-c"]


def test_show_is_safe_to_print(ground: Ground) -> None:
    ground.sandbox().run(r"printf '\033]0;evil\007\377\n'; : '$(printf \033)'")
    done = run_cli("show", "1", cwd=ground.project)
    assert b"\x1b" not in done.stdout
    assert b"\xff" not in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("show",), "no run or operation given"),
        (("show", "99"), "no such run: 99"),
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
    assert "changes:" not in text_of(held, "show", "1")


def test_output_into_a_closed_pipe_is_quiet(held: Ground) -> None:
    done = subprocess.run(
        ["bash", "-c", "unspill diff | true; unspill log | head -1 >/dev/null"],
        cwd=held.project,
        capture_output=True,
        check=False,
    )
    assert done.stderr == b""
