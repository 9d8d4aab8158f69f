# SPDX-License-Identifier: Apache-2.0
"""What concerns the state directory as a whole, and works without a project, a sandbox or a readable database."""

from __future__ import annotations

import os
import time

from unspill.errors import PolicyError, RootfsError
from unspill.host.places import find_home
from unspill.model.policy import Policy
from unspill.model.record import Record
from unspill.policy.paths import show
from unspill.sandbox.locations import find_locations
from unspill.sandbox.settings import read_text, without_overridden
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.operation import Operation
    from unspill.sandbox.locations import Locations
    from unspill.sandbox.recovering import Recovered
    from unspill.sandbox.retention import Pruned
    from unspill.sandbox.status import Status


class Repaired(Record):
    """What was brought back into the store, and the interrupted operations that were finished or taken back."""

    recovered: Recovered
    operations: tuple[Operation, ...]


def get_status() -> Status:
    """Say what the state directory holds and costs.

    Raises:
        StoreError: it can't be used.
    """
    from unspill.sandbox.rootfs_choice import rootfs_directory
    from unspill.sandbox.status import status

    locations = find_own_locations()
    try:
        rootfs = rootfs_directory(find_own_policy(locations), locations)
    except (PolicyError, RootfsError):
        # What is kept is told all the same
        rootfs = locations.rootfs
    with Store.open(locations.state) as store:
        return status(store, locations.data, rootfs)


def prune_now(*, dry_run: bool) -> Pruned:
    """Forget what the person's own settings do not keep any more.

    Raises:
        PolicyError: the configuration can't be understood.
        StoreError: the state directory can't be used.
    """
    from unspill.sandbox.retention import prune

    locations = find_own_locations()
    policy = find_own_policy(locations)
    with Store.open(locations.state) as store:
        return prune(store, time.time_ns(), days=policy.keep_days, budget=policy.keep_bytes, dry_run=dry_run)


def recover_now() -> Repaired:
    """Rebuild what the store lacks from the directories beside it, then end what was interrupted.

    Raises:
        SandboxUnavailable: a run or an operation is going on.
        StoreError: the state directory can't be used.
    """
    from unspill.apply.recover import recover_operations
    from unspill.sandbox.recovering import recover

    state = find_own_locations().state
    recovered = recover(state)
    with Store.open(state) as store:
        return Repaired(recovered=recovered, operations=recover_operations(store))


def find_own_locations() -> Locations:
    """Return the directories of whoever runs this process."""
    return find_locations(find_home(os.getuid(), os.environb.get(b"HOME")).path, os.environb)


def find_own_policy(locations: Locations) -> Policy:
    """Return what the person's own file says, whatever the project.

    Raises:
        PolicyError: it can't be understood.
    """
    path = os.path.join(locations.config, b"config.toml")
    text = read_text(path)
    if text is None:
        return Policy()
    from unspill.policy.merge import with_own
    from unspill.policy.toml import parse_policy

    own = with_own(Policy(), parse_policy(text, where=show(path), trusted=True, home=locations.home))
    return without_overridden(own)
