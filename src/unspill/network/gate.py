# SPDX-License-Identifier: Apache-2.0
"""The way out of one run: its proxy, from the listener that the spawner made inside to the record of what went out.

The proxy serves in a thread of this process and in this process's network namespace. Without a network in the plan
nothing of it is loaded."""

from __future__ import annotations

import os
import resource

from unspill.errors import SandboxUnavailable
from unspill.host.places import own_addresses
from unspill.model.plan import ProxyNetwork
from unspill.model.run import Budget, Traffic
from unspill.policy.hosts import parse_rules

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.plan import NetworkPlan
    from unspill.network.proxy import Ask, Proxy
    from unspill.network.resolve import Endpoint
    from unspill.policy.hosts import HostRules


_DESCRIPTORS = 4096
# What a command opens may not take the last ones: this process has to go on, and whoever it belongs to
_LEFT_ALONE = 64
_FEWEST, _MOST = 4, 1024


class Gate:
    """The proxy of one run, which begins to serve when the listener is there."""

    def __init__(
        self,
        network: ProxyNetwork,
        rules: HostRules,
        own: frozenset[bytes],
        endpoints: frozenset[Endpoint] = frozenset(),
        ask: Ask | None = None,
    ) -> None:
        self._network = network
        self._rules = rules
        self._own = own
        self._endpoints = endpoints
        self._ask = ask
        self._proxy: Proxy | None = None

    def serve(self, listener: int) -> None:
        """Take the listening socket and serve it from now on.

        Raises:
            SandboxUnavailable: there can't be another thread, or there are no descriptors left.
        """
        from unspill.network.proxy import Proxy, ProxyLimits  # lazy: proxy

        budget = Budget(up=self._network.up_bytes, down=self._network.down_bytes)
        limits = ProxyLimits(most_clients=_connections_at_once(), asking_s=self._network.asking_s)
        self._proxy = Proxy(
            listener,
            self._rules,
            budget=budget,
            own=self._own,
            endpoints=self._endpoints,
            limits=limits,
            ask=self._ask,
        )
        self._proxy.start()

    def waited_s(self) -> float:
        """Return how long the command has waited for somebody's answer so far."""
        return 0.0 if self._proxy is None else self._proxy.waited_s()

    def close(self) -> Traffic:
        """End what goes on and return what there was; may be called twice."""
        if self._proxy is None:
            return Traffic()
        self._proxy.close()
        return Traffic(
            connections=self._proxy.connections(),
            denials=self._proxy.denials(),
            left_out=self._proxy.left_out,
            faults=tuple(f"the proxy dropped a connection; please report this: {f!r}" for f in self._proxy.faults),
        )


def make_gate(
    network: NetworkPlan,
    *,
    is_own_process: bool,
    endpoints: frozenset[Endpoint] = frozenset(),
    ask: Ask | None = None,
) -> Gate | None:
    """Return the way out that a plan asks for, None where there is none of ours.

    Args:
        network: What the plan says.
        is_own_process: Nobody else has descriptors in this process, so their bound may be raised.
        endpoints: Exact addresses and ports that may be reached although they are not public.
        ask: Is asked, while the command waits, for what no rule covers.

    Raises:
        PolicyError: a host can't be understood.
        SandboxUnavailable: this host's own addresses are not known, so they can't be kept out of reach.
    """
    if not isinstance(network, ProxyNetwork):
        return None
    rules = parse_rules(network.hosts, public=network.public)
    try:
        own = own_addresses()
    except (OSError, ValueError) as error:
        raise SandboxUnavailable(
            f"the addresses of this host can't be read: {error}", remedy="Mount /proc, or run without a network."
        ) from None
    if is_own_process:
        _allow_descriptors()
    return Gate(network, rules, own, endpoints, ask)


def _connections_at_once() -> int:
    """Return how many connections there is room for; others wait until some have ended. Each takes two descriptors."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if soft == resource.RLIM_INFINITY:
        return _MOST
    free = soft - len(os.listdir("/proc/self/fd")) - _LEFT_ALONE
    return min(max(free // 2, _FEWEST), _MOST)


def _allow_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
