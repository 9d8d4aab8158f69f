# SPDX-License-Identifier: Apache-2.0
"""The life of layers: opened for a run, sealed or dropped when it ends, squashed where they are many, discarded, swept.

Rows come before directories. So a directory never waits for its row, and a row whose process is dead says what to
remove. A dropped directory has another name, and only by that name a sweep removes it. The name is given before the
row goes: a directory that has neither is one whose row was lost, and nobody removes it. Nothing is mounted here.

The caches of tools, and directories of a writable rootfs, have layers too. Those of a cache are shared by the runs of a
project; it may be thrown away at any time, and is never applied.

A sweep, when a project is opened, removes what dead processes left: layers of runs that were to keep nothing, and
directories that were dropped. It lists directories before it reads rows, so one that has no row then never gets one.
Several processes may sweep at once. What other runs had written stays: `sandbox.scan` seals it. Nothing with a content
is removed because it has no row: a lost database may have had it and its copy not. Such a layer, operation or output is
set aside.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from unspill.errors import RootRefused, SandboxUnavailable, StoreError, UnspillError
from unspill.host.overlay import (
    OPAQUE,
    VOLATILE_DIRECTORIES,
    VOLATILE_FILE,
    is_opaque,
    is_whiteout,
    list_attributes,
    make_whiteout,
    user_attributes,
)
from unspill.layers.locks import (
    DROPPED_SUFFIX,
    SandboxLock,
    base_dir,
    base_link,
    begin_going_on,
    dropped_dir,
    end_going_on,
    is_abandoned,
    may_live,
    missing_layer,
    remove_unused,
    spill_dir,
    still_active,
    this_process,
    upper_dir,
    work_dir,
)
from unspill.layers.trees import remove_tree
from unspill.model.plan import CacheLayer
from unspill.model.run import (
    LayerId,
    OpenLayer,
    Run,
    SandboxId,
    SealedLayer,
    Stack,
    TimeMark,
)
from unspill.record import Record
from unspill.store.connection import is_id
from unspill.store.db import list_aside, make_parents, set_aside
from unspill.store.layers import CacheRow, LayerRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from threading import Thread

    from unspill.model.plan import Point
    from unspill.model.policy import After, Limits
    from unspill.model.run import RunId, TakenAway
    from unspill.store.db import Store
    from unspill.store.layers import SandboxRow

    # Device and inode
    Identity = tuple[int, int]

    Entries = list[os.DirEntry[bytes]]


# So many cache layers of a tier are squashed into one of the next
FAN = 8

# Stands before a sandbox's id where rows of caches have a project; no project's path begins so
ROOTFS_OWNER = b"rootfs of "
# The same for copies of open layers: they are one live sandbox's, and go with it
_COPY_OWNER = b"checkpoint of "

# Caches are never compared with the live tree, so no moment of it matters.
_NO_MARK = TimeMark(ctime_ns=0)
# From linux/time.h: the clock that filesystems stamp with, which Python has no name for.
_CLOCK_REALTIME_COARSE = 5
_SECOND = 1_000_000_000

# In the directory of an operation that a prune has begun to forget
PRUNED = b"pruned"
_DROPPED = os.fsdecode(DROPPED_SUFFIX)


class OpenRun(Record):
    """A run that may begin: each stack, cache and directory of a rootfs has an open layer of its own on top.

    `beside` are other runs that may have written there too, since the last checkpoint. `taken_away` has, for each root
    that was watched, what was taken away outside.
    """

    run: Run
    project: bytes
    stacks: tuple[Stack, ...]
    caches: tuple[CacheLayer, ...] = ()
    rootfs: tuple[CacheLayer, ...] = ()
    beside: tuple[RunId, ...] = ()
    taken_away: tuple[tuple[bytes, TakenAway], ...] = ()


# The thread that looks for secrets, which takes a second at most
SEARCH_NAME = "unspill-aside"
_SEARCH_S = 2.0
# Threads that remove what was dropped, or look for secrets
_aside: list[Thread] = []


class Garbage(Record):
    """Layers whose upper directory can go, and layers whose work directory can."""

    uppers: tuple[LayerId, ...] = ()
    works: tuple[LayerId, ...] = ()


def open_run(
    store: Store,
    sandbox: SandboxRow,
    *,
    argv: tuple[bytes, ...],
    cwd: bytes,
    roots: tuple[bytes, ...],
    caches: tuple[bytes, ...] = (),
    masks: tuple[tuple[bytes, bytes], ...] = (),
    bases: tuple[tuple[bytes, bytes], ...] = (),
    rootfs: tuple[bytes, ...] = (),
    after_cancel: After = "hold",
    limits: Limits | None = None,
) -> OpenRun:
    """Record a run and make its layers. A run that will hold its changes needs the sandbox's lock first.

    A cache that is no directory is left out. `masks` has the mask of each root that is to have one, `bases` each one's
    repository as it stands now. `rootfs` are directories of a rootfs that the run may write to. `after_cancel` and
    `limits` are recorded for whoever finds the run when this process is dead.

    Raises:
        RootRefused: a root is not a directory (any more).
        LayerMissing: a held layer is not in its place.
        SandboxUnavailable: a layer can't be made.
    """
    # The clock costs nothing here. The exact mark, which only the directories tell, is written when a layer is sealed
    owner, found, mark_ns = this_process(), _find_caches(caches), _filesystem_clock()
    with store.transaction:
        _refuse_forgotten(store, sandbox)
        run = store.runs.start(
            sandbox.id,
            argv=argv,
            cwd=cwd,
            started_ns=time.time_ns(),
            owner=owner,
            after_cancel=after_cancel,
            layer_bytes=None if limits is None else limits.layer_bytes,
            layer_entries=None if limits is None else limits.layer_entries,
        )
        begin_going_on(run.id)
        stacks = load_stacks(store, sandbox.id, roots, masks, bases)
        rows = [LayerRow(id=new_id(), sandbox=sandbox.id, root=root, run=run.id, mark_ns=mark_ns) for root in roots]
        store.layers.add_open(rows)
        cache_layers = _record_caches(store, sandbox.project, run.id, found)
        tops = _record_caches(store, rootfs_owner(sandbox.id), run.id, _find_caches(rootfs))
    try:
        opened = tuple(_open_stack(store.state, stack, row) for stack, row in zip(stacks, rows, strict=True))
        _make_caches(store.state, (*cache_layers, *tops))
        for layer in (stack.open for stack in opened):
            if layer is not None and layer.mark.ctime_ns < mark_ns:
                store.layers.set_mark(layer.id, layer.mark.ctime_ns)
    except OSError as error:
        _take_back(store, run, rows, (*cache_layers, *tops))
        raise _failure(store.state, stacks, error) from error
    return OpenRun(run=run, project=sandbox.project, stacks=opened, caches=cache_layers, rootfs=tops)


def _failure(state: bytes, stacks: Iterable[Stack], error: OSError) -> SandboxUnavailable:
    for stack in stacks:
        if error.filename in {sealed.upper for sealed in stack.sealed}:
            return missing_layer(error.filename, stack.live)
    return SandboxUnavailable(
        f"unspill can't create a layer in {os.fsdecode(state)}: {error.strerror}.",
        remedy="Check for free space and free inodes there, or point UNSPILL_STATE_DIR at another directory.",
    )


def _refuse_forgotten(store: Store, sandbox: SandboxRow) -> None:
    """Stop where layers would have no sandbox: nobody would find them again."""
    if store.sandboxes.find_id(sandbox.id) is None:
        raise SandboxUnavailable("This sandbox was forgotten since it was opened.", remedy="Open it again.")


def begin_again(
    store: Store,
    sandbox: SandboxRow,
    kept: OpenRun,
    argv: tuple[bytes, ...],
    cwd: bytes,
    after_cancel: After,
    limits: Limits,
) -> OpenRun:
    """Record a run that takes over the layers of one that has ended and wrote nothing to them.

    Their marks are new: what the person changed meanwhile this run sees. The sandbox's lock is held as for `open_run`.

    Raises:
        SandboxUnavailable: a layer is gone.
    """
    try:
        stacks = tuple(map(_marked_anew, kept.stacks))
    except OSError as error:
        raise SandboxUnavailable(f"a layer that was kept is gone: {error.strerror}", remedy="Run it again.") from error
    marks = [(stack.open.mark.ctime_ns, stack.open.id) for stack in stacks if stack.open is not None]
    with store.transaction:
        run = begin_beside(store, sandbox, argv, cwd, after_cancel, limits)
        for mark_ns, layer in marks:
            store.layers.pass_on_anew(layer, run.id, mark_ns)
        if kept.caches:
            store.caches.pass_on(kept.run.id, run.id)
    return _owned_by(kept.replace(stacks=stacks), run)


def begin_beside(
    store: Store, sandbox: SandboxRow, argv: tuple[bytes, ...], cwd: bytes, after_cancel: After, limits: Limits
) -> Run:
    """Record a run without layers of its own: it writes to those of another one."""
    run = store.runs.start(
        sandbox.id,
        argv=argv,
        cwd=cwd,
        started_ns=time.time_ns(),
        owner=this_process(),
        after_cancel=after_cancel,
        layer_bytes=limits.layer_bytes,
        layer_entries=limits.layer_entries,
    )
    begin_going_on(run.id)
    return run


def end_beside(store: Store, opened: OpenRun, ended: Run, other: Run) -> OpenRun:
    """Record the end of a run whose layers others still write to; if they were its own, they are `other`'s from now on.

    A crash later on leaves them to a run without an end, which the next process finds.
    """
    end_going_on(ended.id)
    with store.transaction:
        store.runs.end(ended)
        if opened.run.id != ended.id:
            return opened
        store.layers.pass_on(ended.id, other.id)
        store.caches.pass_on(ended.id, other.id)
    return _owned_by(opened, other)


def has_others(store: Store, opened: OpenRun) -> bool:
    """Tell whether other layers were sealed in the sandbox of a run since it began."""
    known = {layer.id for stack in opened.stacks for layer in stack.sealed}
    return not known.issuperset(map(LayerId, store.layers.sealed_ids(SandboxId(opened.run.sandbox))))


def drop_kept(store: Store, kept: OpenRun) -> None:
    """Remove layers that nothing was written to, of a run that has ended."""
    layers = tuple(layer.id for layer in _open_layers(kept)) + tuple(map(_open_id, kept.caches))
    with store.transaction:
        store.layers.remove(layers)
        store.caches.remove(layers)
        drop(store.state, layers)
    _clean_soon(store.state, Garbage(uppers=layers, works=layers))


def record_copy(store: Store, opened: OpenRun, root: bytes) -> LayerId:
    """Record a copy of an open layer before it is made; if this process dies, it goes with the run's caches."""
    row = CacheRow(id=new_id(), project=_COPY_OWNER + os.fsencode(opened.run.sandbox), path=root, run=opened.run.id)
    store.caches.add_open((row,))
    return row.id


def drop_copies(store: Store, copies: tuple[LayerId, ...]) -> None:
    """Remove copies of open layers."""
    if not copies:
        return
    with store.transaction:
        store.caches.remove(copies)
        drop(store.state, copies)
    _clean_soon(store.state, Garbage(uppers=copies))


def _owned_by(opened: OpenRun, run: Run) -> OpenRun:
    def owned(stack: Stack) -> Stack:
        return stack if stack.open is None else stack.replace(open=stack.open.replace(run=run.id))

    caches = tuple(cache.replace(stack=owned(cache.stack)) for cache in opened.caches)
    return opened.replace(run=run, stacks=tuple(map(owned, opened.stacks)), caches=caches)


def _marked_anew(stack: Stack) -> Stack:
    layer = stack.open
    assert layer is not None
    upper = renew(layer.upper, os.lstat(layer.upper))
    return stack.replace(open=layer.replace(mark=take_mark(stack.live, stat_root(stack.live), upper)))


def seal_run(store: Store, opened: OpenRun, ended: Run, *, fold: bool = True) -> tuple[Stack, ...]:
    """Hold what a run wrote to its roots; a layer that nothing was written to is dropped. Return the next run's stacks.

    Call it when every process of the run is dead and nothing has its layers mounted. A crash before the last
    transaction leaves an open run of a dead process, which the sweep removes whole; one after it leaves garbage.

    `ended` is the run with its end filled in; whether it is held is found out here. Without `fold` the caches
    stay as they were.

    Raises:
        SandboxUnavailable: a layer vanished while the run went on.
    """
    keep = {
        layer.id
        for stack, layer in zip(opened.stacks, _open_layers(opened), strict=True)
        if not is_untouched(layer.upper, stack.lowers()[0])
    }
    return _close(store, opened, ended, keep, fold=fold)


def drop_run(store: Store, opened: OpenRun, ended: Run, *, fold: bool = True, rootfs: bool = True) -> tuple[Stack, ...]:
    """Drop what a run wrote to its roots, and record its end; the options are those of `seal_run`.

    Without `rootfs` what it wrote to a writable rootfs goes too.
    """
    return _close(store, opened, ended, set(), fold=fold, rootfs=rootfs)


def discard_stacks(store: Store, sandbox: SandboxId) -> int:
    """Discard all sealed layers of a sandbox; return how many there were. The sandbox's lock must be held.

    Rows and directories go in one transaction; whoever comes by removes what was dropped.

    Raises:
        SandboxUnavailable: a run that does not hold its changes still stands on them.
    """
    with store.transaction:
        refuse_if_used(store, sandbox)
        layers = tuple(row.id for row in store.layers.sealed(sandbox))
        store.layers.remove(layers)
        store.runs.drop_held(sandbox)
        drop(store.state, layers)
    _remove_uppers(store.state, layers)
    return len(layers)


def refuse_if_used(store: Store, sandbox: SandboxId) -> None:
    """Stop where a run stands on layers that are to go.

    Raises:
        SandboxUnavailable: there is one.
    """
    if _is_used(store, sandbox):
        raise still_active()


def load_stacks(
    store: Store,
    sandbox: SandboxId,
    roots: Iterable[bytes],
    masks: Iterable[tuple[bytes, bytes]] = (),
    bases: Iterable[tuple[bytes, bytes]] = (),
) -> tuple[Stack, ...]:
    """Return the stacks of a sandbox's roots, in the order of `roots`.

    `masks` has a mask for some of them. `bases` has the repositories of some as they stand now; where a held run wrote
    to one, it is seen as it stood when that run began.

    Raises:
        RootRefused: a root is not a directory (any more).
    """
    sealed: dict[bytes, list[SealedLayer]] = {}
    for row in store.layers.sealed(sandbox):
        layer = SealedLayer(
            id=row.id, upper=upper_dir(store.state, row.id), mark=TimeMark(ctime_ns=row.mark_ns), run=row.run
        )
        sealed.setdefault(row.root, []).append(layer)
    masked, known = dict(masks), dict(bases)
    return tuple(
        _to_stack(
            root, layers := sealed.get(root, ()), masked.get(root), find_base(store.state, layers) or known.get(root)
        )
        for root in roots
    )


def stat_root(root: bytes) -> os.stat_result:
    """Return the state of a live root, which must be a directory and no link to one."""
    try:
        live = os.lstat(root)
    except OSError as error:
        raise RootRefused(f"{os.fsdecode(root)} can't be used as a root: {error.strerror}.") from error
    if not stat.S_ISDIR(live.st_mode):
        raise RootRefused(f"{os.fsdecode(root)} is not a directory.")
    return live


def find_base(state: bytes, layers: Iterable[SealedLayer]) -> bytes | None:
    """Return the repository as it stood when the first of these layers was written that has to do with it."""
    try:
        kept = {*os.listdir(os.path.dirname(base_dir(state, LayerId(""))))}
    except FileNotFoundError:
        return None
    return next((base_dir(state, layer.id) for layer in layers if os.fsencode(layer.id) in kept), None)


def find_hidden(stacks: Iterable[Stack]) -> tuple[bytes, ...]:
    """Return what is in the top directory of a root but not seen by a run, because its deletion is held."""
    return tuple(sorted(path for stack in stacks if stack.sealed for path in _hidden_in(stack)))


def rootfs_owner(sandbox: SandboxId) -> bytes:
    """Return what stands for the project in the rows of layers over a rootfs: those are one sandbox's alone."""
    return ROOTFS_OWNER + os.fsencode(sandbox)


def drop(state: bytes, layers: Iterable[LayerId]) -> None:
    """Rename upper directories to what a sweep removes.

    Call it in the transaction that removes their rows, and `clean` afterwards.
    """
    for layer in layers:
        upper = upper_dir(state, layer)
        try:
            os.rmdir(upper)
        except FileNotFoundError:
            continue
        except OSError:
            # In the same parent, which needs no right on the directory itself: a command may have closed it
            _move_away(upper, dropped_dir(state, layer))


def clean(state: bytes, garbage: Garbage) -> None:
    """Remove directories, whatever is in them; what resists is left for the next sweep."""
    for layer in garbage.works:
        _remove_work(work_dir(state, layer))
    _remove_uppers(state, garbage.uppers)


def _clean_soon(state: bytes, garbage: Garbage) -> None:
    """Remove directories before this process ends; those with something in them while the caller has its result.

    A process that is killed meanwhile leaves them to the next sweep.
    """
    if not any(os.path.lexists(dropped_dir(state, layer)) for layer in garbage.uppers):
        clean(state, garbage)
        return
    if not do_aside("unspill-clean", lambda: _clean_quietly(state, garbage)):
        clean(state, garbage)


def do_aside(name: str, work: Callable[[], None]) -> bool:
    """Do something in a thread while the caller has its result; False where there can't be another thread."""
    from threading import Thread  # lazy: upkeep

    thread = Thread(target=work, name=name)
    try:
        thread.start()
    except RuntimeError:
        return False
    _aside.append(thread)
    _forget_ended()
    return True


def _wait_before_fork() -> None:
    """Wait, for a moment at most, for what uses the store beside: in a fork SQLite's mutexes would stay locked."""
    for thread in tuple(_aside):
        if thread.name == SEARCH_NAME:
            thread.join(_SEARCH_S)


os.register_at_fork(before=_wait_before_fork)


def _clean_quietly(state: bytes, garbage: Garbage) -> None:
    try:
        clean(state, garbage)
    except (OSError, UnspillError):
        # Another process sweeps the same, or the disk fails: the next sweep tries again
        return


def wait_until_clean() -> None:
    """Return when nothing is left to do beside: all that this process has dropped is removed."""
    for thread in tuple(_aside):
        thread.join()
    _forget_ended()


def _forget_ended() -> None:
    # Several threads may run and close sandboxes at once: each entry is taken out by itself, by whoever comes first
    for thread in tuple(_aside):
        if not thread.is_alive():
            try:
                _aside.remove(thread)
            except ValueError:
                continue


def new_id() -> LayerId:
    """Return a name that no other layer has."""
    return LayerId(os.urandom(8).hex())


def make_upper(upper: bytes, like: bytes) -> os.stat_result:
    """Make an upper directory that looks like the one below it."""
    mode = stat.S_IMODE(os.lstat(like).st_mode)
    attributes = own_attributes(like)
    # Attributes can be set by whoever may write the directory, which the owner of the one below perhaps may not
    os.mkdir(upper, mode | 0o200 if attributes else mode)
    for name, value in attributes.items():
        os.setxattr(upper, name, value)
    made = os.lstat(upper)
    if attributes or stat.S_IMODE(made.st_mode) != mode:
        os.chmod(upper, mode)
        made = os.lstat(upper)
    return made


def is_untouched(upper: bytes, like: bytes) -> bool:
    """Tell whether an upper directory is still as it was made; the times of a directory do not count."""
    if not is_empty(upper):
        return False
    same_mode = stat.S_IMODE(os.lstat(upper).st_mode) == stat.S_IMODE(os.lstat(like).st_mode)
    return same_mode and own_attributes(upper) == own_attributes(like)


def is_empty(upper: bytes) -> bool:
    """Tell whether an upper directory has no entry. One that can't be read was made so by a command: it is not."""
    try:
        with os.scandir(upper) as entries:
            return next(entries, None) is None
    except PermissionError:
        return False


def own_attributes(path: bytes) -> dict[str, bytes]:
    """Return a directory's own `user.*` attributes as they are stored, without those that overlayfs keeps there."""
    try:
        names = list_attributes(path)
    except PermissionError:
        return {}
    return user_attributes(path, names)


def take_mark(root: bytes, live: os.stat_result, upper: os.stat_result) -> TimeMark:
    """Return a moment of the filesystem that `root` is on, after `upper` was made: what changes later is not older.

    The upper directory is new, so its ctime is one where both are on one filesystem. Elsewhere a file without
    a name has one. A root that can't be written has neither; then the clock must do. A clock that is set back breaks
    the promise; that is accepted.
    """
    if upper.st_dev == live.st_dev:
        return TimeMark(ctime_ns=upper.st_ctime_ns)
    try:
        fd = os.open(root, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:
        return TimeMark(ctime_ns=_clock_mark(live))
    try:
        os.fstat(fd)
        os.fchmod(fd, 0o600)
        return TimeMark(ctime_ns=os.fstat(fd).st_ctime_ns)
    finally:
        os.close(fd)


def renew(upper: bytes, made: os.stat_result) -> os.stat_result:
    """Give a directory that was just looked at a ctime that nothing older has; return what it is like then.

    A filesystem's clock may stand still for 4 ms, and what a person wrote within them would not be older than the mark.
    Since Linux 6.13, a time that was read is followed by a finer one, but not if the coarse clock ticked meanwhile. So
    this sets it twice. Older kernels keep that conflict.
    """
    for _ in range(2):
        os.chmod(upper, stat.S_IMODE(made.st_mode))
        made = os.lstat(upper)
    return made


def merge_uppers(uppers: tuple[bytes, ...], below: tuple[bytes, ...], dest: bytes) -> None:
    """Fill the empty directory `dest` with what `uppers` show together over `below`; both have the oldest first.

    Nothing is copied: files, links and whiteouts are hard-linked, only directories are new. The uppers must be sealed.
    A link is never followed: a directory is only entered in those layers in which every step to it is a directory.

    Raises:
        OSError: something in there can't be linked or read, or has too long a path for the kernel.
    """
    # The root of an upper is never opaque: it always covers a live directory.
    waiting = [_MergedDirectory(path=b"", sources=uppers[::-1], below=below[::-1])]
    done: list[_MergedDirectory] = []
    while waiting:
        part = waiting.pop()
        waiting.extend(_merge_one(part, dest))
        done.append(part)
    # Parents come before children in `done`, and a directory without the right to write must be filled first.
    for part in reversed(done):
        _set_metadata(part, dest)


def playground_dir(data: bytes, project: bytes) -> bytes:
    """Return a project's scratch directory, which stays, made if there is none; `data` is unspill's data directory.

    It lies there and not in the state directory, because what a person keeps in it is theirs.

    Raises:
        StoreError: it can't be made, or is not ours.
    """
    return _own_dir(os.path.join(data, b"playground", project_key(project)), "playground")


def tmp_dir(data: bytes, project: bytes, sandbox: str) -> bytes:
    """Return the /tmp of a sandbox whose temporary files outlive a run, made if there is none.

    Raises:
        StoreError: as of the playground.
    """
    key = project_key(project) + b"-" + project_key(os.fsencode(sandbox))
    return _own_dir(os.path.join(data, b"tmp", key), "directory for temporary files")


def homes_dir(data: bytes) -> bytes:
    """Return where home directories that last are."""
    return data + b"/homes"


def lasting_home_dir(data: bytes, name: str) -> bytes:
    """Return a home directory that lasts, made if there is none.

    Raises:
        StoreError: as of the playground.
    """
    return _own_dir(os.path.join(homes_dir(data), os.fsencode(name)), "home directory")


def project_key(project: bytes) -> bytes:
    """Return a name for a project's path: readable, and different for different paths.

    FNV-1a of 64 bits: the person chooses these paths, so nobody is there to be defended against, and hashlib
    would cost each start of the command line 3 ms.
    """
    key = 0xCBF29CE484222325
    for byte in project:
        key = (key ^ byte) * 0x100000001B3 & 0xFFFF_FFFF_FFFF_FFFF
    readable = bytes(byte for byte in os.path.basename(project) if chr(byte).isascii() and chr(byte).isalnum())
    return b"%b-%016x" % (readable[:32], key)


def make_skeleton(points: Iterable[Point]) -> None:
    """Make mount points that a rootfs does not have: empty directories and files of ours, laid over it.

    They lie in the state directory under a name that says what they are, so they are made once and never changed. Two
    callers at once do each other no harm.

    Raises:
        StoreError: the state directory's filesystem fails.
    """
    for point in points:
        try:
            os.makedirs(os.path.dirname(point.path) if point.is_file else point.path, 0o755, exist_ok=True)
            if point.is_file:
                os.close(os.open(point.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644))
        except OSError as error:
            raise StoreError(
                f"unspill can't create a mount point: {os.fsdecode(point.path)}: {error.strerror}."
            ) from error


def _open_stack(state: bytes, stack: Stack, row: LayerRow) -> Stack:
    made = _make_layer(state, row.id, stack.lowers()[0])
    live = stat_root(stack.live)
    # Each of them: the kernel does not say which layer is missing
    below = [live, *(os.lstat(layer.upper) for layer in stack.sealed)][-1]
    # What a command sees as the time of the root is that of the upper directory
    os.utime(upper_dir(state, row.id), ns=(below.st_atime_ns, below.st_mtime_ns))
    mark = take_mark(stack.live, live, renew(upper_dir(state, row.id), made))
    layer = OpenLayer(id=row.id, upper=upper_dir(state, row.id), work=work_dir(state, row.id), mark=mark, run=row.run)
    if stack.base is not None:
        # For whoever holds what this run wrote, should this process be killed
        os.symlink(stack.base, base_link(state, row.id))
    return stack.replace(open=layer)


def _make_layer(state: bytes, layer: LayerId, like: bytes) -> os.stat_result:
    """Make the upper and work directory of a layer; return what the upper one is like when it is still unwritten."""
    os.mkdir(work_dir(state, layer), 0o700)
    return make_upper(upper_dir(state, layer), like)


def _take_back(store: Store, run: Run, rows: list[LayerRow], caches: tuple[CacheLayer, ...]) -> None:
    layers, cache_ids = tuple(row.id for row in rows), tuple(map(_open_id, caches))
    with store.transaction:
        store.layers.remove(layers)
        store.caches.remove(cache_ids)
        store.runs.remove(run.id)
        drop(store.state, layers + cache_ids)
    clean(store.state, Garbage(uppers=layers + cache_ids, works=layers + cache_ids))


def _close(
    store: Store,
    opened: OpenRun,
    ended: Run,
    keep: set[LayerId],
    *,
    fold: bool,
    rootfs: bool = True,
) -> tuple[Stack, ...]:
    layers = _open_layers(opened)
    dropped = [layer.id for layer in layers if layer.id not in keep]
    caches = [_open_id(cache) for cache in (*opened.caches, *opened.rootfs)]
    left = _fold_all(store, opened, rootfs=rootfs) if fold else caches
    with store.transaction:
        for layer in layers:
            if layer.id in keep and not store.layers.seal(layer.id, layer.mark.ctime_ns):
                raise SandboxUnavailable(f"Layer {layer.id} is gone: another process believed that its owner was dead.")
        store.layers.remove(dropped)
        store.caches.remove(left)
        unused = store.caches.take_unused() if caches else ()
        store.runs.end(ended.replace(held=bool(keep)))
        drop(store.state, (*dropped, *left, *unused))
    _clean_soon(
        store.state,
        Garbage(uppers=(*dropped, *left, *unused), works=(*(layer.id for layer in layers), *caches)),
    )
    end_going_on(ended.id)
    return tuple(_close_stack(stack, keep) for stack in opened.stacks)


def _fold_all(store: Store, opened: OpenRun, *, rootfs: bool) -> list[LayerId]:
    left = _fold_caches(store, opened.project, opened.caches)
    if rootfs and opened.rootfs:
        return left + _fold_caches(store, rootfs_owner(SandboxId(opened.run.sandbox)), opened.rootfs)
    return left + [_open_id(top) for top in opened.rootfs]


def _open_layers(opened: OpenRun) -> list[OpenLayer]:
    return [stack.open for stack in opened.stacks if stack.open is not None]


def _close_stack(stack: Stack, keep: set[LayerId]) -> Stack:
    layer = stack.open
    if layer is None or layer.id not in keep:
        return stack.replace(open=None)
    sealed = SealedLayer(id=layer.id, upper=layer.upper, mark=layer.mark, run=layer.run)
    return stack.replace(open=None, sealed=(*stack.sealed, sealed))


def _is_used(store: Store, sandbox: SandboxId) -> bool:
    """Tell whether a run that does not hold its changes stands on a sandbox's layers right now."""
    runs = {row.run for row in store.layers.open(sandbox)}
    return bool(runs) and any(run.id in runs and not is_abandoned(run) for run in store.runs.unfinished())


def _to_stack(root: bytes, sealed: Iterable[SealedLayer], mask: bytes | None, base: bytes | None) -> Stack:
    live = stat_root(root)
    return Stack(live=root, device=live.st_dev, inode=live.st_ino, sealed=tuple(sealed), mask=mask, base=base)


def _hidden_in(stack: Stack) -> Iterator[bytes]:
    seen: set[bytes] = set()
    for layer in reversed(stack.sealed):
        try:
            with os.scandir(layer.upper) as entries:
                found = {entry.name: _is_deletion(entry) for entry in entries}
        except (PermissionError, FileNotFoundError):
            # A command has closed the project's own directory, which is said elsewhere; or an apply has the layer
            continue
        for name, is_deleted in found.items():
            if is_deleted and name not in seen and os.path.lexists(stack.live + b"/" + name):
                yield stack.live + b"/" + name
        seen.update(found)


def _is_deletion(entry: os.DirEntry[bytes]) -> bool:
    # The list itself says what most entries are
    is_other = not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False) or entry.is_symlink())
    return is_other and is_whiteout(entry.stat(follow_symlinks=False))


def _find_caches(paths: Iterable[bytes]) -> dict[bytes, Identity]:
    """Return device and inode of those paths that are directories now."""
    found: dict[bytes, Identity] = {}
    for path in paths:
        try:
            live = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISDIR(live.st_mode):
            found[path] = live.st_dev, live.st_ino
    return found


def _record_caches(store: Store, project: bytes, run: RunId, found: dict[bytes, Identity]) -> tuple[CacheLayer, ...]:
    """Read the stacks of a project's caches and record an open layer on top of each, in the caller's transaction."""
    if not found:
        return ()
    sealed: dict[bytes, list[SealedLayer]] = {path: [] for path in found}
    for row in store.caches.sealed(project):
        if row.path in sealed:
            layer = SealedLayer(id=row.id, upper=upper_dir(store.state, row.id), mark=_NO_MARK, run=row.run)
            sealed[row.path].append(layer)
    rows = [
        CacheRow(id=new_id(), project=project, path=path, run=run, base=layers[-1].id if layers else None)
        for path, layers in sealed.items()
    ]
    store.caches.add_open(rows)
    return tuple(_make_cache(store.state, row, found[row.path], sealed[row.path]) for row in rows)


def _make_cache(state: bytes, row: CacheRow, live: Identity, sealed: list[SealedLayer]) -> CacheLayer:
    upper, work = upper_dir(state, row.id), work_dir(state, row.id)
    layer = OpenLayer(id=row.id, upper=upper, work=work, mark=_NO_MARK, run=row.run)
    stack = Stack(live=row.path, device=live[0], inode=live[1], sealed=tuple(sealed), open=layer)
    return CacheLayer(path=row.path, stack=stack)


def _make_caches(state: bytes, caches: Iterable[CacheLayer]) -> None:
    """Make the directories of caches that are recorded."""
    for cache in caches:
        _make_layer(state, _open_id(cache), cache.stack.lowers()[0])


def _fold_caches(store: Store, project: bytes, caches: Iterable[CacheLayer]) -> list[LayerId]:
    """Put what a run wrote on top of the caches; return the layers that did not become part of a stack.

    Those are the ones that nothing was written to, or that another run was faster with.

    Call it before the run's end is recorded: until then a crash leaves nothing that the sweep does not find.
    """
    left: list[LayerId] = []
    for cache in caches:
        layer = _open_layer(cache)
        row = CacheRow(id=layer.id, project=project, path=cache.path, run=layer.run)
        if is_empty(layer.upper) or not store.caches.fold(row):
            left.append(layer.id)
        elif len(cache.stack.sealed) + 1 >= FAN:
            _squash(store, project, cache.path, layer.run, FAN)
    return left


def _open_id(cache: CacheLayer) -> LayerId:
    """Return the id of the layer that a run writes."""
    return _open_layer(cache).id


def _open_layer(cache: CacheLayer) -> OpenLayer:
    layer = cache.stack.open
    assert layer is not None
    return layer


def _squash(store: Store, project: bytes, path: bytes, run: RunId, fan: int) -> None:
    """Squash a cache's newest tiers that have `fan` layers, each into one layer of the next tier that shows the same.

    The layers that are replaced stay whole for runs that still have them mounted; they go when the last of those has
    ended. A cache that can't be squashed is cut back instead: it is only a cache. What was written to a rootfs stays as
    it is then. `run` is the caller's, and not ended yet.
    """
    while True:
        layers = tuple(row for row in store.caches.sealed(project) if row.path == path)
        old = _full_tier(layers, fan)
        if not old:
            return
        row = CacheRow(id=new_id(), project=project, path=path, run=run, tier=old[0].tier + 1)
        store.caches.add_open((row,))
        uppers = tuple(upper_dir(store.state, layer.id) for layer in old)
        below = (path, *(upper_dir(store.state, layer.id) for layer in layers if layer.position < old[0].position))
        merged = upper_dir(store.state, row.id)
        try:
            make_upper(merged, uppers[-1])
            merge_uppers(uppers, below, merged)
            done = store.caches.replace(old, row)
        except OSError:
            if project.startswith(ROOTFS_OWNER):
                # Nothing could bring back what was installed; there is room for some more layers
                _remove_squashed(store, row)
                return
            _cut_back(store, project, path, old)
            done = False
        if not done:
            _remove_squashed(store, row)


def _full_tier(layers: tuple[CacheRow, ...], fan: int) -> tuple[CacheRow, ...]:
    """Return the layers of the newest tier that has enough of them; higher tiers lie below lower ones."""
    for tier in sorted({layer.tier for layer in layers}):
        full = tuple(layer for layer in layers if layer.tier == tier)
        if len(full) >= fan:
            return full
    return ()


def _cut_back(store: Store, project: bytes, path: bytes, old: tuple[CacheRow, ...]) -> None:
    """Give a cache up that can't be squashed, unless somebody else was faster and took its layers away meanwhile.

    Too long a path, too many links, a directory without rights: whatever a command left there. What lies above was
    written for what lies below, so all of it goes.
    """
    with store.transaction:
        layers = tuple(row for row in store.caches.sealed(project) if row.path == path)
        if {layer.id for layer in old} <= {layer.id for layer in layers}:
            store.caches.retire(layers)


def _remove_squashed(store: Store, row: CacheRow) -> None:
    with store.transaction:
        store.caches.remove((row.id,))
        drop(store.state, (row.id,))
    _remove_uppers(store.state, (row.id,))


def _move_away(source: bytes, dest: bytes) -> None:
    try:
        os.rename(source, dest)
    except PermissionError:
        # The result of the run counts more. The next sweep finds it without a row and sets it aside.
        return


def _remove_uppers(state: bytes, layers: Iterable[LayerId]) -> None:
    """Remove the upper directories of layers, dropped or not."""
    for layer in layers:
        for path in (upper_dir(state, layer), dropped_dir(state, layer)):
            if os.path.lexists(path):
                remove_tree(path)
        if os.path.lexists(base := base_dir(state, layer)):
            remove_tree(base)


def _remove_work(work: bytes) -> None:
    try:
        # What a volatile mount leaves, all of it mode 000. Only the kernel writes here, so names are safe to use;
        # a walk costs three times as much, and each run has it once for every root and cache.
        for part in VOLATILE_DIRECTORIES:
            os.chmod(os.path.join(work, part), 0o700)
        os.unlink(os.path.join(work, VOLATILE_FILE))
        for part in reversed(VOLATILE_DIRECTORIES):
            os.rmdir(os.path.join(work, part))
        os.rmdir(work)
    except OSError:
        remove_tree(work)


def _filesystem_clock() -> int:
    """Return the moment of the clock that most filesystems stamp with.

    Those that are behind it, such as a server's, give an older mark, which then counts.
    """
    return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE)


def _clock_mark(live: os.stat_result) -> int:
    now = _filesystem_clock()
    # A filesystem that keeps no fractions cuts them off, by at most two seconds (FAT).
    keeps_fractions = live.st_ctime_ns % _SECOND or live.st_mtime_ns % _SECOND
    return now if keeps_fractions else now - now % _SECOND - _SECOND


class _MergedDirectory(Record):
    """A directory to merge: `sources` have it, the newest first, and so have those `below` that show through."""

    path: bytes
    sources: tuple[bytes, ...]
    below: tuple[bytes, ...]
    opaque: bool = False


def _merge_one(part: _MergedDirectory, dest: bytes) -> list[_MergedDirectory]:
    """Link the entries of one directory that are none themselves; make and return those that are."""
    parts: list[_MergedDirectory] = []
    for name, entries in _collect(part).items():
        path = os.path.join(part.path, name)
        target = os.path.join(dest, path)
        if entries[0].is_dir(follow_symlinks=False):
            os.mkdir(target, 0o700)
            parts.append(_enter(part, path, entries))
        # In a directory that only one layer has, the kernel does not look for whiteouts: it lists them as names.
        elif part.below or not is_whiteout(entries[0].stat(follow_symlinks=False)):
            _link(entries[0].path, target)
    return parts


def _collect(part: _MergedDirectory) -> dict[bytes, Entries]:
    """Return the entries of a directory by name, the newest layer's first."""
    found: dict[bytes, Entries] = {}
    for source in part.sources:
        with os.scandir(os.path.join(source, part.path)) as entries:
            for entry in entries:
                found.setdefault(entry.name, []).append(entry)
    return found


def _enter(parent: _MergedDirectory, path: bytes, entries: Entries) -> _MergedDirectory:
    """Return which directories show at `path`: down to the first that is opaque, or no directory."""
    # Cut the path itself off again: what is left is the upper that the entry lies in.
    having = [entry.path[: -len(path) - 1] for entry in entries]
    sources, is_closed = _showing(having, path)
    if is_closed:
        return _MergedDirectory(path=path, sources=sources, below=(), opaque=True)
    return _MergedDirectory(path=path, sources=sources, below=_showing(parent.below, path)[0])


def _showing(tops: Iterable[bytes], path: bytes) -> tuple[tuple[bytes, ...], bool]:
    """Return those of `tops` whose directory at `path` shows, and whether it hides all that is further below."""
    found: list[bytes] = []
    for top in tops:
        full = os.path.join(top, path)
        try:
            state = os.lstat(full)
        except FileNotFoundError:
            continue
        if not stat.S_ISDIR(state.st_mode):
            return tuple(found), True
        found.append(top)
        if is_opaque(full):
            return tuple(found), True
    return tuple(found), False


def _link(source: bytes, target: bytes) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError as error:
        # All whiteouts of a mount are one inode, so they are the first to have too many links.
        if error.errno != errno.EMLINK or not stat.S_ISCHR(os.lstat(source).st_mode):
            raise
        make_whiteout(target)


def _set_metadata(part: _MergedDirectory, dest: bytes) -> None:
    """Give a merged directory the mode, times and attributes of the newest one."""
    newest, target = os.path.join(part.sources[0], part.path), os.path.join(dest, part.path)
    # What overlayfs keeps for itself (origin, impure, uuid) belongs to the old directory.
    for name, value in user_attributes(newest, list_attributes(newest)).items():
        os.setxattr(target, name, value)
    if part.opaque:
        os.setxattr(target, OPAQUE, b"y")
    state = os.lstat(newest)
    os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))
    os.chmod(target, stat.S_IMODE(state.st_mode))


def _own_dir(path: bytes, what: str) -> bytes:
    try:
        make_parents(path)
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreError(
            f"The {what} {os.fsdecode(path)} can't be created: {error.strerror}.",
            remedy="Check for free space and permissions there, or point XDG_DATA_HOME at another directory.",
        ) from error
    found = stat_root(path)
    if found.st_uid != os.geteuid():
        raise StoreError(f"The {what} {os.fsdecode(path)} belongs to user {found.st_uid}.", remedy="Move it elsewhere.")
    if found.st_mode & 0o077:
        os.chmod(path, 0o700)
    return path


class Swept(Record):
    """What a sweep removed: runs whose owner was dead, and directories that nobody needs."""

    runs: tuple[RunId, ...] = ()
    directories: int = 0


def sweep(store: Store) -> Swept:
    """Remove all garbage of the state directory; cheap where there is none."""
    abandoned = [run for run in store.runs.unfinished() if is_abandoned(run)]
    for run in abandoned:
        if not may_live(run) or end_processes(store, run.id):
            drop_caches(store, run.id)
    removed = tuple(run.id for run in abandoned if not (run.keeps and store.layers.open_of_run(run.id)))
    for identity in removed:
        remove_run(store, identity)
    for row in store.layers.folding():
        _remove_half_folded(store, row)
    for ended in store.caches.runs_left():
        owned = store.runs.find_owned(ended)
        if owned is None or is_abandoned(owned):
            drop_caches(store, ended)
    with store.transaction:
        unused = (*store.caches.take_unused(), *store.layers.take_unused())
        drop(store.state, unused)
    clean(store.state, Garbage(uppers=unused))
    # Uppers first: a row whose upper was dropped goes with it, and only then its work directory has none
    directories = _sweep_uppers(store) + _sweep_works(store) + _sweep_bases(store)
    _set_outputs_aside(store)
    return Swept(runs=removed, directories=directories)


def end_processes(store: Store, run: RunId) -> bool:
    """Kill what is alive of a run; tell whether nothing is, and record it, so that nobody looks again."""
    from unspill.host.job import end_run  # lazy: upkeep

    layers = (*(row.id for row in store.layers.open_of_run(run)), *store.caches.open_of_run(run))
    is_over = end_run(run, layers)
    if is_over:
        store.runs.disown(run)
    return is_over


def drop_caches(store: Store, run: RunId) -> None:
    """Remove what a run whose processes are dead wrote to caches: a cache may always be thrown away."""
    caches = store.caches.open_of_run(run)
    clean(store.state, Garbage(uppers=caches, works=caches))
    store.caches.remove(caches)


def remove_run(store: Store, run: RunId) -> None:
    """Remove the open layers of a run whose processes are dead, then say in its row that it was interrupted."""
    drop_caches(store, run)
    remove_tree(spill_dir(store.state, run))
    remove_open(store, [row.id for row in store.layers.open_of_run(run)])
    store.runs.interrupt(run, time.time_ns())


def remove_open(store: Store, layers: Sequence[LayerId]) -> None:
    """Remove open layers of a run whose processes are dead, first what they hold, then their rows."""
    clean(store.state, Garbage(uppers=tuple(layers), works=tuple(layers)))
    store.layers.remove(layers)


def sweep_operations(store: Store) -> int:
    """Remove directories of operations that never had a journal, or have none any more because they were pruned.

    One with a journal and without a row is set aside, unless a prune has begun to forget it. Takes as long as there
    are operations, so it is not done at each start.
    """
    path, names = _list(store.state, b"operations")
    # In this order: an operation is pending before its directory is there, and until its row is.
    names -= _list(store.state, b"pending")[1]
    unknown = names - store.operations.ids() if names else names
    whole = {name for name in unknown if os.path.lexists(_inside(path, name, b"journal"))}
    set_aside(store.state, b"operations", {name for name in whole if not is_being_pruned(store.state, name)})
    return _remove_all(path, unknown - whole)


def is_being_pruned(state: bytes, operation: str) -> bool:
    """Tell whether a prune has begun to forget an operation."""
    return os.path.lexists(_inside(state + b"/operations", operation, PRUNED))


def _remove_half_folded(store: Store, row: LayerRow) -> None:
    """Remove a layer that others were being folded into, unless that is going on, or a living process keeps it."""
    owned = store.runs.find_owned(row.run)
    if owned is not None and not is_abandoned(owned):
        return
    lock = SandboxLock(store.state, row.sandbox)
    if lock.try_acquire():
        with lock:
            # It may have been finished before the lock was free
            if row.id in {open_row.id for open_row in store.layers.open(row.sandbox)}:
                remove_open(store, (row.id,))


def _sweep_works(store: Store) -> int:
    path, names = _list(store.state, b"work")
    unknown = names - (store.layers.ids(only_open=True) | store.caches.ids(only_open=True)) if names else names
    return sum(remove_unused(os.path.join(path, os.fsencode(name))) for name in unknown)


def _sweep_uppers(store: Store) -> int:
    """Remove what was dropped, and empty directories without a row; set aside those with a content."""
    path, names = _list(store.state, b"layers")
    dropped = {name for name in names if name.endswith(_DROPPED)}
    unknown = names - dropped - (store.layers.ids() | store.caches.ids()) if names else names
    if dropped:
        # Whoever dropped a layer may have died before its row was gone
        ids = [LayerId(name) for full in dropped if is_id(name := full.removesuffix(_DROPPED))]
        with store.transaction:
            store.layers.remove(ids)
            store.caches.remove(ids)
    lost = {name for name in unknown if not _remove_empty(os.path.join(path, os.fsencode(name)))}
    set_aside(store.state, b"layers", lost)
    return _remove_all(path, dropped) + len(unknown - lost)


def _remove_empty(path: bytes) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _sweep_bases(store: Store) -> int:
    """Remove bases of layers that are nowhere; one that was set aside keeps its own."""
    try:
        path, names = _list(store.state, b"bases")
    except FileNotFoundError:
        return 0
    # The layers of an operation that is under way lie in its own directory. It has rows for them before it ends, so
    # this is looked at before the rows are.
    if not names or _list(store.state, b"pending")[1]:
        return 0
    known = store.layers.ids()
    # Whoever fills one that is new does so for a layer that is known
    unknown = {name for name in names if name.removesuffix(".new") not in known}
    return _remove_all(path, unknown - list_aside(store.state).keys())


def _set_outputs_aside(store: Store) -> None:
    """Set aside output of runs that have no row."""
    names = _list(store.state, b"runs")[1]
    if names:
        set_aside(store.state, b"runs", names - store.runs.known(names))


def _inside(path: bytes, name: str, entry: bytes) -> bytes:
    return os.path.join(path, os.fsencode(name), entry)


def _list(state: bytes, part: bytes) -> tuple[bytes, set[str]]:
    path = state + b"/" + part
    return path, set(os.listdir(os.fsdecode(path)))


def _remove_all(parent: bytes, names: set[str]) -> int:
    return sum(remove_tree(os.path.join(parent, os.fsencode(name))) for name in names)
