# SPDX-License-Identifier: Apache-2.0
"""The audit: whole across files, processes and crashes; whatever else happens to it is found."""

import os
import random
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.permissions.given import FOR_A_COMMAND, ONE_OF_EACH
from unspill.errors import StoreError
from unspill.model.permission import NetworkForCommand
from unspill.permissions.audit import Audit
from unspill.permissions.audit_chain import Head, log_file, log_numbers, read_head, write_head
from unspill.permissions.audit_tail import Tail, hash_of, this_boot, write_tail
from unspill.permissions.audit_verify import Broken, Verified, read_events, verify
from unspill.permissions.events import decision_event

APPEND = """
import os, sys
from unspill.permissions.audit import Audit
audit = Audit(os.fsencode(sys.argv[1]), rotate_bytes=4000)
for number in range(int(sys.argv[3])):
    audit.append({"kind": "test", "who": sys.argv[2], "number": number})
"""

Files = dict[bytes, bytes]


@pytest.fixture
def directory(tmp_path: Path) -> bytes:
    return os.fsencode(tmp_path / "audit")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """An audit of ten lines in three files."""
    directory = os.fsencode(tmp_path_factory.mktemp("audit") / "audit")
    fill(directory, 10, rotate_bytes=500)
    assert log_numbers(directory) == [1, 2, 3]
    return load(directory)


def fill(directory: bytes, count: int, rotate_bytes: int = 1 << 20) -> None:
    audit = Audit(directory, rotate_bytes=rotate_bytes)
    for number in range(count):
        audit.append({"kind": "test", "number": number})


def load(directory: bytes) -> Files:
    found: Files = {}
    for name in os.listdir(directory):
        with open(os.path.join(directory, name), "rb") as file:
            found[name] = file.read()
    return found


def put(tmp_path: Path, files: Files) -> bytes:
    directory = os.fsencode(tmp_path / "put")
    os.makedirs(directory, exist_ok=True)
    for name in os.listdir(directory):
        os.unlink(os.path.join(directory, name))
    for name, content in files.items():
        with open(os.path.join(directory, name), "wb") as file:
            file.write(content)
    return directory


def set_tail(directory: bytes, head: Head) -> None:
    fd = os.open(directory + b"/lock", os.O_RDWR)
    try:
        write_tail(fd, Tail(**head.as_dict(), boot=this_boot()))
    finally:
        os.close(fd)


def logs(files: Files) -> list[bytes]:
    return sorted(name for name in files if name.startswith(b"log-"))


def test_nothing_recorded_is_whole(directory: bytes) -> None:
    assert verify(directory) == Verified(lines=0, files=0, hash="0" * 64)
    assert list(read_events(directory)) == []


def test_what_was_written_is_read_back_in_order_and_verified(directory: bytes) -> None:
    audit = Audit(directory)
    audit.append({"kind": "a", "text": "\x1b[2J\n\udcff"}, {"kind": "b"})
    audit.append({"kind": "c"})
    events = list(read_events(directory))
    assert [(event["n"], event["kind"]) for event in events] == [(1, "a"), (2, "b"), (3, "c")]
    assert events[0]["text"] == "\x1b[2J\n\udcff"
    verdict = verify(directory)
    assert isinstance(verdict, Verified)
    assert (verdict.lines, verdict.files, verdict.recovered) == (3, 1, ())
    with open(log_file(directory, 1), "rb") as file:
        assert all(line.decode("ascii").rstrip("\n").isprintable() for line in file)


def test_it_is_for_the_owner_alone_whatever_the_umask(directory: bytes) -> None:
    before = os.umask(0)
    try:
        fill(directory, 2)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
    modes = {name: stat.S_IMODE(os.stat(os.path.join(directory, name)).st_mode) for name in os.listdir(directory)}
    assert modes == {b"log-000001": 0o600, b"head": 0o600, b"lock": 0o600}


def test_the_chain_goes_on_across_files(directory: bytes) -> None:
    fill(directory, 30, rotate_bytes=500)
    numbers = log_numbers(directory)
    assert len(numbers) > 3
    assert numbers == list(range(1, len(numbers) + 1))
    verdict = verify(directory)
    assert isinstance(verdict, Verified)
    assert (verdict.lines, verdict.files) == (30, len(numbers))


@pytest.mark.slow
def test_many_processes_write_one_chain(directory: bytes) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", APPEND, directory, str(number), "25"]) for number in range(6)]
    assert [writer.wait(60) for writer in writers] == [0] * 6
    verdict = verify(directory)
    assert isinstance(verdict, Verified), verdict
    assert (verdict.lines, verdict.recovered) == (150, ())
    for number in range(6):
        mine = [event["number"] for event in read_events(directory) if event["who"] == str(number)]
        assert mine == list(range(25))


@pytest.mark.slow
def test_writers_that_are_killed_at_any_moment_leave_a_chain_that_the_next_one_mends(directory: bytes) -> None:
    chance = random.Random(4)
    for number in range(8):
        writer = subprocess.Popen([sys.executable, "-c", APPEND, directory, str(number), "100000"])
        time.sleep(0.25 + chance.random() * 0.2)
        writer.kill()
        writer.wait()
        verdict = verify(directory)
        assert isinstance(verdict, Verified) or verdict.is_crash, verdict
    fill(directory, 1)
    verdict = verify(directory)
    assert isinstance(verdict, Verified), verdict
    assert verdict.lines > 8


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(choice=st.data())
def test_any_other_byte_in_any_line_or_the_head_is_found(tmp_path: Path, written: Files, choice: st.DataObject) -> None:
    name = choice.draw(st.sampled_from([*logs(written), b"head"]))
    content = bytearray(written[name])
    content[choice.draw(st.integers(0, len(content) - 1))] ^= choice.draw(st.integers(1, 255))
    verdict = verify(put(tmp_path, written | {name: bytes(content)}))
    assert isinstance(verdict, Broken)
    assert not verdict.is_crash


def lines_of(files: Files) -> list[tuple[bytes, bytes]]:
    return [(name, line) for name in logs(files) for line in files[name].splitlines(keepends=True)]


def with_lines(files: Files, lines: list[tuple[bytes, bytes]]) -> Files:
    changed = files | dict.fromkeys(logs(files), b"")
    for name, line in lines:
        changed[name] += line
    return changed


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("at", range(10))
def test_removed_lines_are_found_wherever_they_were(tmp_path: Path, written: Files, at: int, count: int) -> None:
    lines = lines_of(written)
    verdict = verify(put(tmp_path, with_lines(written, lines[:at] + lines[at + count :])))
    assert isinstance(verdict, Broken)
    assert not verdict.is_crash


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(10)))
def test_another_order_is_found(tmp_path: Path, written: Files, order: list[int]) -> None:
    lines = lines_of(written)
    changed = [(lines[place][0], lines[number][1]) for place, number in enumerate(order)]
    verdict = verify(put(tmp_path, with_lines(written, changed)))
    assert isinstance(verdict, Verified if order == sorted(order) else Broken)


@pytest.mark.parametrize("at", range(11))
def test_an_inserted_line_is_found(tmp_path: Path, written: Files, at: int) -> None:
    lines = lines_of(written)
    forged = (lines[min(at, 9)][0], lines[at - 1][1].replace(b'"number":', b'"number":1'))
    verdict = verify(put(tmp_path, with_lines(written, [*lines[:at], forged, *lines[at:]])))
    assert isinstance(verdict, Broken)


@pytest.mark.parametrize("name", [b"log-000001", b"log-000002", b"log-000003", b"head", b"lock"])
def test_a_removed_file_is_found(tmp_path: Path, written: Files, name: bytes) -> None:
    left = {other: content for other, content in written.items() if other != name}
    verdict = verify(put(tmp_path, left))
    assert isinstance(verdict, Broken)
    assert not verdict.is_crash


def test_without_the_head_a_removed_end_would_not_be_found(tmp_path: Path, written: Files) -> None:
    shorter = with_lines(written, lines_of(written)[:-1])
    directory = put(tmp_path, shorter)
    assert isinstance(verify(directory), Broken)
    name, last = lines_of(shorter)[-1]
    head = Head(file=logs(shorter).index(name) + 1, size=len(shorter[name]), lines=9, hash=hash_of(last[:-1]))
    write_head(directory, head)
    assert isinstance(verify(directory), Broken), "the tail knows better"
    set_tail(directory, head)
    assert isinstance(verify(directory), Verified)


def torn(files: Files, extra: bytes) -> Files:
    name = logs(files)[-1]
    return files | {name: files[name] + extra}


@pytest.mark.parametrize("extra", [b"{", b'{"n":11,"at_ns":1,"prev":"', b"\0" * 100, b"\n", b"garbage\nmore\n"])
def test_a_crash_in_the_middle_of_a_line_is_found_and_mended_by_a_record_of_it(
    tmp_path: Path, written: Files, extra: bytes
) -> None:
    directory = put(tmp_path, torn(written, extra))
    verdict = verify(directory)
    assert isinstance(verdict, Broken)
    assert verdict.is_crash
    fill(directory, 1)
    verdict = verify(directory)
    assert isinstance(verdict, Verified)
    assert (verdict.lines, verdict.recovered) == (12, (11,))
    mended = list(read_events(directory))[10]
    assert (mended["kind"], mended["kept"], mended["dropped_bytes"]) == ("recovered", 0, len(extra))


def test_lines_that_the_head_does_not_know_yet_are_kept(tmp_path: Path, directory: bytes) -> None:
    fill(directory, 3)
    before = load(directory)
    fill(directory, 2)
    behind = put(tmp_path, load(directory) | {name: before[name] for name in (b"head", b"lock")})
    assert isinstance(verify(behind), Verified)
    fill(behind, 1)
    verdict = verify(behind)
    assert isinstance(verdict, Verified)
    assert (verdict.lines, verdict.recovered) == (7, (6,))
    assert list(read_events(behind))[5]["kept"] == 2


@pytest.mark.parametrize("kept", [0, 1, 60, -1])
def test_a_crash_at_the_beginning_of_a_new_file_is_mended(tmp_path: Path, directory: bytes, kept: int) -> None:
    fill(directory, 4, rotate_bytes=500)
    before = load(directory)
    assert logs(before) == [b"log-000001"]
    fill(directory, 1, rotate_bytes=500)
    after = load(directory)
    content = after[b"log-000002"]
    crashed = put(
        tmp_path,
        after
        | {b"head": before[b"head"], b"lock": before[b"lock"], b"log-000002": content[: kept % (len(content) + 1)]},
    )
    fill(crashed, 1, rotate_bytes=500)
    verdict = verify(crashed)
    assert isinstance(verdict, Verified), verdict
    assert verdict.files == 2


@pytest.mark.parametrize("removed", [1, 2, 5])
@pytest.mark.parametrize("extra", [b"", b'{"n":'])
def test_a_removed_end_that_looks_like_a_crash_is_reported_for_ever(
    tmp_path: Path, written: Files, removed: int, extra: bytes
) -> None:
    directory = put(tmp_path, torn(with_lines(written, lines_of(written)[:-removed]), extra))
    fill(directory, 20)
    verdict = verify(directory)
    assert isinstance(verdict, Broken)
    assert not verdict.is_crash


def test_a_log_whose_head_is_gone_goes_on_and_says_so(tmp_path: Path, written: Files) -> None:
    directory = put(tmp_path, {name: content for name, content in written.items() if name != b"head"})
    fill(directory, 3)
    verdict = verify(directory)
    assert isinstance(verdict, Broken)
    assert (verdict.file, verdict.reason, verdict.is_crash) == (3, "lines before this one are gone", False)


def test_a_full_disk_leaves_what_was_there(directory: bytes) -> None:
    fill(directory, 2)
    before = load(directory)
    code = (
        "import os, resource, signal, sys\n"
        "from unspill.permissions.audit import Audit\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "size = os.stat(sys.argv[1] + '/log-000001').st_size\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, size + 20))\n"
        "Audit(os.fsencode(sys.argv[1])).append({'kind': 'test'})\n"
    )
    result = subprocess.run([sys.executable, "-c", code, directory], capture_output=True, check=False)
    assert b"StoreError" in result.stderr
    assert {name: content for name, content in load(directory).items() if name != b"head.new"} == before
    fill(directory, 1)
    assert isinstance(verify(directory), Verified)


def test_a_link_in_the_place_of_the_log_is_not_followed(tmp_path: Path, directory: bytes) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    os.mkdir(directory, 0o700)
    os.symlink(victim, log_file(directory, 1))
    with pytest.raises(StoreError):
        fill(directory, 1)
    assert victim.read_text() == "mine"


def test_every_request_can_be_recorded(directory: bytes) -> None:
    events: list[dict[str, Any]] = [decision_event(request, "denied", "rule") for request in ONE_OF_EACH]
    Audit(directory).append(*events)
    verdict = verify(directory)
    assert isinstance(verdict, Verified)
    assert verdict.lines == len(ONE_OF_EACH)


def test_a_huge_command_is_recorded_in_part_and_by_its_digest(directory: bytes) -> None:
    huge = NetworkForCommand(**FOR_A_COMMAND | {"argv": (b"x" * 10, b"y" * 200_000, b"z")})
    Audit(directory).append(decision_event(huge, "denied", "rule"))
    (event,) = read_events(directory)
    assert event["request"]["argv"][-1] == "[cut: 200011 bytes in all]"
    assert len(event["request"]["key"]) == 64
    assert os.stat(log_file(directory, 1)).st_size < 20_000


def test_the_head_says_where_the_log_ends(directory: bytes) -> None:
    fill(directory, 3)
    head = read_head(directory)
    assert head is not None
    assert (head.file, head.lines, head.size) == (1, 3, os.stat(log_file(directory, 1)).st_size)
