# SPDX-License-Identifier: Apache-2.0
"""What an adapter has to know of a sandbox: its policy, and the places by the paths that commands know them by.

The one place where adapters look behind the facade for that. Nothing here names a path that commands do not see.
"""

from __future__ import annotations

from threading import Lock
from weakref import WeakKeyDictionary

from unspill.model.record import Record
from unspill.plan.inside import playground_inside, to_inside

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.operation import Operation
    from unspill.model.policy import Policy
    from unspill.model.run import Run
    from unspill.sandbox.sandbox import Sandbox

_lock = Lock()  # protects _told: several threads may answer for one sandbox
_told: WeakKeyDictionary[Sandbox, int] = WeakKeyDictionary()


class Seen(Record):
    """The places of a sandbox. `further` are other directories that commands change in layers; `roots` the host's.

    `user` is who its commands are.

    Not `is_sealed` in a container, where commands are run without a sandbox.
    """

    policy: Policy
    project: bytes
    playground: bytes
    further: tuple[bytes, ...]
    roots: tuple[bytes, ...]
    is_sealed: bool
    user: str

    def inside(self, path: bytes) -> bytes:
        """Return where commands see a path of the host, if they do."""
        return to_inside(path, self.policy.view, self.roots)

    def operation(self, operation: Operation) -> Operation:
        """Return an operation with its roots as commands know them."""
        roots = tuple(self.inside(root) for root in operation.roots)
        return operation.replace(project=self.inside(operation.project), roots=roots)


def seen_in(sandbox: Sandbox) -> Seen:
    """Return what commands of a sandbox see."""
    opened = sandbox._opened
    view, roots = opened.policy.view, opened.roots
    return Seen(
        policy=opened.policy,
        project=to_inside(opened.project, view, roots),
        playground=playground_inside(view, opened.home.path),
        further=tuple(to_inside(root, view, roots) for root in roots if root != opened.project),
        roots=roots,
        is_sealed=not opened.container,
        user="root" if opened.policy.rootfs_writable else opened.home.user,
    )


def untold_runs(sandbox: Sandbox) -> tuple[Run, ...]:
    """Return the runs that were found interrupted in a sandbox's project; each is returned once."""
    with _lock:
        known = _told.get(sandbox, 0)
        found = sandbox.interrupted_runs[known:]
        _told[sandbox] = known + len(found)
    return found
