# SPDX-License-Identifier: Apache-2.0
"""Combine settings into one policy: the person's own replace the defaults, a project's and a call's only tighten.

Whatever would widen is an error that names the file and the key, never ignored in silence. The files of directories
above a project count as well, wherever they are tighter: a command can make a project of the directory that a person
stands in, but it can't leave the rules of the outer one.
"""

from __future__ import annotations

from unspill.errors import PolicyError
from unspill.lazy import lazy_module
from unspill.model.policy import SCOPES
from unspill.policy.config import EVER_LESS, PROJECT_KEYS, Settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.model.policy import (
        Limits,
        Network,
        Policy,
        Rules,
        Secrets,
    )
    from unspill.policy import hosts as host_rules
    from unspill.policy.config import Bound
else:
    host_rules = lazy_module("unspill.policy.hosts")  # lazy: proxy


# Of these a file sets single fields
# Of [permissions]: the lower, the stricter
_LOWER_RULES = ("grant_days", "wait_s", "max_denials", "max_same_denials")
_TABLES = ("limits", "network", "permissions", "secrets")
_KEYS: tuple[str, ...] = Settings.__match_args__
_REPLACED = tuple(key for key in _KEYS if key != "where" and key not in _TABLES)
_PERSON_ONLY = tuple(key for key in _REPLACED if key not in PROJECT_KEYS)


def with_own(policy: Policy, own: Settings) -> Policy:
    """Return the policy with the person's own settings over it."""
    said = {key: getattr(own, key) for key in _REPLACED if getattr(own, key) is not None}
    tables = {key: getattr(policy, key).replace(**dict(getattr(own, key))) for key in _TABLES}
    return policy.replace(**tables, **said)


def tighten(policy: Policy, project: Settings) -> Policy:
    """Return the policy with a project's settings over it.

    Raises:
        PolicyError: one of them would show, allow or keep more than the policy does.
    """
    for key in _PERSON_ONLY:
        if getattr(project, key) is not None:
            raise _widens(project, key, "only your own configuration may set this")
    changed: dict[str, Any] = {}
    if project.view is not None:
        if EVER_LESS.index(project.view) < EVER_LESS.index(policy.view):
            raise _widens(project, "view", f"shows more than the view `{policy.view}`")
        changed["view"] = project.view
    if project.profile is not None:
        if project.profile != "strict" and policy.profile == "strict":
            raise _widens(project, "profile", "allows more system calls than the profile `strict`")
        changed["profile"] = project.profile
    if project.tmp is not None:
        if project.tmp != "fresh" and policy.tmp == "fresh":
            raise _widens(project, "tmp", "keeps more than your own configuration does")
        changed["tmp"] = project.tmp
    for key in ("toolchains", "caches", "rootfs_writable"):
        wanted = getattr(project, key)
        if wanted and not getattr(policy, key):
            raise _widens(project, key, "is switched off in your own configuration")
        if wanted is not None:
            changed[key] = wanted
    if project.environment is not None:
        changed["environment"] = _fewer_names(policy, project)
    if project.hidden is not None:
        changed["hidden"] = _union(policy.hidden, project.hidden)
    for key in ("after", "after_timeout", "after_cancel"):
        wanted = getattr(project, key)
        if wanted == "apply" and getattr(policy, key) != "apply":
            raise _widens(project, key, "your own configuration does not apply changes automatically")
        if wanted is not None:
            changed[key] = wanted
    for key in ("shown_lines", "shown_bytes"):
        wanted = getattr(project, key)
        if wanted is not None:
            _check_lower(project.where, key, getattr(policy, key), wanted)
            changed[key] = wanted
    if project.network:
        changed["network"] = _tighter_network(policy.network, project)
    if project.permissions:
        changed["permissions"] = _tighter_rules(policy.permissions, project)
    if project.secrets:
        changed["secrets"] = _more_secrets(policy.secrets, project)
    return policy.replace(limits=lower_limits(policy.limits, project.limits, project.where), **changed)


def lower_limits(limits: Limits, wanted: tuple[tuple[str, Bound], ...], where: str) -> Limits:
    """Return limits of which some are lower. `where` says in the message who asks.

    Raises:
        PolicyError: one of them is higher, or there is no such limit.
    """
    for name, bound in wanted:
        if name not in limits.as_dict():
            raise PolicyError(f"{where}: limits.{name}: there is no such limit")
        _check_lower(where, f"limits.{name}", getattr(limits, name), bound)
    return limits.replace(**dict(wanted)) if wanted else limits


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
        hidden=_union(own.hidden, other.hidden),
        limits=own.limits.replace(**{key: _least(limits[key], getattr(other.limits, key)) for key in limits}),
        network=own.network if own.network == other.network else _tightest_network(own.network, other.network),
        permissions=_tightest_rules(own.permissions, other.permissions),
        secrets=_tightest_secrets(own.secrets, other.secrets),
        **changed,
    )


def seen_from(project: bytes, settings: Settings, directory: bytes) -> Settings:
    """Return the settings of a directory above a project with the paths of secrets from the project on."""
    inner = project[len(directory) :].strip(b"/") + b"/"
    secrets = dict(settings.secrets)
    if "directories" in secrets:
        paths = [path.removeprefix(inner) for path in secrets["directories"] if path.startswith(inner)]
        secrets["directories"] = tuple(paths)
    return settings.replace(secrets=tuple(secrets.items()))


def _check_lower(where: str, key: str, bound: Bound, wanted: Bound) -> None:
    if bound is None:
        return
    if wanted is None or wanted > bound:
        asked = "unlimited" if wanted is None else wanted
        raise PolicyError(
            f"{where}: {key}: {asked} is more than the {bound} of your own configuration",
            remedy="Raise it in your own configuration, or ask for less.",
        )


def _tighter_network(network: Network, project: Settings) -> Network:
    for name, wanted in project.network:
        key = f"network.{name}"
        if name == "mode":
            raise _widens(project, key, "only your own configuration may set this")
        if name == "ask":
            if wanted and not network.ask:
                raise _widens(project, key, "is switched off in your own configuration")
        elif name in ("hosts", "private_hosts"):
            _check_hosts(getattr(network, name), project, key, wanted)
        elif name == "registries":
            _check_registries(network, project, wanted)
        else:
            _check_lower(project.where, key, getattr(network, name), wanted)
    return network.replace(**dict(project.network))


def _check_hosts(own: tuple[str, ...], project: Settings, key: str, wanted: tuple[str, ...]) -> None:
    for host in wanted:
        if not host_rules.covered([host], own):
            raise _widens(project, key, f"{host} is not in your own list")


def _check_registries(network: Network, project: Settings, wanted: tuple[str, ...]) -> None:
    for registry in wanted:
        if registry not in network.registries:
            raise _widens(project, "network.registries", f"{registry} is not in your own list")


def _tighter_rules(rules: Rules, project: Settings) -> Rules:
    for name, wanted in project.permissions:
        key, own = f"permissions.{name}", getattr(rules, name)
        if name in _LOWER_RULES:
            _check_lower(project.where, key, own, wanted)
        elif name == "denial_window_s":
            if wanted < own:
                raise _widens(project, key, f"{wanted:g} is shorter than {own:g}")
        elif name == "approver":
            if wanted not in (own, "deny"):
                raise _widens(project, key, "only your own configuration may set this")
        elif name == "longest":
            if SCOPES.index(wanted) > SCOPES.index(own):
                raise _widens(project, key, f"{wanted} is longer than {own}")
        elif wanted == "ask" and own == "deny":
            raise _widens(project, key, "your own configuration denies it without asking")
    return rules.replace(**dict(project.permissions))


def _more_secrets(secrets: Secrets, project: Settings) -> Secrets:
    said = dict(project.secrets)
    if "reveal" in said:
        raise _widens(project, "secrets.reveal", "only your own configuration may set this")
    if said.get("mask") is False and secrets.mask:
        raise _widens(project, "secrets.mask", "shows what your own configuration hides")
    return _tightest_secrets(secrets, secrets.replace(**said))


def _fewer_names(policy: Policy, project: Settings) -> tuple[str, ...]:
    wanted = project.environment or ()
    for name in wanted:
        if name not in policy.environment:
            raise _widens(project, "environment", f"{name} is not in your own list")
    return wanted


def _widens(project: Settings, key: str, reason: str) -> PolicyError:
    return PolicyError(
        f"{project.where}: {key}: {reason}",
        remedy="A project's file can only be stricter. Remove the setting, or put it in your own configuration.",
    )


def _least(one: Bound, other: Bound) -> Bound:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _tightest_network(one: Network, other: Network) -> Network:
    return one.replace(
        hosts=_common_hosts(one.hosts, other.hosts),
        private_hosts=_common_hosts(one.private_hosts, other.private_hosts),
        registries=tuple(registry for registry in one.registries if registry in other.registries),
        ask=one.ask and other.ask,
        up_bytes=_least(one.up_bytes, other.up_bytes),
        down_bytes=_least(one.down_bytes, other.down_bytes),
    )


def _common_hosts(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    hosts = [host for host in one if host_rules.covered([host], other)]
    hosts += [host for host in other if host_rules.covered([host], one)]
    return tuple(dict.fromkeys(hosts))


def _tightest_rules(one: Rules, other: Rules) -> Rules:
    changed: dict[str, Any] = {}
    for key, own in one.as_dict().items():
        theirs = getattr(other, key)
        if key in _LOWER_RULES:
            changed[key] = min(own, theirs)
        elif key == "denial_window_s":
            changed[key] = max(own, theirs)
        elif key == "longest":
            changed[key] = min(own, theirs, key=SCOPES.index)
        else:
            changed[key] = "deny" if "deny" in (own, theirs) else own
    return one.replace(**changed)


def _tightest_secrets(one: Secrets, other: Secrets) -> Secrets:
    return one.replace(
        mask=one.mask or other.mask,
        names=_union(one.names, other.names),
        directories=_union(one.directories, other.directories),
    )


def _union(one: tuple[bytes, ...], other: tuple[bytes, ...]) -> tuple[bytes, ...]:
    return tuple(dict.fromkeys((*one, *other)))
