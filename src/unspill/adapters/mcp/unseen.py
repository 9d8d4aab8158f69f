# SPDX-License-Identifier: Apache-2.0
"""Tells whether commands in a sandbox could see a file of ours.

With the token and a way to the server a command would be its client, and would answer the questions that it raises
itself.
"""

from __future__ import annotations

import os

from unspill.adapters.seen import seen_in
from unspill.errors import UsageError
from unspill.model.plan import Bind, Overlay
from unspill.plan.visible import is_shown
from unspill.policy.paths import contains, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from unspill.model.plan import Plan
    from unspill.sandbox.sandbox import Sandbox


def check_unseen(path: bytes, sandboxes: Iterable[Sandbox]) -> None:
    """Make sure that no command of these sandboxes sees what is at a path, or can put something there.

    Raises:
        UsageError: one could.
    """
    real = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    for sandbox in sandboxes:
        plan = sandbox.plan(["true"])
        roots = seen_in(sandbox).roots
        if is_shown(plan.mounts, real) or any(contains(shown, real) for shown in (*roots, *_moved(plan))):
            remedy = "Choose a place outside of the project and of all that its commands can read."
            raise UsageError(f"commands in the sandbox can see {show(path)}", remedy=remedy)


def _moved(plan: Plan) -> Iterator[bytes]:
    """Yield what of the host is shown elsewhere than where it is."""
    for operation in plan.mounts:
        if isinstance(operation, Bind) and operation.source != operation.dest:
            yield operation.source
        elif isinstance(operation, Overlay) and operation.lowers[-1] != operation.dest:
            yield operation.lowers[-1]
