# SPDX-License-Identifier: Apache-2.0
"""Lays settings over a policy: the person's own replace, a project's and a call's only tighten.

Whatever would widen is an error that names the file and the key, never ignored in silence.
"""

from __future__ import annotations

from unspill.errors import PolicyError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from unspill.model.policy import Limits, Policy
    from unspill.policy.settings import Bound, Settings

_REPLACED = (
    "view",
    "roots",
    "readable",
    "hidden",
    "toolchains",
    "caches",
    "environment",
    "profile",
    "after",
    "after_timeout",
    "engine",
    "bwrap",
    "allow_root",
    "shown_lines",
    "shown_bytes",
    "keep_days",
    "keep_bytes",
)
_PERSON_ONLY = ("roots", "readable", "engine", "bwrap", "allow_root", "keep_days", "keep_bytes")


def with_own(policy: Policy, own: Settings) -> Policy:
    """Return the policy with the person's own settings over it."""
    said = {key: getattr(own, key) for key in _REPLACED if getattr(own, key) is not None}
    return policy.replace(limits=policy.limits.replace(**dict(own.limits)), **said)


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
        if project.view != "sealed" and policy.view == "sealed":
            raise _widens(project, "view", "shows more than the view `sealed`")
        changed["view"] = project.view
    if project.profile is not None:
        if project.profile != "strict" and policy.profile == "strict":
            raise _widens(project, "profile", "allows more system calls than the profile `strict`")
        changed["profile"] = project.profile
    for key in ("toolchains", "caches"):
        wanted = getattr(project, key)
        if wanted and not getattr(policy, key):
            raise _widens(project, key, "is switched off in your own configuration")
        if wanted is not None:
            changed[key] = wanted
    if project.environment is not None:
        changed["environment"] = _fewer_names(policy, project)
    if project.hidden is not None:
        changed["hidden"] = tuple(dict.fromkeys((*policy.hidden, *project.hidden)))
    for key in ("after", "after_timeout"):
        wanted = getattr(project, key)
        if wanted == "apply" and getattr(policy, key) != "apply":
            raise _widens(project, key, "your own configuration does not apply changes by itself")
        if wanted is not None:
            changed[key] = wanted
    for key in ("shown_lines", "shown_bytes"):
        wanted = getattr(project, key)
        if wanted is not None:
            _check_lower(project.where, key, getattr(policy, key), wanted)
            changed[key] = wanted
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


def _check_lower(where: str, key: str, bound: Bound, wanted: Bound) -> None:
    if bound is None:
        return
    if wanted is None or wanted > bound:
        asked = "unlimited" if wanted is None else wanted
        raise PolicyError(
            f"{where}: {key}: {asked} is more than the {bound} of your own configuration",
            remedy="Raise it in your own configuration, or ask for less.",
        )


def _fewer_names(policy: Policy, project: Settings) -> tuple[str, ...]:
    wanted = project.environment or ()
    for name in wanted:
        if name not in policy.environment:
            raise _widens(project, "environment", f"{name} is not in your own list")
    return wanted


def _widens(project: Settings, key: str, reason: str) -> PolicyError:
    return PolicyError(
        f"{project.where}: {key}: {reason}",
        remedy="A project's file can only tighten; remove the setting, or put it into your own configuration.",
    )
