# SPDX-License-Identifier: Apache-2.0
"""Comparing files by their bytes, holes included."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.host.dirfd import CHUNK, have_same_content

SIZES = [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK]


def compare(tmp_path: Path, one: bytes, other: bytes) -> bool:
    fds = []
    for name, written in (("one", one), ("other", other)):
        (tmp_path / name).write_bytes(written)
        fds.append(os.open(tmp_path / name, os.O_RDONLY))
    try:
        return have_same_content(fds[0], fds[1], len(one))
    finally:
        for fd in fds:
            os.close(fd)


@pytest.mark.parametrize("size", SIZES)
def test_equal_bytes_are_the_same(tmp_path: Path, size: int) -> None:
    assert compare(tmp_path, b"x" * size, b"x" * size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("at", [0, -1])
def test_one_other_byte_is_found(tmp_path: Path, size: int, at: int) -> None:
    other = bytearray(b"x" * size)
    other[at] = 0
    assert not compare(tmp_path, b"x" * size, bytes(other))


def test_a_file_that_was_shortened_meanwhile_is_another(tmp_path: Path) -> None:
    assert not compare(tmp_path, b"x" * 100, b"x" * 60)


def write_sparse(path: Path, size: int, written: dict[int, bytes]) -> int:
    with open(path, "wb") as file:
        file.truncate(size)
        for at, piece in written.items():
            file.seek(at)
            file.write(piece)
        file.truncate(size)
    return os.open(path, os.O_RDONLY)


PIECES = st.dictionaries(
    st.integers(0, 40).map(lambda step: step * 4096), st.sampled_from([b"\0" * 4096, b"a", b"b" * 5000]), max_size=4
)


@given(one=PIECES, other=PIECES)
def test_sparse_files_are_compared_like_whole_ones(
    tmp_path_factory: pytest.TempPathFactory, one: dict[int, bytes], other: dict[int, bytes]
) -> None:
    place = tmp_path_factory.mktemp("sparse", numbered=True)
    size = 160 * 4096
    fds = [write_sparse(place / "one", size, one), write_sparse(place / "other", size, other)]
    try:
        wanted = os.pread(fds[0], size, 0) == os.pread(fds[1], size, 0)
        assert have_same_content(fds[0], fds[1], size) == wanted
    finally:
        for fd in fds:
            os.close(fd)


def test_nothing_is_read_where_both_files_have_a_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fds = [write_sparse(tmp_path / name, 1 << 40, {1 << 39: b"x"}) for name in ("one", "other")]
    reads: list[int] = []
    pread = os.pread

    def counting(fd: int, size: int, at: int) -> bytes:
        reads.append(at)
        return pread(fd, size, at)

    monkeypatch.setattr("os.pread", counting)
    assert have_same_content(fds[0], fds[1], 1 << 40)
    assert len(reads) <= 8
    for fd in fds:
        os.close(fd)
