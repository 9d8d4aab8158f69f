# SPDX-License-Identifier: Apache-2.0
"""How often a person may be asked: who refused three times has answered, and ten questions in five minutes are enough.

A question that was never put before anybody is not one of them. Pure: counts what the store remembers, so it holds
for all processes that ask about one project.
"""

from __future__ import annotations

from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.store.requests import Recent

SECOND = 1_000_000_000


class RateLimit(Record):
    """The bounds. `equal` counts questions that differ in nothing and were not allowed, `many` counts all."""

    equal: int = 3
    equal_s: float = 600.0
    many: int = 10
    many_s: float = 300.0

    def since(self, now_ns: int) -> int:
        """Return from when on questions count."""
        return now_ns - int(max(self.equal_s, self.many_s) * SECOND)


class Pause(Record):
    """Nobody is asked for a while."""

    reason: str
    wait_s: float

    @property
    def remedy(self) -> str:
        """What helps."""
        minutes = max(1, -int(-self.wait_s // 60))
        return f"Wait {minutes} min, or put what is needed into your own configuration."


def find_pause(recent: Iterable[Recent], key: str, now_ns: int, limit: RateLimit) -> Pause | None:
    """Return why a question must wait, if it must."""
    moments = [(asked.asked_ns, asked.key == key and asked.state != "allowed") for asked in recent]
    equal = sorted(at for at, is_equal in moments if is_equal and at > now_ns - limit.equal_s * SECOND)
    if len(equal) >= limit.equal:
        reason = f"the same was asked {len(equal)} times and not allowed"
        return Pause(reason=reason, wait_s=_until(equal[-limit.equal], limit.equal_s, now_ns))
    many = sorted(at for at, _ in moments if at > now_ns - limit.many_s * SECOND)
    if len(many) >= limit.many:
        reason = f"{len(many)} questions were asked within {round(limit.many_s / 60)} min"
        return Pause(reason=reason, wait_s=_until(many[-limit.many], limit.many_s, now_ns))
    return None


def _until(oldest_ns: int, window_s: float, now_ns: int) -> float:
    # A moment of the future comes from a clock that was set back; that must not pause for longer than the window
    return min(window_s, max(0.0, oldest_ns / SECOND + window_s - now_ns / SECOND))
