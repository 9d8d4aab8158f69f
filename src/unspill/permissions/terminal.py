# SPDX-License-Identifier: Apache-2.0
"""Ask on the person's own terminal, never on the streams of a command.

Only what is typed after the question could have been read counts, and only a word that can mean nothing but yes.
The terminal is left with the modes that it had.
"""

from __future__ import annotations

import fcntl
import os
import select
import termios
import time

from unspill.changes.quote import TERMINAL_RESET
from unspill.model.permission import Allowed, Denied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.permission import Answer, Question
    from unspill.model.rules import Scope

# Nobody reads a question faster than this: what arrives sooner was typed for something else.
SETTLE_S = 0.4
SHOWN_AGAIN = 5

_CLEAR_STATE = TERMINAL_RESET
_WORDS: dict[str, Scope] = {"y": "once", "yes": "once", "run": "run", "sandbox": "sandbox", "always": "always"}
_ELSEWHERE = "Run it on a terminal, or let it wait in the queue (`--ask queue`) for `unspill approve`."
# Without letters and digits that are mistaken for others.
_LETTERS = "abcdefghkmnpqrstuvwxyz"


class Terminal:
    """The approver for a person at a terminal. `lock` is a file by which processes take turns."""

    __slots__ = ("_lock", "_path", "_settle_s")

    def __init__(self, *, lock: bytes | None = None, path: bytes = b"/dev/tty", settle_s: float = SETTLE_S) -> None:
        self._path = path
        self._lock = lock
        self._settle_s = settle_s

    def ask(self, question: Question) -> Answer:
        """Ask, and wait for an answer or the deadline."""
        deadline = time.monotonic() + question.wait_s
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return _unseen(question, "there is no terminal to ask on", _ELSEWHERE)
        try:
            # In the background a read or a change of modes would stop the whole process
            if os.tcgetpgrp(fd) != os.getpgrp():
                return _unseen(question, "the program that asks is in the background", _ELSEWHERE)
            with _Turn(self._lock, deadline) as is_ours:
                if not is_ours:
                    return _unseen(question, "another question was not answered in time")
                return self._ask(_Line(fd, deadline), question)
        except (OSError, termios.error):
            return _denied(question, "the terminal went away")
        finally:
            os.close(fd)

    def _ask(self, line: _Line, question: Question) -> Answer:
        nonce = _nonce() if question.request.is_dangerous else ""
        with line:
            for _ in range(SHOWN_AGAIN):
                line.write(_lines(question, nonce))
                said = line.read(self._settle_s)
                if said != "show" or not question.whole:
                    return _judged(question, said, nonce)
                line.write(["", *question.whole])
        return _denied(question, "it was shown often enough")


class _Turn:
    """One question at a time: waits for the file's lock until the deadline, and says whether it came."""

    __slots__ = ("_deadline", "_fd", "_path")

    def __init__(self, path: bytes | None, deadline: float) -> None:
        self._path = path
        self._deadline = deadline
        self._fd = -1

    def __enter__(self) -> bool:
        if self._path is None:
            return True
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            return self._wait()
        except BaseException:
            os.close(self._fd)
            raise

    def _wait(self) -> bool:
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                if time.monotonic() > self._deadline:
                    return False
                time.sleep(0.05)

    def __exit__(self, *_rest: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class _Line:
    """A terminal in modes of ours: lines are edited by the kernel and end with return; written to without blocking."""

    __slots__ = ("_before", "_deadline", "_fd")

    def __init__(self, fd: int, deadline: float) -> None:
        self._fd = fd
        self._deadline = deadline

    def __enter__(self) -> None:
        self._before = termios.tcgetattr(self._fd)
        modes = termios.tcgetattr(self._fd)
        modes[0] = (modes[0] | termios.ICRNL) & ~(termios.INLCR | termios.IGNCR)
        modes[1] |= termios.OPOST | termios.ONLCR
        modes[3] |= termios.ICANON | termios.ECHO | termios.ECHOE | termios.ISIG
        termios.tcsetattr(self._fd, termios.TCSANOW, modes)

    def __exit__(self, *_rest: object) -> None:
        # The rest of what was typed was for us, not for whoever reads next
        termios.tcflush(self._fd, termios.TCIFLUSH)
        termios.tcsetattr(self._fd, termios.TCSANOW, self._before)

    def write(self, lines: list[str]) -> None:
        is_dumb = os.environ.get("TERM", "dumb") == "dumb"
        text = "\n".join("".join(map(_printable, line)) for line in lines)
        rest = memoryview((b"" if is_dumb else _CLEAR_STATE) + text.encode("utf-8", "replace"))
        while rest and self._wait(select.POLLOUT):
            rest = rest[os.write(self._fd, rest) :]

    def read(self, settle_s: float) -> str | None:
        """Return the line that is typed from now on; None for none, for more than one, and at the end of input."""
        time.sleep(settle_s)
        termios.tcflush(self._fd, termios.TCIFLUSH)
        if not self._wait(select.POLLIN):
            return None
        said = os.read(self._fd, 4096)
        # A second line that is there already was pasted, so nobody answered the question with the first; and a
        # process that was stopped for a while finds what was typed long after its time
        if not said.endswith(b"\n") or _is_ready(self._fd) or time.monotonic() > self._deadline:
            return None
        return said[:-1].decode("utf-8", "replace")

    def _wait(self, what: int) -> bool:
        poll = select.poll()
        poll.register(self._fd, what)
        left_s = self._deadline - time.monotonic()
        return left_s > 0 and any(event & what for _, event in poll.poll(left_s * 1000))


def _is_ready(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(20))


def _lines(question: Question, nonce: str) -> list[str]:
    shown = ["", "unspill asks:", f"  {question.text}", *(f"  {line}" for line in question.lines)]
    if question.whole:
        shown.append("  Type `show` to see all of it.")
    words = {choice.scope: choice.label for choice in question.choices if choice.scope is not None}
    if nonce:
        shown.append(f"  To allow it, type this word first: {nonce}")
    first = f"{nonce} yes" if nonce else "y"
    others = {f"{nonce} {scope}".strip(): words[scope] for scope in words if scope != "once"}
    if not others:
        return [*shown, f"[{first} = {words.get('once', 'Allow')}, anything else = Deny] "]
    typed = {first: words.get("once", "Allow"), **others}
    widest = max(map(len, typed))
    return [*shown, *(f"  {word:<{widest}} = {label}" for word, label in typed.items()), "[anything else = Deny] "]


def _judged(question: Question, said: str | None, nonce: str) -> Answer:
    if said is None:
        return _denied(question, "it was not answered in time, or not by one line that was typed")
    if nonce:
        first, _, said = said.strip().partition(" ")
        if first != nonce:
            return _denied(question, "the word was not typed")
    scope = _WORDS.get(said.strip().lower())
    if scope is None or scope not in question.scopes:
        return _denied(question, "")
    return Allowed(digest=question.digest, by="terminal", scope=scope)


def _nonce() -> str:
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(5))


def _printable(character: str) -> str:
    return character if character.isprintable() else "?"


def _unseen(question: Question, reason: str, remedy: str = "") -> Denied:
    return _denied(question, reason, remedy).replace(is_unseen=True)


def _denied(question: Question, reason: str, remedy: str = "") -> Denied:
    return Denied(digest=question.digest, by="terminal", reason=reason, remedy=remedy)
