# SPDX-License-Identifier: Apache-2.0
"""C13 to C17: operations that are interrupted or contradicted, a store that is damaged, names in disguise."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tests.attack.arena import Arena
from tests.attack.techniques.case import Case, by_path, case, ours
from tests.attack.techniques.record import Defence, Listed
from tests.kernel import laying
from unspill import Sandbox, UnspillError
from unspill.apply import perform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from unspill import ChangeSet


LIST: Final = Listed()

FILES: Final = ("one", "two", "three")
CHANGE_ALL: Final = "for name in one two three; do echo new > $name; done"


def three_files(arena: Arena) -> tuple[Case, ChangeSet]:
    one = case(arena)
    for name in FILES:
        (one.project / name).write_text("old\n")
    return one, one.hold(CHANGE_ALL)


def is_mixed(one: Case) -> bool:
    return len({(one.project / name).read_text() for name in FILES}) > 1


def fails_in_the_middle(code: int) -> Callable[[Arena], object]:
    """The disk fails at the second file, once."""

    def attack(arena: Arena) -> object:
        one, changes = three_files(arena)
        count, rename = [0], vars(perform)["renameat2"]

        def failing(*arguments: Any) -> None:
            count[0] += 1
            if count[0] == 2:
                raise OSError(code, os.strerror(code))
            rename(*arguments)

        with arena.patch.context() as patch:
            patch.setattr(perform, "renameat2", failing)
            ours(one, changes)
        assert count[0] >= 2
        return is_mixed(one)

    return attack


def naive_fails_in_the_middle(code: int) -> Callable[[Arena], object]:
    def control(arena: Arena) -> object:
        one, changes = three_files(arena)
        with arena.patch.context() as patch:
            patch.setattr(laying, "_lay_one", failing_at_the_second(code))
            try:
                by_path(one, changes)
            except OSError:
                return is_mixed(one)
        return False

    return control


def failing_at_the_second(code: int | None) -> Any:
    count, lay_one = [0], vars(laying)["_lay_one"]

    def failing(*arguments: Any) -> None:
        count[0] += 1
        if count[0] == 2:
            if code is None:
                os._exit(9)
            raise OSError(code, os.strerror(code))
        lay_one(*arguments)

    return failing


for _code, _what in {errno.ENOSPC: "a full disk", errno.EIO: "a failing disk", errno.EDQUOT: "a spent quota"}.items():
    LIST.add_pair(
        "C13",
        f"Have an apply end at {_what} when half of it is done",
        fails_in_the_middle(_code),
        "by laying the changes by path",
        naive_fails_in_the_middle(_code),
    )


def in_a_child(do: Callable[[], object]) -> None:
    """Do something in a process that is killed at its second file."""
    child = os.fork()
    if not child:
        try:
            do()
        finally:
            os._exit(3)
    _pid, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9, status


def killed_in_the_middle(arena: Arena) -> object:
    one, _changes = three_files(arena)
    policy = arena.ground.policy()

    def die() -> None:
        count, rename = [0], vars(perform)["renameat2"]

        def dying(*arguments: Any) -> None:
            count[0] += 1
            if count[0] == 2:
                os._exit(9)
            rename(*arguments)

        vars(perform)["renameat2"] = dying
        Sandbox(one.project, policy=policy).apply()

    in_a_child(die)
    # The next start takes back what is half done
    arena.ground.sandbox(project=one.project)
    return is_mixed(one)


def naive_killed_in_the_middle(arena: Arena) -> object:
    one, changes = three_files(arena)

    def die() -> None:
        laying._lay_one = failing_at_the_second(None)
        by_path(one, changes)

    in_a_child(die)
    return is_mixed(one)


LIST.add_pair(
    "C13",
    "Have the process that applies killed when half of it is done",
    killed_in_the_middle,
    "by laying the changes by path",
    naive_killed_in_the_middle,
)


def applied(arena: Arena) -> Case:
    one = case(arena)
    one.hold("echo ours > file")
    assert one.sandbox.apply().changed == 1
    return one


def undone_over_an_edit(arena: Arena) -> object:
    one = applied(arena)
    (one.project / "file").write_text("the person's\n")
    try:
        one.sandbox.undo()
    except UnspillError:
        return False
    return (one.project / "file").read_text() != "the person's\n"


def restored_over_an_edit(arena: Arena) -> object:
    one = applied(arena)
    (one.project / "file").write_text("the person's\n")
    [backup] = backups(arena)
    shutil.copy(backup, one.project / "file")
    return (one.project / "file").read_text() != "the person's\n"


def backups(arena: Arena) -> list[str]:
    """Return the files that operations have displaced."""
    return [os.fspath(path) for path in (arena.ground.state / "operations").glob("*/tree/*/file")][-1:]


def tampered(arena: Arena) -> object:
    one = applied(arena)
    [backup] = backups(arena)
    with open(backup, "w") as file:
        file.write("forged by somebody\n")
    try:
        one.sandbox.undo()
    except UnspillError:
        return False
    return "forged" in (one.project / "file").read_text()


def tampered_naive(arena: Arena) -> object:
    one = applied(arena)
    [backup] = backups(arena)
    with open(backup, "w") as file:
        file.write("forged by somebody\n")
    shutil.copy(backup, one.project / "file")
    return "forged" in (one.project / "file").read_text()


LIST.add_pair(
    "C14",
    "Have an undo write over what the person has edited since",
    undone_over_an_edit,
    "by a copy of the backup over the file",
    restored_over_an_edit,
)
LIST.add_pair(
    "C14",
    "Change the backup, to have the undo bring it into the project",
    tampered,
    "by a copy of the backup over the file",
    tampered_naive,
)


def two_sandboxes(arena: Arena, way: Any) -> object:
    one = case(arena)
    other = Case(arena, arena.ground.sandbox("other", project=one.project), one.project, one.outside)
    first, second = one.hold("echo first > file"), other.hold("echo second > file")
    way(one, first)
    way(other, second)
    return (one.project / "file").read_text() != "first\n"


def two_sandboxes_delete(arena: Arena, way: Any) -> object:
    one = case(arena)
    other = Case(arena, arena.ground.sandbox("other", project=one.project), one.project, one.outside)
    first, second = one.hold("echo first > d/made"), other.hold("rm -r d")
    way(one, first)
    way(other, second)
    return not (one.project / "d/made").exists()


for _tries, _both in {
    "Overwrite what another sandbox of the project has changed": two_sandboxes,
    "Delete a directory in which another sandbox has made a file": two_sandboxes_delete,
}.items():
    LIST.add_pair(
        "C15",
        _tries,
        partial(_both, way=ours),
        "by laying the changes by path",
        partial(_both, way=by_path),
    )


@contextmanager
def store_of(arena: Arena) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(arena.ground.state / "store.db")
    try:
        yield connection
        connection.commit()
    finally:
        connection.close()


def path_for_an_id(arena: Arena) -> object:
    one = case(arena)
    one.hold("echo ours > file")
    name = os.path.relpath(one.outside, arena.ground.state / "layers")
    with store_of(arena) as connection:
        connection.execute("UPDATE layers SET id = ?", (name,))
    with suppress(UnspillError):
        one.sandbox.discard()
    return not (one.outside / "f").exists()


def naive_path_for_an_id(arena: Arena) -> object:
    one = case(arena)
    name = os.path.relpath(one.outside, arena.ground.state / "layers")
    shutil.rmtree(arena.ground.state / "layers" / name)
    return not (one.outside / "f").exists()


LIST.add_pair(
    "C16",
    "Put a path in the place of a layer's id in the store, to have something else removed",
    path_for_an_id,
    "by removing the directory that the store names",
    naive_path_for_an_id,
)


def lost_with_its_row(arena: Arena, *, is_set_aside: bool) -> object:
    one = case(arena)
    (layer,) = one.hold("echo ours > file").layers
    one.sandbox.close()
    with store_of(arena) as connection:
        connection.execute("DELETE FROM layers")
    from unspill.layers import lifecycle
    from unspill.layers.trees import remove_tree
    from unspill.sandbox import scan as sweep_module

    def remove(state: bytes, part: bytes, names: set[str]) -> None:
        for name in names:
            remove_tree(os.path.join(state, part, os.fsencode(name)))

    with arena.patch.context() as patch:
        # As a new process, which looks for what others have left
        patch.setattr(sweep_module, "_swept", set())
        if not is_set_aside:
            patch.setattr(lifecycle, "set_aside", remove)
        with suppress(UnspillError):
            arena.ground.sandbox(project=one.project)
    name = os.path.basename(os.fsdecode(layer))
    kept = [arena.ground.state / "layers" / name, *arena.ground.state.glob(f"lost-*/layers/{name}")]
    return not any((path / "file").exists() for path in kept)


LIST.add_pair(
    "C16",
    "Have the rows of layers lost, so that what is held is taken for garbage",
    lambda arena: lost_with_its_row(arena, is_set_aside=True),
    "by a sweep that removes what has no row",
    lambda arena: lost_with_its_row(arena, is_set_aside=False),
)

HOOK: Final = (
    "mkdir -p '{top}/hooks'; echo '#!/bin/sh' > '{top}/hooks/post-checkout'; chmod +x '{top}/hooks/post-checkout'"
)
DISGUISES: Final = {
    "in other letters": ".GIT",
    "with an invisible character": ".g\u200cit",
    "with a trailing dot": ".git.",
    "by its short alias": "GIT~1",
}


def disguised(top: str) -> Callable[[Arena], object]:
    def attack(arena: Arena) -> object:
        one = case(arena)
        (one.project / ".git").mkdir()
        ours(one, one.hold(HOOK.format(top=top)))
        return (one.project / top / "hooks/post-checkout").exists()

    return attack


@contextmanager
def names_as_they_are(arena: Arena) -> Iterator[None]:
    with arena.patch.context() as patch:
        patch.setattr("unspill.apply.guard.is_odd", lambda _name: False)
        patch.setattr("unspill.policy.held.Index.fold", lambda _index, path: path)
        yield


for _how, _top in DISGUISES.items():
    LIST.add(
        "C17",
        f"Leave a hook in a directory that some filesystems take for .git, {_how}",
        disguised(_top),
        Defence("the folding of names", names_as_they_are),
    )
