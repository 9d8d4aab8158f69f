# SPDX-License-Identifier: Apache-2.0
"""Nothing outside of a project is touched, whatever is swapped, linked or mounted in it before and during an apply.

Each control arm does the same by paths, and gets out.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.figures import record_figure
from tests.kernel import race_mounts
from tests.kernel.laying import lay
from tests.kernel.race_swapper import Swapper
from tests.support import Ground
from unspill import Sandbox
from unspill.host import dirfd
from unspill.model.change import Selection

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(1800)]

WAYS = ("openat2", "stepwise, openat2 taken away")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of opening what lies beneath a root."""
    if request.param != "openat2":
        monkeypatch.setattr(dirfd, "openat2", race_mounts.missing)
    return str(request.param)


def make_canary(ground: Ground) -> Path:
    """Make a directory outside that looks like the one that is changed."""
    outside = ground.top / "outside"
    (outside / "e").mkdir(parents=True)
    for name in ("f", "gone", "e/f"):
        (outside / name).write_text("canary\n")
    return outside


def contents(top: Path) -> dict[str, str]:
    """Return every file below a directory."""
    return {os.fspath(path.relative_to(top)): path.read_text() for path in sorted(top.rglob("*")) if path.is_file()}


def fill(directory: Path) -> None:
    (directory / "e").mkdir(parents=True, exist_ok=True)
    for name in ("f", "gone", "e/f"):
        (directory / name).write_text("base\n")
    (directory / "new").unlink(missing_ok=True)


CHANGE_BELOW = "echo ours > d/f; echo ours > d/e/f; echo ours > d/new; rm d/gone"


def test_no_apply_gets_out_while_a_directory_is_swapped_for_a_link(ground: Ground, full: bool, way: str) -> None:
    outside, directory, link = make_canary(ground), ground.project / "d", ground.project / "link"
    before, wanted, at_least = contents(outside), 100_000 if full else 5_000, 100 if full else 20
    link.symlink_to(outside)
    sandbox = ground.sandbox()
    applies = succeeded = changed = 0
    fill(directory)
    with Swapper(directory, link) as swapper:
        while swapper.swaps < wanted or applies < at_least:
            fill(directory)
            assert sandbox.run(CHANGE_BELOW, after="hold").ok
            changes = sandbox.changes()
            swapper.start()
            operation = sandbox.apply(reviewed=changes)
            if operation.number and applies % 3 == 0:
                sandbox.undo()
            swapper.stop()
            applies += 1
            succeeded += bool(operation.changed)
            changed += operation.changed
            assert contents(outside) == before
            sandbox.discard()
    assert succeeded
    if full:
        note = f"of {applies} applies {succeeded} changed {changed} entries while a directory and a link are exchanged"
        record_figure(f"path swaps during applies, {way}", f"{swapper.swaps} swaps: 0 escapes", note)


def test_applying_by_path_gets_out_while_a_directory_is_swapped_for_a_link(ground: Ground) -> None:
    """The control arm."""
    outside, directory, link = make_canary(ground), ground.project / "d", ground.project / "link"
    before = contents(outside)
    link.symlink_to(outside)
    fill(directory)
    with Swapper(directory, link) as swapper:
        swapper.start()
        for _ in range(2000):
            (ground.project / "theirs").write_text("ours\n")
            if not directory.is_symlink():
                (ground.project / "theirs").rename(directory / "f")
        swapper.stop()
    assert contents(outside) != before


@dataclass(frozen=True)
class Trick:
    """A change that is held, and what happens to the live tree before it is applied."""

    hold: str
    meanwhile: Callable[[Ground, Path], None]
    prepare: Callable[[Ground, Path], None] = lambda _ground, _outside: None


def swap_for_link(name: str) -> Callable[[Ground, Path], None]:
    """Return what moves a directory away and puts a link out there."""

    def swap(ground: Ground, outside: Path) -> None:
        (ground.project / name).rename(ground.project / "moved")
        (ground.project / name).symlink_to(outside if name == "d" else outside / "e")

    return swap


def install_link(ground: Ground, outside: Path) -> None:
    """Let another sandbox replace the directory by a link within the project, which then leads out."""
    other = ground.sandbox("other")
    other.run("mv d inner && ln -s inner d", after="hold")
    assert not [left for left in other.apply().left if left.path == b"d"]
    (ground.project / "inner").rename(ground.project / "moved")
    (ground.project / "inner").symlink_to(outside)


def consented_link(ground: Ground, outside: Path) -> None:
    """Apply a link that leads out, as a person may."""
    ground.sandbox().run(["ln", "-s", os.fspath(outside), "way"], after="hold")
    assert ground.sandbox().apply(Selection(included=(b"way",))).changed == 1


def nothing(_ground: Ground, _outside: Path) -> None:
    return


TRICKS = {
    "the directory is swapped for a link after the review": Trick(CHANGE_BELOW, swap_for_link("d")),
    "a directory further down is swapped for a link": Trick(CHANGE_BELOW, swap_for_link("d/e")),
    "another apply puts an innocent link there": Trick(CHANGE_BELOW, install_link),
    "a link that leads out becomes a directory": Trick(
        "rm way && mkdir -p way/e && echo ours > way/f && echo ours > way/e/f", nothing, consented_link
    ),
    "what is below a link is deleted": Trick("rm way && mkdir way && rm -rf way && rm -rf d", nothing, consented_link),
}


@pytest.mark.parametrize("name", TRICKS)
def test_nothing_is_written_through_a_link_in_two_steps(ground: Ground, way: str, name: str) -> None:
    trick, outside = TRICKS[name], make_canary(ground)
    before = contents(outside)
    sandbox = hold(ground, trick, outside)
    changes = sandbox.changes()
    trick.meanwhile(ground, outside)
    sandbox.apply(reviewed=changes)
    assert contents(outside) == before
    assert not (outside / "new").exists()


@pytest.mark.parametrize("name", list(TRICKS)[:3])
def test_changes_laid_by_path_are_written_through_a_link(ground: Ground, name: str) -> None:
    """The control arm."""
    trick, outside = TRICKS[name], make_canary(ground)
    before = contents(outside)
    changes = hold(ground, trick, outside).changes()
    trick.meanwhile(ground, outside)
    lay(changes, ground.project)
    assert contents(outside) != before


def hold(ground: Ground, trick: Trick, outside: Path) -> Sandbox:
    """Hold a trick's change."""
    fill(ground.project / "d")
    trick.prepare(ground, outside)
    sandbox = ground.sandbox()
    assert sandbox.run(trick.hold, after="hold").ok
    return sandbox


@pytest.mark.parametrize("way_in", ["openat2", "stepwise"])
@pytest.mark.parametrize("source", ["", "other"])
@pytest.mark.parametrize("command", ["echo ours > d/e/f", "echo ours > d/e/new", "rm d/e/f", "rm -r d"])
def test_a_mount_inside_the_project_is_not_entered(ground: Ground, command: str, source: str, way_in: str) -> None:
    """A filesystem of its own, or another directory of the same one, in namespaces of an ordinary user."""
    fill(ground.project / "d")
    ground.write("other/f", "mounted\n")
    assert ground.run(command, after="hold").ok
    point, refused = ground.project / "d" / "e", command.rpartition(" ")[2]
    mounted = os.fspath(ground.project / source) if source else ""
    words: list[str | Path] = [ground.project, point, mounted, way_in, os.fsdecode(ground.bwrap)]
    program: list[str | Path] = [sys.executable, race_mounts.__file__, *words]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["seen"] == {"f": "mounted\n"}
    # Over the mount of another filesystem the layer seems to have changed the mode of the directory too
    assert {path: why for path, (why, _) in told["left"].items() if path != "d/e"} == {refused: "refused"}
    assert told["changed"] == 0
    assert (point / "f").read_text() == "base\n"
    assert (ground.project / "other" / "f").read_text() == "mounted\n"
