# SPDX-License-Identifier: Apache-2.0
"""The copy engine against the kernel: its copies show what an overlay shows, its layers make an overlay show the copy.

The oracle is a whole picture of a real overlay mount in every field that counts.
"""

import json
import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support import directory_on
from unspill.layers import copy_reduce
from unspill.layers.copy_fill import fill
from unspill.layers.copy_form import OPAQUE
from unspill.layers.copy_manifest import Manifest
from unspill.layers.remove import remove_tree

pytestmark = pytest.mark.kernel

Picture = dict[str, list[Any]]

FILESYSTEMS: Final = {
    "ext4": None,
    "xfs": Path("/opt/unspill-ci/fs/xfs/work"),
    "btrfs": Path("/opt/unspill-ci/fs/btrfs/work"),
}
HERE: Final = Path(__file__).parent
INSIDE: Final = ["unshare", "--user", "--map-root-user", "--mount", sys.executable]


class Kernel:
    """Speaks to the process in the namespace."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def work(
        self,
        at: Path,
        *,
        lowers: list[Path] | None = None,
        upper: Path | None = None,
        seeds: list[int] | None = None,
        closed: bool = False,
    ) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        request = {
            "at": str(at),
            "lowers": [str(path) for path in lowers or ()],
            "upper": str(upper) if upper else None,
            "seeds": seeds or [],
            "closed": closed,
        }
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the process in the namespace has died"
        answer: dict[str, Any] = json.loads(line)
        return answer


@pytest.fixture(scope="module")
def kernel() -> Iterator[Kernel]:
    with subprocess.Popen(
        [*INSIDE, str(HERE / "copy_inside.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Kernel(process)
        assert process.stdin is not None
        process.stdin.close()


class Stand:
    """A live tree, sealed layers over it, and the engine at work on the next one."""

    def __init__(self, base: Path, kernel: Kernel) -> None:
        self.base = base
        self.kernel = kernel
        self.live = base / "live"
        self.sealed: list[Path] = []
        self.manifest: Manifest
        self.live.mkdir(parents=True)
        (base / "merged").mkdir()
        (base / "nothing").mkdir()

    @property
    def copy(self) -> Path:
        return self.base / f"layer{len(self.sealed)}"

    def view(self) -> Picture:
        """What an overlay of the live tree and the layers shows."""
        # The kernel wants two at least. Even alone under an overlay the live tree is another one than by itself:
        # what looks like a mark is hidden.
        lowers = [*reversed(self.sealed), self.live, self.base / "nothing"]
        picture: Picture = self.kernel.work(self.base / "merged", lowers=lowers)["after"]
        return picture

    def look(self, at: Path) -> Picture:
        picture: Picture = self.kernel.work(at)["after"]
        return picture

    def fill(self) -> Manifest:
        self.copy.mkdir()
        self.manifest = fill(bytes(self.live), [bytes(layer) for layer in self.sealed], bytes(self.copy))
        return self.manifest

    def reduce(self) -> tuple[str, ...]:
        """Turn the copy into a layer and seal it."""
        findings = copy_reduce.reduce(bytes(self.copy), self.manifest)
        self.sealed.append(self.copy)
        return findings

    def run_in_overlay(self, seeds: list[int]) -> None:
        """Make a layer by a run under a real overlay."""
        layer = self.copy
        for path in (layer, layer.with_name(layer.name + ".work")):
            path.mkdir()
        lowers = [*reversed(self.sealed), self.live]
        layer.chmod(stat.S_IMODE(lowers[0].stat().st_mode))
        for name in os.listxattr(lowers[0]):
            if name.startswith("user.") and not name.startswith("user.overlay."):
                os.setxattr(layer, name, os.getxattr(lowers[0], name))
        self.kernel.work(self.base / "merged", lowers=lowers, upper=layer, seeds=seeds, closed=True)
        self.sealed.append(layer)


@pytest.fixture(params=FILESYSTEMS)
def bases(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """New directories on each filesystem."""
    top = FILESYSTEMS[request.param]
    top = tmp_path / "stands" if top is None else top / f"copy-{os.getpid()}"
    count = iter(range(1_000_000))
    yield lambda: top / str(next(count))
    remove_tree(bytes(top))


@pytest.fixture
def stand(bases: Callable[[], Path], kernel: Kernel) -> Stand:
    return Stand(bases(), kernel)


def difference(one: Picture, other: Picture) -> dict[str, tuple[Any, Any]]:
    return {path: (one.get(path), other.get(path)) for path in one | other if one.get(path) != other.get(path)}


def run_one_stack(stand: Stand, chance: random.Random) -> None:
    def seeds(most: int) -> list[int]:
        return [chance.getrandbits(32) for _ in range(chance.randint(1, most))]

    stand.kernel.work(stand.live, seeds=seeds(40))
    for _ in range(chance.randint(1, 3)):
        if chance.random() < 0.4:
            stand.run_in_overlay(seeds(12))
            continue
        before = stand.view()
        stand.fill()
        assert difference(before, stand.look(stand.copy)) == {}
        answer = stand.kernel.work(stand.copy, seeds=seeds(12), closed=True)
        stand.reduce()
        assert difference(answer["after"], stand.view()) == {}, answer["done"]


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_random_runs_in_a_copy_make_the_layers_that_show_what_they_did(
    bases: Callable[[], Path], kernel: Kernel, full: bool
) -> None:
    for seed in range(1000 if full else 80):
        stand = Stand(bases(), kernel)
        try:
            run_one_stack(stand, random.Random(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        remove_tree(bytes(stand.base))


@pytest.fixture
def here(tmp_path: Path, kernel: Kernel) -> Iterator[Stand]:
    """One stand with a small project, on the filesystem of pytest alone."""
    stand = Stand(tmp_path / "stand", kernel)
    (stand.live / "d").mkdir()
    for name in ("f", "d/one", "d/two"):
        (stand.live / name).write_text(name)
    yield stand
    remove_tree(bytes(stand.base))


FORGE_OPAQUE: Final = """
import os, stat
os.setxattr("d", "user.overlay.opaque", b"y")
open("d/new", "w").close()
"""
FORGE_ALL: Final = (
    FORGE_OPAQUE
    + """
os.setxattr(".", "user.overlay.opaque", b"y")
os.setxattr("f", "user.overlay.metacopy", b"")
os.setxattr("f", "user.overlay.redirect", b"/d/one")
os.setxattr("d/new", "user.overlay.whiteout", b"")
os.unlink("d/two")
os.mknod("d/two", stat.S_IFCHR, 0)
os.mknod("d/three", stat.S_IFCHR, 0)
"""
)


def run_in_sandbox(stand: Stand, bwrap: Path, program: str) -> Picture:
    """Let a sandboxed command work in a copy that is bound where the project is; return what it left."""
    stand.fill()
    command = [str(bwrap), "--ro-bind", "/", "/", "--unshare-all", "--bind", str(stand.copy), str(stand.live)]
    subprocess.run([*command, "--chdir", str(stand.live), sys.executable, "-c", program], check=True)
    assert not (stand.live / "d/new").exists()
    return stand.look(stand.copy)


@pytest.mark.attack
def test_marks_that_a_command_forges_are_no_marks(here: Stand, bwrap: Path) -> None:
    left = run_in_sandbox(here, bwrap, FORGE_ALL)
    assert left["d"][2] == {"user.overlay.opaque": b"y".hex()}
    forged = [path for path, entry in left.items() if entry[0] == "special"]
    assert sorted(forged) == ["d/three", "d/two"]
    (finding,) = here.reduce()
    assert finding.startswith("device nodes made by the command")
    shown = here.view()
    assert difference({path: entry for path, entry in left.items() if path not in forged}, shown) == {}


@pytest.mark.attack
def test_a_forged_mark_would_hide_files_if_it_were_left(
    here: Stand, bwrap: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = run_in_sandbox(here, bwrap, FORGE_OPAQUE)
    monkeypatch.setattr(copy_reduce._Reduction, "_store_attributes", lambda *_ignored, **_options: None)
    here.reduce()
    assert difference(left, here.view()).keys() == {"d", "d/one", "d/two"}


INODES: Final = """
import os, shutil
reused = fillers = 0
for name in os.listdir("."):
    if os.path.isdir(name) and reused < 3:
        before = os.stat(name).st_ino
        shutil.rmtree(name)
        # Lower numbers may be free as well, while others delete
        for _ in range(200):
            os.mkdir(name)
            if before == os.stat(name).st_ino:
                reused += 1
                break
            fillers += 1
            os.rename(name, f"../filler{fillers}")
        else:
            os.mkdir(name)
print(reused)
"""


def test_a_directory_that_got_the_number_of_the_old_one_does_not_show_its_files(kernel: Kernel) -> None:
    # A small filesystem on which nobody else makes directories; many of them all the same
    with directory_on("ext4") as base:
        stand = Stand(base / "stand", kernel)
        names = {f"d{number}" for number in range(100)}
        for name in names:
            (stand.live / name).mkdir()
            (stand.live / name / "old").write_text(name)
        stand.fill()
        words = [sys.executable, "-c", INODES]
        reused = subprocess.run(words, cwd=stand.copy, check=True, stdout=subprocess.PIPE).stdout
        assert int(reused) > 0, "ext4 uses the lowest free number"
        kept = {f"{name}/old" for name in names if (stand.copy / name / "old").exists()}
        stand.reduce()
        assert stand.view().keys() == {"."} | names | kept


ON_AN_OVERLAY: Final = """
import os, sys
sys.path.insert(0, {top!r})
from tests.kernel import copy_inside
from unspill.errors import OverlayUnsupported
from unspill.layers.copy_fill import fill
os.chdir({base!r})
for name in ("upper", "upper.work"):
    os.mkdir(name)
copy_inside.mount("merged", ["live"], "upper")
os.mkdir("merged/copy")
try:
    fill(b"live", [], b"merged/copy")
except OverlayUnsupported as error:
    print(error.remedy)
"""

MOUNTED_BELOW: Final = """
import os, sys
sys.path.insert(0, {top!r})
from tests.kernel import copy_inside
from unspill.layers.copy_fill import fill
from unspill.layers.copy_reduce import reduce
os.chdir({base!r})
copy_inside.check(copy_inside.libc.mount(b"none", b"live/d", b"tmpfs", 0, None))
with open("live/d/mounted", "w") as file:
    file.write("text")
os.mkdir("copy")
manifest = fill(b"live", [], b"copy")
print(open("copy/d/mounted").read(), os.listdir("copy/d"))
os.unlink("copy/d/mounted")
reduce(b"copy", manifest)
print(os.listdir("copy"), os.listdir("copy/d"), os.listdir("live/d"))
"""


def run_inside(text: str, stand: Stand) -> str:
    program = text.format(top=str(HERE.parents[1]), base=str(stand.base))
    return subprocess.run([*INSIDE, "-c", program], check=True, text=True, stdout=subprocess.PIPE).stdout


def test_a_state_directory_on_an_overlay_is_refused_before_the_run(here: Stand) -> None:
    assert "not an overlay" in run_inside(ON_AN_OVERLAY, here)


def test_what_is_mounted_inside_the_project_is_copied_too(here: Stand) -> None:
    assert run_inside(MOUNTED_BELOW, here).splitlines() == ["text ['mounted']", "['d'] ['mounted'] ['mounted']"]


def test_a_layer_of_the_copy_engine_lies_under_a_run_of_another_engine(here: Stand) -> None:
    here.fill()
    shutil.rmtree(here.copy / "d")
    (here.copy / "d").write_text("now a file")
    here.reduce()
    here.run_in_overlay([])
    shown = here.view()
    assert shown.keys() == {".", "f", "d"}
    assert shown["d"][0] == "file"
    assert OPAQUE not in os.listxattr(here.sealed[0])
