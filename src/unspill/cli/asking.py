# SPDX-License-Identifier: Apache-2.0
"""Whom the command line asks: the person at the terminal, whoever answers the queue, or nobody.

Loaded by every run, so what it needs is imported when there is a question.
"""

from __future__ import annotations

import sys
import time

from unspill.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.permission import Answer, Question

WHOM = ("terminal", "queue", "deny")


class PersonAtHand:
    """The approver that `--ask` names, or else the person's own configuration."""

    __slots__ = ("_whom",)

    def __init__(self, whom: str | None) -> None:
        """Take the value of `--ask`.

        Raises:
            UsageError: it is none.
        """
        if whom is not None and whom not in WHOM:
            raise UsageError(f"--ask is not one of {', '.join(WHOM)}: {whom!r}")
        self._whom = whom

    def ask(self, question: Question) -> Answer:
        """Put the question to them."""
        from unspill.permissions.approvers import DenyAll
        from unspill.sandbox.locations import find_own_locations
        from unspill.sandbox.settings import load_policy

        locations = find_own_locations()
        whom = self._whom or load_policy(locations, question.request.project, None).permissions.approver
        if whom == "deny":
            return DenyAll().ask(question)
        if whom == "queue":
            return _wait_for_answer(locations.state, question)
        from unspill.permissions.approvers import Terminal

        return Terminal(lock=locations.state + b"/locks/terminal").ask(question)


def _wait_for_answer(state: bytes, question: Question) -> Answer:
    from unspill.permissions.approvers import Queue
    from unspill.store.db import Store

    until = time.strftime("%H:%M:%S", time.localtime(time.time() + question.wait_s))
    print(f"unspill: waits until {until} for: unspill approve {question.id}", file=sys.stderr, flush=True)
    with Store.open(state) as store:
        return Queue(store.requests).ask(question)
