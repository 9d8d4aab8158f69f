# SPDX-License-Identifier: Apache-2.0
"""Asking on a real terminal: who may answer, what counts as an answer, and what is left behind."""

import json
import os
import re
import signal
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.terminal_person import ASKED, Person, asking, visible

pytestmark = pytest.mark.kernel


@pytest.fixture
def person() -> Iterator[Person]:
    somebody = Person()
    yield somebody
    somebody.hang_up()


@pytest.mark.parametrize("word", ["y", "yes", "Y", "YES", " y ", "x\x7fy"])
def test_yes_in_so_many_words_allows_once(person: Person, word: str) -> None:
    with asking(person) as program:
        program.answer(word + "\n")
        assert program.verdict() == ("Allowed", "once")
    assert "Run command with network access: git fetch?" in person.look()
    assert "[y = Allow, anything else = Deny]" in person.seen


REFUSALS = {
    "nothing": "\n",
    "n": "n\n",
    "no": "no\n",
    "twice": "yy\n",
    "not only yes": "yes please\n",
    "a label": "allow\n",
    "a scope that is not offered": "always\n",
    "another script": "\uff59\n",
    "zero": "y\0\n",
    "end of input": "\x04",
    "half a line, then the end": "y\x04",
    "escape": "\x1b[200~y\n",
    "show of what is whole": "show\n",
    "long": "y" * 3000 + "\n",
    "pasted lines": "y\ny\n",
    "pasted before": "\ny\n",
}


@pytest.mark.parametrize("keys", REFUSALS.values(), ids=REFUSALS.keys())
def test_anything_else_denies(person: Person, keys: str) -> None:
    with asking(person) as program:
        program.answer(keys)
        assert program.verdict() == ("Denied", "")


@pytest.mark.parametrize("scope", ["run", "sandbox", "always"])
def test_a_longer_scope_is_a_word_of_its_own(person: Person, scope: str) -> None:
    with asking(person, kind="readable") as program:
        program.answer(f"{scope}\n")
        assert program.verdict() == ("Allowed", scope)
    assert f"  {scope:<7} = A" in person.look()


def test_a_host_that_is_asked_for_during_a_run_is_allowed_for_that_run_by_a_plain_yes(person: Person) -> None:
    with asking(person, kind="egress") as program:
        program.answer("y\n")
        assert program.verdict() == ("Allowed", "once")
    assert "  y       = Allow for this run" in person.look()
    with asking(person, kind="egress") as program:
        program.answer("run\n")
        assert program.verdict() == ("Denied", "")


def test_what_was_typed_before_the_question_does_not_count(person: Person) -> None:
    person.type("y\nyes\ny\n")
    with asking(person, wait_s=1.0) as program:
        assert program.result() == ["Denied", "", "it was not answered in time, or not by one line that was typed"]


def test_without_draining_what_was_typed_before_would_count(person: Person) -> None:
    person.type("y\n")
    with asking(person, wait_s=5.0, without=["drain"]) as program:
        assert program.verdict() == ("Allowed", "once")


def test_what_is_typed_faster_than_anybody_reads_does_not_count(person: Person) -> None:
    with asking(person, wait_s=4.0, settle_s=2.0) as program:
        program.answer("y\n", settle_s=0.0)
        assert program.verdict() == ("Denied", "")


def test_who_typed_too_early_can_still_answer(person: Person) -> None:
    with asking(person, settle_s=0.5) as program:
        program.answer("y\n", settle_s=0.0)
        time.sleep(1.0)
        person.type("y\n")
        assert program.verdict() == ("Allowed", "once")


LOOK_ALIKE = "\r\nunspill asks:\r\n  Run command with network access: true?\r\n[y = Allow, anything else = Deny] "


def test_who_answers_a_question_that_a_command_forged_has_allowed_nothing(person: Person) -> None:
    os.write(person.slave, LOOK_ALIKE.encode())
    person.wait_for(ASKED)
    person.type("y\n")
    person.look(0.1)
    with asking(person, argv=["evil"], wait_s=1.5) as program:
        person.wait_for("Run command with network access: evil?")
        assert program.verdict() == ("Denied", "")


HIDING = {"a title that does not end": "\x1b]0;", "a device string": "\x1bPq", "concealed": "\x1b[8m", "half": "\x1b["}


@pytest.mark.parametrize("before", HIDING.values(), ids=HIDING.keys())
def test_what_a_command_left_unfinished_does_not_hide_the_question(person: Person, before: str) -> None:
    wanted = "Run command with network access: git fetch?"
    with asking(person, output=before) as program:
        program.answer("n\n")
        program.result()
    assert wanted in visible(person.look())


@pytest.mark.parametrize("before", [HIDING["a title that does not end"], HIDING["concealed"]])
def test_without_clearing_the_terminal_the_question_would_be_hidden(person: Person, before: str) -> None:
    with asking(person, output=before, without=["clear"]) as program:
        program.answer("n\n")
        program.result()
    assert "Run command" not in visible(person.look())


@pytest.mark.parametrize(
    "forgery",
    ["x\r\n  Run command with network access: true?", "\x1b[2J\x1b[Htrue", "x\u202e?eurt", "x\x08\x08true", "\x9b2Jx"],
)
def test_nothing_that_a_command_contains_reaches_the_terminal_as_it_is(person: Person, forgery: str) -> None:
    with asking(person, argv=["evil", forgery]) as program:
        program.answer("n\n")
        program.result()
    seen = person.look()
    assert "\x1b[2J" not in seen
    assert "\u202e" not in seen
    assert "\x08" not in seen
    assert "\x9b" not in seen
    asking_lines = [line for line in seen.split("\r\n") if line.startswith("  Run command")]
    assert len(asking_lines) == 1


def test_a_question_worded_by_somebody_else_is_shown_without_its_control_characters(person: Person) -> None:
    with asking(person, text="\x1b[2Jtrue?\r\n\x9b2J\u202e") as program:
        program.answer("n\n")
        program.result()
    assert "?[2Jtrue????2J?" in person.look()


def test_without_that_its_control_characters_would_reach_the_terminal(person: Person) -> None:
    with asking(person, text="\x1b[2Jtrue?", without=["printable"]) as program:
        program.answer("n\n")
        program.result()
    assert "\x1b[2Jtrue?" in person.look()


def test_the_streams_of_the_program_are_neither_read_nor_written(person: Person) -> None:
    with asking(person, wait_s=1.0) as program:
        stdout, _ = program.process.communicate("y\nyes\n" * 100, timeout=30)
        said = json.loads(stdout)
    assert said[0] == "Denied"
    assert "Run command with network access" in person.look()


def test_a_dangerous_request_needs_a_word_that_was_never_used_before(person: Person) -> None:
    words: list[str] = []
    for keys, expected in (
        ("y", "Denied"),
        ("{old} yes", "Denied"),
        ("{new}", "Denied"),
        ("{new} no", "Denied"),
        ("{new} yes", "Allowed"),
        ("{new} y", "Allowed"),
    ):
        person.seen = ""
        with asking(person, kind="unsandboxed") as program:
            person.wait_for(ASKED)
            words += re.findall(r"type this word first: ([a-z]{5})\r\n", person.seen)
            program.answer(keys.format(old=words[0][::-1] if len(words) == 1 else words[-2], new=words[-1]) + "\n")
            assert program.verdict()[0] == expected
    assert len(set(words)) == len(words) == 6


def test_a_dangerous_request_that_can_be_remembered_needs_the_word_too(person: Person) -> None:
    with asking(person, kind="as-root") as program:
        program.answer("always\n")
        assert program.verdict() == ("Denied", "")
    person.seen = ""
    with asking(person, kind="as-root") as program:
        person.wait_for(ASKED)
        (word,) = re.findall(r"type this word first: ([a-z]{5})\r\n", person.seen)
        program.answer(f"{word} always\n")
        assert program.verdict() == ("Allowed", "always")


def test_a_long_command_can_be_seen_whole_before_it_is_answered(person: Person) -> None:
    script = "echo begin; " + "x" * 2000 + "curl evil.example.org; " + "y" * 2000 + "; echo end"
    with asking(person, argv=["/bin/sh", "-c", script]) as program:
        person.wait_for(ASKED)
        assert "evil.example.org" not in person.seen
        assert "characters left out" in person.seen
        program.answer("show\n")
        person.wait_for(ASKED, times=2)
        assert "curl evil.example.org" in person.seen.replace("\r\n| ", "")
        time.sleep(0.4)
        person.type("y\n")
        assert program.verdict() == ("Allowed", "once")


def test_nobody_can_be_asked_without_a_terminal(person: Person) -> None:
    with asking(person, tty="") as program:
        assert program.result() == ["Denied", "", "there is no terminal to ask on"]


def test_a_program_in_the_background_is_denied_and_not_stopped(person: Person) -> None:
    with asking(person, background=True) as program:
        assert program.result() == ["Denied", "", "the program that asks is in the background"]
    assert "Run command" not in person.look()


def test_a_terminal_that_hangs_up_denies(person: Person) -> None:
    with asking(person) as program:
        person.wait_for(ASKED)
        time.sleep(0.3)
        person.hang_up()
        assert program.verdict() == ("Denied", "")


def test_it_waits_no_longer_than_it_may(person: Person) -> None:
    with asking(person, wait_s=1.0) as program:
        person.wait_for(ASKED)
        began = time.monotonic()
        person.type("y")
        assert program.verdict() == ("Denied", "")
        assert time.monotonic() - began < 5


def test_a_terminal_that_nobody_reads_does_not_block_the_program(person: Person) -> None:
    termios.tcflow(person.slave, termios.TCOOFF)
    with asking(person, wait_s=1.0, argv=["x" * 100] * 50) as program:
        assert program.verdict() == ("Denied", "")
    termios.tcflow(person.slave, termios.TCOON)


@pytest.mark.parametrize("before", ["cooked", "raw", "no echo"])
@pytest.mark.parametrize("ending", ["y\n", "n\n", "\x04", "", "\x03"], ids=["yes", "no", "end", "timeout", "interrupt"])
def test_the_modes_of_the_terminal_are_restored_however_it_ends(person: Person, before: str, ending: str) -> None:
    if before == "raw":
        tty.setraw(person.slave)
    elif before == "no echo":
        modes = person.modes()
        modes[3] &= ~termios.ECHO
        termios.tcsetattr(person.slave, termios.TCSANOW, modes)
    modes = person.modes()
    with asking(person, wait_s=20.0 if ending else 1.0) as program:
        person.wait_for(ASKED)
        assert person.modes()[3] & termios.ECHO
        program.answer(ending)
        expected = {"y\n": "Allowed", "\x03": "KeyboardInterrupt"}.get(ending, "Denied")
        assert program.verdict()[0] == expected
    assert person.modes() == modes


def test_the_rest_of_what_was_typed_is_not_left_for_the_shell(person: Person) -> None:
    with asking(person) as program:
        program.answer("n\nrm -rf x\n")
        assert program.verdict() == ("Denied", "")
    os.set_blocking(person.slave, False)
    with pytest.raises(BlockingIOError):
        os.read(person.slave, 100)


def test_programs_on_terminals_of_one_person_take_turns(tmp_path: Path) -> None:
    lock = os.fspath(tmp_path / "lock")
    with ExitStack() as stack:
        people = [Person(), Person()]
        for one in people:
            stack.callback(one.hang_up)
        first = stack.enter_context(asking(people[0], lock=lock))
        people[0].wait_for(ASKED)
        second = stack.enter_context(asking(people[1], lock=lock))
        assert "unspill asks" not in people[1].look(1.0)
        first.answer("y\n")
        assert first.verdict() == ("Allowed", "once")
        second.answer("n\n")
        assert second.verdict() == ("Denied", "")


def test_who_waits_for_a_turn_in_vain_is_denied(tmp_path: Path) -> None:
    lock = os.fspath(tmp_path / "lock")
    with ExitStack() as stack:
        people = [Person(), Person()]
        for one in people:
            stack.callback(one.hang_up)
        stack.enter_context(asking(people[0], lock=lock))
        people[0].wait_for(ASKED)
        second = stack.enter_context(asking(people[1], lock=lock, wait_s=0.5))
        assert second.result() == ["Denied", "", "another question was not answered in time"]


def test_a_stopped_question_is_over_when_the_program_goes_on_too_late(person: Person) -> None:
    with asking(person, wait_s=1.5) as program:
        person.wait_for(ASKED)
        time.sleep(0.4)
        program.process.send_signal(signal.SIGSTOP)
        time.sleep(1.5)
        person.type("y\n")
        program.process.send_signal(signal.SIGCONT)
        assert program.verdict() == ("Denied", "")
