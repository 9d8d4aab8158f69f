# SPDX-License-Identifier: Apache-2.0
"""Which changes a selection means, by paths and patterns."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.changes.trees import File, Stack, Tree
from unspill.changes.scan import join
from unspill.changes.select import Glob, rest, select, without
from unspill.errors import UsageError
from unspill.model.change import Change, ChangeSet, Hunks, Identity, RootChanges, Selection

FILE = Identity(kind="file", mode=0o644, inode=1, size=1, ctime_ns=1)
DIR = FILE.replace(kind="dir", mode=0o755)


def changed(text: str) -> Change:
    """Return a change from `kind path` where a path with a slash at its end is a directory's."""
    kind, path = text.split(" ", 1)
    name = path.rstrip("/").encode()
    is_dir = path.endswith("/")
    match kind:
        case "deleted":
            return Change(path=name, kind="deleted", base_kind="dir" if is_dir else "file")
        case "added":
            return Change(path=name, kind="added", entry=DIR if is_dir else FILE)
        case "replaced":
            return Change(path=name, kind="replaced", entry=DIR if is_dir else FILE, base_kind="file")
        case "gave-way":
            return Change(path=name, kind="replaced", entry=FILE, base_kind="dir")
        case "metadata":
            both = DIR if is_dir else FILE
            return Change(path=name, kind="metadata", entry=both, base_kind=both.kind, aspects=("mode",))
    return Change(path=name, kind="modified", entry=FILE, base_kind="file", aspects=("content",))


def change_set(*texts: str, root: bytes = b"/project") -> ChangeSet:
    return ChangeSet(roots=(RootChanges(root=root, changes=tuple(map(changed, texts))),), findings=("one",))


EVERYTHING = change_set(
    "metadata .",
    "modified a.py",
    "added new/",
    "added new/deep/",
    "added new/deep/x",
    "added new/y",
    "deleted old/",
    "metadata src/",
    "modified src/a.py",
    "replaced src/b/",
    "added src/b/c",
    "gave-way tests",
)


def paths(changes: ChangeSet) -> list[str]:
    return [change.path.decode() for change in changes]


ALL = paths(EVERYTHING)

BY_PATH: dict[str, tuple[str, list[str]]] = {
    "a file": ("a.py", ["a.py"]),
    "a directory means all at or below it": ("src", ["src", "src/a.py", "src/b", "src/b/c"]),
    "a slash at the end": ("src/b/", ["src/b", "src/b/c"]),
    "a dot in front": ("./src/./a.py", ["src/a.py"]),
    "a new directory comes along": ("new/deep/x", ["new", "new/deep", "new/deep/x"]),
    "a file that gives way to a directory comes along": ("src/b/c", ["src/b", "src/b/c"]),
    "a deleted directory": ("old", ["old"]),
    "a directory that gave way": ("tests", ["tests"]),
    "a dot means everything": (".", ALL),
    "an absolute path": ("/project/src/a.py", ["src/a.py"]),
    "the root as an absolute path": ("/project/", ALL),
}


@pytest.mark.parametrize(("path", "wanted"), BY_PATH.values(), ids=BY_PATH)
def test_a_path_chooses(path: str, wanted: list[str]) -> None:
    assert paths(select(EVERYTHING, Selection(paths=(path.encode(),)))) == wanted


BY_GLOB = {
    "names in one directory": ("*.py", ["a.py"]),
    "names in all directories": ("**/*.py", ["a.py", "src/a.py"]),
    "what is below a directory": ("new/**", ["new", "new/deep", "new/deep/x", "new/y"]),
    "a directory alone": ("ol?", ["old"]),
    "an absolute one": ("/project/src/*.py", ["src/a.py"]),
}


@pytest.mark.parametrize(("pattern", "wanted"), BY_GLOB.values(), ids=BY_GLOB)
def test_a_glob_chooses_the_very_paths_that_it_matches(pattern: str, wanted: list[str]) -> None:
    assert paths(select(EVERYTHING, Selection(globs=(pattern.encode(),)))) == wanted


def test_an_empty_selection_chooses_everything() -> None:
    assert select(EVERYTHING, Selection()) is EVERYTHING


def test_what_is_chosen_keeps_the_order_the_roots_and_the_findings() -> None:
    chosen = select(EVERYTHING, Selection(paths=(b"tests", b"a.py"), globs=(b"old",)))
    assert paths(chosen) == ["a.py", "old", "tests"]
    assert (chosen.roots[0].root, chosen.findings) == (b"/project", ("one",))


def test_a_path_and_one_below_it_both_count_as_found() -> None:
    assert paths(select(EVERYTHING, Selection(paths=(b"src", b"src/b", b"src/b/c")))) == [
        "src", "src/a.py", "src/b", "src/b/c",
    ]  # fmt: skip


REFUSED = {
    "a path without a change": (Selection(paths=(b"a.py", b"b.py")), "b.py has no changes"),
    "a path that only begins like one": (Selection(paths=(b"sr",)), "sr has no changes"),
    "a glob without a match": (Selection(globs=(b"*.c",)), r"no change matches *.c"),
    "a path below a deleted directory": (
        Selection(paths=(b"old/x/y",)),
        "old/x/y can't be chosen alone: old was deleted as a whole",
    ),
    "a path below a directory that gave way": (Selection(paths=(b"tests/a",)), "tests was replaced as a whole"),
    "a path that climbs": (Selection(paths=(b"src/../a.py",)), "src/../a.py: a path must not contain `..`"),
    "an empty path": (Selection(paths=(b"",)), "path is empty"),
    "an absolute path elsewhere": (Selection(paths=(b"/projects/a.py",)), "/projects/a.py has no changes"),
    "hunks of an added file": (Selection(hunks=(Hunks(path=b"new/y", numbers=(1,)),)), "new/y has no hunks"),
    "hunks of nothing": (Selection(hunks=(Hunks(path=b"b", numbers=(1,)),)), "b has no changes"),
    "hunks below a deleted directory": (
        Selection(hunks=(Hunks(path=b"old/x", numbers=(1,)),)),
        "can't be chosen alone",
    ),
}


@pytest.mark.parametrize(("selection", "message"), REFUSED.values(), ids=REFUSED)
def test_what_chooses_nothing_is_refused_with_a_remedy(selection: Selection, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as refused:
        select(EVERYTHING, selection)
    assert refused.value.remedy


def test_of_a_set_that_was_cut_nothing_can_be_chosen() -> None:
    for selection in (Selection(), Selection(paths=(b"a.py",))):
        with pytest.raises(UsageError, match="more changes than unspill can list"):
            select(EVERYTHING.replace(is_cut=True), selection)


def test_a_scan_says_when_it_did_not_list_everything(stack: Stack) -> None:
    layer: Tree = {"a/b/c": File(), "d": File()}
    assert not stack.scan({}, layer).is_cut
    assert stack.scan({}, layer, max_entries=2).is_cut
    assert stack.scan({}, layer, max_depth=1).is_cut
    assert join([stack.scan({}, layer, max_depth=1), stack.scan({}, {})]).is_cut


def test_a_relative_path_counts_from_every_root_and_an_absolute_one_from_its_own() -> None:
    both = ChangeSet(roots=(*change_set("modified a").roots, *change_set("modified a", root=b"/other").roots))
    assert [len(part.changes) for part in select(both, Selection(paths=(b"a",))).roots] == [1, 1]
    assert [len(part.changes) for part in select(both, Selection(paths=(b"/other/a",))).roots] == [0, 1]


def test_what_is_left_is_everything_else() -> None:
    chosen = select(EVERYTHING, Selection(paths=(b"src", b"new")))
    assert paths(rest(EVERYTHING, chosen)) == [".", "a.py", "old", "tests"]


@pytest.mark.parametrize("path", [b"a.py", b"./a.py", b"/project/a.py"])
def test_a_file_of_which_hunks_are_chosen_is_chosen_and_left(path: bytes) -> None:
    selection = Selection(hunks=(Hunks(path=path, numbers=(1,)),))
    chosen = select(EVERYTHING, selection)
    assert paths(chosen) == ["a.py"]
    assert paths(rest(EVERYTHING, chosen, selection.hunks)) == ALL


def test_a_new_directory_stays_while_something_in_it_does() -> None:
    dropped = select(EVERYTHING, Selection(globs=(b"new", b"new/deep", b"new/y")), parents=False)
    kept = paths(without(EVERYTHING, dropped))
    assert [path for path in ALL if path not in kept] == ["new/y"]


def test_a_new_directory_goes_with_the_last_that_is_in_it() -> None:
    dropped = select(EVERYTHING, Selection(paths=(b"new",)), parents=False)
    assert not [path for path in paths(without(EVERYTHING, dropped)) if path.startswith("new")]


def test_dropping_a_file_drops_no_directory_above_it() -> None:
    dropped = select(EVERYTHING, Selection(paths=(b"new/deep/x",)), parents=False)
    assert paths(dropped) == ["new/deep/x"]


@given(chosen=st.sets(st.sampled_from(ALL)))
def test_what_is_chosen_and_what_is_left_make_everything(chosen: set[str]) -> None:
    selection = Selection(globs=tuple(path.encode() for path in chosen if path != "."))
    picked = select(EVERYTHING, selection)
    left = rest(EVERYTHING, picked)
    if not selection.is_everything:
        assert sorted(paths(picked) + paths(left)) == sorted(ALL)
        made = {change.path for change in EVERYTHING if change.kind in ("added", "replaced")}
        for path in paths(picked):
            above = path.rpartition("/")[0]
            assert above.encode() not in made or above in paths(picked)


CASES: list[tuple[str, list[str], list[str]]] = [
    ("a.py", ["a.py"], ["b.py", "d/a.py", "a.pyc"]),
    ("*.py", ["a.py", ".py", ".a.py"], ["d/a.py", "a.pyc"]),
    ("*", ["a", ".hidden", "line\nbreak"], ["a/b"]),
    ("d/*", ["d/a"], ["d", "d/a/b"]),
    ("**", ["a", "a/b/c"], []),
    ("d/**", ["d/a", "d/a/b"], ["d", "da"]),
    ("**/*.py", ["a.py", "d/a.py", "d/e/a.py"], ["a.pyc"]),
    ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "a/xb", "x/a/b"]),
    ("**/x/**", ["x/a", "a/x/b/c"], ["x", "ax/b"]),
    ("**/**/x", ["x", "a/x", "a/b/x"], ["ax"]),
    ("a**b", ["ab", "axb", "a/x/b"], ["a/x/bc"]),
    ("a?c", ["abc", "aüc", "a\udcffc"], ["ac", "abbc", "a/c"]),
    ("[a-c]", ["a", "b", "c"], ["d", "-", ""]),
    ("[!a-c]", ["d", "ü"], ["a", "/", ""]),
    ("[^a]", ["b"], ["a"]),
    ("[]a]", ["]", "a"], ["b"]),
    ("[!]a]", ["b"], ["]", "a"]),
    ("[a-]", ["a", "-"], ["b"]),
    ("[*?]", ["*", "?"], ["a"]),
    ("[ab", ["[ab"], ["a"]),
    ("[]", ["[]"], ["a"]),
]


@pytest.mark.parametrize(("pattern", "matched", "others"), CASES, ids=[case[0] for case in CASES])
def test_a_pattern_matches_these_paths_and_not_those(pattern: str, matched: list[str], others: list[str]) -> None:
    glob = Glob(encoded(pattern))
    assert [path for path in matched if not glob.matches(encoded(path))] == []
    assert [path for path in others if glob.matches(encoded(path))] == []


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def oracle(pattern: str, path: str, *, starts_name: bool = True) -> bool:
    """Match by trying everything, which takes time without bounds but is easily seen to be right."""
    if not pattern:
        return not path
    if pattern.startswith("**"):
        rest = pattern.lstrip("*")
        if starts_name and rest.startswith("/") and oracle(rest[1:], path):
            return True
        return any(oracle(rest, path[at:], starts_name=False) for at in range(len(path) + 1))
    if pattern[0] == "*":
        name, _, _ = path.partition("/")
        return any(oracle(pattern[1:], path[at:], starts_name=False) for at in range(len(name) + 1))
    if not path or (path[0] == "/") != (pattern[0] == "/"):
        return False
    return pattern[0] in ("?", path[0]) and oracle(pattern[1:], path[1:], starts_name=pattern[0] == "/")


@settings(max_examples=500)
@given(pattern=st.text("ab/*?", max_size=10), path=st.text("ab/", max_size=8))
def test_a_pattern_matches_what_trying_everything_finds(pattern: str, path: str) -> None:
    assert Glob(pattern.encode()).matches(path.encode()) == oracle(pattern, path)


def test_no_pattern_takes_long() -> None:
    started = time.process_time()
    assert not Glob(b"*a" * 500 + b"b").matches(b"a" * 4000)
    assert not Glob(b"**/" * 500 + b"b").matches(b"a/" * 2000 + b"a")
    assert time.process_time() - started < 2
