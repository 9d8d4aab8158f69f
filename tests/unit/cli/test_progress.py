# SPDX-License-Identifier: Apache-2.0
"""How far something is, in words: short, and nothing in it speaks to the terminal."""

from __future__ import annotations

import io
import sys

import pytest

from unspill.cli.progress import ProgressLine, progress_text
from unspill.model.rootfs import Progress


@pytest.mark.parametrize(
    ("progress", "plain", "bar"),
    [
        (Progress(step="unpacking"), "unpacking", "unpacking"),
        (Progress(step="fetching", done=2 << 20), "fetching: 2.0 MiB", "fetching: 2.0 MiB"),
        (
            Progress(step="fetching", done=1 << 20, total=4 << 20),
            "fetching: 25% of 4.0 MiB",
            "fetching [######                  ]  25% of 4.0 MiB",
        ),
        (
            Progress(step="fetching", done=9, total=4),
            "fetching: 100% of 4 bytes",
            "fetching [########################] 100% of 4 bytes",
        ),
        (
            Progress(step="installing", done=3, total=12, unit="package"),
            "installing: 25% of 12 packages",
            "installing [######                  ]  25% of 12 packages",
        ),
        (Progress(step="a\x1b]0;x\x07\r\n"), r"a\u{1b}]0;x\u{7}\r\n", r"a\u{1b}]0;x\u{7}\r\n"),
    ],
    ids=str,
)
def test_a_step_in_words(progress: Progress, plain: str, bar: str) -> None:
    assert progress_text(progress, has_bar=False) == plain
    assert progress_text(progress, has_bar=True) == bar


def test_without_a_terminal_there_is_a_line_for_each_step_and_not_for_each_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.isatty", lambda _fd: False)
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    with ProgressLine(is_quiet=False) as line:
        for done in range(1000):
            line.take(Progress(step="fetching", done=done * 4096, total=1000 * 4096))
        line.take(Progress(step="unpacking"))
    assert told.getvalue() == "unspill: fetching (3.9 MiB)\nunspill: unpacking\n"


def test_with_json_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    with ProgressLine(is_quiet=True) as line:
        line.take(Progress(step="fetching", done=1, total=2))
    assert told.getvalue() == ""


def test_a_stream_that_can_not_be_written_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.isatty", lambda _fd: False)
    with open("/dev/full", "wb", buffering=0) as full, ProgressLine(is_quiet=False) as line:
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(full, write_through=True))
        line.take(Progress(step="fetching"))
        line.take(Progress(step="unpacking"))
