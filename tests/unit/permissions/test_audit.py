# SPDX-License-Identifier: Apache-2.0
"""The audit: every line whole, whoever writes beside, dies or runs out of space; bounded; no secrets."""

import fcntl
import json
import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.permissions.given import FOR_A_COMMAND, ONE_OF_EACH, PROJECT
from unspill.errors import StoreError
from unspill.model.permission import NetworkForCommand, Unsandboxed
from unspill.permissions import audit as audit_module
from unspill.permissions.audit import (
    MOST_COMMAND_BYTES,
    MOST_PATH_BYTES,
    MOST_PATHS,
    Audit,
    decision_event,
    path_fields,
    request_event,
    to_json,
)
from unspill.permissions.question import make_question

# Says which lines it was told are safe
APPEND = """
import os, sys
from unspill.permissions.audit import Audit
audit = Audit(os.fsencode(sys.argv[1]), file_bytes=4000)
for number in range(int(sys.argv[3])):
    audit.append({"kind": "test", "who": sys.argv[2], "number": number}, durable=number % 2 == 0)
    print(number, flush=True)
"""
CHAINED = b'{"n":1,"at_ns":5,"prev":"%b","kind":"run","number":1}\n' % (
    b"0" * 64
) + b'{"n":2,"at_ns":6,"prev":"%b","kind":"recovered","kept":0,"missing":0}\n' % (b"a7" * 32)


@pytest.fixture
def directory(tmp_path: Path) -> bytes:
    return os.fsencode(tmp_path / "audit")


def log_file(directory: bytes, number: int = 1) -> bytes:
    return b"%b/log-%06d" % (directory, number)


def logs(directory: bytes) -> list[bytes]:
    return sorted(name for name in os.listdir(directory) if name.startswith(b"log-"))


def fill(directory: bytes, count: int, file_bytes: int = 1 << 20) -> None:
    audit = Audit(directory, file_bytes=file_bytes)
    for number in range(count):
        audit.append({"kind": "test", "number": number})


def numbers(directory: bytes, *, newest_first: bool = False) -> list[Any]:
    return [event.get("number") for event in Audit(directory).events(newest_first=newest_first)]


def content(directory: bytes) -> bytes:
    with open(log_file(directory), "rb") as file:
        return file.read()


def add_raw(directory: bytes, text: bytes) -> None:
    with open(log_file(directory), "ab") as file:
        file.write(text)


def test_where_nothing_was_recorded_there_is_nothing_to_read(directory: bytes) -> None:
    assert list(Audit(directory).events()) == []


def test_what_was_written_is_read_back_in_order(directory: bytes) -> None:
    audit = Audit(directory)
    before = time.time_ns()
    audit.append({"kind": "a", "text": "\x1b[2J\n\udcff\U0001f600"}, {"kind": "b"})
    audit.append({"kind": "c"}, durable=False)
    events = list(audit.events())
    assert [event["kind"] for event in events] == ["a", "b", "c"]
    assert events[0]["text"] == "\x1b[2J\n\udcff\U0001f600"
    assert all(before <= event["at_ns"] <= time.time_ns() for event in events)
    assert all(line.decode("ascii").isprintable() for line in content(directory).splitlines())


def test_events_of_a_session_name_it(directory: bytes) -> None:
    Audit(directory, session="s" * 300).append({"kind": "x"})
    Audit(directory).append({"kind": "x"})
    assert [event.get("session") for event in Audit(directory).events()] == ["s" * 200, None]


def test_it_is_for_the_owner_alone_whatever_the_umask(directory: bytes) -> None:
    before = os.umask(0)
    try:
        fill(directory, 2)
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
    modes = {name: stat.S_IMODE(os.stat(os.path.join(directory, name)).st_mode) for name in os.listdir(directory)}
    assert modes == {b"log-000001": 0o600, b"lock": 0o600}


def test_a_full_file_is_followed_by_another_and_both_are_read_either_way(directory: bytes) -> None:
    fill(directory, 30, file_bytes=500)
    assert len(logs(directory)) > 3
    assert numbers(directory) == list(range(30))
    assert numbers(directory, newest_first=True) == list(range(30))[::-1]
    fill(directory, 1)
    assert numbers(directory)[-1] == 0


def writer_of(directory: bytes, who: int, count: int) -> list[str]:
    return [sys.executable, "-c", APPEND, os.fsdecode(directory), str(who), str(count)]


@pytest.mark.slow
def test_many_processes_write_at_once_and_no_line_is_lost_or_broken(directory: bytes) -> None:
    """Six writers of 25 lines each, so that files are changed under them many times."""
    writers = [subprocess.Popen(writer_of(directory, who, 25), stdout=subprocess.DEVNULL) for who in range(6)]
    assert [writer.wait(60) for writer in writers] == [0] * 6
    events = list(Audit(directory).events())
    assert len(events) == 150
    for who in range(6):
        assert [event["number"] for event in events if event["who"] == str(who)] == list(range(25))


@pytest.mark.slow
def test_a_writer_that_is_killed_at_any_moment_spoils_at_most_its_own_last_line(directory: bytes) -> None:
    """The time buys eight processes, each killed at another moment while it writes."""
    chance = random.Random(4)
    for who in range(8):
        with subprocess.Popen(writer_of(directory, who, 100_000), stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            first = writer.stdout.readline()
            time.sleep(chance.random() * 0.2)
            writer.kill()
            told = (first + writer.communicate()[0]).split(b"\n")[:-1]
        written = [event["number"] for event in Audit(directory).events() if event.get("who") == str(who)]
        assert told
        assert written[: len(told)] == list(map(int, told))
        assert len(written) <= len(told) + 1
    fill(directory, 1)
    events = list(Audit(directory).events())
    assert events[-1]["number"] == 0
    assert sum(event["kind"] == "unreadable" for event in events) <= 8


def write_in_halves(fd: int, text: bytes) -> None:
    """Write as a slow disk might: another writer has time to come in between."""
    half = len(text) // 2
    os.write(fd, text[:half])
    time.sleep(0.01)
    os.write(fd, text[half:])


def unreadable_lines(directory: bytes) -> int:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: fill(directory, 5), range(4)))
    return sum(event["kind"] == "unreadable" for event in Audit(directory).events())


def test_writers_wait_for_one_another(directory: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "write_whole", write_in_halves)
    assert unreadable_lines(directory) == 0
    assert len(numbers(directory)) == 20


def test_control_without_the_lock_lines_are_mixed_up(directory: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "write_whole", write_in_halves)
    monkeypatch.setattr(fcntl, "flock", lambda _fd, _how: None)
    assert unreadable_lines(directory) > 0


TORN = [b"{", b'{"at_ns":1,"kind":"ru', b"\0" * 100, b'{"kind":"a"}\n{"ki', b"\xff\xfe"]


@pytest.mark.parametrize("torn", TORN)
@pytest.mark.parametrize("durable", [False, True])
def test_a_line_that_a_crash_tore_is_named_and_the_next_one_is_whole(
    directory: bytes, torn: bytes, durable: bool
) -> None:
    fill(directory, 2)
    add_raw(directory, torn)
    Audit(directory).append({"kind": "after"}, durable=durable)
    *before, spoilt, after = Audit(directory).events()
    assert [event["kind"] for event in before] == ["test", "test", *["a"] * torn.count(b"\n")]
    assert spoilt == {"kind": "unreadable", "bytes": len(torn.rpartition(b"\n")[2])}
    assert after["kind"] == "after"


def test_control_without_looking_at_the_end_a_torn_line_takes_the_next_one_along(
    directory: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(directory, 2)
    add_raw(directory, b"{")
    monkeypatch.setattr(os, "pread", lambda _fd, _count, _at: b"\n")
    Audit(directory).append({"kind": "after"})
    assert [event["kind"] for event in Audit(directory).events()] == ["test", "test", "unreadable"]


def test_what_must_be_recorded_first_is_on_the_disk_and_what_has_happened_waits_for_no_disk(
    directory: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    really: Callable[[int], None] = os.fsync

    def sync(fd: int) -> None:
        # What a directory holds has no size; of a file, how much of it is safe
        synced.append(os.fstat(fd).st_size if stat.S_ISREG(os.fstat(fd).st_mode) else -1)
        really(fd)

    monkeypatch.setattr(os, "fsync", sync)
    audit = Audit(directory)
    audit.append({"kind": "run"}, durable=False)
    assert synced == [-1], "the name of a new file is safe before the first line"
    audit.append({"kind": "run"}, durable=False)
    assert synced == [-1]
    audit.append({"kind": "request"})
    assert synced == [-1, len(content(directory))]


FULL = """
import os, resource, signal, sys
from unspill.permissions.audit import Audit
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
size = os.stat(sys.argv[1] + '/log-000001').st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 60, size + 60))
Audit(os.fsencode(sys.argv[1])).append({'kind': 'first'}, {'kind': 'second'}, durable=bool(int(sys.argv[2])))
"""


@pytest.mark.parametrize("durable", [0, 1])
def test_events_for_which_there_is_no_room_are_not_written_in_part(directory: bytes, durable: int) -> None:
    fill(directory, 2)
    before = content(directory)
    result = subprocess.run([sys.executable, "-c", FULL, directory, str(durable)], capture_output=True, check=False)
    assert b"StoreError" in result.stderr
    assert content(directory) == before
    fill(directory, 1)
    assert numbers(directory) == [0, 1, 0]


def test_a_link_in_the_place_of_the_log_is_not_followed(tmp_path: Path, directory: bytes) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    os.mkdir(directory, 0o700)
    os.symlink(victim, log_file(directory))
    with pytest.raises(StoreError):
        fill(directory, 1)
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("durable", [False, True])
def test_what_can_not_be_written_is_an_error(directory: bytes, durable: bool) -> None:
    os.mkdir(directory)
    os.mkdir(directory + b"/lock")
    with pytest.raises(StoreError):
        Audit(directory).append({"kind": "test"}, durable=durable)


def test_what_can_not_be_read_is_an_error(directory: bytes) -> None:
    os.makedirs(log_file(directory))
    with pytest.raises(StoreError):
        list(Audit(directory).events())


def test_files_of_earlier_versions_are_read_and_added_to(directory: bytes) -> None:
    os.mkdir(directory, 0o700)
    for name, text in ((b"log-000001", CHAINED), (b"log-000002", CHAINED), (b"lock", b"000002 x\n"), (b"head", b"{}")):
        with open(os.path.join(directory, name), "wb") as file:
            file.write(text)
    fill(directory, 1)
    assert [event["kind"] for event in Audit(directory).events()] == [*["run", "recovered"] * 2, "test"]
    assert content(directory) == CHAINED
    assert logs(directory) == [b"log-000001", b"log-000002"]


def test_every_request_can_be_recorded(directory: bytes) -> None:
    Audit(directory).append(*(decision_event(request, "denied", "rule") for request in ONE_OF_EACH))
    assert [event["kind"] for event in Audit(directory).events()] == ["decision"] * len(ONE_OF_EACH)


def test_a_huge_command_is_recorded_in_part_and_by_its_digest(directory: bytes) -> None:
    huge = NetworkForCommand(**FOR_A_COMMAND | {"argv": (b"x" * 10, b"y" * 200_000, b"z")})
    Audit(directory).append(decision_event(huge, "denied", "rule"))
    (event,) = Audit(directory).events()
    assert event["request"]["argv"][-1] == "[cut: 200011 bytes in all]"
    assert len(event["request"]["key"]) == 64
    assert len(content(directory)) < 20_000


@pytest.mark.parametrize(
    ("paths", "fields"),
    [
        ([], {"paths": []}),
        ([PROJECT + b"/a", PROJECT + b"/b\xff", PROJECT + b"/."], {"paths": ["a", "b\udcff", "."]}),
        ([b"/srv/other/a", PROJECT + b"s/a"], {"paths": ["/srv/other/a", "/home/ann/projects/a"]}),
    ],
)
def test_paths_are_named_from_the_project_on_or_from_the_root(paths: list[bytes], fields: dict[str, Any]) -> None:
    assert path_fields(paths, PROJECT) == fields


@pytest.mark.parametrize(
    ("count", "length", "named"), [(MOST_PATHS, 10, MOST_PATHS), (5 * MOST_PATHS, 10, MOST_PATHS), (100, 1024, 64)]
)
def test_of_many_or_long_paths_some_are_named_and_the_others_counted(count: int, length: int, named: int) -> None:
    fields = path_fields([PROJECT + b"/%0*d" % (length, number) for number in range(count)], PROJECT)
    assert (len(fields["paths"]), fields.get("more_paths", 0)) == (named, count - named)
    assert sum(map(len, fields["paths"])) <= MOST_PATH_BYTES


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def as_json_has_it(value: Any) -> Any:
    """Two halves of a character, one after the other, are that character in any JSON."""
    return json.loads(json.dumps(value))


@given(JSON)
def test_lines_are_json_in_printable_ascii(value: Any) -> None:
    text = to_json(value)
    assert json.loads(text) == as_json_has_it(value)
    assert text.isascii()
    assert text.isprintable()


def test_of_variables_only_the_names_are_kept() -> None:
    request = Unsandboxed(project=PROJECT, argv=(b"make",), environ=(b"MODE=fast", b"TOKEN=canary=1"))
    question = make_question(request, request.scopes)
    for event in (request_event(question), decision_event(request, "denied", "a rule")):
        assert event["request"]["environ"] == ["MODE", "TOKEN"]
        assert "canary" not in json.dumps(event)


def test_a_long_command_is_cut() -> None:
    event = decision_event(
        Unsandboxed(project=PROJECT, argv=(b"make", b"x" * 10 * MOST_COMMAND_BYTES)), "denied", "a rule"
    )
    assert len(json.dumps(event)) < 2 * MOST_COMMAND_BYTES
    assert "[cut: 163844 bytes in all]" in event["request"]["argv"]
