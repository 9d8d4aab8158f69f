# SPDX-License-Identifier: Apache-2.0
"""Starts runs in other ways: bwrap itself with a plan's options, where nothing repeats a defence, or by a spawner that
is a fork of this process and has the changes that a test makes to it.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from unspill.runner import launcher

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.attack.ablation_flags import Given
    from tests.attack.arena import Arena


def started(
    given: Given,
    bwrap: bytes,
    options: Sequence[bytes],
    command: Sequence[str],
    *,
    pass_fds: Sequence[int] = (),
    **named: Any,
) -> subprocess.Popen[bytes]:
    """Start bwrap with options, and with the contents that a plan gives it besides."""
    shell, fds = with_contents(given)
    words: list[str | bytes] = [*shell, bwrap, *options, "--", *command]
    try:
        return subprocess.Popen(words, pass_fds=(*fds, *pass_fds), **named)
    finally:
        for fd in fds:
            os.close(fd)


def with_contents(given: Given) -> tuple[list[str], list[int]]:
    """Return the words before a bwrap that give it the contents of a plan, and the descriptors to pass on."""
    fds = []
    for content in given.contents:
        memory = os.memfd_create("given")
        os.write(memory, content)
        os.lseek(memory, 0, os.SEEK_SET)
        fds.append(memory)
    # A shell gives the descriptors the numbers that the options name
    moves = " ".join(f"{given.first_fd + index}<&{fd}" for index, fd in enumerate(fds))
    return ["bash", "-c", f'exec "$@" {moves}', "sh"], fds


@contextmanager
def forked_spawner(arena: Arena, changes: dict[str, Any], **forced: Any) -> Iterator[None]:
    """Have runs started by a spawner that is a fork of this process, in which some things are otherwise."""
    launcher.stop_launchers()
    with arena.patch.context() as patch:
        for name, value in changes.items():
            patch.setattr(name, value)

        get_launcher = launcher.get_launcher

        def fork(**named: Any) -> launcher.Launcher:
            return get_launcher(**{**named, **forced, "may_fork": True})

        patch.setattr("unspill.runner.launcher.get_launcher", fork)
        try:
            yield
        finally:
            launcher.stop_launchers()
