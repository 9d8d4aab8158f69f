# SPDX-License-Identifier: Apache-2.0
"""Tells whether a rootfs is ready: from what lies on the disk alone, never by asking anybody.

Ready is one that has a valid manifest of its own name, a tree, and in it a shell; a link to the shell is followed
inside the tree, because `/bin/sh` may be an absolute link to a program that the host does not have.
"""

from __future__ import annotations

import os
import stat

from unspill.host.inside import find_inside
from unspill.model.rootfs import Rootfs
from unspill.policy.rootfs_wish import is_name
from unspill.rootfs import manifest
from unspill.rootfs.layout import DIRECTORY, MANIFEST, TREE, is_trusted, shown

SHELL = b"bin/sh"


class NotReady(Exception):
    """Why a rootfs can't be used."""


def load(roots: bytes, name: str) -> Rootfs:
    """Return the rootfs of this name below `roots`.

    Raises:
        NotReady: there is none, or it is not whole, or others than the caller and root could change it.
    """
    if not is_name(name):
        raise NotReady("this is no name")
    path = os.path.join(roots, name.encode())
    try:
        fd = os.open(path, DIRECTORY)
    except OSError as error:
        raise NotReady(f"it can't be opened: {error.strerror}") from error
    try:
        if not is_trusted(os.fstat(fd)):
            raise NotReady("others could have changed it")
        found = manifest.read(fd, MANIFEST)
        if found.key.name != name:
            raise NotReady(f"its manifest is of {found.key.name[:80]!r}")
        _check_tree(fd)
    except manifest.NoManifest as error:
        raise NotReady(f"its manifest is not valid: {error}") from error
    finally:
        os.close(fd)
    return Rootfs(name=name, tree=os.path.join(path, TREE), manifest=found)


def _check_tree(fd: int) -> None:
    try:
        tree = os.open(TREE, DIRECTORY, dir_fd=fd)
    except OSError as error:
        raise NotReady(f"its tree can't be opened: {error.strerror}") from error
    try:
        if not is_trusted(os.fstat(tree)):
            raise NotReady("others could have changed its tree")
        if not has_shell(tree):
            raise NotReady(f"it has no /{shown(SHELL)}")
    finally:
        os.close(tree)


def has_shell(tree_fd: int) -> bool:
    """Tell whether there is a program at the end of the tree's /bin/sh."""
    found = find_inside(tree_fd, SHELL)
    return found is not None and stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)
