# SPDX-License-Identifier: Apache-2.0
"""No process of a run writes after its scan began, however many it left behind and whatever signals they ignore.

The control arm waits as one would naively, for bwrap alone, and sees such writes.
"""

import hashlib
import os
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.figures import record_figure
from tests.support import Ground
from unspill import Sandbox
from unspill.layers.lifecycle import OpenRun
from unspill.model.change import ChangeSet
from unspill.sandbox import running
from unspill.sandbox.scan import scan_run

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.bwrap]

LATER_S = 0.05

# Daemons by double fork, in sessions of their own, deaf to what can be ignored: each appends, makes and removes files
WRITERS = """
for i in $(seq {count}); do
  (trap '' TERM HUP INT QUIT PIPE USR1
   setsid sh -c 'while :; do echo x >> log.$1; echo y > new.$1; mkdir d.$1; rmdir d.$1; done' sh $i \\
     > /dev/null 2>&1 < /dev/null &)
done
while [ ! -e new.{count} ]; do :; done
"""
ENDINGS = {"exit 0": 600.0, "exit 3": 600.0, "kill -9 $$": 600.0, "sleep 1000": 0.1, "kill -15 0; sleep 1000": 0.1}


def fingerprint(top: bytes) -> dict[bytes, tuple[object, ...]]:
    """Return inode, mode, size, both times and a digest of the content of everything below a directory."""
    found: dict[bytes, tuple[object, ...]] = {}
    waiting = [top]
    while waiting:
        path = waiting.pop()
        try:
            state = os.lstat(path)
            if stat.S_ISDIR(state.st_mode):
                waiting += [entry.path for entry in os.scandir(path)]
                digest = b""
            else:
                digest = hashlib.sha256(Path(os.fsdecode(path)).read_bytes()).digest()
        except FileNotFoundError:
            # Somebody is writing at this very moment: unlike whatever is found next
            found[path] = (object(),)
        else:
            times = (state.st_mtime_ns, state.st_ctime_ns)
            found[path] = (state.st_ino, state.st_mode, state.st_size, *times, digest)
    return found


class Scans:
    """Stands before the scan of each run, and compares what it is given with what is there afterwards and later."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._scan = scan_run
        self.count = 0
        self.entries = 0
        self.late: list[str] = []
        monkeypatch.setattr(running, "scan_run", self._look)

    def _look(self, under_way: OpenRun) -> ChangeSet:
        stacks = (*under_way.stacks, *(cache.stack for cache in under_way.caches))
        uppers = [stack.open.upper for stack in stacks if stack.open is not None]
        begun = [fingerprint(upper) for upper in uppers]
        changes = self._scan(under_way)
        for when in ("after the scan", "later"):
            if [fingerprint(upper) for upper in uppers] != begun:
                self.late.append(f"run {under_way.run.number}: written {when}")
            time.sleep(LATER_S)
        self.count += 1
        self.entries += sum(map(len, begun))
        return changes


def run_with_writers(sandbox: Sandbox, count: int) -> None:
    endings = list(ENDINGS.items())
    for number in range(count):
        ending, timeout = endings[number % len(endings)]
        command = WRITERS.format(count=1 + number % 6) + ending
        sandbox.run(command, timeout=timeout, after="discard")


def test_no_process_writes_after_the_scan_began(
    ground: Ground, engine: str, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time buys dozens of runs that leave writers behind, and hundreds with `--full`."""
    (ground.home / ".cache" / "pip").mkdir(parents=True)
    scans = Scans(monkeypatch)
    callers, each = 2, (500 if full else 20) if engine == "mount" else (100 if full else 10)
    threads = [
        threading.Thread(target=run_with_writers, args=(ground.sandbox(f"caller {number}"), each))
        for number in range(callers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record_figure(
        f"late writes, engine {engine}",
        f"{len(scans.late)} in {scans.count} runs",
        "1 to 6 daemons write without pause when the command exits, is killed or runs out of time",
    )
    assert scans.late == []
    assert scans.count == callers * each
    # The writers had begun, so there was something to be changed
    assert scans.entries > 4 * scans.count


def is_written_late(bwrap: bytes, place: Path) -> bool:
    """Run writers in a bare bwrap and wait for it alone; tell whether anything was written after that."""
    place.mkdir()
    options = ("--dev-bind", "/", "/", "--unshare-pid", "--die-with-parent", "--new-session", "--chdir")
    command = (*options, place, "--", "/bin/sh", "-c", WRITERS.format(count=6) + "exit 0")
    subprocess.run([bwrap, *command], check=True)
    begun = fingerprint(os.fsencode(place))
    time.sleep(LATER_S)
    return fingerprint(os.fsencode(place)) != begun


def test_who_waits_for_bwrap_alone_sees_late_writes(tmp_path: Path, trusted_bwrap: bytes, full: bool) -> None:
    """The control arm: the kernel kills what is left in the sandbox after bwrap itself has gone."""
    tries = 60 if full else 15
    late = sum(is_written_late(trusted_bwrap, tmp_path / f"{number}") for number in range(tries))
    record_figure("late writes, waiting for bwrap alone", f"in {late} of {tries} runs", "the control arm: bare bwrap")
    assert late
