# SPDX-License-Identifier: Apache-2.0
"""Runs of one sandbox that go on beside each other: whether two changed the same, and where the later one is held then.

Each writes to its own layer over the stack as it was when it began. The first that ends is sealed on top; one that
ends later goes on top of that, unless it would hide something: then it is held apart, as a sandbox of its own name.
Whoever judges that has the sandbox's lock; to move a run apart needs none, since only its own rows change.
"""

from __future__ import annotations

import itertools
import os
import stat

from unspill.apply.fold import carry_bases
from unspill.changes.scan import scan
from unspill.git.files import is_state
from unspill.host.overlay import is_opaque
from unspill.layers.lifecycle import load_stacks
from unspill.model.run import SandboxId
from unspill.policy.paths import quote
from unspill.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from unspill.layers.lifecycle import OpenRun
    from unspill.model.change import Change, ChangeSet
    from unspill.sandbox.project import Project


_LONGEST_NAME = 64
_MOST_NAMED = 3


class Apart(Record):
    """Why and where a run is held apart: what it changed was changed by other runs while it went on."""

    sandbox: str
    others: tuple[int, ...] = ()
    paths: tuple[bytes, ...] = ()

    def __str__(self) -> str:
        if not self.others and not self.paths:
            return f"background runs took the sandbox meanwhile: held apart, in sandbox {self.sandbox!r}"
        runs = "run " + " and run ".join(map(str, self.others)) if self.others else "another run"
        named = ", ".join(map(quote, self.paths[:_MOST_NAMED]))
        more = f" and {len(self.paths) - _MOST_NAMED} more" if len(self.paths) > _MOST_NAMED else ""
        return f"{runs} changed {named or 'the same'}{more} meanwhile: held apart, in sandbox {self.sandbox!r}"


def find_apart(project: Project, under_way: OpenRun, changes: ChangeSet | None) -> Apart | None:
    """Return where a run must be held that can't be sealed on its stack, None where it can; nothing is changed.

    `changes` is None where what it wrote can't be read.
    """
    store, sandbox = project.store, SandboxId(under_way.run.sandbox)
    known = {layer.id for stack in under_way.stacks for layer in stack.sealed}
    uppers = {stack.live: stack.open.upper for stack in under_way.stacks if stack.open is not None}
    others: dict[int, None] = {}
    paths: list[bytes] = []
    for stack in load_stacks(store, sandbox, [stack.live for stack in under_way.stacks]):
        own = () if changes is None else changes.of_root(stack.live)
        for index, layer in enumerate(stack.sealed):
            if layer.id in known:
                continue
            found = scan((layer.upper,), stack.below(index), stack.live)
            theirs = [change for part in found.roots for change in part.changes]
            overlap = find_overlap(theirs, own)
            overlap += [change.path for change in theirs if _is_hidden(change, uppers[stack.live])]
            if not overlap and changes is not None and not found.is_cut:
                continue
            paths += overlap
            run = store.runs.find(layer.run)
            if run is not None:
                others[run.number] = None
    if not paths and not others:
        return None
    return Apart(
        sandbox=_free_name(project, under_way.run.number),
        others=tuple(others),
        paths=tuple(dict.fromkeys(paths)),
    )


def apart_from_kept(project: Project, under_way: OpenRun) -> Apart:
    """Return where a run is held that can't have the sandbox's lock: a keeper has it, for nobody knows how long."""
    return Apart(sandbox=_free_name(project, under_way.run.number))


def find_overlap(earlier: Iterable[Change], later: Sequence[Change]) -> list[bytes]:
    """Return the paths of later changes that would hide earlier ones, or be wrong over them.

    Below a directory of which the earlier run changed the mode there is none of the later one that keeps that: its
    layer has a copy of the old directory. Over two states of one repository neither would be whole.
    """
    below: dict[bytes, Change] = {change.path: change for change in later if not change.is_mere_touch}
    above = {parent for path in below for parent in _parents(path)}
    found: list[bytes] = []
    for change in earlier:
        path = change.path
        if change.is_mere_touch:
            continue
        if path in below:
            found.append(path)
        elif path in above:
            found += [other for other in below if other.startswith(path + b"/")]
        else:
            found += [parent for parent in _parents(path) if parent in below and below[parent].kind != "metadata"]
    if not found and any(is_state(change.path) for change in earlier):
        found += [path for path in below if is_state(path)]
    return list(dict.fromkeys(found))


def _is_hidden(change: Change, upper: bytes) -> bool:
    """Tell whether an upper directory hides a change below it: where a directory was removed and made anew."""
    if change.is_mere_touch:
        return False
    for parent in _parents(change.path):
        try:
            is_directory = stat.S_ISDIR(os.lstat(upper + b"/" + parent).st_mode)
            if not is_directory or is_opaque(upper + b"/" + parent):
                return True
        except FileNotFoundError:
            return False
        except PermissionError:
            # The run has closed a directory, so nobody can tell
            return True
    return False


def _parents(path: bytes) -> Iterable[bytes]:
    names = path.split(b"/")
    return (b"/".join(names[:end]) for end in range(1, len(names)))


def move_apart(project: Project, under_way: OpenRun, apart: Apart, changes: ChangeSet | None) -> OpenRun:
    """Give a run and its layers to a sandbox of their own; return it as it is under way there.

    What it saw must be kept already; `changes` is None where what it wrote can't be read.
    """
    store, row = project.store, project.row
    # There nothing is below it: what it saw of earlier runs stays with them
    stacks = tuple(stack.replace(sealed=()) for stack in under_way.stacks)
    for stack, alone in zip(under_way.stacks, stacks, strict=True):
        if stack.open is not None and stack.sealed and changes is not None:
            carry_bases(store, stack, tuple(scan((stack.open.upper,), alone.below(), stack.live)))
    with store.transaction:
        made = store.sandboxes.get_or_create(project.path, apart.sandbox, row.device, row.inode)
        store.runs.move(under_way.run.id, made.id)
        store.layers.move(under_way.run.id, made.id)
    return under_way.replace(run=under_way.run.replace(sandbox=made.id), stacks=stacks)


def _free_name(project: Project, number: int) -> str:
    for count in itertools.count(1):
        end = f"-run-{number}" if count == 1 else f"-run-{number}-{count}"
        name = project.row.name[: _LONGEST_NAME - len(end)] + end
        if project.store.sandboxes.find(project.path, name) is None:
            return name
    raise AssertionError
