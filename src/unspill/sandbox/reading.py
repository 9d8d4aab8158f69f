# SPDX-License-Identifier: Apache-2.0
"""What a sandbox holds, read from its layers: change sets, diffs, records of runs. Changes nothing."""

from __future__ import annotations

from unspill.changes.scan import join, scan
from unspill.errors import UsageError
from unspill.layers.locks import lock_sandbox, upper_dir, work_dir
from unspill.model.change import ChangeSet
from unspill.model.layer import LayerId, OpenLayer, RunId, Stack, TimeMark
from unspill.model.plan import CacheLayer
from unspill.model.traffic import Traffic
from unspill.sandbox.planning import get_places, make_plan
from unspill.sandbox.secrets import load_masked

# A person who asks for the list wants the whole of it
_ALL = 1_000_000

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from unspill.model.plan import Places, Plan
    from unspill.model.run import Run
    from unspill.sandbox.project import Project
    from unspill.sandbox.spec import Request


def changes_of(project: Project, run: str | int | None) -> ChangeSet:
    """Return the folded stack against the live tree, or one run's layer against what was below it.

    Raises:
        UsageError: there is no such run, or nothing of it is held.
    """
    try:
        return _read_changes(project, run)
    except FileNotFoundError:
        # An apply has the layers in its hands right now
        with lock_sandbox(project.store.state, project.row.id):
            return _read_changes(project, run)


def _read_changes(project: Project, run: str | int | None) -> ChangeSet:
    stacks = load_masked(project)
    if run is None:
        return fold_changes(stacks)
    wanted = get_run(project, run)
    parts = [
        _scan_from(stack, index, index + 1)
        for stack in stacks
        for index, layer in enumerate(stack.sealed)
        if layer.run == wanted.id
    ]
    if not parts and wanted.changed:
        raise UsageError(f"nothing of run {wanted.number} is held any more", remedy="See `unspill log`.")
    return join(parts)


def changes_of_runs(project: Project, runs: Sequence[RunId]) -> ChangeSet:
    """Return of what is held the part that came from some runs."""
    wanted = {layer.upper for stack in load_masked(project) for layer in stack.sealed if layer.run in runs}
    changes = changes_of(project, None)
    return changes.replace(
        roots=tuple(
            part.replace(changes=tuple(change for change in part.changes if change.layer in wanted))
            for part in changes.roots
        )
    )


def fold_changes(stacks: Sequence[Stack]) -> ChangeSet:
    """Return what whole stacks change in their live trees."""
    held = [stack for stack in stacks if stack.sealed]
    changes = join(_scan_from(stack, 0, len(stack.sealed)) for stack in held)
    return changes.replace(layers=tuple(layer.upper for stack in held for layer in stack.sealed))


def _scan_from(stack: Stack, first: int, end: int) -> ChangeSet:
    uppers = [layer.upper for layer in stack.sealed]
    return scan(tuple(reversed(uppers[first:end])), stack.below(first), stack.live)


def diff_of(
    project: Project,
    paths: Sequence[str],
    run: str | int | None,
    *,
    colour: bool,
    skip: Callable[[bytes], bool] = lambda _path: False,
) -> str:
    """Return what is held as a text that is safe to print; without paths, absolute ones, that `skip` is true of."""
    from unspill.changes.diff import diff_lines

    changes = changes_below(changes_of(project, run), paths, skip)
    return "".join(line + "\n" for line in diff_lines(changes, layers_below(project, run), colour=colour))


def changes_below(
    changes: ChangeSet, paths: Sequence[str], skip: Callable[[bytes], bool] = lambda _path: False
) -> ChangeSet:
    """Return the changes at or below paths, all for none; relative ones count from every root."""
    wanted = tuple(path.encode("utf-8", "surrogateescape").rstrip(b"/") for path in paths) or (b"",)
    return changes.replace(
        roots=tuple(
            part.replace(
                changes=tuple(
                    change
                    for change in part.changes
                    if (_is_below(change.path, wanted) or _is_below(part.root + b"/" + change.path, wanted))
                    and not skip(part.root + b"/" + change.path)
                )
            )
            for part in changes.roots
        )
    )


def summary_of(project: Project, run: str | int | None, *, colour: bool) -> list[str]:
    """Return what is held as lines for a person, with renames recognised."""
    from unspill.changes.reader import Reader, find_renames
    from unspill.changes.render import summary_lines

    changes = changes_of(project, run)
    below = layers_below(project, run)
    renames: dict[bytes, bytes] = {}
    for part in changes.roots:
        with Reader(part.root, below.get(part.root, ())) as reader:
            renames |= find_renames(part.changes, reader)
    return summary_lines(changes, limit=_ALL, colour=colour, renames=renames, project=project.path)


def layers_below(project: Project, run: str | int | None) -> dict[bytes, tuple[bytes, ...]]:
    """Return, for each root, the layers that lay under the ones whose changes are asked, the topmost first."""
    stacks = load_masked(project)
    if run is None:
        return {stack.live: stack.below() for stack in stacks}
    wanted = get_run(project, run).id
    below = {}
    for stack in stacks:
        for index, layer in enumerate(stack.sealed):
            if layer.run == wanted:
                below[stack.live] = stack.below(index)
    return below


def _is_below(path: bytes, wanted: tuple[bytes, ...]) -> bool:
    return any(top in (b"", b".", path) or path.startswith(top + b"/") for top in wanted)


def get_run(project: Project, run: str | int) -> Run:
    """Return a run of this sandbox by number or id.

    Raises:
        UsageError: there is none.
    """
    text = str(run)
    if text.isdecimal() and len(text) < 16:
        found = project.store.runs.find_number(project.row.id, int(text))
    else:
        found = project.store.runs.find(RunId(text))
    if found is None or found.sandbox != project.row.id:
        raise UsageError(f"no such run: {text}", remedy="See `unspill log`.")
    return found


def traffic_of(project: Project, run: str | int) -> Traffic:
    """Return what a run reached and what it was refused.

    Raises:
        UsageError: there is no such run.
    """
    return project.store.traffic.find(get_run(project, run).id) or Traffic()


def plan_as_if(project: Project, request: Request) -> Plan:
    """Return the plan that the next run of a command would have; its layer's directories are only named, not made."""
    places = get_places(project)
    return make_plan(project, request, places, *stacks_as_if(project, places))


def stacks_as_if(
    project: Project, places: Places
) -> tuple[tuple[Stack, ...], tuple[CacheLayer, ...], tuple[CacheLayer, ...]]:
    """Return the stacks of the next run, of its caches and of its rootfs, with an open layer that is only named."""
    state, next_id = project.store.state, LayerId("next")
    layer = OpenLayer(
        id=next_id,
        upper=upper_dir(state, next_id),
        work=work_dir(state, next_id),
        mark=TimeMark(ctime_ns=0),
        run=RunId("next"),
    )
    stacks = load_masked(project)
    caches = (Stack(live=path, device=0, inode=0, open=layer) for path in places.home.caches)
    written: tuple[CacheLayer, ...] = ()
    if project.means.policy.rootfs_writable:
        from unspill.sandbox.rootfs_use import stacks_over, writable_directories

        written = stacks_over(project, writable_directories(project, places.rootfs), layer)
    return (
        tuple(stack.replace(open=layer) for stack in stacks),
        tuple(CacheLayer(path=stack.live, stack=stack) for stack in caches),
        written,
    )
