# SPDX-License-Identifier: Apache-2.0
"""The tables of names: no name twice, the strictest row wins, disguises are seen through, long lists are gathered."""

from collections import Counter
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.policy.git import HOOKS, homes_of, is_object, place_of
from unspill.policy.held import FLAGGED, HELD, INDEX, PathNames, gather, package_top
from unspill.policy.paths import alias_of, fold

ROWS = (*HELD, *FLAGGED)
NAMES = st.binary(min_size=1, max_size=12).filter(lambda name: not {0, 47} & set(name))


@pytest.mark.parametrize("field", ["files", "directories", "patterns", "suffixes", "stems", "endings"])
def test_no_name_is_in_two_rows(field: str) -> None:
    counted = Counter(name for row in ROWS for name in getattr(row, field))
    assert [name for name, times in counted.items() if times > 1] == []


def test_names_of_rows_are_spelled_as_paths_are_compared() -> None:
    for row in ROWS:
        for name in (*row.files, *row.directories, *row.patterns, *row.suffixes, *row.stems, *row.endings):
            assert INDEX.fold(name) == name


def test_every_held_name_says_where_it_comes_from_and_when_it_was_tried() -> None:
    for row in HELD:
        fields: tuple[str, ...] = PathNames.__match_args__
        for field in fields:
            assert getattr(row, field) == tuple(name for origin in row.origins for name in getattr(origin, field))
        for origin in row.origins:
            assert origin.tool
            assert origin.source
            assert origin.tried in ("", "in every test run") or date.fromisoformat(origin.tried) <= date.today()


def test_every_row_has_the_verdict_of_its_table() -> None:
    assert {row.verdict for row in HELD} == {"held"}
    assert {row.verdict for row in FLAGGED} == {"flagged"}
    assert {row.deleted for row in FLAGGED} == {"ordinary"}


@pytest.mark.parametrize(
    ("path", "verdict"),
    [
        (b".envrc", "held"),
        (b".envrc/x", None),
        (b"bin/.envrc", "held"),
        (b"bin/x", "flagged"),
        (b".github/hooks/x", "held"),
        (b"x/.github/workflows/y", "flagged"),
        (b".github/x", None),
        (b"workflows/y", None),
        (b".config/mise/config.toml", "held"),
        (b"mise/config.toml", "held"),
        (b"mise/config.ci.toml", "held"),
        (b"mise/conf.d/x.toml", "held"),
        (b"mise/readme.md", None),
        (b"mise.ci.local.toml", "held"),
        (b"deep/.mise.ci.toml", "held"),
        (b".config/mise.ci.toml", "held"),
        (b".miserc.toml", "held"),
        (b"mise..toml", None),
        (b"my-mise.ci.toml", None),
        (b"mise.lock", "flagged"),
        (b"makefile", "flagged"),
        (b"makefile.am", "flagged"),
        (b"my-makefile", None),
        (b"x.pth", "flagged"),
        (b"pth", None),
        (b"a.code-workspace", "held"),
        (b"vite.config.ts", "flagged"),
        (b"config.ts", None),
        (b".vscode/extensions.json", None),
        (b".vscode", "held"),
        (b"src/main.py", None),
    ],
)
def test_a_path_finds_the_strictest_row(path: bytes, verdict: str | None) -> None:
    row = INDEX.find(path.split(b"/"))
    assert (row and row.verdict) == verdict


@given(st.lists(NAMES, min_size=1, max_size=5).map(b"/".join))
def test_folding_keeps_the_number_of_components_and_is_final(path: bytes) -> None:
    once = INDEX.fold(path)
    assert once.count(b"/") == path.count(b"/")
    assert all(once.split(b"/"))
    assert INDEX.fold(path.upper() if path.isascii() else path) == once
    assert INDEX.fold(once) == once


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        (b"plain.txt", b"plain.txt"),
        (b"README", b"readme"),
        ("É".encode(), "é".encode()),
        ("E\u0301".encode(), "é".encode()),
        (".g\u200bit".encode(), b".git"),
        (".gi\ufe0ft".encode(), b".git"),
        ("\uff0e\uff47\uff49\uff54".encode(), b".git"),
        (".\u212aube".encode(), b".kube"),
        (b"git~1", b".git"),
        (b"GITMOD~2", b".gitmodules"),
        (b"other~1", b"other~1"),
        (b"git~x", b"git~x"),
        (b".git ", b".git"),
        (b".git...", b".git"),
        (b".git:stream", b".git"),
        (b"..", b".."),
        ("a\u2100b".encode(), b"aa_cb"),
        (b"\xff", b"\xff"),
    ],
)
def test_a_disguise_is_the_name_it_stands_for(name: bytes, folded: bytes) -> None:
    assert INDEX.fold(name) == folded


def test_aliases_are_those_of_eight_letters() -> None:
    assert [alias_of(name) for name in (b".git", b".gitmodules", b".mcp.json", b"mise.local.toml")] == [
        "git", "gitmod", "mcp", "miselo",
    ]  # fmt: skip
    assert fold(b"misel~1", {}) == b"misel~1"


@pytest.mark.parametrize(
    ("path", "count"),
    [
        (b"node_modules/x/y", 1),
        (b"a/.venv/lib/site-packages/z", 2),
        (b"src/x", 0),
        (b"node_modules", 1),
        (b"node_modules_x/y", 0),
    ],
)
def test_the_outermost_tree_of_packages_is_found(path: bytes, count: int) -> None:
    assert package_top(path.split(b"/")) == count


def test_twenty_lines_stay_and_twenty_one_become_one() -> None:
    twenty = [(b"a/%d" % number, "why") for number in range(20)]
    assert gather(twenty) == tuple(twenty)
    assert gather([*twenty, (b"a/x", "why"), (b"b/x", "why"), (b"a/y", "else")]) == (
        (b"a", "21 files: why"),
        (b"b/x", "why"),
        (b"a/y", "else"),
    )


@given(st.lists(st.sampled_from(b"objects 01 ab pack info config hooks head refs x".split()), min_size=1, max_size=5))
def test_nothing_that_steers_git_passes_for_an_object(rest: list[bytes]) -> None:
    if is_object([b"objects", *rest, b"x"]):
        assert rest[-1] not in (b"config", b"hooks")
    if len(rest) > 1 and rest[0] == b"objects" and rest[-1] in (b"config", b"head"):
        assert place_of(rest) == "unknown"


@pytest.mark.parametrize(
    ("path", "ends"),
    [
        (b"a/config", {1}),
        (b"config", {0}),
        (b"a/hooks/x", {1}),
        (b"hooks/info/x", {0, 1}),
        (b"a/b", set()),
        (b".git/modules/a/b/c", {3, 4}),
        (b".git/refs/x/head", {3}),
    ],
)
def test_the_directories_that_would_make_a_path_steer_git_are_named(path: bytes, ends: set[int]) -> None:
    assert homes_of(path.split(b"/")) == ends


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_is_a_hook(name: bytes) -> None:
    assert place_of([b"hooks", name]) == "hook"
    assert place_of([b"hooks", name + b".sample"]) == "ordinary"
