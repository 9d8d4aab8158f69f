# SPDX-License-Identifier: Apache-2.0
"""What remains of a stack, as one layer or as a flat copy: exactly what an overlay of the same layers shows."""

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

from tests.figures import record_figure
from tests.support import MOUNTS
from unspill.changes.scan import scan
from unspill.changes.select import rest, with_parents, without
from unspill.layers import residue
from unspill.layers.residue import build_residue
from unspill.layers.trees import flatten, remove_tree
from unspill.model.change import Change, ChangeSet

pytestmark = pytest.mark.kernel

PROGRAM = Path(__file__).with_name("residue_inside.py")


class Inside:
    """The process that may mount."""

    def __init__(self) -> None:
        command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, os.fspath(PROGRAM)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def inside() -> Iterator[Inside]:
    started = Inside()
    yield started
    started.close()


class Sequence:
    """A live tree and one to three runs over it, drawn from a seed."""

    def __init__(self, inside: Inside, place: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self._inside = inside
        self._base = os.fspath(place)
        self._layers: list[str] = []
        self._live = os.fspath(place / "live")
        inside.ask(base=self._base, layers=None, seeds=self._seeds(5, 40), closed=False)
        for _ in range(self.chance.randint(1, 3)):
            self.view = self._play(f"layer{len(self._layers)}", self._seeds(2, 14))
        self.changes = scan(self._uppers(), (), os.fsencode(self._live))

    def some(self) -> ChangeSet:
        """Return a random part of the changes, without what it needs."""
        wanted = self.chance.choice([0.1, 0.5, 0.9])
        (part,) = self.changes.roots
        chosen = tuple(change for change in part.changes if self.chance.random() < wanted)
        return self.changes.replace(roots=(part.replace(changes=chosen),))

    def apply(self, chosen: ChangeSet) -> None:
        plain = [
            {
                "path": change.path.decode("latin-1"),
                "layer": os.fsdecode(change.layer or b""),
                "entry": None if change.entry is None else change.entry.kind,
            }
            for change in chosen
        ]
        self._inside.ask(live=self._live, changes=plain)

    def fold(self, remaining: ChangeSet) -> bool:
        """Build the residue and make it the only layer."""
        (part,) = remaining.roots
        dest = os.path.join(self._base, "residue")
        made = build_residue(os.fsencode(dest), self._uppers(), part.changes, located, os.fsencode(self._live))
        self._layers = ["residue"] if made else []
        return made

    def told(self) -> list[list[Any]]:
        """Return what the residue changes in the live tree."""
        if not self._layers:
            return []
        told: list[list[Any]] = self._inside.ask(scan=os.path.join(self._base, "residue"), live=self._live)
        return told

    def seen(self) -> Any:
        return self._play("view", [])

    def _play(self, new: str, seeds: list[int]) -> Any:
        answer = self._inside.ask(base=self._base, layers=self._layers, new=new, seeds=seeds, closed=True)
        self._layers.insert(0, new)
        return answer["after"]

    def _uppers(self) -> list[bytes]:
        return [os.fsencode(os.path.join(self._base, layer)) for layer in self._layers]

    def _seeds(self, least: int, most: int) -> list[int]:
        return [self.chance.getrandbits(48) for _ in range(self.chance.randint(least, most))]


def located(change: Change) -> bytes:
    assert change.layer is not None
    return change.layer + b"/" + change.path


def plain(changes: ChangeSet) -> list[list[Any]]:
    return [[change.path.decode("latin-1"), change.kind, list(change.aspects)] for change in changes]


def chosen_with_parents(sequence: Sequence) -> ChangeSet:
    some = sequence.some()
    paths = with_parents(sequence.changes, {part.root: {change.path for change in part.changes} for part in some.roots})
    (part,) = sequence.changes.roots
    kept = tuple(change for change in part.changes if change.path in paths[part.root])
    return sequence.changes.replace(roots=(part.replace(changes=kept),))


def after_an_apply(sequence: Sequence) -> list[str]:
    """Apply some changes, fold the others; return what is wrong then."""
    chosen = chosen_with_parents(sequence)
    remaining = rest(sequence.changes, chosen)
    sequence.apply(chosen)
    sequence.fold(remaining)
    problems = []
    if sequence.told() != plain(remaining):
        problems.append(f"remaining {plain(remaining)}\ntold      {sequence.told()}")
    if (seen := sequence.seen()) != sequence.view:
        differing = {path for path in {*seen, *sequence.view} if seen.get(path) != sequence.view.get(path)}
        problems += [f"{path}: was {sequence.view.get(path)}, is {seen.get(path)}" for path in differing]
    return problems


def after_a_discard(sequence: Sequence) -> list[str]:
    """Fold all but some changes; return what is wrong then."""
    kept = without(sequence.changes, sequence.some())
    sequence.fold(kept)
    return [] if sequence.told() == plain(kept) else [f"kept {plain(kept)}\ntold {sequence.told()}"]


def play(inside: Inside, top: Path, seeds: range) -> Iterator[str]:
    for seed in seeds:
        for act in (after_an_apply, after_a_discard):
            place = top / f"{act.__name__}{seed}"
            place.mkdir()
            for problem in act(Sequence(inside, place, seed)):
                yield f"{act.__name__}, seed {seed}: {problem}"
            remove_tree(os.fsencode(place))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_residue_holds_what_remains_and_with_the_applied_changes_shows_the_same(
    inside: Inside, tmp_path: Path, full: bool
) -> None:
    """The time buys 120 random sequences on real overlay mounts, and 6,000 with `--full`."""
    count = 3000 if full else 60
    assert next(play(inside, tmp_path, range(count)), None) is None
    record_figure("residue, overlay mounts", "0 missed, 0 invented", f"{2 * count} random sequences, 1 to 3 runs each")


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", ["no whiteouts", "directories like those of the layers", "attributes left behind"])
def test_the_suite_notices_a_wrong_residue(
    inside: Inside, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control arm: the time buys up to 60 random sequences, until one shows the fault."""
    match fault:
        case "no whiteouts":
            monkeypatch.setattr(residue, "make_whiteout", lambda *_: None)
        case "directories like those of the layers":
            monkeypatch.setattr(residue._LiveWalk, "metadata", lambda _: None)
        case _:
            monkeypatch.setattr(residue, "user_attributes", lambda *_: {})
    assert next(play(inside, tmp_path, range(60)), None) is not None


Picture = dict[str, list[Any]]

FILESYSTEMS: Final = {
    "ext4": None,
    "xfs": MOUNTS / "xfs/work",
    "btrfs": MOUNTS / "btrfs/work",
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
    """The time buys 30 random stacks against real mounts, and 1,000 with `--full`."""
    for seed in range(1000 if full else 30):
        stand = Stand(bases(), kernel)
        try:
            run_one_stack(stand, random.Random(seed))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        remove_tree(bytes(stand.base))
