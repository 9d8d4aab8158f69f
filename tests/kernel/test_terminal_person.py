# SPDX-License-Identifier: Apache-2.0
"""Somebody works in a sandbox, at a real terminal; it is theirs again, as it was, whatever happens."""

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.terminal_person import UNSPILL, Person, seated
from tests.panes import Pane, typed
from tests.support import Ground, find_native_bwrap, lasting, processes_with, run_cli

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
    for words in (("show", "1"), ("show", "1", "--json")):
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
