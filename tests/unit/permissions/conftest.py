# SPDX-License-Identifier: Apache-2.0
"""A store with the tables of permissions, and a broker over it whose clock and approver the test moves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.permissions.given import HOME, OWN
from unspill.model.permission import Question
from unspill.model.policy import Policy
from unspill.permissions.approvers import Callback
from unspill.permissions.audit import Audit
from unspill.permissions.broker import Broker
from unspill.store.db import Store
from unspill.store.permissions import GrantTable, RequestTable

if TYPE_CHECKING:
    from unspill.model.permission import Answer
    from unspill.model.policy import Scope

    Said = Answer | Scope | bool


@dataclass
class Office:
    """A broker, and all that lies around it."""

    grants: GrantTable
    requests: RequestTable
    directory: bytes
    now_ns: int = 1_000_000_000_000_000_000
    asked: list[Question] = field(default_factory=list)

    def broker(self, answer: Said | Callable[[Question], Said] = False, **settings: Any) -> Broker:
        def ask(question: Question) -> Said:
            self.asked.append(question)
            return answer(question) if callable(answer) else answer

        given: dict[str, Any] = {"policy": Policy(), "home": HOME, "own": OWN, "now_ns": lambda: self.now_ns} | settings
        return Broker(
            given.pop("approver", Callback(ask)),
            grants=self.grants,
            requests=self.requests,
            audit=Audit(self.directory),
            **given,
        )

    def recorded(self) -> list[dict[str, Any]]:
        return list(Audit(self.directory).events())

    def pass_time(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1_000_000_000)


@pytest.fixture
def state(tmp_path: Path) -> bytes:
    return os.fsencode(tmp_path / "state")


@pytest.fixture
def store(state: bytes) -> Iterator[Store]:
    with Store.open(state) as store:
        yield store


@pytest.fixture
def office(store: Store, state: bytes) -> Office:
    return Office(store.grants, store.requests, state + b"/audit")
