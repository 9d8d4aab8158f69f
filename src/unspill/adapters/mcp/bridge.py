# SPDX-License-Identifier: Apache-2.0
"""Questions from the threads of one call to the event loop, and answers back.

Whoever asks waits in a thread, with a command that waits for them; several may ask at once. Every question has a
deadline, and whatever happens to the client or to the loop, each ends with an answer: the negative one if need be.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from typing import TYPE_CHECKING

from unspill.model.permission import Denied

if TYPE_CHECKING:
    from unspill.model.permission import Answer, Question

# So long a client may take to come back with an answer; afterwards what it would show is not accepted any more
LONGEST_S = 600.0


class Pending:
    """A question that waits, in a thread. `is_put` when the client has been asked."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.is_put = False
        self.deadline = time.monotonic() + min(question.wait_s, LONGEST_S)
        self._answer: concurrent.futures.Future[Answer] = concurrent.futures.Future()

    @property
    def left_s(self) -> float:
        """How long it waits still."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def is_open(self) -> bool:
        """Whether anybody waits for an answer still."""
        return not self._answer.done() and self.left_s > 0

    def give(self, answer: Answer) -> None:
        """Answer it, in the loop; whatever is said after the first answer counts for nothing."""
        if not self._answer.done():
            self._answer.set_result(answer)

    def deny(self, reason: str, remedy: str = "") -> None:
        """Answer it in the negative, for a reason of ours."""
        self.give(self._denied(reason, remedy))

    def wait(self) -> Answer:
        """Return the answer, in the thread; at the deadline, a denial."""
        try:
            return self._answer.result(self.left_s)
        except concurrent.futures.TimeoutError:
            return self._denied("nobody answered in time", "Call again when the user is there to answer.")

    def _denied(self, reason: str, remedy: str) -> Denied:
        return Denied(
            digest=self.question.digest, by="mcp server", reason=reason, remedy=remedy, is_unseen=not self.is_put
        )


class Bridge:
    """The approver of one call. `ask` is for threads, all else for the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: dict[str, Pending] = {}
        self._closed_because = ""
        self.news = asyncio.Event()

    def ask(self, question: Question) -> Answer:
        """Wait in this thread until the question is answered or over."""
        pending = Pending(question)
        try:
            self._loop.call_soon_threadsafe(self._add, pending)
        except RuntimeError:  # the loop has ended
            pending.deny("the server is ending")
        answer = pending.wait()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._waiting.pop, question.id, None)
        return answer

    def take_new(self) -> tuple[Pending, ...]:
        """Return the questions that the client has not been asked yet, and count them as asked."""
        self.news.clear()
        new = tuple(pending for pending in self._waiting.values() if not pending.is_put and pending.is_open)
        for pending in new:
            pending.is_put = True
        return new

    def close(self, reason: str) -> None:
        """Deny what waits, and what is asked from now on."""
        self._closed_because = reason
        for pending in self._waiting.values():
            pending.deny(reason)
        self.news.set()

    def _add(self, pending: Pending) -> None:
        if self._closed_because:
            pending.deny(self._closed_because)
            return
        self._waiting[pending.question.id] = pending
        self.news.set()
