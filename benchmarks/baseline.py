# SPDX-License-Identifier: Apache-2.0
"""The baseline of the benchmarks: bwrap started by hand with the very same plan, each overlay as a plain bind."""

from __future__ import annotations

import os
from collections.abc import Sequence

from unspill.host.job import memory_file
from unspill.model.plan import Facts, Plan
from unspill.plan.argv import bare_options

_ARGS_FD = 3


class BareBwrap:
    """One plan, ready to be started as often as wanted."""

    def __init__(self, plan: Plan, facts: Facts) -> None:
        options, contents = bare_options(plan, facts, _ARGS_FD + 1)
        self._bwrap = plan.bwrap
        self._argv = plan.argv
        self._contents = (b"".join(option + b"\0" for option in options), *contents)

    def start(self, argv: Sequence[bytes] = (), *, stdin: int | None = None, stdout: int | None = None) -> int:
        """Start it and return the pid."""
        files = [memory_file(content) for content in self._contents]
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(files, start=_ARGS_FD)]
        actions += [(os.POSIX_SPAWN_DUP2, fd, n) for n, fd in ((0, stdin), (1, stdout)) if fd is not None]
        words = [self._bwrap, b"--args", b"%d" % _ARGS_FD, b"--", *(argv or self._argv)]
        pid = os.posix_spawn(self._bwrap, words, {}, file_actions=actions)
        for fd in files:
            os.close(fd)
        return pid

    def run(self) -> None:
        """Start it and wait for its end."""
        wait_for(self.start())


def run_program(argv: list[str]) -> None:
    """Run a program to its end, which must be a success."""
    wait_for(os.posix_spawn(argv[0], argv, os.environ))


def wait_for(pid: int) -> None:
    """Wait for a process, which must succeed."""
    status = os.waitpid(pid, 0)[1]
    assert status == 0, status
