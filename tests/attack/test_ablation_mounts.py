# SPDX-License-Identifier: Apache-2.0
"""Every mount option of a plan, taken away alone: each read-only mount, each size, each mask, each remount, each layer.

A survey inside says of every place whether it can be written, how large it is and whose it is. It must change for the
place whose defence is missing.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.attack.ablation_flags import LAYERS, NOT_A_DEFENCE, SINGLE, category_of, defences, given_to_bwrap, parse
from tests.attack.arena import Arena, replaced, shown_as_it_is
from tests.figures import record_figure
from tests.support import HOST_ROOT, chosen_views, is_rootfs_chosen
from unspill.model.plan import Overlay
from unspill.model.policy import Network
from unspill.policy.paths import contains

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tests.attack.ablation_flags import Defence
    from tests.support import Ground
    from unspill.model.plan import MountOp, Plan

pytestmark = [pytest.mark.attack, pytest.mark.kernel, pytest.mark.bwrap]

MIB: Final = 1 << 20
VIEWS: Final = chosen_views()
SURVEY: Final = """
import json
def asked(path):
    found = os.stat(path)
    # The same mode again: the mount is asked before the owner is
    try: os.chmod(path, stat.S_IMODE(found.st_mode))
    except OSError as error: refusal = error.errno
    else: refusal = 0
    space = os.statvfs(path)
    identity = [found.st_dev, found.st_ino]
    return {"read-only": refusal == errno.EROFS, "size": space.f_blocks * space.f_frsize, "identity": identity,
            "time": found.st_mtime_ns}
print("SURVEY", json.dumps({path: asked(path) for path in %r if os.path.exists(path)}))
"""


def furnished(ground: Ground) -> dict[str, Any]:
    """Fill the person's home with what a plan may show or hide, and return the policy that does so."""
    for name in (".cache/pip", ".cargo/bin", ".ssh", "read", "hid", "project"):
        (ground.home / name).mkdir(parents=True, exist_ok=True)
    (ground.home / ".gitconfig").write_text("[user]\n\tname = Ada\n")
    (ground.home / ".netrc").write_text("machine example.org password CANARY\n")
    ground.write("kept", "x")
    return {
        "readable": (os.fsencode(ground.home / "read"),),
        "hidden": (os.fsencode(ground.home / "hid"),),
        "limits": ground.policy().limits.replace(tmp_bytes=32 * MIB),
    }


def survey(arena: Arena, places: Sequence[bytes], **settings: Any) -> dict[str, dict[str, Any]]:
    """Return what is to be said of places, from inside."""
    tried = arena.attack(SURVEY % sorted(map(os.fsdecode, places)), **settings)
    [line] = [line for line in tried.lines if line.startswith("SURVEY ")]
    found: dict[str, dict[str, Any]] = json.loads(line.removeprefix("SURVEY "))
    return found


def is_open(defence: Defence, seen: dict[str, dict[str, Any]]) -> bool:
    """Tell whether what a defence is for can be done."""
    place = os.fsdecode(defence.place)
    if place not in seen:
        return False
    match defence.category:
        case "read-only" | "remount":
            return not seen[place]["read-only"]
        case "size":
            assert defence.size is not None
            return bool(seen[place]["size"] > defence.size)
        case _:
            # An overlay has other identities than what is below it, but the same times
            there = os.stat(place)
            is_same = seen[place]["identity"] == [there.st_dev, there.st_ino]
            return is_same or bool(seen[place]["time"] == there.st_mtime_ns)


def without_the(
    index: int, all_of: Callable[[Sequence[bytes]], list[Defence]]
) -> Callable[[list[bytes]], Sequence[bytes]]:
    return lambda options: all_of(options)[index].weaker


def read_only_overlays(plan: Plan) -> list[bytes]:
    return [one.dest for one in plan.mounts if isinstance(one, Overlay) and one.upper is None]


@pytest.mark.parametrize("view", VIEWS)
def test_a_mount_option_that_is_taken_away_opens_its_place(arena: Arena, view: str) -> None:
    """Every one of a plan with all that a plan can have. Control: with all options each place is closed.
    A read-only bind of an overlay that is read-only itself is taken away further below, with the overlay."""
    settings = {"view": view, "engine": "mount", **furnished(arena.ground)}
    given = given_to_bwrap(arena, **settings)
    shown = read_only_overlays(given.plan)

    def all_of(options: Sequence[bytes]) -> list[Defence]:
        return [one for one in defences(options) if one.category != "read-only" or one.place not in shown]

    found = all_of(given.options)
    places = [defence.place for defence in found]
    intact = survey(arena, places, **settings)
    assert [defence.what for defence in found if is_open(defence, intact)] == []
    closed = []
    for index, defence in enumerate(found):
        # The names of layers differ from run to run, so it is taken away anew
        with arena.options_changed(without_the(index, all_of)):
            if not is_open(defence, survey(arena, places, **settings)):
                closed.append(defence.what)
    assert closed == []
    report(f"view {view}, engine mount", given.options, found, len(shown))


def report(plan: str, options: Sequence[bytes], found: Sequence[Defence], shown: int) -> None:
    """Count anew what is in the options, by their names alone, and print and record the figures."""
    names = Counter(option.name for option in parse(options))
    counted = {
        "read-only": names[b"--ro-bind"] - shown,
        "mask": names[b"--tmpfs"] + names[b"--ro-bind-data"],
        "remount": names[b"--remount-ro"],
        "size": names[b"--size"],
    }
    assert Counter(defence.category for defence in found) == counted
    text = ", ".join(f"{count} {kind}" for kind, count in sorted(counted.items()))
    print(f"{plan}: {len(found)} mount options, each of them missed when it is taken away: {text}")
    record_figure(f"ablation: mount options, {plan}", f"{len(found)} of {sum(counted.values())}", text)


PLANS: Final[dict[str, dict[str, Any]]] = {
    **{view: {"view": view} for view in VIEWS},
    "hosts": {"network": Network(hosts=("example.org",))},
    "strict": {"profile": "strict"},
}


@pytest.mark.parametrize("plan", PLANS)
def test_every_option_of_a_plan_is_a_defence_with_a_case_or_stated_as_none(
    arena: Arena, engine: str, plan: str
) -> None:
    """With every engine. Control: an option that nobody has judged is not accepted."""
    options = given_to_bwrap(arena, engine=engine, **PLANS[plan], **furnished(arena.ground)).options
    parsed = parse(options)
    assert [word for option in parsed for word in option.words] == list(options)
    counted = Counter(category_of(option) for option in parsed)
    assert all(counted[kind] for kind in ("single", "read-only", "mask", "remount", "size", LAYERS))
    singles = [option.name for option in parsed if option.name in SINGLE]
    assert sorted(singles) == sorted(SINGLE), "one of them is missing, or there twice"
    assert all(len(reason) > 20 for reason in NOT_A_DEFENCE.values())
    with pytest.raises(KeyError):
        parse([*options, b"--share-net"])


WRITE: Final = """
for place in %r:
    with open(os.path.join(place, "written"), "w") as file: file.write("x")
"""


def test_a_layer_that_is_taken_away_lets_writes_reach_the_directory_below(arena: Arena, engine: str) -> None:
    """Each writable mount of a plan but the playground, which is really written on purpose.
    Control: with all layers in place nothing arrives."""
    ground = arena.ground
    settings = {"engine": engine, **furnished(ground)}
    parsed = parse(given_to_bwrap(arena, **settings).options)
    playground = os.fsencode(ground.playground_inside)
    layers = [one.dest for one in parsed if category_of(one) == LAYERS and one.dest != playground]
    below = [ground.project] if is_rootfs_chosen() else [ground.project, ground.home / ".cache/pip"]
    assert layers == [os.fsencode(ground.inside(path)) for path in below]
    script = WRITE % [os.fsdecode(dest) for dest in layers]
    arena.attack(script, **settings)
    assert [path for path in below if (path / "written").exists()] == []
    for dest, path in zip(layers, below, strict=True):
        with arena.plan_changed(writable({dest: path})):
            arena.attack(script, name=f"over {len(dest)}", **settings)
        assert [one for one in below if (one / "written").exists()] == [path]
        (path / "written").unlink()


@pytest.mark.parametrize("view", VIEWS)
def test_a_read_only_layer_that_is_taken_away_lets_writes_through(arena: Arena, engine: str, view: str) -> None:
    """Each directory that is only shown: replaced by a bind that may be written. Control: each is read-only."""
    settings = {"view": view, "engine": engine, **furnished(arena.ground)}
    shown = read_only_overlays(given_to_bwrap(arena, **settings).plan)
    assert len(shown) >= 2
    assert all(one["read-only"] for one in survey(arena, shown, **settings).values())
    for dest in shown:
        # A layer above shows what is below it, so one that lies in another is taken away with that
        opened = [one for one in shown if contains(one, dest)]
        with arena.plan_changed(writable({one: below_of(one, view) for one in opened})):
            seen = survey(arena, shown, **settings)
        assert {place for place, one in seen.items() if not one["read-only"]} == set(map(os.fsdecode, opened))
    print(f"view {view}, engine {engine}: {len(shown)} read-only layers, each of them missed")


def below_of(dest: bytes, view: str) -> Path:
    """Return the directory of the host that a read-only layer shows."""
    in_tree = Path(HOST_ROOT + os.fsdecode(dest))
    return in_tree if view == "rootfs" and in_tree.exists() else Path(os.fsdecode(dest))


def writable(opened: Mapping[bytes, Path]) -> Callable[[tuple[MountOp, ...]], Sequence[MountOp]]:
    """Return a change of a plan that shows some directories of the host as they are, to be written."""

    def change(mounts: Sequence[MountOp]) -> Sequence[MountOp]:
        for dest, path in opened.items():
            mounts = replaced(mounts, dest, shown_as_it_is(path, at=os.fsdecode(dest), writable=True))
        return mounts

    return change
