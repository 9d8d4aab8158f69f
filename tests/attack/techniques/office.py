# SPDX-License-Identifier: Apache-2.0
"""Requests, and a broker that answers them, for the techniques about permissions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from tests.attack.arena import Arena
from unspill import UnspillError
from unspill.model.permission import Egress, NetworkForCommand, Question, ReadablePath
from unspill.model.policy import Policy
from unspill.permissions.approvers import Callback
from unspill.permissions.audit import Audit
from unspill.permissions.broker import Broker
from unspill.store.db import Store

if TYPE_CHECKING:
    from unspill.model.permission import Request
    from unspill.permissions.approvers import Approver

NOW_NS: Final = 1_000_000_000_000_000_000
DAY_NS: Final = 86_400 * 1_000_000_000
PROJECT: Final = b"/home/ann/project"
OCCASION: Final[dict[str, Any]] = {
    "project": PROJECT,
    "sandbox": "1" * 16,
    "run": "2" * 16,
    "cwd": PROJECT,
    "names": ("HOME", "PATH"),
}


class Office:
    """A broker over the arena's store; counts how often a person was asked."""

    def __init__(self, arena: Arena, **settings: Any) -> None:
        self.store = Store.open(os.fsencode(arena.ground.state))
        self.asked = 0
        self.settings = settings
        self.audit = Audit(os.fsencode(arena.ground.state) + b"/audit")

    def obtains(self, request: Request, approver: Approver) -> bool:
        """Tell whether a request is allowed."""
        own = b"/home/ann/.local/state/unspill"
        usual: dict[str, Any] = {"policy": Policy(), "home": b"/home/ann", "own": (own,)}
        broker = Broker(
            approver,
            grants=self.store.grants,
            requests=self.store.requests,
            audit=self.audit,
            **usual | self.settings,
        )
        try:
            broker.obtain(request)
        except UnspillError:
            return False
        return True

    def saying(self, answer: Any) -> Callback:
        def said(question: Question) -> Any:
            self.asked += 1
            return answer(question) if callable(answer) else answer

        return Callback(said)


def network(*argv: bytes, **more: Any) -> NetworkForCommand:
    return NetworkForCommand(**OCCASION | {"argv": argv or (b"git", b"fetch")} | more)


def egress(*argv: bytes, **more: Any) -> Egress:
    return Egress(**OCCASION | {"argv": argv or (b"git", b"fetch"), "hosts": ("example.org",)} | more)


def readable(**more: Any) -> ReadablePath:
    return ReadablePath(**OCCASION | {"argv": (b"git", b"fetch"), "path": b"/opt/tool"} | more)
