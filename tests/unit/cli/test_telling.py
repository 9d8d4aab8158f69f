# SPDX-License-Identifier: Apache-2.0
"""What a person is told about operations: proposed commands can be pasted, and nothing raw reaches the screen."""

import os
from pathlib import Path

import pytest
from hypothesis import strategies as st

from unspill.cli.telling import (
    LEFT,
    count_text,
    exit_code_of,
    flagged_lines,
    left_lines,
    recovered_lines,
    seen_from_here,
    size_text,
)
from unspill.model.operation import Operation, OperationId, Skipped

PROJECT = b"/home/ann/project"
NAMES = st.binary(min_size=1, max_size=20).filter(lambda name: b"\0" not in name)


def operation(*left: Skipped, **values: object) -> Operation:
    base = Operation(
        id=OperationId("0" * 16),
        number=5,
        kind="apply",
        sandbox="s",
        project=PROJECT,
        roots=(b"/home/ann/library", PROJECT),
        at_ns=0,
        asked_by="person",
        left=left,
    )
    return base.replace(**values)


def left(path: bytes, why: str = "conflict", reason: str = "because", root: int = 1) -> Skipped:
    return Skipped(root=root, path=path, why=why, reason=reason)  # type: ignore[arg-type]


def test_a_path_is_named_as_seen_from_where_the_person_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = os.fsencode(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert seen_from_here(top + b"/a/b") == b"a/b"
    assert seen_from_here(top + b"/-a") == b"./-a"
    assert seen_from_here(b"/elsewhere") == b"/elsewhere"


def test_each_reason_has_what_to_type() -> None:
    lines = left_lines(
        operation(
            left(b".envrc", "held", "direnv runs it").replace(token="7f3a9c"),
            left(b"large", "held", "direnv runs it"),
            left(b"a", "conflict"),
            left(b"b", "earlier"),
            left(b"c", "refused"),
            left(b"d", "stale"),
            left(b"e", "conflict", root=0),
        )
    )
    assert lines == [
        "  ! .envrc: held: direnv runs it",
        "      unspill apply --include /home/ann/project/.envrc@7f3a9c",
        "  ! large: held: direnv runs it",
        "      unspill apply --include /home/ann/project/large",
        "  ! a: conflict: because",
        "      unspill diff /home/ann/project/a, then unspill apply --overwrite /home/ann/project/a or unspill discard "
        "/home/ann/project/a",
        "  ! b: kept back: because",
        "      unspill apply, which applies all that is held",
        "  ! c: refused: because",
        "      unspill discard /home/ann/project/c",
        "  ! d: not what was reviewed: because",
        "      unspill diff /home/ann/project/d, then unspill apply /home/ann/project/d",
        "  ! /home/ann/library/e: conflict: because",
        "      unspill diff /home/ann/library/e, then unspill apply --overwrite /home/ann/library/e or unspill discard "
        "/home/ann/library/e",
        "  To drop what is held: unspill discard PATH",
    ]


def test_what_an_undo_left_is_found_in_the_backup_of_what_it_takes_back() -> None:
    found = left_lines(operation(left(b"a"), left(b"b", "refused"), kind="undo"), of=3)
    path = "/home/ann/project/a"
    assert found[1] == f"      unspill diff --op op3 {path}, then unspill restore {path} --from op3"
    assert found[2:] == ["  ! b: refused: because"]


def test_a_directory_stands_for_what_was_left_in_it() -> None:
    lines = left_lines(operation(*(left(b"d" + rest, "held") for rest in (b"", b"/a", b"/b/c")), left(b"e", "held")))
    assert [line for line in lines if "!" in line] == ["  ! d and 2 in it: held: because", "  ! e: held: because"]


def test_there_is_an_end_to_the_list() -> None:
    lines = left_lines(operation(*(left(b"%d" % number) for number in range(100))))
    assert len(lines) == 41
    assert lines[-1] == "  ! and 80 more: see unspill changes"
    flags = flagged_lines([(b"%d" % number, "it runs") for number in range(30)])
    assert flags[0] == "  ! 0: look at it first: it runs"
    assert flags[-1] == "  ! and 10 more to look at first"
    assert len(flags) == 21


HOSTILE = b"\x1b]0;x\x07\xe2\x80\xae\n"


def test_nothing_raw_reaches_the_screen() -> None:
    text = HOSTILE.decode()
    told = [
        *left_lines(operation(left(HOSTILE, reason=text))),
        *flagged_lines([(HOSTILE, text)]),
        *recovered_lines(operation(left(HOSTILE), ending="rolled back", notes=(text,))),
    ]
    assert all(line.isprintable() for line in told)


def test_the_exit_code_says_whether_something_was_left() -> None:
    assert exit_code_of(operation()) == 0
    assert exit_code_of(operation(left(b"a"))) == LEFT == 6


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({"ending": "rolled back"}, ["an interrupted apply (op 5) was taken back"]),
        ({"ending": "done", "kind": "undo"}, ["an interrupted undo (op 5) was finished"]),
        (
            {"ending": "rolled back", "left": (left(b"a"),)},
            ["an interrupted apply (op 5) was taken back, except for what was changed since: a"],
        ),
        (
            {"ending": "rolled back", "notes": ("a: you edited it",)},
            ["an interrupted apply (op 5) was taken back", "  a: you edited it"],
        ),
    ],
)
def test_an_interruption_is_told_with_what_was_kept(values: dict[str, object], lines: list[str]) -> None:
    assert recovered_lines(operation(**values)) == lines


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (5 << 30, "5.0 GiB"),
        (9 << 50, "9216.0 TiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size_text(count) == text


def test_counts() -> None:
    assert [count_text(number, "path") for number in (0, 1, 2)] == ["0 paths", "1 path", "2 paths"]
