# SPDX-License-Identifier: Apache-2.0
"""Change sets as JSON and back, from friends and from strangers."""

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.changes.trees import WHITEOUT, File, Stack, Symlink
from unspill.changes.render import SCHEMA, from_plain, to_plain
from unspill.errors import UsageError
from unspill.model.change import Change, ChangeSet, Identity, RootChanges

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
    with pytest.raises(UsageError, match="not a change set"):
        from_plain(damaged(path, value))


@pytest.mark.parametrize("plain", [None, 5, "text", [], {}])
def test_something_else_is_refused(plain: object) -> None:
    with pytest.raises(UsageError):
        from_plain(plain)


def test_the_undamaged_form_is_accepted() -> None:
    assert from_plain(copy.deepcopy(GOOD))
