# SPDX-License-Identifier: Apache-2.0
"""Who changes to the working directory: bwrap itself, or a shell that it starts.

bwrap still has the host's /proc open when it does, and a symlink that an earlier command left, or a path like
/dev/fd/3, leads through that descriptor to the host's whole file system (as CVE-2024-21626 did). So it is given only
directories that no command can have made; for all others it starts a shell in `/`, which has no descriptor but its own.
When bwrap looks the program up it has closed that descriptor, so that is its own affair.
"""

from __future__ import annotations

from unspill.model.plan import Bind, Overlay, Tmpfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.plan import MountOp, Plan

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
