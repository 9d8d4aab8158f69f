# SPDX-License-Identifier: Apache-2.0
"""Which process answers for a run, and whether it is still alive.

A pid alone is reused; with its start time and the boot it is unique. Reads /proc, signals nobody.
"""

from __future__ import annotations

import os
import time

from unspill.errors import HostError
from unspill.store.runs import Owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.store.runs import UnfinishedRun

# A pid of another pid namespace can't be looked up from here. Its run is left alone until it is older than any
# run should be: a layer swept from under a living run would be worse than one that stays for a day.
FOREIGN_NS = 24 * 3600 * 1_000_000_000

# By pid: a fork carries this along, but is another process.
_owners: dict[int, Owner] = {}


def this_process() -> Owner:
    """Return what identifies the calling process.

    Raises:
        HostError: /proc can't be read.
    """
    pid = os.getpid()
    if pid not in _owners:
        started = _started(pid)
        if started is None:
            raise HostError("/proc does not show this process.", remedy="Mount /proc.")
        with open(b"/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        pids = os.stat(b"/proc/self/ns/pid").st_ino
        _owners[pid] = Owner(pid=pid, started=started, boot=boot, pids=pids)
    return _owners[pid]


def may_live(run: UnfinishedRun) -> bool:
    """Tell whether a process of a run that was abandoned may be alive: one of this boot that nobody has looked for."""
    return run.owner.boot == this_process().boot


def is_abandoned(run: UnfinishedRun) -> bool:
    """Tell whether the owner of an unfinished run is dead."""
    me = this_process()
    if run.owner.boot != me.boot:
        return True
    if run.owner.pids != me.pids:
        return time.time_ns() - run.started_ns > FOREIGN_NS
    return run.owner.pid != me.pid and _started(run.owner.pid) != run.owner.started


def _started(pid: int) -> int | None:
    """Return when a process was started, in clock ticks since the boot; None if it is dead."""
    try:
        with open(b"/proc/%d/stat" % pid, "rb") as file:
            # The name of the program is in parentheses and may itself contain some.
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # A killed process stays a zombie until its parent looks.
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
