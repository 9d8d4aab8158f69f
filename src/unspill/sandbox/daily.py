# SPDX-License-Identifier: Apache-2.0
"""What is done once a day when a sandbox is opened. On all other occasions it costs one look into the store."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.policy import Policy
    from unspill.store.db import Store

DAY_NS = 24 * 3600 * 1_000_000_000
STAMP = "pruned"


def prune_daily(store: Store, policy: Policy, now_ns: int | None = None) -> None:
    """Forget what is outside the window if that was not done for a day; a failure is no reason not to run."""
    now = time.time_ns() if now_ns is None else now_ns
    stamp = store.facts.find(STAMP)
    if stamp is None:
        # Nothing can be old in a store that was never looked at
        store.facts.put(STAMP, str(now))
        return
    if stamp.isdecimal() and 0 <= now - int(stamp) < DAY_NS:
        return
    from unspill.sandbox.retention import prune_in_time

    try:
        is_complete = prune_in_time(store, now, days=policy.keep_days, budget=policy.keep_bytes)
    except OSError:
        return
    store.grants.remove_expired(now)
    store.requests.remove_before(now - policy.keep_days * DAY_NS)
    if is_complete:
        store.facts.put(STAMP, str(now))
