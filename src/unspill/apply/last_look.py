# SPDX-License-Identifier: Apache-2.0
"""Look once more at what was displaced and may still change, when all is done and before that is written down.

Whoever was on the way into a directory, or into a file of which the kernel does not tell who has it open, may have
changed it after the rename, where nobody would look for it. Such an entry goes back to where it was, and is reported.
"""

from __future__ import annotations

from unspill.apply.perform import CHANGED, is_unchanged, take_back_group
from unspill.model.operation import Left

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.apply.sites import Sites
    from unspill.model.operation import Step


def look_again(
    sites: Sites, steps: Sequence[Step], done: list[int], unsure: Sequence[int]
) -> tuple[list[int], list[Left]]:
    """Take back what displaced an entry that was changed since; return the steps that stay done, and what was left.

    Raises:
        OSError: the filesystem fails: roll back.
    """
    left: dict[int, Left] = {}
    still_done = set(done) if unsure else set()
    for index in reversed(unsure):
        step = steps[index]
        assert step.before is not None
        if index in still_done and not is_unchanged(*sites.place(step), step.before):
            left[step.group] = Left(root=step.root, path=step.path, why="conflict", reason=CHANGED)
    for group in left:
        done = take_back_group(sites, steps, done, group)
    return done, list(left.values())
