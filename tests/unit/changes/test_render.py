# SPDX-License-Identifier: Apache-2.0
"""Changes in a few lines, and as values for JSON."""

import copy
import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.changes.trees import STAMP, WHITEOUT, Dir, Fifo, File, Opaque, Stack, Symlink, Tree, build
from unspill.changes.render import SCHEMA, applied_part, count_changes, from_plain, summary_lines, to_plain
from unspill.changes.scan import join, scan
from unspill.errors import UsageError
from unspill.model.change import Change, ChangeSet, Identity, RootChanges
from unspill.model.operation import Operation, OperationId, Skipped

LIVE: Tree = {
    "README": File(),
    "bin/tool": File(),
    "gone/a": File(),
    "kept": File(),
    "link": Symlink(b"README"),
    "old": File(),
    "touched": File(),
}
LAYER: Tree = {
    "README": File(b"new"),
    "bin/tool": File(mode=0o755),
    "gone": WHITEOUT,
    "link": Symlink(b"/etc/passwd"),
    "new file": File(),
    "old": Opaque(),
    "old/x": File(),
    "pipe": Fifo(),
    "touched": File(mtime_ns=STAMP + 1),
}


def test_a_summary_has_counts_and_a_line_for_each_change(stack: Stack) -> None:
    assert summary_lines(stack.scan(LIVE, LAYER)) == [
        "3 added, 2 modified, 1 deleted, 1 replaced, 1 with changed metadata",
        "  M README",
        "  m bin/tool  [mode 644 to 755]",
        "  D gone/",
        "  M link -> /etc/passwd  [points outside the project]",
        '  A "new file"',
        "  T old/  [was a file, is a directory]",
        "  A old/x",
        "  A pipe  [special file]",
    ]


def test_a_mere_touch_is_neither_counted_nor_shown(stack: Stack) -> None:
    changes = stack.scan({"a": File()}, {"a": File(mtime_ns=STAMP + 1)})
    assert len(changes) == 1
    assert count_changes(changes) == ""
    assert summary_lines(changes) == []


def test_without_a_limit_in_the_way_everything_is_listed_in_order(stack: Stack) -> None:
    changes = stack.scan({}, {f"{n:02}": File() for n in range(9)})
    assert summary_lines(changes, limit=9)[1:] == [f"  A {n:02}" for n in range(9)]


def test_beyond_the_limit_the_rest_is_counted_and_what_leads_out_comes_first(stack: Stack) -> None:
    layer: Tree = {**{f"{n:02}": File() for n in range(9)}, "z": Symlink(b"/")}
    assert summary_lines(stack.scan({}, layer), limit=3) == [
        "10 added",
        "  A z -> /  [points outside the project]",
        "  A 00",
        "  A 01",
        "  ... and 7 more",
    ]


def test_beyond_the_limit_an_added_directory_stands_for_what_is_in_it(stack: Stack) -> None:
    layer: Tree = {**{f"build/{n}": File() for n in range(9)}, "build/s/l": Symlink(b"/"), "x": File()}
    assert summary_lines(stack.scan({}, layer), limit=5) == [
        "13 added",
        "  A build/ and 11 in it",
        "  A build/s/l -> /  [points outside the project]",
        "  A x",
    ]


def test_a_renamed_file_is_one_line(stack: Stack) -> None:
    changes = stack.scan({"a": File(), "b": File()}, {"a": WHITEOUT, "b": WHITEOUT, "c": File()})
    assert summary_lines(changes, renames={b"c": b"a"})[1:] == ["  D b", "  R a => c"]


def test_what_is_remarkable_is_shown_also_where_git_keeps_its_own(stack: Stack) -> None:
    live: Tree = {".git/HEAD": File(), ".git/refs/x": File(), ".git/refs/y": File()}
    layer: Tree = {
        ".git/AUTO_MERGE": File(),
        ".git/HEAD": File(b"new"),
        ".git/hooks/update.sample": File(mode=0o755),
        ".git/refs/tools/run": File(mode=0o755),
        ".git/refs/x": File(mode=0o666),
        ".git/refs/y": Symlink(b"/etc/passwd"),
    }
    assert summary_lines(stack.scan(live, layer), fold_git=True)[1:] == [
        "  A .git/hooks/",
        "  A .git/refs/tools/run",
        "  m .git/refs/x  [mode 644 to 666]",
        "  T .git/refs/y -> /etc/passwd  [points outside the project; was a file, is a symlink]",
        "  . .git/: 4 internal git files",
    ]


def test_what_is_in_a_new_directory_that_was_left_alone_was_not_applied(stack: Stack) -> None:
    layer: Tree = {"clone/.git/HEAD": File(), "clone/file": File(), "kept/a": File(b"new")}
    changes = stack.scan({"kept/a": File()}, layer)
    names = [Skipped(root=0, path=path, why="refused", reason="because") for path in (b"clone/.git", b"kept")]
    operation = Operation(
        id=OperationId("0" * 16), number=1, kind="apply", sandbox="s", project=changes.roots[0].root,
        roots=(changes.roots[0].root,), at_ns=0, asked_by="person", left=tuple(names),
    )  # fmt: skip
    assert [change.path for change in applied_part(changes, operation)] == [b"clone", b"clone/file", b"kept/a"]


def test_findings_are_shown_and_bounded(stack: Stack) -> None:
    empty = ChangeSet(roots=(), findings=("one", "two", "three"))
    assert summary_lines(empty, limit=2) == ["  ! one", "  ! two", "  ! and 1 more findings"]


def test_several_roots_are_named(stack: Stack) -> None:
    parts = []
    for name in ("one", "two", "three"):
        layer: Tree = {} if name == "two" else {"a": File()}
        live = build(stack.base / name, {})
        parts.append(scan([build(stack.base / f"{name}-layer", layer)], [], live))
    assert summary_lines(join(parts)) == [
        "2 added",
        f"in {stack.base}/one:",
        "  A a",
        f"in {stack.base}/three:",
        "  A a",
    ]


def test_remarkable_things_are_said(stack: Stack) -> None:
    live = stack.live({"one": File(), "secret": File(mode=0), "d": Dir()})
    os.link(live + b"/one", live + b"/two")
    layer = build(
        stack.base / "layer",
        {
            "one": File(b"new"),
            "secret": File(mode=0),
            "suid": File(mode=0o4755),
            "p\u0430y": File(),
            "d": Dir(attributes={"user.note": b"1"}),
        },
    )
    assert summary_lines(scan([layer], [], live))[1:] == [
        "  m d/  [attributes]",
        "  M one  [was a hard link, now a separate file]",
        r'  A "p\u{430}y"  [mixed scripts in the name]',
        "  M secret  [not readable]",
        "  A suid  [mode 4755]",
        "  ! secret: can't be compared: not readable",
    ]


def test_colour_is_only_there_when_asked_for(stack: Stack) -> None:
    changes = stack.scan(LIVE, LAYER)
    assert not any("\033" in line for line in summary_lines(changes))
    coloured = summary_lines(changes, colour=True)
    assert all("\033" in line for line in coloured[1:])


@pytest.mark.parametrize("colour", [False, True])
@given(names=st.lists(st.binary(min_size=1, max_size=30), max_size=5), target=st.binary(min_size=1))
def test_no_name_gets_anything_unprintable_through(names: list[bytes], target: bytes, colour: bool) -> None:
    identity = Identity(kind="symlink", mode=0o777, inode=1, size=1, ctime_ns=1)
    changes = tuple(Change(path=name, kind="added", entry=identity, target=target, leads_out=True) for name in names)
    for line in summary_lines(ChangeSet(roots=(RootChanges(root=b"/p", changes=changes),)), colour=colour):
        assert line.replace("\033[32m", "").replace("\033[0m", "").isprintable()


NAMES = st.binary(min_size=1, max_size=12).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(b"/".join)
TEXTS = st.binary(max_size=12).filter(lambda text: b"\0" not in text)
KINDS = st.sampled_from(["file", "dir", "symlink", "special"])
NUMBERS = st.integers(0, 1 << 63)
IDENTITIES = st.builds(Identity, kind=KINDS, mode=NUMBERS, inode=NUMBERS, size=NUMBERS, ctime_ns=NUMBERS)
CHANGES = st.builds(
    Change,
    path=PATHS | st.just(b"."),
    kind=st.sampled_from(["added", "modified", "deleted", "replaced", "metadata"]),
    entry=st.none() | IDENTITIES,
    base_kind=st.none() | KINDS,
    base_size=NUMBERS,
    base_mode=NUMBERS,
    aspects=st.lists(st.sampled_from(["content", "mode", "mtime", "xattrs", "target"])).map(tuple),
    target=st.none() | TEXTS,
    base_target=st.none() | TEXTS,
    leads_out=st.booleans(),
    broke_link=st.booleans(),
    unreadable=st.booleans(),
    layer=st.none() | TEXTS,
)
SETS = st.builds(
    ChangeSet,
    roots=st.lists(
        st.builds(RootChanges, root=PATHS, changes=st.lists(CHANGES, max_size=4).map(tuple)), max_size=3
    ).map(tuple),
    findings=st.lists(st.text(), max_size=2).map(tuple),
)


@given(SETS)
def test_any_change_set_comes_back_as_it_was(changes: ChangeSet) -> None:
    assert from_plain(json.loads(json.dumps(to_plain(changes)))) == changes


@given(SETS)
def test_what_is_to_be_read_of_a_name_is_harmless(changes: ChangeSet) -> None:
    for root in to_plain(changes)["roots"]:
        assert root["root"].isprintable()
        for change in root["changes"]:
            assert change["path"].isprintable()


def test_the_form_of_a_scan_has_names_twice_and_no_defaults(stack: Stack) -> None:
    changes = stack.scan({"gone": File(b"old")}, {b"\xff": Symlink(b"/etc"), "gone": WHITEOUT})
    [root] = to_plain(changes)["roots"]
    [gone, link] = root["changes"]
    assert gone["path_b64"] == "Z29uZQ=="
    assert {"path", "kind", "base_kind", "base_size"} < set(gone)
    assert not {"entry", "target", "leads_out", "aspects"} & set(gone)
    assert (link["path"], link["target"], link["leads_out"]) == ('"\\xff"', "/etc", True)
    assert from_plain(json.loads(json.dumps(to_plain(changes)))) == changes


GOOD = to_plain(
    ChangeSet(
        roots=(
            RootChanges(
                root=b"/p",
                changes=(
                    Change(
                        path=b"a/b",
                        kind="added",
                        entry=Identity(kind="file", mode=0o644, inode=1, size=2, ctime_ns=3),
                        layer=b"/l",
                    ),
                ),
            ),
        ),
    )
)


def damaged(path: str, value: Any) -> Any:
    """Return the good form with one field set, or taken away where `value` is Ellipsis."""
    plain: Any = copy.deepcopy(GOOD)
    place = plain
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in way:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return plain


CHANGE = "roots.0.changes.0"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("schema", SCHEMA + 1),
        ("schema", ...),
        ("roots", ...),
        ("roots", 5),
        ("findings", [5]),
        ("roots.0.root_b64", ...),
        (f"{CHANGE}.kind", "evil"),
        (f"{CHANGE}.kind", ["added"]),
        (f"{CHANGE}.path_b64", "not base64!"),
        (f"{CHANGE}.path_b64", "Li4="),
        (f"{CHANGE}.path_b64", "YS8uLi8uLi94"),
        (f"{CHANGE}.path_b64", "L2V0Yy9wYXNzd2Q="),
        (f"{CHANGE}.path_b64", "YS8vYg=="),
        (f"{CHANGE}.path_b64", "YQBi"),
        (f"{CHANGE}.path_b64", ""),
        (f"{CHANGE}.entry.kind", "door"),
        (f"{CHANGE}.entry.mode", "0644"),
        (f"{CHANGE}.entry.mode", True),
        (f"{CHANGE}.entry.size", ...),
        (f"{CHANGE}.aspects", ["colour"]),
        (f"{CHANGE}.leads_out", 1),
    ],
)
def test_a_form_that_is_not_ours_is_refused(path: str, value: Any) -> None:
    with pytest.raises(UsageError, match="not an unspill change set"):
        from_plain(damaged(path, value))


@pytest.mark.parametrize("plain", [None, 5, "text", [], {}])
def test_something_else_is_refused(plain: object) -> None:
    with pytest.raises(UsageError):
        from_plain(plain)


def test_the_undamaged_form_is_accepted() -> None:
    assert from_plain(copy.deepcopy(GOOD))
