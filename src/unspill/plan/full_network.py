# SPDX-License-Identifier: Apache-2.0
"""What a sandbox with full IP networking has to know of it: where to ask for names.

The host's own resolver is often a private address, which is closed; the one that is named here leads to it, for DNS
only. Its search list is the person's and stays outside.
"""

from __future__ import annotations

from unspill.model.full_network import RESOLVER
from unspill.model.plan import Bind, File, HostNetwork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.model.plan import PastaNetwork

_FRESH = b"/run/"
RESOLVER_FILE = b"/etc/resolv.conf"


def resolver_operations(network: PastaNetwork | HostNetwork, *, is_host_root: bool = True) -> Iterator[Bind | File]:
    """Yield what /etc/resolv.conf is inside, nothing where the host has none or it is shown anyway."""
    place = network.resolver_file
    if place and not is_host_root:
        if isinstance(network, HostNetwork):
            yield Bind(source=place, dest=RESOLVER_FILE, why="names are asked for as on the host")
            return
        place = RESOLVER_FILE
    if not place:
        return
    if isinstance(network, HostNetwork):
        # A link leads there on hosts with a resolver of their own, and /run is fresh
        if place.startswith(_FRESH):
            yield Bind(source=place, dest=place, why="names are asked for as on the host")
        return
    lines = "".join(f"nameserver {RESOLVER[version]}\n" for version in network.resolvers)
    yield File(
        content=lines.encode(),
        dest=place,
        why="names are asked for through the sandbox's own interface",
        over=not place.startswith(_FRESH),
    )
