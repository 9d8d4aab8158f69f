# SPDX-License-Identifier: Apache-2.0
"""What a command sees: where things are inside, which mount decides what is at a path, and where it starts.

Paths are the host's own, but for view `rootfs`, where the project is `/workspace`. Of the mounts that cover a path the
deepest decides, of two at one place the later.
"""

from __future__ import annotations

import posixpath

from unspill.errors import SandboxUnavailable, UsageError
from unspill.model.plan import Bind, Overlay, ReadOnly, Symlink, Tmpfs
from unspill.policy.paths import contains, normalise, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unspill.model.plan import MountOp, Plan
    from unspill.model.policy import View


WORKSPACE = b"/workspace"
PLAYGROUND = b"/playground"
PLAYGROUND_WORKING_DIR = "playground"
# The git identity, in the views that have no fresh home directory
GIT_CONFIG_FILE = b"/run/unspill-gitconfig"
_MOST_LINKS = 8
_SHELL = b"/bin/sh"
_STDERR = 2
# Says on its descriptor why the command can't be started, and closes that before it becomes the command
_SCRIPT = (
    b'cd -- "$1" 2>/dev/null || { if [ -d "$1" ]; then echo closed; elif [ -e "$1" ]; then echo file; '
    b"else echo none; fi >&%(fd)d; exit 125; }; shift; "
    b'case "$1" in */*) [ -f "$1" ] && [ -x "$1" ];; -*) false;; *) command -v "$1" >/dev/null;; esac || '
    b'{ if [ -e "$1" ]; then echo mode; else echo program; fi >&%(fd)d; exit 125; }; '
    b'%(close)sexec "$@"'
)


def to_inside(path: bytes, view: View, roots: Sequence[bytes]) -> bytes:
    """Return where a path of the host is seen in a sandbox, if it is seen at all.

    The first root is the one that holds the project.
    """
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


def playground_taken(view: View, home: bytes, roots: Sequence[bytes]) -> str:
    """Tell which root is in the place of the playground, "" where none is."""
    dest = playground_inside(view, home)
    if view == "rootfs":
        return ""
    root = next((root for root in roots if contains(dest, root) or contains(root, dest)), None)
    return "" if root is None else f"its place is taken by the root {show(root)}"


def resolve_working_dir(working_dir: str | None, project: bytes, playground: bytes) -> bytes:
    """Return the absolute working directory; whether it exists is checked elsewhere.

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


def find_cover(operations: Iterable[MountOp], path: bytes) -> MountOp | None:
    """Return the operation that decides what is at `path`, None where only bwrap's empty root is."""
    cover: MountOp | None = None
    for operation in operations:
        if not path.startswith(operation.dest) or isinstance(operation, ReadOnly):
            continue
        if contains(operation.dest, path) and (cover is None or contains(cover.dest, operation.dest)):
            cover = operation
    return cover


def follow_links(operations: Sequence[MountOp], path: bytes) -> tuple[bytes, MountOp | None] | None:
    """Return where a path leads through links that the plan makes, and what decides there; None if there is no end."""
    for _ in range(_MOST_LINKS):
        cover = find_cover(operations, path)
        if not isinstance(cover, Symlink):
            return path, cover
        target = posixpath.join(posixpath.dirname(cover.dest), cover.target)
        path = normalise(target + path[len(cover.dest) :])
    return None


def is_shown(operations: Iterable[MountOp], path: bytes) -> bool:
    """Tell whether the host's own file or directory at `path` is seen there, through links that the plan makes."""
    found = follow_links(tuple(operations), path)
    cover = None if found is None else found[1]
    match cover:
        case Bind():
            return cover.source == cover.dest
        case Overlay():
            return cover.lowers[-1] == cover.dest
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


def in_mount_order(operations: Iterable[MountOp]) -> tuple[MountOp, ...]:
    """Return the operations parents first, else as given; each ReadOnly after all that lies beneath it.

    bwrap performs them one by one, and a later one hides what it covers. What lies beneath a path has more components
    than it, so counting them is enough.
    """
    given = tuple(operations)
    mounts = [operation for operation in given if not isinstance(operation, ReadOnly)]
    remounts = [operation for operation in given if isinstance(operation, ReadOnly)]
    mounts.sort(key=_depth)
    remounts.sort(key=_depth, reverse=True)
    return (*mounts, *remounts)


def is_staged(mounts: Sequence[MountOp], cwd: bytes) -> bool:
    """Tell whether not bwrap itself but a shell that it starts has to go to the working directory.

    bwrap still has the host's /proc open when it does, and a symlink that an earlier command left, or a path like
    /dev/fd/3, leads through that descriptor to the host's whole file system (as CVE-2024-21626 did). So it is given
    only directories that the plan itself mounts: no mount lies below what a command can write. For all others it
    starts a shell in `/`, which has no descriptor but its own. When bwrap looks the program up it has closed that
    descriptor, so that is its own affair.
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


def _depth(operation: MountOp) -> int:
    return 0 if operation.dest == b"/" else operation.dest.count(b"/")
