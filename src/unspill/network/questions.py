# SPDX-License-Identifier: Apache-2.0
"""Destinations that no rule covers, put to somebody while their clients wait for the answer.

Each is asked once at a time, by a thread of its own that may wait for minutes; the proxy's thread never does. What was
refused is not asked again in the same run, however often a client tries. Only while a client waits is time given back
to the command, and never more than one person's patience in all: a question is no way to run for ever.
"""

from __future__ import annotations

import time
from _thread import allocate_lock, start_new_thread

from unspill.policy.hosts import WEB_PORTS, AllowedHost, Refused, parse_allowed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.policy.hosts import Destination

    # Returns nothing where it was allowed, else one clause that says why not
    Ask = Callable[[str], str]

_AT_ONCE = 8
_MOST = 256


class Questions:
    """What clients of one proxy wait to be told. `rouse` makes the loop look at `answers`."""

    def __init__(self, ask: Ask, rouse: Callable[[], None], *, most_s: float = 300.0) -> None:
        self._ask = ask
        self._rouse = rouse
        self._most_s = most_s
        self._lock = allocate_lock()  # protects the fields below
        self._waiting: dict[str, list[object]] = {}
        self._answered: list[tuple[str, str]] = []
        self._refused: dict[str, str] = {}
        self._since: float | None = None
        self._waited_s = 0.0

    def put(self, who: object, destination: Destination) -> None:
        """Have a destination asked for; `answers` gives the result together with `who`.

        Raises:
            Refused: It was refused before, or too much is being asked already.
        """
        rule = rule_for(destination).text
        with self._lock:
            if rule in self._refused:
                raise Refused("host", self._refused[rule])
            if rule in self._waiting:
                self._waiting[rule].append(who)
                self._count()
                return
            if len(self._waiting) >= _AT_ONCE:
                raise Refused("host", f"{_AT_ONCE} hosts are being asked for already")
            if len(self._refused) >= _MOST:
                raise Refused("host", f"{_MOST} hosts were asked for and refused, and no more are")
            self._waiting[rule] = [who]
            self._count()
        try:
            start_new_thread(self._work, (rule,))
        except RuntimeError:
            with self._lock:
                del self._waiting[rule]
                self._count()
            raise Refused("host", "nobody can be asked: no more threads for this user") from None

    def leave(self, who: object) -> None:
        """Let go of a client that does not wait any more."""
        with self._lock:
            for waiting in self._waiting.values():
                if who in waiting:
                    waiting.remove(who)
            self._count()

    def answers(self) -> list[tuple[list[object], AllowedHost, Refused | None]]:
        """Return what was answered since the last time: who waited, the rule, and why it was refused if it was."""
        with self._lock:
            answered, self._answered = self._answered, []
            waited = [(self._waiting.pop(rule), rule, why) for rule, why in answered]
            self._count()
        return [(who, parse_allowed(rule), Refused("host", why) if why else None) for who, rule, why in waited]

    def waited_s(self) -> float:
        """Return how long clients have waited for somebody so far, up to the most; from any thread."""
        with self._lock:
            under_way_s = 0.0 if self._since is None else time.monotonic() - self._since
            return min(self._most_s, self._waited_s + under_way_s)

    def _work(self, rule: str) -> None:
        try:
            why = self._ask(rule)
        except Exception as error:
            why = f"the question failed: {type(error).__name__}"
        with self._lock:
            if why:
                self._refused[rule] = why
            self._answered.append((rule, why))
        self._rouse()

    def _count(self) -> None:
        """Begin or end to count, by whether anybody waits."""
        now = time.monotonic()
        if self._since is not None:
            self._waited_s += now - self._since
        self._since = now if any(self._waiting.values()) else None


def rule_for(destination: Destination) -> AllowedHost:
    """Return the narrowest rule that covers a destination: both ports of the web are one."""
    port = None if destination.port in WEB_PORTS else destination.port
    return AllowedHost(host=destination.host, port=port)
