# SPDX-License-Identifier: Apache-2.0
"""The variables of view `rootfs`: a fixed set, and those that the person names. Nothing else of the caller's.

What a command installs with pip lands in the project, where the next one finds it; caches do not.
"""

from __future__ import annotations

from unspill.plan.home import GIT_CONFIG_IN_HOST_VIEW
from unspill.plan.inside import WORKSPACE
from unspill.policy.defaults import is_allowed_variable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from unspill.model.plan import PlanInput

_PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Of the terminal, so that programs write as they would there
_OF_TERMINAL = (b"TERM", b"COLORTERM", b"NO_COLOR", b"TZ")


def rootfs_environ(given: PlanInput, shell: bytes) -> dict[bytes, bytes]:
    """Return the variables that a command starts with, before what the caller sets for this run."""
    user = b"root" if given.uid == 0 else given.places.home.user.encode("utf-8", "surrogateescape")
    kept = kept_environ(given.environ, given.policy.environment) | fixed_environ(WORKSPACE)
    kept |= {
        b"USER": user,
        b"LOGNAME": user,
        b"SHELL": shell,
        b"XDG_CACHE_HOME": b"/tmp/.cache",
        b"npm_config_cache": b"/tmp/.cache/npm",
        b"GIT_CONFIG_GLOBAL": GIT_CONFIG_IN_HOST_VIEW,
    }
    if given.uid == 0:
        # For uid 0 tar would restore owners that nobody inside can be
        kept[b"TAR_OPTIONS"] = b"--no-same-owner"
    return kept


def kept_environ(environ: Iterable[tuple[bytes, bytes]], configured: tuple[str, ...]) -> dict[bytes, bytes]:
    """Return those of the caller's variables that a new environment has: the terminal's, and what the person names."""
    return {
        name: value
        for name, value in environ
        if (name in _OF_TERMINAL or _is_named(_text(name), configured))
        and is_allowed_variable(_text(name), configured)
        and b"\0" not in value
    }


def fixed_environ(project: bytes) -> dict[bytes, bytes]:
    """Return the variables that a new environment always has; `project` is where its directory is seen."""
    packages = project + b"/.packages"
    return {
        b"HOME": project,
        b"PATH": _PATH + b":" + packages + b"/bin",
        b"PIP_TARGET": packages,
        b"PYTHONPATH": packages,
        b"PYTHONDONTWRITEBYTECODE": b"1",
        b"TMPDIR": b"/tmp",
        b"LANG": b"C.UTF-8",
    }


def _is_named(name: str, configured: tuple[str, ...]) -> bool:
    return any(name == entry or (entry.endswith("*") and name.startswith(entry[:-1])) for entry in configured)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
