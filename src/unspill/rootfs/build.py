# SPDX-License-Identifier: Apache-2.0
"""Makes a rootfs: in a staging directory, under the lock of its name, and into its place by one rename.

Whoever is killed on the way leaves a staging directory that nobody uses and the next one sweeps. Many may ask for the
same at once: one builds, the others wait and find it ready. What a source filled in is made harmless first, and gets
the mount points that a read-only tree must have; one digest over the whole tree is what `verify` compares later.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from hashlib import sha256

from unspill.errors import RootfsError, RootfsUnsafe, RootfsUnverified
from unspill.host.dirfd import sync_directory, write_whole
from unspill.host.libc import syncfs
from unspill.layers.trees import remove_tree
from unspill.model.rootfs import PROOFS, Progress, RootfsManifest
from unspill.policy.paths import show
from unspill.rootfs.layout import (
    DIRECTORY,
    DOWNLOADS,
    MANIFEST,
    MOST_AT_TOP,
    TOP_REMEDY,
    Hold,
    NameLock,
    Staging,
    checked_name,
    failed,
    make_layout,
    sweep,
)
from unspill.rootfs.registry import SHELL, find_ready, has_shell, is_of_digest, is_older, newest, to_content
from unspill.rootfs.source import BuildContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unspill.model.rootfs import Installed, Proof, Rootfs, RootfsSpec
    from unspill.rootfs.registry import Registry
    from unspill.rootfs.source import Filled, Resolved, Source

    Install = Callable[[bytes, Sequence[bytes], Sequence[str]], Installed]
    Report = Callable[[Progress], None]


# No rootfs is called so: their names begin with a letter or digit
_RESOLVING = "_resolving"
POINTS = (b"workspace", b"tmp", b"proc", b"dev", b"run", b"var/tmp", b"sys", b"playground")
RESOLV_CONF = b"etc/resolv.conf"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# As a lower directory of an overlay a tree is read by its marks: one makes a directory hide those below it, one leads
# elsewhere, so that a sandbox would see something else than the digest was taken of
_UNSAFE = ("user.overlay.", "trusted.")
_GIVEN = ("user.", "trusted.", "system.posix_acl_")
# A program with it has rights that its caller does not have
_CAPABILITY = "security.capability"
_NONE = (errno.ENOTSUP, errno.ENOSYS)
DEEPEST = 256
_START = b"unspill tree 1\n"
_AT_ONCE = 1 << 20
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_HANDLE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_SETID = stat.S_ISUID | stat.S_ISGID


def prepare(registry: Registry, spec: RootfsSpec, source: Source, *, install: Install, report: Report) -> Rootfs:
    """Return a rootfs that meets a spec; where none is ready it is made.

    Nobody is asked where one is ready: what is newer elsewhere is the business of `upgrade`.

    Raises:
        RootfsError: it can't be had; nothing half-built is left in use.
    """
    found = find_ready(spec, registry.list())
    if found is not None:
        _use_first(registry, found)
        return found
    made, _is_new = obtain(registry, spec, source, install=install, report=report)
    return made


def obtain(
    registry: Registry,
    spec: RootfsSpec,
    source: Source,
    *,
    install: Install,
    report: Report,
    old: Rootfs | None = None,
) -> tuple[Rootfs, bool]:
    """Ask the source which rootfs a spec means now, and return that one, made if need be, and whether it was.

    Raises:
        RootfsUnverified: it is older than `old`; nothing is made.
        RootfsError: it can't be had; nothing half-built is left in use.
    """
    make_layout(registry.directory)
    try:
        resolved = _resolve(registry, spec, source, install, report)
        if old is not None:
            _check_not_older(resolved, old)
        name = checked_name(resolved.key.name)
        found = _get_ready(registry, name, resolved)
        if found is not None:
            _use_first(registry, found)
            return found, False
        lock = NameLock(registry.directory, name)
        lock.acquire(lambda: report(Progress(step="waiting for another process that makes it")))
        with lock:
            found = _get_ready(registry, name, resolved)
            if found is not None:
                return found, False
            sweep(registry.directory, name)
            with Staging(registry.directory, name) as staging:
                return _build(registry, staging, spec, resolved, source, install, report), True
    except OSError as error:
        raise failed(error, registry.directory) from error


def upgrade(registry: Registry, old: Rootfs, source: Source, *, install: Install, report: Report) -> Rootfs:
    """Return the rootfs that the spec of an old one means now, which may be the old one itself.

    A spec that pins a version or a digest still does. If the old one was the current one, the new one is then.

    Raises:
        RootfsUnverified: what the source offers now is older; nothing is made, and the old one stays in use.
        RootfsError: it can't be had, or nobody knows what the old one was made from; the old one is as it was.
    """
    if old.manifest is None:
        raise RootfsError(f"{old.name} was made by hand", remedy="Make a new one the same way as before.")
    new, _is_new = obtain(registry, old.manifest.spec, source, install=install, report=report, old=old)
    if new.name != old.name:
        if newest((old, new)) is not new:
            raise RootfsUnverified(
                f"The source of {old.name} now offers {new.name}, which is older; {old.name} stays",
                remedy=f"Ask the source why. To go back to the older one: `unspill rootfs use {new.name}`.",
            )
        registry.use_instead(old.name, new.name)
    return new


def verify(rootfs: Rootfs) -> Proof:
    """Read the whole tree, compare its digest with the manifest's, and return which proof its content had.

    Raises:
        RootfsUnverified: it has changed, or was made by hand.
        RootfsError: it can't be read, or has gone.
    """
    if rootfs.manifest is None:
        raise RootfsUnverified(f"{rootfs.name} was made by hand, so there is nothing to compare it with")
    with Hold(rootfs):
        try:
            digest, _entries, _size = tree_digest(rootfs.tree)
        except OSError as error:
            where = show(os.fsencode(error.filename)) if error.filename is not None else rootfs.name
            raise RootfsError(
                f"{rootfs.name} can't be read: {where}: {error.strerror}", remedy="Verify it as its owner."
            ) from error
    if digest != rootfs.manifest.tree:
        raise RootfsUnverified(
            f"{rootfs.name} has changed since it was made; its proof was {PROOFS[rootfs.manifest.proof]}",
            remedy=f"Don't use it. Remove it with `unspill rootfs remove --force {rootfs.name}`, then fetch it again.",
        )
    return rootfs.manifest.proof


def _check_not_older(resolved: Resolved, old: Rootfs) -> None:
    version = resolved.key.version
    if old.manifest is not None and is_older(version, old.manifest.key.version):
        raise RootfsUnverified(
            f"The newest version on offer is {version}, which is older than {old.name}; {old.name} stays",
            remedy=f"Try another mirror. If you want the older one: `unspill rootfs pull {old.manifest.key.source} "
            f"--version {resolved.spec.version or version}`, and `unspill rootfs use` with its name.",
        )


def _get_ready(registry: Registry, name: str, resolved: Resolved) -> Rootfs | None:
    """Return the rootfs if it is ready.

    Raises:
        RootfsUnverified: it is, but was made from something else than what is pinned now, or offered under its name.
    """
    found = registry.get(name)
    if found is None or found.manifest is None:
        return found
    for wanted in (resolved.spec.sha256, resolved.sha256):
        if not is_of_digest(found.manifest, wanted):
            old = ", ".join(digest.removeprefix("sha256:") for _, digest in found.manifest.fetched[:1]) or "none"
            raise RootfsUnverified(
                f"{name} already exists, but was made from something else: its digest is {old}, not {wanted}",
                remedy=f"Find out which of the two is right. To replace it: `unspill rootfs remove {name}`.",
            )
    return found


def _use_first(registry: Registry, found: Rootfs) -> None:
    """Make it the current one if there is none: whoever made it may have died before."""
    if registry.current() is None:
        try:
            registry.use_first(found.name)
        except RootfsError:
            # Where the directory can only be read, it is used by its name
            return


def _build(
    registry: Registry,
    staging: Staging,
    spec: RootfsSpec,
    resolved: Resolved,
    source: Source,
    install: Install,
    report: Report,
) -> Rootfs:
    """Fill a staging directory and make it the rootfs."""
    name = resolved.key.name
    filled = source.fill(resolved, staging.tree, _means(registry, staging, install, report))
    report(Progress(step="checking"))
    taken = tidy_tree(staging.tree)
    _finish_tree(staging.tree, name)
    manifest = _describe(staging.tree, spec, resolved, filled, taken)
    remove_tree(staging.scratch)
    _write_manifest(staging.fd, to_content(manifest))
    os.fchmod(staging.fd, 0o755)
    # Once for all of it: each file by itself would take longer. Before the rename, which says that all is there
    syncfs(staging.fd)
    registry.set_aside(name)
    os.rename(staging.path, os.path.join(registry.roots, name.encode()))
    sync_directory(registry.roots)
    registry.use_first(name)
    made = registry.get(name)
    if made is None:
        raise RootfsUnsafe(f"{name} was made, but is not ready: {dict(registry.damaged()).get(name)}")
    return made


def _finish_tree(tree: bytes, name: str) -> None:
    fd = os.open(tree, DIRECTORY)
    try:
        if not has_shell(fd):
            raise RootfsUnsafe(
                f"{name} would have no /{show(SHELL)}", remedy="This is not a complete root file system."
            )
        make_points(tree)
        if len(os.listdir(fd)) > MOST_AT_TOP:
            raise RootfsUnsafe(
                f"{name} would have more than {MOST_AT_TOP} entries at its top, so no run could use it",
                remedy=TOP_REMEDY,
            )
    finally:
        os.close(fd)


def _describe(
    tree: bytes, spec: RootfsSpec, resolved: Resolved, filled: Filled, taken: tuple[tuple[str, int], ...]
) -> RootfsManifest:
    digest, entries, size_bytes = tree_digest(tree)
    left_out = dict(filled.left_out)
    for kind, count in taken:
        left_out[kind] = left_out.get(kind, 0) + count
    return RootfsManifest(
        key=resolved.key,
        spec=spec,
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
    fd = os.open(MANIFEST, _NEW_FILE, 0o644, dir_fd=dir_fd)
    try:
        os.fchmod(fd, 0o644)
        write_whole(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)


def _resolve(registry: Registry, spec: RootfsSpec, source: Source, install: Install, report: Report) -> Resolved:
    sweep(registry.directory, _RESOLVING)
    report(Progress(step="resolving"))
    with Staging(registry.directory, _RESOLVING) as staging:
        return source.resolve(spec, _means(registry, staging, install, report))


def _means(registry: Registry, staging: Staging, install: Install, report: Report) -> BuildContext:
    downloads = os.path.join(registry.directory, DOWNLOADS)
    return BuildContext(downloads=downloads, scratch=staging.scratch, install=install, report=report)


def tidy_tree(tree: bytes) -> tuple[tuple[str, int], ...]:
    """Make all of it readable by its owner, take away what may not be in it; return what was taken, by kind.

    Directories and files keep their modes but for setuid and setgid bits and others' right to write. Devices, fifos
    and sockets go: in the lower directory of an overlay some devices even hide things.

    Raises:
        RootfsUnsafe: it is deeper than any real one.
        OSError: something resists.
    """
    taken: dict[str, int] = {}
    _strip(tree, os.lstat(tree).st_mode, taken)
    _set_mode(tree, None, os.lstat(tree).st_mode, 0o500, taken)
    fd = os.open(tree, DIRECTORY)
    try:
        _tidy(fd, 0, taken)
    finally:
        os.close(fd)
    return tuple(sorted(taken.items()))


def _tidy(fd: int, depth: int, taken: dict[str, int]) -> None:
    if depth > DEEPEST:
        raise RootfsUnsafe(f"It is more than {DEEPEST} directories deep")
    with os.scandir(fd) as found:
        entries = list(found)
    for entry in entries:
        name = os.fsencode(entry.name)
        mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
        _strip(b"/proc/self/fd/%d/%s" % (fd, name), mode, taken)
        if stat.S_ISLNK(mode):
            continue
        if stat.S_ISDIR(mode):
            _set_mode(name, fd, mode, 0o500, taken)
            inner = os.open(name, DIRECTORY, dir_fd=fd)
            try:
                _tidy(inner, depth + 1, taken)
            finally:
                os.close(inner)
        elif stat.S_ISREG(mode):
            _set_mode(name, fd, mode, 0o400, taken)
        else:
            _take_away(name, fd, mode, taken)


def _strip(path: bytes, mode: int, taken: dict[str, int]) -> None:
    """Remove the extended attributes of an entry; those that the host's own security module gives stay."""
    names = [name for name in list_attributes(path) if is_removable(name)]
    if not names:
        return
    try:
        _remove_attributes(path, names)
    except PermissionError:
        # Those of users need the right to write
        if stat.S_ISLNK(mode):
            raise
        os.chmod(path, stat.S_IMODE(mode) | 0o600)
        try:
            _remove_attributes(path, names)
        finally:
            os.chmod(path, stat.S_IMODE(mode))
    taken["xattr"] = taken.get("xattr", 0) + 1


def _remove_attributes(path: bytes, names: list[str]) -> None:
    for name in names:
        try:
            os.removexattr(path, name, follow_symlinks=False)
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise


def _set_mode(name: bytes, fd: int | None, mode: int, owner: int, taken: dict[str, int]) -> None:
    old = stat.S_IMODE(mode)
    new = (old | owner) & ~(_SETID | stat.S_IWGRP | stat.S_IWOTH)
    if new == old:
        return
    # chmod by name follows links; the kernel's link to a descriptor leads to that very entry
    handle = os.open(name, _HANDLE, dir_fd=fd)
    try:
        os.chmod(b"/proc/self/fd/%d" % handle, new)
    finally:
        os.close(handle)
    if old & _SETID and stat.S_ISREG(mode):
        taken["setuid"] = taken.get("setuid", 0) + 1


def _take_away(name: bytes, fd: int, mode: int, taken: dict[str, int]) -> None:
    kind = "fifo" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
    change_within(fd, lambda: os.unlink(name, dir_fd=fd))
    taken[kind] = taken.get(kind, 0) + 1


def change_within(fd: int, change: Callable[[], object]) -> None:
    """Change entries of an open directory of ours, which its owner may be forbidden; its mode stays what it is."""
    try:
        change()
    except PermissionError:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        os.fchmod(fd, mode | 0o700)
        try:
            change()
        finally:
            os.fchmod(fd, mode)


def make_points(tree: bytes) -> None:
    """Make what is missing of the usual mount points.

    Raises:
        OSError: it can't be made.
    """
    top = os.open(tree, DIRECTORY)
    try:
        for point in POINTS:
            parent, _, name = point.rpartition(b"/")
            _within(top, parent, name, _make_directory)
        parent, _, name = RESOLV_CONF.rpartition(b"/")
        _within(top, parent, name, _make_file)
    finally:
        os.close(top)


def _within(top: int, parent: bytes, name: bytes, make: Callable[[int, bytes], None]) -> None:
    """Make an entry of the top or of a directory at the top; where that is a link or a file, nothing."""
    if not parent:
        make(top, name)
        return
    _make_directory(top, parent)
    try:
        fd = os.open(parent, DIRECTORY, dir_fd=top)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            return
        raise
    try:
        make(fd, name)
    finally:
        os.close(fd)


def _find_mode(fd: int, name: bytes) -> int | None:
    """Return the mode of an entry, None where there is nothing."""
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None


def _make_directory(fd: int, name: bytes) -> None:
    if _find_mode(fd, name) is None:
        change_within(fd, lambda: os.mkdir(name, 0o755, dir_fd=fd))
        # Not the umask's choice
        os.chmod(name, 0o755, dir_fd=fd)


def _make_file(fd: int, name: bytes) -> None:
    mode = _find_mode(fd, name)
    if mode is not None and stat.S_ISLNK(mode):
        change_within(fd, lambda: os.unlink(name, dir_fd=fd))
    elif mode is not None:
        return
    change_within(fd, lambda: os.close(os.open(name, _NEW_FILE, 0o644, dir_fd=fd)))


def tree_digest(tree: bytes) -> tuple[str, int, int]:
    """Return a tree's digest, how many entries it has, and the bytes of its files.

    Raises:
        RootfsUnsafe: it is deeper than any real one, or has extended attributes that change what it contains.
        RootfsUnverified: a file changed while unspill read it.
        OSError: something in it can't be read.
    """
    hashed = sha256(_START)
    reading = _TreeWalk(hashed.update, tree)
    fd = os.open(tree, DIRECTORY)
    try:
        hashed.update(b"%o\n" % stat.S_IMODE(os.fstat(fd).st_mode))
        reading.directory(fd, 0)
    finally:
        os.close(fd)
    return hashed.hexdigest(), reading.entries, reading.size_bytes


class _TreeWalk:
    """A walk through a tree that gives everything it finds to `take`."""

    def __init__(self, take: Callable[[bytes], None], tree: bytes) -> None:
        self._take = take
        self._tree = tree
        self.entries = 0
        self.size_bytes = 0

    def directory(self, fd: int, depth: int) -> None:
        """Give all entries of a directory, and then its end."""
        self._check_attributes(fd, b"")
        if depth > DEEPEST:
            raise RootfsUnsafe(f"The tree {show(self._tree)} is more than {DEEPEST} directories deep")
        with os.scandir(fd) as found:
            entries = sorted((os.fsencode(entry.name), entry) for entry in found)
        self.entries += len(entries)
        for name, entry in entries:
            if entry.is_symlink():
                target = os.readlink(name, dir_fd=fd)
                self._check_attributes(fd, name)
                self._take(b"l%d:%s%d:%s" % (len(name), name, len(target), target))
            elif entry.is_dir(follow_symlinks=False):
                self._below(fd, name, depth)
            elif entry.is_file(follow_symlinks=False):
                self._file(fd, name)
            else:
                self._other(fd, name)
        self._take(b"e")

    def _below(self, fd: int, name: bytes, depth: int) -> None:
        inner = os.open(name, DIRECTORY, dir_fd=fd)
        try:
            mode = stat.S_IMODE(os.fstat(inner).st_mode)
            self._take(b"d%d:%s%o:" % (len(name), name, mode))
            self.directory(inner, depth + 1)
        finally:
            os.close(inner)

    def _file(self, fd: int, name: bytes) -> None:
        inner = os.open(name, _FILE, dir_fd=fd)
        try:
            self._check_attributes(inner, b"")
            found = os.fstat(inner)
            size = found.st_size
            head = b"f%d:%s%o:%d:" % (len(name), name, stat.S_IMODE(found.st_mode), size)
            # One byte more than there is: where fewer come, that was the end
            asked, done, block = min(size + 1, _AT_ONCE), 0, head
            while block and done <= size:
                block = os.read(inner, asked)
                self._take(head + block if not done else block)
                done += len(block)
                if done == size and len(block) < asked:
                    break
        finally:
            os.close(inner)
        if done != size:
            raise RootfsUnverified(f"{show(name)} in {show(self._tree)} changed while unspill read it")
        self.size_bytes += size

    def _check_attributes(self, fd: int, name: bytes) -> None:
        """Refuse what makes an entry other than it looks: of a descriptor, or of a link in that directory."""
        found = list_attributes(b"/proc/self/fd/%d/%s" % (fd, name) if name else fd)
        if any(map(is_unsafe, found)):
            raise RootfsUnsafe(
                f"The tree {show(self._tree)} has extended attributes that change what it contains",
                remedy="Don't use it. Remove it, then make it again.",
            )

    def _other(self, fd: int, name: bytes) -> None:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        self._take(b"o%d:%s%o:%d:" % (len(name), name, found.st_mode, found.st_rdev))


def list_attributes(path: bytes | int) -> list[str]:
    """Return the names of an entry's extended attributes; a link at the end of a path is not followed.

    Raises:
        OSError: they can't be listed, though there could be some.
    """
    try:
        return os.listxattr(path, follow_symlinks=isinstance(path, int))
    except OSError as error:
        if error.errno in _NONE:
            return []
        raise


def is_removable(name: str) -> bool:
    """Tell whether somebody gave an attribute, and not the host's own security module."""
    return name == _CAPABILITY or name.startswith(_GIVEN)


def is_unsafe(name: str) -> bool:
    """Tell whether an attribute makes a tree other than it looks."""
    return name == _CAPABILITY or name.startswith(_UNSAFE)
