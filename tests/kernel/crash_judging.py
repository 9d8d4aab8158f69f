# SPDX-License-Identifier: Apache-2.0
"""What must be true after a strike and one start: the tree before or the tree after, a record of which, nothing lost.

A repository is compared by what it says, not by its files: where it stands moved whole or not at all, its objects and
logs only grow. Looks in a process of its own, because a process recovers once. Then the work is done again or taken
back, to the end.
"""

import os
import pickle
import sqlite3
import traceback
from collections.abc import Callable, Set
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tests.kernel.crash_copies import (
    Image,
    Node,
    capture,
    contents,
    differences,
    look,
    visible,
    with_others,
    without_twins,
)
from tests.kernel.crash_repositories import Repositories, read_repositories, repository_problems
from tests.kernel.crash_scene import MERGED, Scene
from unspill import Sandbox
from unspill.errors import UnspillError
from unspill.model.operation import Operation

T = TypeVar("T")
Held = list[tuple[object, ...]]

# Which ways an action can end: by what is recorded as done, which tree is there and what is held
ENDS: dict[str, dict[tuple[str, ...], tuple[str, str]]] = {
    "apply": {(): ("before", "held"), ("apply",): ("after", "residue")},
    "undo": {("apply",): ("after", "residue"), ("apply", "undo"): ("undone", "again")},
    "discard": {(): ("before", "held"), ("discard",): ("before", "nothing")},
    "undo of a discard": {("discard",): ("before", "nothing"), ("discard", "undo"): ("before", "held")},
}


@dataclass(frozen=True)
class Reference:
    """What an apply and an undo that nobody disturbs make of a scene."""

    trees: dict[str, Image]
    repositories: dict[str, Repositories]
    held: dict[str, Held]
    left: tuple[tuple[bytes, str], ...]
    precious: frozenset[bytes]
    is_staged: bool = False

    def plain(self, image: Image) -> Image:
        """Return a tree as far as it is to be compared: copies from another filesystem have one name each."""
        image = {path: _undated(node) for path, node in image.items() if b"/.git/" not in b"/" + path}
        return without_twins(image) if self.is_staged else image


def _undated(node: Node) -> Node:
    """Return a merged text without its time: it was made when it was merged."""
    return replace(node, mtime_ns=0) if b"the person: " in node.content and b" run: " in node.content else node


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
    made: Reference = apart(_play, scene, Reference({"before": before}, {}, {}, (), frozenset(), is_staged))
    return made


def _play(scene: Scene, reference: Reference) -> Reference:
    # What a merge took the runs' lines from is in the merged text, line by line, and the person's own text is kept
    merged = {name.encode() for name in MERGED}
    precious = _precious(scene.project) | _precious(scene.state / "layers", but=merged)
    trees = {"before": reference.plain(reference.trees["before"])}
    repositories = {"before": read_repositories(scene.project)}
    with closing(Sandbox(scene.project)) as sandbox:
        held = {"nothing": [], "held": _held(sandbox)}
        operation = sandbox.apply()
        held["residue"] = _held(sandbox)
        repositories["after"] = read_repositories(scene.project)
        trees["after"] = reference.plain(look(os.fsencode(scene.project)))
        sandbox.undo()
        held["again"] = _held(sandbox)
        repositories["undone"] = read_repositories(scene.project)
        sandbox.redo()
    # Only now: what is closed to its owner is opened for a moment, after which an undo would leave it alone
    trees["after"] = reference.plain(capture(os.fsencode(scene.project)))
    trees["undone"] = trees["before"]
    return replace(
        reference,
        trees=trees,
        repositories=repositories,
        held=held,
        left=_left(operation),
        precious=frozenset(precious),
    )


def _precious(top: Path, but: Set[bytes] = frozenset()) -> set[bytes]:
    """Return the contents of all files that must stay somewhere: of git's own, the objects."""
    names = look(os.fsencode(top)).items()
    return {
        node.content
        for path, node in names
        if node.kind == "file" and (b"/.git/" not in b"/" + path or b"/.git/objects/" in b"/" + path)
        if os.path.basename(path) not in but
    }


def begin(scene: Scene, action: str) -> None:
    """Do what comes before an action, undisturbed."""
    with closing(Sandbox(scene.project)) as sandbox:
        if action == "undo":
            sandbox.apply()
        elif action == "undo of a discard":
            sandbox.discard()


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
    tree, problems = _state_of(scene, reference)
    if problems:
        return problems
    done = tuple(one.kind for one in reversed(sandbox.operations()) if one.ending == "done")
    if done not in ENDS[action]:
        return [f"recorded is {done}"]
    wanted, holds = ENDS[action][done]
    if reference.trees[tree] != reference.trees[wanted]:
        problems.append(f"mixed state: the tree is as {tree}, recorded is {done}")
    problems += repository_problems(scene.project, reference.repositories[wanted])
    problems += [*_leftovers(scene), *_lost(scene, reference), *_rollbacks(sandbox)]
    problems += _held_problems(sandbox, reference.held[holds])
    if not problems:
        problems = _go_on(sandbox, scene, reference, action, done)
    sandbox.close()
    return problems


def _held_problems(sandbox: Sandbox, wanted: Held) -> list[str]:
    held = _held(sandbox)
    more, less = [one for one in held if one not in wanted], [one for one in wanted if one not in held]
    return [f"holds {more} instead of {less}"] if more or less else []


def verify_left(scene: Scene, reference: Reference, left: tuple[bytes, ...]) -> list[str]:
    """Return what is wrong after an apply that could not read some paths, and said so. To be called apart."""
    with closing(Sandbox(scene.project)) as sandbox:
        found = reference.plain(look(os.fsencode(scene.project)))
        wanted = with_others(reference.trees["after"], reference.trees["before"], left)
        problems = [f"mixed state: {problem}" for problem in differences(found, visible(wanted))]
        problems += [*_leftovers(scene), *_lost(scene, reference)]
        if _left(sandbox.apply()) != reference.left:
            problems.append("it could not be applied later")
        found = reference.plain(look(os.fsencode(scene.project)))
        problems += [f"in the end: {problem}" for problem in differences(found, visible(reference.trees["after"]))]
        return problems + repository_problems(scene.project, reference.repositories["after"], exactly=False)


def _left(operation: Operation) -> tuple[tuple[bytes, str], ...]:
    return tuple(sorted((left.path, left.why) for left in operation.left))


def _state_of(scene: Scene, reference: Reference, hidden: bytes | None = None) -> tuple[str, list[str]]:
    found = reference.plain(look(os.fsencode(scene.project)))
    if hidden is not None:
        found = {path: node for path, node in found.items() if not path.startswith(hidden)}
    wrong = {name: differences(found, visible(reference.trees[name])) for name in ("before", "after")}
    for name, problems in wrong.items():
        if not problems:
            return name, []
    nearest = min(wrong, key=lambda name: len(wrong[name]))
    return "mixed", [f"mixed state, nearest to {nearest}: {problem}" for problem in wrong[nearest]]


def _go_on(sandbox: Sandbox, scene: Scene, reference: Reference, action: str, done: tuple[str, ...]) -> list[str]:
    """Do what remains to be done, then the opposite; both must succeed wholly."""
    is_apply = action in ("apply", "undo")
    if done[-1:] != ("undo",) and done:
        steps: list[Callable[[], Operation]] = [sandbox.undo]
    elif done:
        steps = [sandbox.redo, sandbox.undo]
    else:
        steps = [sandbox.apply if is_apply else sandbox.discard, sandbox.undo]
    for act in steps:
        operation = act()
        if _left(operation) != (reference.left if operation.kind == "apply" else ()):
            return [f"{operation.kind} left {operation.left}"]
        is_undone = act == sandbox.undo
        tree = "after" if is_apply and not is_undone else "before"
        found = reference.plain(look(os.fsencode(scene.project)))
        problems = differences(found, visible(reference.trees[tree]))
        problems += repository_problems(scene.project, reference.repositories[tree], exactly=False)
        held = ("again" if is_undone else "residue") if is_apply else ("held" if is_undone else "nothing")
        problems += _held_problems(sandbox, reference.held[held])
        if problems:
            return [f"after {operation.kind}: {problem}" for problem in problems]
    found = reference.plain(capture(os.fsencode(scene.project)))
    return [f"in the end: {problem}" for problem in differences(found, reference.trees["before"])]


def _rollbacks(sandbox: Sandbox) -> list[str]:
    return [f"a rollback left {one.left}" for one in sandbox.operations() if one.ending != "done" and one.left]


def _held(sandbox: Sandbox) -> Held:
    """Return what is held; but of objects and logs of git, what was applied once stays."""
    return [
        (change.path, change.kind, change.aspects, *_entry(change))
        for change in sandbox.changes()
        if not any(part in b"/" + change.path for part in (b"/.git/objects/", b"/.git/logs/"))
    ]


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
        "operations": set(os.listdir(state / "operations")) ^ operations,
        "residues": list((state / "operations").glob("*/residue")),
        "what was taken back": [
            path for name in undone for path in (state / "operations" / name).iterdir() if path.name != "journal"
        ],
        "set aside": list(state.glob("lost-*")),
        "in the project": [name for name in os.listdir(scene.project) if name.startswith(".unspill")],
    }
    return [f"left behind in {place}: {names}" for place, names in found.items() if names]
