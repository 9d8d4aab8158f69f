# SPDX-License-Identifier: Apache-2.0
"""What a model is shown: outputs cut to size, parts of long texts, and remedies in the words of its tools."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import unspill
from unspill.adapters.answers import (
    answer_error,
    clip,
    compose,
    file_advice,
    fit,
    for_user,
    level_of,
    many,
    shown_as,
    shown_of,
    size_of,
    whole_characters,
    window,
    without_paths,
)
from unspill.errors import FileError, HostError, RootRefused, SandboxUnavailable, StoreError, UnspillError, UsageError
from unspill.model.change import ChangeSet
from unspill.model.run import Exited, Output, RunId
from unspill.sandbox.result import RunResult

NUMBERS = b"".join(b"%d\n" % number for number in range(1, 101))


def kept(raw: bytes) -> Output:
    return Output(head=raw)


# The streams, at most so many lines and bytes, what is shown, and what is said of it
CASES: dict[str, tuple[tuple[Output, ...], int, int, str, str]] = {
    "lines": ((kept(NUMBERS),), 5, 1000, "1\n2\n[...]\n98\n99\n100\n", "after line 2, at …: 95 of 100 lines left out"),
    "one line too many": ((kept(b"a\nb\nc\n"),), 2, 1000, "a\n[...]\nc\n", "after line 1, at …: 1 of 3 lines left out"),
    "one line only": ((kept(NUMBERS),), 1, 1000, "[...]\n100\n", "before its end, at …: 99 of 100 lines left out"),
    "bytes of one line": ((kept(b"0123456789"),), 50, 5, "01[...]789", "in line 1, at …: 5 bytes left out"),
    "a long line between others": (
        (kept(b"a\n" + b"x" * 100 + b"\nz\n"),),
        50,
        20,
        "a\nxxxxxx[...]xxxxxxxxx\nz\n",
        "in line 2, at …: 85 bytes left out",
    ),
    "both streams": (
        (kept(NUMBERS), kept(b"no\n")),
        5,
        1000,
        "1\n2\n[...]\n99\n100\nno\n",
        "after line 2, at …: 96 of 101 lines left out",
    ),
    "a stream without its last end of line": (
        (kept(b"a"), kept(b"b\nc\nd")),
        3,
        99,
        "a\n[...]\nc\nd",
        "after line 1, at …: 1 of 4 lines left out",
    ),
    "more than was kept": (
        (Output(head=b"a\nb", tail=b"y\nz\n", left_out=1000),),
        50,
        1000,
        "a\nb[...]y\nz\n",
        "in line 2, at …: 1000 bytes left out",
    ),
    "more of both than was kept": (
        (Output(head=b"a\n", tail=b"b", left_out=10), Output(head=b"c", tail=b"\nd\n", left_out=10)),
        50,
        1000,
        "a\n[...]\nd\n",
        "after line 1, at …: 22 bytes left out",
    ),
    "a command that prints the mark": (
        (kept(b"[...] all is well [.....]\n" + b"x" * 100 + b"[....]!"),),
        50,
        50,
        "[...] all is well [.[.....]xxxxxxxxxxxxxxxxxxxxxxx[....]!",
        "in line 1, at …: 83 bytes left out",
    ),
    "only what was put between them": ((kept(b"a" * 5), kept(b"b" * 5)), 50, 10, "aaaaa\nbbbbb", ""),
    "one byte more": (
        (kept(b"a" * 5), kept(b"b" * 6)),
        50,
        10,
        "aaaa[...]\nbbbbbb",
        "in line 1, at …: 1 byte left out",
    ),
    "a gap in a character": (
        (Output(head="aé".encode()[:2], tail="éz".encode()[1:], left_out=7),),
        50,
        1000,
        "a[...]z",
        "in line 1, at …: 9 bytes left out",
    ),
    "a cut in a character": ((kept("éééééé".encode()),), 50, 7, "é[...]éé", "in line 1, at …: 6 bytes left out"),
    "not text": (
        (kept(b"\xff" * 100),),
        50,
        40,
        r"\xff" * 4 + "[...]" + r"\xff" * 6,
        "in line 1, at …: 90 bytes left out",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_beginning_and_the_end_are_shown(case: str) -> None:
    streams, lines, size, text, told = CASES[case]
    found = clip(streams, lines, size)
    assert found.text == text
    assert bool(found.left_out) is bool(told)
    assert not told or found.told() == f"the output is cut {told}".replace("…", f'"{found.mark}"')


@pytest.mark.parametrize("raw", [b"", b"a", b"a\n", b"a\nb", b"a\nb\n", "é\n".encode()])
def test_what_fits_is_shown_as_it_is(raw: bytes) -> None:
    found = clip((kept(raw),), 2, 4)
    assert (found.text, found.left_out) == (raw.decode(), 0)


OUTPUTS = st.builds(
    Output,
    head=st.lists(st.sampled_from([b"a", b"bc", b"\n", "é".encode(), b"\xff", "💧".encode()]), max_size=40).map(
        b"".join
    ),
    tail=st.lists(st.sampled_from([b"x", b"\n", "é".encode(), b"\x80"]), max_size=20).map(b"".join),
    left_out=st.sampled_from([0, 0, 1, 5000]),
)


@given(st.lists(OUTPUTS, min_size=1, max_size=2), st.integers(1, 12), st.integers(4, 80))
def test_bounds_hold_and_every_byte_is_shown_or_counted(streams: list[Output], lines: int, size: int) -> None:
    found = clip(streams, lines, size)
    assert found.head.count(b"\n") + found.tail.count(b"\n") <= lines
    assert len((shown_as(found.head) + shown_as(found.tail)).encode()) <= size + len(streams) - 1
    total = sum(stream.total for stream in streams)
    # An end of line is put between streams where the first has none; it is none of the command's bytes
    assert total <= len(found.head) + found.left_out + len(found.tail) <= total + len(streams) - 1
    assert not found.left_out or found.text.count(found.mark) == 1
    everything = b"".join(stream.kept() for stream in streams)
    if len(streams) == 1:
        assert everything.startswith(found.head)
        assert everything.endswith(found.tail)
    if not found.left_out:
        assert not any(stream.left_out for stream in streams)


def test_megabytes_are_cut_as_fast_as_they_are_counted() -> None:
    begun = time.process_time()
    counted = sum((b"\n" * (4 << 20)).count(b"\n") for _ in range(20))
    bare = time.process_time() - begun
    begun = time.process_time()
    found = clip((kept(b"\n" * (4 << 20)), kept(b"\xff" * (4 << 20))), 50, 32 * 1024)
    assert found.left_out > 8_000_000
    assert counted
    assert time.process_time() - begun < bare * 10


LINES = st.lists(st.text(st.characters(exclude_characters="\n")))


@given(LINES, st.integers(0, 30), st.integers(1, 10), st.integers(1, 60))
def test_a_window_is_the_lines_from_one_on_within_the_bounds(
    lines: list[str], offset: int, most: int, size: int
) -> None:
    found = window(lines, offset, most, size)
    shown = "\n".join(found.lines)
    assert len(found.lines) <= most
    assert len(shown.encode("utf-8", "surrogatepass")) <= size
    if found.left_out:
        assert len(found.lines) == 1
        assert lines[offset].startswith(found.lines[0])
        left_out = lines[offset][len(found.lines[0]) :].encode("utf-8", "surrogatepass")
        assert found.left_out == len(left_out)
        assert f" {many(len(left_out), 'byte')} at the end are left out" in found.notes("diff")[0]
    else:
        assert list(found.lines) == lines[offset : offset + len(found.lines)]


@given(LINES, st.integers(1, 10), st.integers(1, 60))
def test_following_the_offsets_shows_every_line(lines: list[str], most: int, size: int) -> None:
    offset: int | None = 0
    seen: list[str] = []
    while offset is not None:
        found = window(lines, offset, most, size)
        assert found.left_out or list(found.lines) == lines[offset : offset + len(found.lines)]
        seen += lines[offset : offset + len(found.lines)]
        offset = found.next_offset
    assert seen == lines


@given(st.text(), st.integers(0, 30))
def test_what_is_cut_ends_with_a_whole_character(text: str, size: int) -> None:
    raw = text.encode()
    shown = whole_characters(raw[:size])
    assert shown.decode() == raw[:size].decode("utf-8", "ignore")


def test_what_is_no_text_is_cut_anywhere() -> None:
    assert whole_characters(b"\xff\xfe\xfd\xfc\xfb") == b"\xff\xfe\xfd\xfc\xfb"
    assert whole_characters(b"\x80\x80\x80\x80") == b"\x80\x80\x80\x80"
    assert whole_characters(b"\xff and \xe2\x82") == b"\xff and "


def test_one_is_not_many() -> None:
    assert [many(count, "byte") for count in (0, 1, 2)] == ["0 bytes", "1 byte", "2 bytes"]


streams = st.builds(
    lambda head, tail, left_out: Output(head=head, tail=tail if left_out else b"", left_out=left_out),
    st.lists(st.sampled_from([b"a", b"\n", "é".encode(), b"\xff", b"line\n"])).map(b"".join),
    st.binary(max_size=4),
    st.integers(0, 9),
)


def result_of(stdout: Output, stderr: Output, lines: int = 50, size: int = 4096) -> RunResult:
    return RunResult(
        run=RunId("r"), number=1, outcome=Exited(code=0), stdout=stdout, stderr=stderr, changes=ChangeSet(roots=()),
        held=False, duration_s=0.0, shown_lines=lines, shown_bytes=size,
    )  # fmt: skip


@given(streams, streams, st.integers(1, 5), st.integers(16, 40))
def test_the_policy_bounds_each_stream_and_a_gap_is_never_closed(
    stdout: Output, stderr: Output, lines: int, size: int
) -> None:
    shown, notes = shown_of(result_of(stdout, stderr, lines, size))
    cut = []
    for name, text, stream in zip(("stdout", "stderr"), shown, (stdout, stderr), strict=True):
        whole = stream.kept().decode("utf-8", "backslashreplace")
        if stream.left_out or len(whole.encode()) > size or len(whole.removesuffix("\n").split("\n")) > lines:
            cut.append(name)
            head, tail = text.split("[...]")
            assert whole.startswith(head)
            assert whole.rstrip("\n").endswith(tail.removeprefix("\n"))
            assert text.count("\n") <= lines
        else:
            assert text == whole.rstrip("\n")
    assert [note.split()[1] for note in notes] == cut


ascii_streams = st.builds(
    lambda text, left_out: Output(head=text, tail=b"end", left_out=left_out),
    st.lists(st.sampled_from([b"a", b"\n", b"a longer line\n"]), max_size=60).map(b"".join),
    st.sampled_from([0, 0, 7]),
)


@given(
    st.lists(st.tuples(ascii_streams, ascii_streams), min_size=1, max_size=3),
    st.lists(st.text(max_size=30), max_size=2),
    st.integers(0, 1500),
)
def test_outputs_are_cut_so_that_our_words_fit(pairs: list[tuple[Output, Output]], said: list[str], most: int) -> None:
    results = [result_of(*pair) for pair in pairs]
    notes = [list(said) for _ in results]
    whole = compose(["x"] * len(results), results, notes)
    found = fit(["x"] * len(results), results, notes, most)
    outputs = [text for one in found.printed for text in (one.stdout, one.stderr)]
    assert size_of(found) <= most or not any(outputs)
    assert (found == whole) is (size_of(whole) <= most)
    for text, stream in zip(outputs, [stream for pair in pairs for stream in pair], strict=True):
        # What is cut has its mark, and the end of it is shown
        assert not text or text == stream.kept().decode().rstrip("\n") or ("[...]" in text and text.endswith("end"))


def test_the_end_of_a_long_output_is_shown_however_little_the_model_wants() -> None:
    long = Output(head=b"".join(b"%d\n" % number for number in range(10_000)) + b"FATAL\n")
    found = fit(["a", "b"], [result_of(long, Output()), result_of(Output(head=b"short\n"), Output())], [[], []], 600)
    assert size_of(found) <= 600
    assert found.printed[0].stdout.startswith("0\n1\n")
    assert found.printed[0].stdout.endswith("\nFATAL")
    assert found.printed[1].stdout == "short"
    assert "Note: stdout is cut after line" in found.words


@given(st.lists(st.integers(0, 500), max_size=6), st.integers(-10, 1000))
def test_short_ones_are_whole_and_long_ones_are_alike(sizes: list[int], room: int) -> None:
    level = level_of(sizes, room)
    used = sum(min(size, level) for size in sizes)
    assert used <= max(0, room)
    # Nothing more would fit
    assert all(size <= level for size in sizes) or used + sum(size > level for size in sizes) > max(0, room)


SOURCES = Path(unspill.__file__).parent
KINDS = [
    *("not_found", "is_directory", "not_a_directory", "not_a_file", "permission_denied", "exists", "too_large"),
    *("not_text", "changed", "not_found_in_file", "ambiguous", "failed"),
]


@pytest.mark.parametrize(
    ("remedy", "expected"),
    [
        ("", ""),
        ("Give a directory that is there.", "Give a directory that is there."),
        ("Run `unspill doctor`.", "What the user can do: Run `unspill doctor`."),
        ("Why: no. Use `--ask`, or `x=`.", "Why: no. What the user can do: Use `--ask`, or `x=`."),
        ("Set x in your own configuration.", "What the user can do: Set x in your own configuration."),
    ],
)
def test_words_of_a_command_line_are_for_the_user(remedy: str, expected: str) -> None:
    assert for_user(remedy) == expected


def test_no_remedy_of_the_library_has_words_of_a_command_line_for_a_model() -> None:
    """Every constant remedy in the sources, as it is told to a model."""
    found = 0
    for source in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if not isinstance(node, ast.keyword) or node.arg != "remedy" or not isinstance(node.value, ast.Constant):
                continue
            remedy = str(node.value.value)
            told = for_user(remedy)
            found += told != remedy
            before = told.partition("What the user can do: ")[0]
            assert "`unspill" not in before
            assert "--" not in before
    assert found > 10


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_error_has_its_advice_or_the_librarys_own(kind: str) -> None:
    error = FileError("x: no", kind=kind, remedy="Do something else.")  # type: ignore[arg-type]
    advice = file_advice(error, is_masked=False)
    assert advice.endswith(".")
    assert (advice == "Do something else.") is (kind in ("not_a_file", "failed"))
    assert ("masked" in file_advice(error, is_masked=True)) is (kind == "not_found")


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("", ""),
        ("too many open files: Too many open files", "too many open files: Too many open files"),
        ("Give a name, such as src/app.py or and/or", "Give a name, such as src/app.py or and/or"),
        ("unspill can't create a layer in /home/me/.state: No space left on device.", "No space left on device."),
        ("/home/me/.state can't be repaired: Permission denied", "Permission denied"),
        ("could not start the spawner process: [Errno 2] No such file: '/home/me/bwrap'", ""),
        ("The playground /home/me/p belongs to user 7.", ""),
        ("b'/home/me' is gone", ""),
        ("/home/me", ""),
    ],
)
def test_a_path_of_the_person_is_not_told(message: str, expected: str) -> None:
    assert without_paths(message) == expected


DOCTOR = (
    "What the user can do: Run `unspill doctor`. If it finds no problem, this is a bug in unspill: please report it."
)
ERRORS: dict[str, tuple[UnspillError, str]] = {
    "our failure": (
        SandboxUnavailable("unspill can't create a layer in /home/me/.state: No space left on device."),
        f"ERROR: the sandbox failed: No space left on device. {DOCTOR}\n",
    ),
    "a remedy": (
        SandboxUnavailable("it failed", remedy="Remove /home/me/.state."),
        f"ERROR: it failed. {DOCTOR}\n",
    ),
    "the store": (StoreError("The audit /home/me/audit can't be read."), "ERROR: the sandbox failed (store)."),
    "the project": (RootRefused("/home/me/x can't be a root: it is gone."), "ERROR: the sandbox failed: it is gone. "),
    "what a model gave": (UsageError("not a path: /a b"), "ERROR: not a path: /a b.\n"),
    "the host, when it is opened": (
        HostError("There is no bwrap at /x/bwrap."),
        "ERROR: There is no bwrap at /x/bwrap.",
    ),
    "a file of the sandbox": (FileError("/project/x: it failed", kind="failed"), "ERROR: /project/x: it failed.\n"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_where_the_sandbox_fails_no_path_is_told(case: str) -> None:
    """Control: what a model gave itself, or knows as its commands do, is named."""
    error, expected = ERRORS[case]
    answer = answer_error(error)
    assert answer.text.startswith(expected)
    assert "/home/me" not in f"{answer.text}{answer.values}"
