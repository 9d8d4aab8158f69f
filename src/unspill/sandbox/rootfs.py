# SPDX-License-Identifier: Apache-2.0
"""The facade for every rootfs of a person: what is ready, what is fetched and made, what goes.

    registry = RootfsRegistry()
    made = registry.pull(RootfsSpec(source="alpine", tier=2))
    print(registry.tools(made.name).text())
    with Sandbox(project, policy=Policy(view="rootfs", rootfs=made.name)) as sandbox: ...

A rootfs never changes. An upgrade makes another one; runs that use the old one keep it until they end.
"""

from __future__ import annotations

import os
import time

from unspill.errors import RootfsError, UsageError
from unspill.layers.flatten import flatten
from unspill.layers.locks import lock_sandbox
from unspill.model.policy import Policy
from unspill.model.rootfs import Installed, Progress, RootfsKey, RootfsSpec
from unspill.policy.config import is_rootfs_label
from unspill.record import Record
from unspill.rootfs.build import obtain, prepare, upgrade, verify
from unspill.rootfs.registry import Registry, empty_downloads
from unspill.rootfs.source import Filled, Resolved, detect_arch
from unspill.sandbox.locations import find_own_locations
from unspill.sandbox.planning import get_places
from unspill.sandbox.rootfs_install import SOURCES, Installer, check_spec, find_source, ignore_progress
from unspill.sandbox.rootfs_use import (
    PULL,
    RootfsUse,
    discard_layers,
    find_rootfs,
    layered_trees,
    layers_of,
)
from unspill.sandbox.settings import find_own_policy, rootfs_directory
from unspill.store.db import Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unspill.model.rootfs import Proof, Rootfs, RootfsBase
    from unspill.rootfs.source import BuildContext
    from unspill.sandbox.project import Project
    from unspill.sandbox.sandbox import Sandbox
    from unspill.sandbox.tools import Tools

    Report = Callable[[Progress], None]
    PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_PAUSE_S = 0.2


class Upgraded(Record):
    """What became of one rootfs: `new` takes its place; `is_newer` is false where there is nothing newer."""

    old: Rootfs
    new: Rootfs

    @property
    def is_newer(self) -> bool:
        """Whether there is another one now."""
        return self.old.name != self.new.name


class RootfsRegistry:
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
        self._registry = Registry(self.directory)
        self._install = Installer(decided, may_fork=may_fork)

    def list(self) -> tuple[Rootfs, ...]:
        """Return those that are ready, by name."""
        return self._registry.list()

    def damaged(self) -> tuple[tuple[str, str], ...]:
        """Return the names of those that can't be used, and why."""
        return self._registry.damaged()

    def current(self) -> Rootfs | None:
        """Return the one in use where a policy names none."""
        return self._registry.current()

    def find(self, name: str = "") -> Rootfs:
        """Return one by its name or the beginning of it; without a name the one that the policy means.

        Raises:
            RootfsError: there is none.
        """
        if name.startswith("/") or not name:
            wanted = name or self._policy.rootfs
            return find_rootfs(self._policy.replace(rootfs=wanted, provision=None), self._locations)
        found = self._registry.find(name, cut_anywhere=True)
        if found is None:
            raise RootfsError(f"There is no rootfs {name!a} here.", remedy=PULL)
        return found

    def pull(self, spec: RootfsSpec, *, report: Report | None = None) -> Rootfs:
        """Return a rootfs that meets a spec, fetched and made where none is ready.

        The first one becomes the one in use.

        Raises:
            UsageError: no source could meet the spec.
            RootfsError: it can't be had; nothing half-built is used.
        """
        check_spec(spec)
        source = find_source(spec.source)
        return prepare(
            self._registry, spec, source, install=self._install.telling(report), report=report or ignore_progress
        )

    def upgrade(self, name: str = "", *, report: Report | None = None) -> Upgraded:
        """Make what the spec for a rootfs means today; where the old one was in use, the new one is.

        Raises:
            RootfsError: there is no such rootfs, or the newer one can't be had.
        """
        old = self.find(name)
        if old.manifest is None or old.manifest.spec.source not in SOURCES:
            raise RootfsError(f"{old.name} has no source that could have a newer one.", remedy="Make it anew yourself.")
        source = find_source(old.manifest.spec.source)
        new = upgrade(
            self._registry, old, source, install=self._install.telling(report), report=report or ignore_progress
        )
        return Upgraded(old=old, new=new)

    def use(self, name: str) -> Rootfs:
        """Make one the one in use.

        Raises:
            RootfsError: there is no such rootfs, or the directory can only be read.
        """
        return self._registry.use(name)

    def remove(self, name: str, *, force: bool = False) -> str:
        """Remove one that no run uses; the one in use only with `force`. Return its whole name.

        Raises:
            RootfsError: there is no such rootfs, it is in use, or runs use it.
        """
        found = self._registry.find(name)
        if found is not None and not force and found.name in self._layered():
            raise RootfsError(
                f"Some sandbox has written to {found.name}; without it, that is worth nothing.",
                remedy="`unspill rootfs keep` or `discard` in its project first, or --force.",
            )
        return self._registry.remove(name, force=force)

    def remove_unused(self) -> tuple[str, ...]:
        """Remove those that a newer one has replaced and nobody uses; return their names.

        One that a sandbox has written to, in its layer, stays as long as that layer does.
        """
        return self._registry.remove_unused(self._layered())

    def _layered(self) -> tuple[str, ...]:
        """Return the names of those that some sandbox has written to."""
        with Store.open(self._locations.state) as store:
            trees = layered_trees(store)
        return tuple(found.name for found in self.list() if found.tree in trees)

    def empty_downloads(self) -> int:
        """Remove what was fetched and nobody uses right now; return how many bytes of the disk that gave back.

        Raises:
            RootfsError: the directory can only be read.
        """
        return empty_downloads(self.directory)

    def keep(self, sandbox: Sandbox, label: str, *, report: Report | None = None) -> Rootfs:
        """Make what a sandbox with a writable rootfs has made of it a rootfs of its own; the sandbox keeps it too.

        Raises:
            UsageError: it has written nothing there, or the label is none.
            RootfsError: it can't be made.
        """

        return keep_rootfs(sandbox._project, label, report or ignore_progress)

    def discard(self, sandbox: Sandbox) -> int:
        """Throw away what a sandbox has written to its rootfs; return how many layers that were."""
        return discard_layers(sandbox._project)

    def verify(self, name: str = "") -> Proof:
        """Read the whole tree of one, and return what speaks for its content.

        Raises:
            RootfsUnverified: it is not what it was when it was made.
            RootfsError: there is no such rootfs.
        """
        return verify(self.find(name))

    def tools(self, name: str = "") -> Tools:
        """Return which runtimes and tools are inside, found out by a run inside.

        Raises:
            RootfsError: there is no such rootfs, or it can't be asked.
            HostError: this machine can't run anything in it.
        """
        from unspill.sandbox.tools import ask_inside  # lazy: rootfs

        return ask_inside(self.find(name), self.directory, self._policy, self._locations)


def keep_rootfs(project: Project, label: str, report: Callable[[Progress], None]) -> Rootfs:
    """Make what the sandbox sees of its rootfs a rootfs of its own, called by `label`; the sandbox keeps its layers.

    Raises:
        UsageError: the sandbox has written nothing to a rootfs.
        RootfsError: it can't be made.
    """
    if not is_rootfs_label(label):
        raise UsageError(
            f"not a label for a rootfs: {label!a}",
            remedy="Use small letters, digits, `.` and `_`, a letter first, and not the name of a source there.",
        )
    # Whatever the policy says by now: the tree that the layers were written for
    project = project.with_means(policy=project.means.policy.replace(view="rootfs", rootfs_writable=True))
    with (
        lock_sandbox(project.store.state, project.row.id),
        RootfsUse(lambda afresh: get_places(project, afresh=afresh)) as places,
    ):
        base = places.rootfs
        tree = b"" if base is None else base.tree
        layers = {path: uppers for path, uppers in layers_of(project).items() if os.path.dirname(path) == tree}
        if base is None or not layers:
            raise UsageError(
                "This sandbox has written nothing to its rootfs.",
                remedy="Set `rootfs_writable = true`, and install something with `unspill run`.",
            )
        registry = Registry(rootfs_directory(project.means.policy, project.locations))
        while True:
            spec = RootfsSpec(source="kept", version=time.strftime("%Y%m%d.%H%M%S", time.gmtime()), label=label)
            made, is_new = obtain(registry, spec, _Kept(base, layers), install=_install_nothing, report=report)
            if is_new:
                return made
            # Of this very second there is one already, which may hold something else
            time.sleep(_PAUSE_S)


class _Kept:
    """The tree of a base with the layers of one sandbox over it."""

    def __init__(self, base: RootfsBase, layers: dict[bytes, tuple[bytes, ...]]) -> None:
        self._base = base
        self._layers = layers

    def resolve(self, spec: RootfsSpec, means: BuildContext) -> Resolved:
        key = RootfsKey(source=spec.label, version=spec.version, arch=detect_arch())
        return Resolved(key=key, spec=spec)

    def fill(self, resolved: Resolved, tree: bytes, means: BuildContext) -> Filled:
        unreadable = 0
        for top in self._base.directories:
            os.mkdir(tree + top, 0o755)
            source = self._base.tree + top
            unreadable += flatten(source, self._layers.get(source, ()), tree + top)
        for dest, target in self._base.links:
            os.symlink(target, tree + dest)
        left_out = (("unreadable", unreadable),) if unreadable else ()
        return Filled(proof="none", fetched=(("base", self._base.name),), left_out=left_out)


def _install_nothing(tree: bytes, argv: Sequence[bytes], hosts: Sequence[str]) -> Installed:
    raise RootfsError("Nothing is installed into what is kept.")
