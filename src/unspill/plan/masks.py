# SPDX-License-Identifier: Apache-2.0
"""What must not be seen although it lies in something that is shown: hidden paths, secrets, live sockets.

A masked directory is an empty read-only tmpfs, a masked file an empty file. Masks are mounted only over what the
host owns; nothing is ever mounted inside a root.
"""

from __future__ import annotations

import posixpath

from unspill.errors import UsageError
from unspill.model.plan import Bind, File, Overlay, ReadOnly, Symlink, Tmpfs
from unspill.plan.visible import find_cover, is_shown
from unspill.policy.paths import contains, lies_beneath, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.model.plan import MountOp, PlanInput

_MASK_BYTES = 4096


def check_hidden(given: PlanInput) -> None:
    """Refuse a hidden path that has to do with a root.

    Raises:
        UsageError: with what to do instead.
    """
    for hidden in given.policy.hidden:
        for root in (stack.live for stack in given.stacks):
            if contains(hidden, root):
                raise UsageError(f"{show(hidden)} can't be hidden: the root {show(root)} lies there.")
            if lies_beneath(hidden, root):
                raise UsageError(
                    f"{show(hidden)} can't be hidden yet: it lies in the root {show(root)}.",
                    remedy="Move it out of the project, or remove it from `hidden`.",
                )


def without_hidden(given: PlanInput, operations: list[MountOp]) -> list[MountOp]:
    """Return the operations less those that would show a hidden path or something below it."""
    if not given.policy.hidden:
        return operations
    return [operation for operation in operations if not _is_hidden(given, operation)]


def _is_hidden(given: PlanInput, operation: MountOp) -> bool:
    if operation.dest == b"/proc/sys" or not isinstance(operation, Bind | Overlay | Symlink):
        return False
    place = operation.dest if given.policy.view != "rootfs" else _source_of(operation)
    return any(contains(hidden, place) for hidden in given.policy.hidden)


def _source_of(operation: Bind | Overlay | Symlink) -> bytes:
    """Return whose directory it is: what a rootfs has at a path is not what the host has there."""
    match operation:
        case Bind():
            return operation.source
        case Overlay():
            return operation.lowers[-1]
    return b""


def mask_operations(given: PlanInput, operations: list[MountOp]) -> list[MountOp]:
    """Return the masks that `operations` need."""
    masks = _Masks(given, operations)
    places = given.places
    for path in sorted(given.policy.hidden):
        if path not in places.absent:
            masks.add(path, "hidden by your policy", is_file=path in places.files)
    for path in (places.state, *places.own):
        masks.add(path, "unspill's own files")
    for path in sorted(places.secrets):
        masks.add_secret(path, is_file=False)
    for path in sorted(places.secret_files):
        masks.add_secret(path, is_file=True)
    for path in masks.reachable(places.sockets):
        masks.add_socket(path)
    for stack in given.stacks:
        # Beside its layer it would be seen with its secrets
        masks.add_root(stack.live, is_elsewhere=given.policy.view == "rootfs" and stack is given.stacks[0])
    return masks.made


class _Masks:
    def __init__(self, given: PlanInput, operations: list[MountOp]) -> None:
        self.given = given
        self.made: list[MountOp] = []
        self._seen = list(operations)

    def add(self, path: bytes, why: str, *, is_file: bool = False) -> None:
        if not any(self._shown_at(path)):
            return
        root = next((s.live for s in self.given.stacks if contains(s.live, path)), None)
        if root is not None:
            raise UsageError(
                f"{show(path)} can't be masked: it lies in the root {show(root)}.",
                remedy="Choose a smaller directory as the root.",
            )
        for place in tuple(self._shown_at(path)):
            self._cover(place, why, is_file=is_file)

    def add_root(self, root: bytes, *, is_elsewhere: bool) -> None:
        for place in tuple(self._shown_at(root) if is_elsewhere else self._shown_beneath(root)):
            self._cover(place, "the root, which is seen where a layer covers it", is_file=False)

    def _shown_at(self, path: bytes) -> Iterator[bytes]:
        """Yield where a path of the host is seen: at its own, and beneath what the policy shows elsewhere."""
        if is_shown(self._seen, path):
            yield path
        yield from self._shown_beneath(path)

    def _shown_beneath(self, path: bytes) -> Iterator[bytes]:
        for dest, source in dict.fromkeys((*self.given.policy.mounts, *self.given.places.aliases)):
            if contains(source, path) and any(op.dest == dest for op in self._seen):
                yield dest + path[len(source) :]

    def _cover(self, path: bytes, why: str, *, is_file: bool) -> None:
        mask: MountOp
        if is_file:
            mask = File(content=b"", dest=path, mode=0o444, over=True, why=why)
            self.made.append(mask)
        else:
            mask = Tmpfs(dest=path, size_bytes=_MASK_BYTES, mode=0o555, why=why)
            self.made += (mask, ReadOnly(dest=path, why="an empty mask stays empty"))
        self._seen.append(mask)

    def add_secret(self, path: bytes, *, is_file: bool) -> None:
        named = any(contains(path, readable) for readable in self.given.policy.readable)
        if not named:
            self.add(path, "secrets or other people's files", is_file=is_file)

    def reachable(self, sockets: tuple[bytes, ...]) -> list[bytes]:
        """Return the sockets below what a plain bind shows; an overlay shows them, but nobody answers."""
        binds = tuple(operation.dest + b"/" for operation in self._seen if self._passes_sockets(operation))
        return sorted(path for path in sockets if path.startswith(binds))

    def _passes_sockets(self, operation: MountOp | None) -> bool:
        return isinstance(operation, Bind) and operation.source == operation.dest

    def add_socket(self, path: bytes) -> None:
        if not self._passes_sockets(find_cover(self._seen, path)):
            return
        directory = posixpath.dirname(path)
        needed = (self.given.places.home.path, self.given.cwd, *(op.dest for op in self._seen))
        # Its directory, because a restarted service makes a new socket; not where that would hide more
        if any(contains(directory, other) for other in needed):
            self.add(path, "a socket of the host", is_file=True)
        else:
            self.add(directory, "a socket of the host")
