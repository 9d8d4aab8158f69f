# SPDX-License-Identifier: Apache-2.0
"""From a Request and what the host has to a Plan.

What the host has is looked for once a second: a sandbox runs many short commands one after the other.
"""

from __future__ import annotations

import os
import time

from unspill.errors import HostError, UsageError
from unspill.host.places import find_places, read_git_configs
from unspill.host.seccomp import build_filter
from unspill.layers.lifecycle import playground_dir
from unspill.model.plan import HostNetwork, NoNetwork, PlanInput, ProxyNetwork
from unspill.plan.build import build_plan
from unspill.policy.defaults import cache_candidates, toolchain_candidates
from unspill.policy.secrets import secret_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.layer import Stack
    from unspill.model.plan import CacheLayer, NetworkPlan, Places, Plan
    from unspill.sandbox.opening import Opened
    from unspill.sandbox.requesting import Request

# A sandbox that runs many short commands looks around once a second, not for each of them
_PLACES_S = 1.0
_RESOLVER_FILE = b"/etc/resolv.conf"
_found: dict[bytes, tuple[Opened, float, Places]] = {}


def get_places(opened: Opened) -> Places:
    """Find what the host has of what a plan may show; for a second what was found last is good enough."""
    last = _found.get(opened.project)
    if last is not None and last[0] is opened and time.monotonic() - last[1] < _PLACES_S:
        return last[2]
    places = _find_places(opened)
    _found[opened.project] = (opened, time.monotonic(), places)
    return places


def forget_places(opened: Opened) -> None:
    """Look around anew the next time."""
    _found.pop(opened.project, None)


def _find_places(opened: Opened) -> Places:
    home = opened.home.path
    configs = read_git_configs(home)
    named = opened.home
    if configs:
        from unspill.plan.gitconfig import filter_identity, parse_gitconfig

        pairs: list[tuple[str, str]] = []
        for text in configs:
            try:
                pairs += parse_gitconfig(text.decode("utf-8", "replace"))
            except UsageError:
                continue  # git itself will complain about it; a sandbox without an identity does no harm
        named = named.replace(identity=filter_identity(tuple(pairs)))
    places = find_places(
        project=opened.project,
        state=opened.locations.state,
        playground=playground_dir(opened.locations.data, opened.project),
        policy=opened.policy,
        home=named,
        toolchains=toolchain_candidates(home, os.environb.get(b"PATH", b"")),
        caches=cache_candidates(home),
        secrets=secret_paths(home, os.getuid()),
        own=(opened.locations.config, opened.locations.data),
    )
    if opened.policy.view == "rootfs":
        from unspill.sandbox.rootfs_use import base_of

        places = places.replace(rootfs=base_of(opened))
    if opened.policy.tmp == "persistent":
        from unspill.layers.lifecycle import tmp_dir

        places = places.replace(tmp=tmp_dir(opened.locations.data, opened.project, opened.row.name))
    return places


def make_plan(
    opened: Opened,
    request: Request,
    places: Places,
    stacks: tuple[Stack, ...],
    caches: tuple[CacheLayer, ...],
    rootfs_layers: tuple[CacheLayer, ...] = (),
) -> Plan:
    """Return the whole sandbox of one run.

    Raises:
        UnspillError: as `build_plan`.
        HostError: unspill does not know this machine's system calls, or container mode makes no sandbox.
    """
    if opened.engine is None:
        raise HostError("in container mode no sandbox is made", remedy="See what it lacks here: `unspill doctor`.")
    base = places.rootfs
    given = PlanInput(
        policy=opened.policy.replace(limits=request.limits),
        facts=opened.facts,
        places=places,
        engine=opened.engine,
        stacks=stacks,
        caches=caches if base is None else (),
        rootfs_layers=() if base is None else rootfs_layers,
        argv=request.argv,
        cwd=request.cwd,
        filter=build_filter(os.uname().machine, opened.policy.profile),
        environ=tuple(os.environb.items()),
        extra_environ=request.environ,
        command_file=request.script,
        network=_plan_network(opened, is_granted=request.network),
        uid=0 if base is not None and opened.policy.rootfs_writable else None,
        gid=os.getgid(),
    )
    plan = build_plan(given)
    if plan.skeleton:
        from unspill.layers.lifecycle import make_skeleton

        make_skeleton(plan.skeleton)
    return plan


def _plan_network(opened: Opened, *, is_granted: bool) -> NetworkPlan:
    """Return what a run reaches: what its policy names, and what was granted to this one command."""
    network = opened.policy.network
    if is_granted and network.mode == "host":
        return HostNetwork(resolver_file=_find_resolver_file())
    if not is_granted and not network.hosts and not network.ask:
        return NoNetwork()
    from unspill.policy.egress import parse_rules

    # What can't be understood is refused before anything is started
    parse_rules(network.hosts)
    return ProxyNetwork(
        hosts=network.hosts,
        ask=network.ask,
        asking_s=opened.policy.permissions.wait_s if network.ask else 0.0,
        public=is_granted,
        up_bytes=network.up_bytes,
        down_bytes=network.down_bytes,
    )


def _find_resolver_file() -> bytes:
    """Return where /etc/resolv.conf really is, nothing if it is nowhere."""
    found = os.path.realpath(_RESOLVER_FILE)
    return found if os.path.isfile(found) else b""
