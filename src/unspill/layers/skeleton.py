# SPDX-License-Identifier: Apache-2.0
"""Mount points that a rootfs does not have: empty directories and files of ours, laid over it.

They lie in the state directory under a name that says what they are, so they are made once and never changed.
"""

from __future__ import annotations

import os

from unspill.errors import StoreError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.plan import Point


def make_skeleton(points: Iterable[Point]) -> None:
    """Make what is missing; two callers at once do each other no harm.

    Raises:
        StoreError: the state directory's filesystem fails.
    """
    for point in points:
        try:
            os.makedirs(os.path.dirname(point.path) if point.is_file else point.path, 0o755, exist_ok=True)
            if point.is_file:
                os.close(os.open(point.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
        except OSError as error:
            raise StoreError(f"A mount point can't be made: {os.fsdecode(point.path)}: {error.strerror}.") from error
