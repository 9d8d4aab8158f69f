# SPDX-License-Identifier: Apache-2.0
"""What a scan finds: every pair of entries, links that lead out, and everything else that layers can say."""

import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.unit.changes.trees import (
    STAMP,
    WHITEOUT,
    Dir,
    Fifo,
    File,
    Node,
    Opaque,
    Stack,
    Symlink,
    Tree,
    build,
    told,
)
from unspill.changes.scan import BASE_KINDS, TABLE, UPPER_KINDS, join, scan
from unspill.errors import SandboxUnavailable
from unspill.model.change import Change, Identity

if TYPE_CHECKING:
    from unspill.changes.scan import BaseKind, UpperKind
import posixpath

from hypothesis import given
from hypothesis import strategies as st

from unspill.changes.scan import leads_out

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


PAIRS = list(itertools.product(UPPER_KINDS, BASE_KINDS))


@pytest.mark.parametrize(("upper", "base"), PAIRS)
def test_every_pair_of_kinds_is_listed(upper: "UpperKind", base: "BaseKind") -> None:
    assert TABLE[upper, base]


def test_nothing_else_is_listed() -> None:
    assert set(TABLE) == set(PAIRS)


@pytest.mark.parametrize(("upper", "base"), PAIRS)
def test_a_verdict_fits_its_pair(upper: "UpperKind", base: "BaseKind") -> None:
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
