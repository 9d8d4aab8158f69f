# SPDX-License-Identifier: Apache-2.0
"""The steps that take back what an operation did to a repository, if that still stands where the operation left it.

Objects stay: later commits may need them, and git removes what nothing leads to. What the reversal displaces is pinned.
Logs get a line more, as with `git reset`. Operations of unspill 0.1 wrote into repositories file by file: of their
steps, objects are only ever brought back, and what says where the repository stands becomes one move like any other.
"""

from __future__ import annotations

import os
import time

from unspill.apply.draft import backup_problem, invert
from unspill.apply.git_draft import REPOSITORY_GONE, LiveRepository, core_names, stashed
from unspill.apply.steps import entry_of, matches
from unspill.changes.quote import quote
from unspill.git.index import is_index, says_at
from unspill.git.layout import LARGEST_FILE, STASH_LOG, is_object_name, is_ref_name, part_of, repository_of, short_ref
from unspill.git.state import SYMBOLIC, is_own_ref, owner_of, parse_packed, parse_ref
from unspill.model.operation import RefMove, Skipped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from unspill.apply.draft import Draft
    from unspill.apply.steps import OpenDirs
    from unspill.model.operation import Entry, GitEnding, GitMove, GitStep, Step


_STAYS = "you {what} since, so git stays as it is{advice}"
_LOST = "{name} can't go back: the commit it was at is not there any more"
_MOVED_SINCE = "you moved it since, so it stays where it is"


def draft_reversal(draft: Draft, dirs: OpenDirs, step: GitStep, ending: GitEnding, message: str) -> None:
    """Draft the inverse of what was done to one repository; `message` is what its logs say then."""
    if ending == "left":
        return
    live = LiveRepository(draft, dirs, step.root, step.top)
    if live.state is None:
        draft.skip(Skipped(root=step.root, path=step.top, why="conflict", reason=REPOSITORY_GONE))
    elif ending == "arrived":
        _remove_arrived(live, step)
    elif step.move is not None:
        _MoveReversal(draft, dirs, live, step.move, message).draft()


def is_along(step: GitStep, at: Skipped | Step) -> bool:
    """Tell whether a path only goes along with a repository, and decides nothing there."""
    top = step.top + b"/"
    if at.root != step.root or not at.path.startswith(top):
        return False
    name = at.path[len(top) :]
    return part_of(name[len(owner_of(name, step.members)) :]) == "along"


def split_old(steps: Sequence[Step]) -> tuple[list[Step], dict[tuple[int, bytes], list[Step]]]:
    """Part the steps that go file by file from those that say where a repository stands, by root and git directory."""
    whole = {(step.root, step.path) for step in steps if step.action != "set_metadata"}
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
        elif part in ("ref", "file") and step.action != "set_metadata":
            moves.setdefault((step.root, top), []).append(step)
    return plain, moves


def draft_old_move(draft: Draft, dirs: OpenDirs, root: int, top: bytes, steps: Sequence[Step]) -> None:
    """Draft the inverse of what an old operation did to where a repository stands."""
    live = LiveRepository(draft, dirs, root, top)
    files = [step for step in steps if part_of(step.path[len(top) + 1 :]) == "file" and _is_file(step)]
    problem = live.state is None or any(
        not _is_as_left(dirs, live, step) or _has_no_backup(draft, dirs, step) for step in steps if _is_file(step)
    )
    if problem or live.state is None:
        draft.skip(Skipped(root=root, path=top, why="conflict", reason=_MOVED_SINCE))
        return
    state = live.state
    refs: dict[bytes, bytes | None] = {}
    for step in steps:
        name = step.path[len(live.top) :]
        if name == b"packed-refs":
            old = parse_packed(_displaced_content(dirs, step)) if step.before is not None else {}
            refs |= {name: value for name, value in old.items() if name not in state.refs}
    for step in steps:
        name = step.path[len(live.top) :]
        if is_ref_name(name) and _is_file(step):
            refs[name] = None if step.before is None else parse_ref(_displaced_content(dirs, step))
    moves = [
        RefMove(name=name, old=state.refs.get(name), new=value)
        for name, value in refs.items()
        if state.refs.get(name) != value
    ]
    inverse = [draft.complete(invert(draft, dirs, step, _live_entry(live, step))) for step in reversed(files)]
    moved = {move.name: move.new for move in moves}
    moves += live.pins(live.displaced_by(moves), live.kept_by(moves), live.objects)
    names = core_names(state, members=()) | set(moved)
    before = {name: state.value(name) for name in names}
    after = before | moved
    for step in files:
        after.pop(step.path[len(live.top) :], None)
    live.add_step(live.move(moves, inverse, (), before, after))


class _MoveReversal:
    """The inverse of one move."""

    def __init__(self, draft: Draft, dirs: OpenDirs, live: LiveRepository, move: GitMove, message: str) -> None:
        self._draft = draft
        self._dirs = dirs
        self._live = live
        self._move = move
        self._message = message

    def draft(self) -> None:
        problem = self._problem()
        if problem:
            top = self._live.top[:-1]
            self._draft.skip(Skipped(root=self._live.root, path=top, why="conflict", reason=problem))
            return
        state = self._live.state
        assert state is not None
        refs = [
            RefMove(name=ref.name, old=ref.new, new=ref.old)
            for ref in self._move.refs
            if state.refs.get(ref.name) == ref.new
        ]
        steps = [self._invert(step) for step in reversed(self._move.files)]
        refs += self._pins(refs, steps)
        move = self._live.move(refs, steps, list(self._lines(refs)), dict(self._move.after), dict(self._move.before))
        self._live.add_step(move)

    def _problem(self) -> str:
        """Say why the repository can't go back, empty if it can."""
        state = self._live.state
        assert state is not None
        moved = [name for name, value in self._move.after if state.value(name) != value]
        if moved:
            what, advice = self._describe(moved)
            return _STAYS.format(what=what, advice=advice)
        for ref in self._move.refs:
            if ref.old is not None and is_object_name(ref.old) and not self._live.objects.has(ref.old):
                return _LOST.format(name=_shown_ref(ref.name))
        for step in self._move.files:
            problem = None if step.before is None else backup_problem(self._dirs, step, step.before, self._draft.modes)
            if problem is not None:
                return problem[1]
        return ""

    def _describe(self, names: Sequence[bytes]) -> tuple[str, str]:
        """Return what the person did, and what to do about it; after a commit the branch says more than the index."""
        refs = [name for name in names if b"refs/" in name and not name.endswith(STASH_LOG)]
        if refs:
            name = min(refs, key=lambda name: b"refs/heads/" not in name)
            return f"moved {_shown_ref(name)}", self._by_hand(name)
        inner = {self._live.inner(name) for name in names}
        if b"HEAD" in inner:
            return "switched to another branch", ""
        if inner == {b"index"}:
            return "staged something", ""
        return "began or ended a merge, a rebase or the like", ""

    def _by_hand(self, name: bytes) -> str:
        """Return the command that undoes the commits of the operation on top of the person's, or does them again."""
        for ref in self._move.refs:
            old, new = ref.old, ref.new
            if ref.name == name and old is not None and new is not None:
                if self._live.objects.is_ancestor(old, new):
                    return f"; to undo its commits: git revert {old[:7].decode()}..{new[:7].decode()}"
                if self._live.objects.is_ancestor(new, old):
                    return f"; to get its commits back: git cherry-pick {new[:7].decode()}..{old[:7].decode()}"
        return ""

    def _invert(self, step: Step) -> Step:
        return self._draft.complete(invert(self._draft, self._dirs, step, _live_entry(self._live, step)))

    def _pins(self, refs: Sequence[RefMove], steps: Sequence[Step]) -> list[RefMove]:
        displaced = self._live.displaced_by(refs)
        kept = self._live.kept_by(refs)
        for step in steps:
            name = step.path[len(self._live.top) :]
            if name.endswith(STASH_LOG):
                displaced += [(self._live.common(name), entry) for entry in stashed(self._live.read(name))]
                kept += stashed(self._content_put(step))
            elif self._live.inner(name) == b"index":
                displaced += self._live.lost_blobs(name, self._content_put(step), self._live.objects)
        return self._live.pins(displaced, kept, self._live.objects)

    def _content_put(self, step: Step) -> bytes:
        """Return the content that a step puts, nothing where it only takes something away."""
        if step.action != "put":
            return b""
        fd, name = self._dirs.place(step)
        with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd), "rb") as file:
            return file.read()

    def _lines(self, refs: Sequence[RefMove]) -> Iterator[tuple[bytes, bytes]]:
        """Yield a line for each log of what moves, as git itself would write it."""
        values = {ref.name: (ref.old, ref.new) for ref in refs}
        for name, (old, new) in values.items():
            if new is not None and not is_own_ref(name, self._live.members) and not name.endswith(b"refs/stash"):
                log = self._live.log_of(name)
                if self._live.files.find(self._live.top + log) is not None:
                    yield log, self._line(self._resolved(name, old), self._resolved(name, new))
        for member in {owner_of(name, self._live.members) for name in values}:
            head = member + b"HEAD"
            state = self._live.state
            branch = None if state is None else state.branch(member)
            if head not in values and branch in values and values[branch][1] is not None:
                log = self._live.log_of(head)
                if self._live.files.find(self._live.top + log) is not None:
                    yield log, self._line(*values[branch])

    def _resolved(self, name: bytes, value: bytes | None) -> bytes | None:
        state = self._live.state
        if value is None or state is None or not value.startswith(SYMBOLIC):
            return value
        target = value.removeprefix(SYMBOLIC)
        by_name: Mapping[bytes, bytes | None] = {ref.name: ref.old for ref in self._move.refs}
        return by_name.get(target, state.refs.get(target))

    def _line(self, old: bytes | None, new: bytes | None) -> bytes:
        nothing = b"0" * (2 * self._live.size)
        before, after = (name if name and is_object_name(name) else nothing for name in (old, new))
        return b"%b %b unspill <unspill> %d +0000\t%b\n" % (before, after, int(time.time()), self._message.encode())


def _remove_arrived(live: LiveRepository, step: GitStep) -> None:
    """Remove the references under which a run's work arrived; its commits stay pinned."""
    assert live.state is not None
    refs = [
        RefMove(name=ref.name, old=ref.new, new=ref.old)
        for ref in step.arrival
        if live.state.refs.get(ref.name) == ref.new
    ]
    kept = live.kept_by(refs)
    # What arrived is below our own name, and yet all that leads to it
    displaced = [(live.common(ref.name), ref.old) for ref in refs if ref.old is not None]
    refs += live.pins(displaced, kept, live.objects)
    if refs:
        live.add_step(live.move(refs, (), (), {}, {}))


def _shown_ref(name: bytes) -> str:
    return quote(short_ref(name))


def _is_file(step: Step) -> bool:
    entry = step.before if step.before is not None else step.after
    return entry is not None and entry.kind == "file"


def _live_entry(live: LiveRepository, step: Step) -> Entry | None:
    found = live.files.find(step.path)
    return None if found is None else entry_of(found)


def _is_as_left(dirs: OpenDirs, live: LiveRepository, step: Step) -> bool:
    found = live.files.find(step.path)
    if step.action == "take" or step.after is None:
        return found is None
    if found is None:
        return False
    if matches(found, step.after):
        return True
    return is_index(step.path) and bool(step.says) and says_at(*dirs.live(step)) == step.says


def _has_no_backup(draft: Draft, dirs: OpenDirs, step: Step) -> bool:
    return step.before is not None and backup_problem(dirs, step, step.before, draft.modes) is not None


def _displaced_content(dirs: OpenDirs, step: Step) -> bytes:
    """Return the content that a step displaced."""
    fd, name = dirs.operations.parent(step.backup)
    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd), "rb") as file:
        return file.read(LARGEST_FILE)
