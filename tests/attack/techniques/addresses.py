# SPDX-License-Identifier: Apache-2.0
"""D2 to D4: names and addresses that lead to where nobody may go.

They are tried at a proxy whose doorman writes down where it wanted to connect.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, Final

from tests.attack.arena import Arena
from tests.attack.techniques.proxying import (
    ALLOWED,
    ANY_ADDRESS,
    ANY_NAME,
    PUBLIC,
    by_socks,
)
from tests.attack.techniques.record import Listed
from tests.unit.network.scene import Names, scene

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


LIST: Final = Listed(as_root="anybody")


def naive_names(host: str) -> list[str]:
    """Resolve as Python programs do."""
    return [str(found[4][0]) for found in socket.getaddrinfo(host, None)]


FORMS: Final = {
    "with a NUL, behind which an allowed name stands": "localhost\0.example.org",
    "as one decimal number": "2130706433",
    "as one hexadecimal number": "0x7f000001",
    "as one octal number": "017700000001",
    "with a hexadecimal part": "0x7f.1",
    "with an octal part": "0177.0.0.1",
    "with parts left out": "127.1",
    "with zeros before its digits": "127.000.000.001",
    "in full-width digits": "\uff11\uff12\uff17.\uff10.\uff10.\uff11",
    "with ideographic dots": "127\u30020\u30020\u30021",
    "in circled digits": "\u2460\u2461\u2466.\u24ea.\u24ea.\u2460",
    "by its name": "localhost",
    "by its name in full-width letters": "\uff4cocalhost",
    "by its name in capital letters": "LOCALHOST",
    "as the address of any interface": "0",
}


def reaches_loopback(form: str) -> Callable[[Arena], object]:
    def attack(_arena: Arena) -> object:
        with scene(PUBLIC, resolver=naive_names) as stage:
            by_socks(stage, form.encode())
            return stage.doorman.asked

    return attack


for _how, _form in FORMS.items():
    LIST.add("D2", f"Ask the proxy for loopback {_how}", reaches_loopback(_form), ANY_NAME & ANY_ADDRESS)


def led_to(answers: Sequence[str]) -> Callable[[Arena], object]:
    def attack(_arena: Arena) -> object:
        with scene(ALLOWED, names=Names({"example.org": answers})) as stage:
            stage.status("example.org:443")
            return [address for address, _port in stage.doorman.asked if address != "93.184.215.14"]

    return attack


for _tries, _answers in {
    "Have an allowed name lead to a private address": ["10.1.2.3"],
    "Have an allowed name answer with a public and a private address": ["93.184.215.14", "192.168.1.1"],
    "Have an allowed name answer with a private address first": ["127.0.0.1", "93.184.215.14"],
    "Have an allowed name answer with a private address of IPv6": ["fd00::1"],
}.items():
    answers = [*_answers] if _answers[0] != "93.184.215.14" else [_answers[1], _answers[0]]
    LIST.add("D3", _tries, led_to(_answers if "first" in _tries else answers), ANY_ADDRESS)


class Rebinding(Names):
    """Answers with a public address at first, and with loopback ever after."""

    def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        return ["93.184.215.14"] if len(self.asked) == 1 else ["127.0.0.1"]


def rebound(*, naive: bool) -> Callable[[Arena], object]:
    """Tell whether somebody connects to the second answer; the naive way in asks for the name again by itself."""

    def attack(_arena: Arena) -> object:
        names = Rebinding()
        went: list[str] = []

        def connect(address: bytes, _port: int) -> Any:
            went.append(names("example.org")[0] if naive else socket.inet_ntop(socket.AF_INET, address))
            raise ConnectionRefusedError

        with scene(ALLOWED, resolver=names, connect=connect) as stage:
            stage.status("example.org:443")
        return "127.0.0.1" in went

    return attack


LIST.add_pair(
    "D3",
    "Have a name answer with a public address when it is checked and with loopback when it is used",
    rebound(naive=False),
    "by connecting to the name instead of the checked address",
    rebound(naive=True),
)

ADDRESSES: Final = {
    "the metadata service of most clouds": "169.254.169.254",
    "the metadata service of Azure": "168.63.129.16",
    "the metadata service of Alibaba": "100.100.100.200",
    "the metadata service by IPv6": "fd00:ec2::254",
    "a private network of class A": "10.0.0.1",
    "a private network of class B": "172.16.0.1",
    "a private network of class C": "192.168.0.1",
    "addresses shared by carriers": "100.64.0.1",
    "loopback": "127.8.8.8",
    "the unspecified address": "0.0.0.0",
    "multicast": "224.0.0.1",
    "broadcast": "255.255.255.255",
    "loopback by IPv6": "::1",
    "a mapped IPv4 address": "::ffff:127.0.0.1",
    "a compatible IPv4 address": "::127.0.0.1",
    "an address that NAT64 translates": "64:ff9b::a9fe:a9fe",
    "an address that 6to4 carries": "2002:7f00:1::",
    "an address that Teredo carries": "2001:0:a9fe:a9fe::",
    "a link-local address": "fe80::1",
    "an address that ISATAP carries": "2a00:50::5efe:7f00:1",
}
for _what, _address in ADDRESSES.items():
    LIST.add("D4", f"Reach {_what} by an allowed name", led_to([_address]), ANY_ADDRESS)


def own_address(*, is_known: bool) -> Callable[[Arena], object]:
    def attack(_arena: Arena) -> object:
        own = frozenset({socket.inet_aton("93.184.215.14")}) if is_known else frozenset()
        with scene(ALLOWED, own=own) as stage:
            stage.status("example.org:443")
            return stage.doorman.asked

    return attack


LIST.add_pair(
    "D4",
    "Reach the machine itself by its public address",
    own_address(is_known=True),
    "without the list of the machine's own addresses",
    own_address(is_known=False),
)
