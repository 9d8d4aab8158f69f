# SPDX-License-Identifier: Apache-2.0
"""Who answers a question: the person at the terminal, whoever uses `unspill approve`, a function, or nobody.

An approver only answers. The broker checks that the question is fit to be asked, that the answer is to this question
and no wider than was offered, and remembers it.
"""

from __future__ import annotations

import fcntl
import os
import select
import termios
import time
from typing import Protocol

from unspill.errors import UsageError
from unspill.model.permission import UNKNOWN_PROGRAM, Allowed, Denied
from unspill.model.policy import SCOPES
from unspill.permissions.question import make_question
from unspill.policy.paths import TERMINAL_RESET, quote, wrap
from unspill.store.permissions import AskedRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unspill.model.permission import Answer, Question, RequestId
    from unspill.model.policy import Scope
    from unspill.store.permissions import RequestState, RequestTable

SECOND_NS = 1_000_000_000
# How long after its deadline an answer can still be taken by who asks again
KEPT_S = 600.0

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
# Nobody reads a question faster than this: what arrives sooner was typed for something else.
_SETTLE_S = 0.4
_MOST_SHOWN = 5
_CLEAR_STATE = TERMINAL_RESET
_WORDS: dict[str, Scope] = {"y": "once", "yes": "once", **{scope: scope for scope in SCOPES if scope != "once"}}
# Without letters and digits that are mistaken for others.
_LETTERS = "abcdefghkmnpqrstuvwxyz"
_ELSEWHERE = "Run it on a terminal, or let it wait in the queue (`--ask queue`) for `unspill approve`."
_SOONER = "Answer sooner with `unspill approve`, or let it wait longer."
_UNSURE = "what it starts or reads may have changed by the time of an answer"
_UNSURE_REMEDY = "Start a program that no command can change, such as one of /usr/bin, and give its input as text."


class Approver(Protocol):
    """Puts a question to a person and returns what they said.

    It answers within `question.wait_s` and names `question.digest` in its answer. No answer, an unclear one and one
    that came too late are denials; one with `is_unseen` says that nobody was shown the question. It shows `text` and
    `lines` as they are, offers `choices` and no others, and gives the asking program no way to answer by itself.
    """

    def ask(self, question: Question) -> Answer:
        """Return the answer to a question."""


class Withdrawing:
    """An approver that can take a question back from whoever was asked."""

    __slots__ = ()

    def withdraw(self, question: Question) -> None:
        """End a question that nobody needs an answer to any more; its `ask` returns soon."""
        raise NotImplementedError


class DenyAll:
    """For when nobody is there: everything that would be asked is denied."""

    __slots__ = ()

    def ask(self, question: Question) -> Answer:
        """Deny."""
        return Denied(
            digest=question.digest,
            by="deny-all",
            reason="there is nobody to ask",
            remedy="Choose who answers, on a terminal or by `unspill approve`: `--ask`, or `approver=` in Python.",
            is_unseen=True,
        )


class Callback:
    """Lets a function of the embedding program answer: True, False, one of the offered scopes, or an Answer."""

    __slots__ = ("_answer", "_name")

    def __init__(self, answer: Callable[[Question], Answer | Scope | bool], *, name: str = "callback") -> None:
        self._answer = answer
        self._name = name

    def ask(self, question: Question) -> Answer:
        """Ask the function; whatever is not clearly a yes in time is a no."""
        deadline = time.monotonic() + question.wait_s
        answer = self._answer(question)
        if time.monotonic() > deadline:
            return Denied(digest=question.digest, by=self._name, reason="the answer came too late")
        if isinstance(answer, Allowed | Denied):
            return answer
        scope = "once" if answer is True else answer
        for offered in question.scopes:
            if offered == scope:
                return Allowed(digest=question.digest, by=self._name, scope=offered)
        return Denied(digest=question.digest, by=self._name)


class TerminalApprover:
    """Asks the person at their own terminal, never on the streams of a command.

    Only what is typed after the question could have been read counts, and only a word that can mean nothing but yes.
    The terminal is left with the modes that it had. `lock` is a file by which processes ask one after the other.
    """

    __slots__ = ("_lock", "_path", "_settle_s")

    def __init__(self, *, lock: bytes | None = None, path: bytes = b"/dev/tty", settle_s: float = _SETTLE_S) -> None:
        self._path = path
        self._lock = lock
        self._settle_s = settle_s

    def ask(self, question: Question) -> Answer:
        """Ask, and wait for an answer or the deadline."""
        deadline = time.monotonic() + question.wait_s
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return _denied(question, "terminal", "there is no terminal to ask on", _ELSEWHERE, is_unseen=True)
        try:
            # In the background a read or a change of modes would stop the whole process
            if os.tcgetpgrp(fd) != os.getpgrp():
                reason = "the program that asks is in the background"
                return _denied(question, "terminal", reason, _ELSEWHERE, is_unseen=True)
            with _TerminalLock(self._lock, deadline) as is_ours:
                if not is_ours:
                    return _denied(question, "terminal", "another question was not answered in time", is_unseen=True)
                return self._ask(_TerminalLine(fd, deadline), question)
        except (OSError, termios.error):
            return _denied(question, "terminal", "the terminal went away")
        finally:
            os.close(fd)

    def _ask(self, line: _TerminalLine, question: Question) -> Answer:
        nonce = _nonce() if question.request.is_dangerous else ""
        with line:
            for _ in range(_MOST_SHOWN):
                line.write(_terminal_lines(question, nonce))
                said = line.read(self._settle_s)
                if said != "show" or not question.whole:
                    return _typed_answer(question, said, nonce)
                line.write(["", *question.whole])
        return _denied(question, "terminal", "it was shown often enough")


class Queue(Withdrawing):
    """Lets the request wait in the store until somebody answers it by `unspill approve ID` or `unspill deny ID`.

    Bound on both sides: who answers names the digest of what they were shown, and who waits accepts an answer only if
    it names the digest of what was asked. Whatever happens to the row in between, it ends in a denial.
    """

    __slots__ = ("_requests",)

    def __init__(self, requests: RequestTable) -> None:
        self._requests = requests

    def ask(self, question: Question) -> Answer:
        """Put the question into the store and wait for its answer or its deadline."""
        _put(self._requests, question)
        deadline = time.monotonic() + question.wait_s
        try:
            for _ in _pauses(deadline):
                answer = self._look(question)
                if answer is not None:
                    return answer
        except BaseException:
            self._requests.close(question.id, "expired")
            raise
        # From here on nobody can answer; an answer that was faster counts
        self._requests.close(question.id, "expired")
        return self._look(question) or _denied(question, "queue", "nobody answered in time", _SOONER)

    def withdraw(self, question: Question) -> None:
        """Let nobody answer it any more."""
        self._requests.close(question.id, "expired")

    def _look(self, question: Question) -> Answer | None:
        """Return the answer if there is one; None while there is none."""
        found = self._requests.find(question.id)
        if found is None:
            return _denied(question, "queue", "the request is gone", _SOONER)
        is_same = found.request.bounded() == question.request.bounded()
        if found.digest != question.digest or not is_same or not found.is_genuine:
            return _denied(question, "queue", "the request was changed while it waited", _SOONER)
        if found.state == "waiting" or found.state == "asked":
            return None
        by = f"queue ({found.answered_by})" if found.answered_by else "queue"
        is_allowed = found.state == "allowed" and found.scope in question.scopes
        # Taken, so that nobody else can use it who asks for the same
        if is_allowed and found.scope is not None and self._requests.take(found.id, question.digest):
            return Allowed(digest=question.digest, by=by, scope=found.scope)
        if found.state == "expired":
            return _denied(question, "queue", "nobody answered in time", _SOONER)
        reason = "another request for the same has used the answer" if is_allowed else found.reason
        return Denied(digest=question.digest, by=by, reason=reason)


class RetryQueue:
    """A queue for a program that can't wait, such as a model's tool: who asks the same again finds the answer to it.

    An answer is taken by one asker, once: by one that asks for the very same, in the same sandbox, with the same
    command; only the run may be another, since the command begins anew. `wait_s` is how long this call waits for the
    answer; `left_open` is what was asked here and waits still, by the id that the person answers to.
    """

    __slots__ = ("_requests", "_wait_s", "left_open")

    def __init__(self, requests: RequestTable, *, wait_s: float) -> None:
        self._requests = requests
        self._wait_s = wait_s
        self.left_open: dict[RequestId, str] = {}

    def ask(self, question: Question) -> Answer:
        """Return the answer that was given to the same, or is given soon; else say how it can be given.

        What waits is a question of its own: the one that is asked here ends with this call.
        """
        if UNKNOWN_PROGRAM in (question.request.script, question.request.stdin):
            return _not_yet(question, _UNSURE, _UNSURE_REMEDY)
        found = self._find(question)
        if found is None:
            # Of no run: the one that asks is over when the answer comes
            request = question.request.replace(run="")
            open_question = make_question(request, question.scopes, wait_s=question.wait_s)
            _put(self._requests, open_question)
            found = self._requests.find(open_question.id)
        deadline = time.monotonic() + min(self._wait_s, question.wait_s)
        for _ in _pauses(deadline):
            found = found and self._requests.find(found.id)
            if found is None or found.state != "waiting":
                break
        if found is None or not _is_same(found, question):
            return _not_yet(question, "the request is gone or was changed while it waited")
        return self._answer(question, found)

    def _answer(self, question: Question, found: AskedRequest) -> Answer:
        by = f"queue ({found.answered_by})" if found.answered_by else "queue"
        if found.state == "waiting":
            self.left_open[found.id] = question.text
            left_s = max(0, round((found.deadline_ns - time.time_ns()) / SECOND_NS))
            reason = f"nobody has answered yet: `unspill approve {found.id}`"
            remedy = f"Have the user do that within {left_s} s, then ask for the very same again."
            return _not_yet(question, reason, remedy)
        if found.state == "allowed" and found.scope in question.scopes and self._requests.take(found.id, found.digest):
            return Allowed(digest=question.digest, by=by, scope=found.scope)
        if found.state == "denied":
            return Denied(digest=question.digest, by=by, reason=found.reason or "the user said no", is_unseen=True)
        return _not_yet(question, "nobody answered in time, or another request for the same has used the answer")

    def _find(self, question: Question) -> AskedRequest | None:
        """Return the latest of the same that waits or that somebody answered, as long as that counts."""
        now_ns = time.time_ns()
        since_ns = now_ns - int((2 * question.wait_s + KEPT_S) * SECOND_NS)
        for found in self._requests.latest_of(question.request, since_ns):
            if not _is_same(found, question):
                continue
            is_answered = found.answered_digest == found.digest
            if found.state == "waiting" or (found.state == "denied" and is_answered):
                return found if now_ns < found.deadline_ns else None
            if found.state == "allowed" and is_answered:
                return found if now_ns < found.deadline_ns + int(KEPT_S * SECOND_NS) else None
        return None


def open_questions(requests: RequestTable, project: bytes | None = None) -> tuple[Question, ...]:
    """Return what waits for an answer, worded anew from the request itself; what is not genuine is left out."""
    now_ns = time.time_ns()
    waiting = requests.waiting(now_ns, project)
    return tuple(_question_of(asked, now_ns) for asked in waiting if asked.is_genuine)


def find_question(requests: RequestTable, request: RequestId) -> Question:
    """Return one question that waits for an answer.

    Raises:
        UsageError: there is no such question any more.
    """
    now_ns = time.time_ns()
    found = requests.find(request)
    if found is None or found.state != "waiting" or found.deadline_ns <= now_ns or not found.is_genuine:
        raise _not_waiting(request)
    return _question_of(found, now_ns)


def answer_question(
    requests: RequestTable, question: Question, *, scope: Scope | None, by: str, reason: str = ""
) -> None:
    """Answer a question that `find_question` or `open_questions` returned; without a scope it is denied.

    Raises:
        UsageError: that scope was not offered, or what waits under this id is not what was shown.
    """
    if scope is not None and scope not in question.scopes:
        raise UsageError(
            f"Request {question.id} can't be allowed with scope {scope!r}.",
            remedy=f"Offered: {', '.join(question.scopes)}.",
        )
    answered = requests.answer(question.id, question.digest, scope=scope, by=by, reason=reason, now_ns=time.time_ns())
    if not answered:
        raise _not_waiting(question.id)


def to_asked(question: Question, now_ns: int, state: RequestState = "asked") -> AskedRequest:
    """Return a question as the store keeps it."""
    return AskedRequest(
        id=question.id,
        request=question.request,
        digest=question.digest,
        asked_ns=now_ns,
        deadline_ns=now_ns + int(question.wait_s * SECOND_NS),
        scopes=question.scopes,
        state=state,
    )


def _put(requests: RequestTable, question: Question) -> None:
    """Let a question wait where anybody who may use the store can answer it."""
    requests.add(to_asked(question, time.time_ns(), "waiting"))


def _question_of(asked: AskedRequest, now_ns: int) -> Question:
    return make_question(
        asked.request, asked.scopes, wait_s=(asked.deadline_ns - now_ns) / SECOND_NS, identity=asked.id
    )


def _not_waiting(request: RequestId) -> UsageError:
    name = quote(request.encode("utf-8", "replace"))
    return UsageError(
        f"Request {name} is not waiting for an answer: it was answered, has expired, or never existed.",
        remedy="Run `unspill requests` to see what waits.",
    )


def _is_same(found: AskedRequest, question: Question) -> bool:
    is_same = found.request.replace(run="").bounded() == question.request.replace(run="").bounded()
    return found.is_genuine and is_same and type(found.request) is type(question.request)


def _not_yet(question: Question, reason: str, remedy: str = "") -> Denied:
    # The question that is asked here was shown to nobody; the one that waits counts by itself
    return _denied(question, "queue", reason, remedy, is_unseen=True)


def _denied(question: Question, by: str, reason: str, remedy: str = "", *, is_unseen: bool = False) -> Denied:
    return Denied(digest=question.digest, by=by, reason=reason, remedy=remedy, is_unseen=is_unseen)


def _pauses(deadline: float) -> Iterator[None]:
    """Return at once, then after longer and longer pauses, and a last time at the deadline."""
    yield
    pause_s = _SHORTEST_PAUSE_S
    while (left_s := deadline - time.monotonic()) > 0:
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)
        yield


class _TerminalLock:
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


class _TerminalLine:
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
        # A terminal that does not know its size says 0
        columns = os.get_terminal_size(self._fd).columns
        text = "\n".join(wrap("".join(map(_printable, line)), columns) for line in lines)
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


def _terminal_lines(question: Question, nonce: str) -> list[str]:
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


def _typed_answer(question: Question, said: str | None, nonce: str) -> Answer:
    if said is None:
        return _denied(question, "terminal", "it was not answered in time, or not by one line that was typed")
    if nonce:
        first, _, said = said.strip().partition(" ")
        if first != nonce:
            return _denied(question, "terminal", "the word was not typed")
    scope = _WORDS.get(said.strip().lower())
    if scope is None or scope not in question.scopes:
        return _denied(question, "terminal", "")
    return Allowed(digest=question.digest, by="terminal", scope=scope)


def _nonce() -> str:
    return "".join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(5))


def _printable(character: str) -> str:
    return character if character.isprintable() else "?"
