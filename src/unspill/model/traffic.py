# SPDX-License-Identifier: Apache-2.0
"""What went out of a sandbox through its egress proxy, and what was refused.

Host names in these records are printable ASCII, whatever the command sent."""

from __future__ import annotations

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    Verdict = Literal["open", "allowed", "denied", "failed", "cut"]
    DenialRule = Literal["form", "host", "port", "address", "server name", "request", "budget"]


class Connection(Record):
    """One connection that the proxy made, or tried to make, for a sandbox.

    `address` is the one that was checked and connected to, empty where there was none. Verdicts: open (still going on),
    allowed (ended by one of its ends), denied (refused after it was made: nothing of the request was sent), failed (no
    such name, nobody listens, too slow), cut (ended by us: budget, or it went on when the run was over).
    """

    host: str
    port: int
    address: str
    up: int
    down: int
    started_ns: int
    ended_ns: int | None
    verdict: Verdict

    @property
    def place(self) -> str:
        """Where it went, as a person writes it."""
        return _place(self.host, self.port)


class Denial(Record):
    """A connection that was refused, by which rule, and what would allow it.

    Rules: form (not a host name), host (not allowed), port (not allowed for this host), address (private, or the
    host's own), server name (TLS asks for another host), request (malformed, or asks for another host), budget.
    `reason` is why, in one clause: for what was asked for, that of whoever was asked.
    """

    host: str
    port: int
    rule: DenialRule
    remedy: str
    times: int = 1
    reason: str = ""

    @property
    def place(self) -> str:
        """Where it was to go, as a person writes it."""
        return _place(self.host, self.port)


class Traffic(Record):
    """All that went out of one run or was refused. `left_out` counts what was too much to be kept.

    `faults` are defects of ours that ended connections: told once, never stored.
    """

    connections: tuple[Connection, ...] = ()
    denials: tuple[Denial, ...] = ()
    left_out: int = 0
    faults: tuple[str, ...] = ()


class Budget(Record):
    """How many bytes may leave and enter a sandbox, all connections together; None is no bound."""

    up: int | None = None
    down: int | None = None


def _place(host: str, port: int) -> str:
    if not port:
        return host  # what was asked for could not be taken apart
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
