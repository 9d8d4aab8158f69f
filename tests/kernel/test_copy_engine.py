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

from unspill.errors import OverlayUnsupported
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


def look_like(upper: Path, below: Path) -> None:
    """Let the root of an overlay look as before."""
    upper.chmod(stat.S_IMODE(below.stat().st_mode))
    for name in os.listxattr(below):
        if name.startswith("user.") and not name.startswith("user.overlay."):
            os.setxattr(upper, name, os.getxattr(below, name))


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

    @property
    def copy(self) -> Path:
        return self.base / f"layer{len(self.sealed)}"

    def view(self, *, layers: list[Path] | None = None) -> Picture:
        """What an overlay of the live tree and the layers shows."""
        lowers = [*reversed(self.sealed if layers is None else layers), self.live]
        if len(lowers) == 1:
            # The kernel wants two. Even alone under an overlay the live tree is another one than by itself:
            # what looks like a mark is hidden.
            lowers.insert(0, self.base / "nothing")
            lowers[0].mkdir(exist_ok=True)
            look_like(lowers[0], self.live)
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
        look_like(layer, lowers[0])
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
    for seed in range(1000 if full else 40):
        stand = Stand(bases(), kernel)
        try:
            run_one_stack(stand, random.Random(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        remove_tree(bytes(stand.base))
