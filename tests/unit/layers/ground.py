# SPDX-License-Identifier: Apache-2.0
"""What the tests of layers share: runs that write something, and what lies in the state directory afterwards."""

import os
from typing import TYPE_CHECKING, NamedTuple

from unspill.layers.lifecycle import OpenRun, drop_run, open_run, seal_run, wait_until_clean
from unspill.model.run import Exited, OpenLayer, Run, Stack
from unspill.store.db import Store
from unspill.store.layers import SandboxRow

if TYPE_CHECKING:
    from unspill.model.policy import After


class Ground(NamedTuple):
    """A sandbox of a project."""

    store: Store
    project: bytes
    sandbox: SandboxRow

    def open(self, *caches: bytes, roots: tuple[bytes, ...] = (), after_cancel: "After" = "hold") -> OpenRun:
        return open_run(
            self.store,
            self.sandbox,
            argv=(b"true",),
            cwd=b"/",
            roots=roots or (self.project,),
            caches=caches,
            after_cancel=after_cancel,
        )

    def hold(self, *names: bytes) -> tuple[Stack, ...]:
        """Do a run that writes files and holds them."""
        opened = self.open()
        for name in names:
            write(os.path.join(upper(opened), name), name)
        leave_work(opened)
        return seal_run(self.store, opened, ended(opened))

    def drop(self, opened: OpenRun) -> tuple[Stack, ...]:
        leave_work(opened)
        return drop_run(self.store, opened, ended(opened))

    def left(self) -> dict[bytes, int]:
        """Count what lies in the state directory, without what is always there."""
        wait_until_clean()
        return {part: len(os.listdir(os.path.join(self.store.state, part))) for part in (b"layers", b"work", b"runs")}

    def rows(self) -> int:
        return len(self.store.layers.ids() | self.store.caches.ids())


NOTHING = {b"layers": 0, b"work": 0, b"runs": 0}


def layers_of(opened: OpenRun) -> list[OpenLayer]:
    stacks = (*opened.stacks, *(cache.stack for cache in opened.caches))
    return [stack.open for stack in stacks if stack.open is not None]


def upper(opened: OpenRun, index: int = 0) -> bytes:
    return layers_of(opened)[index].upper


def ended(opened: OpenRun) -> Run:
    return opened.run.replace(ended_ns=opened.run.started_ns + 1, outcome=Exited(code=0))


def write(path: bytes, content: bytes = b"") -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def leave_work(opened: OpenRun) -> None:
    """Leave work directories as a volatile mount does: a file in three directories, all of them mode 000."""
    parts = (b"/work", b"/work/incompat", b"/work/incompat/volatile")
    for layer in layers_of(opened):
        for part in parts:
            os.mkdir(layer.work + part, 0o700)
        os.close(os.open(layer.work + parts[-1] + b"/dirty", os.O_CREAT | os.O_WRONLY, 0))
        for part in reversed(parts):
            os.chmod(layer.work + part, 0)
