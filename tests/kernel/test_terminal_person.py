# SPDX-License-Identifier: Apache-2.0
"""Somebody works in a sandbox, at a real terminal; it is theirs again, as it was, whatever happens."""

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.terminal_person import UNSPILL, Person, seated
from tests.panes import Pane, typed
from tests.support import Ground, find_native_bwrap, lasting, processes_with, run_cli, starts

pytestmark = pytest.mark.kernel

LINES = "".join(f"line {number}\n" for number in range(1, 501))


@contextmanager
def at_desk(ground: Ground) -> Iterator[Pane]:
    """Sit at a terminal in the project, and look at the end whether its modes are as they were."""
    with typed(ground.project, ground.top, rows=30, columns=90) as pane:
        pane.enter("stty -g > ../before", "^out>$")
        yield pane
        look = "clear; stty -g > ../after; cmp ../before ../after && echo th''e same"
        pane.enter(look, "^the same$")


@contextmanager
def in_shell(ground: Ground, *options: str) -> Iterator[Pane]:
    """Open a shell in the sandbox, with `in> ` for its prompt, and leave it at the end."""
    with at_desk(ground) as pane:
        pane.type("-l", f"SHELL=/bin/bash {UNSPILL} shell {shlex.join(options)}")
        pane.type("Enter")
        pane.see(r"unspill:.*\$$")
        pane.enter("PS1='i''n> '; clear", "^in>$")
        yield pane
        pane.type("-l", "clear; exit")
        pane.type("Enter")
        pane.see("^out>$")


def test_somebody_works_in_a_shell(ground: Ground, full: bool) -> None:
    ground.write("many", LINES)
    with in_shell(ground) as pane:
        edit(pane)
        read(pane)
        watch(pane)
        calculate(pane)
        pane.tmux("resize-window", "-x", "70", "-y", "20")
        pane.enter("clear; stty size", "^20 70$")
        flood(pane, 10_000_000 if full else 1_000_000)
        pause(pane)
    assert (ground.project / "note").read_text() == "written with an editor\n"


def edit(pane: Pane) -> None:
    pane.enter("vim -u NONE note", "^~$")
    assert pane.value("alternate_on") == "1"
    pane.type("i", "written with an editor")
    pane.type("Escape")
    pane.type(":wq", "Enter")
    pane.see("^in>$")


def read(pane: Pane) -> None:
    pane.enter("clear; less many", "^line 20$")
    pane.type("G")
    pane.see("^line 500$")
    pane.type("q")
    pane.see("^in>$")


def watch(pane: Pane) -> None:
    pane.enter("clear; top", "PID +USER")
    pane.type("q")
    pane.see("^in>$")


def calculate(pane: Pane) -> None:
    pane.enter("clear; python3 -q", "^>>>$")
    pane.enter("6 * 7", "^42$")
    pane.type("C-c")
    pane.see("KeyboardInterrupt")
    pane.type("C-d")
    pane.see("^in>$")


def flood(pane: Pane, size: int) -> None:
    pane.enter(f"clear; yes abcdefg | head -c {size}; echo en''d", "^end$")
    assert pane.lines()[-4:-2] == ["abcdefg", "abcdefg"]


def pause(pane: Pane) -> None:
    # It says when it is in the foreground, at first and when it goes on
    pane.enter("""clear; sh -c 'trap "echo on""ward" CONT; echo for""ward; read a; read b'""", "^forward$")
    pane.type("C-z")
    pane.see("Stopped")
    pane.enter("clear; jobs", "Stopped")
    pane.enter("fg", "^onward$")
    pane.type("C-c")
    pane.see(r"\^C")
    pane.see("^in>$")


def test_a_patch_is_staged_piece_by_piece(ground: Ground) -> None:
    ground.write("many", LINES)
    for words in ("init -q", "add .", "-c user.name=n -c user.email=e@example.org commit -qm one"):
        subprocess.run(["git", *words.split()], cwd=ground.project, check=True)
    ground.write("many", LINES.replace("line 1\n", "first\n").replace("line 500\n", "last\n"))
    with in_shell(ground) as pane:
        pane.enter("git add -p", r"Stage this hunk \[y,n")
        pane.enter("y", r"Stage this hunk \[y,n.*\?$")
        pane.enter("n", "^in>$")
        pane.enter("clear; git status --short", "^MM many$")


# What ends the run, while an editor has the alternate screen, and what is said of it
ENDS = {
    "everything inside is killed": ("C-z", "kill -9 -1", None, "signal 9"),
    "a signal": ("", "", signal.SIGTERM, "Cancelled"),
    "a lost line": ("", "", signal.SIGHUP, "Cancelled"),
    "a signal that quits": ("", "", signal.SIGQUIT, "Cancelled"),
    "an interrupt from elsewhere": ("", "", signal.SIGINT, "Cancelled"),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_terminal_is_the_persons_again_whatever_ends_it(ground: Ground, end: str) -> None:
    keys, command, number, said = ENDS[end]
    with at_desk(ground) as pane:
        pane.type("-l", f"SHELL=/bin/bash {UNSPILL} shell")
        pane.type("Enter")
        pane.see(r"unspill:.*\$$")
        pane.enter("clear; vim -u NONE note", "^~$")
        if keys:
            pane.type(keys)
            pane.see("Stopped")
            pane.type("-l", command)
            pane.type("Enter")
        if number is not None:
            os.kill(child_of(int(pane.value("pane_pid"))), number)
        pane.see(f"^unspill: .*{said}")
        pane.see("^out>$")
        assert {name: pane.value(name) for name in ("alternate_on", "cursor_flag", "mouse_any_flag")} == {
            "alternate_on": "0",
            "cursor_flag": "1",
            "mouse_any_flag": "0",
        }


def child_of(pid: int) -> int:
    """Return the process that a shell waits for."""
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def run_at(
    person: Person, *words: str, cwd: Path, keys: bytes = b"", more: bytes = b"", after: str = ""
) -> tuple[int, str]:
    """Have somebody run a command; they press keys when they see something. Return its code and what was seen."""
    with seated(person, *words, cwd=cwd) as process:
        if keys:
            person.wait_for(after)
            person.type(keys)
            if more:
                # Shown by the terminal inside, so the keys before were read
                person.wait_for("^C")
                person.type(more)
        while process.poll() is None:
            person.look(0.02)
        return process.returncode, person.look(0.02).replace("\r\n", "\n")


@pytest.fixture
def person() -> Iterator[Person]:
    person = Person()
    modes = person.modes()
    yield person
    assert person.modes() == modes
    person.hang_up()


def test_an_ordinary_run_has_a_terminal_and_ends_as_before(ground: Ground, person: Person) -> None:
    command = "test -t 0 && test -t 1 && test -t 2 && echo all; echo x > f; cat ~/.ssh/id_rsa; exit 3"
    code, seen = run_at(person, "run", "--", "sh", "-c", command, cwd=ground.project)
    assert code == 3
    assert seen.startswith("all\n")
    assert "\nunspill: 1 added. Applied as op 1. Undo: unspill undo\nunspill:   A f\n" in seen
    # Of its output it is still told what the sandbox was behind
    assert "/.ssh/id_rsa: hidden, " in seen


def test_an_interrupted_run_is_held_as_without_a_terminal(ground: Ground, person: Person) -> None:
    for options in ((), ("--no-tty",)):
        command = "echo x > f; echo ready; sleep 50"
        words = ("run", *options, "-c", command)
        code, seen = run_at(person, *words, cwd=ground.project, keys=b"\x03", after="ready")
        assert code == 130
        assert "ancelled" in seen
        assert not (ground.project / "f").exists()
        person.seen = ""


def test_a_program_that_handles_ctrl_c_goes_on(ground: Ground, person: Person) -> None:
    command = "trap 'echo x > f; exit 0' INT; echo ready; while :; do sleep 0.05; done"
    code, _seen = run_at(person, "run", "-c", command, cwd=ground.project, keys=b"\x03", after="ready")
    assert code == 0
    assert (ground.project / "f").exists()


WITHOUT: dict[str, tuple[tuple[str, ...], str]] = {
    "it is not wanted": (("--no-tty",), "0 1 2"),
    "its input is chosen": (("--no-stdin",), "0 1 2"),
    "the answer is for a program": (("--json",), "0 1 2"),
    "its output goes elsewhere": ((), "0 2"),
    "its errors go elsewhere": ((), "0 1"),
    "its input comes from elsewhere": ((), "1 2"),
}


@pytest.mark.parametrize("case", WITHOUT)
def test_a_run_has_no_terminal_where(case: str, ground: Ground, person: Person) -> None:
    options, streams = WITHOUT[case]
    command = "test -t 0 || test -t 1 || test -t 2 || echo none > f"
    with seated(person, "run", *options, "-c", command, cwd=ground.project, streams=streams) as process:
        process.communicate(timeout=20)
        assert process.returncode == 0
    assert (ground.project / "f").read_text() == "none\n"


def test_a_run_in_the_background_leaves_the_terminal_alone(ground: Ground) -> None:
    with at_desk(ground) as pane:
        pane.enter(f"set -m; {UNSPILL} run -q -c 'test -t 0 || echo x > f' & wait; echo en''d", "^end$")
    assert (ground.project / "f").exists()


def test_a_terminal_that_is_not_there_is_refused(ground: Ground, person: Person) -> None:
    for words in (("run", "-t", "--", "true"), ("shell",)):
        found = run_cli(*words, cwd=ground.project)
        assert found.returncode == 125
        assert b"on your terminal" in found.stderr
        assert b"Leave out `-t`" in found.stderr
    code, seen = run_at(person, "run", "-t", "--json", "--", "true", cwd=ground.project)
    assert (code, "can't be used together" in seen) == (125, True)


def test_where_there_is_no_live_sandbox_a_run_does_without(
    ground: Ground, person: Person, trusted_bwrap: bytes
) -> None:
    bwrap = find_native_bwrap(os.fsdecode(trusted_bwrap))
    ground.configure(f'engine = "native"\nbwrap = "{os.path.realpath(bwrap)}"\n')
    code, seen = run_at(person, "run", "-c", "test -t 0 || echo none", cwd=ground.project)
    assert (code, seen) == (0, "none\n")
    person.seen = ""
    code, seen = run_at(person, "shell", cwd=ground.project)
    assert code == 125
    assert "A live sandbox is not possible here" in seen


def test_what_is_printed_is_in_no_record_unescaped(ground: Ground, person: Person) -> None:
    _code, seen = run_at(person, "run", "-c", r"printf 'a\033]0;title\007b\033[8mc\n'", cwd=ground.project)
    assert "\x1b]0;title\x07" in seen
    for words in (("show", "run1"), ("show", "run1", "--json")):
        found = run_cli(*words, cwd=ground.project)
        assert b"title" in found.stdout
        assert b"\x1b" not in found.stdout + found.stderr
    assert all(b"\x1b" not in path.read_bytes() for path in ground.state.rglob("*audit*") if path.is_file())


QUESTIONS = r"printf '\033[c\033[6n\033[5n\033[>c'"


@pytest.mark.parametrize("is_control", [False, True], ids=["run", "control"])
def test_what_the_terminal_answers_a_command_is_not_typed_for_the_person(ground: Ground, is_control: bool) -> None:
    """Ask the terminal something and end. The control asks without unspill: the shell gets the answers."""
    command = QUESTIONS if is_control else f"{UNSPILL} run -c {shlex.quote(QUESTIONS)}"
    with typed(ground.project, ground.top) as pane:
        pane.enter(f"clear; {command}; echo en''d", "end$")
        # Answers that come early stand before the prompt
        pane.see("out>.+c$" if is_control else "^out>$")
        pane.type("-l", "#typed")
        assert pane.see("out>.*#typed$" if is_control else "^out>.*#typed$").endswith(
            "c#typed" if is_control else "out> #typed"
        )


def test_who_loses_the_terminal_ends_the_command(ground: Ground) -> None:
    word = lasting()
    person = Person()
    with seated(person, "run", "-c", f"trap '' HUP; echo ready; sleep {word}", cwd=ground.project) as process:
        person.wait_for("ready")
        person.hang_up()
        assert process.wait(20) == 129
    assert processes_with(word) == []


def test_only_a_time_that_is_given_ends_a_command_on_a_terminal(ground: Ground, person: Person) -> None:
    ground.configure("[limits]\nwall_s = 1\n")
    code, _seen = run_at(person, "run", "-c", "sleep 1.3", cwd=ground.project)
    assert code == 0
    for option in ("--timeout=0.3", "--no-tty"):
        code, _seen = run_at(person, "run", option, "-c", "sleep 20", cwd=ground.project)
        assert code == 124


@pytest.mark.parametrize(
    ("options", "setting"), [(("-t",), "icanon"), ((), "-icanon")], ids=["a terminal was asked for", "it reads keys"]
)
def test_many_ctrl_c_end_nothing_where(options: tuple[str, ...], setting: str, ground: Ground, person: Person) -> None:
    """Three of them end an ordinary command that ignores them: see test_interruptions.py."""
    command = f"trap '' INT; stty {setting}; echo ready; read line; echo x > f"
    code, _seen = run_at(
        person, "run", *options, "-c", command, cwd=ground.project, keys=b"\x03" * 4, more=b"\r", after="ready"
    )
    assert code == 0
    assert (ground.project / "f").exists()


# Ctrl-\ d
LEAVE = b"\x1cd"
# Says when it may go on; a file is what others can make
SLOW = "echo re''ady; until test -e go; do sleep 0.02; done; seq 3; echo do''ne; read x; echo $x > typed"


@pytest.fixture
def stopped(ground: Ground) -> Iterator[None]:
    """Ends what runs in the background when the test is over."""
    yield
    run_cli("stop", cwd=ground.project)


def leave(person: Person, process: "subprocess.Popen[bytes]") -> None:
    """Leave the terminal, and wait until the program has said so."""
    person.type(LEAVE)
    person.wait_for("Detached. Run 1 goes on. Attach: unspill attach 1. Stop: unspill stop 1")
    assert process.wait(20) == 0


def test_somebody_leaves_an_editor_and_comes_back(ground: Ground, stopped: None) -> None:
    with at_desk(ground) as pane:
        pane.type("-l", f"SHELL=/bin/bash {UNSPILL} shell -d")
        pane.type("Enter")
        pane.see(r"unspill:.*\$$")
        pane.enter("clear; vim -u NONE note", "^~$")
        pane.type("i", "left alone")
        pane.see("^left alone$")
        pane.type("C-\\")
        pane.type("d")
        pane.see("^unspill: Detached. Run 1 goes on")
        pane.see("^out>$")
        assert {pane.value(name) for name in ("alternate_on", "mouse_any_flag")} == {"0"}
        pane.enter(f"clear; {UNSPILL} ps", "detached +default +/bin/bash$")
        pane.tmux("resize-window", "-x", "70", "-y", "20")
        pane.enter(f"clear; {UNSPILL} attach", "^left alone$")
        pane.see("^~$")
        assert pane.value("alternate_on") == "1"
        pane.type(", found again")
        pane.type("Escape")
        pane.type(":wq", "Enter")
        pane.see(r"unspill:.*\$$")
        pane.enter("clear; stty size", "^20 70$")
        pane.type("-l", "exit")
        pane.type("Enter")
        pane.see("^unspill:   A note$")
        pane.see("^out>$")
    assert (ground.project / "note").read_text() == "left alone, found again\n"


def test_what_is_printed_while_nobody_is_there_is_shown_to_who_comes(
    ground: Ground, person: Person, stopped: None
) -> None:
    with seated(person, "run", "-d", "-t", "-c", SLOW, cwd=ground.project) as process:
        person.wait_for("ready")
        leave(person, process)
    # By a run beside it, which sees the same files
    assert run_cli("run", "-q", "-c", "touch go", cwd=ground.project).returncode == 0
    wait_for_output(ground, b"done")
    person.seen = ""
    with seated(person, "attach", cwd=ground.project) as process:
        person.wait_for("1\r\n2\r\n3\r\ndone\r\n")
        person.type("back\r")
        assert process.wait(20) == 0
    assert (ground.project / "typed").read_text() == "back\n"


def wait_for_output(ground: Ground, text: bytes) -> None:
    deadline = time.monotonic() + 20
    while text not in run_cli("logs", "1", cwd=ground.project).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_who_attaches_takes_the_terminal_from_who_has_it(ground: Ground, person: Person, stopped: None) -> None:
    other = Person()
    modes = other.modes()
    with seated(
        person, "run", "-d", "-t", "-c", "echo ready; read x; echo got $x; read y", cwd=ground.project
    ) as first:
        person.wait_for("ready")
        with seated(other, "attach", "1", cwd=ground.project) as second:
            person.wait_for("Somebody took the terminal of run 1.")
            assert first.wait(20) == 0
            other.type("this\r")
            other.wait_for("got this")
            other.type("\r")
            assert second.wait(20) == 0
    assert "got this" not in person.look()
    assert other.modes() == modes
    other.hang_up()


def test_a_terminal_in_the_background_goes_on_when_the_window_is_closed(ground: Ground, stopped: None) -> None:
    word = lasting()
    for options in (("-d", "-t"), ("-t",)):
        person = Person()
        command = f"echo ready; exec sleep {word}"
        with seated(person, "run", *options, "-c", command, cwd=ground.project) as process:
            person.wait_for("ready")
            person.hang_up()
            assert process.wait(20) == 129
        # The second one is beside the first, and ends with its window
        assert [(one["number"], one["alive"], one["attached"]) for one in runs_of(ground)] == [(1, True, False)]
        assert starts(word)
        assert len(processes_with(word)) == 1
    assert run_cli("stop", cwd=ground.project).stdout.startswith(b"Stopped run 1.\n")
    assert processes_with(word) == []


def runs_of(ground: Ground) -> list[dict[str, Any]]:
    [kept] = json.loads(run_cli("ps", "--json", cwd=ground.project).stdout)["sandboxes"]
    found: list[dict[str, Any]] = kept["runs"]
    return found


def test_what_has_no_terminal_can_not_be_attached_to(ground: Ground, person: Person, stopped: None) -> None:
    assert "nothing runs in the background" in run_at(person, "attach", cwd=ground.project)[1]
    run_cli("run", "-d", "--", "sleep", lasting(), cwd=ground.project)
    for words, said in ((("attach",), "has a terminal"), (("attach", "1"), "run 1 has no terminal")):
        person.seen = ""
        code, seen = run_at(person, *words, cwd=ground.project)
        assert (code, said in seen) == (2, True), seen
    assert b"on your terminal" in run_cli("attach", cwd=ground.project).stderr


def test_the_key_that_leaves_can_still_be_typed(ground: Ground, person: Person, stopped: None) -> None:
    """Twice is once, and before another key it is itself; without a keeper it is a key like all others."""
    command = "stty raw -echo; echo ready; dd bs=1 count=3 2>/dev/null | od -An -tx1 > keys; stty sane"
    for options, keys in ((("-d", "-t"), b"\x1c\x1c\x1cx"), (("-t",), b"\x1cd.")):
        person.seen = ""
        code, seen = run_at(person, "run", *options, "-c", command, cwd=ground.project, keys=keys, after="ready")
        assert code == 0, seen
        typed_keys = (ground.project / "keys").read_text().split()
        assert typed_keys == (["1c", "1c", "78"] if keys.endswith(b"x") else ["1c", "64", "2e"])
