# SPDX-License-Identifier: Apache-2.0
"""What a run left in its layers now that every process of it is dead, also where its own process was killed meanwhile.

A repository is found before the run and kept with what the run wrote.

A run without a result is unfinished until the one transaction that seals its layers, and the next opening finds it
again; from then on it is a held one. So a crash here loses nothing. If the process was killed, all that the command
wrote until then is kept. After a power cut it is what the filesystem kept: nothing was synchronised, so a file may be
empty or old. `sweep_once` removes what else dead processes left, before a state directory is used.
"""

from __future__ import annotations

import os
import stat
import time

from unspill.errors import ProjectBusy, SandboxUnavailable, UnspillError
from unspill.git.files import is_state
from unspill.host.libc import DeferredSignals
from unspill.host.overlay import OPAQUE, ORIGIN, hides_below, is_whiteout, list_attributes
from unspill.layers.lifecycle import (
    OpenRun,
    drop_caches,
    drop_run,
    end_processes,
    find_base,
    has_others,
    is_empty,
    is_untouched,
    remove_open,
    remove_run,
    seal_run,
    sweep,
)
from unspill.layers.locks import (
    LayerMissing,
    SandboxLock,
    base_dir,
    base_link,
    is_abandoned,
    is_left,
    may_live,
    spill_dir,
    upper_dir,
    work_dir,
)
from unspill.layers.trees import remove_tree, unlink_in_closed
from unspill.lazy import lazy_module
from unspill.model.change import ChangeSet
from unspill.model.policy import Limits
from unspill.model.run import Cancelled, LimitReached, OpenLayer, TimeMark
from unspill.policy.paths import quote
from unspill.runner.watch import find_excess
from unspill.sandbox.result import record_failure, record_run
from unspill.sandbox.secrets import load_masked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from unspill.apply import bases
    from unspill.apply.bases import Explains
    from unspill.changes import scan as changes_scan
    from unspill.git import frozen
    from unspill.host import cgroup
    from unspill.model.change import Change
    from unspill.model.operation import Operation
    from unspill.model.plan import Facts
    from unspill.model.run import LayerId, Run, SealedLayer, Stack
    from unspill.runner.perform import Performed
    from unspill.sandbox import beside
    from unspill.sandbox.planning import RunSpec
    from unspill.sandbox.project import Project
    from unspill.sandbox.result import RunResult
    from unspill.store.db import Store
    from unspill.store.layers import LayerRow, SandboxRow
    from unspill.store.runs import UnfinishedRun

    Found = TypeVar("Found")
else:
    bases = lazy_module("unspill.apply.bases")  # lazy: merge
    beside = lazy_module("unspill.sandbox.beside")  # lazy: changes
    frozen = lazy_module("unspill.git.frozen")  # lazy: git
    changes_scan = lazy_module("unspill.changes.scan")  # lazy: changes
    cgroup = lazy_module("unspill.host.cgroup")  # lazy: upkeep

_REVIEW = "See `unspill changes`, then `unspill apply` or `unspill discard`."
_LONGEST_COMMAND = 60
_FILES = (stat.S_IFREG, stat.S_IFLNK)
# What several held runs have changed, of a sandbox; losing it costs a conflict
_CHANGED_AGAIN = "changed again in "
_MOST_WATCHED = 1000
# How long a look at held layers waits for an operation that has them in its hands, and between two looks
_PATIENCE_S = 60.0
_PAUSE_S = 0.01
_swept: set[tuple[int, bytes]] = set()


def with_last_look(performed: Performed, under_way: OpenRun, limits: Limits) -> Performed:
    """Name the bound that a run outgrew after it was last measured, or where nobody could look while it ran."""
    excess = None if isinstance(performed.outcome, LimitReached) else excess_of(under_way, limits)
    return performed if excess is None else performed.replace(outcome=excess)


def excess_of(under_way: OpenRun, limits: Limits) -> LimitReached | None:
    """Return the bound that the layers of a run exceed, if any. Every process of it is dead."""
    stacks = (*under_way.stacks, *(cache.stack for cache in (*under_way.caches, *under_way.rootfs)))
    uppers = tuple(stack.open.upper for stack in stacks if stack.open is not None and not is_empty(stack.open.upper))
    return find_excess(limits, uppers, is_over=True) if uppers else None


def is_unwritten(under_way: OpenRun) -> bool:
    """Tell whether nothing at all was written to the roots of a run."""
    return all(stack.open is None or is_untouched(stack.open.upper, stack.lowers()[0]) for stack in under_way.stacks)


def _without_noise(changes: ChangeSet, upper: bytes, below: tuple[bytes, ...]) -> ChangeSet:
    """Leave out what git did for itself: an index that was only refreshed, objects that were packed or cleaned away.

    It goes from the layer too. Held, it would show the next run a repository that the person has left behind.
    """
    if not any(b".git/" in change.path for change in changes):
        return changes
    from unspill.git.state import find_noise, find_repositories  # lazy: git

    parts = []
    for part in changes.roots:
        noise = find_noise(find_repositories(part, (upper,), below, is_frozen=True))
        for path in sorted(noise, reverse=True):
            _remove(upper + b"/" + path)
        for directory in {path.rpartition(b"/")[0] for path in noise}:
            _make_transparent(upper + b"/" + directory)
        parts.append(part.replace(changes=tuple(change for change in part.changes if change.path not in noise)))
    return changes.replace(roots=tuple(part for part in parts if part.changes))


def remove_unchanged(changes: ChangeSet, under_way: OpenRun) -> None:
    """Take out of a run's layers what changes nothing: files with a new time alone, and what the project has already.

    Held, such a file or deletion would hide what the person makes of it meanwhile.
    """
    if changes.is_cut:
        # What is not listed may be a change
        return
    changed = {
        part.root: {change.path for change in part.changes if not change.is_mere_touch} for part in changes.roots
    }
    for stack in under_way.stacks:
        if stack.open is not None:
            _remove_unchanged(stack.open.upper, changed.get(stack.live, set()))


def _remove_unchanged(upper: bytes, changed: set[bytes]) -> None:
    """Take entries out of a layer by which it changes nothing, and the directories that only they were in."""
    found: list[tuple[bytes, list[bytes]]] = []
    hiding: set[bytes] = set()
    for above, directories, names in os.walk(upper):
        links = [name for name in directories if os.path.islink(above + b"/" + name)]
        found.append((above, names + links))
        if above != upper and (os.path.dirname(above) in hiding or hides_below(above)):
            hiding.add(above)
    for above, names in reversed(found):
        if b"/.git/" in above[len(upper) :] + b"/":
            continue
        for name in names if above not in hiding else ():
            place = above + b"/" + name
            if place[len(upper) + 1 :] not in changed and _may_go(place):
                _remove(place)
        if above != upper and above[len(upper) + 1 :] not in changed:
            _mark_as_copied_up(above)
            if above not in hiding:
                _remove(above)


def _may_go(place: bytes) -> bool:
    """Tell whether this is a file, a link or a mark of a deletion."""
    try:
        status = os.lstat(place)
        return stat.S_IFMT(status.st_mode) in _FILES or is_whiteout(status)
    except OSError:
        # A command has closed the directory to its owner
        return False


def _mark_as_copied_up(directory: bytes) -> None:
    """Mark a directory as one that was copied up: removed and made again as it was, it is no new one either."""
    try:
        if ORIGIN not in list_attributes(directory):
            os.setxattr(directory, ORIGIN, b"", follow_symlinks=False)
    except OSError:
        # Closed to its owner: should the person delete it meanwhile, it is made again
        return


def _make_transparent(directory: bytes) -> None:
    """Show again what lies below a directory that was removed and made anew."""
    try:
        os.removexattr(directory, OPAQUE, follow_symlinks=False)
    except OSError:
        # It hides nothing, or is not there
        return


def _remove(path: bytes) -> None:
    try:
        if stat.S_ISDIR(os.lstat(path).st_mode):
            os.rmdir(path)
        else:
            unlink_in_closed(path)
    except OSError:
        # Something lies in it, it is below something that is gone, or has too long a name: it stays, and means nothing
        return


def scan_run(under_way: OpenRun) -> ChangeSet:
    """Return what a run changed against what it saw. Every process of it is dead."""
    parts = []
    for stack in under_way.stacks:
        assert stack.open is not None
        lowers = stack.lowers()
        if is_untouched(stack.open.upper, lowers[0]):
            continue

        found = changes_scan.scan((stack.open.upper,), lowers[:-1], stack.live)
        parts.append(_without_noise(found, stack.open.upper, lowers[:-1]))
    if not parts:
        return ChangeSet(roots=())

    return changes_scan.join(parts)


def find_bases(project: Project) -> tuple[tuple[bytes, bytes], ...]:
    """Return the repositories of the roots as they stand now: a run sees them so, whatever happens meanwhile."""
    roots = [root for root in project.roots if os.path.lexists(root + b"/.git")]
    if not roots:
        return ()

    try:
        found = [(root, frozen.find_frozen(project.store.state, root)) for root in roots]
    except OSError as error:
        raise SandboxUnavailable(
            f"The state of a git repository can't be kept for the run: {error.strerror}.",
            remedy="Look for free space and free inodes in the state directory, or point UNSPILL_STATE_DIR elsewhere.",
        ) from error
    return tuple((root, base) for root, base in found if base is not None)


def keep_bases(project: Project, under_way: OpenRun, changes: ChangeSet | None) -> None:
    """Keep repositories that a run moved as they stood when it began, for as long as its changes are held.

    Not those in which it wrote a hook, say: the next run shall see what the person commits meanwhile. `changes` is None
    where what the run wrote can't be read.
    """
    state = project.store.state
    for stack in under_way.stacks:
        if stack.base is None or stack.open is None or find_base(state, stack.sealed) is not None:
            continue

        if changes is None or any(is_state(change.path) for change in changes.of_root(stack.live)):
            frozen.keep_frozen(stack.base, base_dir(state, stack.open.id))


def keep_seen(
    project: Project,
    under_way: OpenRun,
    changes: ChangeSet | None,
    explained: Mapping[bytes, Explains] | None = None,
    *,
    may_read: bool = True,
) -> None:
    """Keep what a run saw where it changed something, so that the person's edits are known and can be merged.

    What checkpoints changed in a root is `explained`. Unless it `may_read`, the content is not kept.
    """
    taken_away = dict(under_way.taken_away)
    for stack in under_way.stacks:
        part = () if changes is None else changes.of_root(stack.live)
        if stack.open is not None and part:
            layer, mark_ns, taken = stack.open.id, stack.open.mark.ctime_ns, taken_away.get(stack.live)
            explains = explained[stack.live] if explained else None
            bases.keep_seen_bases(project.store, stack, layer, mark_ns, part, taken, explains, may_read=may_read)
            _watch(project, _changed_again(project.store, stack, part))


def _changed_again(store: Store, stack: Stack, changes: Sequence[Change]) -> dict[tuple[bytes, bytes], int]:
    """Return what earlier held runs changed too, with the time of what is live; -1 where that may be new since."""
    if not stack.sealed:
        return {}
    # A path that the person edited before its layer was folded has an older mark of its own
    marks = [mark for layer in stack.sealed for mark in (layer.mark.ctime_ns, *store.marks.of(layer.id).values())]
    since, found = min(marks), {}
    for change in changes:
        if any(os.path.lexists(layer.upper + b"/" + change.path) for layer in stack.sealed):
            moment = _moment_of(stack.live, change.path)
            # What is not there may have been deleted since
            found[stack.live, change.path] = moment if 0 < moment < since else -1
    return found


def has_news(project: Project) -> bool:
    """Tell whether the person has changed something where a held run may have taken back what an earlier one did."""
    return any(_moment_of(root, path) != moment for (root, path), moment in _watched(project).items())


def look_again(project: Project) -> None:
    """Take for known what is there now."""
    _watch(project, {place: _moment_of(*place) for place in _watched(project)})


def _watch(project: Project, moments: dict[tuple[bytes, bytes], int]) -> None:
    if moments:
        latest = [*(_watched(project) | moments).items()][-_MOST_WATCHED:]
        rows = (f"{root.hex()} {path.hex()} {moment}" for (root, path), moment in latest)
        project.store.facts.put(_CHANGED_AGAIN + project.row.id, "\n".join(rows))


def _watched(project: Project) -> dict[tuple[bytes, bytes], int]:
    """Return what several held runs have changed, with the time of what was live there then."""
    rows = (row.split() for row in (project.store.facts.find(_CHANGED_AGAIN + project.row.id) or "").splitlines())
    return {(bytes.fromhex(root), bytes.fromhex(path)): int(moment) for root, path, moment in rows}


def _moment_of(root: bytes, path: bytes) -> int:
    """Return when an entry was changed; 0 where there is none."""
    try:
        return os.lstat(root + b"/" + path).st_ctime_ns
    except OSError:
        return 0


def keep_base(base: bytes | None, root: bytes, changes: Sequence[Change], dest: bytes) -> None:
    """Keep a repository as a stack was written over it for what of its changes remains, with the objects it needs.

    Not for a new worktree alone, which may wait while the repository goes on: the next run shall see it as it is then.
    """
    if base is None:
        return

    new = tuple(
        change.path + b"/"
        for change in changes
        if change.kind == "added" and change.path.rpartition(b"/")[0].endswith(b".git/worktrees")
    )
    if any(is_state(change.path) and not change.path.startswith(new) for change in changes):
        frozen.keep_frozen(base, dest)
        frozen.keep_objects(root, dest)


def keep_base_objects(project: Project, under_way: OpenRun) -> None:
    """Keep the objects that a run built on whose changes are held: git may remove them from the project at any time."""
    state = project.store.state
    for stack in under_way.stacks:
        if stack.open is not None and os.path.lexists(stack.open.upper + b"/.git"):
            base = find_base(state, stack.sealed) or base_dir(state, stack.open.id)
            if os.path.lexists(base):
                frozen.keep_objects(stack.live, base)


def left_base(project: Project, layer: LayerId) -> bytes | None:
    """Return the repository that an open layer of a killed process was written over."""
    try:
        base = os.readlink(base_link(project.store.state, layer))
    except OSError:
        return None
    return base if os.path.isdir(base) else None


def hold_of_project(project: Project) -> tuple[Run, ...]:
    """Hold what runs of a project had written when their processes were killed; return those to tell the person of.

    That is: the held ones, and those that were too large. A sandbox that is in use is left to whoever uses it.
    """
    sandboxes = {row.id: row for row in project.store.sandboxes.of_project(project.path)}
    found: list[Run] = []
    for run in project.store.runs.unfinished():
        if run.keeps and run.sandbox in sandboxes and is_abandoned(run):
            lock = SandboxLock(project.store.state, run.sandbox)
            if lock.try_acquire():
                with lock:
                    found += _try_hold(project, sandboxes[run.sandbox], run)
    return tuple(found)


def hold_of_sandbox(project: Project) -> tuple[Run, ...]:
    """Do the same for one sandbox, before the next run of it. Its lock is held.

    Such a run lost its process; or this process was interrupted twice and did not come to hold it.
    """
    found: list[Run] = []
    for run in project.store.runs.unfinished():
        if run.keeps and run.sandbox == project.row.id and is_left(run):
            found += _try_hold(project, project.row, run)
    return tuple(found)


def _try_hold(project: Project, sandbox: SandboxRow, left: UnfinishedRun) -> list[Run]:
    """Hold what a run has written, if that can be done now: a root may be gone, or the disk full."""
    try:
        return _hold(project, sandbox, left)
    except (OSError, UnspillError):
        return []


def _hold(project: Project, sandbox: SandboxRow, left: UnfinishedRun) -> list[Run]:
    store = project.store
    run = store.runs.find(left.id)
    if run is None or run.ended_ns is not None:
        return []  # another process was faster
    if may_live(left) and not end_processes(store, left.id):
        return []  # what can't be killed may still write
    if project.means.facts.cgroup != "none":
        cgroup.sweep_groups(project.means.facts.cgroup, (left.id,))
    opened = store.layers.open_of_run(run.id)
    rows = [row for row in opened if os.path.isdir(upper_dir(store.state, row.id))]
    if not rows:
        remove_run(store, run.id)
        return []
    drop_caches(store, run.id)
    # Killed while it made its layers, one for each root
    remove_open(store, [row.id for row in opened if row not in rows])
    remove_tree(spill_dir(store.state, run.id))
    limits = Limits(layer_bytes=left.layer_bytes, layer_entries=left.layer_entries)
    held = _hold_written(project.replace(row=sandbox), _reopened(project, sandbox, run, rows), limits)
    return [held] if held.held or held.outcome is not None else []


def _reopened(project: Project, sandbox: SandboxRow, run: Run, rows: list[LayerRow]) -> OpenRun:
    """Return a run as it was under way, from what the store has of it."""
    state, by_root = project.store.state, {row.root: row for row in rows}
    stacks = load_masked(project.replace(row=sandbox, roots=tuple(by_root)))
    layers = {
        root: OpenLayer(
            id=row.id,
            upper=upper_dir(state, row.id),
            work=work_dir(state, row.id),
            mark=TimeMark(ctime_ns=row.mark_ns),
            run=run.id,
        )
        for root, row in by_root.items()
    }
    stacks = tuple(
        stack.replace(
            open=layers[stack.live],
            base=stack.base or left_base(project, layers[stack.live].id),
            sealed=tuple(layer for layer in stack.sealed if _is_older(project.store, layer, run)),
        )
        for stack in stacks
    )
    return OpenRun(run=run, project=project.path, stacks=stacks)


def _is_older(store: Store, layer: SealedLayer, run: Run) -> bool:
    """Tell whether a layer was sealed before a run began, which then stood on it."""
    found = store.runs.find(layer.run)
    return found is None or found.ended_ns is None or found.ended_ns < run.started_ns


def _hold_written(project: Project, under_way: OpenRun, limits: Limits) -> Run:
    """Seal the layers of a run whose processes are dead. Drop them if nothing was changed, or too much written."""
    ended = under_way.run.replace(ended_ns=time.time_ns(), outcome=excess_of(under_way, limits))
    changes: ChangeSet | None = None
    try:
        changes = scan_run(under_way) if ended.outcome is None else ChangeSet(roots=())
        changed = sum(not change.is_mere_touch for change in changes)
        ended = ended.replace(changed=changed, held=bool(changed))
    except (OSError, UnspillError):
        # What can't be read now is kept all the same
        ended = ended.replace(held=True)
    if ended.held:
        keep_seen(project, under_way, changes)
    if ended.held and has_others(project.store, under_way):
        apart = beside.find_apart(project, under_way, changes)
        if apart is not None:
            under_way = beside.move_apart(project, under_way, apart, changes)
            ended = ended.replace(sandbox=under_way.run.sandbox)
    if ended.held:
        keep_bases(project, under_way, changes)
        if changes is not None:
            remove_unchanged(changes, under_way)
    (seal_run if ended.held else drop_run)(project.store, under_way, ended, fold=False)
    if ended.held:
        keep_base_objects(project, under_way)
    return ended


def hold_failed(project: Project, spec: RunSpec, under_way: OpenRun, error: BaseException) -> tuple[Run, ...]:
    """Hold what a run has written that something ended without a result, and say so in a note of the error.

    Returns the run, if there is something to tell of it.
    """
    store, run = project.store, under_way.run
    found: tuple[Run, ...] = ()
    with DeferredSignals():
        if spec.after_cancel == "discard" or is_unwritten(under_way):
            drop_run(store, under_way, run.replace(ended_ns=time.time_ns()), fold=False)
        elif end_processes(store, run.id):
            held = _hold_written(project, under_way, spec.limits)
            if held.held or held.outcome is not None:
                error.add_note(interrupted_line(held))
                found = (held,)
        remove_tree(spill_dir(store.state, run.id))
        record_failure(project, spec, run, error)
    return found


def tell_cancelled(project: Project, spec: RunSpec, result: RunResult, error: BaseException) -> None:
    """Say in a note of the error that cancelled a run what became of its changes: whoever catches it has no result."""
    record_run(project, spec, result)
    # Whoever closed a pipe has read enough, and wants to hear only of what they would miss
    if result.changes or isinstance(error, KeyboardInterrupt):
        error.add_note(cancelled_line(result))


def cancelled_line(result: RunResult) -> str:
    """Say in one line what became of the changes of a run whose caller was interrupted."""
    from unspill.changes.render import count_changes  # lazy: upkeep

    if isinstance(result.outcome, LimitReached):
        return f"Cancelled. {_too_large(result.outcome)}"
    said = "Cancelled." if isinstance(result.outcome, Cancelled) else "Cancelled after the command had ended."
    operation = result.operation
    if operation is not None and operation.number:
        rest = " Some of them are held: see `unspill changes`." if result.held else ""
        return f"{said} Its changes were applied as op {operation.number}. Undo: `unspill undo`.{rest}"
    if result.held:
        return f"{said} Its changes are held ({count_changes(result.changes) or 'only timestamps'}). {_REVIEW}"
    return f"{said} {'Its changes were discarded.' if result.changes else 'It had changed nothing.'}"


def interrupted_line(run: Run, sandbox: str = "default") -> str:
    """Say in one line what became of the changes of a run that was cut off: its process died, or something failed."""
    words = " ".join(map(quote, run.argv))
    command = words if len(words) <= _LONGEST_COMMAND else f"{words[:_LONGEST_COMMAND]}..."
    where = "" if sandbox == "default" else f" in sandbox {sandbox!r}"
    if isinstance(run.outcome, LimitReached):
        return f"Run {run.number}{where} was interrupted: {command}. {_too_large(run.outcome)}"
    count = f" ({run.changed} {'path' if run.changed == 1 else 'paths'})" if run.changed else ""
    return f"Run {run.number}{where} was interrupted: {command}. Its changes are held{count}. {_REVIEW}"


def _too_large(reached: LimitReached) -> str:
    return f"Its changes were dropped: {reached.describe()}."


def sweep_once(store: Store, facts: Facts) -> tuple[Operation, ...]:
    """Remove what dead processes left, once per process and state directory; return what they had under way.

    Raises:
        SandboxUnavailable: the state directory's filesystem fails.
    """
    recovered = end_interrupted(store)
    key = (os.getpid(), store.state)
    if key in _swept:
        return recovered
    try:
        swept = sweep(store)
    except OSError as error:
        raise SandboxUnavailable(
            f"{os.fsdecode(store.state)} can't be repaired: {error.strerror}",
            remedy="Repair the disk or free some space.",
        ) from error
    if swept.runs and facts.cgroup != "none":
        cgroup.sweep_groups(facts.cgroup, swept.runs)
    _swept.add(key)
    return recovered


def hold_interrupted(project: Project) -> tuple[Run, ...]:
    """Hold what runs of a project had written when their processes were killed; return those to tell the person of."""
    if not any(run.keeps and is_abandoned(run) for run in project.store.runs.unfinished()):
        return ()

    return hold_of_project(project)


def end_interrupted(store: Store) -> tuple[Operation, ...]:
    """Finish or take back operations that somebody could not end, this process perhaps; return them.

    Raises:
        SandboxUnavailable: the filesystem fails; the next call tries again.
    """
    if not os.listdir(store.state + b"/pending"):
        return ()
    from unspill.apply.recover import recover_operations  # lazy: upkeep

    return recover_operations(store)


def when_settled(project: Project, read: Callable[[], Found]) -> Found:
    """Return what `read` finds in the held layers.

    An operation of another process may have them in its hands, or died meanwhile. Only if they are not there with the
    sandbox's lock held and such an operation ended, something is missing.

    Raises:
        LayerMissing: a layer is gone.
        ProjectBusy: somebody else has the lock for too long to tell.
    """
    lock, deadline = SandboxLock(project.store.state, project.row.id), time.monotonic() + _PATIENCE_S
    is_sure = False
    while True:
        try:
            return read()
        except (FileNotFoundError, LayerMissing) as error:
            if is_sure:
                raise
            if time.monotonic() > deadline:
                raise ProjectBusy("another operation on this sandbox is still running") from error
        finally:
            lock.release()
        time.sleep(_PAUSE_S)
        if is_sure := lock.try_acquire():
            end_interrupted(project.store)
