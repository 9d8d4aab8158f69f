# SPDX-License-Identifier: Apache-2.0
"""What a sandbox with full IP networking has to know of it: where to ask for names.

The host's own resolver is often a private address, which is closed; the one that is named here leads to it, for DNS
only. Its search list is the person's and stays outside.
"""

from __future__ import annotations

from unspill.model.full_network import RESOLVER
from unspill.model.plan import File

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.model.plan import PastaNetwork

_FRESH = b"/run/"


def resolver_operations(network: PastaNetwork) -> Iterator[File]:
    """Yield what is in place of the host's /etc/resolv.conf, nothing where the host has none to be replaced."""
    if not network.resolver_file:
        return
    lines = "".join(f"nameserver {RESOLVER[version]}\n" for version in network.resolvers)
    yield File(
        content=lines.encode(),
        dest=network.resolver_file,
        why="names are asked for through the sandbox's own interface",
        over=not network.resolver_file.startswith(_FRESH),
    )
