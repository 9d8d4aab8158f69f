# SPDX-License-Identifier: Apache-2.0
"""Where a command starts: what a caller may write, and what it means.

There is no restriction on the path; the sandbox decides what is there. Whether it exists is checked elsewhere.

MERGED
[visible] What a list of mounts shows: which operation decides what is at a path, and whether it is the host's.

Of the operations that cover a path the deepest decides, of two at one place the later.

[inside] Where things are inside: on their own paths, but in view `rootfs`, where the project is `/workspace`.

The first root is the one that holds the project, so it is that which is shown there; every other keeps its path.

[order] The order in which mounts are made: bwrap performs them one by one, and a later one hides what it covers.

Knows destinations only, not what an operation is for.

[stage] Who changes to the working directory: bwrap itself, or a shell that it starts.

bwrap still has the host's /proc open when it does, and a symlink that an earlier command left, or a path like
/dev/fd/3, leads through that descriptor to the host's whole file system (as CVE-2024-21626 did). So it is given only
directories that no command can have made; for all others it starts a shell in `/`, which has no descriptor but its
own. When bwrap looks the program up it has closed that descriptor, so that is its own affair.

[masks] What must not be seen although it lies in something that is shown: hidden paths, secrets, live sockets.

A masked directory is an empty read-only tmpfs, a masked file an empty file. Masks are mounted only over what the host
owns; nothing is ever mounted inside a root.
"""

from __future__ import annotations

import posixpath

from unspill.errors import SandboxUnavailable, UsageError
from unspill.model.plan import (
    Bind,
    File,
    Overlay,
    ReadOnly,
    Symlink,
    Tmpfs,
)
from unspill.policy.paths import (
    contains,
    lies_beneath,
    normalise,
    show,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from unspill.model.plan import MountOp, Plan, PlanInput
    from unspill.model.policy import View


_MOST_LINKS = 8


def find_cover(operations: Iterable[MountOp], path: bytes) -> MountOp | None:
    """Return the operation that decides what is at `path`, None where only bwrap's empty root is."""
    cover: MountOp | None = None
    for operation in operations:
        if not path.startswith(operation.dest) or isinstance(operation, ReadOnly):
            continue
        if contains(operation.dest, path) and (cover is None or contains(cover.dest, operation.dest)):
            cover = operation
    return cover


def is_shown(operations: Iterable[MountOp], path: bytes) -> bool:
    """Tell whether the host's own file or directory at `path` is seen there, through links that the plan makes."""
    operations = tuple(operations)
    for _ in range(_MOST_LINKS):
        cover = find_cover(operations, path)
        match cover:
            case Bind():
                return cover.source == cover.dest
            case Overlay():
                return cover.lowers[-1] == cover.dest
            case Symlink():
                target = posixpath.join(posixpath.dirname(cover.dest), cover.target)
                path = normalise(target + path[len(cover.dest) :])
            case _:
                return False
    return False


def is_writable_mount(operation: MountOp) -> bool:
    """Tell whether earlier runs may have left anything there, symlinks included."""
    match operation:
        case Bind():
            return operation.writable
        case Overlay():
            return operation.upper is not None
    return False


def is_written(operation: MountOp) -> bool:
    """Tell whether what is seen there may be a command's work, though this run may only read it."""
    return is_writable_mount(operation) or (isinstance(operation, Overlay) and operation.written)


def check_no_mounts_beneath_roots(operations: Iterable[MountOp]) -> None:
    """Make sure that bwrap makes no mount point in what a sandboxed command may have written.

    bwrap before 0.12 follows symlinks while it makes mount points (CVE-2026-87766): one of them, left by an
    earlier run, would make it write to the host.

    Raises:
        SandboxUnavailable: the plan has such a mount; that is a defect of ours.
    """
    operations = tuple(operations)
    writable = tuple(outer.dest + b"/" for outer in operations if is_writable_mount(outer))
    for inner in operations:
        if inner.dest.startswith(writable):
            raise SandboxUnavailable(f"the plan mounts something inside a writable directory: {show(inner.dest)}")


WORKSPACE = b"/workspace"
PLAYGROUND = b"/playground"


def to_inside(path: bytes, view: View, roots: Sequence[bytes]) -> bytes:
    """Return where a path of the host is seen in a sandbox, if it is seen at all."""
    if view == "rootfs" and contains(roots[0], path):
        return WORKSPACE + path[len(roots[0]) :]
    return path


def to_host(path: bytes, view: View, roots: Sequence[bytes]) -> bytes:
    """Return which path of the host is seen at a path in a root; others are returned as they are."""
    if view == "rootfs" and contains(WORKSPACE, path):
        return roots[0] + path[len(WORKSPACE) :]
    return path


def playground_inside(view: View, home: bytes) -> bytes:
    """Return where the playground is; it never lies in a root."""
    return PLAYGROUND if view == "rootfs" else home + b"/playground"


def in_mount_order(operations: Iterable[MountOp]) -> tuple[MountOp, ...]:
    """Return the operations parents first, else as given; each ReadOnly after all that lies beneath it.

    What lies beneath a path has more components than it, so counting them is enough.
    """
    given = tuple(operations)
    mounts = [operation for operation in given if not isinstance(operation, ReadOnly)]
    remounts = [operation for operation in given if isinstance(operation, ReadOnly)]
    mounts.sort(key=_depth)
    remounts.sort(key=_depth, reverse=True)
    return (*mounts, *remounts)


def _depth(operation: MountOp) -> int:
    return 0 if operation.dest == b"/" else operation.dest.count(b"/")


_STDERR = 2

_SHELL = b"/bin/sh"
# Says on its descriptor why the command can't be started, and closes that before it becomes the command
_SCRIPT = (
    b'cd -- "$1" 2>/dev/null || { if [ -d "$1" ]; then echo closed; elif [ -e "$1" ]; then echo file; '
    b"else echo none; fi >&%(fd)d; exit 125; }; shift; "
    b'case "$1" in */*) [ -f "$1" ] && [ -x "$1" ];; -*) false;; *) command -v "$1" >/dev/null;; esac || '
    b'{ if [ -e "$1" ]; then echo mode; else echo program; fi >&%(fd)d; exit 125; }; '
    b'%(close)sexec "$@"'
)


def is_staged(mounts: Sequence[MountOp], cwd: bytes) -> bool:
    """Tell whether a shell has to go to the working directory.

    bwrap may do so where the plan itself mounts the directory: no mount lies below what a command can write.
    """
    return not any(isinstance(op, Bind | Overlay | Tmpfs) and op.dest == cwd for op in mounts)


def command_words(plan: Plan, fd: int = _STDERR) -> tuple[bytes, ...]:
    """Return what bwrap starts: the command, or a shell that goes to its directory and becomes it.

    `fd` is where the shell says why it could not: by hand that is stderr, which the command keeps.
    """
    if not plan.staged:
        return plan.argv
    close = b"exec %d>&-; " % fd if fd > _STDERR else b""
    return (_SHELL, b"-c", _SCRIPT % {b"fd": fd, b"close": close}, b"sh", plan.cwd, *plan.argv)


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


PLAYGROUND_WORKING_DIR = "playground"


def resolve_working_dir(working_dir: str | None, project: bytes, playground: bytes) -> bytes:
    """Return the absolute working directory.

    None or an empty string is the project, the word `playground` is that one, anything else that is not absolute is
    relative to the project.

    Raises:
        UsageError: no path can be like that.
    """
    if not working_dir:
        return project
    if working_dir == PLAYGROUND_WORKING_DIR:
        return playground
    path = working_dir.encode("utf-8", "surrogateescape")
    try:
        return normalise(posixpath.join(project, path))
    except ValueError as error:
        raise UsageError(f"Not a working directory: {show(path)} ({error}).") from error


def missing_text(working_dir: bytes) -> str:
    """Return what a model is told if the directory is not there."""
    return f"ERROR: Working directory does not exist: {show(working_dir)}"


def not_a_directory_text(working_dir: bytes) -> str:
    """Return what a model is told if it is something else."""
    return f"ERROR: Working directory is not a directory: {show(working_dir)}"
