# SPDX-License-Identifier: Apache-2.0
"""Check rules that must always hold, where the model can't predict what happens: with git, and beside background runs.

An undo directly after an operation leads exactly to where that began, and so does a redo after an undo, in the tree, in
git's state, in what is held and in what commands see. The list of held changes is what commands see differently from
the project. No commit is lost. While a background run is alive, the person goes on editing: its sandbox shows the
current version of every file that it hasn't changed, and a line that no command there has seen stays where it is.
"""

import os
import subprocess
from collections.abc import Callable, Collection
from typing import Any, Literal

from tests.model.driver import Case, Step, World, described, tree_of_tar
from tests.model.edits import Edit, Senseless, do_for_real, do_in_model, read_tree, to_shell
from tests.model.model import Expected, Held, Node, Operation, Side, Tree, above, differences, is_dir, put
from tests.model.verbs import Failure, Library, Refused, Told

GIT_STATE = (
    "git symbolic-ref -q HEAD || git rev-parse HEAD; "
    "git for-each-ref --format='%(refname) %(objectname)' refs/heads refs/tags refs/stash; "
    "git ls-files -s; GIT_OPTIONAL_LOCKS=0 git status --porcelain"
)
# The name of what is held as deleted may be seen where the person has deleted its directory, and can't be opened
LOOK = "tar -cf - --exclude=./.git . || [ $? = 1 ]"
# Of the stash a reference names only the last one, its log the others
ALL_COMMITS = "git rev-list --all $(git stash list --format=%H)"
# All that can be seen, by its name: trees, what is listed, and what git says
Seen = dict[str, Any]


class ObservedWorld(World):
    """A project of which the model knows what is there, but not what will be."""

    is_exact = False

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        if case.mode == "background":
            self.verbs = self.cli
        # Background runs by sandbox, with what becomes of their changes
        self.alive: dict[str, str] = {}
        # Where the project was changed from outside of a background run, which may still see what was there
        self._stale: dict[str, set[str]] = {}
        self._git_inside: dict[str, str] = {}
        self._inside: dict[str, Tree] = {}
        # From what held changes were made, and which a later run took back, by sandbox and path
        self._bases: dict[tuple[str, str], list[Node | None]] = {}
        self._taken_back: set[tuple[str, str]] = set()
        # What was ever held
        self._ever_held: set[tuple[str, str]] = set()
        self._commits: dict[str, set[str]] = {}
        self._own_commits: set[str] = set()
        self._known_commits: set[str] = set()
        # Operations on what a live sandbox goes on to hold: none records that
        self._of_live: set[int] = set()
        self._before: dict[int, Seen] = {}
        self._after: dict[int, Seen] = {}
        self._session: tuple[set[int], Seen, Seen] | None = None
        self.seen = self.observe()

    @property
    def has_git(self) -> bool:
        return self.case.mode == "git"

    def prepare(self) -> None:
        super().prepare()
        if self.has_git:
            self.shell("git init -q -b main; git add -A; git commit -qm base")

    def close(self) -> None:
        for name in self.alive:
            self.cli.stop(name)
        super().close()

    def shell(self, text: str) -> str:
        done = subprocess.run(["sh", "-c", text], cwd=self.project, capture_output=True, check=False)
        if done.returncode:
            raise Senseless(done.stderr.decode())
        return done.stdout.decode()

    def ask_git(self, text: str) -> str:
        """Return what git says that must have an answer at any time."""
        try:
            return self.shell(text)
        except Senseless as error:
            raise Failure("git has no answer", f"{text}: {error}") from error

    def last_steps(self) -> list[Step]:
        return [["check-repository"]] if self.has_git else []

    def do(self, step: Step) -> None:
        number, name, *rest = step
        try:
            getattr(self, "do_" + name.replace("-", "_"))(number, *rest)
        except Refused as error:
            # What can be asked for is not known here
            raise Senseless from error
        if name != "look":
            self.last_kind = name

    # What is there

    def observe(self) -> Seen:
        """Look at everything; the model follows, for the choice of the next step."""
        live = read_tree(os.fspath(self.project))
        for name in self.alive:
            self._stale[name] |= {
                path for path in {*live, *self.model.live} if live.get(path) != self.model.live.get(path)
            }
        seen: Seen = {"live": live}
        if self.has_git:
            seen["git"] = self.ask_git(GIT_STATE)
        self.model.live = live
        for name in sorted(self.names - set(self.alive)):
            inside = self._look_inside(name)
            self.model.sandbox(name).held = {
                path: Held(live.get(path), inside.get(path))
                for path in {*live, *inside}
                if live.get(path) != inside.get(path)
            }
            self._ever_held |= {(name, path) for path in self.model.sandbox(name).held}
            listed = {path: kind for path, kind in self.listed(name).items() if not is_of_git(path)}
            found = differences(live, inside)
            # A directory that the person deleted, and in which only something is held as deleted, is seen empty
            files = [one for one, node in inside.items() if not is_dir(node)]
            empty = {
                path for path in found if is_dir(inside.get(path)) and not any(path in above(one) for one in files)
            }
            empty.difference_update(listed)
            if {path: kind for path, kind in found.items() if path not in empty} != listed:
                raise Failure("changes", f"{name}: listed {listed}, seen {found}")
            self._inside[name] = inside
            view = dict(inside)
            for path in empty:
                put(view, path, live.get(path))
            seen |= {f"changes {name}": listed, f"view {name}": view}
            if not empty:
                # Git sees what such a directory hides, or not
                seen[f"git {name}"] = self._git_inside.get(name)
        if self.has_git:
            self._check_commits()
        return seen

    def listed(self, name: str) -> dict[str, str]:
        return {one.name: one.kind for one in self.verbs.sandbox(name).changes() if not one.is_mere_touch}

    def _look_inside(self, name: str) -> Tree:
        if name in self.alive:
            return self._look_inside_alive(name)
        if not self.has_git:
            # By the library: no program is to be started
            return tree_of_tar(Library.run(self.verbs, name, LOOK, "discard")[1])
        git = f"{ALL_COMMITS}; echo =====; {{ {GIT_STATE}; }} 2>&1; echo =====; "
        _told, out = self.verbs.run(name, git + LOOK, "discard")
        commits, _mark, out = out.partition(b"=====\n")
        state, _mark, archive = out.partition(b"=====\n")
        self._commits[name] = set(commits.decode().split())
        self._git_inside[name] = state.decode()
        return tree_of_tar(archive)

    def _check_commits(self) -> None:
        """A name leads to each commit of the person or of a run, in the repository or in a sandbox."""
        here = set(self.ask_git(ALL_COMMITS).split())
        if lost := self._own_commits - here:
            raise Failure("a commit of the person is lost", f"{lost}")
        here = here.union(*self._commits.values())
        if lost := self._known_commits - here:
            raise Failure("a commit of a run is lost", f"{lost}")
        self._known_commits |= here

    def _forget_commits(self, name: str) -> None:
        """The commits that only this sandbox has are discarded now."""
        if self.has_git:
            self._known_commits -= self._commits.get(name, set()) - set(self.ask_git(ALL_COMMITS).split())

    # Comparing

    def settle(self, number: int, told: Told, of: int = 0, name: str = "") -> None:
        """Record an operation, and if it reverses one after which nothing happened, compare."""
        before, now = self.seen, self.observe()
        self.seen = now
        if not told.number:
            return
        self.record(number, told, Expected(Operation(told.kind, name, of=of)))
        self._before[told.number], self._after[told.number] = before, now
        if name in self.alive:
            self._of_live.add(told.number)
        then, start = self._after.get(of), self._before.get(of)
        if then is None or start is None or not self.are_same(before, then):
            return
        nodes = [before["live"].get(path) for path in told.left]
        files = [node for node in nodes if not is_dir(node)]
        if files and all(node is not None and b"\0" in node.data for node in files):
            # Git wrote it again, with other times: of what is no text nobody knows that it is the same
            return
        if told.left:
            raise Failure(f"there and back: skipped by {told.kind}", f"{told.left}")
        # What lay beneath may be folded by operations that came in between
        is_direct = told.number == self.model.operations[of].number + 1 and self.model.root_of(of) not in self._of_live
        others = self.names - {name} if is_direct else self.names
        start, now = self._without_asleep(others, before["live"], start, now)
        self.compare(start, now, f"there and back by {told.kind}")

    def _without_asleep(self, others: Collection[str], had: Tree, start: Seen, now: Seen) -> tuple[Seen, Seen]:
        """Leave out what was held in these sandboxes and the project has had meanwhile: it may be held no more."""
        for name in self.names:
            view = start.get(f"view {name}", {})
            held = {path for path in {*view, *start["live"]} if view.get(path) != start["live"].get(path)}
            asleep = {path for path in held if name in others and view.get(path) == had.get(path)}
            if asleep:
                start = {part: one for part, one in start.items() if part != f"git {name}"}
            parts = [part for part in (f"view {name}", f"changes {name}") if part in start and part in now]
            start, now = (
                {
                    **seen,
                    **{part: {path: one for path, one in seen[part].items() if path not in asleep} for part in parts},
                }
                for seen in (start, now)
            )
        return start, now

    def are_same(self, one: Seen, two: Seen) -> bool:
        return all(one[part] == two[part] for part in one if part in two)

    def compare(self, expected: Seen, got: Seen, what: str) -> None:
        for part in expected:
            if part in got and expected[part] != got[part]:
                raise Failure(f"{what}: {part.partition(' ')[0]}", f"{part}: {shown(expected[part], got[part])}")

    # Steps

    def do_run(
        self, number: int, name: str, after: str, edits: list[Edit], session: str = "", how: str = "", commit: str = ""
    ) -> None:
        if not edits:
            raise Senseless
        after = self.alive.get(name, after)
        if name not in self.names:
            self.names.add(name)
            self.seen = self.observe()
        made, live = self._check_inside(name) if name in self.alive else dict(self._inside[name]), self.seen["live"]
        ways = {path: node for path, node in made.items() if is_dir(node) and not is_dir(self.seen["live"].get(path))}
        before = dict(made)
        for edit in edits:
            do_in_model(made, edit)
        self._note_bases(name, live, before, made)
        for edit in edits:
            # What is written is the sandbox's own, even if it is as it was
            self._bases.setdefault((name, edit[1]), [])
        if any(is_dir(made.get(path)) and made[path] != node for path, node in ways.items()):
            # The person has deleted this directory, or a held run made it: files play what becomes of its permissions
            raise Senseless
        command = "; ".join(map(to_shell, edits)) + (f"; git add -A; git commit -qm {commit} || true" if commit else "")
        told, _out = self.verbs.run(name, command, after, session, reuse=how == "reuse" and not self.has_git)
        self.settle(number, told, name=name)
        if name in self.alive:
            self._check_applied(name, live, before)
        inside = self._seen_inside(name)
        for path in self._stale.get(name, ()):
            # Nothing is promised yet of what was changed outside meanwhile
            put(made, path, inside.get(path))
        taken_back = {path for taken_from, path in self._taken_back if taken_from == name}
        for path in sorted(path for path in {*inside, *made} if taken_back.intersection((path, *above(path)))):
            outside = self.seen["live"].get(path)
            if inside.get(path) == outside:
                # It is let go of where the person made something before this run
                put(made, path, outside)
        for path in sorted(path for path, node in made.items() if is_dir(node))[::-1]:
            outside = self.seen["live"].get(path)
            if not is_dir(outside) and inside.get(path) == outside and not any(path in above(one) for one in made):
                # The person has taken this directory away, and nothing is held in it any more
                put(made, path, outside)
        if after != "discard" and inside != made:
            raise Failure(f"view after run --{after}", f"{name}: {described(made, inside)}")

    def _is_own(self, name: str, path: str) -> bool:
        """Tell whether a path, or what is above or below it, was ever changed by commands of a sandbox."""
        return any(where == name and (path in (own, *above(own)) or own in above(path)) for where, own in self._bases)

    def _check_inside(self, name: str) -> Tree:
        """Return what is seen beside a background run; what its sandbox has not changed must be as it is outside."""
        inside, live = self._look_inside_alive(name), read_tree(os.fspath(self.project))
        others = {path for path in {*inside, *live} if not self._is_own(name, path)}
        for path in others:
            if inside.get(path) != live.get(path):
                parts = [{one: tree[one] for one in others if one in tree} for tree in (live, inside)]
                raise Failure("stale beside a background run", f"{name}: {described(*parts)}")
        return inside

    def _check_applied(self, name: str, before: Tree, inside: Tree) -> None:
        """Check what a checkpoint put into the project, of which commands inside had seen this."""
        after = self.seen["live"]
        for path in sorted(path for path in {*before, *after} if before.get(path) != after.get(path)):
            if not self._is_own(name, path):
                raise Failure("applied what no command has changed", f"{name}: {path}")
            had, seen, has = (
                set() if node is None else set(node.data.decode("latin-1").splitlines())
                for node in (before.get(path), inside.get(path), after.get(path))
            )
            lost = {line for line in had - seen - has if self.writers.get(line) == "you"}
            if lost:
                raise Failure("lines of the person are lost", f"{name}: {path}: {sorted(lost)}")

    def _note_bases(self, name: str, live: Tree, before: Tree, made: Tree) -> None:
        """Note which changes this run makes from what is live, and which of those before it takes back."""
        for path in {path for path in {*before, *made} if before.get(path) != made.get(path)}:
            bases = self._bases.setdefault((name, path), [])
            if made.get(path) in bases:
                self._taken_back.add((name, path))
            if before.get(path) == live.get(path):
                bases.append(before.get(path))

    def do_edit(self, _number: int, edits: list[Edit]) -> None:
        tree = read_tree(os.fspath(self.project))
        for edit in edits:
            do_in_model(tree, edit)
        for edit in edits:
            do_for_real(self.project, edit)
        self.note_writer("you", edits)
        before = self.seen["live"]
        self.seen = self.observe()
        for name in self.names:
            self._check_edited(name, before)

    def _check_edited(self, name: str, before: Tree) -> None:
        """Check that the next command sees what the person has edited, where nothing was ever held."""
        if name in self.alive:
            self._check_inside(name)
            return
        live, inside = self.seen["live"], self._inside[name]
        own = {path for where, path in {*self._ever_held, *self._bases} if where == name}
        hidden = {path for path in own if (name, path) in self._ever_held}
        for path in {*before, *live}:
            is_edited = (
                before.get(path) != live.get(path) and not is_dir(before.get(path)) and not is_dir(live.get(path))
            )
            if is_edited and path not in hidden and own.isdisjoint(above(path)) and inside.get(path) != live.get(path):
                raise Failure("an edit is not seen", f"{name}: {path}")

    def do_commit(self, number: int, edits: list[Edit], message: str) -> None:
        self.do_edit(number, edits)
        self.shell(f"git add -A; git commit -qm {message}")
        self._own_commits.add(self.shell("git rev-parse HEAD").strip())
        self.seen = self.observe()

    def do_git(self, _number: int, command: str) -> None:
        self.shell(command)
        self.seen = self.observe()

    def do_apply(self, number: int, name: str, paths: list[str] | None = None, side: Side = "") -> None:
        if name not in self.alive and not self.seen.get(f"changes {name}", True) and not self.has_git:
            # What was to be held again, though the project has it, goes; so does the model of files leave it out
            raise Senseless
        self.settle(number, self.verbs.apply(name, paths, side), name=name)

    def do_hunk(self, number: int, name: str, path: str, numbers: list[int], verb: str, lines: list[int]) -> None:
        do = self.verbs.discard_part if verb == "discard" else self.verbs.apply_part
        self.settle(number, do(name, path, numbers), name=name)

    def do_discard(self, number: int, name: str, paths: list[str] | None = None) -> None:
        self._forget_commits(name)
        self.settle(number, self.verbs.discard(name, paths), name=name)

    def _reverse(
        self, number: int, kind: Literal["undo", "redo"], ref: int | None, *, is_dry_first: bool = False
    ) -> None:
        named = None if ref is None else self.made.get(ref)
        if ref is not None and named is None:
            raise Senseless
        # What only a sandbox has may go with what is undone or discarded again, and comes back the same way
        for name in self.names:
            self._forget_commits(name)
        told = self.verbs.undo(named) if kind == "undo" else self.verbs.redo(named)
        if not told.number:
            self.settle(number, told)
            return
        of = self.ids[told.of]
        self.settle(number, told, of, self.model.operations[of].sandbox)

    def _reverse_session(self, number: int, kind: str, wanted: Collection[int], verb: Callable[[], list[Told]]) -> None:
        before = self.seen
        for name in self.names:
            self._forget_commits(name)
        done = [told for told in verb() if told.number]
        reversed_ones = {self.model.root_of(self.ids[told.of]) for told in done}
        chains = [one for number, one in self.model.operations.items() if self.model.root_of(number) in reversed_ones]
        was_partial = any(one.is_partial for one in chains)
        for told in done:
            of = self.ids[told.of]
            self.record(number, told, Expected(Operation(kind, self.model.operations[of].sandbox, of=of)))
        self.seen = now = self.observe()
        last, self._session = self._session, (reversed_ones, before, now)
        if last is None or last[0] != reversed_ones or not self.are_same(last[2], before):
            return
        if was_partial:
            # An undo that skipped something, a moved branch say, is tried whole again
            return
        if left := [told.left for told in done if told.left]:
            raise Failure(f"there and back: skipped by {kind} --session", f"{left}")
        self.compare(last[1], now, f"there and back by {kind} --session")

    def do_look(self, _number: int, name: str, how: str = "reuse") -> None:
        self.names.add(name)
        self.seen = self.observe()

    def do_check_repository(self, _number: int) -> None:
        found = self.shell("git fsck --no-dangling --no-progress --no-reflogs 2>&1 || echo failed").strip()
        if found:
            raise Failure("git fsck", found)

    def do_start(self, _number: int, name: str, after: str) -> None:
        if name in self.alive:
            raise Senseless
        self.names.add(name)
        self.cli.start(name, after)
        self.alive[name], self._stale[name] = after, set()
        self.seen = self.observe()

    def do_stop(self, number: int, name: str) -> None:
        if name not in self.alive:
            raise Senseless
        inside, live = self._check_inside(name), read_tree(os.fspath(self.project))
        told = self.cli.stop(name)
        del self.alive[name]
        found = self._look_inside(name)
        for path in self._stale.pop(name):
            put(found, path, inside.get(path))
        if found != inside:
            raise Failure("view after stop", described(inside, found))
        if not any(one.number for one in told) and (now := read_tree(os.fspath(self.project))) != live:
            raise Failure("tree after stop", described(live, now))
        for one in told:
            self.settle(number, one, name=name)
            self._check_applied(name, live, inside)

    def _seen_inside(self, name: str) -> Tree:
        """Return what a command sees there, since the last step."""
        return self._look_inside_alive(name) if name in self.alive else dict(self._inside[name])

    def _look_inside_alive(self, name: str) -> Tree:
        told, out = self.verbs.run(name, LOOK, self.alive[name])
        if told.number:
            raise Failure("a look changed something", f"{told}")
        return tree_of_tar(out)


def is_of_git(path: str) -> bool:
    return path == ".git" or path.startswith(".git/")


def shown(expected: object, got: object) -> str:
    """Return in what two things of the same kind differ."""
    if isinstance(expected, dict) and isinstance(got, dict):
        nodes = [value for value in [*expected.values(), *got.values()] if isinstance(value, Node)]
        return described(expected, got) if nodes else f"expected {expected}, seen {got}"
    one, two = str(expected).splitlines(), str(got).splitlines()
    return f"missing {[line for line in one if line not in two]}, too many {[line for line in two if line not in one]}"
