# SPDX-License-Identifier: Apache-2.0
"""Whoever has a file open for writing is noticed, and nobody is disturbed by the question."""

import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from unspill.host.dirfd import has_writers


def ask(path: Path) -> bool | None:
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return has_writers(fd, os.fsencode(path.name))
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [(os.O_RDONLY, False), (os.O_WRONLY, True), (os.O_RDWR, True), (os.O_WRONLY | os.O_APPEND, True)],
)
def test_those_who_write_are_told_from_those_who_read(tmp_path: Path, flags: int, expected: bool) -> None:
    file = tmp_path / "file"
    file.write_text("content\n")
    fd = os.open(file, flags)
    assert ask(file) is expected
    os.close(fd)
    assert ask(file) is False


def test_a_file_that_is_mapped_for_writing_has_a_writer(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content\n")
    with file.open("r+b") as opened:
        mapped = mmap.mmap(opened.fileno(), 0)
    assert ask(file)
    mapped.close()
    assert not ask(file)


def test_another_process_counts_too(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("content\n")
    program = "import sys; file = open(sys.argv[1], 'a'); print('open', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, os.fspath(file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert ask(file)
        process.communicate()
    assert not ask(file)


def test_nothing_is_known_of_what_is_no_file_of_ours_to_read(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "closed").touch(mode=0o000)
    for name in ("link", "closed", "missing"):
        assert ask(tmp_path / name) is None
    assert ask(Path("/etc/passwd")) is None


def test_asking_while_others_open_it_hurts_neither(tmp_path: Path) -> None:
    """Who opens a file for writing breaks our lease; by default that would kill this process."""
    file = tmp_path / "file"
    file.write_text("content\n")
    program = "import sys\nfor _ in range(20000): open(sys.argv[1], 'a').close()"
    with subprocess.Popen([sys.executable, "-c", program, os.fspath(file)]) as process:
        answers = set()
        while process.poll() is None:
            answers.add(ask(file))
    assert process.returncode == 0
    assert answers == {True, False}
