# SPDX-License-Identifier: Apache-2.0
"""Trees and marks made to blind, stop or fool whoever reads what a run left: the scan is whole and bounded."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.attack.arena import Arena
from tests.support import kinds, printed
from unspill import Limits

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support import Ground
    from unspill import RunResult

pytestmark = [pytest.mark.attack, pytest.mark.kernel]

WIDE = Limits(wall_s=300, file_bytes=None, layer_bytes=None, layer_entries=None)


def run_bounded(arena: Arena, script: str, bound_s: float) -> RunResult:
    """Run a script and read its changes twice, all within a bound."""
    sandbox = arena.ground.sandbox(limits=WIDE)
    begun = time.monotonic()
    tried = arena.attack(script, sandbox=sandbox)
    assert kinds(sandbox.changes()) == kinds(tried.result.changes)
    assert time.monotonic() - begun < bound_s
    return tried.result


@pytest.mark.bwrap
def test_b10_a_sparse_file_of_a_tebibyte_is_one_change(arena: Arena, engine: str) -> None:
    """Make a file of 1 TiB with one byte in it, twice.
    Control: what reads the whole file would take minutes for it; the bound of this test is ten seconds."""
    script = """
    for name in ("sparse", "other"):
        with open(name, "wb") as file: file.truncate(1 << 40); file.seek(1 << 39); file.write(b"x")
    """
    result = run_bounded(arena, script, 10)
    assert kinds(result.changes) == {"sparse": "added", "other": "added"}
    sandbox = arena.ground.sandbox()
    assert "sparse" in "".join(sandbox.diff())
    assert printed(sandbox.run("stat -c %s sparse", limits=WIDE)) == f"{1 << 40}\n"


@pytest.mark.timeout(900)
def test_b10_a_hundred_thousand_files_are_all_reported(arena: Arena, full: bool) -> None:
    """Make 100,000 files (a million with --full) in one directory and in many.
    Control: every one is there; a cap would be named as a finding, as the next test shows."""
    count = 1_000_000 if full else 100_000
    script = f"""
    for number in range({count} // 2):
        os.close(os.open(f"f{{number}}", os.O_CREAT | os.O_WRONLY))
    for number in range({count} // 2):
        if number % 500 == 0: os.mkdir(f"d{{number}}"); here = f"d{{number}}"
        os.close(os.open(f"{{here}}/{{number}}", os.O_CREAT | os.O_WRONLY))
    """
    result = run_bounded(arena, script, 400 if full else 50)
    changes, findings = result.changes, result.changes.findings
    assert len(changes) == count + count // 1000 or (findings and len(changes) >= 1_000_000)


def test_b10_more_than_can_be_shown_is_a_finding_not_silence(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exceed the number of changes and the depth that a scan goes to.
    Control: within them there is no finding."""
    from unspill.changes import scan as module

    script = "for number in range(30): open(f'f{number}', 'w')\nos.makedirs('/'.join(['d'] * 40))"
    assert arena.attack(script).result.changes.findings == ()
    original = module.scan
    monkeypatch.setattr(module, "scan", lambda *given: original(*given, max_entries=20, max_depth=10))
    assert arena.attack(script, name="other").result.changes.findings != ()


def test_b10_long_names_and_targets_do_not_fill_our_memory(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make links with targets of four thousand bytes, and files at the end of long paths, by the thousand.
    Control: with the bound as it is, which is for larger trees than this one, there is no finding."""
    from unspill.changes import scan

    script = """
    for number in range(2000): os.symlink("x" * 4000, str(number))
    """
    sandbox = arena.ground.sandbox()
    assert len(arena.attack(script, sandbox=sandbox).result.changes) == 2000
    assert sandbox.changes().findings == ()
    monkeypatch.setattr(scan, "MAX_PATH_BYTES", 1 << 20)
    assert sandbox.changes().findings != ()
    assert len(sandbox.changes()) < 500


@pytest.mark.bwrap
def test_b10_paths_deeper_than_the_kernel_takes_are_reported(arena: Arena, engine: str) -> None:
    """Make a tree of 12,000 bytes of path, with a file at its end.
    Control: a walk by path, as `os.walk` does it, does not see the file."""
    script = """
    for _ in range(60):
        os.mkdir("d" * 200); os.chdir("d" * 200)
    with open("treasure", "w") as file: file.write("deep")
    """
    result = run_bounded(arena, script, 20)
    deepest = max((change.path for change in result.changes), key=len)
    assert deepest.endswith(b"/treasure")
    assert len(deepest) > 12_000
    [layer] = {change.layer for change in result.changes}
    assert layer is not None
    assert not any(b"treasure" in names for _here, _directories, names in os.walk(layer))


@pytest.mark.bwrap
def test_b10_what_is_closed_to_its_owner_is_reported(arena: Arena, engine: str) -> None:
    """Leave files in directories of mode 000, 0300 and 0400, and a file that may not be read.
    Control: a walk that takes the modes as they are sees none of them."""
    script = """
    for mode in (0o000, 0o300, 0o400):
        name = f"closed-{mode:o}"
        os.makedirs(name + "/deeper")
        for path in (name + "/inside", name + "/deeper/treasure"):
            with open(path, "w") as file: file.write("hidden")
        os.chmod(name + "/deeper", mode); os.chmod(name, mode)
    with open("unreadable", "w") as file: file.write("x")
    os.chmod("unreadable", 0)
    """
    result = run_bounded(arena, script, 10)
    found = kinds(result.changes)
    for mode in (0o000, 0o300, 0o400):
        assert {f"closed-{mode:o}/inside", f"closed-{mode:o}/deeper/treasure"} <= set(found)
    assert "unreadable" in found
    [layer] = {change.layer for change in result.changes}
    assert layer is not None
    assert not any(b"treasure" in names for _here, _directories, names in os.walk(layer))
    assert arena.ground.sandbox().discard().number == 1
    assert arena.ground.left_behind() == []


@pytest.mark.bwrap
def test_b10_a_project_whose_own_directory_is_closed_is_reported(arena: Arena, engine: str) -> None:
    """Close the project's top directory, after writing into it.
    Control: without the chmod the change of mode is not there."""
    script = "with open('new', 'w') as file: file.write('x')\nos.chmod('.', 0)"
    sandbox = arena.ground.sandbox()
    found = kinds(arena.attack(script, sandbox=sandbox).result.changes)
    assert found.get("new") == "added"
    assert found.get(".") == "metadata"
    assert sandbox.discard().changed == 2
    assert kinds(arena.attack("with open('new', 'w') as file: file.write('x')", sandbox=sandbox).result.changes) == {
        "new": "added"
    }


FORGED = """
os.makedirs("dir/kept-by-command")
names = ("user.overlay.opaque", "user.overlay.whiteout", "user.overlay.redirect", "user.overlay.metacopy",
         "user.overlay.origin", "user.overlay.impure", "user.overlay.overlay.opaque", "trusted.overlay.opaque")
for name in names:
    for path in ("dir", "live", "live/one"):
        try: os.setxattr(path, name, b"y")
        except OSError as error: lost(name, error.strerror)
for name in (".wh.live", ".wh..wh..opq", "live/.wh.one", "live/.wh..wh..opq", ".wh..opq"):
    with open(name, "w"): pass
for path in ("node", "live/node"):
    try: os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))
    except OSError as error: lost("mknod", error.strerror)
    else: won("mknod", path)
playground = os.path.expanduser("~/playground")
try: os.mknod(playground + "/node", stat.S_IFCHR, os.makedev(0, 0))
except OSError as error: lost("mknod in the playground", error.strerror)
for source in ("/node",):
    try: os.link(playground + source, "linked")
    except OSError as error: lost("link", error.strerror)
    subprocess.run(["mv", playground + source, "moved"], capture_output=True)
    subprocess.run(["cp", "-a", playground, "copied"], capture_output=True)
for name, flags in (("dir/kept-by-command", 4),):
    if libc.renameat2(-100, name.encode(), -100, (name + "-away").encode(), flags) == 0: won("RENAME_WHITEOUT", name)
"""


@pytest.mark.bwrap
def test_b10_forged_marks_of_an_overlay_delete_nothing(arena: Arena, engine: str) -> None:
    """Set every attribute and name that overlays use, make a 0:0 device, bring one from the playground.
    Control: set on the layer itself, where no command can write, such an attribute does hide what lies below."""
    for name in ("live/one", "live/two", "live/deep/three"):
        arena.ground.write(name, "live\n")
    sandbox = arena.ground.sandbox()
    tried = arena.attack(FORGED, sandbox=sandbox)
    for changes in (tried.result.changes, sandbox.changes()):
        found = kinds(changes)
        assert "deleted" not in found.values(), found
        assert "replaced" not in found.values(), found
        assert {path for path, kind in found.items() if kind == "added"} >= {".wh.live", "live/.wh.one", "dir"}
    assert printed(sandbox.run("cat live/one live/two live/deep/three")) == "live\n" * 3
    [layer] = {change.layer for change in sandbox.changes()}
    assert layer is not None
    os.setxattr(layer + b"/live", "user.overlay.opaque", b"y")
    assert "deleted" in kinds(sandbox.changes()).values()


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


@pytest.mark.bwrap
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


@pytest.mark.bwrap
def test_c7_control_marks_in_the_live_tree_hide_a_live_file(ground: Ground, engine: str) -> None:
    """Give live files the attributes under the names that the command knows them by, as an apply must not.

    Control: this is the control of the test above; the file that is there is not seen.
    """
    prepare(ground)
    os.setxattr(ground.project / "pkg", "user.overlay.opaque", b"x")
    os.setxattr(ground.project / "pkg" / "__init__.py", "user.overlay.whiteout", b"y")
    seen = ground.sandbox().run("test -e pkg/__init__.py || echo hidden", after="hold")
    assert seen.stdout.kept() == b"hidden\n"


@pytest.mark.bwrap
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
