# SPDX-License-Identifier: Apache-2.0
"""All rootfs below one directory: which are ready, which one is in use, which one meets a spec, and how one goes.

Whether one is ready is told from what lies on the disk alone. Reading works where the directory can only be read. A
rootfs never changes here: it appears whole (`build`), and it goes whole, when no run uses it. On the path of each run
in a rootfs.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat

from unspill.errors import RootfsError, RootfsUnverified
from unspill.host.dirfd import find_inside, sync_directory
from unspill.layers.trees import remove_tree
from unspill.model.rootfs import PROOFS, Rootfs, RootfsKey, RootfsManifest, RootfsSpec
from unspill.policy.config import is_rootfs_name
from unspill.policy.paths import show
from unspill.rootfs.layout import (
    CURRENT,
    DIRECTORY,
    DOWNLOADS,
    MANIFEST,
    ROOTS,
    STAGING,
    TREE,
    Hold,
    NameLock,
    check_all_trusted,
    check_trusted,
    failed,
    is_directory,
    is_trusted,
    make_layout,
    staging_path,
    sweep,
    take,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import Any

MANIFEST_VERSION = 1
LARGEST_MANIFEST = 4 << 20
_SOURCES = ("alpine", "debian", "archive", "oci", "kept")
_KIND = re.compile("[a-z-]{1,32}")
_DIGEST = re.compile("[0-9a-f]{64}")
# What a manifest looks like on disk, where the spec is called `wish`: [x] is a list of x, (x, y) a pair
_SHAPE = {
    "version": int,
    "key": dict.fromkeys(("source", "version", "arch", "variant"), str) | {"tier": int},
    "wish": dict.fromkeys(("source", "version", "arch", "mirror", "location", "sha256", "label"), str)
    | {"tier": int, "packages": [str]},
    "proof": str,
    "packages": [(str, str)],
    "fetched": [(str, str)],
    "left_out": [(str, int)],
    "tree": str,
    "entries": int,
    "size_bytes": int,
    "created_ns": int,
}
SHELL = b"bin/sh"
_PROVEN = ("pinned", "known", "signed")
_DISK_BLOCK = 512
_ENDINGS = (b".part", b".state")
_LOCK_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
# No rootfs is called so: their names begin with a letter or digit
CURRENT_LOCK = "_current"


class NotReady(Exception):
    """Why a rootfs can't be used."""


def to_content(manifest: RootfsManifest) -> bytes:
    """Return the content of a manifest's file."""
    fields = manifest.as_dict() | {"key": manifest.key.as_dict(), "wish": manifest.spec.as_dict()}
    del fields["spec"]
    content = json.dumps({"version": MANIFEST_VERSION, **fields}, indent=1).encode("ascii") + b"\n"
    if len(content) > LARGEST_MANIFEST:
        raise RootfsUnverified("The list of packages is too long to be right", remedy="Ask for fewer packages.")
    return content


def parse_manifest(content: bytes) -> RootfsManifest:
    """Return what a manifest's file says; a field that is missing, unknown, twice there or of another type spoils it.

    Raises:
        NotReady: it is not whole, of another version, or says something that no manifest says.
    """
    try:
        if len(content) > LARGEST_MANIFEST:
            raise ValueError("it is too large")
        top = json.loads(content.decode(), object_pairs_hook=unique_fields)
        if not isinstance(top, dict) or top.get("version") != MANIFEST_VERSION:
            raise ValueError(f"it is not of version {MANIFEST_VERSION}")
        found = _typed(top, _SHAPE, "it")
        _check_words(found)
    except (ValueError, RecursionError) as error:
        raise NotReady(f"its manifest is not valid: {str(error)[:200]}") from error
    del found["version"]
    key, spec = RootfsKey(**found.pop("key")), RootfsSpec(**found.pop("wish"))
    return RootfsManifest(key=key, spec=spec, **found)


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a JSON object, none of which is there twice: readers would disagree about it."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a field twice")
    return found


def _typed(value: Any, shape: Any, name: str) -> Any:
    """Return a value that has a shape, lists as tuples."""
    match shape:
        case dict() if isinstance(value, dict) and value.keys() == shape.keys():
            return {field: _typed(value[field], shape[field], field) for field in shape}
        case [each] if isinstance(shape, list) and isinstance(value, list):
            return tuple(_typed(one, each, name) for one in value)
        case (_, _) if isinstance(value, list) and len(value) == 2:
            return tuple(_typed(one, each, name) for one, each in zip(value, shape, strict=True))
        case _ if type(value) is shape and (shape is str or 0 <= value < 1 << 63):
            return value
    raise ValueError(f"{name} is not what it should be")


def _check_words(found: dict[str, Any]) -> None:
    if found["proof"] not in PROOFS or found["wish"]["source"] not in _SOURCES:
        raise ValueError("its source or proof is unknown")
    # They are shown to people
    if not _DIGEST.fullmatch(found["tree"]) or not all(map(_KIND.fullmatch, dict(found["left_out"]))):
        raise ValueError("it has a field that no manifest has")


def read_manifest(dir_fd: int, name: bytes) -> RootfsManifest:
    """Return what the manifest in an open directory says.

    Raises:
        NotReady: there is none, or none that is valid.
    """
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=dir_fd)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise NotReady("its manifest is not a file")
            return parse_manifest(file.read(LARGEST_MANIFEST + 1))
    except OSError as error:
        raise NotReady(f"its manifest can't be read: {error.strerror}") from error


def load_ready(roots: bytes, name: str) -> Rootfs:
    """Return the rootfs of this name below `roots`.

    Raises:
        NotReady: there is none, or it is not whole, or others than the caller and root could change it.
    """
    if not is_rootfs_name(name):
        raise NotReady("this is not a valid name")
    path = os.path.join(roots, name.encode())
    try:
        fd = os.open(path, DIRECTORY)
    except OSError as error:
        raise NotReady(f"it can't be opened: {error.strerror}") from error
    try:
        if not is_trusted(os.fstat(fd)):
            raise NotReady("others could have changed it")
        found = read_manifest(fd, MANIFEST)
        if found.key.name != name:
            raise NotReady(f"its manifest belongs to {found.key.name[:80]!r}")
        _check_tree(fd)
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
            raise NotReady(f"it has no /{show(SHELL)}")
    finally:
        os.close(tree)


def has_shell(tree_fd: int) -> bool:
    """Tell whether there is a program at the end of the tree's /bin/sh."""
    found = find_inside(tree_fd, SHELL)
    return found is not None and stat.S_ISREG(found.st_mode) and bool(found.st_mode & 0o111)


def line_of(rootfs: Rootfs) -> tuple[str, str, int, str]:
    """Return what a rootfs has in common with those that it replaces: all of its key but the version."""
    if rootfs.manifest is None:
        return rootfs.name, "", 0, ""
    key = rootfs.manifest.key
    return key.source, key.arch, key.tier, key.variant


def newest(several: Sequence[Rootfs]) -> Rootfs:
    """Return the newest of some rootfs of one line; there must be one."""
    versions = {found.name: _numbers(found.manifest.key.version if found.manifest else "") for found in several}
    is_numbered = len({word for word, _ in versions.values()}) == 1 and all(numbers for _, numbers in versions.values())
    return max(several, key=lambda found: (versions[found.name][1] if is_numbered else (), _made(found), found.name))


def is_older(version: str, than: str) -> bool:
    """Tell whether a version is surely older than another one: both are numbers, after the same word if any."""
    (word, numbers), (other, others) = _numbers(version), _numbers(than)
    return word == other and bool(numbers) and numbers < others


def _numbers(version: str) -> tuple[str, tuple[int, ...]]:
    """Return the word that a version begins with, and its numbers; none where it is not of numbers and dots then."""
    first, _, rest = version.partition(".")
    word = "" if _is_number(first) else first
    parts = rest.split(".") if word else version.split(".")
    return word, tuple(map(int, parts)) if all(map(_is_number, parts)) else ()


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 9


def _made(rootfs: Rootfs) -> int:
    return rootfs.manifest.created_ns if rootfs.manifest is not None else 0


def find_ready(spec: RootfsSpec, ready: Iterable[Rootfs]) -> Rootfs | None:
    """Return the newest that meets a spec, None where it has to be resolved.

    What lies on this disk is always looked at: at the same place there may be another archive by now.
    """
    if spec.location and os.path.exists(spec.location):
        return None
    several = [found for found in ready if found.manifest is not None and meets(found.manifest, spec)]
    return newest(several) if several else None


def meets(manifest: RootfsManifest, spec: RootfsSpec) -> bool:
    """Tell whether a rootfs is what a spec asks for."""
    made = manifest.spec
    return (
        (made.source, made.label, made.location, made.tier) == (spec.source, spec.label, spec.location, spec.tier)
        and set(made.packages) == set(spec.packages)
        and _meets_version(manifest, spec.version)
        and _meets_arch(manifest, spec.arch)
        and is_of_digest(manifest, spec.sha256)
        and _meets_mirror(manifest, spec)
    )


def is_of_digest(manifest: RootfsManifest, sha256: str) -> bool:
    """Tell whether a rootfs was made from what has this digest, if one is pinned."""
    return not sha256 or sha256.lower() in {digest.lower().removeprefix("sha256:") for _, digest in manifest.fetched}


def _meets_mirror(manifest: RootfsManifest, spec: RootfsSpec) -> bool:
    """Tell whether the mirror is the same, or does not matter: what one said of itself stands for no other."""
    is_proven = manifest.proof in _PROVEN or bool(spec.sha256)
    return is_proven or manifest.spec.mirror.rstrip("/") == spec.mirror.rstrip("/")


def _meets_version(manifest: RootfsManifest, version: str) -> bool:
    known = (manifest.key.version, manifest.spec.version)
    return not version or version in known or manifest.key.version.startswith(f"{version}.")


def _meets_arch(manifest: RootfsManifest, arch: str) -> bool:
    if arch:
        return arch in (manifest.key.arch, manifest.spec.arch)
    return not manifest.spec.arch or manifest.key.arch == os.uname().machine


def measure_downloads(directory: bytes) -> int:
    """Return how many bytes of the disk they take."""
    return _disk_bytes(os.path.join(directory, DOWNLOADS))


def empty_downloads(directory: bytes) -> int:
    """Remove them; return how many bytes of the disk that gave back.

    Raises:
        RootfsUnsafe: the directory is another person's, or others can write in it.
        RootfsError: it can only be read.
    """
    top = os.path.join(directory, DOWNLOADS)
    if not (check_trusted(directory) and check_trusted(top)):
        return 0
    try:
        names = sorted(os.listdir(top))
        stems = sorted({os.path.splitext(name)[0] for name in names if name.endswith(_ENDINGS)})
        freed = sum(_drop_part(top, stem) for stem in stems)
        for name in names:
            path = os.path.join(top, name)
            if not name.endswith(_ENDINGS) and not _is_anybody_building(directory):
                # A directory is what an older version fetched for Debian
                size = _disk_bytes(path) if is_directory(path) else _size(path)
                freed += size if remove_tree(path) else 0
        sync_directory(top)
    except OSError as error:
        raise failed(error, directory) from error
    return freed


def _is_anybody_building(directory: bytes) -> bool:
    """Tell whether somebody makes a rootfs, who may be about to open what is whole; the dead do not count."""
    sweep(directory)
    with os.scandir(os.path.join(directory, STAGING)) as entries:
        return any(entry.is_dir(follow_symlinks=False) for entry in entries)


def _drop_part(top: bytes, stem: bytes) -> int:
    """Remove a download that nobody goes on with; whoever waits for its state sees that it has gone, and begins."""
    path = os.path.join(top, stem)
    fd = _try_lock(path + b".state")
    if fd is None:
        return 0
    try:
        # Finished meanwhile: the name may be another's by now
        return sum(_unlink(path + ending) for ending in _ENDINGS) if os.fstat(fd).st_nlink else 0
    finally:
        os.close(fd)


def _try_lock(path: bytes) -> int | None:
    """Return the descriptor of a lock file, None where somebody has it."""
    fd = os.open(path, _LOCK_FILE, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _disk_bytes(top: bytes) -> int:
    return sum(_size(os.path.join(parent, name)) for parent, _, names in os.walk(top) for name in names)


def _unlink(path: bytes) -> int:
    size = _size(path)
    try:
        os.unlink(path)
    except FileNotFoundError:
        return 0
    return size


def _size(path: bytes) -> int:
    try:
        return os.lstat(path).st_blocks * _DISK_BLOCK
    except FileNotFoundError:
        return 0


class _Gone:
    """A rootfs that was taken away, locked: so whoever waits for it finds that it is not at its place."""

    def __init__(self, fd: int, path: bytes) -> None:
        self._fd = fd
        self.path = path

    def delete(self) -> None:
        """Delete it; what resists is left to the next sweep."""
        try:
            remove_tree(self.path)
        finally:
            self.release()

    def release(self) -> None:
        """Give its lock back."""
        if self._fd >= 0:
            os.close(self._fd)


class Registry:
    """All rootfs below one directory, which need not be there."""

    def __init__(self, directory: bytes) -> None:
        self.directory = directory
        self.roots = os.path.join(directory, ROOTS)

    def list(self) -> tuple[Rootfs, ...]:
        """Return those that are ready, by name.

        Raises:
            RootfsUnsafe: the directory is another person's, or others can write in it.
        """
        return tuple(found for found in map(self.get, self._names()) if found is not None)

    def damaged(self) -> tuple[tuple[str, str], ...]:
        """Return the names of those that are there but can't be used, and why; they are made anew when asked for."""
        found: list[tuple[str, str]] = []
        for name in self._names():
            try:
                load_ready(self.roots, name)
            except NotReady as error:
                found.append((name, str(error)))
        return tuple(found)

    def get(self, name: str) -> Rootfs | None:
        """Return the one of exactly this name if it is ready.

        Raises:
            RootfsUnsafe: the directory is another person's, or others can write in it.
        """
        if not self._is_there():
            return None
        try:
            return load_ready(self.roots, name)
        except NotReady:
            return None

    def find(self, name: str, *, cut_anywhere: bool = False) -> Rootfs | None:
        """Return the one of this name, or whose name begins so: `alpine`, `alpine-3.23`.

        Of several the one in use counts, or else the newest, if they only differ in their version. With `cut_anywhere`
        (a person types) a part may be cut short, `alp`, where no name begins with it as a whole.

        Raises:
            RootfsError: it could be several.
            RootfsUnsafe: the directory is another person's, or others can write in it.
        """
        exact = self.get(name)
        if exact is not None or not name:
            return exact
        ready = self.list()
        # No label has a dash, so the first one ends it: `alpine` is never `alpine.mine`, but `alpine-3` may be 3.23
        cuts = (f"{name}-", f"{name}.") if "-" in name else (f"{name}-",)
        several = [found for found in ready if found.name.startswith(cuts)]
        if cut_anywhere and not several:
            several = [found for found in ready if found.name.startswith(name)]
        current = self.current()
        if current in several:
            return current
        if len({line_of(found) for found in several}) > 1:
            names = ", ".join(found.name for found in several)
            raise RootfsError(f"{name!r} could be {names}", remedy="Write more of its name.")
        return newest(several) if several else None

    def current(self) -> Rootfs | None:
        """Return the one in use where a policy names none; None if there is none that is ready."""
        if not self._is_there():
            return None
        name = self._current_name()
        return self.get(name) if name else None

    def use(self, name: str) -> Rootfs:
        """Make one the current one.

        Raises:
            RootfsError: there is no such rootfs, or the directory can only be read.
        """
        self._known(name)
        with self._changing(CURRENT_LOCK):
            # Not before: it could be removed meanwhile
            found = self._known(name)
            self._point_to(found.name)
        return found

    def use_first(self, name: str) -> None:
        """Make one the current one if there is none."""
        with self._changing(CURRENT_LOCK):
            if self.current() is None:
                self._point_to(name)

    def use_instead(self, old: str, new: str) -> bool:
        """Make `new` the current one if `old` is; tell whether it was."""
        with self._changing(CURRENT_LOCK):
            is_old = self._current_name() == old
            if is_old:
                self._point_to(new)
            return is_old

    def hold(self, rootfs: Rootfs) -> Hold:
        """Return the right to use it: `with registry.hold(rootfs): ...`. Nobody can remove it as long as it is held.

        Raises:
            RootfsError: it has gone.
        """
        return Hold(rootfs)

    def remove(self, name: str, *, force: bool = False) -> str:
        """Remove one that no run uses, ready or damaged; return its whole name.

        The current one goes only with `force`; then there is none. One that runs use never goes.

        Raises:
            RootfsError: there is no such rootfs, runs use it, it is the current one, or it can only be read.
        """
        name = name if name in self._names() else self._known(name).name
        with self._changing(name), self._changing(CURRENT_LOCK):
            is_current = self._current_name() == name
            if is_current and not force:
                raise RootfsError(
                    f"{name} is the rootfs in use",
                    remedy="Choose another one first with `unspill rootfs use NAME`, or remove it with --force.",
                )
            gone = self._take_away(name)
            if gone is None:
                raise RootfsError(f"Runs are using {name} right now", remedy="Remove it when they have ended.")
            if is_current:
                self._point_nowhere()
        gone.delete()
        sweep(self.directory, name)
        return name

    def remove_unused(self, wanted: Collection[str] = ()) -> tuple[str, ...]:
        """Remove those that a newer one has replaced, are not the current one and no run uses; return their names.

        What was kept of a sandbox never goes this way: nobody could make it again; nor do those that are `wanted`.
        What dead processes left half-built goes as well.

        Raises:
            RootfsError: the directory can only be read.
        """
        if not self._is_there():
            return ()
        make_layout(self.directory)
        lines: dict[object, list[Rootfs]] = {}
        for found in self.list():
            if found.manifest is not None and found.manifest.spec.source != "kept":
                lines.setdefault(line_of(found), []).append(found)
        kept = {newest(line).name for line in lines.values()}.union(wanted)
        old = [found.name for line in lines.values() for found in line if found.name not in kept]
        removed = tuple(name for name in sorted(old) if self._try_remove(name))
        sweep(self.directory)
        return removed

    def set_aside(self, name: str) -> None:
        """Remove one that is damaged, to make room; the caller has the lock of its name.

        Raises:
            RootfsError: runs that began before it was damaged still use it.
        """
        if name not in self._names():
            return
        gone = self._take_away(name)
        if gone is None:
            raise RootfsError(
                f"{name} is damaged, and runs are still using it", remedy="Try again when they have ended."
            )
        gone.delete()

    def _try_remove(self, name: str) -> bool:
        lock = NameLock(self.directory, name)
        if not lock.try_acquire():
            return False
        with lock:
            with NameLock(self.directory, CURRENT_LOCK):
                gone = self._take_away(name) if self._current_name() != name else None
            if gone is not None:
                gone.delete()
        return gone is not None

    def _take_away(self, name: str) -> _Gone | None:
        """Move one to the staging directories, to be deleted; None if others have a lock on it."""
        path = os.path.join(self.roots, os.fsencode(name))
        # Where it is no directory at all, it never was a rootfs that somebody could hold
        fd = take(path, fcntl.LOCK_EX) if is_directory(path) else -1
        if fd is None:
            return None
        gone = _Gone(fd, staging_path(os.path.join(self.directory, STAGING), os.fsencode(name)))
        try:
            os.rename(path, gone.path)
        except OSError as error:
            gone.release()
            raise failed(error, self.directory) from error
        return gone

    def _changing(self, name: str) -> NameLock:
        make_layout(self.directory)
        return NameLock(self.directory, name)

    def _point_to(self, name: str) -> None:
        draft = os.path.join(self.directory, STAGING, CURRENT_LOCK.encode())
        try:
            # One that a dead process left; nobody else is here now
            remove_tree(draft)
            os.symlink(os.path.join(ROOTS, os.fsencode(name)), draft)
            os.rename(draft, os.path.join(self.directory, CURRENT))
        except OSError as error:
            raise failed(error, self.directory) from error

    def _point_nowhere(self) -> None:
        try:
            os.unlink(os.path.join(self.directory, CURRENT))
        except OSError:
            # A link that leads to nothing is no current one either
            return

    def _current_name(self) -> str:
        try:
            target = os.readlink(os.path.join(self.directory, CURRENT))
        except OSError:
            return ""
        parent, _, name = target.rpartition(b"/")
        return name.decode("ascii", "replace") if parent == ROOTS else ""

    def _known(self, name: str) -> Rootfs:
        found = self.find(name, cut_anywhere=True)
        if found is None:
            raise RootfsError(f"There is no rootfs {name!r} in {show(self.directory)}")
        return found

    def _is_there(self) -> bool:
        return check_all_trusted(self.directory) and check_trusted(self.roots)

    def _names(self) -> tuple[str, ...]:
        if not self._is_there():
            return ()
        try:
            return tuple(sorted(map(os.fsdecode, os.listdir(self.roots))))
        except OSError as error:
            raise failed(error, self.directory) from error
