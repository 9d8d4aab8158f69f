# SPDX-License-Identifier: Apache-2.0
"""What is shown of outputs is the beginning and the end of each, as short as is wanted, and the rest is counted."""

from hypothesis import given
from hypothesis import strategies as st

from unspill.adapters.batch import Printed, cut_to, shown_of
from unspill.model.change import ChangeSet
from unspill.model.layer import RunId
from unspill.model.run import Exited, Output
from unspill.sandbox.result import RunResult

texts = st.text(max_size=200)
sizes = st.none() | st.integers(-5, 1500)


@given(st.lists(st.tuples(texts, texts), max_size=4), st.lists(texts, max_size=3), sizes)
def test_outputs_are_cut_so_that_our_words_fit(
    printed: list[tuple[str, str]], said: list[str], most: int | None
) -> None:
    outputs = [
        Printed(command="x", stdout=stdout, stderr=stderr, exit_code=0, is_late=False) for stdout, stderr in printed
    ]
    cut_outputs, words = cut_to(outputs, said, most)
    shown = [(output.stdout, output.stderr) for output in cut_outputs]
    total = sum(len(text) for streams in shown for text in streams)
    ours = len("\n".join(words))
    assert most is None or total == 0 or total + ours <= most
    assert (words == said) is (shown == printed and (most is None or total + ours <= most))
    flat = [pair for streams in zip(printed, shown, strict=True) for pair in zip(*streams, strict=True)]
    assert all(whole.startswith(part) for whole, part in flat)
    # Nothing after the first that is cut is shown
    cut = [index for index, (whole, part) in enumerate(flat) if whole != part]
    assert all(part == "" for _whole, part in flat[cut[0] + 1 :]) if cut else True


streams = st.builds(
    lambda head, tail, left_out: Output(head=head, tail=tail if left_out else b"", left_out=left_out),
    st.lists(st.sampled_from([b"a", b"\n", "é".encode(), b"\xff", b"line\n"])).map(b"".join),
    st.binary(max_size=4),
    st.integers(0, 9),
)


@given(streams, streams, st.integers(1, 5), st.integers(1, 30))
def test_the_policy_bounds_each_stream_and_a_gap_is_never_closed(
    stdout: Output, stderr: Output, lines: int, size: int
) -> None:
    result = RunResult(
        run=RunId("r"), number=1, outcome=Exited(code=0), stdout=stdout, stderr=stderr, changes=ChangeSet(roots=()),
        held=False, duration_s=0.0, shown_lines=lines, shown_bytes=size,
    )  # fmt: skip
    shown, notice = shown_of(result)
    cut = 0
    for text, stream in zip(shown, (stdout, stderr), strict=True):
        whole = stream.kept().decode("utf-8", "backslashreplace")
        if stream.left_out or len(whole.encode()) > size or len(whole.removesuffix("\n").split("\n")) > lines:
            cut += 1
            head, tail = text.split("[...]")
            assert whole.startswith(head)
            assert whole.rstrip("\n").endswith(tail.removeprefix("\n"))
            assert text.count("\n") <= lines
        else:
            assert text == whole.rstrip("\n")
    assert bool(notice) is bool(cut)
