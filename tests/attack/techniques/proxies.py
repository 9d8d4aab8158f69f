# SPDX-License-Identifier: Apache-2.0
"""D1 and D9: real runs with a proxy of their own, and those who go past it or use that of others."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tests.attack.arena import Arena, wait_until
from tests.attack.techniques.proxying import (
    ANY_ADDRESS,
)
from tests.attack.techniques.record import Listed
from unspill.model.plan import PROXY_PORT
from unspill.model.policy import Network

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unspill import Sandbox


LIST: Final = Listed()


def with_hosts(arena: Arena, name: str = "default") -> Sandbox:
    """Return a sandbox that may reach one host."""
    return arena.ground.sandbox(name, network=Network(hosts=("example.org",)))


CONNECT: Final = """
knocking = socket.socket(); knocking.settimeout(2)
try: knocking.connect(("127.0.0.1", %d)); won("connected")
except OSError as error: lost(error.strerror)
"""


def past_the_proxy(arena: Arena) -> object:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        script = CONNECT % listener.getsockname()[1]
        return arena.attack(script, sandbox=with_hosts(arena)).won


def in_the_hosts_network(arena: Arena) -> object:
    """The weaker mode that a person may configure, in which a granted network is the host's own."""
    from unspill import Sandbox
    from unspill.permissions.approvers import Callback

    policy = arena.ground.policy(network=Network(mode="host"))
    sandbox = Sandbox(arena.ground.project, name="weaker", policy=policy, approver=Callback(lambda _question: True))
    arena.ground.opened.append(sandbox)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        script = CONNECT % listener.getsockname()[1]
        return arena.attack(script, sandbox=sandbox, options={"network": True}).won


LIST.add_pair(
    "D1",
    "Connect to the host's loopback past the proxy",
    past_the_proxy,
    "in the mode `host`, which a person has to configure",
    in_the_hosts_network,
)

THROUGH: Final = """
proxy = socket.create_connection(("127.0.0.1", %d), timeout=5)
proxy.sendall(b"CONNECT %s:%d HTTP/1.1\\r\\n\\r\\n")
if b" 200 " in proxy.recv(100): won("tunnel")
"""


def through_the_proxy(address: str) -> Callable[[Arena], object]:
    """Ask the sandbox's own proxy for a server of the host; the rule allows that very address and port."""

    def attack(arena: Arena) -> object:
        with socket.create_server((address, 0)) as listener:
            port = listener.getsockname()[1]
            sandbox = arena.ground.sandbox(network=Network(hosts=(f"{address}:{port}",)))
            script = THROUGH % (PROXY_PORT, address.encode(), port)
            return arena.attack(script.replace("b'", "").replace("'", ""), sandbox=sandbox).won

    return attack


LIST.add("D1", "Connect to the host's loopback through the proxy", through_the_proxy("127.0.0.1"), ANY_ADDRESS)


@contextmanager
def running_proxy(arena: Arena) -> Iterator[None]:
    """A sandbox whose proxy serves it, for as long as the context lasts."""
    read, write = os.pipe()
    mark = f"unspill-owner-{os.urandom(4).hex()}"
    owner = with_hosts(arena, "owner")
    ready = threading.Event()
    command = ["sh", "-c", "echo ready; while :; do sleep 1; done", mark]
    options: dict[str, Any] = {"cancel_fd": read, "on_event": lambda _event: ready.set()}
    thread = threading.Thread(target=lambda: owner.run(command, **options))
    thread.start()
    try:
        assert wait_until(ready.is_set)
        yield
    finally:
        os.write(write, b"x")
        thread.join()
        os.close(read)
        os.close(write)


def used_by_another(arena: Arena) -> object:
    with running_proxy(arena):
        return arena.attack(CONNECT % PROXY_PORT, name="thief").won


def used_by_the_host(arena: Arena) -> object:
    with running_proxy(arena), socket.socket() as thief:
        return thief.connect_ex(("127.0.0.1", PROXY_PORT)) == 0


def used_by_its_owner(arena: Arena) -> object:
    return arena.attack(CONNECT % PROXY_PORT, sandbox=with_hosts(arena)).won


OWNER: Final = "from inside the sandbox that it belongs to"
LIST.add_pair("D9", "Use the proxy of another sandbox", used_by_another, OWNER, used_by_its_owner)
LIST.add_pair("D9", "Use the proxy of a sandbox from the host", used_by_the_host, OWNER, used_by_its_owner)
