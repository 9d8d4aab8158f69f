# SPDX-License-Identifier: Apache-2.0
"""Layers and stacks: one upper directory each, in order over a live directory.

A Layer belongs to one root (or cache) of one sandbox. Open while a run writes, sealed for ever after.
"""

from __future__ import annotations

from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NewType

    LayerId = NewType("LayerId", str)
    RunId = NewType("RunId", str)
    SandboxId = NewType("SandboxId", str)
else:
    LayerId = RunId = SandboxId = str


class TimeMark(Record):
    """A moment of a root's own filesystem, taken before mounting, in nanoseconds.

    A live entry whose ctime is not older was changed meanwhile.
    """

    ctime_ns: int


class SealedLayer(Record):
    """An upper directory that nothing writes any more. `run` made it; `mark` precedes its run.

    `cover` is a layer of deletions right over it: it hides secrets that this run alone was shown, and changed.
    """

    id: LayerId
    upper: bytes
    mark: TimeMark
    run: RunId
    cover: bytes | None = None


class OpenLayer(Record):
    """The upper and work directory of the run that is going on."""

    id: LayerId
    upper: bytes
    work: bytes
    mark: TimeMark
    run: RunId


class Stack(Record):
    """A live directory, the sealed layers over it (oldest first) and at most one open layer on top.

    `mask` is a layer of deletions right over the live directory, below all that runs wrote: it hides secrets. `base` is
    a layer below that one, with the repository as it stood when the first of these runs began that wrote to it, or as
    it stands now.
    """

    live: bytes
    device: int
    inode: int
    sealed: tuple[SealedLayer, ...] = ()
    open: OpenLayer | None = None
    mask: bytes | None = None
    base: bytes | None = None

    def below(self, first: int = 0) -> tuple[bytes, ...]:
        """Return the layers under the sealed one of that number, the topmost first, without the live directory."""
        found: list[bytes] = []
        for layer in reversed(self.sealed[:first]):
            found += (layer.upper,) if layer.cover is None else (layer.cover, layer.upper)
        return (*found, *(layer for layer in (self.mask, self.base) if layer is not None))

    def lowers(self) -> tuple[bytes, ...]:
        """Return the lower directories as overlayfs wants them: topmost first, the live one last."""
        return (*self.below(len(self.sealed)), self.live)
