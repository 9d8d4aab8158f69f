# SPDX-License-Identifier: Apache-2.0
"""`unspill run` as a person uses it: whose stdout is whose, what a command reads, exit codes, options, Ctrl-C."""

import json
import os
import pty
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import Ground, kinds, lasting, processes_with, run_cli, shell_of_texts
from unspill import Sandbox

pytestmark = pytest.mark.kernel

ON_HOLD = "Its changes are held ({}). See `unspill changes`, then `unspill apply` or `unspill discard`.\n"
HELD = f"unspill: Cancelled. {ON_HOLD.format('1 added')}"


@pytest.mark.bwrap
def test_stdout_is_the_commands_and_the_summary_is_on_stderr(ground: Ground) -> None:
    ground.write("edited", "1\n")
    script = "echo out; echo err >&2; echo 2 > edited; touch new"
    done = run_cli("run", "--hold", "--", "sh", "-c", script, cwd=ground.project)
    assert done.returncode == 0
    assert done.stdout == b"out\n"
    assert done.stderr.decode().splitlines() == [
        "err",
        "unspill: 1 added, 1 modified. Held in sandbox 'default' (run 1). Apply: unspill apply",
        "  M edited",
        "  A new",
    ]
    assert (ground.project / "edited").read_text() == "1\n"
    assert not (ground.project / "new").exists()


def test_what_changes_nothing_says_nothing(ground: Ground) -> None:
    done = run_cli("run", "true", cwd=ground.project)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_quiet_says_nothing_more(ground: Ground) -> None:
    done = run_cli("run", "-q", "--", "touch", "new", cwd=ground.project)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (ground.project / "new").exists()
    done = run_cli("run", "-q", "--hold", "--", "touch", "held", cwd=ground.project)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert kinds(ground.sandbox().changes()) == {"held": "added"}


@pytest.mark.bwrap
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--", "sh", "-c", "exit 42"), 42),
        (("-c", "kill -KILL $$"), 137),
        (("-c", "exit 125"), 125),
        (("--timeout", "0.4", "--", "sleep", "60"), 124),
        (("--", "no-such-command"), 127),
        (("--", "./text"), 126),
        (("--no-such-option", "--", "true"), 125),
        (("--working-dir", "missing", "--", "true"), 125),
        ((), 125),
        (("-c", "  "), 125),
        (("-c", "true", "--", "true"), 125),
        (("--timeout", "soon", "--", "true"), 125),
        (("--timeout", "-1", "--", "true"), 125),
        (("--timeout", "nan", "--", "true"), 125),
        (("--env", "NOVALUE", "--", "true"), 125),
        (("--env", "LD_PRELOAD=x", "--", "true"), 125),
        (("--sandbox", "a/b", "--", "true"), 125),
        (("--project", "/", "--", "true"), 125),
        (("--project", "/no/such/place", "--", "true"), 125),
    ],
)
def test_exit_codes(ground: Ground, words: tuple[str, ...], code: int) -> None:
    ground.write("text", "no program").chmod(0o644)
    done = run_cli("run", *words, cwd=ground.project)
    assert done.returncode == code
    assert done.stdout == b""
    if code == 125 and words != ("-c", "exit 125"):
        assert done.stderr.startswith(b"unspill: ")


@pytest.mark.bwrap
def test_a_timeout_is_said_on_stderr(ground: Ground) -> None:
    done = run_cli("run", "--timeout", "0.4", "-c", "echo before; sleep 60", cwd=ground.project)
    assert done.stdout == b"before\n"
    assert done.stderr == b"unspill: Command timed out after 0.4s\n"


@pytest.mark.bwrap
def test_a_command_that_is_not_there_is_said_on_stderr_with_what_to_do(ground: Ground) -> None:
    done = run_cli("run", "--", "no-such-command", cwd=ground.project)
    lines = done.stderr.decode().splitlines()
    assert lines[0].startswith("unspill: Command was not started: ")
    assert "no-such-command" in lines[0]
    assert "--explain" in lines[1]


def test_a_defect_of_ours_is_never_the_commands_code(ground: Ground) -> None:
    program = (
        "import sys, unspill.sandbox.sandbox as s; s.open_project = None; from unspill.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "--", "true"], cwd=ground.project, capture_output=True, check=False
    )
    assert done.returncode == 125
    assert done.stdout == b""


@pytest.mark.bwrap
def test_bytes_pass_through_unchanged(ground: Ground) -> None:
    every = bytes(range(256)) * 100
    for options in ((), ("-i",)):
        done = run_cli("run", *options, "--", "cat", cwd=ground.project, stdin=every)
        assert done.stdout == every
    done = run_cli("run", "--no-stdin", "--", "cat", cwd=ground.project, stdin=every)
    assert done.stdout == b""


def test_hostile_names_are_harmless_in_the_summary(ground: Ground) -> None:
    done = run_cli("run", "-c", r"""touch "$(printf 'a\033[31mb\nc')" "$(printf '\377')" """, cwd=ground.project)
    assert done.returncode == 0
    assert b"\x1b" not in done.stderr
    assert b"\xff" not in done.stderr
    assert len(done.stderr.splitlines()) == 3


@pytest.mark.bwrap
def test_the_commands_own_options_are_its_own(ground: Ground) -> None:
    done = run_cli("run", "ls", "--help", cwd=ground.project)
    assert done.stdout.startswith(b"Usage: ls")
    done = run_cli("run", "--", "echo", "--json", "-q", cwd=ground.project)
    assert done.stdout == b"--json -q\n"


@pytest.mark.bwrap
def test_it_runs_where_the_person_stands(ground: Ground) -> None:
    ground.write("sub/file")
    (ground.project / ".git").mkdir()
    done = run_cli("run", "--", "pwd", cwd=ground.project / "sub")
    assert done.stdout.decode() == f"{ground.project}/sub\n"
    done = run_cli("run", "--hold", "--", "touch", "../up", "here", cwd=ground.project / "sub")
    assert kinds(ground.sandbox().changes()) == {"sub/here": "added", "up": "added"}


def test_with_a_project_it_starts_at_its_top(ground: Ground) -> None:
    done = run_cli("run", "--project", ground.project, "--", "pwd", cwd=ground.home)
    assert done.stdout.decode() == f"{ground.project}\n"


def test_outside_of_a_project_the_home_is_refused(ground: Ground) -> None:
    done = run_cli("run", "--", "true", cwd=ground.home)
    assert done.returncode == 125
    assert b"it is your home directory" in done.stderr


def test_without_a_project_it_runs_anywhere_and_changes_nothing(ground: Ground) -> None:
    (ground.home / "note").write_text("mine\n")
    script = "pwd; echo x > made; cat ~/note; echo x > ~/note"
    done = run_cli("run", "--no-project", "-c", script, cwd=ground.home)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode() == f"{ground.home}/playground\n"
    assert (ground.home / "note").read_text() == "mine\n"
    assert not (ground.home / "made").exists()
    (record,) = json.loads(run_cli("log", "--no-project", "--json", cwd=ground.home).stdout)["runs"]
    assert record["number"] == 1
    assert run_cli("show", "--no-project", "run1", cwd=ground.home).returncode == 0
    listed = json.loads(run_cli("playground", "--no-project", "--json", cwd=ground.home).stdout)
    assert [entry["name"] for entry in listed["names"]] == ["made"]
    for words, said in (
        (("--hold",), b"nothing to hold"),
        (("--project", str(ground.project)), b"can't be used together"),
        (("--root", str(ground.project), "--ask", "deny"), b"no directory can be changed"),
    ):
        done = run_cli("run", "--no-project", *words, "--", "true", cwd=ground.home)
        assert done.returncode == 125
        assert said in done.stderr


def test_options_reach_the_command(ground: Ground) -> None:
    done = run_cli("run", "--env", "A=1=2", "--env", "B=", "-c", 'echo "$A|$B|$(pwd)"', cwd=ground.project)
    assert done.stdout.decode() == f"1=2||{ground.project}\n"
    done = run_cli("run", "--working-dir", "playground", "--", "pwd", cwd=ground.project)
    assert done.stdout.decode() == f"{ground.home}/playground\n"


@pytest.mark.parametrize("is_named", [False, True], ids=["found", "named"])
def test_a_dot_is_the_current_directory_whichever_way_the_project_is_chosen(is_named: bool, ground: Ground) -> None:
    sub = ground.project / "sub"
    sub.mkdir()
    (ground.project / ".git").mkdir()
    (ground.home / "link").symlink_to(sub)
    words = ["--project", str(ground.project)] if is_named else []
    for place in (sub, ground.home / "link"):
        done = run_cli("run", *words, "--working-dir", ".", "--", "pwd", cwd=place)
        assert done.stdout.decode() == f"{ground.inside(sub)}\n", done
    done = run_cli("run", *words, "--working-dir", "sub", "--", "pwd", cwd=sub)
    assert done.stdout.decode() == f"{ground.inside(sub)}\n", "another name is relative to the project"


def test_a_current_directory_outside_of_the_named_project_is_refused(ground: Ground) -> None:
    (ground.home / "other").mkdir()
    words = ("--project", str(ground.project), "--working-dir", ".", "--", "touch", "made")
    done = run_cli("run", *words, cwd=ground.home / "other")
    assert done.returncode == 125
    assert b"Working directory does not exist" in done.stderr
    assert not (ground.project / "made").exists()


def test_a_sandbox_of_another_name_is_another(ground: Ground) -> None:
    run_cli("run", "--hold", "--sandbox", "try", "--", "touch", "file", cwd=ground.project)
    assert kinds(ground.sandbox("try").changes()) == {"file": "added"}
    assert not ground.sandbox().changes()


def test_discard_shows_and_throws_away(ground: Ground) -> None:
    done = run_cli("run", "--discard", "--", "touch", "file", cwd=ground.project)
    assert done.stderr == b"unspill: 1 added. Discarded (run 1); your project is unchanged.\n  A file\n"
    assert not ground.sandbox().changes()


def test_json_is_one_object_with_everything(ground: Ground) -> None:
    command = r"printf 'a\377'; echo e >&2; touch file; exit 3"
    done = run_cli("run", "--hold", "--json", "-c", command, cwd=ground.project)
    assert done.returncode == 3
    assert done.stderr == b""
    value = json.loads(done.stdout)
    assert value["outcome"] == {"kind": "Exited", "exit_code": 3, "code": 3}
    assert value["stdout"] == {"text": "a\ufffd", "left_out": 0, "bytes_b64": "Yf8="}
    assert value["stderr"] == {"text": "e\n", "left_out": 0}
    assert (value["number"], value["held"]) == (1, True)
    assert [change["path"] for root in value["changes"]["roots"] for change in root["changes"]] == ["file"]
    assert value["duration_s"] > 0


def test_json_says_our_failure_as_such(ground: Ground) -> None:
    value = json.loads(run_cli("run", "--json", "--", "no-such-command", cwd=ground.project).stdout)
    assert value["outcome"]["kind"] == "NeverStarted"
    assert value["outcome"]["exit_code"] == 127
    assert value["stdout"]["text"] == value["stderr"]["text"] == ""


@pytest.mark.bwrap
def test_explain_prints_the_whole_plan_and_runs_nothing(ground: Ground) -> None:
    done = run_cli("run", "--explain", "-c", "touch file", cwd=ground.project)
    assert done.returncode == 0
    text = done.stdout.decode()
    assert os.fspath(ground.project) in text
    assert "--unshare-net" in text
    assert "every write goes to a layer" in text
    assert not ground.sandbox().changes()
    assert ground.sandbox().runs() == ()
    assert ground.left_behind() == []


@pytest.mark.bwrap
def test_ctrl_c_ends_the_run_and_holds_what_it_changed(ground: Ground) -> None:
    long = lasting()
    program = Path(sys.executable).with_name("unspill")
    child = subprocess.Popen(
        [program, "run", "-c", f"touch file; echo go; sleep {long}"],
        cwd=ground.project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"go\n"
    child.send_signal(signal.SIGINT)
    _out, err = child.communicate(timeout=20)
    assert child.returncode == 130
    assert err == HELD.encode()
    assert processes_with(long) == []
    assert kinds(ground.sandbox().changes()) == {"file": "added"}
    assert not (ground.project / "file").exists()
    assert len(ground.left_behind()) == 1


@pytest.mark.bwrap
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -9), (signal.SIGQUIT, -3)]
)
def test_a_killed_program_takes_the_run_with_it(ground: Ground, number: signal.Signals, code: int) -> None:
    long = lasting()
    program = Path(sys.executable).with_name("unspill")
    child = subprocess.Popen(
        [program, "run", "-c", f"touch file; echo go; sleep {long}"],
        cwd=ground.project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"go\n"
    child.send_signal(number)
    _out, err = child.communicate(timeout=20)
    assert child.returncode == code
    # A program that is killed says nothing; the next one does, once, before anything else
    assert err == (HELD.encode() if code > 0 else b"")
    deadline = time.monotonic() + 5
    while processes_with(long) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert processes_with(long) == []
    done = run_cli("changes", cwd=ground.project)
    assert done.stdout == b"1 added\n  A file\n"
    told = f'unspill: Run 1 was interrupted: {shell_of_texts()} -c "touch file; echo go; sleep {long}". {ON_HOLD}'
    assert done.stderr.decode() == (told.format("1 path") if code < 0 else "")
    assert run_cli("changes", cwd=ground.project).stderr == b""
    assert len(ground.left_behind()) == 1


@pytest.mark.bwrap
def test_a_reader_that_went_away_ends_the_run(ground: Ground) -> None:
    long = lasting()
    program = Path(sys.executable).with_name("unspill")
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; '{program}' run -c 'touch file; yes; sleep {long}' | head -1"],
        cwd=ground.project,
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert done.stdout == b"y\n"
    assert done.returncode == 141
    assert done.stderr == HELD.encode()
    assert processes_with(long) == []
    assert kinds(ground.sandbox().changes()) == {"file": "added"}


@pytest.mark.bwrap
def test_a_terminal_of_the_person_is_not_the_commands(ground: Ground) -> None:
    master, slave = pty.openpty()
    program = Path(sys.executable).with_name("unspill")
    child = subprocess.Popen(
        [program, "run", "-i", "-c", "tty; test -t 1 || echo no terminal; (: < /dev/tty) 2>&1"],
        cwd=ground.project,
        stdin=slave,
        stdout=slave,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    time.sleep(0.5)
    os.write(master, b"\x04")
    child.wait(20)
    os.close(slave)
    text = os.read(master, 4096).decode()
    os.close(master)
    assert "not a tty" in text
    assert "no terminal" in text
    assert "/dev/tty" in text


def test_a_verb_that_does_not_exist_is_a_usage_error(ground: Ground) -> None:
    done = run_cli("explode", cwd=ground.project)
    assert done.returncode == 2
    assert b"unknown command 'explode'" in done.stderr


@pytest.mark.bwrap
@pytest.mark.parametrize("text", ["-x; echo on", "+x; echo on", "--; echo on"])
def test_a_text_that_begins_like_an_option_is_a_text_still(text: str, ground: Ground) -> None:
    assert run_cli("run", "-c", text, cwd=ground.project).stdout == b"on\n"


UNSPILL = Path(sys.executable).with_name("unspill")
RUN = f"{shlex.quote(os.fspath(UNSPILL))} run -q"

# Lines of a shell, and what they print
LINES = {
    "a pipe": (f"echo hi | {RUN} -- cat", "hi\n"),
    "a file": (f"{RUN} -- cat < input", "one\ntwo\nthree\n"),
    "a here-document": (f"{RUN} -- cat <<END\nhere\nEND", "here\n"),
    "a pipe to a shell text": (f"echo hi | {RUN} -c 'tr a-z A-Z'", "HI\n"),
    "a pipe, asked for": (f"echo hi | {RUN} --stdin -- cat", "hi\n"),
    "a pipe that is not wanted": (f"echo hi | {RUN} --no-stdin -- cat", ""),
    "a file that is not wanted": (f"{RUN} --no-stdin -- cat < input", ""),
    "nothing": (f"{RUN} -- cat < /dev/null", ""),
    "a closed descriptor": (f"{RUN} -- cat <&-", ""),
    "a descriptor that can only be written": (f"{RUN} -- cat 0>&2", ""),
    "a file that can only be written": (f"{RUN} -- cat 0> output", ""),
    "a pipe that the command leaves alone": (f"yes | {RUN} -- echo done", "done\n"),
    "a pipe that the command reads in part": (f"yes | {RUN} -- head -1", "y\n"),
    "the rest of a pipe": (f"(echo a; echo b) | {{ read -r x; {RUN} -- cat; }}", "b\n"),
    "a loop whose first command eats its list": (f"while read -r x; do {RUN} -- echo $x; done < input", "one\n"),
    "a loop": (f"while read -r x; do {RUN} --no-stdin -- echo $x; done < input", "one\ntwo\nthree\n"),
}


@pytest.mark.parametrize("line", LINES)
def test_a_command_reads(ground: Ground, line: str) -> None:
    ground.write("input", "one\ntwo\nthree\n")
    text, expected = LINES[line]
    done = subprocess.run(
        ["bash", "-c", text], cwd=ground.project, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30
    )
    assert (done.stdout.decode(), done.stderr) == (expected, b"")
    assert done.returncode == 0


@pytest.mark.bwrap
def test_a_socket_is_read_as_well(ground: Ground) -> None:
    """As a program has it that sshd or node has started."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"hi")
        ours.shutdown(socket.SHUT_WR)
        done = subprocess.run(
            [UNSPILL, "run", "-q", "cat"], cwd=ground.project, stdin=theirs.fileno(), capture_output=True, check=True
        )
    assert done.stdout == b"hi"


def test_what_comes_bit_by_bit_is_passed_on_as_it_comes(ground: Ground) -> None:
    with subprocess.Popen(
        [UNSPILL, "run", "-q", "cat"], cwd=ground.project, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        for word in (b"one\n", b"two\n"):
            program.stdin.write(word)
            assert program.stdout.read(4) == word
        program.stdin.close()
        assert program.wait(10) == 0


def test_a_pipe_that_never_ends_does_not_keep_a_run_from_ending(ground: Ground) -> None:
    read, write = os.pipe()
    begun = time.monotonic()
    done = subprocess.run([UNSPILL, "run", "-q", "true"], cwd=ground.project, stdin=read, check=False)
    os.close(read)
    os.close(write)
    assert done.returncode == 0
    assert time.monotonic() - begun < 10


def test_a_pipe_that_others_read_without_waiting_is_waited_for(ground: Ground) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    with subprocess.Popen(
        [UNSPILL, "run", "-q", "cat"], cwd=ground.project, stdin=read, stdout=subprocess.PIPE
    ) as program:
        time.sleep(0.5)
        os.write(write, b"late")
        os.close(write)
        assert program.communicate(timeout=10)[0] == b"late"
    os.close(read)


def test_a_terminal_is_not_read_unless_that_is_asked_for(ground: Ground) -> None:
    for options, expected in (((), b""), (("-i",), b"typed\n")):
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [UNSPILL, "run", "-q", *options, "cat"], cwd=ground.project, stdin=theirs, stdout=subprocess.PIPE
        ) as program:
            os.write(ours, b"typed\n\x04")
            assert program.communicate(timeout=10)[0] == expected
        os.close(theirs)
        os.close(ours)


def test_both_options_at_once_are_an_error(ground: Ground) -> None:
    done = run_cli("run", "--stdin", "--no-stdin", "--", "cat", cwd=ground.project)
    assert done.returncode == 125
    assert b"--stdin and --no-stdin can't be used together" in done.stderr


@pytest.mark.parametrize(
    ("given", "read"), [("text \u00e9\n", b"text \xc3\xa9\n"), (b"\xff", b"\xff"), ("", b""), (None, b"")]
)
def test_the_library_takes_texts_and_bytes(ground: Ground, given: str | bytes | None, read: bytes) -> None:
    assert ground.run("cat", stdin=given).stdout.kept() == read


def test_the_library_takes_descriptors_and_no_input_by_itself(ground: Ground) -> None:
    read, write = os.pipe()
    os.write(write, b"hi")
    os.close(write)
    before = os.dup(0)
    os.dup2(read, 0)
    try:
        sandbox = ground.sandbox()
        assert isinstance(sandbox, Sandbox)
        assert sandbox.run("cat").stdout.kept() == b""
        assert sandbox.run("cat", stdin=read).stdout.kept() == b"hi"
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(read)
