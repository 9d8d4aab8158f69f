# SPDX-License-Identifier: Apache-2.0
"""The verdict on what steers git: everything in git directories, under whatever name, and the files that lead to them.

A directory counts as git's own as soon as it could become one by any part of the changes. Contents are parsed here;
git itself never runs.
"""

from __future__ import annotations

from unspill.apply.guard_shape import Shapes, join, parse
from unspill.policy.git import has_commands, has_template, is_inner_pointer, is_log, is_reference, is_repository_place, is_usual_common, new_drivers, pointer_target
from unspill.policy.git import unusual_keys, unusual_modules
from unspill.policy.git import ATTRIBUTES, GIT, HOOKS, MARKS, MODULES, NAMES, could_steer, homes_of, place_of
from unspill.policy.held import ALTERNATES, COMPLETES, DRIVERS, GIT_LINK, HOOK, LEADS_OUT, REPLACED_OBJECT, REPOSITORY, SETTINGS, SHALLOW, TEMPLATE, TODO, UNKNOWN, UNREADABLE
from unspill.policy.held import MODULES as MODULES_ROW
from unspill.policy.git import resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from unspill.apply.guard_view import View
    from unspill.model.change import Change
    from unspill.policy.git import Place
    from unspill.policy.held import OtherRow
    from unspill.policy.held import Verdict

    Opinion = tuple[Verdict, str]

ORDINARY: Opinion = ("ordinary", "")
HOOK_GONE = "a hook that you had is gone"
# Files of other version control that lead to a repository, by their last components
_POINTERS = ([b".hg", b"sharedpath"], [b".jj", b"repo"], [b"store", b"git_target"])
_STEERING: frozenset[Place] = frozenset(("config", "hook", "attributes", "common", "pointer"))
_RANK = {"ordinary": 0, "flagged": 1, "held": 2}


def worst(*opinions: Opinion) -> Opinion:
    """Return the strictest of some verdicts, the first of equals."""
    return max(opinions, key=lambda opinion: _RANK[opinion[0]], default=ORDINARY)


class GitGuard:
    """Judges the paths of one change set that git may act on."""

    def __init__(self, view: View, marks: set[bytes]) -> None:
        """Take the view and the folded paths of the changes that are named like the marks of a git directory."""
        self._view = view
        self._shapes = Shapes(view, marks)

    def judge(self, change: Change, parts: list[bytes], outer: int) -> Opinion:
        """Return the verdict on a change; `parts` is its folded path, behind `outer` components of the root's own."""
        if NAMES.isdisjoint(parts):
            return ORDINARY
        entry = change.entry
        if (change.base_kind if entry is None else entry.kind) == "dir":
            opinion = self._directory(change, parts)
            if change.kind != "replaced":
                return opinion
            # What a directory takes the place of is deleted
            return worst(opinion, self.judge(change.replace(kind="deleted", entry=None), parts, outer))
        content = self._by_content(change, parts)
        if content is not None:
            return content
        owners = self._owners(change, parts, outer)
        opinions = []
        for end in owners:
            place = place_of(parts[end:])
            if place == "module" and end != owners[-1]:
                continue
            is_named = GIT in parts[:end]
            if is_named and place == "ordinary" and could_steer(parts[end:]) and not self.is_record(change):
                opinions.append(UNKNOWN.opinion)
            elif is_named or place in _STEERING or parts[-1] in MARKS:
                opinions.append(self._owned(change, parts, end - outer, place, is_named=is_named))
        return worst(*opinions)

    def _by_content(self, change: Change, parts: list[bytes]) -> Opinion | None:
        """Judge the files that git looks for by name in a working tree; None where it is none of them."""
        name = parts[-1]
        if name == GIT:
            judge = self._pointer_file
        elif name == ATTRIBUTES:
            judge = self.attributes
        elif name == MODULES:
            judge = self._modules
        elif name == b".tool-versions":
            judge = self._versions
        elif parts[-2:] in _POINTERS:
            judge = self._pointer
        else:
            return None
        if change.entry is None or change.entry.kind == "special":
            return ORDINARY
        if change.entry.kind == "symlink":
            return GIT_LINK.opinion
        return ORDINARY if change.kind == "metadata" else judge(change)

    def _owners(self, change: Change, parts: list[bytes], outer: int) -> list[int]:
        """Return how many components lead to each git directory that the path is in, outermost first."""
        named = {end for end, part in enumerate(parts[:-1], 1) if part == GIT}
        real = change.path.split(b"/")
        shaped = {
            end
            for end in homes_of(parts) - named
            if end >= outer and self._shapes.has(b"/".join(real[: end - outer]), b"/".join(parts[:end]))
        }
        return sorted(named | shaped)

    def _owned(self, change: Change, parts: list[bytes], depth: int, place: Place, *, is_named: bool) -> Opinion:
        """Judge a path in a git directory that is `depth` components below the root."""
        entry = change.entry
        home = b"/".join(change.path.split(b"/")[: max(0, depth)])
        if entry is None:
            return self._deleted(change, place, home)
        if entry.kind == "special" or change.is_mere_touch:
            return ORDINARY
        if parts[-1] in MARKS and not is_named and self._shapes.completes(home):
            return COMPLETES.opinion
        if entry.kind == "symlink":
            is_head = parts[-1] == b"head" and (change.target or b"").startswith(b"refs/")
            return ORDINARY if is_head or not (is_named or place in _STEERING) else GIT_LINK.opinion
        if place == "hook":
            return HOOK.opinion
        if place == "unknown" or place == "module":
            return UNKNOWN.opinion if is_named else ORDINARY
        if place == "ordinary" or change.kind == "metadata":
            return ORDINARY
        return self._by_place(change, parts, place, home)

    def _by_place(self, change: Change, parts: list[bytes], place: Place, home: bytes) -> Opinion:
        if place == "config":
            return self.config(change, home)
        if place == "attributes":
            return self.attributes(change)
        if place == "pointer":
            return self._pointer(change)
        content = self._view.after(change)
        if content is None:
            return UNREADABLE.opinion
        if place == "common":
            if not is_usual_common(parts, content):
                return LEADS_OUT.opinion
            return COMPLETES.opinion if self._shapes.completes(b"/".join(home.split(b"/")[:-2])) else ORDINARY
        if place == "todo":
            return TODO.opinion if has_commands(content) else ORDINARY
        if place == "shallow":
            return self._shallow(change, home, content)
        return ALTERNATES.opinion if place == "alternates" else REPLACED_OBJECT.opinion

    def _shallow(self, change: Change, home: bytes, content: bytes) -> Opinion:
        """Judge where a history ends: a repository that is new may end where it likes."""
        if self._view.kind_before(join(home, b"HEAD")) is None:
            return ORDINARY
        before = self._view.before(change.path) or b""
        return SHALLOW.opinion if set(content.split()) - set(before.split()) else ORDINARY

    def _deleted(self, change: Change, place: Place, home: bytes) -> Opinion:
        if place == "hook":
            return HOOK.deleted, HOOK_GONE
        return self.config(change, home) if place == "config" else ORDINARY

    def is_record(self, change: Change) -> bool:
        """Tell whether a file is a reference or its log by content, and so steers git under no name and in no place."""
        if change.entry is None:
            return True
        if change.entry.kind != "file":
            return False
        content = self._view.after(change)
        if content is None:
            return False
        # The text of a log may name a directory to share settings with
        return is_reference(content) or (is_log(content) and not change.path.lower().endswith(b"commondir"))

    def _directory(self, change: Change, parts: list[bytes]) -> Opinion:
        if change.entry is None and parts[-2:] == [GIT, b"hooks"]:
            had = any(self._view.exists(join(change.path, name)) for name in HOOKS)
            return (HOOK.deleted, HOOK_GONE) if had else ORDINARY
        if change.entry is None:
            return (REPOSITORY.deleted, REPOSITORY.reason) if parts[-1] == GIT else ORDINARY
        home = change.path.rpartition(b"/")[0]
        is_mark = parts[-1] in MARKS and change.base_kind != "dir" and GIT not in parts
        if is_mark and self._shapes.has(home, b"/".join(parts[:-1])) and self._shapes.completes(home):
            return COMPLETES.opinion
        return ORDINARY

    def config(self, change: Change, home: bytes) -> Opinion:
        """Judge a configuration by the keys that change; `home` is the git directory from the root on."""
        before = self._view.before(change.path) if change.base_kind == "file" else None
        after = b"" if change.entry is None else self._view.after(change)
        if after is None or (before is None and change.base_kind == "file"):
            return UNREADABLE.opinion
        old, new = parse(before or b""), parse(after)
        if old is None or new is None:
            return UNREADABLE.opinion
        keys = unusual_keys(None if before is None else old, new, lambda value: self._shapes.is_work_tree(home, value))
        return _with_keys(SETTINGS, keys) if keys else ORDINARY

    def _pointer_file(self, change: Change) -> Opinion:
        content = self._view.after(change)
        place = change.path.rpartition(b"/")[0]
        target = pointer_target(content) if content is not None else None
        if not is_inner_pointer(place, target, self._view.root):
            return LEADS_OUT.opinion
        found = resolve(place, target or b"", self._view.root) or []
        home = b"/".join(found)
        if self._view.crosses_link(home):
            return COMPLETES.opinion
        if any(part.lower() == GIT for part in found):
            return ORDINARY if is_repository_place(found) else COMPLETES.opinion
        return COMPLETES.opinion if self._shapes.steers(home) else ORDINARY

    def _pointer(self, change: Change) -> Opinion:
        content = self._view.after(change)
        target = content.rstrip(b"\r\n") if content is not None else None
        inner = is_inner_pointer(change.path.rpartition(b"/")[0], target, self._view.root)
        return ORDINARY if inner else LEADS_OUT.opinion

    def attributes(self, change: Change) -> Opinion:
        """Judge a file of attributes by the drivers that it newly names."""
        after = self._view.after(change)
        if after is None:
            return UNREADABLE.opinion
        before = self._view.before(change.path) if change.base_kind == "file" else b""
        return DRIVERS.opinion if new_drivers(before or b"", after) else ORDINARY

    def _modules(self, change: Change) -> Opinion:
        content = self._view.after(change)
        settings = parse(content) if content is not None else None
        if settings is None:
            return UNREADABLE.opinion
        keys = unusual_modules(settings)
        return _with_keys(MODULES_ROW, keys) if keys else ORDINARY

    def _versions(self, change: Change) -> Opinion:
        content = self._view.after(change)
        return TEMPLATE.opinion if content is None or has_template(content) else ORDINARY


def _with_keys(row: OtherRow, keys: list[str]) -> Opinion:
    more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
    return row.verdict, f"{row.reason}: {', '.join(keys[:3])}{more}"
