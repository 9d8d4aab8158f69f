# SPDX-License-Identifier: Apache-2.0
"""Both directions between a client and the server it was connected to, and the gate that the client has to pass."""

from __future__ import annotations

from unspill.network.flow import Flow
from unspill.network.gates import BodyGate, HelloGate, RequestGate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket as Socket

    from unspill.network.flow import Gate, Meter, Pipes
    from unspill.network.opening import Asked
    from unspill.policy.hosts import Refused


def gate_for(asked: Asked, *, any_server_name: bool) -> Gate | None:
    """Return what has to be read of what a client sends to its server, None if nothing."""
    if asked.head is not None:
        return BodyGate(asked.head)
    if asked.destination.port == 80:
        return RequestGate(asked.destination)
    if any_server_name:
        return None
    return HelloGate(asked.destination, is_required=asked.destination.port == 443)


class Relay:
    """Two flows. `is_over` when nothing can go either way any more."""

    def __init__(
        self, client: Socket, server: Socket, gate: Gate | None, meters: tuple[Meter, Meter], pipes: Pipes
    ) -> None:
        self.gate = gate
        self.up = Flow(client, server, meters[0], pipes, gate=gate)
        self.down = Flow(server, client, meters[1], pipes)

    def begin(self, asked: Asked) -> None:
        """Take what the client has sent together with its wish.

        Raises:
            Refused: The gate says no, or the budget is used up.
        """
        if asked.head is not None:
            self.up.insert(asked.head.passed_on())
        self.up.accept(asked.rest)

    def pump(self) -> None:
        """Move what can be moved now.

        Raises:
            Refused: The gate says no, or the budget is used up.
            OSError: One of the ends is broken.
        """
        self.up.pump()
        self.down.pump()

    @property
    def is_over(self) -> bool:
        """Tell whether both directions have ended, or the one request was answered."""
        return self.down.is_over and (self.up.is_over or isinstance(self.gate, BodyGate | RequestGate))

    @property
    def is_waiting(self) -> bool:
        """Tell whether the client still has to say what it wants."""
        return self.gate is not None and self.gate.is_waiting and not self.up.is_over

    def answer(self, refused: Refused, text: str) -> bytes:
        """Return what tells the client of a denial in a language that it understands at this point."""
        if self.gate is None or self.down.moved:
            return b""
        return self.gate.answer(refused, text)

    def close(self) -> None:
        """Give up what has not arrived."""
        self.up.close()
        self.down.close()
