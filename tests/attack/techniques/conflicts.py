# SPDX-License-Identifier: Apache-2.0
"""C11, C12, C18: what changes between a run, its review and its apply."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from tests.attack.techniques.case import Case, case, listed
from tests.attack.techniques.record import Listed
from unspill import UnspillError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


LIST: Final = Listed()


def edited_meanwhile(change: str, edit: Callable[[Path], object], lost: Callable[[Path], object]) -> Any:
    def scenario(one: Case, way: Any) -> object:
        changes = one.hold(change)
        edit(one.project)
        way(one, changes)
        return lost(one.project)

    return scenario


def save_anew(project: Path) -> None:
    """Save as editors do, by a rename."""
    (project / "file~").write_text("the person's\n")
    (project / "file~").rename(project / "file")


MINE: Final = "the person's\n"
for _tries, _change, _edit, _lost in (
    (
        "Overwrite an edit that the person made meanwhile in place",
        "echo ours > file",
        lambda top: (top / "file").write_text(MINE),
        lambda top: (top / "file").read_text() != MINE,
    ),
    (
        "Overwrite an edit that the person's editor saved meanwhile by a rename",
        "echo ours > file",
        save_anew,
        lambda top: (top / "file").read_text() != MINE,
    ),
    (
        "Delete a file that the person edited meanwhile",
        "rm file",
        lambda top: (top / "file").write_text(MINE),
        lambda top: not (top / "file").exists(),
    ),
    (
        "Overwrite a file that the person made meanwhile under the same name",
        "echo ours > made",
        lambda top: (top / "made").write_text(MINE),
        lambda top: (top / "made").read_text() != MINE,
    ),
    (
        "Bring a file back that the person deleted meanwhile",
        "echo ours > file",
        lambda top: (top / "file").unlink(),
        lambda top: (top / "file").exists(),
    ),
    (
        "Delete a directory with a file that the person made in it meanwhile",
        "rm -r d",
        lambda top: (top / "d/mine").write_text(MINE),
        lambda top: not (top / "d/mine").exists(),
    ),
):
    listed(LIST, "C11", _tries, edited_meanwhile(_change, _edit, _lost))


def swapped_after_review(one: Case, way: Any) -> object:
    changes = one.hold("echo reviewed > file")
    (layer,) = changes.layers
    path = os.fsdecode(layer) + "/file"
    before = os.stat(path)
    with open(path, "w") as file:
        file.write("unread!!\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    way(one, changes)
    return "unread" in (one.project / "file").read_text()


def replaced_after_review(one: Case, way: Any) -> object:
    changes = one.hold("echo reviewed > file")
    (layer,) = changes.layers
    path = os.fsdecode(layer) + "/file"
    with open(path + "2", "w") as file:
        file.write("unread!!\n")
    os.rename(path + "2", path)
    way(one, changes)
    return "unread" in (one.project / "file").read_text()


listed(
    LIST,
    "C12",
    "Change the content of a held file between review and apply, with its time set back",
    swapped_after_review,
)
listed(LIST, "C12", "Replace a held file between review and apply", replaced_after_review)


def run_after_review(one: Case, is_reviewed: bool) -> object:
    changes = one.hold("echo reviewed > file")
    one.hold("echo unread > file; echo unread > more")
    one.sandbox.apply(reviewed=changes) if is_reviewed else one.sandbox.apply()
    return "unread" in (one.project / "file").read_text() or (one.project / "more").exists()


LIST.add_pair(
    "C12",
    "Run a second command between review and apply, to have its changes go along",
    lambda arena: run_after_review(case(arena), is_reviewed=True),
    "by an apply of whatever is held",
    lambda arena: run_after_review(case(arena), is_reviewed=False),
)


def root_replaced(one: Case, way: Any) -> object:
    """Another directory is where the project was; it has files of the same names."""
    changes = one.hold("echo ours > file; echo ours > made")
    one.project.rename(one.project.with_name(one.project.name + "-moved"))
    impostor = one.project
    impostor.mkdir()
    (impostor / "file").write_text("another's\n")
    way(one, changes)
    return (impostor / "made").exists() or (impostor / "file").read_text() != "another's\n"


def root_linked(one: Case, way: Any) -> object:
    changes = one.hold("echo ours > f; echo ours > made")
    one.project.rename(one.project.with_name(one.project.name + "-moved"))
    one.project.symlink_to(one.outside)
    way(one, changes)
    return (one.outside / "made").exists() or (one.outside / "f").read_text() == "ours\n"


listed(LIST, "C18", "Have the project's directory exchanged for another one before the apply", root_replaced)


def root_replaced_before_undo(one: Case, naive: bool) -> object:
    one.hold("rm file; rm -r d")
    one.sandbox.apply()
    one.project.rename(one.project.with_name(one.project.name + "-moved"))
    one.project.mkdir()
    if naive:
        (one.project / "file").write_text("base\n")
    else:
        try:
            one.sandbox.undo()
        except UnspillError:
            return False
    return os.listdir(one.project)


LIST.add_pair(
    "C18",
    "Have the project's directory exchanged for another one before an undo",
    lambda arena: root_replaced_before_undo(case(arena), naive=False),
    "by writing the old content to the path",
    lambda arena: root_replaced_before_undo(case(arena), naive=True),
)
listed(LIST, "C18", "Have the project's directory exchanged for a link before the apply", root_linked)
