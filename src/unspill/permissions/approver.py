# SPDX-License-Identifier: Apache-2.0
"""Who answers: the protocol that every approver keeps to, and the two that need neither a terminal nor the store.

An approver only answers. That the question was fit to be asked, that the answer is to this question and no wider than
was offered, and what is remembered of it, is the desk's business.
"""

from __future__ import annotations

import time

from unspill.model.permission import Allowed, Denied

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from unspill.model.permission import Answer, Question
    from unspill.model.rules import Scope
else:
    Protocol = object


class Approver(Protocol):
    """Puts a question to a person and returns what they said.

    It answers within `question.wait_s` and names `question.digest` in its answer. No answer, an unclear one and one
    that came too late are denials; one with `is_unseen` says that nobody was shown the question. It shows `text` and
    `lines` as they are, offers `choices` and no others, and gives the asking program no way to answer by itself.
    """

    def ask(self, question: Question) -> Answer:
        """Return the answer to a question."""


class Withdrawing:
    """What an approver is besides that can take a question back from whoever was asked."""

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
            reason="nobody is there to be asked",
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
