# SPDX-License-Identifier: Apache-2.0
"""What concerns the state directory as a whole, and works without a project, a sandbox or a readable database."""

from __future__ import annotations

import os
import time

from unspill.errors import PolicyError, RootfsError, SandboxUnavailable, StoreDamaged, StoreTooNew
from unspill.layers.locks import SandboxLock
from unspill.model.layer import SandboxId
from unspill.record import Record
from unspill.sandbox.locations import find_own_locations
from unspill.sandbox.settings import find_own_policy, rootfs_directory
from unspill.store.connection import is_id
from unspill.store.db import Store
from unspill.store.state import check_state_dir, list_aside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.operation import Operation
    from unspill.sandbox.retention import Pruned
    from unspill.sandbox.status import Status


class Recovered(Record):
    """What was done about a database that was lost or damaged, and what had been interrupted.

    `reason` is what was wrong with it, empty where nothing was; `database` where it lies now. `copied_ns` is when the
    copy was made that took its place, None where there was no copy and a new database did. `aside` has no row.
    """

    reason: str = ""
    database: bytes | None = None
    copied_ns: int | None = None
    interrupted: tuple[Operation, ...] = ()
    aside: tuple[bytes, ...] = ()


def get_status() -> Status:
    """Say what the state directory holds and costs.

    Raises:
        StoreError: it can't be used.
    """
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


def recover_now() -> Recovered:
    """Put a copy in the place of a database that is lost or damaged, then set aside what has no row.

    Raises:
        SandboxUnavailable: a run or an operation is going on.
        StoreError: the state directory can't be used.
    """
    from unspill.apply.recover import recover_operations
    from unspill.layers.sweep import sweep, sweep_operations

    state = find_own_locations().state
    if not check_state_dir(state):
        return Recovered()
    done = _replace_damaged(state)
    before = list_aside(state)
    with Store.open(state) as store:
        interrupted = recover_operations(store)
        sweep(store)
        sweep_operations(store)
    aside = (path for name, path in list_aside(state).items() if name not in before)
    return done.replace(interrupted=interrupted, aside=tuple(sorted(aside)))


def _replace_damaged(state: bytes) -> Recovered:
    """Put a copy in the place of the database, unless that is whole. No run may be going on."""
    from unspill.store.copies import put_back

    locks = _lock_all(state)
    try:
        reason = _find_damage(state)
        if not reason:
            return Recovered()
        put = put_back(state)
        return Recovered(reason=reason, database=put.database, copied_ns=put.copied_ns)
    finally:
        for lock in locks:
            lock.release()


def _lock_all(state: bytes) -> list[SandboxLock]:
    held: list[SandboxLock] = []
    for name in filter(is_id, os.listdir(os.fsdecode(state + b"/locks"))):
        lock = SandboxLock(state, SandboxId(name))
        if not lock.try_acquire():
            for other in held:
                other.release()
            raise SandboxUnavailable("A sandbox is in use.", remedy="Wait until its run has ended, then try again.")
        held.append(lock)
    return held


def _find_damage(state: bytes) -> str:
    """Return what is wrong with the database, an empty text where nothing is."""
    try:
        with Store.open(state) as store:
            store.check()
    except (StoreDamaged, StoreTooNew) as error:
        return error.message
    return ""
