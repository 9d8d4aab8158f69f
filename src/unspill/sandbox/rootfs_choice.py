# SPDX-License-Identifier: Apache-2.0
"""Which rootfs a policy means: a directory that the person names, one by its name, or the one in use.

On the path of each run in a rootfs: some file look-ups, no network, unless there is none and the policy says how one
is made.
"""

from __future__ import annotations

import os
import stat

from unspill.errors import RootfsError, RootfsUnsafe
from unspill.model.rootfs import Rootfs
from unspill.policy.paths import contains, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.model.policy import Policy
    from unspill.model.rootfs import Progress
    from unspill.sandbox.locations import Locations

    Report = Callable[[Progress], None]

PULL = "`unspill rootfs pull alpine` makes one; `unspill rootfs list` shows what there is."
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def rootfs_directory(policy: Policy, locations: Locations) -> bytes:
    """Return where every rootfs lies: of a program's own choice, or the person's."""
    return os.path.realpath(policy.rootfs_dir) if policy.rootfs_dir else locations.rootfs


def find_rootfs(
    policy: Policy, locations: Locations, roots: tuple[bytes, ...] = (), report: Report | None = None
) -> Rootfs:
    """Return the rootfs of view `rootfs`; where it is missing and the policy says how, it is made first.

    `roots` are what commands may write: a tree in one of them would be theirs. `report` hears how the making goes on.

    Raises:
        RootfsUnsafe: others could change the directory that the policy names, or it shows what stays private.
        RootfsError: there is none, or it can't be made.
    """
    if policy.rootfs.startswith("/"):
        return _find_directory(policy, locations, roots)
    from unspill.rootfs.shelf import Shelf

    shelf = Shelf(rootfs_directory(policy, locations))
    found = shelf.find(policy.rootfs) if policy.rootfs else shelf.current()
    if found is not None:
        return found
    if policy.provision is not None:
        from unspill.sandbox.rootfs_making import provide

        return provide(policy, policy.provision, locations, report)
    named = f"no rootfs {policy.rootfs}" if policy.rootfs else "no rootfs in use"
    raise RootfsError(f"There is {named} here.", remedy=PULL)


def _find_directory(policy: Policy, locations: Locations, roots: tuple[bytes, ...]) -> Rootfs:
    """Return a tree that the person made: never the host's own, nor one that anybody else could change."""
    from unspill.policy.mounted import directory_problem

    tree = os.path.realpath(os.fsencode(policy.rootfs))
    own = (locations.state, locations.config, locations.data, rootfs_directory(policy, locations))
    problem = "is the whole file system" if tree == b"/" else ""
    if any(contains(root, tree) or contains(tree, root) for root in roots):
        problem = "is or contains what commands may write, or lies in it"
    problem = problem or directory_problem(tree, home=locations.home, own=own) or _why_changeable(tree)
    if problem:
        raise RootfsUnsafe(
            f"{show(tree)} can't be a rootfs: it {problem}.",
            remedy="Name a directory that only you and root can write, with a root file system in it and nothing else.",
        )
    return Rootfs(name=os.fsdecode(tree), tree=tree)


def _why_changeable(tree: bytes) -> str:
    """Return who else could put something else there, "" where nobody could: each directory above counts too."""
    path = tree
    while True:
        try:
            found = os.lstat(path)
        except OSError as error:
            return f"can't be read: {error.strerror}"
        if not stat.S_ISDIR(found.st_mode):
            return "is not a directory"
        if found.st_uid not in (0, os.geteuid()):
            return f"belongs to somebody else ({show(path)})"
        # In a sticky directory such as /tmp nobody else can rename what is the caller's
        is_shared = path != tree and found.st_mode & stat.S_ISVTX
        if found.st_mode & _OTHERS_MAY_WRITE and not is_shared:
            return f"can be changed by others ({show(path)})"
        if path == b"/":
            return ""
        path = os.path.dirname(path)
