# SPDX-License-Identifier: Apache-2.0
"""C1 to C4: writing late, forged marks of an overlay, links that lead out."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING, Any, Final

from tests.attack.arena import Arena, naive_bwrap, processes_with
from tests.attack.techniques.case import Case, by_path, case, listed, ours
from tests.attack.techniques.record import Defence, Listed
from unspill import UnspillError
from unspill.model.change import Selection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


LIST: Final = Listed()

# When the command ends, the writer is at work
AT_WORK: Final = "</dev/null >/dev/null 2>&1 & while [ ! -s log ]; do :; done"
WRITERS: Final = {
    "Go on writing in the background when the command has ended": f"(while :; do echo x >> log; done) {AT_WORK}",
    "Go on writing as a daemon in a session of its own": (
        f"setsid sh -c 'while :; do echo x >> log; done' {{mark}} {AT_WORK}"
    ),
    "Go on writing deaf to all signals that can be ignored": (
        f"(trap '' TERM HUP INT QUIT PIPE; while :; do echo x >> log; done) {AT_WORK}"
    ),
}


def grows(path: Path) -> bool:
    size = path.stat().st_size
    time.sleep(0.1)
    return path.stat().st_size != size


def writes_later(script: str) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        (layer,) = case(arena).hold(script.format(mark="x")).layers
        return grows(arena.ground.top / os.fsdecode(layer) / "log")

    return attack


def naive_writes_later(script: str) -> Callable[[Arena], object]:
    """Wait for bwrap as one would, without a pid namespace."""

    def control(arena: Arena) -> object:
        top, mark = case(arena).project, f"unspill-writer-{os.urandom(4).hex()}"
        words = ["sh", "-c", script.format(mark=mark), mark]
        shown = ("--dev", "/dev", "--bind", os.fspath(top), os.fspath(top), "--chdir", os.fspath(top))
        naive_bwrap(arena.ground.bwrap, *shown, *words, timeout=20)
        try:
            return grows(top / "log")
        finally:
            for pid in processes_with(mark):
                os.kill(pid, 9)

    return control


for _tries, _script in WRITERS.items():
    LIST.add_pair(
        "C1",
        _tries,
        writes_later(_script),
        "by a bwrap call without a pid namespace, and a wait for bwrap",
        naive_writes_later(_script),
    )


def deletes(one: Case) -> object:
    """Tell whether a file is lost that no command deleted."""
    try:
        changes = one.hold("python3 -c \"import os; os.setxattr('d', 'user.overlay.opaque', b'y')\"")
        ours(one, changes)
    except UnspillError:
        return False
    return not (one.project / "d/f").exists()


def matched_by_its_end(arena: Arena) -> Any:
    context = arena.patch.context()

    class Weaker:
        def __enter__(self) -> None:
            patch = context.__enter__()
            patch.setattr("unspill.changes.scan.OPAQUE", "user.overlay.overlay.opaque")

        def __exit__(self, *details: Any) -> None:
            context.__exit__(*details)

    return Weaker()


LIST.add(
    "C2",
    "Mark a directory as one that hides all beneath it, to have the files in it deleted",
    lambda arena: deletes(case(arena)),
    Defence("the exact names of an overlay's marks", matched_by_its_end),
)


def secret_copied(one: Case, way: Any) -> object:
    changes = one.hold(f"rm file; ln -s {one.outside}/secret file")
    (one.outside / "secret").write_text("canary")
    if way is ours:
        shown = one.sandbox.diff()
        one.sandbox.apply(Selection(included=(b"file",)))
        return "canary" in shown or not (one.project / "file").is_symlink()
    (layer,) = changes.layers
    shutil.copyfile(os.fsdecode(layer) + "/file", one.project / "file")
    return "canary" in (one.project / "file").read_text()


LIST.add_pair(
    "C3",
    "Replace a file by a link to a secret, to have the secret copied into the project",
    lambda arena: secret_copied(case(arena), ours),
    "by a copy that follows links",
    lambda arena: secret_copied(case(arena), by_path),
)


def link_arrives(target: str) -> Callable[[Case, Any], object]:
    def scenario(one: Case, way: Any) -> object:
        text = target.format(outside=one.outside, name=one.outside.name)
        way(one, one.hold(f"mkdir -p sub; ln -s {text} sub/way"))
        return os.path.lexists(one.project / "sub/way")

    return scenario


for _tries, _target in {
    "Leave a link to an absolute place outside, unasked": "{outside}",
    "Leave a link that leads out by dots, unasked": "../../../{name}",
    "Leave a link that leads out by way of /proc, unasked": "/proc/self/root/etc",
}.items():
    listed(LIST, "C3", _tries, link_arrives(_target))

BELOW: Final = "echo ours > d/f; echo ours > d/e/f; echo ours > d/new"


def changed_outside(one: Case) -> bool:
    found = {path: path.read_text() for path in one.outside.rglob("*") if path.is_file()}
    return (one.outside / "new").exists() or "ours\n" in found.values()


def swapped(name: str) -> Callable[[Case, Any], object]:
    def scenario(one: Case, way: Any) -> object:
        changes = one.hold(BELOW)
        (one.project / name).rename(one.project / "moved")
        (one.project / name).symlink_to(one.outside if name == "d" else one.outside / "e")
        way(one, changes)
        return changed_outside(one)

    return scenario


def linked_by_another(one: Case, way: Any) -> object:
    changes = one.hold(BELOW)
    other = one.arena.ground.sandbox("other", project=one.project)
    other.run("mv d inner && ln -s inner d", after="hold")
    other.apply()
    (one.project / "inner").rename(one.project / "moved")
    (one.project / "inner").symlink_to(one.outside)
    way(one, changes)
    return changed_outside(one)


def written_through_two_runs(one: Case, way: Any) -> object:
    """Run 1 leaves an innocent link, a person moves its target; run 2 changes what is below it."""
    one.hold("mkdir target; echo x > target/f; ln -s target link")
    one.sandbox.apply()
    changes = one.hold("echo ours > link/f; echo ours > link/new")
    shutil.rmtree(one.project / "target")
    (one.project / "target").symlink_to(one.outside)
    way(one, changes)
    return changed_outside(one)


listed(LIST, "C4", "Have a directory swapped for a link between review and apply", swapped("d"))
listed(LIST, "C4", "Have a directory further down swapped for a link between review and apply", swapped("d/e"))
listed(LIST, "C4", "Have another sandbox put an innocent link where changes are to go", linked_by_another)
listed(LIST, "C4", "Leave a link in one run and write below it in the next", written_through_two_runs)


def undone_through_a_link(one: Case, naive: bool) -> object:
    one.hold("echo changed > d/f")
    one.sandbox.apply()
    (one.project / "d").rename(one.project / "moved")
    (one.outside / "f").write_text("changed\n")
    (one.project / "d").symlink_to(one.outside)
    if naive:
        (one.project / "d/f").write_text("base\n")
    else:
        try:
            one.sandbox.undo()
        except UnspillError:
            return False
    return (one.outside / "f").read_text() == "base\n"


LIST.add_pair(
    "C4",
    "Have a directory swapped for a link between apply and undo",
    lambda arena: undone_through_a_link(case(arena), naive=False),
    "by writing the old content to the path",
    lambda arena: undone_through_a_link(case(arena), naive=True),
)
