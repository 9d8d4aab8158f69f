# SPDX-License-Identifier: Apache-2.0
"""Somebody who answers every question in the same way, and a sandbox that asks them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.support import NamedByHost
from unspill import Callback, Question, Sandbox

if TYPE_CHECKING:
    from tests.support import Ground
    from unspill.model.policy import Scope


class Person:
    """Answers every question in the same way, and remembers them."""

    def __init__(self, answer: Scope | bool = True) -> None:
        self.answer = answer
        self.asked: list[Question] = []

    def ask(self, question: Question) -> Scope | bool:
        self.asked.append(question)
        return self.answer

    @property
    def texts(self) -> list[str]:
        return [question.text for question in self.asked]


def opened(ground: Ground, person: Person, name: str = "default", **settings: Any) -> Sandbox:
    sandbox = NamedByHost(ground.project, name=name, policy=ground.policy(**settings), approver=Callback(person.ask))
    ground.opened.append(sandbox)
    return sandbox
