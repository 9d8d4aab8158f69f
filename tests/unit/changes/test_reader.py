# SPDX-License-Identifier: Apache-2.0
"""Both sides of a change, opened without following anything; digests of what a change leaves."""

import hashlib
import os
import stat

import pytest

from tests.unit.changes.trees import WHITEOUT, Dir, File, Opaque, Stack, Symlink, build
from unspill.changes.reader import Reader, digest_of, read_up_to
from unspill.changes.scan import scan
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
