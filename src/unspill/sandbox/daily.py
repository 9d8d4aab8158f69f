# SPDX-License-Identifier: Apache-2.0
"""What is done once a day when a sandbox is opened. On all other occasions it costs one look into the store."""

from __future__ import annotations

import time

from unspill.errors import StoreDamaged, StoreError
from unspill.model.policy import DAY_NS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.policy import Policy
    from unspill.store.db import Store

STAMP = "pruned"


def do_daily(store: Store, policy: Policy, now_ns: int | None = None) -> None:
    """Copy the database and forget what is outside the window, if that was not done for a day.

    A failure is no reason not to run.

    Raises:
        StoreDamaged: the database is not whole.
    """
    now = time.time_ns() if now_ns is None else now_ns
    stamp = store.facts.find(STAMP)
    if stamp is None:
        # Nothing can be old in a store that was never looked at
        store.facts.put(STAMP, str(now))
        return
    if stamp.isdecimal() and _is_today(int(stamp), now):
        return
    from unspill.sandbox.upkeep import prune_in_time  # lazy: upkeep

    _copy_daily(store, now, policy.keep_days)
    try:
        is_complete = prune_in_time(store, now, days=policy.keep_days, budget=policy.keep_bytes)
    except OSError:
        return
    store.grants.remove_expired(now)
    store.requests.remove_before(now - policy.keep_days * DAY_NS)
    if is_complete:
        store.facts.put(STAMP, str(now))


def _copy_daily(store: Store, now: int, keep_days: int) -> None:
    from unspill.store.copies import copied_ns, make_copy, remove_older  # lazy: upkeep

    made = copied_ns(store.state)
    # Pruning may take several starts of a day, one copy is enough
    if made is not None and _is_today(made, now):
        return
    try:
        make_copy(store.transaction, store.state)
        remove_older(store.state, now - keep_days * DAY_NS)
    except StoreDamaged:
        raise
    except (OSError, StoreError):
        return


def _is_today(moment: int, now: int) -> bool:
    return 0 <= now - moment < DAY_NS
