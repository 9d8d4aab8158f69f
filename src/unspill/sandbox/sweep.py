# SPDX-License-Identifier: Apache-2.0
"""Puts a state directory in order before it is used: what dead processes left, what they had under way."""

from __future__ import annotations

import os

from unspill.errors import SandboxUnavailable
from unspill.layers.locks import is_abandoned
from unspill.layers.sweep import sweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.operation import Operation
    from unspill.model.plan import Facts
    from unspill.model.run import Run
    from unspill.sandbox.project import Project
    from unspill.store.db import Store


_swept: set[tuple[int, bytes]] = set()


def sweep_once(store: Store, facts: Facts) -> tuple[Operation, ...]:
    """Remove what dead processes left, once per process and state directory; return what they had under way.

    Raises:
        SandboxUnavailable: the state directory's filesystem fails.
    """
    recovered = end_interrupted(store)
    key = (os.getpid(), store.state)
    if key in _swept:
        return recovered
    try:
        swept = sweep(store)
    except OSError as error:
        raise SandboxUnavailable(
            f"{os.fsdecode(store.state)} can't be put in order: {error.strerror}",
            remedy="Mend the disk or free some space.",
        ) from error
    if swept.runs and facts.cgroup != "none":
        from unspill.host.cgroup import sweep_groups  # lazy: upkeep

        sweep_groups(facts.cgroup, swept.runs)
    _swept.add(key)
    return recovered


def hold_interrupted(project: Project) -> tuple[Run, ...]:
    """Hold what runs of a project had written when their processes were killed; return those to tell the person of."""
    if not any(run.keeps and is_abandoned(run) for run in project.store.runs.unfinished()):
        return ()
    from unspill.sandbox.interrupted import hold_of_project  # lazy: upkeep

    return hold_of_project(project)


def end_interrupted(store: Store) -> tuple[Operation, ...]:
    """Finish or take back operations that somebody could not end, this process perhaps; return them.

    Raises:
        SandboxUnavailable: the filesystem fails; the next call tries again.
    """
    if not os.listdir(store.state + b"/pending"):
        return ()
    from unspill.apply.recover import recover_operations  # lazy: upkeep

    return recover_operations(store)
