# SPDX-License-Identifier: Apache-2.0
"""Compressed archives: told by their first bytes, read to their end, and nothing is left running afterwards."""

import bz2
import gzip
import lzma
import os
import random
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.attack.tar_crafting import END, entry, zstd_with_window
from unspill.errors import RootfsError, RootfsUnverified
from unspill.rootfs.tar import unpack

CONTENT = random.Random(5).randbytes(600_000)
ARCHIVE = entry(b"before", b"b") + entry(b"f", CONTENT) + entry(b"after", b"a") + END


def zstd(content: bytes, *options: str) -> bytes:
    return subprocess.run(["zstd", "-qc", *options], input=content, capture_output=True, check=True).stdout


def in_parts(compress: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return what compresses an archive as several streams in a row."""
    return lambda content: b"".join(compress(content[at : at + 250_001]) for at in range(0, len(content), 250_001))


COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda content: content,
    "gzip": gzip.compress,
    "gzip-members": in_parts(gzip.compress),
    "gzip-padding": lambda content: gzip.compress(content) + bytes(1000),
    "gzip-empty-members": lambda content: gzip.compress(b"") * 3 + gzip.compress(content) + gzip.compress(b""),
    "bzip2": bz2.compress,
    "bzip2-streams": in_parts(bz2.compress),
    "xz": lzma.compress,
    "xz-streams": in_parts(lzma.compress),
    "xz-padding": lambda content: lzma.compress(content) + bytes(8),
    "zstd": zstd,
    "zstd-frames": in_parts(zstd),
    "zstd-skippable": lambda content: b"\x5a\x2a\x4d\x18\x04\x00\x00\x00abcd" + zstd(content),
    "zstd-long": lambda content: zstd_with_window(content, 27),
}


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "tree"
    path.mkdir()
    threads, descriptors, before = threading.active_count(), len(os.listdir("/proc/self/fd")), children()
    yield path
    assert threading.active_count() == threads
    assert len(os.listdir("/proc/self/fd")) == descriptors
    assert children() == before


def children() -> set[str]:
    """Return the processes that this thread has started, ended ones that nobody has waited for among them."""
    return set(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split())


@pytest.mark.parametrize("kind", COMPRESSED)
def test_every_compression_is_told_by_its_first_bytes(kind: str, tmp_path: Path, tree: Path) -> None:
    archive = tmp_path / "archive.tar.other"
    archive.write_bytes(COMPRESSED[kind](ARCHIVE))
    told: list[int] = []
    unpack(os.fsencode(archive), os.fsencode(tree), report=told.append)
    assert (tree / "f").read_bytes() == CONTENT
    assert (tree / "after").read_bytes() == b"a"
    assert told == sorted(told)
    assert archive.stat().st_size - 1000 <= told[-1] <= archive.stat().st_size


@pytest.mark.parametrize("kind", COMPRESSED)
def test_a_stream_that_is_cut_anywhere_is_refused(kind: str, tmp_path: Path, tree: Path) -> None:
    whole = COMPRESSED[kind](entry(b"f", CONTENT[:3000]) + entry(b"g", b"x") + END)
    for length in range(0, len(whole) - 1100 if kind.endswith(("padding", "plain")) else len(whole), 97):
        (tmp_path / "archive").write_bytes(whole[:length])
        with pytest.raises(RootfsUnverified):
            unpack(os.fsencode(tmp_path / "archive"), os.fsencode(tree), whiteouts=True)


@pytest.mark.parametrize("kind", [kind for kind in COMPRESSED if kind != "plain"])
def test_something_else_behind_a_stream_is_refused(kind: str, tmp_path: Path, tree: Path) -> None:
    (tmp_path / "archive").write_bytes(COMPRESSED[kind](ARCHIVE) + b"something else")
    with pytest.raises(RootfsUnverified):
        unpack(os.fsencode(tmp_path / "archive"), os.fsencode(tree))


@pytest.mark.parametrize("kind", COMPRESSED)
def test_whoever_stops_early_leaves_nothing_running(kind: str, tmp_path: Path, tree: Path) -> None:
    # More than what is decompressed ahead, so that there is somebody who waits for us to read on
    refused = entry(b"../f", b"x") + entry(b"f", bytes(20 << 20)) + END
    (tmp_path / "archive").write_bytes(COMPRESSED[kind](refused))
    with pytest.raises(RootfsError, match="points outside"):
        unpack(os.fsencode(tmp_path / "archive"), os.fsencode(tree))


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_an_exception_of_the_caller_comes_through(kind: str, tmp_path: Path, tree: Path) -> None:
    (tmp_path / "archive").write_bytes(COMPRESSED[kind](ARCHIVE))

    def interrupt(read: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unpack(os.fsencode(tmp_path / "archive"), os.fsencode(tree), report=interrupt)


@pytest.mark.parametrize("kind", ["plain", "gzip", "zstd"])
def test_a_descriptor_is_read_from_where_it_stands_and_stays_open(kind: str, tmp_path: Path, tree: Path) -> None:
    (tmp_path / "archive").write_bytes(b"header" + COMPRESSED[kind](ARCHIVE))
    with open(tmp_path / "archive", "rb", buffering=0) as file:
        file.seek(6)
        unpack(file.fileno(), os.fsencode(tree))
        assert file.seek(0) == 0
    assert (tree / "f").read_bytes() == CONTENT


@pytest.mark.parametrize("kind", ["plain", "gzip", "bzip2", "xz"])
def test_a_pipe_can_be_unpacked(kind: str, tree: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as cat:
        assert cat.stdin is not None
        assert cat.stdout is not None
        writer = threading.Thread(target=lambda: (cat.stdin.write(COMPRESSED[kind](ARCHIVE)), cat.stdin.close()))  # type: ignore[union-attr]
        writer.start()
        unpack(cat.stdout.fileno(), os.fsencode(tree))
        writer.join()
    assert (tree / "f").read_bytes() == CONTENT


def test_zstd_from_a_pipe_is_refused_with_a_remedy(tree: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, zstd(entry(b"f") + END))
    os.close(writing)
    with pytest.raises(RootfsError, match="pipe") as refusal:
        unpack(reading, os.fsencode(tree))
    assert "file first" in refusal.value.remedy
    os.close(reading)


def test_without_the_program_a_zstd_archive_is_refused_with_a_remedy(
    tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "archive").write_bytes(zstd(ARCHIVE))
    # A program of this name that is not root's is none
    (tmp_path / "zstd").write_text("#!/bin/sh\ntouch /tmp/never\n")
    (tmp_path / "zstd").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:.")
    with pytest.raises(RootfsError, match="zstd is not installed") as refusal:
        unpack(os.fsencode(tmp_path / "archive"), os.fsencode(tree))
    assert "Install zstd" in refusal.value.remedy
