# SPDX-License-Identifier: Apache-2.0
"""Read stacks from the store: the live root, the sealed layers over it, and nothing open.

Looks at the live root once, for its identity; does not look into layers.
"""

from __future__ import annotations

import os
import stat

from unspill.errors import RootRefused
from unspill.layers.places import base_dir, upper_dir
from unspill.model.layer import SealedLayer, Stack, TimeMark

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unspill.model.layer import SandboxId
    from unspill.store.db import Store


def load_stacks(
    store: Store,
    sandbox: SandboxId,
    roots: Iterable[bytes],
    masks: Iterable[tuple[bytes, bytes]] = (),
    bases: Iterable[tuple[bytes, bytes]] = (),
) -> tuple[Stack, ...]:
    """Return the stacks of a sandbox's roots, in the order of `roots`.

    `masks` has a mask for some of them. `bases` has the repositories of some as they stand now; where a held run wrote
    to one, it is seen as it stood when that run began.

    Raises:
        RootRefused: a root is not a directory (any more).
    """
    sealed: dict[bytes, list[SealedLayer]] = {}
    for row in store.layers.sealed(sandbox):
        layer = SealedLayer(
            id=row.id, upper=upper_dir(store.state, row.id), mark=TimeMark(ctime_ns=row.mark_ns), run=row.run
        )
        sealed.setdefault(row.root, []).append(layer)
    masked, known = dict(masks), dict(bases)
    return tuple(
        _to_stack(
            root, layers := sealed.get(root, ()), masked.get(root), find_base(store.state, layers) or known.get(root)
        )
        for root in roots
    )


def stat_root(root: bytes) -> os.stat_result:
    """Return the state of a live root, which must be a directory and no link to one."""
    try:
        live = os.lstat(root)
    except OSError as error:
        raise RootRefused(f"{os.fsdecode(root)} can't be used as a root: {error.strerror}.") from error
    if not stat.S_ISDIR(live.st_mode):
        raise RootRefused(f"{os.fsdecode(root)} is not a directory.")
    return live


def find_base(state: bytes, layers: Iterable[SealedLayer]) -> bytes | None:
    """Return the repository as it stood when the first of these layers was written that has to do with it."""
    bases = (base_dir(state, layer.id) for layer in layers)
    return next((base for base in bases if os.path.lexists(base)), None)


def _to_stack(root: bytes, sealed: Iterable[SealedLayer], mask: bytes | None, base: bytes | None) -> Stack:
    live = stat_root(root)
    return Stack(live=root, device=live.st_dev, inode=live.st_ino, sealed=tuple(sealed), mask=mask, base=base)


def find_hidden(stacks: Iterable[Stack]) -> tuple[bytes, ...]:
    """Return what is in the top directory of a root but not seen by a run, because its deletion is held."""
    return tuple(sorted(path for stack in stacks if stack.sealed for path in _hidden_in(stack)))


def _hidden_in(stack: Stack) -> Iterator[bytes]:
    seen: set[bytes] = set()
    for layer in reversed(stack.sealed):
        try:
            entries = {name: os.lstat(layer.upper + b"/" + name) for name in sorted(os.listdir(layer.upper))}
        except (PermissionError, FileNotFoundError):
            # A command has closed the project's own directory, which is said elsewhere; or an apply has the layer
            continue
        for name, status in entries.items():
            is_gone = stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
            if name not in seen and is_gone and os.path.lexists(stack.live + b"/" + name):
                yield stack.live + b"/" + name
        seen.update(entries)
