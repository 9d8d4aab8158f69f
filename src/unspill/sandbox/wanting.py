# SPDX-License-Identifier: Apache-2.0
"""What a caller wants beyond the policy for one run, and the checks of it, name by name."""

from __future__ import annotations

import os

from unspill.changes.quote import quote
from unspill.errors import PolicyError, UsageError
from unspill.plan.view import to_host
from unspill.policy.hosts import parse_reachable
from unspill.policy.paths import contains
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.sandbox.project import Project


class Wanted(Record):
    """What is wanted for one run, as a caller says it. Relative paths are seen from the project.

    `plain` is without a sandbox, and then there is nothing else to want.
    """

    network: bool = False
    hosts: Sequence[str] = ()
    readable: Sequence[str] = ()
    reveal: Sequence[str] = ()
    roots: Sequence[str] = ()
    plain: bool = False


class Wants(Record):
    """The same, checked: paths are absolute and real, hosts are rules in their one form."""

    network: bool = False
    hosts: tuple[str, ...] = ()
    readable: tuple[bytes, ...] = ()
    reveal: tuple[bytes, ...] = ()
    roots: tuple[bytes, ...] = ()


def to_wants(project: Project, wanted: Wanted) -> Wants:
    """Check what is wanted, name by name.

    Raises:
        UsageError: a host is none, or there is nothing at a path.
    """
    for given in (wanted.hosts, wanted.readable, wanted.reveal, wanted.roots):
        if isinstance(given, str | bytes):
            raise UsageError(f"a list is wanted, not one text: {given!r}")
    return Wants(
        network=wanted.network,
        hosts=tuple(dict.fromkeys(_host(host) for host in wanted.hosts)),
        readable=tuple(dict.fromkeys(_real(project, path) for path in wanted.readable)),
        reveal=_masked(project, wanted.reveal),
        roots=tuple(dict.fromkeys(_real(project, path, is_directory=True) for path in wanted.roots)),
    )


def _masked(project: Project, given: Sequence[str]) -> tuple[bytes, ...]:
    """Return secrets under their own names, whatever they are links to; each must be one that is masked."""
    if not given:
        return ()
    paths = []
    for path in given:
        _real(project, path)
        above, name = os.path.split(_on_host(project, path))
        paths.append(os.path.join(os.path.realpath(above), name))
    from unspill.sandbox.secrets import find_masks

    find_masks(project, tuple(paths))
    return tuple(dict.fromkeys(paths))


def _host(text: str) -> str:
    try:
        return parse_reachable(text).text
    except PolicyError as error:
        raise UsageError(error.message, remedy=error.remedy) from None


def _on_host(project: Project, given: str | bytes) -> bytes:
    """Return the path that is meant: a caller may name it as a command sees it."""
    path = os.path.join(project.path, os.fsencode(given))
    # The host may have a directory of that name too, and the project in it
    if any(contains(root, path) for root in project.roots):
        return path
    return to_host(path, project.means.policy.view, project.roots)


def _real(project: Project, given: str | bytes, *, is_directory: bool = False) -> bytes:
    path = _on_host(project, given)
    if b"\0" in path or not os.path.exists(path):
        raise UsageError(f"there is nothing at {quote(path)}", remedy="Nobody was asked.")
    if is_directory and not os.path.isdir(path):
        raise UsageError(f"{quote(path)} is not a directory", remedy="Nobody was asked.")
    return os.path.realpath(path)
