# SPDX-License-Identifier: Apache-2.0
"""Makes a rootfs: in a staging directory, under the lock of its name, and into its place by one rename.

Whoever is killed on the way leaves a staging directory that nobody uses and the next one sweeps. Many may ask for the
same at once: one builds, the others wait and find it ready.
"""

from __future__ import annotations

import os
import time

from unspill.errors import RootfsError, RootfsUnsafe, RootfsUnverified
from unspill.host.rootfs_base import MOST_AT_TOP
from unspill.host.writing import sync_directory, write_whole
from unspill.layers.remove import remove_tree
from unspill.model.rootfs import Progress, RootfsManifest
from unspill.rootfs import manifest as manifests
from unspill.rootfs.digest import tree_digest
from unspill.rootfs.hold import NameLock
from unspill.rootfs.layout import DIRECTORY, DOWNLOADS, MANIFEST, checked_name, failed, make_layout, shown
from unspill.rootfs.matching import find_ready, is_of_digest
from unspill.rootfs.points import make_points
from unspill.rootfs.ready import SHELL, has_shell
from unspill.rootfs.source import Means
from unspill.rootfs.staging import Staging, sweep
from unspill.rootfs.tidy import tidy_tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unspill.model.rootfs import Installed, Rootfs, RootfsWish
    from unspill.rootfs.shelf import Shelf
    from unspill.rootfs.source import Filled, Resolved, Source

    Install = Callable[[bytes, Sequence[bytes], Sequence[str]], Installed]
    Report = Callable[[Progress], None]

# No rootfs is called so: their names begin with a letter or digit
_RESOLVING = "_resolving"


def prepare(shelf: Shelf, wish: RootfsWish, source: Source, *, install: Install, report: Report) -> Rootfs:
    """Return a rootfs that meets a wish; where none is ready it is made.

    Nobody is asked where one is ready: what is newer elsewhere is the business of `upgrade`.

    Raises:
        RootfsError: it can't be had; nothing half-built is left in use.
    """
    found = find_ready(wish, shelf.list())
    if found is not None:
        _use_first(shelf, found)
        return found
    made, _is_new = obtain(shelf, wish, source, install=install, report=report)
    return made


def obtain(shelf: Shelf, wish: RootfsWish, source: Source, *, install: Install, report: Report) -> tuple[Rootfs, bool]:
    """Ask the source which rootfs a wish means now, and return that one, made if need be, and whether it was.

    Raises:
        RootfsError: it can't be had; nothing half-built is left in use.
    """
    make_layout(shelf.directory)
    try:
        resolved = _resolve(shelf, wish, source, install, report)
        name = checked_name(resolved.key.name)
        found = _find_ready(shelf, name, resolved)
        if found is not None:
            _use_first(shelf, found)
            return found, False
        lock = NameLock(shelf.directory, name)
        lock.acquire(lambda: report(Progress(step="waiting: another process makes it")))
        with lock:
            found = _find_ready(shelf, name, resolved)
            if found is not None:
                return found, False
            sweep(shelf.directory, name)
            with Staging(shelf.directory, name) as staging:
                return _build(shelf, staging, wish, resolved, source, install, report), True
    except OSError as error:
        raise failed(error, shelf.directory) from error


def _find_ready(shelf: Shelf, name: str, resolved: Resolved) -> Rootfs | None:
    """Return the rootfs if it is ready.

    Raises:
        RootfsUnverified: it is, but was made from something else than what is pinned now, or offered under its name.
    """
    found = shelf.get(name)
    if found is None or found.manifest is None:
        return found
    for sha256 in (resolved.wish.sha256, resolved.sha256):
        if not is_of_digest(found.manifest, sha256):
            old = ", ".join(digest.removeprefix("sha256:") for _, digest in found.manifest.fetched[:1]) or "none"
            raise RootfsUnverified(
                f"{name} is there already, but made from something else than what has the digest {sha256}: "
                f"it was {old}",
                remedy=f"Find out which of both is right; `unspill rootfs remove {name}` makes room for the other one.",
            )
    return found


def _use_first(shelf: Shelf, found: Rootfs) -> None:
    """Make it the current one if there is none: whoever made it may have died before."""
    if shelf.current() is None:
        try:
            shelf.use_first(found.name)
        except RootfsError:
            # Where the directory can only be read, it is used by its name
            return


def _build(
    shelf: Shelf,
    staging: Staging,
    wish: RootfsWish,
    resolved: Resolved,
    source: Source,
    install: Install,
    report: Report,
) -> Rootfs:
    """Fill a staging directory and make it the rootfs."""
    from unspill.host.libc import syncfs

    name = resolved.key.name
    filled = source.fill(resolved, staging.tree, _means(shelf, staging, install, report))
    report(Progress(step="checking"))
    taken = tidy_tree(staging.tree)
    _finish_tree(staging.tree, name)
    manifest = _describe(staging.tree, wish, resolved, filled, taken)
    remove_tree(staging.scratch)
    _write_manifest(staging.fd, manifests.to_content(manifest))
    os.fchmod(staging.fd, 0o755)
    # Once for all of it: each file by itself would take longer. Before the rename, which says that all is there
    syncfs(staging.fd)
    shelf.set_aside(name)
    os.rename(staging.path, os.path.join(shelf.roots, name.encode()))
    sync_directory(shelf.roots)
    shelf.use_first(name)
    made = shelf.get(name)
    if made is None:
        raise RootfsUnsafe(f"{name} was made, but is not ready: {dict(shelf.damaged()).get(name)}")
    return made


def _finish_tree(tree: bytes, name: str) -> None:
    fd = os.open(tree, DIRECTORY)
    try:
        if not has_shell(fd):
            raise RootfsUnsafe(
                f"{name} would have no /{shown(SHELL)}", remedy="This is no root file system, or not all of one."
            )
        make_points(tree)
        if len(os.listdir(fd)) > MOST_AT_TOP:
            raise RootfsUnsafe(
                f"{name} would have more than {MOST_AT_TOP} entries at its top, so no run could use it",
                remedy="This is no root file system: one has some twenty directories there.",
            )
    finally:
        os.close(fd)


def _describe(
    tree: bytes, wish: RootfsWish, resolved: Resolved, filled: Filled, taken: tuple[tuple[str, int], ...]
) -> RootfsManifest:
    digest, entries, size_bytes = tree_digest(tree)
    left_out = dict(filled.left_out)
    for kind, count in taken:
        left_out[kind] = left_out.get(kind, 0) + count
    return RootfsManifest(
        key=resolved.key,
        wish=wish,
        proof=filled.proof,
        packages=filled.packages,
        fetched=filled.fetched,
        left_out=tuple(sorted(left_out.items())),
        tree=digest,
        entries=entries,
        size_bytes=size_bytes,
        created_ns=time.time_ns(),
    )


def _write_manifest(dir_fd: int, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(MANIFEST, flags, 0o644, dir_fd=dir_fd)
    try:
        os.fchmod(fd, 0o644)
        write_whole(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)


def _resolve(shelf: Shelf, wish: RootfsWish, source: Source, install: Install, report: Report) -> Resolved:
    sweep(shelf.directory, _RESOLVING)
    report(Progress(step="resolving"))
    with Staging(shelf.directory, _RESOLVING) as staging:
        return source.resolve(wish, _means(shelf, staging, install, report))


def _means(shelf: Shelf, staging: Staging, install: Install, report: Report) -> Means:
    downloads = os.path.join(shelf.directory, DOWNLOADS)
    return Means(downloads=downloads, scratch=staging.scratch, install=install, report=report)
