# SPDX-License-Identifier: Apache-2.0
"""The moment after an operation: every entry that it put is older, whatever changes later is not.

A filesystem's clock may stand still for 4 ms. Without waiting for its next tick, what we put and what a person writes
right after it would have one time, and the next run's mark as well.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.apply.sites import Sites
    from unspill.model.operation import Step

_PATIENCE_S = 1.0
_PAUSE_S = 0.0005


def settle_mark(sites: Sites, root: int, steps: Sequence[Step]) -> int:
    """Return a moment of a root's own filesystem that is later than the last change made there."""
    last = _last_change(sites, root, steps)
    try:
        fd = os.open(b".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=sites.roots[root].root_fd)
    except OSError:
        # No file without a name here: the system's clock, which every filesystem of this machine stamps with
        time.sleep(0.02)
        return time.time_ns() - 10_000_000
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while (now := os.fstat(fd).st_ctime_ns) <= last and time.monotonic() < deadline:
            # Since Linux 6.13 a time that somebody has looked at is followed by a finer one, so this need not wait
            os.fchmod(fd, 0o600)
            if os.fstat(fd).st_ctime_ns <= last:
                time.sleep(_PAUSE_S)
        return now
    finally:
        os.close(fd)


def _last_change(sites: Sites, root: int, steps: Sequence[Step]) -> int:
    """Return the youngest ctime that the last steps have left; a clock does not go back, so the last ones suffice."""
    youngest = 0
    for step in [step for step in steps if step.root == root][-4:]:
        for path in (step.path, step.path.rpartition(b"/")[0]):
            try:
                found = os.fstat(sites.roots[root].root_fd) if path in (b"", b".") else sites.roots[root].find(path)
            except OSError:
                continue
            youngest = max(youngest, found.st_ctime_ns if found is not None else 0)
    return youngest
