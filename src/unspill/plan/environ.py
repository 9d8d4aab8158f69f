# SPDX-License-Identifier: Apache-2.0
"""The variables of the sandbox, rebuilt from the caller's by an allow-list of names.

PATH keeps only what the plan shows. HOME, USER, LOGNAME, SHELL and TMPDIR are always set by us.
"""

from __future__ import annotations

from unspill.errors import UsageError
from unspill.model.plan import PROXY_PORT, ProxyNetwork
from unspill.plan.home import GIT_CONFIG_IN_HOST_VIEW
from unspill.plan.visible import is_shown
from unspill.policy.defaults import is_allowed_variable, is_refused_variable, is_variable_name
from unspill.policy.paths import normalise, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.model.plan import MountOp, PlanInput

DEFAULT_PATH = b"/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
_SHELL = b"/bin/sh"
_MOST_DIGITS = 5


def build_environ(given: PlanInput, mounts: tuple[MountOp, ...]) -> tuple[tuple[bytes, bytes], ...]:
    """Return the variables, sorted by name.

    Raises:
        UsageError: the caller asks for a variable that never enters a sandbox.
    """
    if given.places.rootfs is not None:
        from unspill.plan.rootfs_environ import rootfs_environ

        return _with_extra(given, rootfs_environ(given, given.places.rootfs.shell))
    configured = given.policy.environment
    kept = {
        name: value
        for name, value in given.environ
        if is_allowed_variable(_text(name), configured) and b"\0" not in value
    }
    user = given.places.home.user.encode("utf-8", "surrogateescape")
    shell = kept.get(b"SHELL", _SHELL)
    kept |= {
        b"HOME": given.places.home.path,
        b"PATH": reduce_path(kept.get(b"PATH", b""), mounts),
        b"USER": user,
        b"LOGNAME": user,
        b"SHELL": shell if _is_visible(shell, mounts) else _SHELL,
        b"TMPDIR": b"/tmp",
    }
    if given.policy.view == "host":
        kept[b"GIT_CONFIG_GLOBAL"] = GIT_CONFIG_IN_HOST_VIEW
    if not any(name in kept for name in (b"LANG", b"LC_ALL", b"LC_CTYPE")):
        kept[b"LANG"] = b"C.UTF-8"
    return _with_extra(given, kept)


def _with_extra(given: PlanInput, kept: dict[bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
    extra = checked_extra(given.extra_environ)
    if isinstance(given.network, ProxyNetwork):
        kept |= _to_proxy(extra)
    kept |= extra
    return tuple(sorted(kept.items()))


def _to_proxy(extra: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Return what leads programs to the proxy; what the caller sets is stronger, but settings of git come together."""
    from unspill.plan.node_script import PLACE
    from unspill.plan.proxy_environ import proxy_variables

    count = extra.pop(b"GIT_CONFIG_COUNT", b"0")
    variables = proxy_variables(
        PROXY_PORT,
        git_count=int(count) if count.isdigit() and len(count) < _MOST_DIGITS else 0,
        node_script=PLACE.decode("ascii"),
    )
    return {name.encode(): value.encode() for name, value in variables.items()}


def reduce_path(path: bytes, mounts: tuple[MountOp, ...]) -> bytes:
    """Return the entries of PATH that are seen in the sandbox; a default where none is left."""
    entries = [entry for entry in path.split(b":") if _is_visible(entry, mounts)]
    return b":".join(dict.fromkeys(entries)) or DEFAULT_PATH


def _is_visible(path: bytes, mounts: tuple[MountOp, ...]) -> bool:
    # A relative entry would mean another directory in each working directory
    return path.startswith(b"/") and b"\0" not in path and is_shown(mounts, normalise(path))


def checked_extra(extra: tuple[tuple[bytes, bytes], ...]) -> dict[bytes, bytes]:
    """Return the variables that a caller sets for one run.

    Raises:
        UsageError: one of them has no name, or never enters a sandbox.
    """
    for name, value in extra:
        if not is_variable_name(_text(name)) or b"\0" in value:
            raise UsageError(f"{show(name)!r} can't be a variable: a name has no `=`, and neither has NUL.")
        if is_refused_variable(_text(name)):
            raise UsageError(
                f"The variable {show(name)} never enters a sandbox.",
                remedy="Set it inside the command itself if it is needed.",
            )
    return dict(extra)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
