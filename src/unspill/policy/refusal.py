# SPDX-License-Identifier: Apache-2.0
"""Why a destination was refused, and what a person can do about it.

Every check of hosts and connections raises `Refused`; the proxy makes a Denial of it, the configuration a PolicyError.
"""

from __future__ import annotations

from unspill.policy.addresses import bracketed
from unspill.policy.paths import shell_word

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.egress import DenialRule


_OF_HOSTS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-.:[]_*")


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
                return _allowing(_named(host, port))
            case "port":
                return f"{_allowing(f'{bracketed(host)}:{port}')} Without a port, a host means 80 and 443."
            case "address":
                return f"Nothing allows it: {self.because}, and only public addresses can be reached."
            case "server name":
                return f"Let TLS ask for `{host}` itself: {self.because}."
            case "request":
                return f"Send one plain request to the host that was asked for: {self.because}."
            case "budget":
                return f"Raise it under `[network]` in the configuration: {self.because}."


def _allowing(rule: str) -> str:
    # A host that could be allowed is nothing but such signs; anything else may be a stranger's words
    word = rule if _OF_HOSTS.issuperset(rule) else shell_word(rule.encode("utf-8", "surrogateescape"))
    return f"Run it with `--allow-host {word}`, or add `{rule}` to `hosts` under `[network]` in the configuration."


def _named(host: str, port: int) -> str:
    return bracketed(host) if port in (80, 443) else f"{bracketed(host)}:{port}"
