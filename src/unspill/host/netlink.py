# SPDX-License-Identifier: Apache-2.0
"""Links, addresses, routes and rules of one network namespace, by rtnetlink: no program such as `ip` is needed.

A socket belongs to the namespace it was made in, whatever namespace this process is in later.
"""

from __future__ import annotations

import os
import struct
from _socket import AF_INET, AF_INET6, AF_NETLINK, SOCK_CLOEXEC, SOCK_RAW, inet_pton, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.full_network import IpVersion

_NETLINK_ROUTE = 0
_ERROR = 2
_NEWLINK, _GETLINK, _NEWADDR, _NEWROUTE, _NEWNEIGHBOUR, _NEWRULE = 16, 18, 20, 24, 28, 32
_REQUEST, _ACK, _NEW = 0x1, 0x4, 0x600
_IFF_UP = 1
_LINK_ADDRESS, _IFNAME, _MTU, _LINKINFO, _NET_NS_FD = 1, 3, 4, 18, 28
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_ADDRESS, _LOCAL, _ADDRESS_FLAGS = 1, 2, 8
_NODAD, _NOPREFIXROUTE = 0x02, 0x200
_DST, _OIF, _GATEWAY, _PRIORITY, _TABLE = 1, 4, 5, 6, 15
_IP_PROTO, _DPORT_RANGE = 22, 24
_HARDWARE_ADDRESS = 2
_PERMANENT = 0x80
_MAIN = 254
_STATIC = 4
_UNIVERSE, _ON_LINK = 0, 253
_UNICAST, _UNREACHABLE = 1, 7
_TO_TABLE = 1
_ONLINK_GATEWAY = 4
_FAMILY = {4: AF_INET, 6: AF_INET6}


def _attribute(kind: int, content: bytes) -> bytes:
    return struct.pack("=HH", len(content) + 4, kind) + content + bytes(-len(content) % 4)


def _number(kind: int, number: int) -> bytes:
    return _attribute(kind, struct.pack("=I", number))


def _name(name: str) -> bytes:
    return _attribute(_IFNAME, name.encode() + b"\0")


def _hardware(kind: int, mac: str) -> bytes:
    return _attribute(kind, bytes.fromhex(mac.replace(":", "")))


class Netlink:
    """One namespace. Every function raises OSError with the kernel's errno and what was wanted."""

    def __init__(self) -> None:
        """Take the namespace that this process is in now."""
        self._socket = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, _NETLINK_ROUTE)
        self._socket.bind((0, 0))

    def close(self) -> None:
        """Let go of the namespace."""
        self._socket.close()

    def make_pair(self, name: str, mac: str, peer: str, peer_mac: str, peer_namespace: int) -> None:
        """Make a link here and its other end in another namespace, given by a descriptor."""
        blank = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
        other = blank + _name(peer) + _hardware(_LINK_ADDRESS, peer_mac) + _number(_NET_NS_FD, peer_namespace)
        kind = _attribute(_INFO_KIND, b"veth") + _attribute(_INFO_DATA, _attribute(_VETH_PEER, other))
        self._ask(_NEWLINK, _NEW, blank, _name(name), _hardware(_LINK_ADDRESS, mac), _attribute(_LINKINFO, kind))

    def find(self, name: str) -> int:
        """Return the index of a link, 0 if there is none of that name."""
        try:
            answer = self._ask(_GETLINK, 0, struct.pack("=BxHiII", 0, 0, 0, 0, 0), _name(name))
        except OSError:
            return 0
        return int(struct.unpack_from("=i", answer, 4)[0])

    def bring_up(self, link: int, mtu: int) -> None:
        """Set the size of packets and let them through."""
        self._ask(_NEWLINK, 0, struct.pack("=BxHiII", 0, 0, link, _IFF_UP, _IFF_UP), _number(_MTU, mtu))

    def add_address(self, version: IpVersion, link: int, address: str) -> None:
        """Give a link one address, with nothing else on it."""
        packed = inet_pton(_FAMILY[version], address)
        head = struct.pack("=BBBBI", _FAMILY[version], 8 * len(packed), 0, _UNIVERSE, link)
        flags = _number(_ADDRESS_FLAGS, _NODAD | _NOPREFIXROUTE)
        self._ask(_NEWADDR, _NEW, head, _attribute(_LOCAL, packed), _attribute(_ADDRESS, packed), flags)

    def add_neighbour_route(self, version: IpVersion, link: int, address: str) -> None:
        """Say that an address is at the other end of a link."""
        packed = inet_pton(_FAMILY[version], address)
        self._route(version, packed, 8 * len(packed), _UNICAST, _number(_OIF, link), scope=_ON_LINK)

    def add_neighbour(self, version: IpVersion, link: int, address: str, mac: str) -> None:
        """Say at which hardware address a neighbour is, for good."""
        head = struct.pack("=BxxxiHBB", _FAMILY[version], link, _PERMANENT, 0, _UNICAST)
        packed = inet_pton(_FAMILY[version], address)
        self._ask(_NEWNEIGHBOUR, _NEW, head, _attribute(_DST, packed), _hardware(_HARDWARE_ADDRESS, mac))

    def add_route(
        self, version: IpVersion, network: str, bits: int, link: int, gateway: str, *, table: int = _MAIN
    ) -> None:
        """Send a network to a gateway behind a link, which need not have a route of its own."""
        way = _number(_OIF, link) + _attribute(_GATEWAY, inet_pton(_FAMILY[version], gateway))
        packed = inet_pton(_FAMILY[version], network)
        self._route(version, packed, bits, _UNICAST, way, flags=_ONLINK_GATEWAY, table=table)

    def close_network(self, version: IpVersion, packed: bytes, bits: int) -> None:
        """Make a network unreachable, whatever wider route there is."""
        self._route(version, packed, bits, _UNREACHABLE, b"")

    def add_port_rule(self, version: IpVersion, address: str, protocol: int, port: int, table: int) -> None:
        """Have one port of one address looked up in a table of its own, before all others."""
        packed = inet_pton(_FAMILY[version], address)
        head = struct.pack("=BBBBBBBBI", _FAMILY[version], 8 * len(packed), 0, 0, 0, 0, 0, _TO_TABLE, 0)
        self._ask(
            _NEWRULE,
            _NEW,
            head,
            _attribute(_DST, packed),
            _number(_TABLE, table),
            _number(_PRIORITY, table),
            _attribute(_IP_PROTO, bytes((protocol,))),
            _attribute(_DPORT_RANGE, struct.pack("=HH", port, port)),
        )

    def _route(
        self,
        version: IpVersion,
        packed: bytes,
        bits: int,
        kind: int,
        way: bytes,
        *,
        flags: int = 0,
        scope: int = _UNIVERSE,
        table: int = _MAIN,
    ) -> None:
        head = struct.pack("=BBBBBBBBI", _FAMILY[version], bits, 0, 0, 0, _STATIC, scope, kind, flags)
        self._ask(_NEWROUTE, _NEW, head, _attribute(_DST, packed), _number(_TABLE, table), way)

    def _ask(self, kind: int, flags: int, head: bytes, *attributes: bytes) -> bytes:
        """Send one request and return what follows the header of the answer."""
        body = head + b"".join(attributes)
        self._socket.send(struct.pack("=IHHII", len(body) + 16, kind, _REQUEST | _ACK | flags, 1, 0) + body)
        found = b""
        while True:
            answer = self._socket.recv(65536)
            while answer:
                length, answered = struct.unpack_from("=IH", answer)
                if answered == _ERROR:
                    code = -struct.unpack_from("=i", answer, 16)[0]
                    if code:
                        raise OSError(code, f"netlink request {kind}: {os.strerror(code)}")
                    return found
                found = answer[16:length]
                answer = answer[(length + 3) & ~3 :]
