# SPDX-License-Identifier: Apache-2.0
"""The namespace between a sandbox and pasta: it forwards to public addresses and to nothing else.

Routes of the sandbox itself would not do: whoever binds a socket to a device (SO_BINDTODEVICE takes no privilege) is
not held by a route that says unreachable. What comes in from another namespace is. The command has no way in here.
"""

from __future__ import annotations

import fcntl
import os

from unspill.host import libc
from unspill.host.netlink import Netlink
from unspill.host.own_namespace import write_setting
from unspill.model.full_network import (
    BETWEEN,
    BETWEEN_LINK,
    BETWEEN_MAC,
    BEYOND,
    BEYOND_LINK,
    BEYOND_MAC,
    INSIDE,
    INSIDE_LINK,
    INSIDE_MAC,
    PUBLIC,
    RESOLVER,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.full_network import IpVersion

    Closed = tuple[tuple[bytes, int], ...]

_NS_GET_USERNS = 0xB701
_LONGEST_PACKET = 65_520
_DNS_PORT = 53
_DNS_TABLE = 100
_UDP = 17
_EVERYTHING: dict[IpVersion, tuple[str, int]] = {4: ("0.0.0.0", 0), 6: ("::", 0)}
_SETTINGS: dict[IpVersion, tuple[tuple[bytes, bytes], ...]] = {
    4: (
        # Answers of the resolver come from an address that is closed otherwise
        (b"ipv4/conf/all/rp_filter", b"0"),
        (b"ipv4/conf/default/rp_filter", b"0"),
        (b"ipv4/conf/all/accept_redirects", b"0"),
        (b"ipv4/conf/all/route_localnet", b"0"),
        # Every refusal is told at once, however many there are: else the command waits for an answer
        (b"ipv4/icmp_ratelimit", b"0"),
        (b"ipv4/ip_forward", b"1"),
    ),
    6: ((b"ipv6/icmp/ratelimit", b"0"), (b"ipv6/conf/all/forwarding", b"1")),
}


class Between:
    """The namespace in the making, by a child that has left its own for it."""

    def __init__(self, inside: int, versions: tuple[IpVersion, ...], resolvers: tuple[IpVersion, ...]) -> None:
        """Step into a new namespace that belongs to the same user namespace as the sandbox's.

        Args:
            inside: A descriptor of the sandbox's network namespace.
            versions: The versions of IP that this host has a way out for.
            resolvers: Those of them that pasta knows a resolver for.
        """
        self._inside = inside
        self._resolvers = resolvers
        self._versions = versions
        self.owner = fcntl.ioctl(inside, _NS_GET_USERNS)
        libc.setns(self.owner, libc.CLONE_NEWUSER)
        libc.setns(inside, libc.CLONE_NEWNET)
        self._there = Netlink()
        libc.unshare(libc.CLONE_NEWNET)
        self.namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._here = Netlink()

    def close_networks(self, closed: Closed) -> None:
        """Make everything unreachable that is not public. Done first, so that there is no moment without.

        Also inside, where it holds nobody who does not want to be held, but tells the others at once.
        """
        for packed, bits in closed:
            version: IpVersion = 4 if len(packed) == 4 else 6
            if version in self._versions:
                self._here.close_network(version, packed, bits)
                self._there.close_network(version, packed, bits)

    def join_sandbox(self) -> None:
        """Make the link to the sandbox and its only route, which leads here."""
        for version in self._versions:
            for setting, value in _SETTINGS[version]:
                write_setting(b"/proc/sys/net/" + setting, value)
        self._here.make_pair(BETWEEN_LINK, BETWEEN_MAC, INSIDE_LINK, INSIDE_MAC, self._inside)
        for netlink, name, own, other, mac in (
            (self._here, BETWEEN_LINK, BETWEEN, INSIDE, INSIDE_MAC),
            (self._there, INSIDE_LINK, INSIDE, BETWEEN, BETWEEN_MAC),
        ):
            link = netlink.find(name)
            netlink.bring_up(link, _LONGEST_PACKET)
            for version in self._versions:
                netlink.add_address(version, link, own[version])
                netlink.add_neighbour(version, link, other[version], mac)
                netlink.add_neighbour_route(version, link, other[version])
        for version in self._versions:
            link = self._there.find(INSIDE_LINK)
            self._there.add_route(version, *_EVERYTHING[version], link, BETWEEN[version])
            if version in self._resolvers:
                self._there.add_route(version, RESOLVER[version], 32 if version == 4 else 128, link, BETWEEN[version])

    def has_way_out(self) -> bool:
        """Tell whether pasta has made its link."""
        return bool(self._here.find(BEYOND_LINK))

    def open_way_out(self) -> None:
        """Lead what is public to pasta, and questions to its resolver."""
        link = self._here.find(BEYOND_LINK)
        self._here.bring_up(link, _LONGEST_PACKET)
        for version in self._versions:
            # Asked for, it would keep the first packets waiting, of which pasta then gets several copies at once
            self._here.add_neighbour(version, link, BEYOND[version], BEYOND_MAC)
            self._here.add_route(version, *PUBLIC[version], link, BEYOND[version])
        for version in self._resolvers:
            self._here.add_route(version, *_EVERYTHING[version], link, BEYOND[version], table=_DNS_TABLE)
            # By TCP older versions of pasta would pass it on to whoever has that address on the host's side
            self._here.add_port_rule(version, RESOLVER[version], _UDP, _DNS_PORT, _DNS_TABLE)
