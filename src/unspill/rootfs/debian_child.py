# SPDX-License-Identifier: Apache-2.0
"""Runs the programs that make a Debian rootfs: in a group of their own, with an environment that is made anew.

Of what they say the last lines are kept for an error. Whatever ends this process's work ends them: they are killed
before an exception goes on, and a build notices by its standard input when this process is gone.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections import deque

from unspill.errors import RootfsError
from unspill.host.job import is_dead
from unspill.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# Not the caller's: what is found there is run with what apt trusts
SEARCH = "/usr/sbin:/usr/bin:/sbin:/bin"
PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
_KEPT_LINES = 40
_LONGEST_LINE = 2000
_BLOCK = 65_536
# On a slow line much can take long; but others wait as long for whoever builds the same
LONGEST_S = 6 * 3600.0


class Ended(Record):
    """How a program ended: `tail` are the last lines of what it said."""

    code: int
    tail: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """What it said last, as one text."""
        return "\n".join(self.tail)


def child_environ(home: bytes, more: dict[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a program: nothing of the caller's but the proxies that it is to use."""
    scratch = os.fsdecode(home)
    found = {name: os.environ[name] for lower in PROXIES for name in (lower, lower.upper()) if name in os.environ}
    made = {"PATH": SEARCH, "HOME": scratch, "TMPDIR": scratch, "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    return {**found, **made, **(more or {})}


def run_child(
    argv: Sequence[str],
    environ: dict[str, str],
    *,
    cwd: bytes,
    on_line: Callable[[str], None] | None = None,
    stdout: int | None = None,
    keep_fds: Sequence[int] = (),
    patience_s: float = 0,
    wall_s: float = LONGEST_S,
) -> Ended:
    """Run a program to its end and read its lines: of standard error and, unless it goes elsewhere, of its output.

    Its standard input is a pipe that ends when this process does. `keep_fds` stay open in it, for the locks on them.
    If it has to be ended, it has `patience_s` from the end of its standard input until it is killed.

    Raises:
        RootfsError: it did not end within `wall_s`; it is ended then.
    """
    deadline = time.monotonic() + wall_s
    process = subprocess.Popen(
        list(argv),
        env=environ,
        cwd=cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if stdout is None else stdout,
        stderr=subprocess.STDOUT if stdout is None else subprocess.PIPE,
        pass_fds=tuple(keep_fds),
        start_new_session=True,
    )
    said = process.stdout if stdout is None else process.stderr
    assert said is not None
    tail: deque[str] = deque(maxlen=_KEPT_LINES)
    try:
        for raw in _lines(said.fileno(), deadline):
            line = raw.decode("utf-8", "replace").rstrip()
            if on_line is not None:
                on_line(line)
            if line and not line.startswith(("dlstatus:", "pmstatus:")):
                tail.append(line)
        code = process.wait(max(deadline - time.monotonic(), 0))
    except (subprocess.TimeoutExpired, TimeoutError):
        raise RootfsError(
            f"{argv[0]} did not come to an end in {wall_s:g} seconds: {'; '.join(tail)[-_LONGEST_LINE:]}",
            remedy="Try again, or do without the package whose installation waits for something.",
        ) from None
    finally:
        _end(process, patience_s)
    return Ended(code=code, tail=tuple(tail))


def _lines(fd: int, deadline: float) -> Iterator[bytes]:
    """Yield the lines that come out of a pipe until it ends; one that is too long comes in parts.

    Raises:
        TimeoutError: it has not ended at the deadline, whatever came out of it.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    kept = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            raise TimeoutError
        block = os.read(fd, _BLOCK)
        if not block:
            break
        *whole, kept = (kept + block).split(b"\n")
        for line in whole:
            yield from _parts(line)
        *parts, kept = _parts(kept)
        yield from parts
    if kept:
        yield kept


def _parts(line: bytes) -> list[bytes]:
    return [line[at : at + _LONGEST_LINE] for at in range(0, len(line), _LONGEST_LINE)] or [b""]


def _end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    """End what is left of a program: first by its standard input, which lets a build remove what only it can."""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    if process.returncode is not None:
        return
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return  # the caller ignores SIGCHLD, so the kernel has reaped it already
    try:
        is_dead(pidfd, int(patience_s * 1000))
    finally:
        os.close(pidfd)
        # As long as nobody has reaped it, the group is its own; it may have left others in it
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
