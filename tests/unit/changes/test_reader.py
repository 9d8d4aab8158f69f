# SPDX-License-Identifier: Apache-2.0
"""Files before and after a change, and renames among them."""

import hashlib
import os
import stat

import pytest

from tests.unit.changes.trees import WHITEOUT, Dir, File, Opaque, Stack, Symlink, Tree, build
from unspill.changes import scan as subject
from unspill.changes.scan import Reader, digest_of, find_renames, read_up_to, scan
from unspill.errors import SandboxUnavailable
from unspill.model.change import Change


def changes_of(stack: Stack, layer: bytes, live: bytes, below: tuple[bytes, ...] = ()) -> dict[bytes, Change]:
    return {change.path: change for change in scan([layer], below, live)}


def test_before_is_what_the_layers_beneath_and_the_live_root_show(stack: Stack) -> None:
    live = stack.live({"d/a": File(b"live a"), "d/b": File(b"live b"), "d/c": File(b"live c"), "x/y": File(b"y")})
    below = build(stack.base / "below", {"d/a": File(b"below a"), "d/c": WHITEOUT, "x": Opaque()})
    layer = build(stack.base / "layer", {name: File(b"new") for name in ("d/a", "d/b", "d/c", "x/y")})
    found = changes_of(stack, layer, live, (below,))
    with Reader(live, [below]) as reader:
        assert read_up_to(reader.open_before(found[b"d/a"]), 100) == b"below a"
        assert read_up_to(reader.open_before(found[b"d/b"]), 100) == b"live b"
        assert read_up_to(reader.open_after(found[b"d/a"]), 2) == b"ne"
        for hidden in (b"d/c", b"x/y"):
            with pytest.raises(FileNotFoundError):
                reader.open_before(found[hidden])


def test_a_closed_directory_and_file_of_a_layer_are_read_and_left_closed(stack: Stack) -> None:
    live = stack.live({})
    layer = build(stack.base / "layer", {"d": Dir(mode=0), "d/a": File(b"inside", mode=0)})
    found = changes_of(stack, layer, live)
    with Reader(live) as reader:
        assert read_up_to(reader.open_after(found[b"d/a"]), 100) == b"inside"
    assert stat.S_IMODE(os.lstat(layer + b"/d").st_mode) == 0
    os.chmod(layer + b"/d", 0o700)
    assert stat.S_IMODE(os.lstat(layer + b"/d/a").st_mode) == 0


def test_an_entry_that_is_not_the_scanned_one_is_refused(stack: Stack) -> None:
    live = stack.live({})
    layer = build(stack.base / "layer", {"a": File()})
    found = changes_of(stack, layer, live)
    os.rename(layer + b"/a", layer + b"/kept")
    build(stack.base / "layer", {"a": File()})
    with Reader(live) as reader, pytest.raises(SandboxUnavailable):
        reader.open_after(found[b"a"])


def test_a_live_path_that_became_a_link_is_not_followed(stack: Stack) -> None:
    outside = build(stack.base / "outside", {"a": File(b"secret")})
    live = stack.live({"d/a": File(), "a": File()})
    layer = build(stack.base / "layer", {"d/a": File(b"new"), "a": File(b"new")})
    found = changes_of(stack, layer, live)
    for name in (b"/d/a", b"/a"):
        os.unlink(live + name)
    os.rmdir(live + b"/d")
    os.symlink(outside, live + b"/d")
    os.symlink(outside + b"/a", live + b"/a")
    with Reader(live) as reader:
        for path in (b"d/a", b"a"):
            with pytest.raises(OSError):
                reader.open_before(found[path])


def test_digests_are_of_content_or_target(stack: Stack) -> None:
    live = stack.live({"gone": File()})
    layer = build(stack.base / "layer", {"f": File(b"abc"), "l": Symlink(b"abc"), "d": Dir(), "gone": WHITEOUT})
    wanted = hashlib.sha256(b"abc").hexdigest()
    with Reader(live) as reader:
        digests = {path: digest_of(change, reader) for path, change in changes_of(stack, layer, live).items()}
    assert digests == {b"f": wanted, b"l": wanted, b"d": None, b"gone": None}


def renames(stack: Stack, live: Tree, layer: Tree) -> dict[bytes, bytes]:
    changes = stack.scan(live, layer)
    with Reader(changes.roots[0].root) as reader:
        return find_renames(list(changes), reader)


CASES: dict[str, tuple[Tree, Tree, dict[bytes, bytes]]] = {
    "a moved file is recognised": ({"a": File()}, {"a": WHITEOUT, "b": File()}, {b"b": b"a"}),
    "a file moved and touched is recognised": (
        {"a": File()},
        {"a": WHITEOUT, "b": File(mtime_ns=5, mode=0o600)},
        {b"b": b"a"},
    ),
    "other content is no rename": ({"a": File(b"one")}, {"a": WHITEOUT, "b": File(b"two")}, {}),
    "empty files are all alike and no renames": ({"a": File(b"")}, {"a": WHITEOUT, "b": File(b"")}, {}),
    "a copy is no rename": ({"a": File()}, {"b": File()}, {}),
    "one deleted file has one new name": (
        {"a": File()},
        {"a": WHITEOUT, "b": File(), "c": File()},
        {b"b": b"a"},
    ),
    "the same base name is the likelier origin": (
        {"x/one": File(), "x/two": File()},
        {"x/one": WHITEOUT, "x/two": WHITEOUT, "y/two": File()},
        {b"y/two": b"x/two"},
    ),
    "files of a deleted directory are not looked for": (
        {"d": Dir(), "d/a": File()},
        {"d": WHITEOUT, "b": File()},
        {},
    ),
}


@pytest.mark.parametrize(("live", "layer", "wanted"), CASES.values(), ids=CASES)
def test_renames_are_recognised_by_content(stack: Stack, live: Tree, layer: Tree, wanted: dict[bytes, bytes]) -> None:
    assert renames(stack, live, layer) == wanted


def test_the_work_is_bounded(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_COMPARISONS", 3)
    live: Tree = {f"a{n}": File(b"%d" % n) for n in range(10)}
    layer: Tree = {**{f"a{n}": WHITEOUT for n in range(10)}, **{f"b{n}": File(b"%d" % n) for n in range(10)}}
    assert len(renames(stack, live, layer)) <= 3


def test_a_large_file_is_not_read_for_a_guess(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "MAX_BYTES", 3)
    assert renames(stack, {"a": File(b"long")}, {"a": WHITEOUT, "b": File(b"long")}) == {}
