# SPDX-License-Identifier: Apache-2.0
"""A run on the copy engine: the roots are copied before it and reduced to layers after it.

Works where no overlay does; the cost grows with the project, and each result says so.
"""

from __future__ import annotations

from unspill.changes.measure import measure
from unspill.layers.copy_fill import fill
from unspill.layers.copy_reduce import reduce
from unspill.model.run import LimitReached
from unspill.runner.perform import perform
from unspill.runner.wishes import Wishes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.facts import Facts
    from unspill.model.layer import Stack
    from unspill.model.plan import Plan
    from unspill.model.policy import Limits
    from unspill.runner.perform import Performed

COST = "The project was copied for this run (engine copy): that takes longer the larger the project is."


def perform_on_copy(
    plan: Plan, facts: Facts, wishes: Wishes, stacks: tuple[Stack, ...]
) -> tuple[Performed, tuple[str, ...]]:
    """Fill the open layers, run the plan on them, and leave in them what an overlay would have.

    Raises:
        SandboxUnavailable: a copy could not be made or reduced; the layers must not be sealed.
    """
    manifests = []
    for stack in stacks:
        assert stack.open is not None
        sealed = tuple(reversed(stack.replace(mask=None).below(len(stack.sealed))))
        manifests.append((stack.open.upper, fill(stack.live, sealed, stack.open.upper, stack.mask)))
    room = add_copies(plan.limits, [upper for upper, _manifest in manifests])
    performed = name_own_bound(perform(plan.replace(limits=room), facts, wishes), plan.limits)
    findings = [COST]
    for upper, manifest in manifests:
        findings += manifest.findings
        findings += reduce(upper, manifest)
    return performed, tuple(findings)


def add_copies(limits: Limits, uppers: Sequence[bytes]) -> Limits:
    """Return limits in which what was copied before the run takes nothing of its share."""
    sizes = [measure(upper) for upper in uppers]
    used, entries = sum(size for size, _count in sizes), sum(count for _size, count in sizes)
    return limits.replace(
        layer_bytes=None if limits.layer_bytes is None else limits.layer_bytes + used,
        layer_entries=None if limits.layer_entries is None else limits.layer_entries + entries,
    )


def name_own_bound(performed: Performed, limits: Limits) -> Performed:
    """Say the bound that the person knows, without what the copy added to it."""
    outcome = performed.outcome
    if not isinstance(outcome, LimitReached) or not outcome.limit.startswith("layer_"):
        return performed
    return performed.replace(outcome=outcome.replace(bound=getattr(limits, outcome.limit)))
