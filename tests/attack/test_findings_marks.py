# SPDX-License-Identifier: Apache-2.0
"""Marks of overlayfs that a command sets itself never reach a live tree, which lies below the next overlay."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support import Ground

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

SET = """python3 -c '
import os
os.setxattr("pkg", "user.overlay.opaque", b"x")
os.setxattr("pkg/__init__.py", "user.overlay.whiteout", b"y")
os.setxattr("pkg/kept", "user.overlay.metacopy", b"")
os.setxattr(".", "user.overlay.redirect", b"/etc")
os.mkdir("new")
os.setxattr("new", "user.overlay.overlay.opaque", b"y")
os.setxattr("new", "user.mine", b"1")
'"""


def attributes(top: Path) -> dict[str, list[str]]:
    """Return the names of the attributes of all entries below a directory, and its own."""
    places = [top, *(path for path in sorted(top.rglob("*")) if not path.is_symlink())]
    return {os.fspath(path.relative_to(top)): names for path in places if (names := os.listxattr(path))}


def prepare(ground: Ground) -> None:
    ground.write("pkg/__init__.py")
    ground.write("pkg/kept", "kept")


def test_c7_marks_that_a_command_sets_do_not_reach_the_live_tree(ground: Ground, engine: str) -> None:
    """Set overlayfs's own attributes on files and directories, have that applied, undone and done again, and look
    for a live file that the next sandbox does not see.

    Control: below, where the names go to the live tree as the command wrote them.
    """
    prepare(ground)
    sandbox = ground.sandbox()
    result = sandbox.run(SET, after="apply")
    assert result.ok, result.text()
    assert attributes(ground.project) == {"new": ["user.mine"]}
    notes = [note for note in result.operation.notes if "user.overlay" in note] if result.operation else []
    assert {note.split(":")[0] for note in notes} == {".", "pkg", "pkg/__init__.py", "pkg/kept", "new"}
    sandbox.undo()
    assert attributes(ground.project) == {}
    sandbox.redo()
    assert attributes(ground.project) == {"new": ["user.mine"]}
    seen = sandbox.run("ls -l pkg/__init__.py >&2 && ls pkg && cat pkg/kept", after="hold")
    assert seen.stdout.kept() == b"__init__.py\nkept\nkept"
    assert not sandbox.changes()


def test_c7_control_marks_in_the_live_tree_hide_a_live_file(ground: Ground, engine: str) -> None:
    """Give live files the attributes under the names that the command knows them by, as an apply must not.

    Control: this is the control of the test above; the file that is there is not seen.
    """
    prepare(ground)
    os.setxattr(ground.project / "pkg", "user.overlay.opaque", b"x")
    os.setxattr(ground.project / "pkg" / "__init__.py", "user.overlay.whiteout", b"y")
    seen = ground.sandbox().run("test -e pkg/__init__.py || echo hidden", after="hold")
    assert seen.stdout.kept() == b"hidden\n"


@pytest.mark.parametrize("mark", [("pkg", "user.overlay.opaque"), ("pkg/__init__.py", "user.overlay.whiteout")])
def test_c7_marks_that_a_live_tree_has_already_cost_no_live_file(
    ground: Ground, engine: str, mark: tuple[str, str]
) -> None:
    """Work in a project whose live tree has marks of somebody else's overlay, and apply all that comes of it.

    Control: the attributes are there before and after, so they were in the way all the time.
    """
    prepare(ground)
    place, name = mark
    os.setxattr(ground.project / "pkg", "user.overlay.opaque", b"x")
    os.setxattr(ground.project / place, name, b"x")
    before = attributes(ground.project)
    sandbox = ground.sandbox()
    result = sandbox.run(
        "echo changed > pkg/kept; echo new > pkg/other; chmod 700 pkg; setfattr -n user.a -v b pkg"
        ' || python3 -c \'import os; os.setxattr("pkg", "user.a", b"b")\'',
        after="apply",
    )
    assert result.ok, result.text()
    assert sorted(os.listdir(ground.project / "pkg")) == ["__init__.py", "kept", "other"]
    after: dict[str, Any] = attributes(ground.project)
    assert {key: [name for name in names if name != "user.a"] for key, names in after.items()} == before
    assert [change.path for change in sandbox.changes()] == []
    sandbox.undo()
    assert attributes(ground.project) == before
    assert (ground.project / "pkg" / "kept").read_text() == "kept"
