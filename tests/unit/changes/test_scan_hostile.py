# SPDX-License-Identifier: Apache-2.0
"""Trees made to mislead, stall or exhaust a scan: it stays exact, says what it could not see, and leaves no trace."""

import os
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.unit.changes.trees import WHITEOUT, Dir, Fifo, File, Opaque, Stack, Symlink, build, told
from unspill.changes import scan as scan_module
from unspill.changes import walk
from unspill.changes.scan import scan
from unspill.layers import trees as layer_modes
from unspill.model.change import Change, ChangeSet

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
    return [(change.path, change.entry.mode) for change in changes]


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
