# SPDX-License-Identifier: Apache-2.0
"""Decide a request by the policy and by what was granted before: allow, ask or deny, and which rule it was.

Pure: reads no clock and no disk. A refusal of the configuration is stronger than a grant, which may be older than it.
"""

from __future__ import annotations

from unspill.model.permission import AsRoot, Egress, MaskedSecret, ReadablePath, WritableRoot
from unspill.model.policy import SCOPES
from unspill.policy.hosts import covered
from unspill.policy.paths import contains, show
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.permission import Grant, GrantId, Request
    from unspill.model.policy import Policy, Scope, Stance


class Allow(Record):
    """Nobody need be asked. `grant` is the one that was used, if it was one."""

    rule: str
    grant: GrantId | None = None


class Ask(Record):
    """A person decides; `scopes` are for how long they may."""

    rule: str
    scopes: tuple[Scope, ...]


class Deny(Record):
    """Nobody is asked, because the answer is known."""

    rule: str
    remedy: str = ""


if TYPE_CHECKING:
    Decision = Allow | Ask | Deny


def decide(request: Request, policy: Policy, grants: Iterable[Grant] = (), *, now_ns: int) -> Decision:
    """Return what becomes of a request, and the rule that decided."""
    rules = policy.permissions
    configured = _configured(request, policy)
    if configured is not None:
        return configured
    scopes = _shortened(request.scopes, rules.longest)
    for grant in grants:
        if grant.scope in scopes and grant.covers(request, now_ns):
            return Allow(rule=f"grant {grant.id}", grant=grant.id)
    if request.one_time_only:
        return Ask(rule="this is asked every time", scopes=scopes)
    return Ask(rule="no rule and no grant covers it", scopes=scopes)


def _configured(request: Request, policy: Policy) -> Decision | None:
    """Return what the configuration says by itself."""
    if isinstance(request, ReadablePath | MaskedSecret):
        hidden = next((path for path in policy.hidden if contains(path, request.path)), None)
        if hidden is not None:
            return Deny(rule=f"hidden = {show(hidden)}", remedy="Remove it from `hidden` in your own configuration.")
    allowing = _allowing(request, policy)
    if allowing:
        return Allow(rule=allowing)
    stance: Stance = getattr(policy.permissions, request.setting)
    return _forbidden(request.setting) if stance == "deny" else None


def _allowing(request: Request, policy: Policy) -> str:
    """Return the setting that allows a request without a question; empty for none."""
    match request:
        case WritableRoot(path=path) if any(contains(root, path) for root in policy.roots):
            return "roots"
        case ReadablePath(path=path) if any(contains(readable, path) for readable in policy.readable):
            return "readable"
        case Egress(hosts=hosts) if hosts and policy.network.hosts and covered(hosts, policy.network.hosts):
            return "network.hosts"
        case AsRoot() if policy.allow_root:
            return "allow_root"
        case _:
            return ""


def _forbidden(setting: str) -> Deny:
    return Deny(
        rule=f"permissions.{setting} = deny",
        remedy=f'Set `{setting} = "ask"` under [permissions] in your own configuration to be asked about it.',
    )


def _shortened(scopes: tuple[Scope, ...], longest: Scope) -> tuple[Scope, ...]:
    return tuple(scope for scope in scopes if SCOPES.index(scope) <= SCOPES.index(longest))
