# SPDX-License-Identifier: Apache-2.0
"""The variables of a command in container mode: made anew, as in view `rootfs`, with the project at its own path."""

from __future__ import annotations

from unspill.plan.environ import checked_extra
from unspill.plan.rootfs_environ import fixed_environ, kept_environ

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


def contained_environ(
    project: bytes,
    configured: tuple[str, ...],
    environ: Mapping[bytes, bytes],
    extra: tuple[tuple[bytes, bytes], ...],
) -> dict[bytes, bytes]:
    """Return the variables: a fixed set, of the caller's those that the person names, and those set for this run.

    Raises:
        UsageError: a variable is set for this run that never enters a sandbox.
    """
    return kept_environ(environ.items(), configured) | fixed_environ(project) | checked_extra(extra)
