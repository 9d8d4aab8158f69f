# SPDX-License-Identifier: Apache-2.0
"""Runs a stream a few chunks ahead of its reader, in a thread of its own.

The thread ends with the stream that is handed out: closing that one closes the inner one too, whichever fails first.
"""

from __future__ import annotations

from queue import Empty, Queue
from threading import Event, Thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.rootfs.streams import Chunks

    Item = tuple[bytes, int] | BaseException | None

CHUNKS_AHEAD = 6


def run_ahead(chunks: Chunks) -> Chunks:
    """Yield what `chunks` yields, and raise what it raises."""
    ready: Queue[Item] = Queue(CHUNKS_AHEAD)
    abandoned = Event()
    thread = Thread(target=_produce, args=(chunks, ready, abandoned), name="unspill-decompress", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        abandoned.set()
        _drain(ready)
        thread.join()


def _produce(chunks: Chunks, ready: Queue[Item], abandoned: Event) -> None:
    last: Item = None
    try:
        for chunk in chunks:
            ready.put(chunk)
            if abandoned.is_set():
                return
    except BaseException as problem:
        last = problem
    finally:
        chunks.close()
        if not abandoned.is_set():
            ready.put(last)


def _drain(ready: Queue[Item]) -> None:
    """Make room: a producer that waits for it goes on, sees that nobody reads, and ends."""
    while True:
        try:
            ready.get_nowait()
        except Empty:
            return
