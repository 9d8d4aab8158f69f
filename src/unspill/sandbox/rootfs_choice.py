# SPDX-License-Identifier: Apache-2.0
"""Which rootfs a policy means: a directory that the person names, one by its name, or the one in use.

On the path of each run in a rootfs: some file look-ups, no network, unless there is none and the policy says how one
is made.
"""

from __future__ import annotations

import os

from unspill.errors import RootfsError, RootfsUnsafe
from unspill.host.trusted import find_changeable, find_changeable_way
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
USE = "`unspill rootfs use NAME` chooses one of those that `unspill rootfs list` shows."


def rootfs_directory(policy: Policy, locations: Locations) -> bytes:
    """Return where every rootfs lies: of a program's own choice, or the person's.

    Raises:
        RootfsUnsafe: a link leads there that others could have laid.
    """
    directory = os.path.realpath(policy.rootfs_dir) if policy.rootfs_dir else locations.rootfs
    way = policy.rootfs_dir or locations.rootfs_way
    problem = find_changeable_way(way) if way and way != directory else None
    if problem is not None:
        raise RootfsUnsafe(
            f"{show(problem.path)} {problem.reason}, who could lead to a rootfs of theirs",
            remedy=f"Name the directory itself (now it is {show(directory)}), if it is the one that you mean.",
        )
    return directory


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
    from unspill.rootfs.registry import Registry

    shelf = Registry(rootfs_directory(policy, locations))
    found = shelf.find(policy.rootfs) if policy.rootfs else shelf.current()
    if found is not None:
        return found
    if policy.provision is not None:
        from unspill.sandbox.rootfs_making import provide

        return provide(policy, policy.provision, locations, report)
    named = f"no rootfs {policy.rootfs}" if policy.rootfs else "no rootfs in use"
    is_any = not policy.rootfs and bool(shelf.list())
    raise RootfsError(f"There is {named} here.", remedy=USE if is_any else PULL)


def _find_directory(policy: Policy, locations: Locations, roots: tuple[bytes, ...]) -> Rootfs:
    """Return a tree that the person made: never the host's own, nor one that anybody else could change."""
    from unspill.policy.mounted import directory_problem

    tree = os.path.realpath(os.fsencode(policy.rootfs))
    own = (locations.state, locations.config, locations.data, rootfs_directory(policy, locations))
    problem = "is the whole file system" if tree == b"/" else ""
    if any(contains(root, tree) or contains(tree, root) for root in roots):
        problem = "is or contains what commands may write, or lies in it"
    problem = problem or directory_problem(tree, home=locations.home, own=own)
    problem = problem or _why_changeable(tree, os.fsencode(policy.rootfs))
    if problem:
        raise RootfsUnsafe(
            f"{show(tree)} can't be a rootfs: it {problem}.",
            remedy="Name a directory that only you and root can write, with a root file system in it and nothing else.",
        )
    return Rootfs(name=os.fsdecode(tree), tree=tree)


def _why_changeable(tree: bytes, way: bytes) -> str:
    """Return who else could put something else there, "" where nobody could: each directory above counts too.

    `way` is how it was named: links may lead there.
    """
    found = find_changeable(tree) or find_changeable_way(way)
    if found is None:
        return ""
    return found.reason if found.path == tree else f"{found.reason} ({show(found.path)})"
