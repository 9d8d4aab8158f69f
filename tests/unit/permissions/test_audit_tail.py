# SPDX-License-Identifier: Apache-2.0
"""Runs and operations are noted in the audit without waiting for the disk; what is taken away is found all the same."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unspill.errors import StoreError
from unspill.permissions.audit import Audit
from unspill.permissions.audit_chain import log_file
from unspill.permissions.audit_tail import Tail, note, read_tail, this_boot, to_json, write_tail
from unspill.permissions.audit_verify import Broken, Verified, read_events, verify

NOTE = """
import os, sys
from unspill.permissions.audit_tail import note, this_boot
for number in range(int(sys.argv[2])):
    note(os.fsencode(sys.argv[1]), this_boot(), {"kind": "run", "number": number})
"""


@pytest.fixture
def directory(tmp_path: Path) -> bytes:
    return os.fsencode(tmp_path / "audit")


def at_another_boot(directory: bytes) -> None:
    """Make it look as if the machine had been started since the last note."""
    fd = os.open(directory + b"/lock", os.O_RDWR)
    try:
        tail = read_tail(fd)
        assert isinstance(tail, Tail)
        write_tail(fd, tail.replace(boot="0" * 36))
    finally:
        os.close(fd)


def happened(directory: bytes, count: int) -> None:
    """Note what has happened, as runs do."""
    for number in range(count):
        note(directory, this_boot(), {"kind": "run", "number": number})


def test_what_happened_is_noted_in_the_same_chain(directory: bytes) -> None:
    happened(directory, 3)
    Audit(directory).append({"kind": "test"}, {"kind": "test"})
    happened(directory, 2)
    assert [event["kind"] for event in read_events(directory)] == [*["run"] * 3, *["test"] * 2, *["run"] * 2]
    verdict = verify(directory)
    assert isinstance(verdict, Verified)
    assert (verdict.lines, verdict.recovered, verdict.lost) == (7, (), 0)


def test_a_note_synchronises_nothing_but_the_first(directory: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    happened(directory, 1)

    def refuse(_fd: int) -> None:
        raise AssertionError("fsync")

    monkeypatch.setattr(os, "fsync", refuse)
    happened(directory, 5)
    verdict = verify(directory)
    assert isinstance(verdict, Verified)
    assert verdict.lines == 6


@pytest.mark.parametrize("gone", range(1, 4))
def test_a_note_that_is_taken_away_is_found_as_long_as_the_machine_runs(directory: bytes, gone: int) -> None:
    happened(directory, 5)
    path = log_file(directory, 1)
    with open(path, "rb") as file:
        lines = file.readlines()
    os.truncate(path, sum(map(len, lines[:-gone])))
    verdict = verify(directory)
    assert isinstance(verdict, Broken)
    assert not verdict.is_crash
    happened(directory, 1)
    assert isinstance(verify(directory), Broken), "what comes after does not hide it"


def test_notes_that_a_power_cut_took_are_counted_and_nobody_is_blamed(directory: bytes) -> None:
    happened(directory, 5)
    path = log_file(directory, 1)
    with open(path, "rb") as file:
        lines = file.readlines()
    os.truncate(path, sum(map(len, lines[:-2])))
    at_another_boot(directory)
    verdict = verify(directory)
    assert isinstance(verdict, Verified)
    assert (verdict.lines, verdict.lost) == (3, 2)
    happened(directory, 2)
    verdict = verify(directory)
    assert isinstance(verdict, Verified)
    assert (verdict.lines, verdict.lost, verdict.recovered) == (6, 2, (4,))


def test_the_first_note_after_a_start_of_the_machine_needs_no_mending(directory: bytes) -> None:
    happened(directory, 5)
    at_another_boot(directory)
    happened(directory, 1)
    verdict = verify(directory)
    assert isinstance(verdict, Verified)
    assert (verdict.lines, verdict.lost, verdict.recovered) == (6, 0, ())


def test_a_note_that_can_not_be_written_is_an_error(directory: bytes) -> None:
    os.mkdir(directory)
    os.mkdir(directory + b"/lock")
    with pytest.raises(StoreError):
        happened(directory, 1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_notes_are_written_as_json_is(value: Any) -> None:
    assert to_json(value) == json.dumps(value, separators=(",", ":"))


def test_many_threads_and_processes_note_into_one_chain(directory: bytes) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", NOTE, directory, "40"]) for _ in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    verdict = verify(directory)
    assert isinstance(verdict, Verified), verdict
    assert (verdict.lines, verdict.recovered) == (160, ())
