# SPDX-License-Identifier: Apache-2.0
"""Somebody at a terminal, and a program that asks them.

The program leads a session on a pty of its own; its standard streams are pipes, as a command's are.
"""

import json
import os
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = """
import json, os, signal, sys, termios
from unspill.model.permission import *
from unspill.permissions import approvers
from unspill.permissions.question import make_question
given = json.loads(sys.argv[1])
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if given["tty"]:
    os.open(given["tty"], os.O_RDWR)
if "drain" in given["without"]:
    approvers.termios.tcflush = lambda fd, queue: None
if "printable" in given["without"]:
    approvers._printable = str
if "clear" in given["without"]:
    approvers._CLEAR_STATE = b""
print(given["output"], end="", file=open("/dev/tty", "w") if given["tty"] else sys.stdout, flush=True)
if given["background"] and os.fork():
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
if given["background"]:
    os.setpgid(0, 0)
argv = tuple(map(os.fsencode, given["argv"]))
kinds = {
    "network": NetworkForCommand(project=b"/p", cwd=b"/p", argv=argv),
    "egress": Egress(project=b"/p", cwd=b"/p", argv=argv, hosts=("example.org",), run="r", sandbox="s"),
    "readable": ReadablePath(project=b"/p", cwd=b"/p", argv=argv, path=b"/opt/x", run="r", sandbox="s"),
    "unsandboxed": Unsandboxed(project=b"/p", cwd=b"/p", argv=argv),
    "as-root": AsRoot(project=b"/p", run="r", sandbox="s"),
}
request = kinds[given["kind"]]
question = make_question(request, request.scopes, wait_s=given["wait_s"])
if given["text"]:
    question = question.replace(text=given["text"], lines=(given["text"],))
lock = os.fsencode(given["lock"]) if given["lock"] else None
approver = approvers.TerminalApprover(lock=lock, settle_s=given["settle_s"])
try:
    answer = approver.ask(question)
    said = [type(answer).__name__, getattr(answer, "scope", ""), getattr(answer, "reason", "")]
    assert answer.digest == question.digest
    nobody_saw_it = said[2].startswith(("there is no terminal", "the program that asks", "another question"))
    assert getattr(answer, "is_unseen", False) == nobody_saw_it
except KeyboardInterrupt:
    said = ["KeyboardInterrupt", "", ""]
print(json.dumps(said), flush=True)
"""

ASKED = "anything else = Deny] "


class Person:
    """Somebody at a terminal: sees what is written there, and types."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        self.seen = ""

    def type(self, keys: str | bytes) -> None:
        os.write(self.master, keys.encode() if isinstance(keys, str) else keys)

    def look(self, for_s: float = 0.0) -> str:
        """Read what there is to see."""
        deadline = time.monotonic() + for_s
        while select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            self.seen += os.read(self.master, 65536).decode("utf-8", "replace")
        return self.seen

    def wait_for(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + 20
        while self.seen.count(text) < times:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 65536).decode("utf-8", "replace")

    def modes(self) -> list[Any]:
        return termios.tcgetattr(self.slave)

    def hang_up(self) -> None:
        for fd in (self.master, self.slave):
            if fd >= 0:
                os.close(fd)
        self.master = self.slave = -1


class Asking:
    """The program that asks, and its standard streams."""

    def __init__(self, person: Person, **given: Any) -> None:
        self.person = person
        usual = {
            "tty": os.ttyname(person.slave),
            "kind": "network",
            "argv": ["git", "fetch"],
            "wait_s": 20.0,
            "settle_s": 0.05,
            "output": "",
            "without": [],
            "background": False,
            "text": "",
            "lock": "",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps(usual | given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"TERM": "xterm"},
        )

    def answer(self, keys: str | bytes, settle_s: float = 0.4) -> None:
        """Type when the question has been there for a while."""
        self.person.wait_for(ASKED)
        time.sleep(settle_s)
        self.person.type(keys)

    def result(self) -> list[str]:
        """Return the kind of the answer, its scope and its reason."""
        stdout, _ = self.process.communicate(timeout=30)
        said = json.loads(stdout.splitlines()[-1])
        assert isinstance(said, list)
        return said

    def verdict(self) -> tuple[str, str]:
        kind, scope, _ = self.result()
        return kind, scope


@contextmanager
def asking(person: Person, **given: Any) -> Iterator[Asking]:
    program = Asking(person, **given)
    with program.process as process:
        try:
            yield program
        finally:
            process.kill()


def visible(written: str) -> str:
    """Return what a terminal shows of it: a small one, which knows strings, sequences, and what ends them."""
    shown, state, concealed = "", "text", False
    sequence = ""
    for character in written:
        if character == "\x18":
            state = "text"
        elif character == "\x1b":
            state = "escape"
        elif state == "escape":
            state, sequence = {"[": "sequence", "]": "string", "P": "string", "(": "set"}.get(character, "text"), ""
        elif state == "set":
            state = "text"
        elif state == "string":
            state = "text" if character == "\x07" else state
        elif state == "sequence":
            sequence += character
            if "@" <= character <= "~":
                state = "text"
                concealed = sequence == "8m" or (concealed and sequence not in ("0m", "m", "!p"))
        elif not concealed and character >= " ":
            shown += character
    return shown


# Leads a session on the terminal, which is all of its streams but those that are named, then becomes the program
SEATED = """
import os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
for number in map(int, sys.argv[2].split()):
    os.dup2(fd, number)
os.execv(sys.argv[3], sys.argv[3:])
"""


UNSPILL = str(Path(sys.executable).with_name("unspill"))


def seated(
    person: Person, *words: str, cwd: Path, streams: str = "0 1 2", program: str = UNSPILL
) -> "subprocess.Popen[bytes]":
    """Start a program at a person's terminal; streams that are not the terminal are pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", SEATED, os.ttyname(person.slave), streams, program, *words],
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=os.environ | {"TERM": "xterm", "NO_COLOR": "1", "UNSPILL_PAGER": "cat"},
    )


def at_terminal(*words: str, cwd: Path, answer: str = "", program: str = UNSPILL) -> tuple[int, str]:
    """Have `unspill` run at a terminal, type an answer to what it asks, and return its code and what was seen."""
    person = Person()
    try:
        with seated(person, *words, cwd=cwd, program=program) as process:
            if answer:
                person.wait_for(ASKED)
                time.sleep(0.8)
                person.type(answer)
            while process.poll() is None:
                person.look(0.05)
            return process.returncode, person.look(0.05).replace("\r\n", "\n")
    finally:
        person.hang_up()
