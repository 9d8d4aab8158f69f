# SPDX-License-Identifier: Apache-2.0
"""Which destinations a sandbox may reach: exact hosts, subdomains of a host, or any public host.

An empty list allows nothing. Names are compared label by label, so a suffix without its dot never matches.
"""

from __future__ import annotations

from unspill.errors import PolicyError
from unspill.policy.addresses import address_text, bracketed, find_literal, pack_address, why_forbidden
from unspill.policy.hosts import parse_host, parse_port
from unspill.policy.refusal import Refused
from unspill.policy.suffixes import is_public_suffix
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.policy.hosts import Destination

WEB_PORTS = (80, 443)


class Allowed(Record):
    """One rule: a host, or with `subdomains` every name below it but not itself; the web ports, or the one named."""

    host: str
    subdomains: bool = False
    port: int | None = None

    def covers_host(self, host: str) -> bool:
        """Tell whether the rule is about this host, whatever the port."""
        if not self.subdomains:
            return host == self.host
        own, theirs = self.host.split("."), host.split(".")
        return len(theirs) > len(own) and theirs[-len(own) :] == own

    def covers_port(self, port: int) -> bool:
        """Tell whether the rule is about this port."""
        return port in WEB_PORTS if self.port is None else port == self.port

    def covers(self, other: Allowed) -> bool:
        """Tell whether all that another rule allows is allowed by this one."""
        if other.subdomains and not self.subdomains:
            return False
        is_same = (other.host, other.subdomains) == (self.host, self.subdomains)
        ports = WEB_PORTS if other.port is None else (other.port,)
        return (is_same or self.covers_host(other.host)) and all(map(self.covers_port, ports))

    @property
    def text(self) -> str:
        """The rule in the one form that it is compared by."""
        host = bracketed(self.host)
        return f"{'*.' * self.subdomains}{host}{'' if self.port is None else f':{self.port}'}"


def parse_allowed(text: str) -> Allowed:
    """Return the rule of `example.org`, `*.example.org`, `203.0.113.7` or `[2001:db8::1]`, with `:port` or without.

    Raises:
        PolicyError: It is none of these, or its star stands for everybody's names.
    """
    try:
        host, port = _split_port(_without_others(text.encode("ascii")))
        if packed := find_literal(host):
            return Allowed(host=address_text(packed), port=port)
        if not host.startswith(b"*."):
            return Allowed(host=parse_host(host), port=port)
        suffix = parse_host(host[2:])
    except UnicodeEncodeError:
        raise PolicyError(f"not a host that can be allowed: {text!a}", remedy=_ENCODED) from None
    except Refused as error:
        raise PolicyError(f"not a host that can be allowed: {text!a} ({error.because})", remedy=_FORMS) from None
    if is_public_suffix(suffix):
        raise PolicyError(f"a star below {suffix} would allow everybody's hosts: {text!a}", remedy=_FORMS)
    return Allowed(host=suffix, subdomains=True, port=port)


def parse_reachable(text: str) -> Allowed:
    """Return the rule of a text, if there is anything that it could allow.

    Raises:
        PolicyError: It is none, or an address to which nothing is ever sent.
    """
    rule = parse_allowed(text)
    packed = pack_address(rule.host)
    why = why_forbidden(packed) if packed else ""
    if why:
        raise PolicyError(f"the address {rule.text} can never be allowed: it is not public ({why})", remedy=_PUBLIC)
    return rule


_FORMS = "Write `example.org`, `*.example.org` or `example.org:8443`."
_ENCODED = "Write international names in their encoded form, with labels that begin with `xn--`."


_PUBLIC = "Name a public host. No setting opens an address of this machine, of its network or of special use."


def _without_others(raw: bytes) -> bytes:
    """Return what may be a host, and say so where something else was copied along with it."""
    if b"/" in raw:
        raise Refused("form", "a scheme or a path is no part of a host")
    if b"[" not in raw and find_literal(b"[%b]" % raw):
        raise Refused("form", "an IPv6 address stands in brackets, as in `[2a00::1]`")
    return raw


def _split_port(raw: bytes) -> tuple[bytes, int | None]:
    if raw.endswith(b"]") or b":" not in raw:
        return raw, None
    host, _, number = raw.rpartition(b":")
    return host, parse_port(number)


class Rules(Record):
    """All rules of one sandbox.

    `public` is for a granted network: any public host, literal addresses too, on `public_ports`. `any_server_name`
    gives up the check of what TLS asks for.
    """

    allowed: tuple[Allowed, ...] = ()
    public: bool = False
    public_ports: tuple[int, ...] = WEB_PORTS
    any_server_name: bool = False

    def judge(self, destination: Destination) -> None:
        """Return if the destination is allowed by name and port; its address is another question.

        Raises:
            Refused: No rule covers it.
        """
        about = [rule for rule in self.allowed if rule.covers_host(destination.host)]
        if any(rule.covers_port(destination.port) for rule in about):
            return
        if self.public and destination.port in self.public_ports:
            return
        if about or self.public:
            raise Refused("port", "the host is allowed on other ports")
        raise Refused("host", "no rule covers it")


def covered(wanted: Iterable[str], allowed: Iterable[str]) -> bool:
    """Tell whether each of the wanted hosts is allowed by one of the others.

    Raises:
        PolicyError: One of them is not a rule.
    """
    rules = tuple(map(parse_allowed, allowed))
    return all(any(rule.covers(parse_allowed(text)) for rule in rules) for text in wanted)


def parse_rules(texts: Iterable[str], *, public: bool = False) -> Rules:
    """Return the rules of a list of hosts.

    Raises:
        PolicyError: One of them is not a rule.
    """
    return Rules(allowed=tuple(parse_allowed(text) for text in texts), public=public)
