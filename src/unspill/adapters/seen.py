# SPDX-License-Identifier: Apache-2.0
"""What an adapter has to know of a sandbox: its policy, and the places by the paths that commands know them by.

The one place where adapters look behind the facade for that. Nothing here names a path that commands do not see.
"""

from __future__ import annotations

from threading import Lock
from weakref import WeakKeyDictionary

from unspill.errors import UnspillError
from unspill.model.plan import Bind, Overlay, ReadOnly, Tmpfs
from unspill.plan.view import find_cover, playground_inside, playground_taken, to_inside
from unspill.policy.paths import lies_beneath
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.model.operation import Operation
    from unspill.model.plan import MountOp
    from unspill.model.policy import Policy
    from unspill.model.run import Run
    from unspill.sandbox.sandbox import Sandbox

# In the order in which they are told
_TEMPORARY = (b"/tmp", b"/var/tmp", b"/run", b"/dev/shm")
_lock = Lock()  # protects _told: several threads may answer for one sandbox
_told: WeakKeyDictionary[Sandbox, int] = WeakKeyDictionary()


class Seen(Record):
    """The places of a sandbox. `further` are other directories that commands change in layers; `roots` the host's.

    `user` is who its commands are. Not `has_playground` where a root is in its place.

    Not `is_sealed` in a container, where commands are run without a sandbox.
    """

    policy: Policy
    project: bytes
    playground: bytes
    home: bytes
    further: tuple[bytes, ...]
    roots: tuple[bytes, ...]
    has_playground: bool
    is_sealed: bool
    user: str

    def inside(self, path: bytes) -> bytes:
        """Return where commands see a path of the host, if they do."""
        return to_inside(path, self.policy.view, self.roots)

    def operation(self, operation: Operation) -> Operation:
        """Return an operation with its roots as commands know them."""
        roots = tuple(self.inside(root) for root in operation.roots)
        return operation.replace(project=self.inside(operation.project), roots=roots)


class Writable(Record):
    """Where a command can write besides the roots.

    What is in `kept` and in `caches` is there for the next command, what is in `gone` is not. `shows_home`: all of the
    user's home directory is visible; `shows_more`: something of it, or of the user's machine, besides the project.
    """

    kept: tuple[bytes, ...]
    gone: tuple[bytes, ...]
    caches: tuple[bytes, ...] = ()
    shows_home: bool = False
    shows_more: bool = False


def seen_in(sandbox: Sandbox) -> Seen:
    """Return what commands of a sandbox see."""
    opened = sandbox._opened
    view, roots, home = opened.policy.view, opened.roots, opened.home.path
    return Seen(
        policy=opened.policy,
        project=to_inside(opened.project, view, roots),
        playground=playground_inside(view, home),
        home=home,
        further=tuple(to_inside(root, view, roots) for root in roots if root != opened.project),
        roots=roots,
        has_playground=not opened.container and not playground_taken(view, home, roots),
        is_sealed=not opened.container,
        user="root" if opened.policy.rootfs_writable else opened.home.user,
    )


def writable_in(sandbox: Sandbox) -> Writable:
    """Return where commands of a sandbox can write: what the plan of the next one says."""
    seen = seen_in(sandbox)
    try:
        mounts = sandbox.plan(["true"]).mounts
    except UnspillError:
        # There may be no rootfs yet: the first command has it made
        return _expected(seen)
    return _planned(seen, mounts)


def _planned(seen: Seen, mounts: Sequence[MountOp]) -> Writable:
    closed = {op.dest for op in mounts if isinstance(op, ReadOnly)}
    fresh = [op.dest for op in mounts if isinstance(op, Tmpfs) and op.dest not in closed]
    shown = [op.dest for op in mounts if isinstance(op, Bind | Overlay) and not _is_written(op)]
    changed = {seen.inside(root) for root in seen.roots}
    caches = [op.dest for op in mounts if isinstance(op, Overlay) and _is_written(op) and op.dest not in changed]
    return Writable(
        kept=tuple(op.dest for op in mounts if isinstance(op, Bind) and op.writable),
        gone=(*(path for path in _TEMPORARY if path in fresh), *(path for path in fresh if path not in _TEMPORARY)),
        caches=tuple(path for path in caches if lies_beneath(path, seen.home)),
        shows_home=seen.policy.view == "host" and isinstance(find_cover(mounts, seen.home), Overlay),
        shows_more=any(lies_beneath(path, seen.home) for path in shown) or _shows_more_of_machine(seen.policy),
    )


def _shows_more_of_machine(policy: Policy) -> bool:
    return policy.view == "rootfs" and bool(policy.mounts or policy.readable)


def _is_written(operation: Bind | Overlay) -> bool:
    return operation.writable if isinstance(operation, Bind) else operation.upper is not None


def _expected(seen: Seen) -> Writable:
    """Return what the policy alone says."""
    policy = seen.policy
    is_kept, is_sealed = policy.tmp == "persistent", policy.view == "sealed"
    places = {b"/tmp": not is_kept, b"/var/tmp": not policy.rootfs_writable, seen.home: is_sealed}
    return Writable(
        kept=(seen.playground, *((b"/tmp",) if is_kept else ())),
        gone=tuple(path for path in (*_TEMPORARY, seen.home) if places.get(path, True)),
        shows_home=policy.view == "host",
        shows_more=bool(policy.mounts or policy.readable),
    )


def untold_runs(sandbox: Sandbox) -> tuple[Run, ...]:
    """Return the runs that were found interrupted in a sandbox's project; each is returned once."""
    with _lock:
        known = _told.get(sandbox, 0)
        found = sandbox.interrupted_runs[known:]
        _told[sandbox] = known + len(found)
    return found
