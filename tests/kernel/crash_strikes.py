# SPDX-License-Identifier: Apache-2.0
"""Makes one system call of a program fail: the program dies at it, or the call returns an error, by strace's inject.

The kernel skips a call at whose entry its process is killed. So a kill at each call that changes something leaves
every state that there is between two of them. Works for an ordinary user, who may trace children of their own.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import unspill

# Calls that change a filesystem, make a change durable, or take a lock. Of those that open, only calls that may make
# a file count.
OPENING: Final = ("open", "openat", "openat2")
MUTATING: Final = (
    *("rename", "renameat", "renameat2", "mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "mknod", "mknodat"),
    *("link", "linkat", "symlink", "symlinkat", "creat", "write", "pwrite64", "writev", "pwritev", "pwritev2"),
    *("copy_file_range", "sendfile", "splice", "fallocate", "truncate", "ftruncate"),
    *("fsync", "fdatasync", "syncfs", "sync_file_range", "chmod", "fchmod", "fchmodat"),
    *("chown", "fchown", "lchown", "fchownat", "setxattr", "lsetxattr", "fsetxattr"),
    *("removexattr", "lremovexattr", "fremovexattr", "utimensat", "flock"),
)
FAULTS: Final = {"killed": "signal=KILL", "no space": "error=ENOSPC", "I/O error": "error=EIO"}
PROGRAM: Final = Path(__file__).with_name("crash_program.py")
LIBRARY: Final = Path(unspill.__file__).parents[1]
LIMIT_S: Final = 120

_CALL = re.compile(r"^(?:\[pid +)?(?:\d+\]? +)?([a-z_0-9]+)\(")


@dataclass(frozen=True)
class Call:
    """The `number`-th call of a name in a program."""

    name: str
    number: int

    def __str__(self) -> str:
        return f"{self.name} {self.number}"


@dataclass(frozen=True)
class Struck:
    """What became of a program: whether the call was reached, whether it died of it, what it said, its calls."""

    is_hit: bool
    is_killed: bool
    report: dict[str, Any] | None
    calls: tuple[Call, ...]
    trace: str = field(repr=False, default="")


def run_program(action: str, project: Path, log: Path, call: Call | None = None, fault: str = "killed") -> Struck:
    """Run the program, traced; with a call, that one fails. A fault that ends with + goes on from there."""
    words = ["strace", "-qq", "-y", "-s", "48", "-e", "signal=none", "-o", os.fspath(log)]
    if call is None or fault != "killed":
        # Stops at the calls of interest only, which is faster; but then strace sends no signals
        words += ["-f", "--seccomp-bpf"]
    words += ["-e", "trace=" + ",".join((*OPENING, *MUTATING))]
    if call is not None:
        lasting = "+" if fault.endswith("+") else ""
        words += ["-e", f"inject={call.name}:{FAULTS[fault.removesuffix('+')]}:when={call.number}{lasting}"]
    variables = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": os.fspath(LIBRARY)}
    done = subprocess.run(
        [*words, sys.executable, "-S", os.fspath(PROGRAM), action, os.fspath(project)],
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=LIMIT_S,
    )
    trace = log.read_text(errors="backslashreplace")
    is_killed = done.returncode == -9
    report = json.loads(done.stdout) if done.stdout else None
    assert is_killed or report is not None, done
    is_hit = "(INJECTED)" in trace or is_killed
    return Struck(is_hit, is_killed, report, tuple(calls_of(trace)), trace)


def calls_of(trace: str) -> list[Call]:
    """Return the calls of a trace that may change something, each with its number among those of its name."""
    counts: Counter[str] = Counter()
    found = []
    for line in trace.splitlines():
        match = _CALL.match(line)
        if match is None:
            continue
        name = match[1]
        counts[name] += 1
        if _may_change(name, line):
            found.append(Call(name, counts[name]))
    return found


def _may_change(name: str, line: str) -> bool:
    if name in OPENING:
        return "O_CREAT" in line or "O_TMPFILE" in line
    # What the program says is not what it does
    return not (name == "write" and re.search(r"write\([12]<", line))
