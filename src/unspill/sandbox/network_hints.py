# SPDX-License-Identifier: Apache-2.0
"""Why a program could not find a host: it says so in its own words, none of which name the sandbox.

Only words in an output, so a hint and no more. What the proxy itself refused is a Denial, not this.
"""

from __future__ import annotations

from unspill.model.plan import NoNetwork, ProxyNetwork
from unspill.model.run import Hint, NeverStarted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.plan import NetworkPlan
    from unspill.model.run import Outcome, Output

# Of curl and git; of getaddrinfo, twice; of node; of wget; of Go; of the JVM; of connect(2)
_WORDS = (
    b"Could not resolve host",
    b"Temporary failure in name resolution",
    b"Name or service not known",
    b"EAI_AGAIN",
    b"unable to resolve host",
    b"dial tcp: lookup",
    b"UnknownHostException",
    b"UnresolvedAddressException",
    b"Network is unreachable",
    b"ENETUNREACH",
)
_OFF = Hint(
    code="network-off",
    text="Commands have no network here.",
    remedy="`--allow-host HOST` allows one host, `--network` asks for the network for this command.",
)
_BY_PROXY = Hint(
    code="network-by-proxy",
    text="The allowed hosts are reached by the sandbox's proxy only, and this program does not seem to use it.",
    remedy="Point it at the proxy in `$https_proxy`, which speaks HTTP and SOCKS5.",
)


def network_hints(network: NetworkPlan, outcome: Outcome, *outputs: Output) -> tuple[Hint, ...]:
    """Return the explanation of a failed command that was looking for a host, if that is what it seems."""
    if isinstance(outcome, NeverStarted) or not any(word in _last(output) for word in _WORDS for output in outputs):
        return ()
    match network:
        case NoNetwork():
            return (_OFF,)
        case ProxyNetwork():
            return (_BY_PROXY,)
    return ()


def _last(output: Output) -> bytes:
    return output.tail or output.head
