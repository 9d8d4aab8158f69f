# SPDX-License-Identifier: Apache-2.0
"""A small real source for the tests of the registry: a tree of a few files, and a count of how often it was made."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from unspill.model.rootfs import Installed, Progress, Rootfs, RootfsKey, RootfsSpec
from unspill.rootfs.build import prepare
from unspill.rootfs.registry import Registry
from unspill.rootfs.source import BuildContext, Filled, Resolved

SPEC = RootfsSpec(source="alpine")


def fill_small(tree: Path) -> None:
    """Make a tree as small as one can be: its shell is an absolute link, as Alpine's is."""
    (tree / "bin").mkdir()
    (tree / "bin" / "busybox").write_text("#!/bin/true\n")
    (tree / "bin" / "busybox").chmod(0o755)
    (tree / "bin" / "sh").symlink_to("/bin/busybox")
    (tree / "etc").mkdir()
    (tree / "etc" / "release").write_text("small\n")


class SmallSource:
    """A source that knows one version; `made` is how many trees it made, `asked` how often it was asked for news."""

    def __init__(self, version: str = "1.0", fill: Callable[[Path], None] = fill_small) -> None:
        self.version = version
        self.made = 0
        self.asked = 0
        self._fill = fill

    def resolve(self, spec: RootfsSpec, means: BuildContext) -> Resolved:
        """Name the one version."""
        self.asked += 1
        assert os.path.isdir(means.scratch)
        key = RootfsKey(
            source=spec.label or spec.source,
            version=spec.version or self.version,
            arch=spec.arch or os.uname().machine,
            tier=spec.tier,
        )
        return Resolved(key=key, spec=spec, proof="known")

    def fill(self, resolved: Resolved, tree: bytes, means: BuildContext) -> Filled:
        """Make the tree, and some rubbish beside it."""
        self.made += 1
        assert os.listdir(tree) == []
        Path(os.fsdecode(means.scratch), "rubbish").write_text("x")
        self._fill(Path(os.fsdecode(tree)))
        return Filled(
            proof=resolved.proof,
            packages=(("busybox", "1.0"),),
            fetched=(("small.tar", "ab" * 32),),
            left_out=(("device", 2),),
        )


def no_install(_tree: bytes, _argv: Sequence[bytes], _hosts: Sequence[str]) -> Installed:
    """Refuse to install anything."""
    raise AssertionError("nothing is installed here")


def silent(_progress: Progress) -> None:
    """Tell nobody."""


def make(registry: Registry, source: SmallSource | None = None, spec: RootfsSpec = SPEC) -> Rootfs:
    """Prepare a rootfs."""
    return prepare(registry, spec, source or SmallSource(), install=no_install, report=silent)


def left_over(registry: Registry) -> list[bytes]:
    """Return what lies in the staging directory."""
    return sorted(os.listdir(os.path.join(registry.directory, b"staging")))
