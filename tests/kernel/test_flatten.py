# SPDX-License-Identifier: Apache-2.0
"""A flat copy against the kernel: it shows what an overlay of the same layers shows.

The oracle is a whole picture of a real overlay mount in every field that counts.
"""

import json
import os
import random
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from unspill.layers.trees import flatten, remove_tree

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
        [*INSIDE, str(HERE / "flatten_inside.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Kernel(process)
        assert process.stdin is not None
        process.stdin.close()


class Stand:
    """A live tree, sealed layers over it, and their flat copy."""

    def __init__(self, base: Path, kernel: Kernel) -> None:
        self.base = base
        self.kernel = kernel
        self.live = base / "live"
        self.sealed: list[Path] = []
        self.live.mkdir(parents=True)
        (base / "merged").mkdir()
        (base / "nothing").mkdir()
        self.copy = base / "copy"

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

    def flatten(self) -> None:
        if self.copy.exists():
            remove_tree(bytes(self.copy))
        self.copy.mkdir()
        flatten(bytes(self.live), [bytes(layer) for layer in self.sealed], bytes(self.copy))

    def run_in_overlay(self, seeds: list[int]) -> None:
        """Make a layer by a run under a real overlay."""
        layer = self.base / f"layer{len(self.sealed)}"
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
    top = tmp_path / "stands" if top is None else top / f"flatten-{os.getpid()}"
    count = iter(range(1_000_000))
    yield lambda: top / str(next(count))
    remove_tree(bytes(top))


def difference(one: Picture, other: Picture) -> dict[str, tuple[Any, Any]]:
    return {path: (one.get(path), other.get(path)) for path in one | other if one.get(path) != other.get(path)}


def run_one_stack(stand: Stand, chance: random.Random) -> None:
    def seeds(most: int) -> list[int]:
        return [chance.getrandbits(32) for _ in range(chance.randint(1, most))]

    stand.kernel.work(stand.live, seeds=seeds(40))
    for _ in range(chance.randint(1, 4)):
        stand.flatten()
        assert difference(stand.view(), stand.look(stand.copy)) == {}
        stand.run_in_overlay(seeds(12))
    stand.flatten()
    assert difference(stand.view(), stand.look(stand.copy)) == {}


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_flat_copy_of_random_layers_shows_what_their_overlay_shows(
    bases: Callable[[], Path], kernel: Kernel, full: bool
) -> None:
    for seed in range(1000 if full else 80):
        stand = Stand(bases(), kernel)
        try:
            run_one_stack(stand, random.Random(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        remove_tree(bytes(stand.base))
