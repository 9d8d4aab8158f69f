# SPDX-License-Identifier: Apache-2.0
"""Every address of this host, as the kernel lists them for this thread's network namespace.

Nothing that a sandbox asks for may lead back to the host: a service that listens on a public address of the machine
is often meant for the person only.
"""

from __future__ import annotations

_IPV4 = "/proc/thread-self/net/fib_trie"
_IPV6 = "/proc/thread-self/net/if_inet6"
_LOCAL = ("/32 host LOCAL",)


def own_addresses() -> frozenset[bytes]:
    """Return the packed addresses; a kernel without IPv6 has none of that kind.

    Raises:
        OSError: the lists can't be read: then nothing can be checked against them.
        ValueError: they are none of the kernel's.
    """
    found = parse_fib_trie(_read(_IPV4))
    try:
        found += parse_if_inet6(_read(_IPV6))
    except FileNotFoundError:
        return frozenset(found)
    return frozenset(found)


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="replace") as file:
        return file.read()


def parse_fib_trie(text: str) -> list[bytes]:
    """Return the local IPv4 addresses: leaves of the tree whose route is `/32 host LOCAL`."""
    found = []
    leaf = ""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "|--":
            leaf = words[1]
        elif line.strip() in _LOCAL and leaf:
            found.append(bytes(int(part) for part in leaf.split(".")))
    return found


def parse_if_inet6(text: str) -> list[bytes]:
    """Return the IPv6 addresses: the first word of each line, 32 digits."""
    return [bytes.fromhex(line.split()[0]) for line in text.splitlines() if line.strip()]
