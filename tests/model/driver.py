# SPDX-License-Identifier: Apache-2.0
"""Does steps with unspill and with the model at once, and compares the two after each.

A step is a list: its number, its name, its arguments. Where it refers to an operation, it names the step that made it.
A step that makes no sense (any more) is left out, so that any part of a sequence is a sequence.
"""

import copy
import io
import os
import shutil
import signal
import tarfile
import tempfile
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tests.model.edits import LINE_EDITS, Edit, Senseless, do_for_real, do_in_model, read_tree, to_shell
from tests.model.model import (
    ALWAYS_HELD,
    Expected,
    Model,
    Node,
    Run,
    Side,
    Tree,
    Unknown,
    above,
    hunks,
    is_dir,
    part_of,
)
from tests.model.verbs import CommandLine, Failure, Library, Refused, Told, words_of

Step = list[Any]
TEXTS = ("f", "g", "d/a")
LINES = 24


class Case(NamedTuple):
    """What is played, and where projects are made."""

    mode: str
    where: Path


class World:
    """One project, with unspill on one side and the model on the other."""

    # Whether the model says what is to come
    is_exact = True

    def __init__(self, case: Case) -> None:
        self.case = case
        self.project = Path(tempfile.mkdtemp(prefix="project-", dir=case.where))
        self.prepare()
        self.cli = CommandLine(self.project)
        self.verbs: Library = self.cli if case.mode == "command line" else Library(self.project)
        self.model = Model(read_tree(os.fspath(self.project)))
        self.names = {"default"}
        # By step: the operation that it made, and the run
        self.made: dict[int, int] = {}
        self.runs: dict[int, int] = {}
        self.ids: dict[str, int] = {}
        # By token: the id of the run that wrote it, or `you`
        self.writers: dict[str, str] = {}
        self.without_writer: set[str] = set()
        # Of runs that were held at the same time nobody can tell any more which one changed what
        self.held_together: dict[str, set[str]] = {}
        self.companions: dict[str, set[str]] = {}
        self.all_runs: dict[str, set[str]] = {}
        self.last_kind = ""

    def last_steps(self) -> list[Step]:
        """Return what a sequence ends with."""
        return [*(["look", name, "plain"] for name in sorted(self.names)), ["ask"], ["blame"]]

    def prepare(self) -> None:
        (self.project / "d").mkdir()
        for path in TEXTS:
            (self.project / path).write_text("".join(f"{path}{number}\n" for number in range(1, LINES + 1)))
        (self.project / "bin").write_bytes(b"a\0b\n")

    def close(self) -> None:
        self.verbs.close()
        self.cli.close()
        shutil.rmtree(self.project)

    def do(self, step: Step) -> None:
        """Do a step and compare.

        Raises:
            Senseless: it can't be done here.
            Failure: something is not as it should be.
        """
        number, name, *rest = step
        before, names = copy.deepcopy(self.model), set(self.names)
        try:
            getattr(self, "do_" + name.replace("-", "_"))(number, *rest)
        except Senseless:
            self.model, self.names = before, names
            raise
        except Unknown:
            # If it is not done yet, it is left out
            if self.model.operations.keys() == before.operations.keys() and name not in (
                "undo-session",
                "redo-session",
            ):
                self.model, self.names = before, names
                raise Senseless from None
            raise
        except Refused as error:
            raise Failure(f"{name} refused", f"{error}") from None
        self.last_kind = name

    # Comparing

    def check(self, what: str) -> None:
        live = read_tree(os.fspath(self.project))
        if live != self.model.live:
            raise Failure(f"tree after {what}", described(self.model.live, live))
        counts = self.verbs.held_counts()
        for name in sorted(self.names):
            listed, expected = self.verbs.changes(name), self.model.changes(name)
            if listed != expected:
                raise Failure(f"changes after {what}", f"{name}: expected {expected}, listed {listed}")
            if counts.get(name, 0) != len(listed):
                raise Failure(f"sandboxes after {what}", f"{name}: {counts} held, but changes lists {listed}")

    def look(self, name: str, how: str = "reuse") -> Tree:
        """Return what a command in this sandbox sees."""
        verbs = self.cli if how == "command line" else self.verbs
        _told, out = verbs.run(name, "tar -cf - --exclude=./.git .", "discard", reuse=how == "reuse")
        return tree_of_tar(out)

    def check_told(self, told: Told, expected: Expected, what: str) -> None:
        """Compare what was said with what was to be done."""
        for path, why in told.left.items():
            if not is_named_by(expected.skipped | expected.may_be_skipped, path):
                raise Failure(f"skipped without need by {what}", f"{path}: {why}")
        for path in expected.skipped:
            if not is_named_by(told.left, path) and not any(path in above(one) for one in told.left):
                raise Failure(f"not told as skipped by {what}", f"{path}: {told}")
        said = {note.partition(":")[0] for note in told.notes if "your edits" in note}
        for path in said - expected.merged - expected.may_be_merged:
            raise Failure(f"untrue 'merged' by {what}", f"{path}: {told.notes}")
        for path in expected.merged - said:
            raise Failure(f"merge not told by {what}", f"{path}: {told}")
        one = expected.operation
        # Where the project has both sides' lines already, there is nothing to record
        must_be = bool(one.live or one.held.keys() - expected.may_be_merged) or (
            bool(one.of) and not expected.skipped and not told.left
        )
        # Where something was there already, or only times changed, an operation may say so
        may_be = must_be or bool(expected.found or expected.may_be_merged) or told.changed == 0
        if (must_be and not told.number) or (told.number and not may_be):
            raise Failure(f"operation of {what}", f"{told}, but expected {expected.operation}")
        least = len(expected.operation.live)
        most = least + len(expected.may_be_merged.difference(expected.operation.live, expected.operation.touched))
        root = self.model.operations[self.model.root_of(one.of)] if one.of else one
        if root.kind == "discard":
            # It counts what was held, a directory as one, and what a later run hides
            ways = {one for path in root.held for one in above(path)}
            least, most = int(bool(one.held)), len(ways.union(root.held))
        if told.number and not least <= told.changed <= most:
            raise Failure(f"count of {what}", f"{told}, but expected {sorted(expected.operation.live)}")

    def perform(self, number: int, what: str, expected: Expected, verb: Callable[[], Told]) -> Told:
        """Do for real what the model has done, record it, and compare."""
        self.check_known()
        told = verb()
        self.finish(number, told, expected, what)
        return told

    def check_known(self) -> None:
        """Leave out what the model does not know.

        A layer has copies of the directories above what was changed: what others make of their permissions meanwhile
        is not seen inside. And a directory that a command made hides what others put into one of the same name.
        """
        for sandbox in self.model.sandboxes.values():
            if not sandbox.has_known_directories(self.model.live):
                raise Senseless

    def finish(self, number: int, told: Told, expected: Expected, what: str) -> None:
        """Record what a step did, and compare."""
        self.record(number, told, expected)
        self.check_told(told, expected, what)
        # A merge that is one of the sides is written, too
        expected.operation.touched = {*expected.operation.touched, *expected.may_be_merged}
        self.check(what)

    def record(self, number: int, told: Told, expected: Expected) -> None:
        if told.number:
            expected.operation.number, expected.operation.changed = told.number, told.changed
            expected.operation.is_partial = bool(told.left)
            expected.operation.is_merged = any("your edits" in note for note in told.notes)
            self.model.operations[told.number] = expected.operation
            self.made[number] = told.number
            self.ids[told.id] = told.number

    # Steps

    def do_run(self, number: int, name: str, after: str, edits: list[Edit], session: str = "", how: str = "") -> None:
        run = self._run_of(number, name, edits)._replace(session=session)
        expected = self.model.run(name, run, after)
        command = "; ".join(map(to_shell, edits))

        def do() -> Told:
            told, _out = self.verbs.run(name, command, after, session, reuse=how == "reuse")
            return told

        told = self.perform(number, f"run --{after}", expected, do)
        self.note_run(number, name, told, edits)

    def _run_of(self, number: int, name: str, edits: list[Edit]) -> Run:
        """Return what edits make of what a command sees now."""
        if not edits or any(edit[1].startswith(ALWAYS_HELD + "/") for edit in edits):
            raise Senseless
        moved = [at for at, edit in enumerate(edits) if edit[0] == "move"]
        if any(later[1] == edits[at][1] for at in moved for later in edits[at:][1:]):
            # A file that was moved, and has another in its old place, may be taken for one that somebody deleted
            raise Senseless
        self.names.add(name)
        made, remade = self.model.view(name), set[str]()
        for edit in edits:
            directories = {path for path, node in made.items() if is_dir(node)}
            do_in_model(made, edit)
            remade |= {path for path in directories if not is_dir(made.get(path))}
        touched = {edit[1] for edit in edits if edit[0].startswith("same")}
        return Run(number, made, remade=remade, touched=touched)

    def note_run(self, number: int, name: str, told: Told, edits: list[Edit]) -> None:
        self.runs[number] = told.run[0]
        self.note_writer(told.run[1], edits)
        together, known = self.held_together.setdefault(name, set()), self.all_runs.setdefault(name, set())
        if not self.model.sandbox(name).held:
            together.clear()
        known.add(told.run[1])
        # What an undo holds again may be of any of them
        has_reversed = any(one.of for one in self.model.operations.values())
        together |= known if has_reversed else {told.run[1]}
        for run in together:
            self.companions.setdefault(run, set()).update(together)

    def note_writer(self, writer: str, edits: list[Edit]) -> None:
        """Remember who wrote a line; of moved files and copies nobody asks who wrote them."""
        for kind, path, *rest in edits:
            if kind in (*LINE_EDITS, "write"):
                self.writers.update(dict.fromkeys(str(rest[-1]).replace("\\n", " ").split(), writer))
            elif kind not in ("delete-line", "same-in-place", "same-content", "chmod"):
                self.without_writer |= {path, *map(str, rest)}

    def do_run_with_edit(
        self, number: int, name: str, after: str, edits: list[Edit], own: list[Edit], is_first: bool
    ) -> None:
        """The person edits while a command runs, before or after it does."""
        then, live = self.model.live, dict(self.model.live)
        for edit in own:
            if edit[0] not in LINE_EDITS:
                raise Senseless
            do_in_model(live, edit)
        meanwhile = {path for path in live if live[path] != then[path]}
        # What is saved by a rename changes the time of its directory
        meanwhile |= {one for edit in own if not edit[0].endswith("in-place") for one in above(edit[1])[-1:]}
        if not is_first and any(edit[0] == "move" and edit[1] in meanwhile for edit in edits):
            # Where it was, another file is by now: whether the one that was moved was its own is not known
            raise Senseless
        if has_edited_what_moved(edits) and not all(edit[0].endswith("in-place") for edit in own):
            # Where the person changed names, it can't be told from a file that they took away
            raise Senseless
        if is_first:
            self.model.live = live
        run = self._run_of(number, name, edits)
        if meanwhile.intersection([*run.touched, *self.model.sandbox(name).held]):
            # Nobody knows that the command wrote what it had read, and it saw nothing of edits below what is held
            raise Senseless
        if not is_first:
            # What the command did not change is what the person made of it
            unchanged = {path for path in meanwhile if run.made.get(path) == then[path]}
            run.made.update({path: live[path] for path in unchanged})
        self.model.live = live
        expected = self.model.run(name, run._replace(meanwhile=meanwhile), after)
        self.check_known()
        commands = [*(["echo ready; read go"] if is_first else []), *map(to_shell, edits)]
        commands += [] if is_first else ["echo ready; read go"]

        def edit_now() -> None:
            for edit in own:
                do_for_real(self.project, edit)

        told = self.verbs.run_with_edit(name, "; ".join(commands), after, edit_now)
        self.finish(number, told, expected, f"run --{after} with an edit")
        self.note_run(number, name, told, edits)
        self.note_writer("you", own)

    def do_edit(self, _number: int, edits: list[Edit]) -> None:
        tree = dict(self.model.live)
        for edit in edits:
            do_in_model(tree, edit)
        self.model.live = tree
        self.check_known()
        for edit in edits:
            do_for_real(self.project, edit)
        self.note_writer("you", edits)
        self.check("an edit")

    def do_apply(self, number: int, name: str, paths: list[str] | None = None, side: Side = "") -> None:
        listed = self.model.changes(name)
        if not listed or not set(paths or ()) <= set(listed):
            raise Senseless
        what = "apply" + (" PATH" if paths else "") + (f" --{side}" if side else "")
        self.without_writer.update(paths or () if side else ())
        expected = self.model.apply(name, paths, side)
        self.perform(number, what, expected, lambda: self.verbs.apply(name, paths, side))

    def do_apply_run(self, number: int, name: str, ref: int) -> None:
        runs = self.model.sandbox(name).runs
        if ref not in runs or ref not in self.runs or runs.get(-1):
            # What was folded into one belongs to the last of its runs
            raise Senseless
        if not self.model.sandbox(name).runs[ref].intersection(self.model.changes(name)):
            raise Senseless
        expected = self.model.apply_run(name, ref)
        if expected is None:
            self.expect_refusal("apply --run", lambda: self.verbs.apply_run(name, self.runs[ref]))
        else:
            self.perform(number, "apply --run", expected, lambda: self.verbs.apply_run(name, self.runs[ref]))

    def do_interrupt(self, number: int, name: str, after: str, edits: list[Edit], how: str) -> None:
        """End the program in the middle of a run: what the command has changed is held."""
        self.model.run(name, self._run_of(number, name, edits), "hold")
        self.check_known()
        command = "; ".join([*map(to_shell, edits), "echo ready", "sleep 60"])
        self.verbs.close()
        self.cli.interrupt(name, command, after, signal.SIGKILL if how == "kill" else signal.SIGINT)
        # Whose run it is, nobody is told
        self.without_writer.update(self.model.sandbox(name).held)
        self.check(f"a run that was ended by {how}")

    def do_kill(self, number: int, milliseconds: int, kind: str, *rest: Any) -> None:
        """Kill the program in the middle of an operation: it has happened completely or not at all."""
        then = copy.deepcopy(self.model)
        words, expected = self._to_kill(kind, rest)
        self.check_known()
        # What a later run took back is dropped by an operation of its own, which the model does not have
        known = max((one.number for one in self.verbs.operations()), default=0)
        self.verbs.close()
        self.cli.kill_after(milliseconds / 1000, *words)
        done = [one for one in self.verbs.operations() if one.number > known and one.ending == "done"]
        if not done:
            self.model = then
        else:
            self.record(number, done[0], expected)
        self.check(f"killed {kind}, {'done' if done else 'not done'}")

    def _to_kill(self, kind: str, rest: Sequence[Any]) -> tuple[list[str], Expected]:
        match kind, rest:
            case "apply" | "discard", [name]:
                if not self.model.changes(name):
                    raise Senseless
                expected = self.model.apply(name) if kind == "apply" else self.model.discard(name)
                return words_of(kind, name, None, ""), expected
            case "undo" | "redo", []:
                target = self.model.last("undo" if kind == "undo" else "redo")
                if target is None:
                    raise Senseless
                return words_of(kind, None), self.model.reverse(target)
        raise Senseless

    def do_ask(self, _number: int) -> None:
        """Compare what the command line tells about everything."""
        live = read_tree(os.fspath(self.project))
        logged, _code = self.cli.do("log", "--all", "--json", "--limit", "1000")
        status, _code = self.cli.do("status", "--json")
        listed, _code = self.cli.do("sandboxes", "--json")
        operations = {one["number"]: one for one in logged["operations"] if one["ending"] == "done"}
        newest = max(operations, default=0)
        # What a later run took back is dropped by an operation that nobody is told about
        dropped = {number for number, one in operations.items() if (one["kind"], one["asked_by"]) == ("discard", "run")}
        operations = {number: one for number, one in operations.items() if number not in dropped}
        if set(operations) != set(self.model.operations):
            raise Failure("log", f"{sorted(operations)}, but expected {sorted(self.model.operations)}")
        for number, one in self.model.operations.items():
            told = operations[number]
            if (told["kind"], self.ids.get(told["of"], 0)) != (one.kind, one.of):
                raise Failure("log", f"{told}, but expected {one}")
        # Each is a program to start, so not of all: sequences are many
        for number in sorted(self.model.operations)[-1:-9:-3]:
            shown, _code = self.cli.do("show", f"op{number}", "--json")
            if shown != operations[number]:
                raise Failure("show", f"{shown}, but the log says {operations[number]}")
        if status["here"]["sandboxes"] != listed["sandboxes"]:
            raise Failure("status", f"{status['here']}, but sandboxes: {listed}")
        # What changed nothing is not worth a line
        least = max((number for number, one in operations.items() if one["changed"]), default=0)
        if not least <= (status["here"]["last_operation"] or 0) <= newest:
            raise Failure("status", f"{status['here']}, but the log says {sorted(operations)}")
        for name in self.names:
            if self.cli.changes(name) != self.model.changes(name):
                raise Failure("changes by command line", f"{name}: {self.cli.changes(name)}")
        if live != read_tree(os.fspath(self.project)):
            raise Failure("a question changed the project", "")

    def do_blame(self, _number: int) -> None:
        """Compare who wrote each line: what a run or the person wrote names them."""
        for path in TEXTS:
            node = self.model.live.get(path)
            if node is None or node.kind != "file" or b"\0" in node.data:
                continue
            if self.without_writer.intersection((path, *above(path))):
                continue
            for author, line in self.verbs.sandbox().blame(path):
                writer = self.writers.get(line.decode().strip())
                if writer is None:
                    continue
                by = {"you", "?"} if writer == "you" else self.companions[writer]
                told = {author} if isinstance(author, str) else set(author.runs)
                if not by & told:
                    raise Failure("blame", f"{path}: {line!r} is told to be by {author}, but was by {writer}")

    def do_include(self, number: int, name: str, path: str) -> None:
        if path not in self.model.changes(name) or path != ALWAYS_HELD:
            raise Senseless
        expected = self.model.apply(name, [path], include=True)
        self.perform(number, "apply --include", expected, lambda: self.verbs.apply(name, [path], include=[path]))

    def do_hunk(self, number: int, name: str, path: str, numbers: list[int], verb: str, lines: list[int]) -> None:
        held, live = self.model.sandbox(name).held.get(path), self.model.live.get(path)
        if path == ALWAYS_HELD:
            raise Senseless
        if held is None or held.result is None or live is None or live != held.base or live == held.result:
            raise Senseless
        if {live.kind, held.result.kind} != {"file"} or b"\0" in live.data + held.result.data:
            raise Senseless
        parts = hunks(live.data, held.result.data)
        many = sum(i2 - i1 + j2 - j1 for part in parts for i1, i2, j1, j2 in part)
        if max([*numbers, 0]) > len(parts) or max([*lines, 0]) > many:
            raise Senseless
        if part_of(live.data, held.result.data, numbers, lines) == live.data:
            raise Senseless
        what = f"{verb} of {'lines' if lines else 'hunks'}"
        if verb == "apply":
            expected = self.model.apply_part(name, path, numbers, lines)
            self.perform(number, what, expected, lambda: self.verbs.apply_part(name, path, numbers, lines))
        else:
            expected = self.model.discard_part(name, path, numbers)
            self.perform(number, what, expected, lambda: self.verbs.discard_part(name, path, numbers))

    def do_discard(self, number: int, name: str, paths: list[str] | None = None) -> None:
        listed = self.model.changes(name)
        if not listed or not set(paths or ()) <= set(listed):
            raise Senseless
        expected = self.model.discard(name, paths)
        what = "discard" + (" PATH" if paths else "")
        self.perform(number, what, expected, lambda: self.verbs.discard(name, paths))

    def do_undo(self, number: int, ref: int | None = None, dry: bool = False) -> None:
        self._reverse(number, "undo", ref, is_dry_first=dry)

    def do_redo(self, number: int, ref: int | None = None) -> None:
        self._reverse(number, "redo", ref)

    def _reverse(
        self, number: int, kind: Literal["undo", "redo"], ref: int | None, *, is_dry_first: bool = False
    ) -> None:
        named = None if ref is None else self.made.get(ref)
        if ref is not None and named is None:
            raise Senseless
        target = self.model.last(kind) if named is None else self.model.newest_of(named)
        verb: Callable[[int | None], Told] = self.verbs.undo if kind == "undo" else self.verbs.redo
        is_redo = kind == "redo" or (named is not None and self.model.operations[named].kind == "undo")
        if target is None or self.model.is_done(target) == is_redo:
            self.expect_refusal(f"{kind} of nothing", lambda: verb(named))
            return
        if self.model.is_mixed(target):
            raise Senseless
        then = copy.deepcopy(self.model)
        expected = self.model.reverse(target)
        self.check_known()
        foretold = self.verbs.undo(named, dry_run=True) if is_dry_first else None
        told = verb(named)
        if not told.number and told.left and expected.may_do_nothing:
            self.model = then
            self.check(f"{kind} that did nothing")
            return
        if told.number and self.ids.get(told.of) != target:
            raise Failure(f"{kind} of another operation", f"op{self.ids.get(told.of)} instead of op{target}")
        if foretold is not None and (foretold.left, foretold.changed) != (told.left, told.changed):
            raise Failure("dry run", f"foretold {foretold}, did {told}")
        self.finish(number, told, expected, kind)

    def expect_refusal(self, what: str, verb: Callable[[], object]) -> None:
        try:
            done = verb()
        except Refused:
            self.check(what)
            return
        raise Failure(f"{what} not refused", f"{done}")

    def do_restore(self, number: int, path: str, ref: int) -> None:
        target = self.made.get(ref)
        if target is None:
            raise Senseless
        is_done = self.model.is_done(target) == (self.model.operations[target].kind != "undo")
        if not is_done or self.model.is_mixed(target):
            # What it replaced is back in the project, or was
            raise Senseless
        before, _after = self.model.operations[target].live.get(path, (None, None))
        last = self.model.last_at(target, path)
        if last is None or last.kind == "undo" or last.live[path][0] != before:
            # An undo put it back, and the person has edited it or taken it away
            raise Senseless
        if before is None or before == self.model.live.get(path) or is_dir(before) or is_dir(self.model.live.get(path)):
            raise Senseless
        if any(self.model.live.get(one, Node("dir", 0)).kind != "dir" for one in above(path)):
            raise Senseless
        self.without_writer.add(path)
        expected = self.model.restore(path, target)
        self.perform(number, "restore", expected, lambda: self.verbs.restore(path, target))

    def do_undo_session(self, number: int, session: str, ref: int | None = None) -> None:
        to = None if ref is None else self.made.get(ref)
        known = [one for one in self.model.operations.values() if one.session == session and not one.of]
        if ref is not None and to not in [one.number for one in known]:
            raise Senseless
        wanted = [one.number for one in known if self.model.is_done(one.number) and one.number > (to or 0)]
        self._reverse_session(number, "undo", wanted, lambda: self.verbs.undo_session(session, to))

    def do_redo_session(self, number: int, session: str) -> None:
        known = [one for one in self.model.operations.values() if one.session == session and not one.of]
        wanted = [one.number for one in known if not self.model.is_done(one.number)]
        self._reverse_session(number, "redo", wanted, lambda: self.verbs.redo_session(session))

    def _reverse_session(self, number: int, kind: str, wanted: Collection[int], verb: Callable[[], list[Told]]) -> None:
        try:
            done = verb()
        except Refused:
            if wanted:
                raise
            raise Senseless from None
        reversed_ones = [self.model.root_of(self.ids[told.of]) for told in done if told.number]
        if reversed_ones != sorted(reversed_ones, reverse=kind == "undo"):
            raise Failure(f"order of {kind} --session", f"{reversed_ones}")
        steps = []
        for told in done:
            if told.number:
                expected = self.model.reverse(self.ids[told.of])
                self.record(number, told, expected)
                steps.append((told, expected))
        for told, expected in steps:
            self.check_told(told, expected, f"{kind} --session")
        try:
            self.check_known()
        except Senseless:
            raise Unknown from None
        self.check(f"{kind} --session")

    def do_look(self, _number: int, name: str, how: str = "reuse") -> None:
        self.names.add(name)
        seen, expected = self.look(name, how), self.model.view(name)
        if seen != expected:
            raise Failure(f"view by {how}", f"{name}: " + described(expected, seen))


def has_edited_what_moved(edits: Sequence[Edit]) -> bool:
    """Tell whether a command has both moved a file and changed it."""
    moved = [path for edit in edits if edit[0] == "move" for path in edit[1:3]]
    return any(
        path in (edit[1], *above(edit[1])) or edit[1] in above(path)
        for edit in edits
        if edit[0] != "move"
        for path in moved
    )


def is_named_by(names: Collection[str], path: str) -> bool:
    """Tell whether a path is named, or what is above or below it, which stands for it."""
    return any(path in (one, *above(one)) or one in above(path) for one in names)


def tree_of_tar(data: bytes) -> Tree:
    tree: Tree = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            name = os.path.normpath(member.name)
            if member.issym():
                tree[name] = Node("link", 0o777, member.linkname.encode())
            elif member.isdir():
                tree[name] = Node("dir", member.mode)
            elif member.islnk():
                tree[name] = tree[os.path.normpath(member.linkname)]
            else:
                file = archive.extractfile(member)
                tree[name] = Node("file", member.mode, b"" if file is None else file.read())
    tree.pop(".", None)
    return tree


def described(expected: Tree, got: Tree) -> str:
    """Return how two trees differ, in few words."""
    lines = []
    for path in sorted({*expected, *got}):
        one, two = expected.get(path), got.get(path)
        if one != two:
            lines.append(f"{path}: expected {brief(one)}, seen {brief(two)}")
        if one != two and one and two and one.kind == two.kind == "file":
            old, new = (node.data.decode("latin-1").splitlines() for node in (one, two))
            missing, more = [line for line in old if line not in new], [line for line in new if line not in old]
            lines[-1] += f" (missing {missing}, too many {more})"
    return "; ".join(lines)


def brief(node: Node | None) -> str:
    return "nothing" if node is None else f"{node.kind} {node.mode:o} {len(node.data)} bytes"


def play(world: World, steps: list[Step]) -> Failure | None:
    """Do these steps; return how they failed."""
    for step in steps:
        failure = try_step(world, step)
        if isinstance(failure, Failure | Unknown):
            return failure if isinstance(failure, Failure) else None
    return None


def try_step(world: World, step: Step) -> Failure | Senseless | Unknown | None:
    """Do a step; return how it failed, or that it made no sense."""
    try:
        world.do(step)
    except (Failure, Senseless, Unknown) as found:
        return found
    except Exception as error:  # a traceback of unspill's library, or of ours
        return Failure(f"exception {type(error).__name__} in {step[1]}", traceback.format_exc())
    return None
