# SPDX-License-Identifier: Apache-2.0
"""What a person lets in is what they saw: on a real terminal, by an answer that counts, byte for byte."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kernel.consent_reviewer import Reviewer, Seen
from tests.kernel.terminal_person import ASKED, Person, asking, visible
from unspill.errors import UsageError
from unspill.model.change import Hunks, Selection

if TYPE_CHECKING:
    from tests.support import Ground
    from unspill import Sandbox

pytestmark = pytest.mark.kernel

BASE = "".join(f"{number}\n" for number in range(40))
# What a hostile run does while the person reads
RUNS = (
    "echo 'export A=1' > .envrc",
    "echo 'export A=2' > .envrc",
    "echo 'evil' >> .envrc",
    "rm -f .envrc; printf 'export A=1\\nevil\\n' > .envrc",
    "rm -f .envrc; ln -s /etc/passwd .envrc",
    "rm -f .envrc; echo 'export A=1' > .envrc; chmod 755 .envrc",
    "sed -i 's/^2$/two/; s/^30$/thirty/' text",
    "sed -i 's/^2$/evil/; s/^two$/2/' text",
    "sed -i '1i first' text",
    "sed -i 's/^15$/fifteen/' text",
)
STEPS = (
    "run",
    "run",
    "run",
    "run",
    "run",
    "diff",
    "diff",
    "pipe",
    "summary",
    "token",
    "token",
    "bare",
    "race",
    "hunk",
    "hunk",
    "hunk race",
)


@dataclass
class Tally:
    """How many applies were of what was shown, of something else, or did not happen."""

    same: int = 0
    differ: list[str] = field(default_factory=list)
    refused: int = 0

    def note(self, what: str, shown: object, applied: object) -> None:
        if applied is None:
            self.refused += 1
        elif shown == applied:
            self.same += 1
        else:
            self.differ.append(f"{what}: shown {shown!r}, applied {applied!r}")


class Table:
    """One project, one sandbox, one reviewer; put in order again for each interleaving."""

    def __init__(self, ground: Ground, reviewer: Reviewer) -> None:
        self._project = ground.project
        self._sandbox: Sandbox = ground.sandbox()
        self._reviewer = reviewer
        self._tally = Tally()
        # What the terminal has ever shown, by the token that it printed with it
        self._shown: dict[str, bytes | None] = {}

    def play(self, seed: int, *, by_name: bool) -> Tally:
        """Play one interleaving; in the control arm consent is by name, as it was before."""
        self._tidy()
        chance = random.Random(seed)
        self._tally = Tally()
        # What was printed last of each kind, whether or not anybody could read it
        self._last: dict[str, Seen] = {}
        self._run(chance.choice(RUNS[:2]))
        self._run(RUNS[6])
        for _ in range(chance.randint(4, 8)):
            step = chance.choice(STEPS)
            if step == "run":
                self._run(chance.choice(RUNS))
            elif step in ("diff", "pipe"):
                self._look(on_terminal=step == "diff")
            elif step == "summary":
                self._last["summary"] = self._reviewer.types("apply", "--glob", ".envr?", on_terminal=False)
            elif by_name:
                self._apply_by_name(step)
            elif step.startswith("hunk"):
                self._apply_hunk(chance.choice(RUNS) if "race" in step else "")
            elif step == "token":
                self._apply_by_token()
            else:
                self._apply_bare(chance.choice(RUNS) if step == "race" else "")
        return self._tally

    def _tidy(self) -> None:
        self._sandbox.discard()
        (self._project / ".envrc").unlink(missing_ok=True)
        (self._project / "text").write_text(BASE)

    def _run(self, script: str) -> None:
        self._sandbox.run(f"touch .envrc; {script}")

    def _look(self, *, on_terminal: bool) -> None:
        seen = self._reviewer.types("diff", on_terminal=on_terminal)
        assert seen.code == 0, seen
        self._last["terminal" if on_terminal else "pipe"] = seen
        self._last["any"] = seen
        if on_terminal and (token := seen.token(".envrc")) is not None:
            self._shown[token] = seen.content(".envrc")

    def _apply_by_token(self) -> None:
        """Paste the token that was printed last, wherever, on a terminal or not; nobody answers a question."""
        for seen in filter(None, (self._last.get("summary"), self._last.get("terminal"))):
            token = seen.token(".envrc")
            if token is not None:
                self._reviewer.types("apply", "--include", f".envrc@{token}", on_terminal=False)
                # One out of a summary is worth something only if the same was on the terminal
                self._judge("token", self._shown.get(token))

    def _apply_bare(self, meanwhile: str) -> None:
        refused = self._reviewer.types("apply", "--include", ".envrc", on_terminal=False)
        assert refused.code in (2, 4, 6), refused
        self._judge("no terminal", None)
        seen = self._reviewer.types("apply", "--include", ".envrc", meanwhile=lambda: self._race(meanwhile))
        self._judge("asked", seen.content(".envrc"))

    def _apply_hunk(self, meanwhile: str) -> None:
        terminal = self._last.get("terminal")
        token = terminal.hunk_token("text") if terminal is not None else None
        if terminal is not None and token is not None:
            seen, options = terminal, (f"text:1@{token}",)
            self._race(meanwhile)
            self._reviewer.types("apply", "--hunk", *options, on_terminal=False)
        else:
            seen = self._reviewer.types("apply", "--hunk", "text:1", meanwhile=lambda: self._race(meanwhile))
        self._judge_hunk(seen)

    def _apply_by_name(self, step: str) -> None:
        """Apply what is there by the name that was read."""
        seen = self._last.get("any")
        if seen is None:
            return
        # Either may be gone by now
        with suppress(UsageError):
            if step.startswith("hunk"):
                self._sandbox.apply(Selection(hunks=(Hunks(path=b"text", numbers=(1,)),)))
                self._judge_hunk(seen)
            else:
                self._sandbox.apply(Selection(paths=(b".envrc",), included=(b".envrc",)))
                self._judge("by name", seen.content(".envrc"))

    def _race(self, script: str) -> None:
        if script:
            self._run(script)

    def _judge(self, what: str, shown: bytes | None) -> None:
        live = self._project / ".envrc"
        applied = None
        if live.is_symlink():
            applied = b"-> " + os.fsencode(live.readlink())
        elif live.exists():
            applied = live.read_bytes()
        self._tally.note(what, shown, applied)
        live.unlink(missing_ok=True)

    def _judge_hunk(self, seen: Seen) -> None:
        live = self._project / "text"
        applied = live.read_text()
        hunk = seen.hunks("text").get(1)
        self._tally.note("hunk", hunk and hunk.applied_to(BASE), None if applied == BASE else applied)
        if applied != BASE:
            self._tidy()


@pytest.fixture(name="table")
def laid(ground: Ground) -> Iterator[Table]:
    """A table for interleavings."""
    ground.write("text", BASE)
    with Reviewer(ground.project, ground.top / "pipe") as reviewer:
        yield Table(ground, reviewer)


def total(tallies: list[Tally]) -> Tally:
    return Tally(
        same=sum(tally.same for tally in tallies),
        differ=[one for tally in tallies for one in tally.differ],
        refused=sum(tally.refused for tally in tallies),
    )


@pytest.mark.timeout(1800)
def test_nothing_is_let_in_but_what_was_shown_on_the_terminal(table: Table, full: bool) -> None:
    count = 500 if full else 16
    found = total([table.play(seed, by_name=False) for seed in range(count)])
    assert found.differ == []
    # Else it would show nothing: both have happened often
    assert found.same >= count / 4
    assert found.refused >= count / 4


def test_control_consent_by_name_lets_in_what_nobody_has_seen(table: Table) -> None:
    found = total([table.play(seed, by_name=True) for seed in range(30)])
    assert len(found.differ) >= 3


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
