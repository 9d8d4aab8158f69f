# SPDX-License-Identifier: Apache-2.0
"""What a proxy remembers: its connections and its denials, in bounded number.

Written by the proxy's thread, read by any. The command decides how many there are, so both lists have an end.
"""

from __future__ import annotations

import time
from _thread import allocate_lock

from unspill.model.egress import Connection, Denial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.model.egress import DenialRule, Verdict
    from unspill.network.relay import Relay

    Sink = Callable[[Connection | Denial], None]

CONNECTIONS_KEPT = 10_000
DENIALS_KEPT = 1_000


class Entry:
    """One connection while it goes on."""

    def __init__(self, host: str, port: int, address: str) -> None:
        self.host = host
        self.port = port
        self.address = address
        self.relay: Relay | None = None
        self.started_ns = time.time_ns()
        self.ended_ns: int | None = None
        self.verdict: Verdict = "open"

    def record(self) -> Connection:
        """Return it as it is now."""
        return Connection(
            host=self.host,
            port=self.port,
            address=self.address,
            up=self.relay.up.moved if self.relay else 0,
            down=self.relay.down.moved if self.relay else 0,
            started_ns=self.started_ns,
            ended_ns=self.ended_ns,
            verdict=self.verdict,
        )


class Ledger:
    """All connections and denials of one proxy; `sink` is told of each when it is decided or over."""

    def __init__(self, sink: Sink | None = None) -> None:
        self.left_out = 0
        self._sink = sink
        self._lock = allocate_lock()  # protects the fields below
        self._open: set[Entry] = set()
        self._ended: list[Connection] = []
        self._denials: dict[tuple[str, int, DenialRule], Denial] = {}

    def begin(self, host: str, port: int, address: str) -> Entry:
        """Enter a connection that is about to be made."""
        entry = Entry(host, port, address)
        with self._lock:
            self._open.add(entry)
        return entry

    def end(self, entry: Entry, verdict: Verdict) -> None:
        """Close the record of a connection."""
        entry.verdict, entry.ended_ns = verdict, time.time_ns()
        record = entry.record()
        with self._lock:
            self._open.discard(entry)
            if len(self._ended) < CONNECTIONS_KEPT:
                self._ended.append(record)
            else:
                self.left_out += 1
        self._tell(record)

    def deny(self, denial: Denial) -> None:
        """Enter a denial. The same one again only counts."""
        key = (denial.host, denial.port, denial.rule)
        with self._lock:
            known = self._denials.get(key)
            if known is None and len(self._denials) >= DENIALS_KEPT:
                self.left_out += 1
                return
            self._denials[key] = known.replace(times=known.times + 1) if known else denial
        if known is None:
            self._tell(denial)

    def connections(self) -> tuple[Connection, ...]:
        """Return all connections in the order of their beginning."""
        with self._lock:
            found = [*self._ended, *(entry.record() for entry in self._open)]
        return tuple(sorted(found, key=lambda connection: connection.started_ns))

    def denials(self) -> tuple[Denial, ...]:
        """Return what was denied, each once, in the order of its first time."""
        with self._lock:
            return tuple(self._denials.values())

    def _tell(self, record: Connection | Denial) -> None:
        if self._sink is None:
            return
        try:
            self._sink(record)
        except Exception:
            # Whoever listens must not be able to stop the proxy; the records are kept all the same
            return
