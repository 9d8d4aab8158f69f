# SPDX-License-Identifier: Apache-2.0
"""A permission in the hand of who asked for it: good for that very request, and for one use.

Whoever performs takes it just before; a second use, or another request than the one that was allowed, is refused.
"""

from __future__ import annotations

from _thread import allocate_lock

from unspill.errors import DeniedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.permission import GrantId, Request


class Permit:
    """What `Desk.obtain` returns. `rule` says what or who allowed it."""

    __slots__ = ("_lock", "grant", "request", "rule")

    def __init__(self, request: Request, rule: str, grant: GrantId | None = None) -> None:
        self.request = request
        self.rule = rule
        self.grant = grant
        # Taken by the first use and never given back.
        self._lock = allocate_lock()

    def take(self, request: Request) -> None:
        """Use it up for a request.

        Raises:
            DeniedError: it is for another request, or was used already.
        """
        if request != self.request:
            raise DeniedError("Permission denied: what is to be done is not what was allowed.", remedy="Ask again.")
        if not self._lock.acquire(blocking=False):
            raise DeniedError("Permission denied: it was given once and has been used.", remedy="Ask again.")
