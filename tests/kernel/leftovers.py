# SPDX-License-Identifier: Apache-2.0
"""Looks for what a run may have left: processes, mounts, descriptors, directories, rows, changes of the project.

Looks at the kernel and at the files themselves and asks none of unspill's own code, which might share a mistake.
"""

import ctypes
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from unspill.layers.lifecycle import wait_until_clean

STORE_FILES: Final = {"store.db", "store.db-wal", "store.db-shm"}
PARTS: Final = {
    *("layers", "bases", "work", "runs", "locks", "empty", "copies", "operations", "pending", "plugins"),
    *("masks", "audit", "skeletons", "edits"),
}
CGROUPS: Final = Path("/sys/fs/cgroup")
PR_SET_CHILD_SUBREAPER: Final = 36
ROOT: Final = Path(__file__).parents[2]


def state_problems(state: Path) -> list[str]:
    """Return what is in a state directory that no run alive can need; none may be alive."""
    wait_until_clean()
    with closing(sqlite3.connect(state / "store.db")) as db:
        unfinished = [number for (number,) in db.execute("SELECT number FROM runs WHERE ended_ns IS NULL")]
        open_layers = [name for (name,) in db.execute("SELECT id FROM layers WHERE state = 'open'")]
        open_layers += [name for (name,) in db.execute("SELECT id FROM caches WHERE state = 'open'")]
        known = {name for (name,) in db.execute("SELECT id FROM layers UNION SELECT id FROM caches")}
        sealed = {name for (name,) in db.execute("SELECT id FROM layers WHERE state = 'sealed'")}
        runs = {name for (name,) in db.execute("SELECT id FROM runs")}
        operations = {name for (name,) in db.execute("SELECT id FROM operations")}
    uppers = set(os.listdir(state / "layers"))
    problems = {
        "runs without an end": unfinished,
        "layers left open": open_layers,
        "layers without a row": sorted(uppers - known),
        "rows without a layer": sorted(known - uppers),
        "bases without a layer": sorted(set(os.listdir(state / "bases")) - sealed),
        "work directories": os.listdir(state / "work"),
        "outputs without a run": sorted(set(os.listdir(state / "runs")) - runs),
        "operations under way": os.listdir(state / "pending"),
        "operations without a row": sorted(set(os.listdir(state / "operations")) - operations),
        "what is none of ours": sorted(set(os.listdir(state)) - STORE_FILES - PARTS),
        "written into the empty directory": os.listdir(state / "empty"),
        "control groups": control_groups(),
    }
    return [f"{what}: {found}" for what, found in problems.items() if found]


def state_problems_apart(state: Path) -> list[str]:
    """Look at a state directory from a process of its own: SQLite would keep a descriptor in one that uses it too."""
    wait_until_clean()
    command = [sys.executable, "-m", "tests.kernel.leftovers", os.fspath(state)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    problems: list[str] = json.loads(done.stdout)
    return problems


def control_groups() -> list[str]:
    """Return the groups that runs of this user have made anywhere."""
    found = [path for path, _names, _files in os.walk(CGROUPS) if os.path.basename(path).startswith("unspill-run-")]
    return [path for path in found if os.path.exists(path) and os.stat(path).st_uid == os.getuid()]


def tree_of(top: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Return mode, size, modification time and content of all below a directory, and of itself."""
    found = {}
    for path in (top, *sorted(top.rglob("*"))):
        state = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        found[os.fspath(path.relative_to(top))] = (state.st_mode, state.st_size, state.st_mtime_ns, content)
    return found


def mounts_of(top: Path) -> list[str]:
    """Return the mounts of this mount namespace that name a directory or anything below it."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if os.fspath(top) in line]


def descendants(pid: int) -> dict[int, str]:
    """Return the processes below a process: names by pid, those of zombies with `(Z)`."""
    children: dict[int, list[int]] = {}
    shown: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                name, _, rest = Path(f"/proc/{entry}/stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue
            fields = rest.split()
            children.setdefault(int(fields[1]), []).append(int(entry))
            shown[int(entry)] = f"{name} (Z)" if fields[0] in "ZX" else name
    found: dict[int, str] = {}
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found[child] = shown[child]
            waiting.append(child)
    return found


def descriptors(pid: int) -> dict[int, str]:
    """Return what each open descriptor of a process leads to; numbers of pipes and sockets do not count."""
    found = {}
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            found[int(entry)] = os.readlink(f"/proc/{pid}/fd/{entry}").partition(":[")[0]
        except OSError:
            continue
    return found


def adopt_orphans() -> None:
    """Make this process the parent of orphans below it, so that none of them can get out of sight."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def within(seconds: float, is_so: Callable[[], bool]) -> bool:
    """Tell whether something becomes true in time."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def reap_adopted(own: set[int]) -> None:
    """Reap the orphans that came to this process, as the host's pid 1 would; `own` are children of its own."""
    for pid, shown in descendants(os.getpid()).items():
        if shown.endswith("(Z)") and pid not in own:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                continue


if __name__ == "__main__":
    print(json.dumps(state_problems(Path(sys.argv[1]))))
