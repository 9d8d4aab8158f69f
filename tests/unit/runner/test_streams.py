# SPDX-License-Identifier: Apache-2.0
"""One stream against the plainest oracle: all chunks joined."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.model.run import Output
from unspill.runner.watch import Collector


def collect(directory: Path, chunks: list[bytes], *, kept: int, cap: int | None = None) -> Output:
    collector = Collector(os.fsencode(directory / "run" / "stdout"), kept_bytes=kept, file_cap=cap)
    for chunk in chunks:
        collector.add(chunk)
    assert collector.total == sum(map(len, chunks))
    return collector.finish()


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=30),
    kept=st.integers(0, 60),
    cap=st.none() | st.integers(0, 300),
)
def test_head_tail_and_file_are_parts_of_the_whole(chunks: list[bytes], kept: int, cap: int | None) -> None:
    whole = b"".join(chunks)
    with tempfile.TemporaryDirectory() as directory:
        output = collect(Path(directory), chunks, kept=kept, cap=cap)
        assert output.head == whole[:kept]
        rest = whole[kept:]
        assert output.tail == rest[max(0, len(rest) - kept) :]
        assert output.left_out == max(0, len(rest) - kept)
        assert output.total == len(whole)
        assert (output.file is None) == (output.left_out == 0)
        if output.file is not None:
            assert Path(os.fsdecode(output.file)).read_bytes() == whole[:cap]
        assert os.listdir(directory) == ([] if output.file is None else ["run"])


def test_nothing_printed_is_an_empty_output(tmp_path: Path) -> None:
    assert collect(tmp_path, [], kept=10) == Output()


def test_memory_stays_bounded(tmp_path: Path) -> None:
    collector = Collector(os.fsencode(tmp_path / "stdout"), kept_bytes=100, file_cap=0)
    for _ in range(1000):
        collector.add(b"x" * 64)
        assert len(collector._head) + len(collector._tail) <= 100 + 2 * 100 + 64
    assert collector.finish().total == 64_000


def test_a_directory_that_can_not_be_written_costs_only_the_file(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    output = collect(tmp_path, [b"x" * 100], kept=10)
    assert output == Output(head=b"x" * 10, tail=b"x" * 10, left_out=80, file=None)


def test_a_full_disk_costs_only_the_file() -> None:
    collector = Collector(b"/unused", kept_bytes=4, file_cap=None)
    # /dev/full is the disk that is always full
    collector._fd, collector._is_spilled = os.open("/dev/full", os.O_WRONLY), True
    for _ in range(3):
        collector.add(b"0123456789")
    output = collector.finish()
    assert (output.head, output.tail, output.left_out) == (b"0123", b"6789", 22)


@pytest.mark.parametrize("mode", [0o022, 0o000])
def test_others_can_not_read_the_file(tmp_path: Path, mode: int) -> None:
    before = os.umask(mode)
    try:
        output = collect(tmp_path, [b"x" * 100], kept=10)
    finally:
        os.umask(before)
    assert output.file is not None
    path = Path(os.fsdecode(output.file))
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
