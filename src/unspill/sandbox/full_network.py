# SPDX-License-Identifier: Apache-2.0
"""Whether this host can give a run full IP networking in a namespace of its own, and with what.

Asked only for a run that a network was granted to, under `mode = "pasta"`; under `mode = "host"` where names are found.
"""

from __future__ import annotations

import os

from unspill.errors import HostError
from unspill.host.bwrap import why_unsafe
from unspill.host.own_addresses import own_addresses
from unspill.model.plan import PastaNetwork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.full_network import IpVersion

_RESOLVERS = b"/etc/resolv.conf"
_TUN = b"/dev/net/tun"
_PROGRAMS = (b"/usr/bin/pasta", b"/usr/local/bin/pasta", b"/bin/pasta")
_INSTEAD = 'or set `mode = "proxy"` under `[network]`, which needs nothing but unspill'


def plan_pasta(*, has_own_namespace: bool) -> PastaNetwork:
    """Return a network by way of pasta.

    Args:
        has_own_namespace: What starts runs is the first process of a namespace, so that nothing outlives it.

    Raises:
        HostError: there is no pasta on this host, or no tun device that this user may open.
    """
    if not has_own_namespace:
        raise HostError(
            'a network was granted with `mode = "pasta"`, but on this host pasta could outlive unspill',
            remedy=f"Run `unspill doctor`: its row on namespaces says what is missing, {_INSTEAD}.",
        )
    if not os.getuid():
        raise HostError(
            'a network was granted with `mode = "pasta"`, which is not for root: pasta gives its privileges up',
            remedy=f"Run unspill as an ordinary user, {_INSTEAD}.",
        )
    program = next((path for path in _PROGRAMS if _is_trusted(path)), None)
    if program is None:
        raise HostError(
            'a network was granted with `mode = "pasta"`, but there is no `pasta` here that only root can write',
            remedy=f"Install it (package `passt`), {_INSTEAD}.",
        )
    if not os.access(_TUN, os.R_OK | os.W_OK):
        raise HostError(
            f'a network was granted with `mode = "pasta"`, but this user may not open {os.fsdecode(_TUN)}',
            remedy=f"Let the user open it (`chmod 0666 {os.fsdecode(_TUN)}`), {_INSTEAD}.",
        )
    versions = ways_out()
    if not versions:
        raise HostError(
            'a network was granted with `mode = "pasta"`, but this host has no default route',
            remedy=f"Connect it, {_INSTEAD}.",
        )
    try:
        own = tuple(sorted(own_addresses()))
    except (OSError, ValueError) as error:
        raise HostError(
            f"the addresses of this host can't be read: {error}", remedy="Mount /proc, or run without a network."
        ) from None
    return PastaNetwork(
        program=program,
        versions=versions,
        own=own,
        resolver_file=find_resolver_file(),
        resolvers=tuple(version for version in versions if version in _resolver_versions()),
    )


def _is_trusted(program: bytes) -> bool:
    """It is the last that stands between a command and the host's network, so it is chosen as bwrap is."""
    return os.access(program, os.X_OK) and not why_unsafe(os.path.realpath(program))


def find_resolver_file() -> bytes:
    """Return where /etc/resolv.conf really is, nothing if it is nowhere."""
    found = os.path.realpath(_RESOLVERS)
    return found if os.path.isfile(found) else b""


def ways_out() -> tuple[IpVersion, ...]:
    """Return the versions of IP that this host has a default route for."""
    found: list[IpVersion] = []
    if any(words[1] == words[7] == "00000000" for words in _rows("/proc/self/net/route", 8)):
        found.append(4)
    nowhere = "0" * 32
    # A default route of loopback is how the kernel says that there is none
    if any(
        words[0] == nowhere and words[1] == "00" and words[9] != "lo"
        for words in _rows("/proc/self/net/ipv6_route", 10)
    ):
        found.append(6)
    return tuple(found)


def _resolver_versions() -> tuple[IpVersion, ...]:
    named = [words[1] for words in _rows(os.fsdecode(_RESOLVERS), 2) if words[0] == "nameserver"]
    return tuple({6 if ":" in address else 4: None for address in named})


def _rows(path: str, least: int) -> list[list[str]]:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return [words for words in map(str.split, file) if len(words) >= least]
    except OSError:
        return []  # a kernel without it
