# SPDX-License-Identifier: Apache-2.0
"""What the techniques about the egress proxy share: how it is asked, and how a defence of it is taken away."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tests.attack.arena import Arena
from tests.attack.techniques.record import Defence
from tests.unit.network.scene import Scene, read_all
from unspill.policy.hosts import HostRules

if TYPE_CHECKING:
    from collections.abc import Iterator


ALLOWED: Final = ("example.org", "*.example.org")
PUBLIC: Final = HostRules(public=True)


def patched(name: str, **changes: Any) -> Defence:
    """Return the defence of some functions, which are exchanged for naive ones."""

    @contextmanager
    def removal(arena: Arena) -> Iterator[None]:
        with arena.patch.context() as patch:
            for target, instead in changes.items():
                patch.setattr(target.replace("__", "."), instead)
            yield

    return Defence(name, removal)


ANY_ADDRESS: Final = patched(
    "the table of forbidden addresses", unspill__network__resolve__why_forbidden=lambda _packed, _own=(): ""
)


def as_it_is(raw: bytes, **_local: object) -> str:
    return raw.decode("utf-8", "surrogateescape")


ANY_NAME: Final = patched(
    "the grammar of names",
    unspill__network__protocols__parse_host=as_it_is,
    unspill__policy__hosts__parse_host=as_it_is,
)


def by_socks(stage: Scene, host: bytes, port: int = 443) -> bytes:
    """Ask for a connection by SOCKS, where a name may have any byte."""
    with stage.client() as client:
        client.sendall(b"\x05\x01\x00\x05\x01\x00\x03" + bytes((len(host),)) + host + port.to_bytes(2))
        client.shutdown(socket.SHUT_WR)
        return read_all(client)


def by_connect(stage: Scene, authority: str) -> bytes:
    return stage.exchange(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
