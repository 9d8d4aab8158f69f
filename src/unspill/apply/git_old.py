# SPDX-License-Identifier: Apache-2.0
"""Operations of unspill 0.1, which wrote into repositories file by file: taken back like any other move of one.

Their journals have a step for each file of `.git`. Objects are only ever brought back, never taken away; what says
where the repository stands becomes one move; logs and what git makes anew stay as they are.
"""

from __future__ import annotations

import os

from unspill.apply.entries import entry_of, matches
from unspill.apply.git_live import LiveRepository, core_names
from unspill.apply.inverse import backup_problem, invert
from unspill.git.index import is_index, says_at
from unspill.git.layout import is_ref_name, part_of, repository_of
from unspill.git.state import parse_packed, parse_ref
from unspill.model.operation import Left, RefMove

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from unspill.apply.draft import Draft
    from unspill.apply.sites import Sites
    from unspill.model.operation import Entry, Step

MOVED = "you moved it since, so it stays where it is"
_LARGEST = 64 << 20


def split_old(steps: Sequence[Step]) -> tuple[list[Step], dict[tuple[int, bytes], list[Step]]]:
    """Part the steps that go file by file from those that say where a repository stands, by root and git directory."""
    whole = {(step.root, step.path) for step in steps if step.action != "dress"}
    plain: list[Step] = []
    moves: dict[tuple[int, bytes], list[Step]] = {}
    for step in steps:
        top = repository_of(step.path)
        if top is None or (step.root, top) in whole:
            plain.append(step)
            continue
        part = part_of(step.path[len(top) + 1 :])
        if part == "other" or (part in ("object", "pack", "derived") and step.action == "take"):
            plain.append(step)
        elif part in ("ref", "file") and step.action != "dress":
            moves.setdefault((step.root, top), []).append(step)
    return plain, moves


def draft_old_move(draft: Draft, sites: Sites, root: int, top: bytes, steps: Sequence[Step]) -> None:
    """Draft the inverse of what an old operation did to where a repository stands."""
    live = LiveRepository(draft, sites, root, top)
    files = [step for step in steps if part_of(step.path[len(top) + 1 :]) == "file" and _is_file(step)]
    problem = live.state is None or any(
        not _is_as_left(sites, live, step) or _has_no_backup(draft, sites, step) for step in steps if _is_file(step)
    )
    if problem or live.state is None:
        draft.leave(Left(root=root, path=top, why="conflict", reason=MOVED))
        return
    state = live.state
    refs: dict[bytes, bytes | None] = {}
    for step in steps:
        name = step.path[len(live.top) :]
        if name == b"packed-refs":
            old = parse_packed(_backup(sites, step)) if step.before is not None else {}
            refs |= {name: value for name, value in old.items() if name not in state.refs}
    for step in steps:
        name = step.path[len(live.top) :]
        if is_ref_name(name) and _is_file(step):
            refs[name] = None if step.before is None else parse_ref(_backup(sites, step))
    moves = [
        RefMove(name=name, old=state.refs.get(name), new=value)
        for name, value in refs.items()
        if state.refs.get(name) != value
    ]
    inverse = [draft.complete(invert(draft, sites, step, _entry(live, step))) for step in reversed(files)]
    moved = {move.name: move.new for move in moves}
    moves += live.pins(live.displaced_by(moves), live.kept_by(moves), live.objects)
    names = core_names(state, members=()) | set(moved)
    before = {name: state.value(name) for name in names}
    after = before | moved
    for step in files:
        after.pop(step.path[len(live.top) :], None)
    live.add_step(live.move(moves, inverse, (), before, after))


def _is_file(step: Step) -> bool:
    entry = step.before if step.before is not None else step.after
    return entry is not None and entry.kind == "file"


def _entry(live: LiveRepository, step: Step) -> Entry | None:
    found = live.files.find(step.path)
    return None if found is None else entry_of(found)


def _is_as_left(sites: Sites, live: LiveRepository, step: Step) -> bool:
    found = live.files.find(step.path)
    if step.action == "take" or step.after is None:
        return found is None
    if found is None:
        return False
    if matches(found, step.after):
        return True
    return is_index(step.path) and bool(step.says) and says_at(*sites.live(step)) == step.says


def _has_no_backup(draft: Draft, sites: Sites, step: Step) -> bool:
    return step.before is not None and backup_problem(sites, step, step.before, draft.loans) is not None


def _backup(sites: Sites, step: Step) -> bytes:
    """Return the content that a step displaced."""
    fd, name = sites.operations.parent(step.backup)
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd), "rb") as file:
        return file.read(_LARGEST)
