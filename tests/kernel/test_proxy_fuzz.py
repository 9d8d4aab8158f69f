# SPDX-License-Identifier: Apache-2.0
"""Made-up hosts and requests against a real proxy: whatever it connects to, an independent judge allows.

The judge knows the rules as regular expressions and the addresses by the standard library; it shares no code with the
proxy. Names resolve to addresses of their own, so every connection tells for which name it was made.
"""

import ipaddress
import random
import re
import socket
from collections.abc import Sequence

import pytest

from tests.figures import record_figure
from tests.unit.network.host_vectors import VECTORS
from tests.unit.network.scene import Names, Scene, scene
from tests.unit.network.test_protocols import AMBIGUOUS
from unspill.policy.hosts import pack_address, parse_rules

pytestmark = pytest.mark.kernel

RULES = ["example.org", "*.example.net", "api.example.com:8443", "45.45.45.45"]
JUDGED = re.compile(
    r"example\.org:(80|443)|([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+example\.net:(80|443)|api\.example\.com:8443"
)
OWN = "46.46.46.46"
BAD = ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00:ec2::254", "64:ff9b::7f00:1", "::ffff:10.0.0.1", OWN]
SPECIAL = [ipaddress.ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "224.0.0.0/3")]

HOSTS = [b"example.org", b"EXAMPLE.ORG.", b"a.example.net", b"b.c.example.net", b"api.example.com", b"evil.org",
         b"evilexample.org", b"example.net", b"bad.example.net", b"mixed.example.net", b"own.example.net",
         b"45.45.45.45", b"127.0.0.1", b"[::1]", b"localhost", b"10.0.0.1", b"0x7f.1", b"2130706433"]  # fmt: skip
PORTS = [b"443", b"80", b"8443", b"22", b"0443", b"65536", b"", b"443 ", b"https"]
PIECES = [b"\0", b"%00", b"@", b".", b"..", b"-", b":", b"/", b"\\", b"#", b"?", b" ", b"\t", b"\r\n", b"\n",
          b"[", b"]", b"_", b"\xe3\x80\x82", b"\xef\xbc\x8e", b"xn--", b"example.org", b"evil.org", b"127.0.0.1",
          b"\xff", b"*", b",", b";"]  # fmt: skip
FIELDS = [b"Host: example.org", b"Host: evil.org", b"Content-Length: 5", b"Content-Length: 0", b"X: y", b" folded",
          b"Transfer-Encoding: chunked", b"Connection: close", b"X : y", b"Proxy-Connection: keep-alive", b"",
          b"Upgrade: h2c", b"Host: a.example.net:443", b"GET / HTTP/1.1"]  # fmt: skip


class Addressed(Names):
    """Gives every name an address of its own; some names have a bad one, alone or among good ones."""

    def __init__(self) -> None:
        super().__init__()
        self.owner: dict[str, str] = {}
        self.kind: dict[str, bool] = {}

    def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        number = len(self.asked)
        good = f"50.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        answers = [good, f"2a00:{number >> 16:x}:{number & 0xFFFF:x}::1"]
        first = host.partition(".")[0]
        if first in ("bad", "mixed", "own"):
            answers = {"bad": [], "mixed": answers, "own": [OWN]}[first] + [BAD[number % len(BAD)]]
        for answer in answers:
            self.owner[answer] = host
        self.kind[host] = first not in ("bad", "mixed", "own")
        return answers


def mutate(chance: random.Random, raw: bytes) -> bytes:
    """Return it with nothing, one or a few things wrong."""
    for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 4))):
        at = chance.randrange(len(raw) + 1)
        match chance.randrange(4):
            case 0:
                raw = raw[:at] + chance.choice(PIECES) + raw[at:]
            case 1:
                raw = raw[:at] + raw[at + chance.randrange(1, 4) :]
            case 2:
                raw = raw[:at] + chance.randbytes(1) + raw[at + 1 :]
            case _:
                raw = raw.swapcase() if chance.random() < 0.5 else raw[at:] + raw[:at]
    return raw


def made_up(chance: random.Random) -> bytes:
    """Return what a hostile client might send."""
    host = chance.choice(VECTORS) if chance.random() < 0.2 else mutate(chance, chance.choice(HOSTS))
    port = chance.choice(PORTS[:3]) if chance.random() < 0.8 else chance.choice(PORTS)
    fields = b"\r\n".join(chance.choice(FIELDS) for _ in range(chance.choice((0, 0, 1, 1, 2, 4))))
    fields = fields + b"\r\n" if fields else b""
    match chance.randrange(8):
        case 0 | 1:
            sent = b"CONNECT %s:%s HTTP/1.1\r\n%s\r\n" % (host, port, fields)
        case 2 | 3:
            sent = b"GET http://%s:%s/ HTTP/1.1\r\n%s\r\n" % (host, port, fields)
        case 4:
            sent = b"POST http://%s/ HTTP/1.1\r\nHost: %s\r\n%s\r\n" % (host, host, fields)
        case 5 | 6:
            number = int(port) if port.isdigit() and int(port) < 65536 else 443
            cut = host[:255]
            sent = b"\x05\x01\x00\x05\x01\x00\x03" + bytes((len(cut),)) + cut + number.to_bytes(2)
        case _:
            sent = chance.choice(list(AMBIGUOUS.values())) if chance.random() < 0.5 else chance.randbytes(60)
    return mutate(chance, sent) if chance.random() < 0.3 else sent


def send(stage: Scene, sent: bytes) -> None:
    with stage.client() as client:
        try:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            while client.recv(4096):
                pass
        except OSError:
            return


def is_public(address: str) -> bool:
    found = ipaddress.ip_address(address)
    return (
        found.is_global and not any(found.version == net.version and found in net for net in SPECIAL) and address != OWN
    )


@pytest.mark.timeout(1800)
def test_no_made_up_request_reaches_what_an_independent_judge_forbids(full: bool) -> None:
    count, seed = (100_000, random.randrange(1 << 32)) if full else (4_000, 4)
    chance = random.Random(seed)
    names = Addressed()
    with scene(parse_rules(RULES), names=names, own=frozenset((pack_address(OWN),))) as stage:
        for _ in range(count):
            send(stage, made_up(chance))
    forbidden = []
    for address, port in stage.doorman.asked:
        host = names.owner.get(address, address)
        is_allowed = JUDGED.fullmatch(f"{host}:{port}") or (address == "45.45.45.45" and port in (80, 443))
        if not (is_allowed and is_public(address) and names.kind.get(host, True)):
            forbidden.append((host, address, port))
    assert forbidden == [], f"seed {seed}"
    assert [
        host for host in names.asked if not re.match(r"(.+\.example\.net|example\.org|api\.example\.com)$", host)
    ] == []
    # The judge is worth something only if much was allowed as well
    assert len(stage.doorman.asked) > count / 20
    record_figure(
        "proxy: forbidden connections",
        f"0 of {count:,}",
        f"made-up hosts and requests, {len(stage.doorman.asked):,} connections allowed, seed {seed}",
    )


def test_the_judge_finds_what_a_careless_proxy_would_connect_to() -> None:
    names = Addressed()
    with scene(parse_rules([*RULES, "evil.org"]), names=names) as stage:
        send(stage, b"CONNECT evil.org:443 HTTP/1.1\r\n\r\n")
        send(stage, b"CONNECT own.example.net:443 HTTP/1.1\r\n\r\n")
    hosts = [names.owner[address] for address, _ in stage.doorman.asked]
    assert "evil.org" in hosts
    assert not JUDGED.fullmatch("evil.org:443")
    assert [is_public(address) for address in BAD] == [False] * len(BAD)
