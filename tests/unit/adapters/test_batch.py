# SPDX-License-Identifier: Apache-2.0
"""What is shown of outputs is the beginning and the end of each, as short as is wanted, and the rest is counted."""

from hypothesis import given
from hypothesis import strategies as st

from unspill.adapters.answers import compose, fit, level_of, shown_of, size_of
from unspill.model.change import ChangeSet
from unspill.model.run import Exited, Output, RunId
from unspill.sandbox.result import RunResult

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
