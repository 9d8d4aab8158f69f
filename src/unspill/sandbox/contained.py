# SPDX-License-Identifier: Apache-2.0
"""Container mode: a command as a plain process of the container that unspill itself runs in.

Weaker than any sandbox, and never chosen by itself: the person's own configuration must say so, a container must be
there, and no sandbox to be had in it. The environment is made anew, time and output are bounded, the run is recorded;
files, network and processes of the container are open to the command, and nothing is held or can be undone.
"""

from __future__ import annotations

import os

from unspill.errors import BwrapUnsafe, HostError, UsageError
from unspill.host.surroundings import find_engine
from unspill.plan.environ import contained_environ
from unspill.sandbox.opening import get_facts
from unspill.sandbox.unsandboxed import check_plain, perform_outside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from unspill.model.plan import Facts
    from unspill.model.policy import Policy
    from unspill.sandbox.opening import Opened
    from unspill.sandbox.requesting import Request
    from unspill.sandbox.result import RunResult
    from unspill.sandbox.running import RunWishes
    from unspill.store.db import Store

WARNING = (
    "container mode: this ran WITHOUT a sandbox, as a plain process of the {name} container that unspill is in. All"
    " that the container has was open to it; what it changed is not known and can't be undone"
)
# What lasts, in the words of bwrap and of the C library: the kernel or the container forbids it, or this bwrap can't.
# A process or memory that can't be had at the moment, and a probe without an answer, are none of these
_REFUSALS = (
    "Operation not permitted",
    "Permission denied",
    "Function not implemented",
    "No permissions to creat",
    "does not support user namespaces",
    "namespaces exceeded (ENOSPC)",
    "Too many users",
    "was not disabled as requested",
    "Read-only file system",
    "Invalid argument",
    "Unknown option",
    "no bwrap",
)
_NONE = "container mode was requested but no container was detected"


def can_seal(facts: Facts) -> bool:
    """Tell whether bubblewrap works here, with whichever engine: then there is no place for container mode."""
    return facts.namespaces and facts.disable_userns and facts.proc_mount


def is_refused(facts: Facts) -> bool:
    """Tell whether no sandbox can be made here at all; not so where a probe only failed for the moment."""
    needed = ("namespaces", "disable_userns", "proc_mount")
    reasons = [reason for name, reason in facts.problems if name in needed and not getattr(facts, name)]
    return any(refusal in reason for reason in reasons for refusal in _REFUSALS)


def find_container(
    store: Store,
    policy: Policy,
    roots: tuple[bytes, ...],
    error: HostError,
    *,
    environ: Mapping[str, str] = os.environ,
    top: str = "",
) -> tuple[Facts, str]:
    """Return what this host can do, and the container that takes the place of a sandbox that can't be had.

    `error` is why it can't; `environ` and `top` are where a container's marks are looked for.

    Raises:
        HostError: there is no container, or the sandbox fails for a reason that must not be passed over.
    """
    if isinstance(error, BwrapUnsafe):
        raise error
    facts = get_facts(store, policy, roots, afresh=True)
    if can_seal(facts) or not is_refused(facts):
        raise error
    name = find_engine(environ, top)
    if not name:
        remedy = f"Here is why no sandbox can be made: {error.message}. {error.remedy}"
        raise HostError(_NONE, remedy=remedy) from error
    return facts, name


def run_contained(opened: Opened, request: Request, wishes: RunWishes) -> RunResult:
    """Run one command in container mode.

    Raises:
        UsageError: its changes are not to be made in the project at once, or its directory does not exist.
    """
    if wishes.after != "apply":
        raise UsageError(
            f"in container mode changes can't be kept apart, so `{wishes.after}` can't be done",
            remedy="Use `apply`: changes are then made in the project at once.",
        )
    environ = contained_environ(opened.project, opened.policy.environment, os.environb, request.environ)
    check_plain(request)
    return perform_outside(opened, request, environ, wishes, WARNING.format(name=opened.container))
