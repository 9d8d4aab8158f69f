# SPDX-License-Identifier: Apache-2.0
"""What the files of the directories above a project say: it counts for the project as well, wherever it is tighter.

A command can make a project of the directory that a person stands in, but it can't leave the rules of the outer one.
"""

from __future__ import annotations

from unspill.model.rules import SCOPES
from unspill.policy.config import EVER_LESS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.model.policy import Network, Policy, Secrets
    from unspill.model.rules import Rules
    from unspill.policy.config import Bound, Settings


def seen_from(project: bytes, settings: Settings, directory: bytes) -> Settings:
    """Return the settings of a directory above a project with the paths of secrets from the project on."""
    inner = project[len(directory) :].strip(b"/") + b"/"
    secrets = dict(settings.secrets)
    if "directories" in secrets:
        paths = [path.removeprefix(inner) for path in secrets["directories"] if path.startswith(inner)]
        secrets["directories"] = tuple(paths)
    return settings.replace(secrets=tuple(secrets.items()))


def tightest(own: Policy, other: Policy) -> Policy:
    """Return the policy of a project, with what another one of the same person's is tighter in."""
    lower = ("shown_lines", "shown_bytes")
    changed: dict[str, Any] = {key: _least(getattr(own, key), getattr(other, key)) for key in lower}
    for key in ("after", "after_timeout", "after_cancel"):
        changed[key] = getattr(other if getattr(own, key) == "apply" else own, key)
    limits = own.limits.as_dict()
    return own.replace(
        view=max(own.view, other.view, key=EVER_LESS.index),
        tmp="fresh" if "fresh" in (own.tmp, other.tmp) else own.tmp,
        rootfs_writable=own.rootfs_writable and other.rootfs_writable,
        profile="strict" if "strict" in (own.profile, other.profile) else own.profile,
        toolchains=own.toolchains and other.toolchains,
        caches=own.caches and other.caches,
        environment=tuple(name for name in own.environment if name in other.environment),
        hidden=tuple(dict.fromkeys((*own.hidden, *other.hidden))),
        limits=own.limits.replace(**{key: _least(limits[key], getattr(other.limits, key)) for key in limits}),
        network=own.network if own.network == other.network else _network(own.network, other.network),
        permissions=_rules(own.permissions, other.permissions),
        secrets=_secrets(own.secrets, other.secrets),
        **changed,
    )


def _least(one: Bound, other: Bound) -> Bound:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _network(one: Network, other: Network) -> Network:
    from unspill.policy.hosts import covered

    hosts = [host for host in one.hosts if covered([host], other.hosts)]
    hosts += [host for host in other.hosts if covered([host], one.hosts)]
    return one.replace(
        hosts=tuple(dict.fromkeys(hosts)),
        ask=one.ask and other.ask,
        up_bytes=_least(one.up_bytes, other.up_bytes),
        down_bytes=_least(one.down_bytes, other.down_bytes),
    )


def _rules(one: Rules, other: Rules) -> Rules:
    changed: dict[str, Any] = {}
    for key, own in one.as_dict().items():
        theirs = getattr(other, key)
        if key in ("grant_days", "wait_s"):
            changed[key] = min(own, theirs)
        elif key == "longest":
            changed[key] = min(own, theirs, key=SCOPES.index)
        else:
            changed[key] = "deny" if "deny" in (own, theirs) else own
    return one.replace(**changed)


def _secrets(one: Secrets, other: Secrets) -> Secrets:
    return one.replace(
        mask=one.mask or other.mask,
        names=tuple(dict.fromkeys((*one.names, *other.names))),
        directories=tuple(dict.fromkeys((*one.directories, *other.directories))),
    )
