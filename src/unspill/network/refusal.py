# SPDX-License-Identifier: Apache-2.0
"""What the command is told when something was refused, and what is kept of what it sent."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.egress import DenialRule

_SHOWN = 260

# What is said to the command as well, in the status line of an answer: constants, so nothing can be smuggled into it.
PHRASES: dict[DenialRule, str] = {
    "form": "Not a host name",
    "host": "Host not allowed",
    "port": "Port not allowed",
    "address": "Address not allowed",
    "server name": "Server name is not the host",
    "request": "Request not allowed",
    "budget": "Byte budget used up",
}


def shown(raw: bytes) -> str:
    """Return bytes that the command sent as one word of printable ASCII, cut to a length that a person reads.

    Without a space in it, so that no name can be a sentence among ours.
    """
    text = raw[:_SHOWN].decode("ascii", "backslashreplace")
    safe = "".join(c if c.isprintable() and c != " " else f"\\x{ord(c):02x}" for c in text)
    return safe if len(raw) <= _SHOWN else f"{safe}..."
