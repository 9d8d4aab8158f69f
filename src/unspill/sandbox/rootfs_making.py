# SPDX-License-Identifier: Apache-2.0
"""Makes a rootfs out of what the layers below have: the source that a wish names, the shelf, a sandbox to install in.

The one table of sources. Each is loaded when it is asked for.
"""

from __future__ import annotations

import sys

from unspill.errors import RootfsError, UsageError
from unspill.rootfs.build import prepare
from unspill.rootfs.registry import Registry
from unspill.sandbox.rootfs_choice import rootfs_directory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unspill.model.policy import Policy
    from unspill.model.rootfs import Installed, Progress, Rootfs, RootfsWish, SourceName
    from unspill.rootfs.source import Source
    from unspill.sandbox.locations import Locations
    from unspill.sandbox.rootfs_install import InstallGround

    Report = Callable[[Progress], None]

SOURCES: dict[SourceName, tuple[str, str]] = {
    "alpine": ("unspill.rootfs.alpine", "AlpineSource"),
    "debian": ("unspill.rootfs.debian", "DebianSource"),
    "archive": ("unspill.rootfs.archive", "ArchiveSource"),
    "oci": ("unspill.rootfs.oci", "OciSource"),
}


def find_source(name: SourceName) -> Source:
    """Return the source of this name."""
    module, kind = SOURCES[name]
    __import__(module)
    source: Source = getattr(sys.modules[module], kind)()
    return source


class Installer:
    """Runs commands in a half-built rootfs. What that needs of the host is found out when it is first needed."""

    def __init__(self, policy: Policy, *, may_fork: bool = False, report: Report | None = None) -> None:
        self._policy = policy
        self._may_fork = may_fork
        self._report = report
        self._ground: InstallGround | None = None

    def telling(self, report: Report | None) -> Installer:
        """Return one that tells how many packages there are already."""
        return Installer(self._policy, may_fork=self._may_fork, report=report)

    def __call__(self, tree: bytes, argv: Sequence[bytes], hosts: Sequence[str]) -> Installed:
        """Run one command.

        Raises:
            HostError: this machine can't.
            SandboxUnavailable: we failed, not the command.
        """
        from unspill.sandbox.rootfs_install import install, open_ground

        if self._ground is None:
            self._ground = open_ground(self._policy, may_fork=self._may_fork, report=self._report)
        return install(tree, argv, hosts, ground=self._ground)


def check_wish(wish: RootfsWish) -> None:
    """Refuse a wish that nobody could meet.

    Raises:
        UsageError: with the field.
    """
    from unspill.policy.rootfs_wish import find_wrong

    found = find_wrong(wish)
    if found is not None:
        raise UsageError(f"The wish for a rootfs: {found[0]}: {found[1]}", remedy="See `unspill rootfs --help`.")


def provide(policy: Policy, wish: RootfsWish, locations: Locations, report: Report | None = None) -> Rootfs:
    """Make the rootfs that a policy means as it says, for the run that found none.

    Raises:
        RootfsError: it can't be had, or what is made so is another one than the policy names.
    """
    shelf = Registry(rootfs_directory(policy, locations))
    called = wish.label or wish.source
    if policy.rootfs and policy.rootfs.partition("-")[0] != called:
        raise _another(policy.rootfs, called)
    tell = report or _tell_nobody
    made = prepare(shelf, wish, find_source(wish.source), install=Installer(policy, report=tell), report=tell)
    if not policy.rootfs:
        # Where the directory can only be read, none can be made the one in use
        return shelf.current() or made
    found = shelf.find(policy.rootfs)
    if found is None:
        raise _another(policy.rootfs, made.name)
    return found


def _another(wanted: str, made: str) -> RootfsError:
    return RootfsError(
        f"There is no rootfs {wanted} here, and `[provision]` would make {made}.",
        remedy="Let `rootfs` and `[provision]` of your configuration name the same one.",
    )


def _tell_nobody(_progress: Progress) -> None:
    """Take what nobody wants to hear."""
