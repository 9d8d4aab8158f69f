# SPDX-License-Identifier: Apache-2.0
"""Why something was refused, and what a person can do about it.

Every check of this package raises `Refused`; only the proxy catches it and makes a Denial of it.
"""

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


class Refused(Exception):
    """A destination or a request that the rules do not allow.

    `because` is one clause for people; it never quotes what the command sent.
    """

    def __init__(self, rule: DenialRule, because: str) -> None:
        super().__init__(because)
        self.rule = rule
        self.because = because

    def remedy(self, host: str, port: int) -> str:
        """Return what would allow it."""
        match self.rule:
            case "form":
                return f"Use a host name of letters, digits and hyphens: {self.because}."
            case "host":
                return f"Allow `{_named(host, port)}` for this sandbox."
            case "port":
                return f"Allow `{_bracketed(host)}:{port}` for this sandbox: without a port, a host means 80 and 443."
            case "address":
                return f"Nothing does: {self.because}, and only public addresses can be reached."
            case "server name":
                return f"Let TLS ask for `{host}` itself: {self.because}."
            case "request":
                return f"Send one plain request to the host that was asked for: {self.because}."
            case "budget":
                return f"Raise the byte budget of the sandbox: {self.because}."


def _named(host: str, port: int) -> str:
    return _bracketed(host) if port in (80, 443) else f"{_bracketed(host)}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def shown(raw: bytes) -> str:
    """Return bytes that the command sent as printable ASCII, cut to a length that a person reads."""
    text = raw[:_SHOWN].decode("ascii", "backslashreplace")
    safe = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return safe if len(raw) <= _SHOWN else f"{safe}..."
