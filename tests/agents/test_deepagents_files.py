# SPDX-License-Identifier: Apache-2.0
"""Files for deep agents, where the conformance suite does not look: what is no text, what is long, what is refused."""

import base64
import os

import pytest
from deepagents.backends.protocol import FileData, FileDownloadResponse, FileUploadResponse, ReadResult
from deepagents.backends.sandbox import TRUNCATION_MSG

from tests.support import Ground
from unspill.adapters.deepagents import UnspillSandbox

pytestmark = [pytest.mark.kernel, pytest.mark.agents]


def text(content: str) -> FileData:
    return {"content": content, "encoding": "utf-8"}


def in_base64(content: bytes) -> FileData:
    return {"content": base64.b64encode(content).decode(), "encoding": "base64"}


LOST = "it is not kept: each command finds an empty directory there"
LINES = b"one\ntwo\nthree\n"
# What a file of a name has, the window that is asked for, and what is read
WINDOWS: dict[str, tuple[str, bytes, tuple[int, int], ReadResult]] = {
    "all": ("f", LINES, (0, 9), ReadResult(None, text("one\ntwo\nthree"), 3, 1, 3)),
    "the first": ("f", LINES, (0, 1), ReadResult(None, text("one"), None, 1, 1, 1)),
    "the last": ("f", LINES, (2, 1), ReadResult(None, text("three"), 3, 3, 3)),
    "none": ("f", LINES, (0, 0), ReadResult(None, text(""), no_lines_requested=True)),
    "less than none": ("f", LINES, (-5, -5), ReadResult(None, text(""), no_lines_requested=True)),
    "of an empty file": ("f", b"", (0, 9), ReadResult(None, text(""))),
    "none of an empty file": ("f", b"", (0, 0), ReadResult(None, text(""))),
    "empty lines": ("f", b"\n\n\n", (1, 9), ReadResult(None, text("\n"), 3, 2, 3)),
    "without an end": ("f", b"a\nb", (0, 9), ReadResult(None, text("a\nb"), 2, 1, 2)),
    "of Windows": ("f", b"a\r\nb\r\n", (0, 9), ReadResult(None, text("a\nb"), 2, 1, 2)),
    "not UTF-8": ("f", b"a\xff\n", (0, 9), ReadResult(None, in_base64(b"a\xff\n"))),
    "half a character at the end": ("f", b"a\xe2\x82", (0, 9), ReadResult(None, in_base64(b"a\xe2\x82"))),
    "a NUL": ("f", b"a\0b", (0, 9), ReadResult(None, in_base64(b"a\0b"))),
    # What the framework makes of it depends on the name, so the encoding must too
    "a picture by its name": ("f.png", b"text", (0, 9), ReadResult(None, in_base64(b"text"))),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_a_window_of_a_file(name: str, ground: Ground) -> None:
    file, content, (offset, limit), expected = WINDOWS[name]
    ground.write(file, content)
    backend = UnspillSandbox(ground.sandbox())
    assert backend.read(f"{ground.inside()}/{file}", offset, limit) == expected


def test_a_line_that_is_too_long_is_cut_between_characters_and_says_so(ground: Ground) -> None:
    ground.write("f", "€" * 700_000 + "\nnext\n")
    backend = UnspillSandbox(ground.sandbox())
    found = backend.read(f"{ground.inside()}/f")
    assert found.file_data == text("€" * (2**20 // 3) + TRUNCATION_MSG)
    assert (found.start_line, found.end_line, found.next_offset, found.total_lines) == (1, 1, 1, None)
    assert backend.read(f"{ground.inside()}/f", 1).file_data == text("next")


def test_a_long_text_is_read_in_windows_without_a_gap(ground: Ground) -> None:
    lines = [f"{number} {'x' * (number % 3000)}" for number in range(3000)]
    ground.write("f", "\n".join(lines))
    backend = UnspillSandbox(ground.sandbox())
    seen: list[str] = []
    offset: int | None = 0
    while offset is not None:
        found = backend.read(f"{ground.inside()}/f", offset, 10_000)
        assert found.file_data is not None
        assert found.start_line == len(seen) + 1
        seen += found.file_data["content"].split("\n")
        assert found.end_line == len(seen)
        offset = found.next_offset
    assert seen == lines


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [("a\nb", "c\nd", b"c\r\nd\r\na\r\n"), ("a\r\nb", "c\r\nd", b"c\r\nd\r\na\r\n"), ("b\na", "c", b"a\r\nc\r\n")],
)
def test_a_text_of_windows_is_edited_by_what_was_read_of_it(
    old: str, new: str, expected: bytes, ground: Ground
) -> None:
    ground.write("f", b"a\r\nb\r\na\r\n")
    sandbox = ground.sandbox(after="apply")
    assert UnspillSandbox(sandbox).edit(f"{ground.inside()}/f", old, new).error is None
    assert (ground.project / "f").read_bytes() == expected


def test_names_that_are_no_text_are_listed_escaped(ground: Ground) -> None:
    (ground.project / os.fsdecode(b"a\xff")).mkdir()
    found = UnspillSandbox(ground.sandbox()).ls(f"{ground.inside()}/")
    assert found.entries == [{"path": f"{ground.inside()}/a\\xff", "is_dir": True}]


@pytest.mark.view("sealed", reason="its paths are of this view")
def test_each_file_of_a_transfer_has_its_own_answer(ground: Ground) -> None:
    backend = UnspillSandbox(ground.sandbox())
    project = ground.inside()
    (ground.project / "directory").mkdir()
    (ground.project / "unreadable").touch(mode=0)
    ground.write("file", b"x")
    paths = [f"{project}/file", f"{project}/none", f"{project}/directory", f"{project}/unreadable", "file"]

    assert backend.download_files(paths) == [
        FileDownloadResponse(paths[0], b"x"),
        FileDownloadResponse(paths[1], error="file_not_found"),
        FileDownloadResponse(paths[2], error="is_directory"),
        FileDownloadResponse(paths[3], error="permission_denied"),
        FileDownloadResponse(paths[4], error="invalid_path"),
    ]
    uploaded = [f"{project}/new/file", "/usr/x", f"{project}/directory", "file", "/tmp/x"]
    assert backend.upload_files([(path, b"y") for path in uploaded]) == [
        FileUploadResponse(uploaded[0]),
        FileUploadResponse(uploaded[1], error="permission_denied"),
        FileUploadResponse(uploaded[2], error="is_directory"),
        FileUploadResponse(uploaded[3], error="invalid_path"),
        FileUploadResponse(uploaded[4], error=f"failed: /tmp/x: {LOST}."),
    ]


def test_a_write_that_would_be_thrown_away_is_an_error(ground: Ground) -> None:
    backend = UnspillSandbox(ground.sandbox(after="discard"))
    path = f"{ground.inside()}/f"
    assert backend.write(path, "x").error == (f"Error: failed: {path}: it is not kept: what is written is discarded.")


def test_a_name_for_a_shell_is_only_a_name(ground: Ground) -> None:
    ground.write("$(touch made)", "x")
    sandbox = ground.sandbox()
    assert UnspillSandbox(sandbox).delete(f"{ground.inside()}/$(touch made)").error is None
    assert [os.fsdecode(change.path) for change in sandbox.changes()] == ["$(touch made)"]
