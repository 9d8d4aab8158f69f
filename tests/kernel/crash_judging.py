# SPDX-License-Identifier: Apache-2.0
"""What must be true after a strike and one start: the tree before or the tree after, a record of which, nothing lost.

Looks in a process of its own, because a process recovers once. Then the work is done again or taken back, to the end.
"""

import os
import pickle
import sqlite3
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from tests.kernel.crash_copies import Image, capture, contents, differences, look, visible, with_others, without_twins
from tests.kernel.crash_scene import Scene
from unspill import Sandbox
from unspill.errors import UnspillError
from unspill.model.operation import Operation

T = TypeVar("T")
Held = list[tuple[object, ...]]


@dataclass(frozen=True)
class Reference:
    """What an apply and an undo that nobody disturbs make of a scene."""

    before: Image
    after: Image
    held: Held
    residue: Held
    left: tuple[tuple[bytes, str], ...]
    precious: frozenset[bytes]
    is_staged: bool = False

    def plain(self, image: Image) -> Image:
        """Return a tree as far as it is to be compared: copies from another filesystem have one name each."""
        return without_twins(image) if self.is_staged else image


def apart(function: Callable[..., T], *arguments: object) -> T:
    """Call a function in a fork of this process and return its result."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with open(write, "wb") as file:
                try:
                    pickle.dump(("done", function(*arguments)), file)
                except BaseException:
                    pickle.dump(("failed", traceback.format_exc()), file)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with open(read, "rb") as file:
        kind, result = pickle.load(file)
    os.waitpid(pid, 0)
    assert kind == "done", result
    value: T = result
    return value


def make_reference(scene: Scene, *, is_staged: bool) -> Reference:
    """Apply and take back without any disturbance."""
    scene.reset()
    before = capture(os.fsencode(scene.project))
    scene.reset()
    made: Reference = apart(_play, scene, Reference(before, {}, [], [], (), frozenset(), is_staged))
    return made


def _play(scene: Scene, reference: Reference) -> Reference:
    precious = contents(os.fsencode(scene.project)) | contents(os.fsencode(scene.state / "layers"))
    with closing(Sandbox(scene.project)) as sandbox:
        held = _held(sandbox)
        operation = sandbox.apply()
        residue = _held(sandbox)
    after = reference.plain(capture(os.fsencode(scene.project)))
    left = _left(operation)
    return replace(
        reference,
        before=reference.plain(reference.before),
        after=after,
        held=held,
        residue=residue,
        left=left,
        precious=frozenset(precious),
    )


def do_apply(scene: Scene) -> None:
    """Apply, undisturbed."""
    with closing(Sandbox(scene.project)) as sandbox:
        sandbox.apply()


def is_whole(scene: Scene, reference: Reference) -> list[str]:
    """Return what is wrong with the live tree as it is now, before anything is started.

    A hidden directory that could not be removed is the next start's.
    """
    return _state_of(scene, reference, hidden=b".unspill-")[1]


def verify(scene: Scene, reference: Reference, action: str) -> list[str]:
    """Start unspill, which recovers what was struck; return what is wrong then. To be called apart."""
    try:
        return _verify(scene, reference, action)
    except UnspillError:
        return [traceback.format_exc()]


def _verify(scene: Scene, reference: Reference, action: str) -> list[str]:
    sandbox = Sandbox(scene.project)
    state, problems = _state_of(scene, reference)
    if problems:
        return problems
    problems = [*_leftovers(scene), *_lost(scene, reference), *_records(sandbox, action, state)]
    wanted = reference.held if (action, state) == ("apply", "before") else reference.residue
    held = _held(sandbox)
    if held != wanted:
        problems.append(
            f"holds {[entry for entry in held if entry not in wanted]} instead of"
            f" {[entry for entry in wanted if entry not in held]}"
        )
    if not problems:
        problems = _go_on(sandbox, scene, reference, action, state)
    sandbox.close()
    return problems


def verify_left(scene: Scene, reference: Reference, left: tuple[bytes, ...]) -> list[str]:
    """Return what is wrong after an apply that could not read some paths, and said so. To be called apart."""
    with closing(Sandbox(scene.project)) as sandbox:
        found = reference.plain(look(os.fsencode(scene.project)))
        wanted = with_others(reference.after, reference.before, left)
        problems = [f"mixed state: {problem}" for problem in differences(found, visible(wanted))]
        problems += [*_leftovers(scene), *_lost(scene, reference)]
        if _left(sandbox.apply()) != reference.left:
            problems.append("it could not be applied later")
        found = reference.plain(look(os.fsencode(scene.project)))
        return problems + [f"in the end: {problem}" for problem in differences(found, visible(reference.after))]


def _left(operation: Operation) -> tuple[tuple[bytes, str], ...]:
    return tuple(sorted((left.path, left.why) for left in operation.left))


def _state_of(scene: Scene, reference: Reference, hidden: bytes | None = None) -> tuple[str, list[str]]:
    found = reference.plain(look(os.fsencode(scene.project)))
    if hidden is not None:
        found = {path: node for path, node in found.items() if not path.startswith(hidden)}
    ways = {"before": reference.before, "after": reference.after}
    wrong = {name: differences(found, visible(image)) for name, image in ways.items()}
    for name, problems in wrong.items():
        if not problems:
            return name, []
    nearest = min(wrong, key=lambda name: len(wrong[name]))
    return "mixed", [f"mixed state, nearest to {nearest}: {problem}" for problem in wrong[nearest]]


def _go_on(sandbox: Sandbox, scene: Scene, reference: Reference, action: str, state: str) -> list[str]:
    """Do what remains to be done, then the opposite; both must succeed wholly."""
    ways = {"before": reference.before, "after": reference.after}
    first = sandbox.apply if action == "apply" and state == "before" else sandbox.redo
    act = sandbox.undo if state == "after" else first
    operation = act()
    wanted = reference.left if action == "apply" and state == "before" else ()
    if _left(operation) != wanted:
        return [f"{act.__name__} left {operation.left}"]
    other = "before" if state == "after" else "after"
    if other == "after":
        if problems := differences(reference.plain(look(os.fsencode(scene.project))), visible(reference.after)):
            return [f"after {act.__name__}: {problem}" for problem in problems]
        if sandbox.undo().left:
            return ["the undo was not complete"]
    found = reference.plain(capture(os.fsencode(scene.project)))
    return [f"in the end: {problem}" for problem in differences(found, ways["before"])]


def _records(sandbox: Sandbox, action: str, state: str) -> list[str]:
    done = [one.kind for one in reversed(sandbox.operations()) if one.ending == "done"]
    expected = {
        ("apply", "before"): [],
        ("apply", "after"): ["apply"],
        ("undo", "after"): ["apply"],
        ("undo", "before"): ["apply", "undo"],
    }[action, state]
    problems = [] if done == expected else [f"the tree is as {state}, recorded is {done}"]
    return problems + [
        f"a rollback left {one.left}" for one in sandbox.operations() if one.ending != "done" and one.left
    ]


def _held(sandbox: Sandbox) -> Held:
    return [(change.path, change.kind, change.aspects, *_entry(change)) for change in sandbox.changes()]


def _entry(change: Any) -> tuple[object, ...]:
    entry = change.entry
    if entry is None:
        return ()
    if entry.kind != "file":
        return entry.kind, entry.mode, change.target
    try:
        with open(change.layer + b"/" + change.path, "rb") as file:
            content = file.read()
    except PermissionError:
        content = b""
    return entry.kind, entry.mode, entry.size, content


def _lost(scene: Scene, reference: Reference) -> list[str]:
    kept = contents(os.fsencode(scene.project))
    for part in ("layers", "operations"):
        kept |= contents(os.fsencode(scene.state / part))
    return [f"lost: {content[:80]!r}" for content in reference.precious - kept]


def _leftovers(scene: Scene) -> list[str]:
    """Return what lies around that nothing needs any more."""
    state = scene.state
    with closing(sqlite3.connect(state / "store.db")) as db:
        layers = {name for (name,) in db.execute("SELECT id FROM layers")}
        operations = {name for (name,) in db.execute("SELECT id FROM operations")}
        undone = [name for (name,) in db.execute("SELECT id FROM operations WHERE ending != 'done'")]
    found = {
        "pending": os.listdir(state / "pending"),
        "work": os.listdir(state / "work"),
        "layers": set(os.listdir(state / "layers")) ^ layers,
        "manifests": set(os.listdir(state / "manifests")) ^ layers,
        "operations": set(os.listdir(state / "operations")) ^ operations,
        "residues": list((state / "operations").glob("*/residue")),
        "what was taken back": [
            path for name in undone for path in (state / "operations" / name).iterdir() if path.name != "journal"
        ],
        "set aside": list(state.glob("lost-*")),
        "in the project": [name for name in os.listdir(scene.project) if name.startswith(".unspill")],
    }
    return [f"left behind in {place}: {names}" for place, names in found.items() if names]
