# SPDX-License-Identifier: Apache-2.0
"""The variables of a command in container mode: made anew, as in view `rootfs`, with the project at its own path."""

from __future__ import annotations

from unspill.plan.environ import checked_extra
from unspill.policy.environ import is_allowed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_OF_TERMINAL = frozenset((b"TERM", b"COLORTERM", b"NO_COLOR", b"TZ"))


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
    named = {name.encode("utf-8", "surrogateescape") for name in configured} | _OF_TERMINAL
    kept = {name: value for name, value in environ.items() if name in named and _is_allowed(name, configured)}
    packages = project + b"/.packages"
    kept |= {
        b"HOME": project,
        b"PATH": PATH + b":" + packages + b"/bin",
        b"PIP_TARGET": packages,
        b"PYTHONPATH": packages,
        b"PYTHONDONTWRITEBYTECODE": b"1",
        b"TMPDIR": b"/tmp",
        b"LANG": b"C.UTF-8",
    }
    return kept | checked_extra(extra)


def _is_allowed(name: bytes, configured: tuple[str, ...]) -> bool:
    return is_allowed(name.decode("utf-8", "surrogateescape"), configured)
