# SPDX-License-Identifier: Apache-2.0
"""The facade for every rootfs of a person: what is ready, what is fetched and made, what goes.

    shelf = RootfsShelf()
    made = shelf.pull(RootfsWish(source="alpine", tier=2))
    print(shelf.tools(made.name).text())
    with Sandbox(project, policy=Policy(view="rootfs", rootfs=made.name)) as sandbox: ...

A rootfs never changes. An upgrade makes another one; runs that use the old one keep it until they end.
"""

from __future__ import annotations

import os

from unspill.errors import RootfsError
from unspill.model.record import Record
from unspill.rootfs.registry import Registry
from unspill.sandbox.rootfs_choice import PULL, find_rootfs, rootfs_directory
from unspill.sandbox.rootfs_making import SOURCES, Installer, check_wish, find_source
from unspill.sandbox.upkeep import find_own_locations, find_own_policy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from unspill.model.policy import Policy
    from unspill.model.rootfs import Progress, Proof, Rootfs, RootfsWish
    from unspill.sandbox.sandbox import Sandbox
    from unspill.sandbox.tools import Tools

    Report = Callable[[Progress], None]
    PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]


class Upgraded(Record):
    """What became of one rootfs: `new` takes its place; `is_newer` is false where there is nothing newer."""

    old: Rootfs
    new: Rootfs

    @property
    def is_newer(self) -> bool:
        """Whether there is another one now."""
        return self.old.name != self.new.name


class RootfsShelf:
    """Every rootfs below one directory."""

    def __init__(
        self, directory: PathLike | None = None, *, policy: Policy | None = None, may_fork: bool = False
    ) -> None:
        """Look at a directory, which need not be there yet.

        Args:
            directory: Where every rootfs lies; by default where the policy, ROOTFS_DIR or the person's file says.
            policy: What sandboxes that install packages may use; by default the person's configuration file.
            may_fork: This process is small and has one thread.

        Raises:
            UsageError: a setting or a variable is wrong.
        """
        self._locations = find_own_locations()
        decided = policy if policy is not None else find_own_policy(self._locations)
        if directory is not None:
            decided = decided.replace(rootfs_dir=os.path.realpath(os.fsencode(directory)))
        self._policy = decided
        self.directory = rootfs_directory(decided, self._locations)
        self._shelf = Registry(self.directory)
        self._install = Installer(decided, may_fork=may_fork)

    def list(self) -> tuple[Rootfs, ...]:
        """Return those that are ready, by name."""
        return self._shelf.list()

    def damaged(self) -> tuple[tuple[str, str], ...]:
        """Return the names of those that can't be used, and why."""
        return self._shelf.damaged()

    def current(self) -> Rootfs | None:
        """Return the one in use where a policy names none."""
        return self._shelf.current()

    def find(self, name: str = "") -> Rootfs:
        """Return one by its name or the beginning of it; without a name the one that the policy means.

        Raises:
            RootfsError: there is none.
        """
        if name.startswith("/") or not name:
            wanted = name or self._policy.rootfs
            return find_rootfs(self._policy.replace(rootfs=wanted, provision=None), self._locations)
        found = self._shelf.find(name, cut_anywhere=True)
        if found is None:
            raise RootfsError(f"There is no rootfs {name!a} here.", remedy=PULL)
        return found

    def pull(self, wish: RootfsWish, *, report: Report | None = None) -> Rootfs:
        """Return a rootfs that meets a wish, fetched and made where none is ready.

        The first one becomes the one in use.

        Raises:
            UsageError: the wish is none that could be met.
            RootfsError: it can't be had; nothing half-built is used.
        """
        from unspill.rootfs.build import prepare

        check_wish(wish)
        source = find_source(wish.source)
        return prepare(self._shelf, wish, source, install=self._install.telling(report), report=report or _tell_nobody)

    def upgrade(self, name: str = "", *, report: Report | None = None) -> Upgraded:
        """Make what the wish for a rootfs means today; where the old one was in use, the new one is.

        Raises:
            RootfsError: there is no such rootfs, or the newer one can't be had.
        """
        from unspill.rootfs.build import upgrade

        old = self.find(name)
        if old.manifest is None or old.manifest.wish.source not in SOURCES:
            raise RootfsError(f"{old.name} has no source that could have a newer one.", remedy="Make it anew yourself.")
        source = find_source(old.manifest.wish.source)
        new = upgrade(self._shelf, old, source, install=self._install.telling(report), report=report or _tell_nobody)
        return Upgraded(old=old, new=new)

    def use(self, name: str) -> Rootfs:
        """Make one the one in use.

        Raises:
            RootfsError: there is no such rootfs, or the directory can only be read.
        """
        return self._shelf.use(name)

    def remove(self, name: str, *, force: bool = False) -> str:
        """Remove one that no run uses; the one in use only with `force`. Return its whole name.

        Raises:
            RootfsError: there is no such rootfs, it is in use, or runs use it.
        """
        found = self._shelf.find(name)
        if found is not None and not force and found.name in self._layered():
            raise RootfsError(
                f"Some sandbox has written to {found.name}; without it, that is worth nothing.",
                remedy="`unspill rootfs keep` or `discard` in its project first, or --force.",
            )
        return self._shelf.remove(name, force=force)

    def remove_unused(self) -> tuple[str, ...]:
        """Remove those that a newer one has replaced and nobody uses; return their names.

        One that a sandbox has written to, in its layer, stays as long as that layer does.
        """
        return self._shelf.remove_unused(self._layered())

    def _layered(self) -> tuple[str, ...]:
        """Return the names of those that some sandbox has written to."""
        from unspill.sandbox.rootfs_layers import layered_trees
        from unspill.store.db import Store

        with Store.open(self._locations.state) as store:
            trees = layered_trees(store)
        return tuple(found.name for found in self.list() if found.tree in trees)

    def empty_downloads(self) -> int:
        """Remove what was fetched and nobody uses right now; return how many bytes of the disk that gave back.

        Raises:
            RootfsError: the directory can only be read.
        """
        from unspill.rootfs.registry import empty_downloads

        return empty_downloads(self.directory)

    def keep(self, sandbox: Sandbox, label: str, *, report: Report | None = None) -> Rootfs:
        """Make what a sandbox with a writable rootfs has made of it a rootfs of its own; the sandbox keeps it too.

        Raises:
            UsageError: it has written nothing there, or the label is none.
            RootfsError: it can't be made.
        """
        from unspill.sandbox.rootfs_keep import keep_rootfs

        return keep_rootfs(sandbox._opened, label, report or _tell_nobody)

    def discard(self, sandbox: Sandbox) -> int:
        """Throw away what a sandbox has written to its rootfs; return how many layers that were."""
        from unspill.sandbox.rootfs_layers import discard_layers

        return discard_layers(sandbox._opened)

    def verify(self, name: str = "") -> Proof:
        """Read the whole tree of one, and return what speaks for its content.

        Raises:
            RootfsUnverified: it is not what it was when it was made.
            RootfsError: there is no such rootfs.
        """
        from unspill.rootfs.build import verify

        return verify(self.find(name))

    def tools(self, name: str = "") -> Tools:
        """Return which runtimes and tools are inside, found out by a run inside.

        Raises:
            RootfsError: there is no such rootfs, or it can't be asked.
            HostError: this machine can't run anything in it.
        """
        from unspill.sandbox.tools import ask_inside

        return ask_inside(self.find(name), self.directory, self._policy, self._locations)


def _tell_nobody(_progress: Progress) -> None:
    """Take what nobody wants to hear."""
