# SPDX-License-Identifier: Apache-2.0
"""What a scan finds: every pair of entries, links that lead out, and trees made to mislead, stall or exhaust it."""

from __future__ import annotations

import itertools
import os
import posixpath
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.changes.trees import STAMP, WHITEOUT, Dir, Fifo, File, Node, Opaque, Stack, Symlink, Tree, build, told
from unspill.changes import scan as scan_module
from unspill.changes import walk
from unspill.changes.scan import TABLE, join, leads_out, scan
from unspill.errors import SandboxUnavailable
from unspill.layers import trees as layer_modes
from unspill.model.change import Change, ChangeSet, Identity

if TYPE_CHECKING:
    from unspill.changes.scan import BaseKind, UpperKind

CASES: dict[str, tuple[Tree, Tree, list[str]]] = {
    "an empty layer changes nothing": ({"a": File()}, {}, []),
    "a copy-up with nothing changed is no change": ({"a": File()}, {"a": File()}, []),
    "a new file is added": ({}, {"a": File()}, ["added a"]),
    "other content of another size is a modification": (
        {"a": File()},
        {"a": File(b"longer content\n", mtime_ns=STAMP + 1)},
        ["modified a content mtime"],
    ),
    "other content of the same size and time is a modification": (
        {"a": File(b"one")},
        {"a": File(b"two")},
        ["modified a content"],
    ),
    "a mere touch is metadata": ({"a": File()}, {"a": File(mtime_ns=STAMP + 1)}, ["metadata a mtime"]),
    "another mode is metadata": ({"a": File()}, {"a": File(mode=0o755)}, ["metadata a mode"]),
    "a special bit is metadata": ({"a": File()}, {"a": File(mode=0o4644)}, ["metadata a mode"]),
    "another attribute is metadata": (
        {"a": File()},
        {"a": File(attributes={"user.note": b"1"})},
        ["metadata a xattrs"],
    ),
    "a lost attribute is metadata": (
        {"a": File(attributes={"user.note": b"1"})},
        {"a": File()},
        ["metadata a xattrs"],
    ),
    "another value of an attribute is metadata": (
        {"a": File(attributes={"user.note": b"1"})},
        {"a": File(attributes={"user.note": b"2"})},
        ["metadata a xattrs"],
    ),
    "marks of overlayfs are nobody's attributes": (
        {"a": File(), "d": Dir()},
        {
            "a": File(attributes={"user.overlay.origin": b"", "user.overlay.nlink": b"x"}),
            "d": Dir(attributes={"user.overlay.impure": b"y", "user.overlay.uuid": b"0" * 16}),
        },
        [],
    ),
    "an escaped mark is the command's own attribute": (
        {"d": Dir(), "d/kept": File()},
        {"d": Dir(attributes={"user.overlay.overlay.opaque": b"y"})},
        ["metadata d xattrs"],
    ),
    "an opaque mark of another value hides nothing": (
        {"d": Dir(), "d/kept": File()},
        {"d": Dir(attributes={"user.overlay.opaque": b"n"})},
        [],
    ),
    "a whiteout is a deletion": ({"a": File()}, {"a": WHITEOUT}, ["deleted a"]),
    "a whiteout over nothing is nothing": ({}, {"a": WHITEOUT}, []),
    "a whiteout over a directory is one deletion": (
        {"d": Dir(), "d/a": File(), "d/e/f": File()},
        {"d": WHITEOUT},
        ["deleted d"],
    ),
    "a copied-up directory is no change": ({"d": Dir(), "d/a": File()}, {"d": Dir()}, []),
    "another mode of a directory is metadata": ({"d": Dir()}, {"d": Dir(mode=0o700)}, ["metadata d mode"]),
    "an attribute of a directory is metadata": (
        {"d": Dir()},
        {"d": Dir(attributes={"user.note": b"1"})},
        ["metadata d xattrs"],
    ),
    "a new directory is added with all that is in it": (
        {},
        {"d/e/f": File(), "d/a": File()},
        ["added d", "added d/a", "added d/e", "added d/e/f"],
    ),
    "an opaque directory deletes what it does not have": (
        {"d": Dir(), "d/a": File(), "d/b": File(), "d/e/f": File()},
        {"d": Opaque(), "d/b": File(), "d/c": File()},
        ["deleted d/a", "added d/c", "deleted d/e"],
    ),
    "directories below an opaque one hide too": (
        {"d/e/a": File(), "d/e/g/x": File(), "d/e/h": File()},
        {"d": Opaque(), "d/e": Dir(), "d/e/h": File()},
        ["deleted d/e/a", "deleted d/e/g"],
    ),
    "an opaque directory over nothing is an addition": ({}, {"d": Opaque()}, ["added d"]),
    "a file over a directory replaces it in one change": (
        {"d/a": File(), "d/b": File()},
        {"d": File()},
        ["replaced d"],
    ),
    "a directory over a file replaces it and adds what is in it": (
        {"a": File()},
        {"a": Opaque(), "a/b": File()},
        ["replaced a", "added a/b"],
    ),
    "a symlink over a directory replaces it": ({"d/a": File()}, {"d": Symlink(b"x")}, ["replaced d"]),
    "a symlink with another target is a modification": (
        {"l": Symlink(b"x")},
        {"l": Symlink(b"y")},
        ["modified l target"],
    ),
    "a symlink with the same target is no change": ({"l": Symlink(b"x")}, {"l": Symlink(b"x")}, []),
    "a fifo is added as what it is": ({}, {"p": Fifo()}, ["added p"]),
    "a fifo over a file replaces it": ({"p": File()}, {"p": Fifo()}, ["replaced p"]),
    "a copied-up fifo is no change": ({"p": Fifo()}, {"p": Fifo()}, []),
    "another mode of a fifo is metadata": ({"p": Fifo()}, {"p": Fifo(mode=0o600)}, ["metadata p mode"]),
    "a whiteout that someone put into the live tree is not there": (
        {"w": WHITEOUT, "v": WHITEOUT},
        {"w": File(), "v": WHITEOUT},
        ["added w"],
    ),
    "changes are sorted by components and not by bytes": (
        {},
        {"a/b": File(), "a-b": File(), "a.b": File(), "a/a/a": File()},
        ["added a", "added a/a", "added a/a/a", "added a/b", "added a-b", "added a.b"],
    ),
    "a name of any bytes is kept": (
        {b"\xff\n": File()},
        {b"\xff\n": WHITEOUT, b"-\x1b[2J": File()},
        ["added -\x1b[2J", "deleted \udcff\n"],
    ),
}


@pytest.mark.parametrize(("live", "layer", "wanted"), CASES.values(), ids=CASES)
def test_one_layer(stack: Stack, live: Tree, layer: Tree, wanted: list[str]) -> None:
    changes = stack.scan(live, layer)
    assert told(changes) == wanted
    assert changes.findings == ()


STACKS: dict[str, tuple[list[Tree], list[str]]] = {
    "the top entry of a path counts": (
        [{"a": File(b"live")}, {"a": File(b"first")}, {"a": File(b"live")}],
        [],
    ),
    "what one run made and the next deleted is nothing": ([{}, {"a": File()}, {"a": WHITEOUT}], []),
    "what one run deleted and the next made again is compared": (
        [{"a": File()}, {"a": WHITEOUT}, {"a": File(mode=0o600)}],
        ["metadata a mode"],
    ),
    "directories of layers merge": (
        [{"d/x": File()}, {"d/a": File()}, {"d/b": File(), "d/x": WHITEOUT}],
        ["added d/a", "added d/b", "deleted d/x"],
    ),
    "an opaque directory hides the layers beneath it": (
        [{"d/x": File()}, {"d/a": File()}, {"d": Opaque(), "d/b": File()}],
        ["added d/b", "deleted d/x"],
    ),
    "an opaque directory beneath still hides the live one": (
        [{"d/x": File(), "d/y": File()}, {"d": Opaque(), "d/a": File()}, {"d/b": File()}],
        ["added d/a", "added d/b", "deleted d/x", "deleted d/y"],
    ),
    "a directory over a whiteout of an older layer hides the live one": (
        [{"d/x": File()}, {"d": WHITEOUT}, {"d": Dir(), "d/b": File()}],
        ["added d/b", "deleted d/x"],
    ),
    "a directory over a file of an older layer hides the live one": (
        [{"d/x": File()}, {"d": File()}, {"d": Dir()}],
        ["deleted d/x"],
    ),
    "the mode of the topmost directory counts": (
        [{"d": Dir()}, {"d": Dir(mode=0o700)}, {"d": Dir()}],
        [],
    ),
    "a file in the way of an older directory replaces it": (
        [{"d/x": File()}, {"d/a": File()}, {"d": File()}],
        ["replaced d"],
    ),
}


@pytest.mark.parametrize(("trees", "wanted"), STACKS.values(), ids=STACKS)
def test_layers_are_folded_against_the_live_tree(stack: Stack, trees: list[Tree], wanted: list[str]) -> None:
    live, *layers = trees
    assert told(stack.scan(live, *reversed(layers))) == wanted


ONE_RUN: dict[str, tuple[Tree, list[Tree], Tree, list[str]]] = {
    "a file is compared with the layer beneath": (
        {"a": File(b"live")},
        [{"a": File(b"first")}],
        {"a": File(b"live")},
        ["modified a content"],
    ),
    "a whiteout beneath means that nothing was there": (
        {"a": File()},
        [{"a": WHITEOUT}],
        {"a": File()},
        ["added a"],
    ),
    "a deletion of what an earlier run made is one": ({}, [{"a": File()}], {"a": WHITEOUT}, ["deleted a"]),
    "an opaque directory beneath cuts the live one off": (
        {"d/x": File()},
        [{"d": Opaque(), "d/a": File()}],
        {"d/x": File(), "d/a": WHITEOUT},
        ["deleted d/a", "added d/x"],
    ),
    "a hiding directory is compared with all that was merged": (
        {"d/x": File(), "d/z": File()},
        [{"d/a": File(), "d/z": WHITEOUT}, {"d/b": File()}],
        {"d": Opaque(), "d/b": File()},
        ["deleted d/a", "deleted d/x"],
    ),
    "a directory made again over a whiteout is an addition": (
        {"d/x": File()},
        [{"d": WHITEOUT}],
        {"d": Opaque(), "d/y": File()},
        ["added d", "added d/y"],
    ),
}


@pytest.mark.parametrize(("live", "below", "layer", "wanted"), ONE_RUN.values(), ids=ONE_RUN)
def test_one_run_is_compared_with_what_it_saw(
    stack: Stack, live: Tree, below: list[Tree], layer: Tree, wanted: list[str]
) -> None:
    assert told(stack.scan(live, layer, below=tuple(below))) == wanted


def only(changes: object) -> Change:
    [change] = list(changes)  # type: ignore[call-overload]
    assert isinstance(change, Change)
    return change


def test_a_change_carries_the_identity_of_the_upper_entry_and_the_facts_of_the_base(stack: Stack) -> None:
    change = only(stack.scan({"a": File(b"old", mode=0o600)}, {"a": File(b"newer", mode=0o750)}))
    status = os.lstat(stack.base / "layer0" / "a")
    assert change == Change(
        path=b"a",
        kind="modified",
        entry=Identity(
            kind="file",
            mode=0o750,
            inode=status.st_ino,
            size=5,
            ctime_ns=status.st_ctime_ns,
        ),
        base_kind="file",
        base_size=3,
        base_mode=0o600,
        aspects=("content", "mode"),
        layer=os.fsencode(stack.base / "layer0"),
    )


def test_a_change_names_the_layer_that_holds_its_entry(stack: Stack) -> None:
    changes = stack.scan({"x": File()}, {"a": File()}, {"a": File(b"older"), "b": File(), "x": WHITEOUT})
    layers = {change.path: os.path.basename(change.layer or b"") for change in changes}
    assert layers == {b"a": b"layer0", b"b": b"layer1", b"x": b"layer1"}


@pytest.mark.parametrize(
    ("target", "wanted"),
    [(b"/etc/passwd", True), (b"../x", True), (b"d/../../x", True), (b"a", False), (b"d/../a", False)],
)
def test_a_symlink_that_leads_out_is_flagged(stack: Stack, target: bytes, wanted: bool) -> None:
    change = only(stack.scan({}, {"l": Symlink(target)}))
    assert (change.target, change.leads_out) == (target, wanted)


def test_an_absolute_symlink_into_the_root_does_not_lead_out(stack: Stack) -> None:
    live = os.fsencode(stack.base / "live")
    assert not only(stack.scan({}, {"l": Symlink(live + b"/a")})).leads_out
    assert only(scan([build(stack.base / "other", {"l": Symlink(live + b"-x/a")})], [], live)).leads_out


def test_both_targets_of_a_changed_symlink_are_told(stack: Stack) -> None:
    change = only(stack.scan({"l": Symlink(b"old")}, {"l": Symlink(b"new")}))
    assert (change.base_target, change.target) == (b"old", b"new")


def test_a_change_to_one_name_of_a_hard_linked_file_is_reported_as_a_broken_link(stack: Stack) -> None:
    live = stack.live({"one": File(), "alone": File()})
    os.link(os.path.join(live, b"one"), os.path.join(live, b"two"))
    layer = build(stack.base / "layer", {"one": File(b"new"), "two": WHITEOUT, "alone": File(b"new")})
    broken = {change.path: change.broke_link for change in scan([layer], [], live)}
    assert broken == {b"one": True, b"two": False, b"alone": False}


def test_the_root_itself_is_compared(stack: Stack) -> None:
    live = stack.live({})
    layer = build(stack.base / "layer", {})
    os.chmod(layer, 0o700)
    os.setxattr(layer, "user.note", b"1")
    assert told(scan([layer], [], live)) == ["metadata . mode xattrs"]


@pytest.mark.parametrize("mark", ["redirect", "metacopy", "whiteout"])
@pytest.mark.parametrize("node", [File(b"other"), Dir()])
def test_marks_that_no_mount_of_ours_makes_stop_the_scan(stack: Stack, mark: str, node: Node) -> None:
    marked = Node(kind=node.kind, content=node.content, attributes={f"user.overlay.{mark}": b"/x"})
    with pytest.raises(SandboxUnavailable, match=mark):
        stack.scan({"a": node}, {"a": marked})


def test_a_renamed_file_without_its_content_stops_the_scan(stack: Stack) -> None:
    live = stack.live({})
    layer = build(stack.base / "layer", {"new": File(b"", attributes={"user.overlay.metacopy": b""})})
    os.truncate(os.path.join(layer, b"new"), 100_000)
    with pytest.raises(SandboxUnavailable, match="metacopy"):
        scan([layer], [], live)


def test_whiteouts_in_attributes_stop_the_scan(stack: Stack) -> None:
    with pytest.raises(SandboxUnavailable, match="whiteouts stored as attributes"):
        stack.scan({"d/a": File()}, {"d": Dir(attributes={"user.overlay.opaque": b"x"}), "d/a": File(b"")})


def test_without_layers_there_are_no_changes(stack: Stack) -> None:
    assert not scan([], [], stack.live({"a": File()}))


def test_change_sets_of_several_roots_are_joined_in_order(tmp_path: Path) -> None:
    parts = []
    for name in ("one", "two"):
        live = build(tmp_path / name, {})
        parts.append(scan([build(tmp_path / f"{name}-layer", {name: File()})], [], live))
    whole = join(parts)
    assert [part.root for part in whole.roots] == [os.fsencode(tmp_path / name) for name in ("one", "two")]
    assert told(whole) == ["added one", "added two"]


def test_descriptors_are_all_closed_after_a_scan(stack: Stack) -> None:
    before = os.listdir("/proc/self/fd")
    stack.scan({"d/e/f": File(), "x": File()}, {"d": Opaque(), "d/e/g": File(), "x": File(b"other !\n")})
    assert os.listdir("/proc/self/fd") == before


UPPER_KINDS: tuple[UpperKind, ...] = ("none", "whiteout", "file", "dir", "opaque", "symlink", "special")
BASE_KINDS: tuple[BaseKind, ...] = ("none", "file", "dir", "symlink", "special")
PAIRS = list(itertools.product(UPPER_KINDS, BASE_KINDS))


@pytest.mark.parametrize(("upper", "base"), PAIRS)
def test_every_pair_of_kinds_is_listed(upper: UpperKind, base: BaseKind) -> None:
    assert TABLE[upper, base]


def test_nothing_else_is_listed() -> None:
    assert set(TABLE) == set(PAIRS)


@pytest.mark.parametrize(("upper", "base"), PAIRS)
def test_a_verdict_fits_its_pair(upper: UpperKind, base: BaseKind) -> None:
    match upper, base:
        case ("none", _) | ("whiteout", "none"):
            wanted = "nothing"
        case "whiteout", _:
            wanted = "deleted"
        case _, "none":
            wanted = "added"
        case "opaque", "dir":
            wanted = "compare hidden directory"
        case "dir", "dir":
            wanted = "compare directories"
        case _:
            wanted = f"compare {upper}s" if upper == base else "replaced"
    assert TABLE[upper, base] == wanted


ROOT = b"/home/me/project"


@pytest.mark.parametrize(
    ("path", "target", "wanted"),
    [
        (b"l", b"a", False),
        (b"l", b".", False),
        (b"l", b"..", True),
        (b"d/l", b"..", False),
        (b"d/l", b"../..", True),
        (b"d/l", b"../../project/a", True),
        (b"l", b"./././a/../b", False),
        (b"l", b"a/../../b", True),
        (b"l", b"/", True),
        (b"l", b"/etc", True),
        (b"l", ROOT, False),
        (b"l", ROOT + b"/a/b", False),
        (b"l", ROOT + b"/../other", True),
        (b"l", ROOT + b"-other", True),
        (b"l", b"//home//me/./project/a", False),
        (b"l", b"/home/me/x/../project/a", False),
        (b"l", b"/../../home/me/project", False),
        (b"l", b"/home/me", True),
    ],
)
def test_a_target_is_inside_or_leads_out(path: bytes, target: bytes, wanted: bool) -> None:
    assert leads_out(path, target, ROOT) == wanted


PARTS = st.lists(st.sampled_from([b"a", b"b", b"..", b".", b""]), min_size=1, max_size=6)


@given(path=st.lists(st.sampled_from([b"a", b"b"]), min_size=1, max_size=4), target=PARTS)
def test_relative_targets_agree_with_normalised_paths(path: list[bytes], target: list[bytes]) -> None:
    text = b"/".join(target).lstrip(b"/") or b"."
    # Deep enough that climbing out of the root never reaches the top, where ".." stays.
    deep = b"/r" * 10
    end = posixpath.normpath(posixpath.join(deep, *path[:-1], text))
    climbed = leads_out(b"/".join(path), text, deep)
    if not (end == deep or end.startswith(deep + b"/")):
        assert climbed
    elif b".." not in target:
        assert not climbed


TIB = 1 << 40


def dig(root: bytes, depth: int, name: bytes = b"d", *, side: bool = False) -> None:
    """Make a chain of directories without ever using its path; with `side`, a second directory at each level."""
    here = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=here)
        if side:
            os.mkdir(b"z", dir_fd=here)
        below = os.open(name, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open(b"end", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    # Two ends that are made within one tick of the clock would have the same time
    moment = os.stat(root).st_ino
    os.utime(b"end", (moment, moment), dir_fd=here)
    os.close(here)


def by_path(changes: ChangeSet) -> dict[bytes, Change]:
    return {change.path: change for change in changes}


def modes(root: bytes) -> dict[bytes, int]:
    """Return the mode of everything below a directory that this user can see, and of the directory itself."""
    found = {b".": stat.S_IMODE(os.lstat(root).st_mode)}
    for here, dirs, files in os.walk(root):
        for name in (*dirs, *files):
            path = os.path.join(here, name)
            found[path] = stat.S_IMODE(os.lstat(path).st_mode)
    return found


def test_a_path_of_12_kb_is_seen_to_its_end(stack: Stack) -> None:
    live = stack.live({})
    layer = build(stack.base / "layer", {})
    # Deeper than PATH_MAX, than the usual number of descriptors and than Python's recursion limit.
    depth, name = 1100, b"d" * 11
    dig(layer, depth, name)
    changes = list(scan([layer], [], live))
    assert len(changes) == depth + 1
    assert changes[-1].path == (name + b"/") * depth + b"end"


def test_a_deep_tree_is_compared_with_deep_ones_beneath(stack: Stack) -> None:
    live = stack.live({})
    layer, older = (build(stack.base / name, {}) for name in ("layer", "older"))
    depth = 2 * walk.OPEN_AT_MOST
    for root in (live, older):
        dig(root, depth)
    dig(layer, depth + 1)
    changes = scan([layer], [older], live)
    assert [change.path for change in changes] == [b"d/" * depth + b"d", b"d/" * (depth + 1) + b"end"]


def test_going_back_up_a_deep_tree_opens_its_directories_again(stack: Stack) -> None:
    live = stack.live({})
    layer = build(stack.base / "layer", {})
    depth = walk.OPEN_AT_MOST + 60
    dig(layer, depth, side=True)
    dig(live, depth)
    first, *others = told(scan([layer], [], live))
    assert first == f"metadata {'d/' * depth}end mtime"
    assert others == [f"added {'d/' * level}z" for level in reversed(range(depth))]


def test_no_more_than_so_many_directories_are_open_at_once(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    live = stack.live({})
    layer = build(stack.base / "layer", {})
    dig(layer, 2 * walk.OPEN_AT_MOST)
    most = 0
    keep = walk.Pool.keep

    def counting(self: walk.Pool, directory: walk.Dir) -> None:
        nonlocal most
        keep(self, directory)
        most = max(most, len(os.listdir("/proc/self/fd")))

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(walk.Pool, "keep", counting)
    scan([layer], [], live)
    assert most <= before + walk.OPEN_AT_MOST + 2


def test_a_stack_of_more_layers_than_may_be_open_is_scanned(stack: Stack) -> None:
    live = stack.live({"d/live": File()})
    layers = [build(stack.base / f"l{n}", {f"d/{n}": File(), "d/same": File()}) for n in range(300)]
    changes = by_path(scan(layers, [], live))
    assert set(changes) == {b"d/same", *(b"d/%d" % n for n in range(300))}
    assert changes[b"d/same"].layer == layers[0]
    one = scan(layers[:1], layers[1:], live)
    assert told(one) == ["added d/0"]


@pytest.mark.parametrize("mode", [0o000, 0o200, 0o400, 0o600, 0o100, 0o300])
def test_a_directory_closed_to_its_owner_is_seen_and_left_closed(stack: Stack, mode: int) -> None:
    live = stack.live({"d/x": File()})
    layer = build(stack.base / "layer", {"d": Dir(mode=mode), "d/a": File(), "d/e": Dir(mode=mode), "d/e/b": File()})
    changes = by_path(scan([layer], [], live))
    assert list(changes) == [b"d", b"d/a", b"d/e", b"d/e/b"]
    assert changes[b"d"].aspects == ("mode",)
    inner = changes[b"d/e"].entry
    assert inner is not None
    assert inner.mode == mode
    status = os.lstat(os.path.join(layer, b"d"))
    assert stat.S_IMODE(status.st_mode) == mode
    outer = changes[b"d"].entry
    assert outer is not None
    assert (outer.mode, outer.ctime_ns) == (mode, status.st_ctime_ns)
    os.chmod(os.path.join(layer, b"d"), 0o700)
    status = os.lstat(os.path.join(layer, b"d", b"e"))
    assert (stat.S_IMODE(status.st_mode), status.st_ctime_ns) == (mode, inner.ctime_ns)


def test_a_closed_root_of_a_layer_is_seen_and_left_closed(stack: Stack) -> None:
    live = stack.live({})
    layer = build(stack.base / "layer", {"a": File()})
    os.chmod(layer, 0)
    assert told(scan([layer], [], live)) == ["metadata . mode", "added a"]
    assert stat.S_IMODE(os.lstat(layer).st_mode) == 0


@pytest.mark.parametrize("mode", [0o000, 0o200])
def test_a_file_closed_to_its_owner_is_compared_and_left_closed(stack: Stack, mode: int) -> None:
    note = {"user.note": b"1"}
    live = stack.live({"same": File(attributes=note), "other": File()})
    layer = build(
        stack.base / "layer", {"same": File(mode=mode, attributes=note), "other": File(b"CONTENT\n", mode=mode)}
    )
    changes = scan([layer], [], live)
    assert told(changes) == ["modified other content mode", "metadata same mode"]
    assert changes.findings == ()
    for change in changes:
        status = os.lstat(os.path.join(layer, change.path))
        assert stat.S_IMODE(status.st_mode) == mode
        assert change.entry is not None
        assert change.entry.ctime_ns == status.st_ctime_ns


def test_a_closed_file_of_a_layer_beneath_is_compared(stack: Stack) -> None:
    changes = stack.scan({}, {"a": File(mode=0o600)}, below=({"a": File(mode=0)},))
    assert told(changes) == ["metadata a mode"]
    assert stat.S_IMODE(os.lstat(stack.base / "below0" / "a").st_mode) == 0


def test_modes_are_given_back_when_a_scan_fails(stack: Stack) -> None:
    live = stack.live({"d": Dir(), "e": Dir()})
    layer = build(
        stack.base / "layer",
        {"d": Dir(mode=0), "d/a": File(), "e": Dir(attributes={"user.overlay.redirect": b"/x"})},
    )
    with pytest.raises(Exception, match="redirect"):
        scan([layer], [], live)
    assert stat.S_IMODE(os.lstat(os.path.join(layer, b"d")).st_mode) == 0


@pytest.fixture
def closed_live(stack: Stack) -> Iterator[bytes]:
    live = stack.live(
        {"secret": File(mode=0), "d": Dir(mode=0), "d/x": File(), "unlisted": Dir(mode=0o311), "unlisted/x": File()}
    )
    before = modes(live), os.lstat(os.path.join(live, b"secret")).st_ctime_ns
    yield live
    assert before == (modes(live), os.lstat(os.path.join(live, b"secret")).st_ctime_ns)


def test_an_unreadable_live_file_is_never_taken_for_unchanged(stack: Stack, closed_live: bytes) -> None:
    layer = build(stack.base / "layer", {"secret": File(mode=0o644)})
    changes = scan([layer], [], closed_live)
    assert told(changes) == ["modified secret content mode"]
    assert by_path(changes)[b"secret"].unreadable
    assert changes.findings == ("secret: can't be compared: not readable",)


def test_an_unreadable_live_file_of_another_size_is_surely_modified(stack: Stack, closed_live: bytes) -> None:
    changes = scan([build(stack.base / "layer", {"secret": File(b"another size", mode=0)})], [], closed_live)
    assert told(changes) == ["modified secret content"]
    assert changes.findings == ()


def test_what_lies_over_a_closed_live_directory_is_told_as_unreadable(stack: Stack, closed_live: bytes) -> None:
    layer = build(stack.base / "layer", {"d": Dir(), "d/x": File(), "d/y": WHITEOUT, "d/z": Dir()})
    changes = scan([layer], [], closed_live)
    assert told(changes) == ["metadata d mode", "modified d/x", "deleted d/y", "replaced d/z"]
    assert [change.unreadable for change in changes] == [False, True, True, True]
    assert len(changes.findings) == 3


def test_a_live_directory_is_not_listed_for_a_change_in_it(stack: Stack, closed_live: bytes) -> None:
    layer = build(stack.base / "layer", {"unlisted": Dir(mode=0o311), "unlisted/x": File(b"other !\n")})
    changes = scan([layer], [], closed_live)
    assert told(changes) == ["modified unlisted/x content"]
    assert changes.findings == ()


def test_a_hidden_live_directory_that_can_not_be_listed_is_replaced_as_a_whole(
    stack: Stack, closed_live: bytes
) -> None:
    layer = build(stack.base / "layer", {"unlisted": Opaque(), "unlisted/a": File()})
    changes = scan([layer], [], closed_live)
    assert told(changes) == ["replaced unlisted", "added unlisted/a"]
    assert by_path(changes)[b"unlisted"].unreadable


def test_a_live_symlink_to_a_directory_is_never_followed(stack: Stack) -> None:
    outside = build(stack.base / "outside", {"secret": File()})
    live = stack.live({"d": Symlink(outside)})
    changes = scan([build(stack.base / "layer", {"d": Dir(), "d/secret": File()})], [], live)
    assert told(changes) == ["replaced d", "added d/secret"]


def test_a_symlink_in_a_layer_is_never_followed(stack: Stack) -> None:
    outside = build(stack.base / "outside", {"secret": File()})
    assert told(stack.scan({"d/secret": File()}, {"d": Symlink(outside)})) == ["replaced d"]


def test_fifos_are_never_opened(stack: Stack) -> None:
    changes = stack.scan({"p": Fifo(), "q": File(), "r": Fifo(mode=0o600)}, {"p": File(), "q": Fifo(), "r": Fifo()})
    assert told(changes) == ["replaced p", "replaced q", "metadata r mode"]


@pytest.mark.parametrize(("at", "wanted"), [(None, []), (TIB // 2, ["modified big content"])])
def test_a_sparse_file_of_a_terabyte_is_compared_at_once(stack: Stack, at: int | None, wanted: list[str]) -> None:
    live = stack.live({"big": File(b"!")})
    layer = build(stack.base / "layer", {"big": File(b"!")})
    for root in (live, layer):
        path = os.path.join(root, b"big")
        os.truncate(path, TIB)
        if root is layer and at is not None:
            with open(path, "r+b") as file:
                file.seek(at)
                file.write(b"?")
        os.utime(path, ns=(0, 0))
    started = time.monotonic()
    assert told(scan([layer], [], live)) == wanted
    assert time.monotonic() - started < 2


def test_more_changes_than_can_be_reviewed_leave_a_finding(stack: Stack) -> None:
    changes = stack.scan({}, {f"{number:03}": File() for number in range(50)}, max_entries=20)
    assert len(changes) == 20
    assert changes.findings == ("020: too large to review: only the first 20 changes are listed",)


def test_paths_too_long_to_be_kept_leave_a_finding(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "MAX_PATH_BYTES", 1000)
    changes = stack.scan({}, {"/".join(["x" * 50] * 10): File()})
    assert len(changes) < 10
    assert "too large to review" in changes.findings[0]


def test_directories_deeper_than_the_bound_leave_a_finding(stack: Stack) -> None:
    changes = stack.scan({}, {"a/b/c/d/e": File()}, max_depth=3)
    assert told(changes) == ["added a", "added a/b", "added a/b/c"]
    assert changes.findings == ("a/b/c: deeper than 3 directories: its contents are not listed",)


def test_so_many_findings_are_counted_instead_of_listed(stack: Stack) -> None:
    names = [f"{number}" for number in range(scan_module.MAX_FINDINGS + 7)]
    changes = stack.scan({name: File(mode=0) for name in names}, {name: File() for name in names})
    assert len(changes) == len(names)
    assert len(changes.findings) == scan_module.MAX_FINDINGS + 1
    assert changes.findings[-1] == "and 7 more findings like these"


def test_a_live_tree_is_not_even_touched_by_reading_it(stack: Stack) -> None:
    live = stack.live({"a": File()})
    path = os.path.join(live, b"a")
    os.utime(path, ns=(0, 0))
    scan([build(stack.base / "layer", {"a": File(b"other !\n")})], [], live)
    assert os.lstat(path).st_atime_ns == 0


def test_the_live_root_must_be_a_directory(stack: Stack, tmp_path: Path) -> None:
    layer = build(stack.base / "layer", {"a": File()})
    (tmp_path / "link").symlink_to(build(stack.base / "real", {}).decode())
    with pytest.raises(NotADirectoryError):
        scan([layer], [], os.fsencode(tmp_path / "link"))


def closed_layer(stack: Stack) -> tuple[bytes, bytes]:
    live = stack.live({})
    return live, build(stack.base / "layer", {"d": Dir(mode=0), "d/a": File(), "d/e": Dir(mode=0), "d/e/b": File()})


WANTED = [(b"d", 0), (b"d/a", 0o644), (b"d/e", 0), (b"d/e/b", 0o644)]


def modes_told(changes: ChangeSet) -> list[tuple[bytes, int]]:
    return [(change.path, change.entry.mode) for change in changes if change.entry is not None]


def test_what_a_killed_scan_left_open_is_told_rightly_and_closed_again(stack: Stack) -> None:
    live, layer = closed_layer(stack)
    child = os.fork()
    if child == 0:
        pool = walk.Pool()
        pool.upper_root(layer).open_child(b"d").open_child(b"e")
        os._exit(0)
    os.waitpid(child, 0)
    assert stat.S_IMODE(os.lstat(layer + b"/d/e").st_mode) == 0o700
    assert modes_told(scan([layer], [], live)) == WANTED
    assert stat.S_IMODE(os.lstat(layer + b"/d").st_mode) == 0
    os.chmod(layer + b"/d", 0o700)
    assert stat.S_IMODE(os.lstat(layer + b"/d/e").st_mode) == 0
    assert os.listxattr(layer + b"/d") == []


def test_a_scan_waits_for_another_that_has_directories_open(stack: Stack) -> None:
    live, layer = closed_layer(stack)
    with walk.Pool() as other:
        other.upper_root(layer).open_child(b"d")
        assert stat.S_IMODE(os.lstat(layer + b"/d").st_mode) == 0o700
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(scan, [layer], [], live)
            time.sleep(0.05)
            assert not waiting.done()
            other.restore()
            other.close()
            assert modes_told(waiting.result()) == WANTED


def test_a_scan_does_not_wait_for_ever(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_modes, "LOCK_TIMEOUT_S", 0.05)
    live, layer = closed_layer(stack)
    with walk.Pool() as other:
        other.modes.lock(layer)
        assert modes_told(scan([layer], [], live)) == WANTED


def test_scans_at_the_same_time_do_not_mislead_each_other(stack: Stack) -> None:
    live, layer = closed_layer(stack)
    with ThreadPoolExecutor(4) as threads:
        told_modes = list(threads.map(lambda _: modes_told(scan([layer], [], live)), range(200)))
    wrong = [modes for modes in told_modes if modes != WANTED]
    assert wrong == []
    assert stat.S_IMODE(os.lstat(layer + b"/d").st_mode) == 0
