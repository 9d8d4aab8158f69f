# SPDX-License-Identifier: Apache-2.0
"""Drop upper directories, then remove them, at once or when there is time.

A dropped directory has another name: only by that name a sweep removes it. The name is given before the rows go, so a
directory that has neither a row nor that name is one whose row was lost, and nobody removes it.
"""

from __future__ import annotations

import os

from unspill.layers.places import base_dir, dropped_dir, upper_dir, work_dir
from unspill.layers.remove import remove_tree
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.layer import LayerId

_WORK_PARTS = (b"/work", b"/work/incompat", b"/work/incompat/volatile")


class Garbage(Record):
    """Layers whose upper directory can go, and layers whose work directory can."""

    uppers: tuple[LayerId, ...] = ()
    works: tuple[LayerId, ...] = ()


def drop(state: bytes, layers: Iterable[LayerId]) -> None:
    """Take upper directories for good. Call it in the transaction that removes their rows, and `clean` afterwards."""
    for layer in layers:
        upper = upper_dir(state, layer)
        try:
            os.rmdir(upper)
        except FileNotFoundError:
            continue
        except OSError:
            # In the same parent, which needs no right on the directory itself: a command may have closed it
            _rename(upper, dropped_dir(state, layer))


def _rename(source: bytes, dest: bytes) -> None:
    try:
        os.rename(source, dest)
    except PermissionError:
        # The result of the run counts more. The next sweep finds it without a row and sets it aside.
        return


def clean(state: bytes, garbage: Garbage) -> None:
    """Remove directories, whatever is in them; what resists is left for the next sweep."""
    for layer in garbage.works:
        _remove_work(work_dir(state, layer))
    remove_uppers(state, garbage.uppers)


def remove_uppers(state: bytes, layers: Iterable[LayerId]) -> None:
    """Remove the upper directories of layers, dropped or not."""
    for layer in layers:
        for path in (upper_dir(state, layer), dropped_dir(state, layer)):
            if os.path.lexists(path):
                remove_tree(path)
        if os.path.lexists(base := base_dir(state, layer)):
            remove_tree(base)


def _remove_work(work: bytes) -> None:
    try:
        # What a volatile mount leaves, all of it mode 000. Only the kernel writes here, so names are safe to use;
        # a walk costs three times as much, and each run has it once for every root and cache.
        for part in _WORK_PARTS:
            os.chmod(work + part, 0o700)
        os.unlink(work + b"/work/incompat/volatile/dirty")
        for part in reversed(_WORK_PARTS):
            os.rmdir(work + part)
        os.rmdir(work)
    except OSError:
        remove_tree(work)
