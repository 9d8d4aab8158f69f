# SPDX-License-Identifier: Apache-2.0
"""The mounts that every sandbox has: system, home and fresh directories, caches, and masks over what stays hidden.

The root itself is bwrap's empty tmpfs, so what is not named here does not exist inside. Each directory of the host is
shown on its own path. Nothing is mounted inside a root, a cache or the playground, whose content may be what an earlier
command left there. View `rootfs` has a tree of its own instead of the system directories (`plan.rootfs`).
"""

from __future__ import annotations

import posixpath

from unspill.errors import UsageError
from unspill.model.plan import Bind, Dev, File, Overlay, Point, Proc, ReadOnly, Symlink, Tmpfs
from unspill.model.policy import MIB
from unspill.plan.gitconfig import to_gitconfig
from unspill.plan.view import GIT_CONFIG_FILE, find_cover, is_shown, playground_inside, playground_taken, to_inside
from unspill.policy.defaults import NEVER_SHOWN, SOCKET_FREE
from unspill.policy.paths import contains, lies_beneath, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from unspill.model.plan import CacheLayer, MountOp, PlanInput


SHARED_MEMORY_BYTES = 64 * MIB
RUN_BYTES = 64 * MIB
STICKY = 0o1777
# Laid over the home directory that view `host` shows, which has no place for the playground
_SKELETON, _PLAYGROUND = b"/skeletons/home", b"playground"
_NOT_READABLE = (b"/dev", b"/proc", b"/run", b"/sys", b"/tmp", b"/var/tmp")
_MASK_BYTES = 4096


def system_operations(given: PlanInput) -> Iterator[MountOp]:
    """Yield the host's system directories, read-only, and the links among them."""
    places = given.places
    shown = places.system if given.policy.view == "sealed" else (*places.system, *places.top)
    for path in dict.fromkeys(shown):
        if path in NEVER_SHOWN:
            continue
        if path in places.top:
            yield _read_only_overlay(given, path, "view host shows it, read-only, without its sockets")
        elif any(contains(shared, path) for shared in SOCKET_FREE):
            yield _read_only_overlay(given, path, "software that lies outside /usr, without its sockets")
        else:
            yield Bind(source=path, dest=path, why=_why_shown(path))
    for dest, target in places.links:
        if dest not in NEVER_SHOWN:
            yield Symlink(target=target, dest=dest, why="a link on this host too")


def kernel_operations() -> Iterator[MountOp]:
    """Yield /proc and /dev."""
    yield Proc(dest=b"/proc", why="the sandbox's own processes")
    # For a caller with uid 0 the files below are writable without any capability (core_pattern)
    yield Bind(source=b"/proc/sys", dest=b"/proc/sys", why="no kernel setting can be changed")
    yield Dev(dest=b"/dev", why="null, zero, random, tty and pseudo-terminals")
    yield Tmpfs(dest=b"/dev/shm", size_bytes=SHARED_MEMORY_BYTES, mode=STICKY, why="shared memory of this run only")
    yield ReadOnly(dest=b"/dev", why="nothing is made among the devices")


def fresh_operations(given: PlanInput) -> Iterator[MountOp]:
    """Yield the directories that start empty and end with the run."""
    size = given.policy.limits.tmp_bytes
    if given.policy.tmp == "persistent" and given.places.tmp:
        _check_nothing_in_tmp(given)
        yield Bind(source=given.places.tmp, dest=b"/tmp", writable=True, why="temporary files that outlive the run")
    else:
        yield Tmpfs(dest=b"/tmp", size_bytes=size, mode=STICKY, why="temporary files of this run only")
    if not given.rootfs_layers:
        yield Tmpfs(dest=b"/var/tmp", size_bytes=size, mode=STICKY, why="temporary files of this run only")
    yield Tmpfs(dest=b"/run", size_bytes=RUN_BYTES, why="none of the host's sockets")
    if given.policy.view == "sealed":
        yield Symlink(target=b"../run", dest=b"/var/run", why="where older programs look for /run")


def home_operations(given: PlanInput, warnings: list[str]) -> Iterator[MountOp]:
    """Yield the home directory itself, the git configuration and the playground."""
    home = given.places.home.path
    git_config = _git_config(given.places.home.identity)
    if given.policy.view == "rootfs":
        yield File(content=git_config, dest=GIT_CONFIG_FILE, why="your git identity, no credentials")
    elif given.policy.view == "sealed":
        size = given.policy.limits.tmp_bytes
        yield Tmpfs(dest=home, size_bytes=size, mode=0o700, why="a home directory of this run only")
        if git_config:
            yield File(content=git_config, dest=home + b"/.gitconfig", why="your git identity, no credentials")
    else:
        yield _whole_home(given, warnings)
        yield File(content=git_config, dest=GIT_CONFIG_FILE, why="your git identity, no credentials")
    problem = _playground_problem(given)
    if problem:
        warnings.append(f"There is no playground: {problem}.")
    else:
        yield Bind(
            source=given.places.playground,
            dest=playground_inside(given.policy.view, home),
            why="scratch directory that outlives the run",
            writable=True,
        )


def home_skeleton(given: PlanInput) -> tuple[Point, ...]:
    """Return what has to be there of our own for the home directory to be shown."""
    return (Point(path=given.places.state + _SKELETON + b"/" + _PLAYGROUND),) if given.policy.view == "host" else ()


def shown_operations(given: PlanInput, caches: tuple[CacheLayer, ...], warnings: list[str]) -> Iterator[MountOp]:
    """Yield the readable paths of the policy and, where the home is empty, the toolchains."""
    places = given.places
    covered = [stack.live for stack in given.stacks] + [cache.path for cache in caches]
    covered.append(playground_inside(given.policy.view, places.home.path))
    for path in sorted(given.policy.readable):
        _check_readable(given, path)
        if path in places.absent:
            warnings.append(f"The readable path {show(path)} does not exist.")
        elif any(contains(other, path) for other in covered):
            continue
        elif path in places.files:
            yield Bind(source=path, dest=path, why="readable by your policy")
        elif problem := overlay_problem(given, path):
            warnings.append(f"The readable path {show(path)} is not shown: {problem}.")
        else:
            covered.append(path)
            yield _read_only_overlay(given, path, "readable by your policy, without its sockets")
    if given.policy.toolchains and given.policy.view == "sealed":
        yield from _toolchain_operations(given, covered, warnings)


def chosen_caches(given: PlanInput, warnings: list[str]) -> tuple[CacheLayer, ...]:
    """Return the caches to show: none that has to do with a root, lies in another or holds a hidden path."""
    if not given.policy.caches:
        return ()
    roots = [stack.live for stack in given.stacks]
    chosen: list[CacheLayer] = []
    for cache in sorted(given.caches, key=lambda cache: cache.path):
        if any(contains(other.path, cache.path) for other in chosen):
            continue
        if any(contains(root, cache.path) for root in roots):
            continue
        inside = [path for path in (*roots, *given.policy.hidden) if lies_beneath(path, cache.path)]
        problem = f"{show(inside[0])} lies in it" if inside else overlay_problem(given, cache.path)
        if problem:
            warnings.append(f"The cache {show(cache.path)} is not shown: {problem}.")
        else:
            chosen.append(cache)
    return tuple(chosen)


def cache_operations(caches: tuple[CacheLayer, ...]) -> Iterator[MountOp]:
    """Yield the caches, copy-on-write."""
    for cache in caches:
        layer = cache.stack.open
        yield Overlay(
            lowers=cache.stack.lowers(),
            dest=cache.path,
            upper=None if layer is None else layer.upper,
            work=None if layer is None else layer.work,
            why="tool cache; what is added never reaches your own",
        )


def check_hidden(given: PlanInput) -> None:
    """Refuse a hidden path that has to do with a root.

    Raises:
        UsageError: with what to do instead.
    """
    for hidden in given.policy.hidden:
        for root in (stack.live for stack in given.stacks):
            if contains(hidden, root):
                raise UsageError(f"{show(hidden)} can't be hidden: the root {show(root)} lies there.")
            if lies_beneath(hidden, root):
                raise UsageError(
                    f"{show(hidden)} can't be hidden yet: it lies in the root {show(root)}.",
                    remedy="Move it out of the project, or remove it from `hidden`.",
                )


def without_hidden(given: PlanInput, operations: list[MountOp]) -> list[MountOp]:
    """Return the operations less those that would show a hidden path or something below it."""
    if not given.policy.hidden:
        return operations
    return [operation for operation in operations if not _is_hidden(given, operation)]


def mask_operations(given: PlanInput, operations: list[MountOp]) -> list[MountOp]:
    """Return the masks that `operations` need: over hidden paths, secrets and live sockets in something that is shown.

    A masked directory is an empty read-only tmpfs, a masked file an empty file. Masks are mounted only over what the
    host owns.
    """
    masks = _Masks(given, operations)
    places = given.places
    for path in sorted(given.policy.hidden):
        if path not in places.absent:
            masks.add(path, "hidden by your policy", is_file=path in places.files)
    for path in (places.state, *places.own):
        masks.add(path, "unspill's own files")
    for path in sorted(places.secrets):
        masks.add_secret(path, is_file=False)
    for path in sorted(places.secret_files):
        masks.add_secret(path, is_file=True)
    for path in masks.reachable(places.sockets):
        masks.add_socket(path)
    for stack in given.stacks:
        # Beside its layer it would be seen with its secrets
        masks.add_root(stack.live, is_elsewhere=given.policy.view == "rootfs" and stack is given.stacks[0])
    return masks.made


def overlay_problem(given: PlanInput, path: bytes, *, is_read_only: bool = False) -> str:
    """Tell why the kernel would refuse an overlay over `path`, "" where it would not."""
    point = find_mount_beneath(given, path)
    if point is not None:
        return f"something is mounted on {show(point)}, inside it"
    if contains(path, given.places.state) and not is_read_only:
        return "unspill's state directory lies in it"
    return ""


def find_mount_beneath(given: PlanInput, path: bytes) -> bytes | None:
    """Return a mount point of the host strictly beneath `path`."""
    beneath = path + b"/"
    return next((point for point in given.places.mounted if point.startswith(beneath)), None)


def _why_shown(path: bytes) -> str:
    return "settings of the system, read-only" if path == b"/etc" else "programs and libraries, read-only"


def _read_only_overlay(given: PlanInput, path: bytes, why: str) -> Overlay:
    """Return an overlay that shows a directory read-only, and none of its sockets and FIFOs.

    The kernel wants two lower directories where there is no upper one; the first is always empty.
    """
    return Overlay(lowers=(given.places.state + b"/empty", path), dest=path, why=why)


def _check_nothing_in_tmp(given: PlanInput) -> None:
    """Refuse to keep a /tmp in which something else would be mounted: what commands left there may be links."""
    view = given.policy.view
    roots = [stack.live for stack in given.stacks]
    inside = (to_inside(root, view, roots) for root in roots)
    for path in (*inside, *given.policy.readable):
        if lies_beneath(path, b"/tmp"):
            raise UsageError(
                f"/tmp can't be kept: {show(path)} lies in it.", remedy='Use `tmp = "fresh"`, or move that elsewhere.'
            )


def _whole_home(given: PlanInput, warnings: list[str]) -> MountOp:
    home = given.places.home.path
    problem = overlay_problem(given, home, is_read_only=True)
    if not problem:
        why = "view host shows it, read-only, without its secrets and sockets"
        return Overlay(lowers=(given.places.state + _SKELETON, home), dest=home, why=why, points=(_PLAYGROUND,))
    # A plain bind would show it, but read-only stops neither a socket nor a FIFO nor a lock
    warnings.append(f"Your home directory is not shown: {problem}.")
    return Tmpfs(dest=home, size_bytes=given.policy.limits.tmp_bytes, mode=0o700, why="a home of this run only")


def _git_config(identity: tuple[tuple[str, str], ...]) -> bytes:
    return to_gitconfig(identity).encode("utf-8", "surrogateescape")


def _playground_problem(given: PlanInput) -> str:
    home = given.places.home.path
    problem = playground_taken(given.policy.view, home, [stack.live for stack in given.stacks])
    if not problem and given.policy.view == "host" and given.engine == "native" and given.places.no_playground:
        # bwrap would follow a link that is there
        return f"{show(home)}/playground is there and is no directory"
    return problem


def _toolchain_operations(given: PlanInput, covered: list[bytes], warnings: list[str]) -> Iterator[MountOp]:
    for path in sorted(given.places.home.toolchains):
        if any(contains(other, path) for other in covered):
            continue
        problem = overlay_problem(given, path, is_read_only=True)
        if problem:
            warnings.append(f"The toolchain {show(path)} is not shown: {problem}.")
            continue
        covered.append(path)
        yield _read_only_overlay(given, path, "toolchain, without its sockets")


def _check_readable(given: PlanInput, path: bytes) -> None:
    """Refuse a readable path that would undo what the views are for.

    Raises:
        UsageError: it is or contains the home directory or unspill's own files, or is made fresh in each run.
    """
    kept_private = (given.places.home.path, given.places.state, *given.places.own)
    for private in kept_private:
        if contains(path, private) or (private != given.places.home.path and contains(private, path)):
            raise UsageError(
                f"{show(path)} can't be readable: {show(private)} stays private.",
                remedy="Name the directories below it that are needed, or choose the view `host`.",
            )
    if path in _NOT_READABLE or any(contains(kernel, path) for kernel in (b"/dev", b"/proc", b"/sys")):
        raise UsageError(f"{show(path)} can't be readable: a sandbox has its own.", remedy="Remove it from `readable`.")


def _is_hidden(given: PlanInput, operation: MountOp) -> bool:
    if operation.dest == b"/proc/sys" or not isinstance(operation, Bind | Overlay | Symlink):
        return False
    place = operation.dest if given.policy.view != "rootfs" else _source_of(operation)
    return any(contains(hidden, place) for hidden in given.policy.hidden)


def _source_of(operation: Bind | Overlay | Symlink) -> bytes:
    """Return whose directory it is: what a rootfs has at a path is not what the host has there."""
    match operation:
        case Bind():
            return operation.source
        case Overlay():
            return operation.lowers[-1]
    return b""


class _Masks:
    def __init__(self, given: PlanInput, operations: list[MountOp]) -> None:
        self.given = given
        self.made: list[MountOp] = []
        self._seen = list(operations)

    def add(self, path: bytes, why: str, *, is_file: bool = False) -> None:
        if not any(self._shown_at(path)):
            return
        root = next((s.live for s in self.given.stacks if contains(s.live, path)), None)
        if root is not None:
            raise UsageError(
                f"{show(path)} can't be masked: it lies in the root {show(root)}.",
                remedy="Choose a smaller directory as the root.",
            )
        for place in tuple(self._shown_at(path)):
            self._cover(place, why, is_file=is_file)

    def add_root(self, root: bytes, *, is_elsewhere: bool) -> None:
        for place in tuple(self._shown_at(root) if is_elsewhere else self._shown_beneath(root)):
            self._cover(place, "the root, which is seen where a layer covers it", is_file=False)

    def _shown_at(self, path: bytes) -> Iterator[bytes]:
        """Yield where a path of the host is seen: at its own, and beneath what the policy shows elsewhere."""
        if is_shown(self._seen, path):
            yield path
        yield from self._shown_beneath(path)

    def _shown_beneath(self, path: bytes) -> Iterator[bytes]:
        for dest, source in dict.fromkeys((*self.given.policy.mounts, *self.given.places.aliases)):
            if contains(source, path) and any(op.dest == dest for op in self._seen):
                yield dest + path[len(source) :]

    def _cover(self, path: bytes, why: str, *, is_file: bool) -> None:
        mask: MountOp
        if is_file:
            mask = File(content=b"", dest=path, mode=0o444, over=True, why=why)
            self.made.append(mask)
        else:
            mask = Tmpfs(dest=path, size_bytes=_MASK_BYTES, mode=0o555, why=why)
            self.made += (mask, ReadOnly(dest=path, why="an empty mask stays empty"))
        self._seen.append(mask)

    def add_secret(self, path: bytes, *, is_file: bool) -> None:
        named = any(contains(path, readable) for readable in self.given.policy.readable)
        if not named:
            self.add(path, "secrets or other people's files", is_file=is_file)

    def reachable(self, sockets: tuple[bytes, ...]) -> list[bytes]:
        """Return the sockets below what a plain bind shows; an overlay shows them, but nobody answers."""
        binds = tuple(operation.dest + b"/" for operation in self._seen if self._passes_sockets(operation))
        return sorted(path for path in sockets if path.startswith(binds))

    def _passes_sockets(self, operation: MountOp | None) -> bool:
        return isinstance(operation, Bind) and operation.source == operation.dest

    def add_socket(self, path: bytes) -> None:
        if not self._passes_sockets(find_cover(self._seen, path)):
            return
        directory = posixpath.dirname(path)
        needed = (self.given.places.home.path, self.given.cwd, *(op.dest for op in self._seen))
        # Its directory, because a restarted service makes a new socket; not where that would hide more
        if any(contains(directory, other) for other in needed):
            self.add(path, "a socket of the host", is_file=True)
        else:
            self.add(directory, "a socket of the host")
